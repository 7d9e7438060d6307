"""A stage killed at any moment and started again ends as if it had never been disturbed: the same
bytes, and nothing left behind.

SIGKILL falls at random moments (fixed seed): up to a tenth of a second after the n-th change that
the stage makes in its scratch folder, n drawn anew for each kill. Finished units are kept, not made
again: a stage that started over after every kill would end with the same bytes too. The round of RL
has all that a round can remember: a value model, an order module, a reference that moves, and
phases.
"""

import json
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from tests.tiny_run import RunningStage, digests, fails, run_stage, tiny_params, write_params
from tracerl.store.files import read_rollouts

pytestmark = pytest.mark.timeout(600)

NUM_KILLS = 5
STAGES = {
    "traces": ("traces",),
    "sft": ("sft", "short"),
    "rl": ("rl", "short"),
    "evaluate": ("evaluate", "sft-short"),
}
OUTPUTS = {
    "traces": ["traces"],
    "sft": ["checkpoints/sft@short"],
    "rl": ["checkpoints/rl@short", "rollouts/rl@short"],
    "evaluate": ["evals/sft-short"],
}


def resumable_params() -> dict[str, Any]:
    """The small params, with rl.short carrying state of every kind from iteration to iteration."""
    params = tiny_params()
    optimizer = {**params["rl"]["short"]["optimizer"], "lr": 0.01}
    value = {
        "start": "policy",
        "discount": 1.0,
        "trace": 0.95,
        "clip": 0.2,
        "every": 2,
        "updates": 2,
        "optimizer": optimizer,
    }
    phases = [
        {"name": "easy", "until": {"accuracy": 0.0, "over": 2}, "tasks": {"sums-short": 1}},
        {"name": "both", "iterations": 1, "sampler": {"block_size": 2, "steps_per_block": 2}},
    ]
    sampler = {
        **params["rl"]["short"]["sampler"],
        "order": {"kind": "plackett_luce", "temperature": 0.5, "score": "module"},
    }
    params["rl"]["short"].update(
        advantages="gae", value=value, kl_to="synced", sync_every=3, phases=phases
    )
    params["rl"]["short"].update(
        method={"kind": "mask_aware", "segments": 4, "order_weight": 1.0, "order_clip": [0.2, 0.2]},
        sampler=sampler,
    )
    return params


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the chain up to rl@short and its evaluation has run once."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_params(folder, resumable_params())
    for command in (("tasks",), ("base",), *STAGES.values()):
        run_stage(folder, *command)
    return folder


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("traces", marks=pytest.mark.slow),
        "sft",
        "rl",
        pytest.param("evaluate", marks=pytest.mark.slow),
    ],
)
def test_a_killed_stage_resumes_to_the_same_bytes(
    undisturbed: Path, tmp_path: Path, stage: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    remove_outputs(folder, stage)
    rng, kills, attempts, kept = random.Random(f"kill {stage}"), 0, 0, 0
    # `kept`: kills that hit a stage which had finished work to go on from.
    while kills < NUM_KILLS or not kept:
        attempts += 1
        assert attempts < 40, (
            f"{kills} kills hit a running stage, {kept} of them one that had resumed"
        )
        seen, finished_before = snapshot(folder), finished(folder)
        process = RunningStage(folder, *STAGES[stage])
        for _ in range(rng.randint(1, 16)):
            while process.returncode is None and snapshot(folder) == seen:
                time.sleep(0.002)
            seen = snapshot(folder)
        time.sleep(rng.uniform(0.0, 0.1))
        process.kill()
        process.ended()
        after = finished(folder)
        # It was done first: start over, so that every kill hits work in progress.
        if not after and not snapshot(folder):
            remove_outputs(folder, stage)
            continue
        kills += 1
        kept += bool(finished_before)
        assert all(after[unit] >= number for unit, number in finished_before.items()), (
            "finished work was made again"
        )
    run_stage(folder, *STAGES[stage])
    assert digests(folder) == digests(undisturbed)
    assert not list((folder / "data" / "scratch").iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_stage_asked_to_stop_saves_the_step_it_is_in(
    undisturbed: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """Long before the next save was due; and its curve, which averages over the steps since the
    last row, is the same in the end."""
    params = resumable_params()
    params["sft"]["short"]["save_every"] = params["sft"]["short"]["num_steps"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        shutil.copytree(undisturbed, folder)
        write_params(folder, params)
        remove_outputs(folder, "sft")
    run_stage(whole, *STAGES["sft"])
    process = RunningStage(stopped, *STAGES["sft"])
    while not snapshot(stopped):
        time.sleep(0.01)
    process.send_signal(number)
    output = process.ended()
    assert process.returncode == 1
    assert "stopped: sft@short after step" in output
    assert 0 < finished(stopped)["steps"] < params["sft"]["short"]["num_steps"]
    run_stage(stopped, *STAGES["sft"])
    assert digests(stopped) == digests(whole)


def test_two_processes_do_not_work_on_one_stage(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    remove_outputs(folder, "rl")
    process = RunningStage(folder, *STAGES["rl"])
    while len(snapshot(folder)) < 3:  # its folder, and what it writes there
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    try:
        assert "the stage is being run by another process" in fails(folder, *STAGES["rl"])
    finally:
        process.kill()
    process.ended()
    run_stage(folder, *STAGES["rl"])
    assert digests(folder) == digests(undisturbed)


def test_a_round_tells_in_which_phase_each_iteration_was(undisturbed: Path) -> None:
    """And its value model, its figures and the rollouts at the phase's block size are there: what
    the kills above are about."""
    curve = (undisturbed / "reports" / "curves" / "rl@short.tsv").read_text().splitlines()
    rows = [dict(zip(curve[0].split("\t"), line.split("\t"), strict=True)) for line in curve[1:]]
    assert [row["phase"] for row in rows] == ["easy", "easy", "both", "easy"]
    assert float(rows[-1]["value_loss"]) > 0
    metrics = json.loads((undisturbed / "reports" / "metrics" / "rl@short.json").read_text())
    assert metrics["phases"] == {"easy": 3, "both": 1}
    for part in ("value", "order"):
        assert (
            undisturbed / "data" / "checkpoints" / "rl@short" / part / "model.safetensors"
        ).is_file()
    blocks = [
        set(read_rollouts(path)["block_size"].to_pylist())
        for path in (undisturbed / "data/rollouts/rl@short").glob("iter-00003*")
    ]
    assert blocks == [{2}]


def remove_outputs(folder: Path, stage: str) -> None:
    """What DVC does before it runs a stage."""
    for name in OUTPUTS[stage]:
        shutil.rmtree(folder / "data" / name, ignore_errors=True)


def finished(folder: Path) -> dict[str, float]:
    """Saved units of work in the scratch folder, with a number that falls or rises when one is made
    again.

    Where there is a state file: the optimizer steps in it (they may only rise). Else each finished
    file and minus its time of change.
    """
    directories = [
        path for path in (folder / "data" / "scratch").glob("*") if path.suffix != ".tmp"
    ]
    if not directories:
        return {}
    (directory,) = directories
    state = directory / "state.safetensors"
    if state.is_file():
        with safe_open(state, framework="pt") as file:
            return {"steps": float(file.get_tensor("num_steps"))}
    if list(directory.glob("rollouts/*")):
        # RL writes an iteration's rollouts before its state: until then it may write them again
        return {}
    return {str(path): -path.stat().st_mtime for path in directory.rglob("*.parquet")}


def snapshot(folder: Path) -> list[tuple[str, int]]:
    """What the stage has in its scratch folder, with times of change; empty while it is being
    removed."""
    try:
        return [
            (str(path), path.stat().st_mtime_ns)
            for path in sorted((folder / "data" / "scratch").rglob("*"))
        ]
    except FileNotFoundError:
        return []
