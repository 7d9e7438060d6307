"""`make repro` runs what DVC would run, independent stages side by side, and starts no DVC for what
is fresh."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.flows.project import command, make_project

TARGETS = ("after", "wide@0")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repro") / "project"
    folder.mkdir()
    make_project(folder)
    return folder


def repro(project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return command(project, "flows.repro", "--jobs", "2", *TARGETS, *arguments)


def events(done: "subprocess.CompletedProcess[str]") -> list[tuple[str, str]]:
    """(stage, what happened to it), in their order."""
    return re.findall(r"(?m)^(\S+): (started|done|failed)", done.stderr)


def test_independent_stages_run_side_by_side_and_each_after_what_it_needs(project: Path) -> None:
    done = repro(project)
    assert done.returncode == 0, done.stderr
    happened = events(done)
    assert happened[:4] == [
        ("start", "started"),
        ("start", "done"),
        ("fragile", "started"),
        ("wide@0", "started"),
    ], "what `after` waits for goes first"
    assert happened.index(("fragile", "done")) < happened.index(("after", "started"))
    status = command(project, "dvc", "status", *TARGETS, "start", "fragile")
    assert "up to date" in status.stdout


def test_a_second_run_starts_nothing(project: Path) -> None:
    done = repro(project)
    assert done.returncode == 0
    assert done.stderr == "Every stage is up to date.\n"


def test_where_a_stage_wrote_the_same_again_what_follows_is_not_started(project: Path) -> None:
    (project / "data" / "raw" / "more").touch()
    done = repro(project)
    assert done.returncode == 0, done.stderr
    assert events(done) == [("fragile", "started"), ("fragile", "done")]


def test_after_a_failure_nothing_is_started_and_the_status_is_its(project: Path) -> None:
    (project / "data" / "raw" / "break").touch()
    done = repro(project)
    assert done.returncode != 0
    assert events(done) == [("fragile", "started"), ("fragile", "failed")]
    assert "fragile found something to break on" in done.stdout + done.stderr


def test_a_target_that_is_no_stage_is_an_error(project: Path) -> None:
    done = command(project, "flows.repro", "evaluat")
    assert done.returncode == 1
    assert "no stage of this name" in done.stderr
