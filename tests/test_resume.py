"""A stage killed at any moment and started again ends as if it had never been disturbed: the same bytes, and nothing left behind.

SIGKILL falls at random moments (fixed seed) of the work that follows the stage's first change in its scratch folder.
"""

import contextlib
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.tiny_run import digests, run_stage, start_stage, tiny_params, write_params

NUM_KILLS = 5
STAGES = {"traces": ("traces",), "sft": ("sft", "short"), "rl": ("rl", "short"), "evaluate": ("evaluate", "sft-short")}


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the chain up to rl@short and its evaluation has run once."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_params(folder, tiny_params())
    for command in (("tasks",), ("base",), *STAGES.values()):
        run_stage(folder, *command)
    return folder


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_stage_resumes_to_the_same_bytes(undisturbed: Path, tmp_path: Path, stage: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    _remove_outputs(folder, stage)
    rng, kills, attempts = random.Random(f"kill {stage}"), 0, 0
    while kills < NUM_KILLS:
        attempts += 1
        assert attempts < 40, f"only {kills} kills hit a running stage"
        before = _snapshot(folder)
        process = start_stage(folder, *STAGES[stage])
        while process.poll() is None and _snapshot(folder) == before:
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.3))
        alive = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += alive
        if not alive:  # it ended first: start over, so that every kill hits work in progress
            _remove_outputs(folder, stage)
    run_stage(folder, *STAGES[stage])
    assert digests(folder) == digests(undisturbed)
    assert not list((folder / "data" / "scratch").iterdir())


def _remove_outputs(folder: Path, stage: str) -> None:
    """What DVC does before it runs a stage."""
    names = {"traces": ["traces"], "sft": ["checkpoints/sft@short"], "rl": ["checkpoints/rl@short", "rollouts/rl@short"],
             "evaluate": ["evals/sft-short"]}[stage]  # fmt: skip
    for name in names:
        shutil.rmtree(folder / "data" / name, ignore_errors=True)


def _snapshot(folder: Path) -> list[tuple[str, int]]:
    """What the stage has in its scratch folder, with times of change."""
    found = []
    for path in sorted((folder / "data" / "scratch").rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            found.append((str(path), path.stat().st_mtime_ns))
    return found
