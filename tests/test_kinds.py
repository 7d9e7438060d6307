"""A kind of method, order, cache, objective, judge or task set is known by its record and by the
one table that says what it does: nothing else asks for its name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracerl.settings.methods import Method
from tracerl.settings.rewards import Judge
from tracerl.settings.sampling import Cache, Order
from tracerl.settings.structure import sections, tag_of
from tracerl.settings.tasks import TaskSet
from tracerl.settings.training import Objective

ROOT = Path(__file__).parents[1]
UNIONS = {
    "method": Method,
    "order": Order,
    "cache": Cache,
    "objective": Objective,
    "judge": Judge,
    "task set": TaskSet,
}
RECORDS = {section.__name__ for union in UNIONS.values() for section in sections(union)}
# Words that mean something else elsewhere too: a ratio "none", a task's own kind "open", ...
COMMON = {"none", "model", "steps", "server", "file", "open", "random", "trace", "window"}
TASK_KINDS = {tag_of(section) for section in sections(TaskSet)}
NAMES = {tag_of(section) for union in UNIONS.values() for section in sections(union)}
NAMES -= COMMON | TASK_KINDS
# Where a record's table stands, and nothing but its table may ask which record it is.
TABLES = {
    "objectives/methods.py",
    "objectives/supervised.py",
    "sampling/caches.py",
    "sampling/orders.py",
}


def sources() -> list[Path]:
    files = [*(ROOT / "src" / "tracerl").rglob("*.py"), *(ROOT / "stages").rglob("*.py")]
    return [path for path in sorted(files) if "settings" not in path.relative_to(ROOT).parts]


def strings(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def branches(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and word of every comparison with the name of a kind, and of every check of a record's
    class."""
    records = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tracerl.settings"):
            records |= {alias.name for alias in node.names} & RECORDS
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from ((node.lineno, word) for word in strings(side) if word in NAMES)
            left = node.left
            if isinstance(left, ast.Attribute) and left.attr in ("kind", "source"):
                owner = left.value
                if isinstance(owner, ast.Attribute) and owner.attr in (*UNIONS, "settings"):
                    yield node.lineno, ast.unparse(left)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            names = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            yield from ((node.lineno, name) for name in sorted(names & records))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_outside_the_settings_branches_on_a_kind(path: Path) -> None:
    found = list(branches(ast.parse(path.read_text(encoding="utf-8"))))
    if any(str(path).endswith(table) for table in TABLES):
        found = [(line, word) for line, word in found if word in RECORDS]
        assert len(found) <= 2
    else:
        assert found == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('if mode == "exact": pass', 1),
        ('if settings.method in ("tracerl", "spg"): pass', 2),
        (
            "from tracerl.settings.sampling import PlackettLuce\n"
            "if isinstance(order, PlackettLuce): pass",
            1,
        ),
        ('if self.settings.kind == "model": pass', 1),
        ('if ratio == "none" or task.kind == "open": pass', 0),
    ],
)
def test_the_search_sees_branches_on_kinds(text: str, count: int) -> None:
    assert len(list(branches(ast.parse(text)))) == count


@pytest.mark.parametrize("name", UNIONS)
def test_every_key_of_a_kind_says_what_it_means(name: str) -> None:
    for section in sections(UNIONS[name]):
        assert section.__doc__
        for key, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{key} has no docstring line"
