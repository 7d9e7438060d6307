"""Laws of the project itself: which way imports point, what the library must not know, and what no
committed file may hold."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "tracerl").rglob("*.py"))

# A module may import what stands in an earlier layer, and a package's modules each other.
# Evaluation stands before training because reinforcement learning watches its held-out accuracy.
LAYERS = [
    {"arithmetic", "errors", "seeds", "types"},
    {"settings", "disk", "distributed"},
    {"models"},
    {"puzzles"},
    {"gym"},
    {"objectives", "rewards", "sampling", "store"},
    {"tasks"},
    {"rollouts"},
    {"evaluation"},
    {"training"},
    {"reporting"},
    {"cli"},
]
LEVELS = {name: level for level, layer in enumerate(LAYERS) for name in layer}

# The two places that meet the outside: the command line, and the launcher's rank variables.
MAY_MEET_THE_OUTSIDE = {"cli.py", "distributed.py"}

# The one module whose code runs untrusted programs. It is sent into a sandbox as text; nothing
# outside calls what executes.
RUNS_INSIDE_A_SANDBOX = {"rewards/verify/guest.py"}

# The patterns are written so that they do not match themselves.
MACHINE_PATHS = re.compile(rb"(?<![\w.)}-])/(?:work|root)/|(?<!\w)\.librar[y]\b")
PACKAGE_INDEXES = re.compile(
    rb"(?:pypi|npmjs|pythonhosted)\.(?:org|com)|(?:deb\.debian|download\.pytorch)\.org|--(?:extra-)?index-ur[l]|--find-link[s]"
)
PICKLE_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
TRUSTING_ARGUMENTS = {"trust_remote_code", "allow_pickle"}


def name_in_package(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "tracerl").as_posix()


def top(module: str) -> str:
    return module.split(".")[0]


def syntax(path: Path) -> list[ast.expr | ast.stmt | ast.keyword]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt | ast.keyword)]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything `path` imports, anywhere in the file; `from a
    import b` gives a.b."""
    package = ["tracerl", *Path(name_in_package(path)).parent.parts]
    for node in syntax(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        assert not os.environ.get("CI"), "CI must run in a git clone"
        pytest.skip("not a git clone")
    paths = [ROOT / os.fsdecode(name) for name in listing.stdout.split(b"\0") if name]
    return [path for path in paths if path.is_file()]


def test_there_are_sources():
    assert SOURCES


def test_imports_point_downward_only():
    wrong = []
    for path in SOURCES:
        own = name_in_package(path).removesuffix(".py").split("/")[0]
        if own != "__init__" and own not in LEVELS:
            wrong.append(f"{name_in_package(path)}: give {own!r} a layer")
            continue
        for line, imported in imports(path):
            parts = imported.split(".")
            if parts[0] != "tracerl":
                continue
            other = parts[1] if len(parts) > 1 else "__init__"
            # The package's own head imports nothing, and nothing imports it.
            if own == other and own != "__init__":
                continue
            if LEVELS.get(other, 99) >= LEVELS.get(own, -1):
                wrong.append(f"{name_in_package(path)}:{line}: {own} may not import {imported}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_architecture_page_lists_the_layers():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"(?m)^ +\d+\. (.+)$", text.split("<!-- layers:begin -->")[1])
    assert listed[: len(LAYERS)] == [", ".join(sorted(layer)) for layer in LAYERS]


def test_the_library_knows_neither_prefect_nor_dvc_nor_their_scripts():
    outer = {"prefect", "dvc", "stages", "flows", "tests"}
    wrong = [
        f"{name_in_package(path)}:{line}: {name}"
        for path in SOURCES
        for line, name in imports(path)
        if top(name) in outer
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_what_computes_nothing_with_torch_does_not_wait_for_it():
    """Nor for Great Expectations where nothing is judged: each costs seconds whenever a stage or
    the command line starts."""
    modules = [
        "stages.tasks",
        "stages.report",
        "stages.validate",
        "tracerl.cli",
        "tracerl.store.check",
    ]
    heavy = {"torch", "transformers", "sympy", "great_expectations", "pandas"}
    program = f"import sys, {', '.join(modules)}; print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_the_library_neither_prints_nor_reads_the_environment_or_the_command_line():
    names = {"print", "input"}
    attributes = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "sys.argv"}
    wrong = []
    for path in SOURCES:
        if name_in_package(path) in MAY_MEET_THE_OUTSIDE:
            continue
        wrong += [
            f"{name_in_package(path)}:{line}: {name}"
            for line, name in imports(path)
            if name in attributes
        ]
        for node in syntax(path):
            called = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in names
            )
            read = isinstance(node, ast.Attribute) and ast.unparse(node) in attributes
            if called or read:
                wrong.append(f"{name_in_package(path)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_text_is_read_and_written_as_utf_8_whatever_the_locale():
    wrong = []
    for path in [*SOURCES, *sorted(ROOT.glob("stages/**/*.py")), *sorted(ROOT.glob("flows/*.py"))]:
        for node in syntax(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                words = ast.unparse(node)
                if node.func.attr in ("read_text", "write_text") and "utf-8" not in words:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {words}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_library_runs_no_code_that_came_as_data():
    wrong = []
    for path in SOURCES:
        wrong += [
            f"{name_in_package(path)}:{line}: {name}"
            for line, name in imports(path)
            if top(name) in PICKLE_MODULES
        ]
        wrong += [
            f"{name_in_package(path)}:{line}: {name}"
            for line, name in imports(path)
            if name == "torch.load"
        ]
        for node in syntax(path):
            evaluates = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"eval", "exec"}
            )
            unpickles = isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load"
            trusts = (
                isinstance(node, ast.keyword)
                and node.arg in {"trust_remote_code", "allow_pickle"}
                and ast.unparse(node.value) != "False"
            )
            if (
                unpickles
                or trusts
                or (evaluates and name_in_package(path) not in RUNS_INSIDE_A_SANDBOX)
            ):
                wrong.append(f"{name_in_package(path)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_tracked_file_names_a_machine_or_a_package_index():
    wrong = []
    for path in tracked_files():
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            found = MACHINE_PATHS.search(line) or PACKAGE_INDEXES.search(line)
            if found:
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {found[0].decode()}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_lock_holds_exact_versions_only_and_fits_the_declared_ranges():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [
        line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line)
    ] == []
    locked = {
        canonicalize_name(name): version for name, version in (line.split("==") for line in pins)
    }
    assert locked[canonicalize_name("torch")] == "2.13.0"
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["deepspeed"], *extras["dev"]]:
        requirement = Requirement(text)
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked: run `make lock`"
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{requirement} is locked at {version}: run `make lock`"
        )


def test_the_readme_and_pyproject_name_the_same_extras():
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README yet")
    text = readme.read_text(encoding="utf-8")
    declared = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
    )
    installed = {
        extra.strip()
        for names in re.findall(r"(?<!\w)(?:\.|tracerl)\[([\w, -]+)\]", text)
        for extra in names.split(",")
    }
    assert installed - declared == set(), "the README installs extras that do not exist"
    assert {extra for extra in declared if f"`{extra}`" not in text} == set(), (
        "the README does not say what these extras are for"
    )
