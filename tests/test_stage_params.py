"""A changed number reruns the stages that read it and no other: data/params/<stage>.yaml of those
changes, which is what a stage depends on."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.runtime import params as stage_files
from stages.runtime.params import read_params, stage_names, stage_params, write_stage_params
from tests.tiny_run import ROOT, set_root, tiny_params, write_params
from tracerl.errors import DataError, ParamsError
from tracerl.settings.params import load_params, parse_params

SHIPPED = load_params(ROOT / "params.yaml")
TREE = SHIPPED.model_dump(mode="json")
JUDGED = {"traces", "rl", "evaluate"}
COMPUTED = {"base", "traces", "sft", "rl", "evaluate"}
# The kinds of stages that read a section. A round is read by its own stage and by the report.
READERS = {
    "seed": {"tasks", "report"} | COMPUTED,
    "threads": {"report"} | COMPUTED,
    "compute": {"report"} | COMPUTED,
    "truncated_is_wrong": JUDGED,
    "verification": JUDGED,
    "launch": set[str](),
    "tasks": {"tasks"},
    "base": {"base", "report"},
    "traces": {"traces", "validate"},
    "evaluation": {"evaluate", "report"},
    "validation": {"validate"},
    "report": {"report"},
}


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all values that are no mappings."""
    if isinstance(tree, dict) and tree:
        for name, part in tree.items():
            yield from leaves(part, (*path, name))
    else:
        yield path


def other_values(value: Any) -> list[Any]:
    """Values near this one, of which one is likely to be allowed."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value * 2, value / 2, value * 0.9, value - 1]
    if isinstance(value, str):
        return [value + "x"]
    if isinstance(value, list) and value and isinstance(value[0], int | float):
        return [[value[0] + 0.1, *value[1:]], [*value[:-1], value[-1] * 0.9]]
    if isinstance(value, list) and len(value) > 1:
        return [value[:1]]
    return []


def changed(path: tuple[str, ...]) -> dict[str, Any] | None:
    """The shipped params, resolved, with another value at a path; None if none of those tried is
    allowed."""
    value: Any = TREE
    for name in path:
        value = value[name]
    for other in other_values(value):
        if other == value:
            continue
        tree = copy.deepcopy(TREE)
        place: Any = tree
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = other
        try:
            return parse_params(tree, "here").model_dump(mode="json")
        except ParamsError:
            continue
    return None


def readers(path: tuple[str, ...]) -> set[str]:
    """The stages that a change of this key must rerun."""
    section = path[0]
    if path == ("verification", "num_workers"):
        return set()
    if section in stage_files.ROUNDS:
        return {f"{section}@{path[1]}", "report"}
    kinds = READERS[section]
    return {stage for stage in stage_names(SHIPPED) if stage.partition("@")[0] in kinds}


def test_every_key_of_the_shipped_file_reruns_exactly_the_stages_that_read_it() -> None:
    before = {stage: stage_params(TREE, stage) for stage in stage_names(SHIPPED)}
    paths = list(leaves(TREE))
    num_changed = 0
    for path in paths:
        params = changed(path)
        if params is None:
            continue
        num_changed += 1
        reruns = {stage for stage in before if stage_params(params, stage) != before[stage]}
        assert reruns == readers(path), ".".join(path)
    assert num_changed > len(paths) / 2, "most keys must have been swept"


def test_a_round_s_learning_rate_reruns_that_round_and_no_other() -> None:
    params = changed(("rl", "short", "optimizer", "lr"))
    assert params is not None
    reruns = {
        stage
        for stage in stage_names(SHIPPED)
        if stage_params(params, stage) != stage_params(TREE, stage)
    }
    assert reruns == {"rl@short", "report"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with tiny params."""
    write_params(tmp_path, tiny_params())
    set_root(tmp_path, monkeypatch)
    return tmp_path


def test_a_stage_gets_the_very_params_of_the_file(folder: Path) -> None:
    whole = load_params(folder / "params.yaml")
    for stage in stage_names(whole):
        params = read_params(stage)
        kind, _, name = stage.partition("@")
        section = getattr(params, kind if kind != "validate" else "validation")
        expected = getattr(whole, kind if kind != "validate" else "validation")
        assert (section[name] if name else section) == (expected[name] if name else expected)
        assert params.launch == whole.launch
    assert read_params("rl@short").verification == whole.verification


def test_a_stage_cannot_read_what_it_does_not_depend_on(folder: Path) -> None:
    params = read_params("rl@short")
    assert set(params.rl) == {"short"}
    with pytest.raises(AttributeError, match="evaluation"):
        _ = params.evaluation


def test_an_unknown_round_is_named_with_those_there_are(folder: Path) -> None:
    with pytest.raises(ParamsError, match=r"no rl of this name(?s:.*)got: shrot(?s:.*)short"):
        read_params("rl@shrot")


@pytest.mark.parametrize("text", ["", "seed: [", "seed: -1\n", "nothing: 1\n", "- 1\n"])
def test_a_damaged_file_is_an_error_that_says_what_to_do(folder: Path, text: str) -> None:
    (folder / "data" / "params" / "tasks.yaml").write_text(text)
    with pytest.raises(DataError, match=r"tasks.yaml(?s:.*)dvc repro params"):
        read_params("tasks")


def test_writing_the_files_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_stage_params(ROOT / "params.yaml", tmp_path / name)
    one = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    two = {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert one == two
    assert yaml.safe_load(one["rl@short.yaml"])["rl"].keys() == {"short"}
    assert one["params.yaml"] == (ROOT / "params.yaml").read_bytes()
