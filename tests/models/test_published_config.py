"""Which model a directory holds, and that every key of its config.json is used, harmless or
refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import sharp_model
from tracerl.errors import CheckpointError
from tracerl.models.baselines import is_baseline, load_policy
from tracerl.models.checkpoint import load_checkpoint, save_checkpoint
from tracerl.models.families import FAMILIES
from tracerl.models.published_config import architecture_of, family_of, is_autoregressive
from tracerl.models.tokenizer import character_tokenizer
from tracerl.settings.models import Compute

ROOT = Path(__file__).parents[2]
TOKENIZER = character_tokenizer()
CPU = Compute(
    device="cpu", dtype="stored", attention="auto", checkpoint_layers=False, vectors="avx2"
)
QWEN_SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
# Names as published directories have them.
NOT_SUPPORTED: dict[str, dict[str, Any]] = {
    "EfficientDLM": {"model_type": "qwen3", "architectures": ["EfficientDLM"]},
    "DiscreteDiffusionModel": {
        "model_type": "llama",
        "architectures": ["DiscreteDiffusionModel"],
    },
    "WeDLM": {"model_type": "wedlm", "architectures": ["WeDLMForCausalLM"]},
    "StableDiffcoderV2": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_other.StableDiffcoderV2"},
    },
    "Qwen2ForCausalLM": {"model_type": "Dream", "architectures": ["Qwen2ForCausalLM"]},
    "no name of a model": {},
}
SUPPORTED: dict[str, list[dict[str, Any]]] = {
    "sdar": [
        {
            "model_type": "sdar",
            "architectures": ["SDARForCausalLM"],
            "auto_map": {
                "AutoConfig": "configuration_sdar.SDARConfig",
                "AutoModel": "modeling_sdar.SDARModel",
                "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM",
            },
        },
        {"model_type": "sdar"},
        {"architectures": ["SDARForCausalLM"]},
    ],
    "llada": [
        {
            "model_type": "mmada",
            "architectures": ["MMadaModelLM"],
            "auto_map": {"AutoModel": "GSAI-ML/LLaDA-8B-Base--modeling_llada.LLaDAModelLM"},
        },
        {"model_type": "llada", "architectures": ["LLaDAModelLM"]},
    ],
    "dream": [
        {
            "model_type": "Dream",
            "architectures": ["DreamModel"],
            "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
        }
    ],
}
SUPPORTED |= {
    "stable-diffcoder": [
        {
            "model_type": "llama",
            "architectures": ["StableDiffcoderForCausalLM"],
            "auto_map": {
                "AutoModelForCausalLM": "modeling_stable_diffcoder.StableDiffcoderForCausalLM"
            },
        },
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "auto_map": {
                "AutoModelForCausalLM": "org/name--modeling_seed_diffcoder.SeedDiffcoderForCausalLM"
            },
        },
    ],
    "llada-moe": [
        {
            "model_type": "llada",
            "architectures": ["LLaDAMoEModelLM"],
            "auto_map": {"AutoModel": "modeling_lladamoe.LLaDAMoEModelLM"},
        }
    ],
    "sdar-moe": [{"model_type": "sdar_moe", "architectures": ["SDARMoeForCausalLM"]}],
    "llada2": [{"model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"]}],
    "fast-dllm-v2": [
        {"model_type": "Fast_dLLM_Qwen", "architectures": ["Fast_dLLM_QwenForCausalLM"]},
        {"model_type": "fast_dllm_qwen"},
    ],
    "a2d-qwen2": [
        {"model_type": "a2d-qwen2", "tracerl_attention": "full"},
        {"architectures": ["A2DQwen2LMHeadModel"], "tracerl_attention": "full"},
    ],
    "a2d-qwen3-block": [{"model_type": "a2d-qwen3", "tracerl_attention": "block_causal"}],
}
BASELINES = {
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "LlamaForCausalLM": "llama",
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A good SDAR checkpoint, for a test to change."""
    model = sharp_model("sdar", vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id)
    save_checkpoint(model, TOKENIZER, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def change(directory: Path, **changes: object) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **changes}))


def error_of(directory: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(directory)
    return str(raised.value)


@pytest.mark.parametrize("name", NOT_SUPPORTED)
def test_a_model_that_is_not_supported_is_no_baseline_and_is_refused_by_its_name(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**QWEN_SHAPE, **NOT_SUPPORTED[name]}))
    assert not is_baseline(tmp_path)
    with pytest.raises(CheckpointError, match=name) as raised:
        load_policy(tmp_path, CPU)
    text = str(raised.value)
    for supported in ("SDARForCausalLM", "LLaDAModelLM", "DreamModel", *BASELINES):
        assert supported in text


@pytest.mark.parametrize(
    ("family", "config"), [(name, config) for name, all_ in SUPPORTED.items() for config in all_]
)
def test_families_are_recognised_by_class_and_type(family, config, tmp_path):
    assert family_of(config, tmp_path).name == family


@pytest.mark.parametrize("attention", [None, "causal"])
@pytest.mark.parametrize("choice", [None, "sdar", "a2d-llama"])
def test_an_attention_that_nobody_names_is_asked_for(choice, attention, tmp_path):
    config = {"model_type": "a2d-qwen3", "tracerl_attention": attention}
    with pytest.raises(CheckpointError, match=r"base\.model\.family") as raised:
        family_of(config, tmp_path, choice)
    assert "full (a2d-qwen3) or block_causal (a2d-qwen3-block)" in str(raised.value)


