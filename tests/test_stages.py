"""What the stages promise beyond the library: imported checkpoints, and results that do not depend
on how often they are made."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from stages import context
from tests.tiny_run import digests, fails, run_stage, tiny_params, write_params
from tracerl.settings.params import Params, parse_params


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
def params() -> Params:
    return parse_params(tiny_params(), "here")


def test_a_stage_leaves_the_scratch_of_others_alone(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "SCRATCH", tmp_path)
    other = context.workspace("evaluate@wide-k8", params, params.report, []).directory
    stale = tmp_path / "evaluate@wide-0123456789ab"
    stale.mkdir()
    own = context.workspace("evaluate@wide", params, params.report, []).directory
    assert sorted(tmp_path.iterdir()) == sorted([other, own])


def test_a_fingerprint_follows_params_seed_threads_inputs_and_code(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "SCRATCH", tmp_path / "scratch")
    monkeypatch.setattr(context, "CODE", tmp_path / "code")
    source = tmp_path / "code" / "src" / "module.py"
    source.parent.mkdir(parents=True)
    source.write_text("ONE = 1\n")
    data = tmp_path / "data.bin"
    data.write_bytes(b"one")

    def name(changed: Params = params) -> str:
        return context.workspace("rl@short", changed, changed.rl["short"], [data]).directory.name

    names = [name(), name()]
    assert names[0] == names[1]
    names += [
        name(params.model_copy(update={"seed": 99})),
        name(params.model_copy(update={"threads": 2})),
    ]
    names += [name(params.model_copy(update={"rl": {"short": params.rl["long"]}}))]
    data.write_bytes(b"two")
    names.append(name())
    source.write_text("ONE = 2\n")
    names.append(name())
    assert len(set(names)) == len(names) - 1


def test_a_task_set_without_a_held_out_problem_is_an_error(tmp_path: Path) -> None:
    changed = tiny_params()
    changed["tasks"]["sets"]["sums-short"].update(num_test=0)
    changed["evaluate"]["sft-short"].update(checkpoint="base")
    write_params(tmp_path, changed)
    for stage in ("tasks", "base"):
        run_stage(tmp_path, stage)
    assert "no held-out problem" in fails(tmp_path, "evaluate", "sft-short")
