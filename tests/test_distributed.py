"""A stage's work shared over ranks ends as on one but for rounding, under every ZeRO stage, and
goes on under any other number of ranks.

Two processes on gloo: one launch runs everything in tests/ranks.py, the rest is compared here.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

from tests.ranks import (
    DRIFT_RATE,
    DRIFT_STEPS,
    DRIFTS,
    GROWN,
    HALVES,
    STOPPED,
    WORLDS,
    World,
    round_of_rl,
)
from tests.tiny_run import environment, run_stage, tiny_params, write_params
from tracerl.store.files import read_rollouts

pytestmark = pytest.mark.timeout(600)
EXACT = ("response_ids", "step_map", "rollout_id", "verdict", "num_forwards")


def launch(*arguments: str, folder: Path) -> None:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *arguments,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rounds in this process: whole weights, and adapters."""
    folder = tmp_path_factory.mktemp("alone")
    for lora in (False, True):
        round_of_rl(folder / str(lora), World(lora=lora))
    round_of_rl(folder / "stopped", World(), stop_after=2)
    return folder


@pytest.fixture(scope="module")
def together(alone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks made of them."""
    folder = tmp_path_factory.mktemp("together")
    for name in GROWN:
        shutil.copytree(alone / "stopped", folder / f"{name}-grown")
    launch("-m", "tests.ranks", str(folder), folder=folder)
    return folder


def assert_same_run(folder: Path, other: Path) -> None:
    for file in sorted((folder / "rollouts").glob("*.parquet")):
        ours, theirs = read_rollouts(file), read_rollouts(other / "rollouts" / file.name)
        assert {n: ours[n].to_pylist() for n in EXACT} == {
            n: theirs[n].to_pylist() for n in EXACT
        }, file.name
    ours, theirs = (
        json.loads((place / "curves.json").read_text())["train"] for place in (folder, other)
    )
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine == {
            key: pytest.approx(value, rel=1e-4, abs=1e-6) for key, value in yours.items()
        }
    ours, theirs = (load_file(place / "weights.safetensors") for place in (folder, other))
    assert {name: tensor.shape for name, tensor in ours.items()} == {
        name: tensor.shape for name, tensor in theirs.items()
    }
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=2e-5, msg=name)


@pytest.mark.parametrize("world", WORLDS)
def test_two_ranks_sample_learn_and_value_as_one_does(alone, together, world):
    assert_same_run(together / world, alone / str(WORLDS[world].lora))


@pytest.mark.parametrize("world", STOPPED)
def test_what_two_ranks_left_one_process_finishes(alone, together, world):
    lora = WORLDS[world].lora
    round_of_rl(together / f"{world}-stopped", World(lora=lora))
    assert_same_run(together / f"{world}-stopped", alone / str(lora))


@pytest.mark.parametrize("world", GROWN)
def test_what_one_process_left_two_ranks_finish_in_parts(alone, together, world):
    assert_same_run(together / f"{world}-grown", alone / "False")


@pytest.mark.parametrize("world", HALVES)
def test_in_half_precision_a_stopped_run_goes_on_bit_for_bit(together, world):
    """The float32 masters are part of what is saved: the half weights would have lost the small
    steps."""
    ours, theirs = (
        load_file(together / name / "weights.safetensors") for name in (f"{world}-stopped", world)
    )
    assert {tensor.dtype for tensor in ours.values()} == {torch.bfloat16}
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    saved = load_file(together / world / "state.safetensors")
    wide = [tensor for name, tensor in saved.items() if name.startswith(("model.", "value.model."))]
    assert {tensor.dtype for tensor in wide} == {torch.float32}
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in wide)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_what_no_loss_had_reached_goes_on_in_parts_with_moments_of_zero(together, zero):
    found = load_file(together / f"half-reached-{zero}.safetensors")
    loaded = {
        name.removeprefix("loaded."): tensor
        for name, tensor in found.items()
        if name.startswith("loaded.optimizer.exp")
    }
    assert len(loaded) == 8
    for name, tensor in loaded.items():
        torch.testing.assert_close(
            tensor, found.get(f"plain.{name}", torch.zeros_like(tensor)), rtol=0, atol=0
        )
    assert any(tensor.any() for tensor in loaded.values())


@pytest.mark.parametrize(("zero", "dtype"), DRIFTS, ids=str)
def test_with_constant_gradients_k_steps_of_rate_r_move_the_master_by_k_r(together, zero, dtype):
    state = load_file(together / f"drift-{zero}-{dtype}.safetensors")
    for name in ("weight", "bias"):
        master = state[f"model.{name}"]
        assert master.dtype == torch.float32
        moved = master.double() - 1.0
        torch.testing.assert_close(
            moved, torch.full_like(moved, -DRIFT_STEPS * DRIFT_RATE), rtol=0.05, atol=0
        )
        assert torch.equal(state[f"passes.{name}"], master.to(dtype))


def test_every_thing_has_one_rank_and_every_rank_as_many_passes(together):
    (first, (mine, shares)) = json.loads((together / "shares.json").read_text())
    assert first[0] == mine == list(range(7))
    assert first[1] == [[[0, True]], [[0, True]], [[0, True], [2, True], [4, True]]]
    assert shares == [[[0, False]], [[1, True]], [[1, True], [3, True], [0, False]]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tasks."""
    folder = tmp_path_factory.mktemp("prepared")
    write_params(folder, tiny_params())
    run_stage(folder, "tasks")
    return folder


def started(prepared: Path, folder: Path, **launch_params: object) -> Path:
    """A folder with tasks in which the stage `base` runs as `launch_params` say, saving every
    second of a few steps."""
    shutil.copytree(prepared, folder)
    params = tiny_params()
    params["base"]["train"]["num_steps"] = 12
    params["launch"].update(launch_params)
    write_params(folder, params)
    return folder


def rows(folder: Path) -> list[list[float]]:
    lines = (folder / "reports" / "curves" / "base.tsv").read_text().splitlines()[1:]
    return [[float(number) for number in line.split("\t")] for line in lines]


def test_the_death_of_a_rank_ends_the_job_and_any_number_of_ranks_goes_on(prepared, tmp_path):
    folder = started(prepared, tmp_path / "run", ranks=2)
    command = [sys.executable, "-m", "stages.base"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not list((folder / "data" / "scratch").glob("base-*/state.safetensors")):
        time.sleep(0.05)
        assert process.poll() is None, process.communicate()[0]
    ranks = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "stages.base" in child.cmdline()
    ]
    victim = next(child for child in ranks if child.environ().get("LOCAL_RANK") == "1")
    victim.kill()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "SIGKILL" in output
    assert "local_rank: 1" in output.split("Root Cause")[1], output
    assert not any(child.is_running() for child in ranks)
    (state,) = (folder / "data" / "scratch").glob("base-*/state.safetensors")
    with safe_open(state, framework="pt") as file:
        done = int(file.get_tensor("num_steps"))
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["launch"]["ranks"] = 1
    write_params(folder, params)
    run_stage(folder, "base")
    assert 0 < done < 12
    assert [row[0] for row in rows(folder)] == list(range(2, 13, 2))
    assert not list((folder / "data" / "scratch").iterdir()), "it went on in the same place"


@pytest.mark.slow
def test_two_launchers_of_two_machines_make_one_run(prepared, tmp_path, monkeypatch):
    """A script stands for `ssh -tt -- HOST COMMAND` and runs the command here."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "ssh").write_text(f'#!/bin/sh\necho "$3" >> {tmp_path}/asked\nexec sh -c "$4"\n')
    (bin_ / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone, both = (
        started(prepared, tmp_path / "alone"),
        started(prepared, tmp_path / "both", hosts=["127.0.0.1", "second"], port=port),
    )
    for folder in (alone, both):
        run_stage(folder, "base")
    assert (tmp_path / "asked").read_text() == "second\n"
    for mine, yours in zip(rows(both), rows(alone), strict=True):
        assert mine == pytest.approx(yours, rel=1e-3)
