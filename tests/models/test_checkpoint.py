"""Checkpoints: bit for bit there and back, under the published names, and a clear error for everything that does not fit."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.tiny import sharp_model, tiny_requests, tiny_sampler
from tracerl.errors import CheckpointError
from tracerl.models.checkpoint import WEIGHTS, load_checkpoint, policy_hash, published_name, published_state, save_checkpoint
from tracerl.models.families import FAMILIES
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.transformer import Transformer
from tracerl.sampling.sampler import sample

TOKENIZER = character_tokenizer()

QWEN3_LAYER = [
    "input_layernorm.weight",
    "mlp.down_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "post_attention_layernorm.weight",
    "self_attn.k_norm.weight",
    "self_attn.k_proj.weight",
    "self_attn.o_proj.weight",
    "self_attn.q_norm.weight",
    "self_attn.q_proj.weight",
    "self_attn.v_proj.weight",
]
QWEN2_LAYER = [name for name in QWEN3_LAYER if "_norm" not in name] + [f"self_attn.{p}_proj.bias" for p in "qkv"]
LLADA_LAYER = [
    "attn_norm.weight",
    "attn_out.weight",
    "ff_norm.weight",
    "ff_out.weight",
    "ff_proj.weight",
    "k_proj.weight",
    "q_proj.weight",
    "up_proj.weight",
    "v_proj.weight",
]
# As the published safetensors files have them.
PUBLISHED = {
    "sdar": (["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"], "model.layers.{i}.", QWEN3_LAYER),
    "dream": (["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"], "model.layers.{i}.", QWEN2_LAYER),
    "llada": (
        ["model.transformer.wte.weight", "model.transformer.ln_f.weight", "model.transformer.ff_out.weight"],
        "model.transformer.blocks.{i}.",
        LLADA_LAYER,
    ),
}
PUBLISHED_CONFIG_KEYS = {
    "sdar": {"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings", "mask_token_id"},
    "dream": {"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings", "mask_token_id"},
    "llada": {"d_model", "n_layers", "n_heads", "n_kv_heads", "mlp_hidden_size", "embedding_size", "weight_tying", "mask_token_id"},
}


def model_of(family: str, dtype: torch.dtype = torch.float32, tied: bool = False) -> Transformer:
    return sharp_model(family, dtype, vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id, tie_embeddings=tied)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A good SDAR checkpoint, for a test to damage."""
    save_checkpoint(model_of("sdar"), TOKENIZER, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def error_of(directory: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(directory)
    return str(raised.value)


def change_config(directory: Path, **changes: object) -> None:
    config = json.loads((directory / "config.json").read_text())
    config.update(changes)
    (directory / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def change_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS)


# There and back


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_comes_back_bit_for_bit(family, tied, dtype, tmp_path):
    model = model_of(family, dtype, tied)
    save_checkpoint(model, TOKENIZER, tmp_path / "one")
    loaded, tokenizer = load_checkpoint(tmp_path / "one")
    assert loaded.architecture == model.architecture
    assert not loaded.training
    assert policy_hash(loaded) == policy_hash(model)
    for (name, one), (other_name, other) in zip(model.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert (name, one.dtype) == (other_name, other.dtype)
        assert torch.equal(one, other)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied
    save_checkpoint(loaded, tokenizer, tmp_path / "two")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir())
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_checkpoint_samples_what_the_saved_model_samples(family, tmp_path):
    model = model_of(family)
    save_checkpoint(model, TOKENIZER, tmp_path)
    loaded, tokenizer = load_checkpoint(tmp_path)
    one, other = (sample(m, TOKENIZER.end_ids, tiny_requests([3, 6]), tiny_sampler()) for m in (model, loaded))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.response_ids, b.response_ids)
        np.testing.assert_array_equal(a.logprobs, b.logprobs)
    assert (tokenizer.end_ids, tokenizer.mask_id) == (TOKENIZER.end_ids, TOKENIZER.mask_id)
    text = "4+7+5=\n(2 * 3) # ~"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text) == TOKENIZER.encode(text)


def test_a_checkpoint_can_be_loaded_in_another_precision(saved):
    model, _ = load_checkpoint(saved, torch.float64)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert torch.equal(model.lm_head.weight.float(), model_of("sdar").lm_head.weight)


