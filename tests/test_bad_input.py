"""What can go wrong in a run is told in words, by stage, and nothing that was there before is lost.

Wrong params, task files, checkpoints and Parquet files have their tests beside the modules that
read them.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.tiny_run import digests, environment, fails, run_stage, tiny_params, write_params

# How to get a small disk: a mount namespace, of root or of a user namespace.
NAMESPACES = (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount"))


RANDOM = {"kind": "random", "noise": [0.0, 1.0], "weighting": "uniform"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tasks and a base checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    write_params(folder, tiny_params())
    run_stage(folder, "tasks")
    run_stage(folder, "base")
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def changed(folder: Path, **rl_short: Any) -> dict[str, Any]:
    """Writes tiny params in which rl.short starts at the base and has these entries."""
    params = tiny_params()
    params["rl"]["short"].update(init="base", **rl_short)
    write_params(folder, params)
    return params


def test_no_usable_group_after_the_cap_stops_with_counts_and_keeps_the_rollouts(
    folder: Path,
) -> None:
    changed(
        folder, tasks={"arithmetic-long": 1}, pass_rate=[0.2, 0.8], groups=2, max_sampled_groups=3
    )
    output = fails(folder, "rl", "short")
    assert "too few groups" in output
    assert "0 of 3 sampled groups" in output
    assert "min_groups = 1" in output
    (kept,) = (folder / "data" / "scratch").glob("rl@short-*/rollouts/iter-00001.parquet")
    assert pq.read_table(kept).num_rows == 3 * 4


def test_a_loss_that_is_not_finite_stops_before_the_step_and_keeps_the_last_state(
    folder: Path,
) -> None:
    params = tiny_params()
    params["sft"]["short"].update(data="tasks", objective=RANDOM, save_every=1)
    params["sft"]["short"]["optimizer"].update(lr=1e30)
    write_params(folder, params)
    before = digests(folder / "data" / "checkpoints")
    output = fails(folder, "sft", "short")
    assert "is not finite" in output
    assert "optimizer step 2" in output
    assert digests(folder / "data" / "checkpoints") == before
    assert list((folder / "data" / "scratch").glob("sft@short-*/state.safetensors"))


def test_a_failed_round_leaves_the_curve_and_the_metrics_of_the_last_good_one(folder: Path) -> None:
    """DVC deletes them before the round starts."""
    (folder / ".dvc").mkdir()
    params = tiny_params()
    params["sft"]["short"].update(data="tasks", objective=RANDOM, num_steps=4)
    reports = [
        folder / "reports" / name for name in ("curves/sft@short.tsv", "metrics/sft@short.json")
    ]

    def run_after_dvc(lr: float) -> None:
        for path in reports:
            path.unlink(missing_ok=True)
        params["sft"]["short"]["optimizer"].update(lr=lr)
        write_params(folder, params)

    run_after_dvc(0.01)
    run_stage(folder, "sft", "short")
    good = [path.read_bytes() for path in reports]
    run_after_dvc(1e30)
    assert "is not finite" in fails(folder, "sft", "short")
    assert [path.read_bytes() for path in reports] == good
    run_after_dvc(0.02)
    run_stage(folder, "sft", "short")
    new = [path.read_bytes() for path in reports]
    assert all(first != second for first, second in zip(good, new, strict=True))


def test_prompts_over_the_limit_are_left_out_counted_and_reported(folder: Path) -> None:
    params = changed(folder)
    params["rl"]["short"]["sampler"] = {**params["rl"]["short"]["sampler"], "max_prompt_tokens": 8}
    write_params(folder, params)
    run_stage(folder, "rl", "short")
    reported = json.loads((folder / "reports" / "metrics" / "rl@short.json").read_text())[
        "dropped_prompt_too_long"
    ]
    prompts = pq.read_table(folder / "data" / "tasks" / "arithmetic-short.parquet")[
        "prompt"
    ].to_pylist()
    assert reported == {
        "sums-short": 0,
        "arithmetic-short": sum(len(prompt) > 8 for prompt in prompts),
    }
    assert reported["arithmetic-short"] > 0
    sampled = [
        p
        for file in (folder / "data" / "rollouts").rglob("*.parquet")
        for p in pq.read_table(file)["prompt_ids"].to_pylist()
    ]
    assert max(map(len, sampled)) <= 8


def test_a_prompt_limit_that_nothing_fits_is_an_error(folder: Path) -> None:
    params = changed(folder)
    params["rl"]["short"]["sampler"] = {**params["rl"]["short"]["sampler"], "max_prompt_tokens": 1}
    write_params(folder, params)
    assert "every prompt is longer than the limit" in fails(folder, "rl", "short")


def test_a_stage_name_that_is_not_in_the_params_is_an_error(folder: Path) -> None:
    output = fails(folder, "sft", "shrot")
    assert "no sft of this name" in output
    assert "long, short" in output


def test_a_damaged_input_is_named(folder: Path) -> None:
    weights = folder / "data" / "checkpoints" / "base" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    output = fails(folder, "traces")
    assert "damaged or truncated" in output
    assert str(weights) in output


@pytest.mark.parametrize(
    ("command", "place", "options", "told"),
    [
        (("sft", "short"), "data/scratch", "size=100k", "the state could not be saved"),
        (("evaluate", "sft-short"), "data/scratch", "size=40k", "could not be written"),
        # Publishing a folder, and a file.
        (("evaluate", "sft-short"), "data/evals", "size=4k", "the disk is full"),
        (("tasks",), "reports/metrics", "ro", "this folder cannot be written"),
    ],
)
def test_a_full_disk_is_told_and_the_same_command_goes_on_once_there_is_room(
    folder: Path, command: tuple[str, ...], place: str, options: str, told: str
) -> None:
    usable = [
        words
        for words in NAMESPACES
        if not subprocess.run(
            [*words, "mount", "-t", "tmpfs", "none", folder], capture_output=True
        ).returncode
    ]
    if not usable:
        assert not os.environ.get("CI"), "no mount namespace can be made here"
        pytest.skip("needs a mount namespace to make a small disk")
    params = tiny_params()
    params["sft"]["short"].update(data="tasks", objective=RANDOM)
    params["evaluate"]["sft-short"].update(checkpoint="base")
    write_params(folder, params)
    disk = folder / place
    disk.mkdir(parents=True, exist_ok=True)
    stage = shlex.join([sys.executable, "-m", f"stages.{command[0]}", *command[1:]])
    script = f"mount -t tmpfs -o {options} none {shlex.quote(str(disk))} && exec {stage}"
    done = subprocess.run(
        [*usable[0], "sh", "-c", script],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    run_stage(folder, *command)
