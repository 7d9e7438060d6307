"""Experiments that DVC runs elsewhere leave the workspace alone and give what a plain run gives."""

import time
from pathlib import Path

import pytest

from tests.chain import chain_params, commit_and_tag, dvc, make_chain, results
from tests.repository import git
from tests.tiny_run import digests, run_stage, write_params

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

QUEUE_SECONDS = 240


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed project whose tasks have been made with seed 1."""
    folder = tmp_path_factory.mktemp("experiments") / "project"
    make_chain(folder, chain_params(), ["code", "params", "tasks"])
    dvc(folder, "repro")
    commit_and_tag(folder, "first")
    return folder


@pytest.fixture(scope="module")
def tasks_of_seed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, str]]:
    """Digests of the tasks of each seed, made without DVC."""
    tasks = {}
    for seed in (1, 2, 3, 4):
        folder = tmp_path_factory.mktemp("plain")
        write_params(folder, {**chain_params(), "seed": seed})
        (folder / "data" / "raw").mkdir(parents=True)
        (folder / "easy.jsonl").rename(folder / "data" / "raw" / "easy.jsonl")
        run_stage(folder, "tasks")
        tasks[seed] = digests(folder / "data" / "tasks")
    assert tasks[2] != tasks[3] != tasks[4]
    return tasks


def workspace(folder: Path) -> dict[str, str]:
    """Digests of everything that a user sees: params, lock, data and reports."""
    files = {name: (folder / name).read_text() for name in ("params.yaml", "dvc.lock")}
    return {**files, **results(folder), "status": git(folder, "status", "--porcelain")}


def test_an_experiment_in_a_temporary_folder_leaves_the_workspace_alone(
    project: Path, tasks_of_seed: dict[int, dict[str, str]]
) -> None:
    before = workspace(project)
    assert digests(project / "data" / "tasks") == tasks_of_seed[1]
    dvc(project, "exp", "run", "--temp", "--name", "two", "--set-param", "seed=2")
    assert workspace(project) == before
    dvc(project, "exp", "apply", "two")
    assert digests(project / "data" / "tasks") == tasks_of_seed[2]
    git(project, "checkout", "--quiet", "--force", "first")
    dvc(project, "checkout")
    assert workspace(project) == before


def test_queued_experiments_side_by_side_leave_the_workspace_alone(
    project: Path, tasks_of_seed: dict[int, dict[str, str]]
) -> None:
    before = workspace(project)
    for seed, name in ((3, "three"), (4, "four")):
        dvc(project, "exp", "run", "--queue", "--name", name, "--set-param", f"seed={seed}")
    dvc(project, "queue", "start", "--jobs", "2")
    deadline = time.monotonic() + QUEUE_SECONDS
    while not {"three", "four"} <= set(dvc(project, "exp", "list", "--name-only").split()):
        assert time.monotonic() < deadline, dvc(project, "queue", "status")
        time.sleep(2)
    dvc(project, "queue", "stop", "--kill")
    assert workspace(project) == before
    for seed, name in ((3, "three"), (4, "four")):
        dvc(project, "exp", "apply", name)
        assert digests(project / "data" / "tasks") == tasks_of_seed[seed]
        git(project, "checkout", "--quiet", "--force", "first")
        dvc(project, "checkout")
    assert workspace(project) == before
