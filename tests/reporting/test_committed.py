"""`tracerl summary` says whether a run equals the committed one."""

from pathlib import Path

import pytest
import yaml

from tests.repository import commit, git
from tracerl.reporting.committed import compare_with_commit, describe


def lock(**outputs: str) -> str:
    """A lock file with an output for each name."""
    stages = {
        "code": {"cmd": "x", "outs": [{"path": "data/code", "md5": str(len(outputs))}]},
        "report": {
            "cmd": "x",
            "outs": [{"path": path, "md5": md5} for path, md5 in outputs.items()],
        },
    }
    return yaml.safe_dump({"schema": "2.0", "stages": stages})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose committed run has two outputs."""
    (tmp_path / "dvc.lock").write_text(lock(one="1", two="2"))
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, "run")
    return tmp_path


def test_the_same_outputs_are_equal_bit_for_bit(project: Path) -> None:
    comparison = compare_with_commit(project)
    assert comparison is not None
    assert comparison.different == ()
    assert "equals the committed one bit for bit (2 outputs" in describe(comparison)


def test_each_output_that_differs_or_is_missing_is_named(project: Path) -> None:
    (project / "dvc.lock").write_text(lock(one="1", two="3", three="4"))
    comparison = compare_with_commit(project)
    assert comparison is not None
    assert comparison.different == ("three", "two")
    assert "differs from the committed one in 2 outputs: three, two" in describe(comparison)
    (project / "dvc.lock").write_text(lock(one="1"))
    comparison = compare_with_commit(project)
    assert comparison is not None
    assert comparison.different == ("two",)


def test_without_a_committed_run_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    assert compare_with_commit(tmp_path) is None
    (tmp_path / "dvc.lock").write_text(lock(one="1"))
    assert describe(compare_with_commit(tmp_path)) == "There is no committed run to compare with."
    (tmp_path / "dvc.lock").write_text("schema: [")
    assert compare_with_commit(tmp_path) is None


def test_without_git_there_is_nothing_to_compare_with(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare_with_commit(project) is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compare_with_commit(project) is None