def test_weights_in_several_files_are_read_through_their_index(saved):
    tensors = load_file(saved / WEIGHTS)
    names = sorted(tensors)
    files = {name: f"model-{1 + i % 2:05d}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, saved / file)
    (saved / WEIGHTS).unlink()
    (saved / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    assert policy_hash(load_checkpoint(saved)[0]) == policy_hash(model_of("sdar"))
    (saved / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in error_of(saved)


def test_the_hash_names_the_weights():
    model = model_of("sdar")
    before = policy_hash(model)
    with torch.no_grad():
        model.model.norm.weight[0] += 1e-6
    assert policy_hash(model) != before
    assert len(before) == 16


# Published names


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_have_their_published_names(family, tied, tmp_path):
    outside, prefix, layer = PUBLISHED[family]
    wanted = {prefix.replace("{i}", str(i)) + name for i in range(2) for name in layer} | set(outside[:-1] if tied else outside)
    model = model_of(family, tied=tied)
    assert set(published_state(model)) == wanted
    save_checkpoint(model, TOKENIZER, tmp_path)
    with safe_open(tmp_path / WEIGHTS, framework="pt") as file:
        assert set(file.keys()) == wanted
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.keys() >= PUBLISHED_CONFIG_KEYS[family] | {"model_type", "architectures", "rope_theta", "rms_norm_eps"}


def test_layers_of_two_digits_keep_their_number():
    for family, prefix in (("sdar", "model.layers.12."), ("llada", "model.transformer.blocks.12.")):
        name = published_name("model.layers.12.self_attn.q_proj.weight", FAMILIES[family])
        assert name.startswith(prefix)


def test_keys_that_published_configs_leave_out_have_their_architectures_defaults(saved):
    change_config(saved, head_dim=None, num_key_value_heads=None, tie_word_embeddings=None, mask_token_id=None, torch_dtype=None)
    change_weights(saved, lambda t: [t.update({n: t[n].repeat(2, 1)}) for n in list(t) if "k_proj" in n or "v_proj" in n])
    model, tokenizer = load_checkpoint(saved)
    arch = model.architecture
    assert (arch.head_dim, arch.num_kv_heads, arch.tie_embeddings) == (16, 2, False)
    assert tokenizer.mask_id == TOKENIZER.mask_id, "the tokenizer names the mask"
    assert arch.mask_id == TOKENIZER.mask_id, "the model samples with the mask that the tokenizer names"


# What does not fit


def test_a_truncated_file_is_named(saved):
    data = (saved / WEIGHTS).read_bytes()
    for length in (0, 4, 100, len(data) // 2, len(data) - 1):
        (saved / WEIGHTS).write_bytes(data[:length])
        assert str(saved / WEIGHTS) in error_of(saved)


def test_a_missing_tensor_is_named(saved):
    change_weights(saved, lambda t: t.pop("model.layers.1.self_attn.q_norm.weight"))
    text = error_of(saved)
    assert "model.layers.1.self_attn.q_norm.weight" in text
    assert str(saved) in text


def test_a_missing_head_is_not_taken_for_tied_embeddings(saved):
    change_weights(saved, lambda t: t.pop("lm_head.weight"))
    assert "lm_head.weight" in error_of(saved)


def test_a_tied_checkpoint_may_repeat_its_head(tmp_path):
    save_checkpoint(model_of("sdar", tied=True), TOKENIZER, tmp_path)
    change_weights(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert policy_hash(load_checkpoint(tmp_path)[0]) == policy_hash(model_of("sdar", tied=True))


def test_a_wrong_shape_is_named_with_the_one_wanted(saved):
    change_weights(saved, lambda t: t.update({"model.norm.weight": torch.ones(5)}))
    text = error_of(saved)
    assert all(part in text for part in (str(saved / WEIGHTS), "model.norm.weight", "[5]", "[32]"))


def test_an_unexpected_tensor_is_named(saved):
    change_weights(saved, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}))
    text = error_of(saved)
    assert "model.layers.0.self_attn.q_proj.bias" in text
    assert str(saved / WEIGHTS) in text


def test_an_unknown_architecture_is_named_with_those_known(saved):
    change_config(saved, model_type="gpt2")
    text = error_of(saved)
    assert all(part in text for part in (str(saved / "config.json"), "gpt2", "sdar", "llada", "dream"))


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "rope_theta", "num_attention_heads"])
def test_a_config_without_a_shape_is_named(saved, key):
    change_config(saved, **{key: None})
    text = error_of(saved)
    assert key in text
    assert str(saved / "config.json") in text


def test_pickled_weights_are_refused_not_read(saved):
    (saved / WEIGHTS).rename(saved / "pytorch_model.bin")
    text = error_of(saved)
    assert all(part in text for part in (str(saved), "pytorch_model.bin", "safetensors"))


def test_no_weights_and_no_checkpoint_are_named(saved, tmp_path):
    (saved / WEIGHTS).unlink()
    assert "model.safetensors" in error_of(saved)
    assert str(tmp_path / "nowhere" / "config.json") in error_of(tmp_path / "nowhere")
    (saved / "config.json").write_text('{"model_type": "sd')
    assert str(saved / "config.json") in error_of(saved)


def test_a_mask_id_outside_the_vocabulary_is_named(saved):
    config = json.loads((saved / "tokenizer_config.json").read_text())
    (saved / "tokenizer_config.json").write_text(json.dumps({key: value for key, value in config.items() if key != "mask_token"}))
    change_config(saved, mask_token_id=TOKENIZER.vocab_size)
    text = error_of(saved)
    assert str(saved / "config.json") in text
    assert f"got: {TOKENIZER.vocab_size}" in text
    assert f"0 to {TOKENIZER.vocab_size - 1}" in text


def test_a_mask_id_that_contradicts_the_tokenizer_is_an_error(saved):
    change_config(saved, mask_token_id=TOKENIZER.mask_id + 5)
    assert str(TOKENIZER.mask_id + 5) in error_of(saved)


def test_a_checkpoint_without_tokenizer_or_end_token_is_named(saved):
    (saved / "generation_config.json").unlink()
    assert load_checkpoint(saved)[1].end_ids == TOKENIZER.end_ids
    (saved / "tokenizer_config.json").unlink()
    assert "end token" in error_of(saved)
    (saved / "tokenizer.json").unlink()
    assert str(saved / "tokenizer.json") in error_of(saved)


def test_a_damaged_tokenizer_is_named(saved):
    (saved / "tokenizer.json").write_text("{")
    assert str(saved / "tokenizer.json") in error_of(saved)


def test_an_unknown_precision_is_named(saved):
    change_config(saved, torch_dtype="int7")
    assert "int7" in error_of(saved)
