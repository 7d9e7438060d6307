"""What doctor counts exactly is exact, and what it estimates moves the right way."""

import copy
import json
from pathlib import Path

import pytest
import yaml

from tests.rounds import SERVER
from tests.tiny_run import tiny_params
from tracerl.cli import main
from tracerl.models.checkpoint import save_checkpoint
from tracerl.models.policy import new_model
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.transformer import Architecture
from tracerl.models.value import ValueModel
from tracerl.reporting.doctor import Need, expert_memory, judges, machine, needs, refusals
from tracerl.seeds import generator_for
from tracerl.settings.params import Params, parse_params

HERE = Path(".")
LORA = {"rank": 2, "alpha": 4.0, "dropout": 0.0, "targets": ["q_proj", "down_proj"]}


def by_stage(params: Params, root: Path = HERE) -> dict[str, Need]:
    return {need.stage: need for need in needs(params, root)}


def test_weights_optimizer_and_caches_are_counted():
    data = tiny_params()
    params = parse_params(data, "")
    found = by_stage(params)
    assert list(found) == [
        "base",
        "traces",
        *(f"sft@{n}" for n in params.sft),
        *(f"rl@{n}" for n in params.rl),
        *(f"evaluate@{n}" for n in params.evaluate),
    ]
    tokenizer = character_tokenizer()
    shape = Architecture(
        **params.base.model.model_dump(), vocab_size=tokenizer.vocab_size, mask_id=0
    )
    parameters = sum(p.numel() for p in new_model(shape, generator_for(1)).parameters())
    assert found["sft@short"].weights == 4 * parameters
    assert found["sft@short"].state == 3 * 4 * parameters
    assert found["evaluate@sft-short"].state == 0
    half = by_stage(parse_params({**data, "compute": {**data["compute"], "dtype": "bfloat16"}}, ""))
    assert half["sft@short"].weights == 2 * parameters
    # float32 masters, their gradients and two moments, and the gradients of a micro-batch.
    assert half["sft@short"].state == (4 + 4 + 8 + 2) * parameters
    # One more row of the exact cache: keys and values of its length, its live block, and the
    # distributions of that block.
    one, two = copy.deepcopy(data), copy.deepcopy(data)
    one["traces"]["sampler"] = {**one["traces"]["sampler"], "max_rows": 1}
    two["traces"]["sampler"] = {**two["traces"]["sampler"], "max_rows": 2}
    row = (
        by_stage(parse_params(two, ""))["traces"].passes
        - by_stage(parse_params(one, ""))["traces"].passes
    )
    keys = (48 + 36) * 2 * 2 * 1 * 16 * 4
    live = 4 * (4 * 32 + 3 * 64) * 4
    assert row == keys + live + 4 * tokenizer.vocab_size * 28


def test_a_row_that_is_longer_than_a_micro_batch_counts():
    """Block attention: a clean copy of 40 prompt and 24 response tokens, and behind it one view of
    at most 28 tokens; where views cannot be split, one for each step of a block."""

    def passes(micro_batch_tokens: int, **changes: object) -> int:
        data = tiny_params()
        round_ = data["rl"]["short"]
        round_.update(micro_batch_tokens=micro_batch_tokens, train_block_size=4, shrink=1)
        round_.update(changes)
        sampler = {"max_prompt_tokens": 40, "max_new_tokens": 24, "max_rows": 1}
        round_["sampler"] = {**round_["sampler"], **sampler}
        return by_stage(parse_params(data, ""))["rl@short"].passes

    assert passes(1) == passes(40 + 24 + 28)
    assert passes(1) < passes(40 + 24 + 29)
    whole = {"reduction": "response", "ratio": "sequence"}
    assert passes(1, **whole) == passes(40 + 24 + 4 * 28, **whole)


def test_adapters_need_state_for_themselves_only():
    data = tiny_params()
    data["rl"]["short"]["lora"] = LORA
    found = by_stage(parse_params(data, ""))
    # Two layers; rank 2; q_proj 32 to 32, down_proj 64 to 32.
    trained = 2 * (2 * (32 + 32) + 2 * (64 + 32))
    assert found["rl@short"].state == 3 * 4 * trained
    assert found["rl@short"].weights == found["rl@long"].weights + 4 * trained


