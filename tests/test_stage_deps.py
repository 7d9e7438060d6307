"""DVC runs a stage again when a file that it runs changes, and not when another one does: each
stage depends on the list of its code, and the list is complete."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages.runtime.code import SOURCE, code_list, stage_files, stage_kinds
from tests.tiny_run import environment

STAGES = {
    name: entry.get("do", entry)
    for name, entry in yaml.safe_load((SOURCE / "dvc.yaml").read_text())["stages"].items()
}


def listed(kind: str) -> set[str]:
    """The code of a stage, by path below the root."""
    return {path.relative_to(SOURCE).as_posix() for path in stage_files(kind)}


@pytest.mark.parametrize("name", sorted(set(STAGES) - {"code", "params"}))
def test_a_stage_depends_on_its_code_and_on_its_params(name: str) -> None:
    deps = STAGES[name]["deps"]
    assert ("data/code" if name == "report" else f"data/code/{name}.txt") in deps
    assert len([dep for dep in deps if dep.startswith("data/params")]) == 1
    assert "params" not in STAGES[name]
    assert STAGES[name]["cmd"].split()[:3] == ["python", "-m", f"stages.{name}"]


def test_every_stage_module_is_a_stage_of_the_pipeline() -> None:
    assert set(stage_kinds()) == set(STAGES)


def test_the_lists_themselves_follow_the_code_and_the_params() -> None:
    assert STAGES["code"]["deps"] == ["src/tracerl", "stages"]
    assert STAGES["params"]["deps"] == ["data/code/params.txt", "params.yaml"]


@pytest.mark.parametrize("kind", ["tasks", "rl", "report"])
def test_every_first_party_module_that_python_loads_is_listed(kind: str) -> None:
    program = f"""
import importlib, json, sys
importlib.import_module("stages.{kind}")
print(json.dumps([m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded = {Path(name) for name in json.loads(done.stdout)}
    own = {path for path in loaded if path.is_relative_to(SOURCE) and ".venv" not in path.parts}
    names = {path.relative_to(SOURCE).as_posix() for path in own}
    assert len(names) > 10
    assert names - listed(kind) == set()


def test_resources_are_listed_with_the_module_that_opens_them() -> None:
    assert "src/tracerl/reporting/viewer.js" in listed("report")
    assert "src/tracerl/reporting/report.html.j2" in listed("report")
    assert "src/tracerl/reporting/viewer.js" not in listed("rl")
    assert any(path.endswith("/guest.py") for path in listed("rl"))


def test_a_stage_that_loads_no_model_does_not_depend_on_the_models() -> None:
    """An edit of the transformer would else make the tasks, and all that follows, anew."""
    assert "src/tracerl/models/transformer.py" in listed("rl")
    assert "src/tracerl/training/rl.py" not in listed("sft")
    assert "src/tracerl/training/rl.py" not in listed("evaluate")


def write_source(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


FILES = {
    "stages/__init__.py": "",
    "stages/a.py": "from tracerl import b\nif __name__ == '__main__': pass\n",
    "stages/other.py": "import tracerl.unused\n",
    "src/tracerl/__init__.py": "",
    "src/tracerl/b.py": "def f():\n    from tracerl.room.c import value\n",
    "src/tracerl/unused.py": "",
    "src/tracerl/typed.py": "",
    "src/tracerl/room/__init__.py": "",
    "src/tracerl/room/c.py": "from pathlib import Path\nimport json\n"
    "from typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    import tracerl.typed\n"
    "value = Path(__file__).with_name('script.py').read_text()\n",
    "src/tracerl/room/script.py": "",
    "src/tracerl/room/beside.py": "",
    "src/tracerl/room/page.j2": "",
}


def test_a_list_holds_what_is_imported_however_late_and_nothing_for_types_only(
    tmp_path: Path,
) -> None:
    write_source(tmp_path, FILES)
    names = [path.relative_to(tmp_path).as_posix() for path in stage_files("a", tmp_path)]
    assert names == [
        "src/tracerl/__init__.py",
        "src/tracerl/b.py",
        "src/tracerl/room/__init__.py",
        "src/tracerl/room/c.py",
        "src/tracerl/room/page.j2",
        "src/tracerl/room/script.py",
        "stages/__init__.py",
        "stages/a.py",
    ]
    assert stage_kinds(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("name", "counts"), [("room/c.py", True), ("room/page.j2", True), ("unused.py", False)]
)
def test_the_list_changes_with_the_code_and_with_no_other(
    tmp_path: Path, name: str, counts: bool
) -> None:
    write_source(tmp_path, FILES)
    before = code_list("a", tmp_path)
    path = tmp_path / "src" / "tracerl" / name
    path.write_text(path.read_text() + "# edited\n")
    assert (code_list("a", tmp_path) != before) == counts
