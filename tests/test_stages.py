"""What the stages promise beyond the library: imported checkpoints, and results that do not depend
on how often they are made."""

import json
import shutil
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from stages.runtime import fingerprint
from stages.runtime.scratch import open_workspace
from tests.tiny_run import (
    RunningStage,
    digests,
    fails,
    run_stage,
    set_root,
    tiny_params,
    write_params,
)
from tracerl.errors import DataError


def test_a_local_checkpoint_is_imported_as_it_is(tmp_path: Path) -> None:
    write_params(tmp_path / "first", tiny_params())
    for stage in ("tasks", "base"):
        run_stage(tmp_path / "first", stage)
    trained = tmp_path / "first" / "data" / "checkpoints" / "base"
    params = tiny_params()
    params["base"]["path"] = str(trained)
    write_params(tmp_path / "second", params)
    run_stage(tmp_path / "second", "base")
    imported = tmp_path / "second" / "data" / "checkpoints" / "base"
    assert digests(imported) == digests(trained)
    assert "lm_head.weight" in load_file(imported / "model.safetensors")
    names = [
        json.loads((tmp_path / run / "reports" / "metrics" / "base.json").read_text())[
            "policy_hash"
        ]
        for run in ("first", "second")
    ]
    assert names[0] == names[1]


def test_a_stage_run_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    for run in ("one", "two"):
        write_params(tmp_path / run, tiny_params())
        for stage in ("tasks", "base"):
            run_stage(tmp_path / run, stage)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with tiny params, in which stages of this process work."""
    write_params(tmp_path, tiny_params())
    set_root(tmp_path, monkeypatch)
    return tmp_path


def test_a_stage_leaves_the_scratch_of_others_alone(folder: Path) -> None:
    other = open_workspace("evaluate@wide-k8", []).directory
    stale = folder / "data" / "scratch" / "evaluate@wide-0123456789ab"
    stale.mkdir()
    own = open_workspace("evaluate@wide", []).directory
    assert sorted((folder / "data" / "scratch").iterdir()) == sorted([other, own])


def test_a_fingerprint_follows_params_inputs_and_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = folder / "data.bin"
    data.write_bytes(b"one")

    def name(stage: str = "rl@short") -> str:
        return open_workspace(stage, [data]).directory.name.partition("-")[2]

    first = name()
    assert name() == first
    params = tiny_params()
    params["rl"]["long"]["iterations"] += 1
    params["verification"]["num_workers"] += 1
    params["launch"]["port"] += 1
    write_params(folder, params)
    assert name() == first, "what this stage does not read, or what changes no result, counts"
    names = {first}
    for change in ({"seed": 99}, {"threads": 2}, {"truncated_is_wrong": False}):
        write_params(folder, {**tiny_params(), **change})
        names.add(name())
    write_params(folder, tiny_params())
    data.write_bytes(b"two")
    names.add(name())
    monkeypatch.setattr(fingerprint, "code_list", lambda kind: "0  stages/rl.py\n")
    names.add(name())
    assert len(names) == 6


def test_nothing_is_published_once_an_input_has_changed(folder: Path) -> None:
    """DVC hashes what a stage depends on after it ran, and would record the new input with the old
    result."""
    data = folder / "data.bin"
    data.write_bytes(b"one")
    space = open_workspace("rl@short", [data])
    (space.directory / "out.txt").write_text("result")
    data.write_bytes(b"two")
    with pytest.raises(DataError, match=r"not published(?s:.*)rl@short(?s:.*)changed: data.bin"):
        space.publish({"out.txt": folder / "out.txt"})
    assert not (folder / "out.txt").exists()
    data.write_bytes(b"one")
    space.publish({"out.txt": folder / "out.txt"})
    assert (folder / "out.txt").read_text() == "result"


def test_nothing_is_published_once_its_params_have_changed(folder: Path) -> None:
    space = open_workspace("rl@short", [])
    (space.directory / "out.txt").write_text("result")
    write_params(folder, {**tiny_params(), "seed": 2})
    with pytest.raises(DataError, match=r"changed: data/params/rl@short.yaml"):
        space.publish({"out.txt": folder / "out.txt"})


def test_params_edited_during_a_run_wait_for_the_next_one(folder: Path) -> None:
    """The stage reads what `params` wrote, which is what DVC records."""
    run_stage(folder, "tasks")
    text = (folder / "params.yaml").read_text()
    (folder / "params.yaml").write_text(text.replace("seed: 1", "seed: 2", 1))
    run_stage(folder, "base")
    (folder / "params.yaml").write_text(text)
    edited = digests(folder)
    shutil.rmtree(folder / "data" / "checkpoints" / "base")
    run_stage(folder, "base")
    assert digests(folder) == edited


def test_code_that_is_not_the_recorded_code_does_not_run(folder: Path) -> None:
    path = folder / "data" / "code" / "tasks.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace(lines[0][:8], "0" * 8), *lines[1:]]) + "\n")
    output = fails(folder, "tasks")
    assert "the code is not the code that DVC would record" in output
    assert lines[0].partition("  ")[2] in output


def test_a_stage_works_where_it_is_started_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC sets DVC_ROOT to the user's workspace for experiments that run elsewhere."""
    workspace = tmp_path / "workspace"
    for folder in (workspace, tmp_path / "experiment"):
        write_params(folder, tiny_params())
    before = digests(workspace)
    monkeypatch.setenv("DVC_ROOT", str(workspace))
    run_stage(tmp_path / "experiment", "tasks")
    assert digests(workspace) == before
    assert (tmp_path / "experiment" / "data" / "tasks").is_dir()