def test_weights_in_four_bits_are_counted_and_so_is_loading_them_as_stored():
    data = tiny_params()
    data["rl"]["short"].update(lora=LORA, kl_to="initial")
    plain = by_stage(parse_params(data, ""))["rl@short"]
    data["rl"]["short"]["lora"] = {**LORA, "quantise": "nf4"}
    found = by_stage(parse_params(data, ""))["rl@short"]
    count = 2 * (32 * 32 + 64 * 32)
    spared = count * 4 - count * 9 // 16
    assert found.weights == plain.weights - 2 * spared
    assert found.passes >= spared


def test_a_value_model_and_a_reference_are_counted():
    data = tiny_params()
    plain = by_stage(parse_params(data, ""))["rl@short"]
    data["rl"]["short"]["kl_to"] = "initial"
    found = by_stage(parse_params(data, ""))["rl@short"]
    assert (found.weights, found.state) == (2 * plain.weights, plain.state)
    critic = {
        "start": "policy",
        "discount": 1.0,
        "trace": 1.0,
        "clip": 0.2,
        "every": 1,
        "updates": 1,
    }
    data["rl"]["short"].update(
        advantages="gae",
        kl_to="iteration",
        value={**critic, "optimizer": data["rl"]["short"]["optimizer"]},
    )
    found = by_stage(parse_params(data, ""))["rl@short"]
    params = parse_params(data, "")
    tokenizer = character_tokenizer()
    shape = Architecture(
        **params.base.model.model_dump(), vocab_size=tokenizer.vocab_size, mask_id=0
    )
    value = sum(p.numel() for p in ValueModel(new_model(shape, generator_for(1))).parameters())
    assert found.weights == plain.weights + 4 * value
    assert found.state == plain.state + 3 * 4 * value


def test_an_imported_checkpoint_is_measured_by_its_config(tmp_path):
    tokenizer = character_tokenizer()
    data = tiny_params()
    shape = Architecture(
        **{**data["base"]["model"], "family": "llada", "num_layers": 3},
        vocab_size=tokenizer.vocab_size,
        mask_id=0,
    )
    model = new_model(shape, generator_for(1)).bfloat16()
    save_checkpoint(model, tokenizer, tmp_path / "import")
    data["base"]["path"] = "import"
    found = by_stage(parse_params(data, ""), tmp_path)
    assert (
        found["base"].weights
        == found["traces"].weights
        == 2 * sum(p.numel() for p in model.parameters())
    )