def test_the_params_decide_where_the_config_does_not_say_its_attention(tmp_path):
    config = {"model_type": "a2d-qwen3"}
    for name in ("a2d-qwen3", "a2d-qwen3-block"):
        assert family_of(config, tmp_path, name).name == name
    said = {**config, "tracerl_attention": "full"}
    assert family_of(said, tmp_path, "a2d-qwen3-block").name == "a2d-qwen3", "the config wins"


@pytest.mark.parametrize("name", BASELINES)
def test_the_plain_class_of_a_type_is_a_baseline_unless_it_names_a_mask(name, tmp_path):
    path = tmp_path / "config.json"
    for config in (
        {"model_type": BASELINES[name], "architectures": [name]},
        {"model_type": BASELINES[name]},
        {"model_type": BASELINES[name], "auto_map": {"AutoConfig": "configuration.Config"}},
    ):
        path.write_text(json.dumps(config))
        assert is_baseline(tmp_path)
    path.write_text(json.dumps({"model_type": BASELINES[name], "mask_token_id": 5}))
    assert not is_baseline(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
        {"final_logit_softcapping": 30.0},
        {"logits_scaling": 8.0},
        {"residual_multiplier": 0.2},
        {"embedding_multiplier": 12.0},
        {"num_experts": 64},
        {"quantization_config": {"quant_method": "fp8"}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"attention_bias": True},
        {"mlp_bias": 1},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"is_encoder_decoder": True},
    ],
    ids=str,
)
def test_a_key_that_may_change_the_model_is_refused_with_its_value(saved, changes):
    change(saved, **changes)
    [(key, value)] = changes.items()
    if isinstance(value, dict) and key != "quantization_config":
        key, value = list(value.items())[-1]
    text = error_of(saved)
    assert key in text or "rope_type" in text
    if not isinstance(value, list):
        assert str(value) in text or "yarn" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_scaling": {"type": "default"}},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        {"rope_parameters": {"full_attention": {"rope_theta": 10000.0}}},
        {"layer_types": ["full_attention", "full_attention"]},
        {"partial_rotary_factor": 1.0},
        {"partial_rotary_factor": 1},
        {"quantization_config": None},
        {"invented_key": None},
        {"attn_implementation": "flex_attention", "ep_size": 1, "use_deepep": False},
        {"temperature": 0.7, "id2label": {"0": "a"}, "sliding_window": 4096},
    ],
    ids=str,
)
def test_keys_that_change_nothing_are_accepted(saved, changes):
    before = load_checkpoint(saved)[0].architecture
    change(saved, **changes)
    assert load_checkpoint(saved)[0].architecture == before


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"num_hidden_layers": 1_000_000}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"num_key_value_heads": -1}, "num_key_value_heads"),
        ({"hidden_size": 10**30}, "hidden_size"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"hidden_size": 32.0}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"vocab_size": [97]}, "vocab_size"),
        ({"mask_token_id": 0.0}, "mask_token_id"),
        ({"mask_token_id": False}, "mask_token_id"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ],
    ids=str,
)
def test_values_of_another_type_or_out_of_range_are_named(saved, changes, part):
    change(saved, **changes)
    assert part in error_of(saved)


def test_a_config_that_is_nested_too_deep_is_an_error_of_ours(saved):
    (saved / "config.json").write_text("[" * 100_000)
    assert "config.json" in error_of(saved)


def test_published_keys_of_all_families_are_known():
    fixtures = Path(__file__).parents[1] / "fixtures" / "parity"
    names = {}
    for path in fixtures.glob("*/config.json"):
        if path.parent.name in ("sdar", "sdar_tied", "llada", "dream"):
            names[path.parent.name] = architecture_of(json.loads(path.read_text()), path.parent)
    assert {name.split("_")[0]: arch.family for name, arch in names.items()} == {
        "sdar": "sdar",
        "llada": "llada",
        "dream": "dream",
    }


# The page that says what loads


def rows_of_the_page() -> list[list[str]]:
    """Checkpoint, model_type, class and record of each row of "Checkpoints one by one"."""
    section = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    section = section.split("## Checkpoints one by one")[1].split("\n## ")[0]
    rows = []
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| checkpoint"):
            rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")][:4])
    return rows


@pytest.mark.parametrize("row", rows_of_the_page(), ids=lambda row: row[0])
def test_the_loader_does_with_a_checkpoint_what_the_page_says(row, tmp_path):
    name, model_type, kind, record = row
    config: dict[str, Any] = {"model_type": model_type}
    if "." in kind:
        config["auto_map"] = {"AutoModelForCausalLM": kind}
    if kind:
        config["architectures"] = [kind.rpartition(".")[2]]
    stored = ROOT / "profiles" / "configs" / f"{name}.json"
    if stored.is_file():
        published = json.loads(stored.read_text())
        assert published["model_type"] == model_type
        config = published
    assert is_autoregressive(config) is (record == "baseline")
    if record in FAMILIES:
        assert family_of(config, tmp_path, record).name == record
    else:
        with pytest.raises(CheckpointError):
            family_of(config, tmp_path)
        assert record in ("baseline", "refused")


def test_the_page_names_every_record_but_those_without_a_published_checkpoint():
    named = {record for *_, record in rows_of_the_page()}
    assert named - {"baseline", "refused"} == FAMILIES.keys() - {"a2d-llama", "a2d-llama-block"}
    assert len(rows_of_the_page()) >= 25