@pytest.mark.slow
def test_the_chain_is_the_same_whatever_the_width_of_the_vectors_of_this_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment asks for other widths; `compute.vectors` decides. Only a CPU with AVX-512 can
    tell the two apart."""
    for name in ("default", "avx2", "avx512"):
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", name)
        write_params(tmp_path / name, tiny_params())
        for stage in (("tasks",), ("base",), ("traces",), ("sft", "short")):
            run_stage(tmp_path / name, *stage)
    first, second, third = (digests(tmp_path / name) for name in ("default", "avx2", "avx512"))
    assert first == second == third


def test_every_measured_stage_says_on_which_machine_it_ran(tmp_path: Path) -> None:
    write_params(tmp_path, tiny_params())
    for stage in ("tasks", "base"):
        run_stage(tmp_path, stage)
    record = json.loads((tmp_path / "logs" / "measured" / "base.json").read_text())["machine"]
    assert record["threads"] == 1
    assert record["vectors"] == "avx2"
    assert set(record["libraries"]) >= {"torch", "numpy", "pyarrow", "duckdb"}
    assert record["cpu"]


def test_a_task_set_without_a_held_out_problem_is_an_error(tmp_path: Path) -> None:
    changed = tiny_params()
    changed["tasks"]["sets"]["sums-short"].update(num_test=0)
    changed["evaluate"]["sft-short"].update(checkpoint="base")
    write_params(tmp_path, changed)
    for stage in ("tasks", "base"):
        run_stage(tmp_path, stage)
    assert "no held-out problem" in fails(tmp_path, "evaluate", "sft-short")


def test_a_debug_run_goes_on_from_what_other_code_saved_and_publishes_nothing(
    folder: Path,
) -> None:
    run_stage(folder, "tasks")
    process = RunningStage(folder, "base")
    while not list((folder / "data" / "scratch").glob("base-*/state.safetensors")):
        time.sleep(0.01)
    process.kill()
    process.ended()
    (folder / "data" / "code" / "base.txt").write_text("0  stages/base.py\n")
    saved = digests(folder)
    process = RunningStage(folder, "base", "--debug", "--iterations", "2")
    output = process.ended()
    assert process.returncode != 0
    assert "debug: goes on from a copy of" in output
    assert "Traceback" in output
    assert "after 2 steps, as --iterations asks" in output
    shutil.rmtree(folder / "data" / "scratch" / "debug-base")
    assert digests(folder) == saved