def test_experts_are_counted_and_named(tmp_path):
    """64 experts of three matrices 2,048 x 1,024 in 15 of 16 layers, of which a token has 8."""
    data = tiny_params()
    config = {
        "architectures": ["LLaDAMoEModelLM"],
        "model_type": "llada",
        "vocab_size": 157184,
        "hidden_size": 2048,
        "dense_intermediate_size": 8192,
        "expert_intermediate_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_layer_freq": [0] + 15 * [1],
        "rope_theta": 50000,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    data["base"]["path"] = "import"
    text = expert_memory(parse_params(data, ""), tmp_path, path)
    size = 15 * 64 * 3 * 2048 * 1024 * 2 / 1e9
    assert text.startswith(f"experts: {size:.1f} GB of the weights'")
    assert "in 15 of 16 layers; a token goes through 8 of 64" in text
    assert expert_memory(parse_params(tiny_params(), ""), tmp_path) == ""


def test_the_machine_says_what_is_missing():
    told = dict(machine())
    assert told["torch"] != "not installed"
    assert told["attention sdpa"] == "everywhere"
    assert "pip install" in told["attention flash"] or "installed" in told["attention flash"]


@pytest.mark.parametrize(("rows", "status"), [(256, 0), (10**9, 1)])
def test_the_command_says_whether_it_fits(tmp_path, capsys, rows, status):
    data = tiny_params()
    data["evaluate"]["sft-short"]["sampler"] = {
        **data["evaluate"]["sft-short"]["sampler"],
        "max_rows": rows,
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--params", str(tmp_path / "params.yaml")])
    assert (ended.value.code or 0) == status
    assert (
        "enough for every stage" if not status else "too little for evaluate@sft-short"
    ) in capsys.readouterr().out


def test_judges_are_listed_and_a_local_one_counts_where_it_is_asked(tmp_path):
    data = tiny_params()
    local = {
        "kind": "model",
        "path": "local",
        "max_rows": 1,
        "max_prompt_tokens": 9,
        "min_mass": 0.0,
        "instructions": "",
    }
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "model.safetensors").write_bytes(bytes(5000))
    plain = by_stage(parse_params(data, ""), tmp_path)
    data["verification"].update(
        judge="local",
        judges={
            "steps": {"kind": "steps"},
            "local": local,
            "server": {**SERVER, "api_key_variable": "THE_KEY"},
        },
    )
    data["rl"]["short"]["process"] = {
        "judge": "local",
        "weight": 1.0,
        "chunk_tokens": 8,
        "max_chunks": 4,
    }
    params = parse_params(data, "")
    found = by_stage(params, tmp_path)
    assert {
        name: need.weights - plain[name].weights
        for name, need in found.items()
        if need != plain[name]
    } == {"rl@short": 5000}
    data["tasks"]["sets"]["sums-short"].update(source="open")
    data["rl"]["short"].pop("process")
    found = by_stage(parse_params(data, ""), tmp_path)
    asking = {"traces", "rl@short", "evaluate@sft-short", "evaluate@rl-short"}
    assert {
        name for name, need in found.items() if need.weights == plain[name].weights + 5000
    } == asking
    rows = {name: state for name, _, state in judges(params, tmp_path, {})}
    assert rows["steps"] == "ready"
    assert rows["local"] == "local: 5 kB"
    assert (
        rows["server"] == "http://127.0.0.1:9/v1 does not answer: ConnectError; THE_KEY is not set"
    )
    assert (
        "not set"
        not in dict(row[::2] for row in judges(params, tmp_path, {"THE_KEY": "k"}))["server"]
    )


def test_the_command_puts_what_a_run_measured_beside_what_was_predicted(tmp_path, capsys):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tiny_params()))
    (tmp_path / "logs" / "measured").mkdir(parents=True)
    row = {
        "peak_bytes": 123_400_000,
        "forwards": 4321,
        "tokens": 1,
        "predicted": 1,
        "flops": 5_670_000_000_000,
    }
    (tmp_path / "logs" / "measured" / "sft@short.json").write_text(json.dumps(row))
    with pytest.raises(SystemExit):
        main(["doctor", "--params", str(tmp_path / "params.yaml"), "--root", str(tmp_path)])
    memory, work = (line for line in capsys.readouterr().out.splitlines() if "sft@short" in line)
    assert "123.4 MB" in memory
    assert "4,321" in work
    assert "5.67" in work


def test_every_stage_is_predicted_to_pass_something():
    for need in by_stage(parse_params(tiny_params(), "")).values():
        assert need.forwards > 0
        assert need.flops > 1e6


def test_an_evaluation_of_one_set_twenty_times_counts_twenty_of_its_responses():
    data = tiny_params()
    data["evaluate"]["sft-short"]["tasks"] = ["sums-short", "sums-long"]
    data["evaluation"].update(num_problems=1, num_samples=1)
    once = by_stage(parse_params(data, ""))["evaluate@sft-short"]
    data["evaluation"]["samples"] = {"sums-long": 20}
    found = by_stage(parse_params(data, ""))["evaluate@sft-short"]
    assert found.flops == pytest.approx(once.flops * 21 / 2)


def test_layers_that_are_computed_again_keep_their_inputs_only():
    """Two layers of 32 numbers a token, and all of the one that is computed again: inputs of norms
    and projections, 2 heads and 1 key head of 16, an MLP of 64."""
    data = tiny_params()
    plain = by_stage(parse_params(data, ""))["sft@short"].passes
    data["compute"] = {**data["compute"], "checkpoint_layers": True}
    found = by_stage(parse_params(data, ""))["sft@short"].passes
    of_layer = 6 * 32 + 2 * (2 * 2 + 2 * 1) * 16 + 4 * 64
    tokens = data["sft"]["short"]["micro_batch_tokens"]
    assert plain - found == tokens * 4 * (2 * of_layer - (2 * 32 + of_layer))


def test_stages_that_will_be_refused_are_named():
    data = tiny_params()
    assert refusals(parse_params(data, ""), HERE) == {}
    data["rl"]["short"].update(ratio="sequence", reduction="response", micro_batch_tokens=8)
    found = refusals(parse_params(data, ""), HERE)
    assert list(found) == ["rl@short"]
    assert "in one pass" in found["rl@short"]
    data["compute"] = {**data["compute"], "dtype": "float16"}
    found = refusals(parse_params(data, ""), HERE)
    assert set(found) == {
        "base",
        *(f"sft@{name}" for name in data["sft"]),
        *(f"rl@{name}" for name in data["rl"]),
    }
    assert all("float16 cannot be trained" in error for error in found.values())
