"""A rehearsal runs every stage of a params file on a model of the checkpoint's shape with random
weights, and tells what each stage takes and refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from profiles.make import PROFILES
from tests.tiny import tiny_architecture
from tests.tiny_run import tiny_params
from tracerl.cli import main
from tracerl.errors import ParamsError
from tracerl.models.checkpoint import read_spec
from tracerl.models.cost import peak_memory, reset_peak_memory
from tracerl.reporting.rehearsal import RehearsedStage, plan_rehearsal, rehearse
from tracerl.reporting.rehearsal_inputs import (
    Reductions,
    byte_tokenizer,
    made_up_tasks,
    reduce_architecture,
    write_random_checkpoint,
)
from tracerl.settings.params import Params, load_params, parse_params

ROOT = Path(__file__).parents[2]
SMALLEST = Reductions(num_layers=1, width_divisor=32, prompt_tokens=8, response_tokens=8)


def profile(name: str) -> tuple[Params, Path]:
    params = load_params(ROOT / "profiles" / f"{name}.yaml")
    checkpoint = Path(str(params.base.path)).name
    return params, ROOT / "profiles" / "configs" / f"{checkpoint}.json"


def rehearsed(params: Params, config: Path, folder: Path) -> dict[str, RehearsedStage]:
    rehearsal = plan_rehearsal(params, folder, config, SMALLEST)
    stages = rehearse(rehearsal, folder / "rehearsal", lambda stage: None)
    return {stage.stage: stage for stage in stages}


@pytest.mark.parametrize("name", PROFILES)
def test_no_stage_of_a_profile_is_refused(name, tmp_path):
    params, config = profile(name)
    stages = rehearsed(params, config, tmp_path)
    expected = {"base", "traces", *params.parents, *(f"evaluate@{one}" for one in params.evaluate)}
    assert set(stages) == expected
    assert {stage.stage: stage.refusal for stage in stages.values() if stage.refusal} == {}
    for stage in stages.values():
        assert 0 < stage.peak_bytes < 1e9
        assert stage.full_bytes > stage.peak_bytes
        assert stage.run_bytes > stage.expected_bytes
    trained = [stage for name, stage in stages.items() if name.startswith(("sft", "rl"))]
    assert all(stage.full_seconds > 2 * stage.seconds > 0.0 for stage in trained)


def test_a_refused_stage_says_why_and_what_depends_on_it_is_not_run(tmp_path):
    params, config = profile("sdar-4b")
    tree = params.model_dump(mode="json")
    tree["sft"]["trace"]["objective"] = {"kind": "ar"}
    stages = rehearsed(parse_params(tree, ""), config, tmp_path)
    assert "next-token prediction needs a family that shifts" in stages["sft@trace"].refusal
    for name in ("rl@math", "evaluate@sft-trace"):
        assert stages[name].refusal == "not run: sft@trace was refused"
    assert stages["rl@enlarge"].refusal == "not run: rl@math was refused"
    assert (stages["base"].refusal, stages["evaluate@base"].refusal) == ("", "")


def test_a_new_model_is_trained_in_a_rehearsal(tmp_path):
    data = tiny_params()
    for kind, name in (("sft", "short"), ("rl", "short"), ("evaluate", "sft-short")):
        data[kind] = {name: data[kind][name]}
    data["rl"]["short"].update(kl_to="initial")
    reductions = replace(SMALLEST, width_divisor=1)
    rehearsal = plan_rehearsal(parse_params(data, ""), tmp_path, None, reductions)
    stages = rehearse(rehearsal, tmp_path / "rehearsal", lambda stage: None)
    assert [stage.refusal for stage in stages if stage.refusal] == []
    assert next(stage.seconds for stage in stages if stage.stage == "base") > 0.0
    with pytest.raises(ParamsError, match="in its true widths"):
        plan_rehearsal(parse_params(data, ""), tmp_path, None, SMALLEST)


@pytest.mark.parametrize("divisor", [1, 2, 4, 8, 16])
def test_a_divided_shape_keeps_its_ratios(divisor):
    whole = replace(
        tiny_architecture("sdar"),
        vocab_size=16 * 100,
        hidden_size=16 * 20,
        intermediate_size=16 * 30,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        num_layers=36,
        mask_id=16 * 99,
    )
    small = reduce_architecture(whole, replace(SMALLEST, width_divisor=divisor))
    assert small.num_layers == 1
    for name in ("vocab_size", "hidden_size", "intermediate_size", "mask_id"):
        assert getattr(small, name) * divisor == getattr(whole, name)
    assert small.num_heads == 7 * small.num_kv_heads
    assert small.num_heads * small.head_dim * divisor == whole.num_heads * whole.head_dim


def test_widths_that_cannot_be_divided_are_refused():
    with pytest.raises(ParamsError, match=r"cannot be divided(?s:.*)hidden_size"):
        reduce_architecture(
            replace(tiny_architecture("sdar"), hidden_size=33), replace(SMALLEST, width_divisor=2)
        )


def test_a_vocabulary_without_room_for_the_bytes_is_refused():
    with pytest.raises(ParamsError, match="too small for a tokenizer of bytes"):
        byte_tokenizer(replace(tiny_architecture("sdar"), vocab_size=257, mask_id=256))


@pytest.mark.parametrize("family", ["sdar", "llada", "dream"])
def test_a_random_checkpoint_is_one_of_the_family_with_a_token_for_every_id(family, tmp_path):
    arch = replace(tiny_architecture(family), vocab_size=300, mask_id=290)
    write_random_checkpoint(arch, byte_tokenizer(arch), torch.bfloat16, 1, tmp_path)
    spec = read_spec(tmp_path)
    assert (spec.architecture, spec.dtype) == (arch, torch.bfloat16)
    assert spec.tokenizer.vocab_size == 300
    text = "3+4=\n#7 \N{LATIN SMALL LETTER E WITH ACUTE}"
    ids = spec.tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert spec.tokenizer.decode(ids) == text


def test_made_up_problems_are_as_long_as_they_may_be():
    reductions = replace(SMALLEST, prompt_tokens=20, response_tokens=12)
    train, test = made_up_tasks("gsm8k", reductions)
    assert (train.split, test.split, len({train.prompt, test.prompt})) == ("train", "test", 2)
    assert {len(task.prompt) for task in (train, test)} == {20}
    assert {len(task.solution) for task in (train, test)} == {11}  # and the end token


def test_peak_memory_can_start_anew():
    device = torch.device("cpu")
    block = torch.ones(1 << 26)  # 256 MiB
    reset_peak_memory(device)
    held = peak_memory(device)
    assert peak_memory(device) - held < 1 << 24
    more = torch.ones(1 << 26)
    assert peak_memory(device) - held >= 1 << 27
    del block, more
    reset_peak_memory(device)
    assert peak_memory(device) < held


def test_the_command_shows_the_figures_and_what_was_made_smaller(capsys):
    params, config = profile("sdar-1.7b")
    arguments = ["doctor", "--params", str(ROOT / "profiles" / "sdar-1.7b.yaml"), "--rehearse"]
    arguments += ["--config", str(config), "--width-divisor", "32"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--prompt-tokens", "8", "--response-tokens", "8"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert "1 of 28 layers, widths divided by 32 (vocab_size 4,748 of 151,936" in output
    for stage in ("base", *params.parents, "evaluate@rl-math"):
        assert stage in output
    assert "no stage is refused" in output


def test_the_command_ends_with_status_one_where_a_stage_is_refused(tmp_path, capsys):
    params, config = profile("sdar-1.7b")
    tree: dict[str, Any] = params.model_dump(mode="json")
    tree["rl"]["math"]["sampler"]["cache"] = {"kind": "dual", "refresh_every": None}
    path = tmp_path / "params.yaml"
    path.write_text(json.dumps(tree))
    arguments = ["doctor", "--params", str(path), "--rehearse", "--config", str(config)]
    arguments += ["--width-divisor", "32", "--prompt-tokens", "8", "--response-tokens", "8"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1
    assert "rl@math is refused: " in capsys.readouterr().out


def test_a_rehearsal_that_does_not_fit_is_refused_before_it_starts(tmp_path, monkeypatch):
    params, config = profile("sdar-1.7b")
    monkeypatch.setattr("tracerl.reporting.rehearsal.memory_limit", lambda compute: 1000)
    with pytest.raises(ParamsError, match=r"needs more memory than there is(?s:.*)--width-divisor"):
        plan_rehearsal(params, tmp_path, config, SMALLEST)
