"""dvc.lock after a kill: whatever was cut off is put back, and nothing else is touched. A damaged
list of running processes is removed."""

import errno
import json
import os
from pathlib import Path

import pytest
import yaml

from flows.lockfile import keep_copy, repair, repair_rwlock, safe_lock, stages_of
from tests.repository import commit, git
from tracerl.errors import DataError


def ignore(_: str) -> None:
    """Takes a message."""


def entry(i: int) -> dict[str, object]:
    md5 = f"{i:032x}"
    outs = [{"path": f"data/{i}{part}", "hash": "md5", "md5": md5, "size": 7} for part in "ab"]
    return {
        "cmd": f"python step.py {i}",
        "deps": [{"path": "step.py", "hash": "md5", "md5": md5, "size": 7}],
        "outs": outs,
    }


STAGES = {f"stage{i}": entry(i) for i in range(4)}
WHOLE = yaml.safe_dump({"schema": "2.0", "stages": STAGES}, sort_keys=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    (tmp_path / "dvc.lock").write_text(WHOLE)
    return tmp_path


def test_every_cut_is_noticed_and_every_entry_comes_back(project: Path) -> None:
    """At any length, as a kill may leave them."""
    keep_copy(project)
    lock = project / "dvc.lock"
    for length in range(0, len(WHOLE), 7):
        lock.write_text(WHOLE[:length])
        said: list[str] = []
        repair(project, said.append)
        assert stages_of(lock.read_text()) == STAGES, length
        assert len(said) == 1, length
        assert "cut off by a kill" in said[0]


def test_a_whole_lock_is_left_alone(project: Path) -> None:
    keep_copy(project)
    said: list[str] = []
    repair(project, said.append)
    assert (project / "dvc.lock").read_text() == WHOLE
    changed = WHOLE.replace(f"{0:032x}", f"{9:032x}")
    (project / "dvc.lock").write_text(changed)
    repair(project, said.append)
    assert (project / "dvc.lock").read_text() == changed
    assert said == []


def test_entries_written_before_the_cut_are_kept(project: Path) -> None:
    """A stage had ended, and the kill fell into the writing of the next one."""
    keep_copy(project)
    text = WHOLE.replace(f"{0:032x}", f"{9:032x}")
    (project / "dvc.lock").write_text(text[: text.index("stage2:")])
    repair(project, ignore)
    stages = stages_of((project / "dvc.lock").read_text())
    assert stages is not None
    assert stages["stage0"]["outs"][0]["md5"] == f"{9:032x}"
    assert {name: stages[name] for name in ("stage2", "stage3")} == {
        name: STAGES[name] for name in ("stage2", "stage3")
    }


def test_the_copy_never_takes_over_damage(project: Path) -> None:
    keep_copy(project)
    for length in (0, 100, WHOLE.index("stage3:")):
        (project / "dvc.lock").write_text(WHOLE[:length])
        keep_copy(project)
    repair(project, ignore)
    assert stages_of((project / "dvc.lock").read_text()) == STAGES


def test_a_checkout_with_fewer_stages_is_no_damage(project: Path) -> None:
    keep_copy(project)
    fewer = yaml.safe_dump({"schema": "2.0", "stages": {"stage0": entry(0)}}, sort_keys=False)
    (project / "dvc.lock").write_text(fewer)
    git(project, "init", "--quiet")
    commit(project, "fewer")
    repair(project, ignore)
    assert (project / "dvc.lock").read_text() == fewer


def test_without_a_copy_the_committed_lock_comes_back(project: Path) -> None:
    git(project, "init", "--quiet")
    commit(project, "whole")
    (project / "dvc.lock").write_text("")
    said: list[str] = []
    repair(project, said.append)
    assert (project / "dvc.lock").read_text() == WHOLE
    assert "the committed one is back" in said[0]


def test_without_a_copy_and_a_commit_the_error_says_what_to_do(project: Path) -> None:
    (project / "dvc.lock").write_text("schema: '2.0'\nstag")
    with pytest.raises(DataError, match=r"cut off by a kill(?s:.*)delete it"):
        repair(project, ignore)


def test_a_project_that_has_run_nothing_needs_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    with safe_lock(tmp_path, print):
        pass
    assert not (tmp_path / "dvc.lock").exists()


def test_damage_during_a_run_is_repaired_at_its_end(project: Path) -> None:
    said: list[str] = []
    with safe_lock(project, said.append):
        (project / "dvc.lock").write_text(WHOLE[:200])
    assert stages_of((project / "dvc.lock").read_text()) == STAGES
    assert len(said) == 1
    assert not list((project / ".dvc" / "tmp").glob("*.good"))


def test_a_list_of_processes_is_removed_when_it_was_cut_off_and_only_then(project: Path) -> None:
    path = project / ".dvc" / "tmp" / "rwlock"
    whole = json.dumps({"read": {}, "write": {"data/a": {"pid": 1, "cmd": "dvc repro"}}})
    said: list[str] = []
    path.write_text(whole)
    repair_rwlock(project, said.append)
    assert path.read_text() == whole
    assert not said
    for length in (0, 1, len(whole) - 1):
        path.write_text(whole[:length])
        repair_rwlock(project, said.append)
        assert not path.exists(), length
    assert len(said) == 3
    assert all("cut off by a kill" in text for text in said)


def test_a_full_disk_leaves_the_good_copy_for_the_next_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when DVC has emptied dvc.lock and when it is to be put back."""
    lock, copy = project / "dvc.lock", project / ".dvc" / "tmp" / "lock-root.good"

    def refuse(*paths: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def run() -> None:
        with safe_lock(project, ignore):
            lock.write_text("")
            monkeypatch.setattr(os, "replace", refuse)

    with pytest.raises(DataError, match="cannot be written"):
        run()
    monkeypatch.undo()
    assert stages_of(copy.read_text()) == STAGES
    said: list[str] = []
    with safe_lock(project, said.append):
        assert stages_of(lock.read_text()) == STAGES
    assert len(said) == 1
