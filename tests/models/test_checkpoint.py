"""Checkpoints: bit for bit there and back, under the published names, and a clear error for
everything that does not fit."""

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
from tracerl.models.checkpoint import load_checkpoint, policy_hash, published_state, save_checkpoint
from tracerl.models.families import FAMILIES, published_name
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.weights import WEIGHTS
from tracerl.sampling.sampler import sample
from tracerl.settings.models import Compute, TokenIds

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
QWEN2_LAYER = [name for name in QWEN3_LAYER if "_norm" not in name] + [
    f"self_attn.{p}_proj.bias" for p in "qkv"
]
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
    "sdar": (
        ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"],
        "model.layers.{i}.",
        QWEN3_LAYER,
    ),
    "dream": (
        ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"],
        "model.layers.{i}.",
        QWEN2_LAYER,
    ),
    "llada": (
        [
            "model.transformer.wte.weight",
            "model.transformer.ln_f.weight",
            "model.transformer.ff_out.weight",
        ],
        "model.transformer.blocks.{i}.",
        LLADA_LAYER,
    ),
}
PUBLISHED_CONFIG_KEYS = {
    "sdar": {
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "tie_word_embeddings",
        "mask_token_id",
    },
    "dream": {
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "tie_word_embeddings",
        "mask_token_id",
    },
    "llada": {
        "d_model",
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "mlp_hidden_size",
        "embedding_size",
        "weight_tying",
        "mask_token_id",
    },
}


def model_of(
    family: str, dtype: torch.dtype = torch.float32, tied: bool = False, head_dim: int = 16
) -> Policy:
    shape = {"vocab_size": TOKENIZER.vocab_size, "mask_id": TOKENIZER.mask_id}
    return sharp_model(family, dtype, tie_embeddings=tied, head_dim=head_dim, **shape)


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
    (directory / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value is not None})
    )


def change_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS)


# There and back


def test_a_policy_hash_names_each_tensor_as_well_as_its_bytes():
    ones = {"gate": torch.ones(3)}
    first, second = torch.nn.ParameterDict(ones), torch.nn.ParameterDict({"up": torch.ones(3)})
    before = policy_hash(first)
    assert before != policy_hash(second)
    with torch.no_grad():
        first["gate"][1] = 2.0
    assert policy_hash(first) != before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_comes_back_bit_for_bit(family, tied, dtype, tmp_path):
    model = model_of(family, dtype, tied)
    save_checkpoint(model, TOKENIZER, tmp_path / "one")
    loaded, tokenizer = load_checkpoint(tmp_path / "one")
    assert loaded.architecture == model.architecture
    assert not loaded.training
    assert policy_hash(loaded) == policy_hash(model)
    for (name, one), (other_name, other) in zip(
        model.state_dict().items(), loaded.state_dict().items(), strict=True
    ):
        assert (name, one.dtype) == (other_name, other.dtype)
        assert torch.equal(one, other)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied
    save_checkpoint(loaded, tokenizer, tmp_path / "two")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir())
    assert all(
        (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
        for name in files
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_checkpoint_samples_what_the_saved_model_samples(family, tmp_path):
    model = model_of(family)
    save_checkpoint(model, TOKENIZER, tmp_path)
    loaded, tokenizer = load_checkpoint(tmp_path)
    one, other = (
        sample(m, TOKENIZER.end_ids, tiny_requests([3, 6]), tiny_sampler()) for m in (model, loaded)
    )
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.response_ids, b.response_ids)
        np.testing.assert_array_equal(a.logprobs, b.logprobs)
    assert (tokenizer.end_ids, tokenizer.mask_id) == (TOKENIZER.end_ids, TOKENIZER.mask_id)
    text = "4+7+5=\n(2 * 3) # ~"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text) == TOKENIZER.encode(text)


def test_a_checkpoint_can_be_loaded_in_another_precision(saved):
    model, _ = load_checkpoint(
        saved,
        Compute(
            device="cpu", dtype="float64", attention="auto", checkpoint_layers=False, vectors="avx2"
        ),
    )
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert torch.equal(model.lm_head.weight.float(), model_of("sdar").lm_head.weight)


def test_weights_in_several_files_are_read_through_their_index(saved):
    tensors = load_file(saved / WEIGHTS)
    names = sorted(tensors)
    files = {name: f"model-{1 + i % 2:05d}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, saved / file)
    (saved / WEIGHTS).unlink()
    (saved / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": files})
    )
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
@pytest.mark.parametrize("family", PUBLISHED)  # others: tests/test_parity_families.py
def test_tensors_have_their_published_names(family, tied, tmp_path):
    outside, prefix, layer = PUBLISHED[family]
    wanted = {prefix.replace("{i}", str(i)) + name for i in range(2) for name in layer} | set(
        outside[:-1] if tied else outside
    )
    model = model_of(family, tied=tied)
    assert set(published_state(model)) == wanted
    save_checkpoint(model, TOKENIZER, tmp_path)
    with safe_open(tmp_path / WEIGHTS, framework="pt") as file:
        assert set(file.keys()) == wanted
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.keys() >= PUBLISHED_CONFIG_KEYS[family] | {
        "model_type",
        "architectures",
        "rope_theta",
        "rms_norm_eps",
    }


def test_layers_of_two_digits_keep_their_number():
    for family, prefix in (("sdar", "model.layers.12."), ("llada", "model.transformer.blocks.12.")):
        name = published_name("model.layers.12.self_attn.q_proj.weight", FAMILIES[family])
        assert name.startswith(prefix)


def test_keys_that_published_configs_leave_out_have_their_architectures_defaults(tmp_path):
    save_checkpoint(model_of("dream"), TOKENIZER, tmp_path)
    assert "head_dim" not in json.loads((tmp_path / "config.json").read_text()), (
        "no published Dream config has it"
    )
    change_config(
        tmp_path,
        num_key_value_heads=None,
        tie_word_embeddings=None,
        mask_token_id=None,
        torch_dtype=None,
    )
    change_weights(
        tmp_path,
        lambda t: [
            t.update({n: torch.cat([t[n]] * 2)}) for n in list(t) if "k_proj" in n or "v_proj" in n
        ],
    )
    model, tokenizer = load_checkpoint(tmp_path)
    arch = model.architecture
    assert (arch.head_dim, arch.num_kv_heads, arch.tie_embeddings) == (16, 2, False)
    assert tokenizer.mask_id == TOKENIZER.mask_id, "the tokenizer names the mask"
    assert arch.mask_id == TOKENIZER.mask_id, (
        "the model samples with the mask that the tokenizer names"
    )
    save_checkpoint(model, tokenizer, tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_text().rstrip() == json.dumps(
        json.loads((tmp_path / "config.json").read_text()), indent=2
    )


def test_an_sdar_config_without_head_dim_means_128(tmp_path):
    """As in the Qwen3 configs it comes from."""
    save_checkpoint(model_of("sdar", head_dim=128), TOKENIZER, tmp_path)
    assert "head_dim" not in json.loads((tmp_path / "config.json").read_text())
    assert load_checkpoint(tmp_path)[0].architecture.head_dim == 128


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_dim_of_its_own_is_saved_and_read(family, tmp_path):
    model = model_of(family, head_dim=24)
    save_checkpoint(model, TOKENIZER, tmp_path)
    loaded, _ = load_checkpoint(tmp_path)
    assert loaded.architecture == model.architecture
    assert policy_hash(loaded) == policy_hash(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_without_a_dtype_in_the_config_tensors_stay_as_they_are_stored(dtype, tmp_path):
    """LLaDA's published configs name none."""
    save_checkpoint(model_of("llada", dtype), TOKENIZER, tmp_path)
    change_config(tmp_path, torch_dtype=None)
    model, tokenizer = load_checkpoint(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    save_checkpoint(model, tokenizer, tmp_path / "again")
    assert "torch_dtype" not in json.loads((tmp_path / "again" / "config.json").read_text())


def test_what_a_config_says_beyond_the_shape_comes_back_in_its_place(saved):
    told = {
        "block_size": 4,
        "max_position_embeddings": 40960,
        "auto_map": {"AutoModel": "modeling_sdar.SDARForCausalLM"},
        "debug": False,
    }
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(
        json.dumps({**told, **config, "rope_theta": 10000}, indent=2) + "\n"
    )
    (saved / "modeling_sdar.py").write_text("raise SystemExit('remote code was run')")
    model, tokenizer = load_checkpoint(saved)
    save_checkpoint(model, tokenizer, saved / "again")
    assert (saved / "again" / "config.json").read_bytes() == (saved / "config.json").read_bytes()
    assert not (saved / "again" / "modeling_sdar.py").exists()


def test_mmada_is_read_as_llada_and_keeps_its_name(tmp_path):
    save_checkpoint(model_of("llada"), TOKENIZER, tmp_path)
    vocabulary = TOKENIZER.vocab_size
    change_config(
        tmp_path,
        model_type="mmada",
        codebook_size=8192,
        embedding_size=None,
        vocab_size=vocabulary,
        n_kv_heads=None,
    )
    change_weights(
        tmp_path,
        lambda t: [
            t.update({n: torch.cat([t[n]] * 2)}) for n in list(t) if "k_proj" in n or "v_proj" in n
        ],
    )
    model, tokenizer = load_checkpoint(tmp_path)
    assert (model.family.name, model.architecture.vocab_size, model.architecture.num_kv_heads) == (
        "llada",
        vocabulary,
        2,
    )
    save_checkpoint(model, tokenizer, tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (config["model_type"], config["codebook_size"], "n_kv_heads" in config) == (
        "mmada",
        8192,
        False,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_large_checkpoint_is_split_and_comes_back(family, tmp_path):
    model = model_of(family, torch.bfloat16)
    save_checkpoint(model, TOKENIZER, tmp_path, shard_bytes=20_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert files == [
        f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))
    ]
    assert set(index["weight_map"]) == set(published_state(model))
    assert index["metadata"]["total_size"] == sum(
        t.numel() * 2 for t in published_state(model).values()
    )
    loaded, _ = load_checkpoint(tmp_path)
    assert policy_hash(loaded) == policy_hash(model)


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
    change_weights(
        tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    )
    assert policy_hash(load_checkpoint(tmp_path)[0]) == policy_hash(model_of("sdar", tied=True))


def test_a_wrong_shape_is_named_with_the_one_wanted(saved):
    change_weights(saved, lambda t: t.update({"model.norm.weight": torch.ones(5)}))
    text = error_of(saved)
    assert all(part in text for part in (str(saved / WEIGHTS), "model.norm.weight", "[5]", "[32]"))


def test_an_unexpected_tensor_is_named(saved):
    change_weights(
        saved, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)})
    )
    text = error_of(saved)
    assert "model.layers.0.self_attn.q_proj.bias" in text
    assert str(saved / WEIGHTS) in text


def test_an_unknown_architecture_is_named_with_those_known(saved):
    change_config(saved, model_type="gpt2")
    text = error_of(saved)
    assert all(
        part in text for part in (str(saved / "config.json"), "gpt2", "sdar", "llada", "dream")
    )


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "vocab_size", "rope_theta", "num_attention_heads"]
)
def test_a_config_without_a_shape_is_named(saved, key):
    change_config(saved, **{key: None})
    text = error_of(saved)
    assert key in text
    assert str(saved / "config.json") in text


def shards_of(directory: Path) -> None:
    """Splits a directory's weights into several files."""
    model, tokenizer = load_checkpoint(directory)
    (directory / WEIGHTS).unlink()
    save_checkpoint(model, tokenizer, directory, shard_bytes=20_000)


@pytest.mark.parametrize("text", ["{", "[]", '{"metadata": {}}', '{"weight_map": ["a"]}'])
def test_a_damaged_index_is_named(saved, text):
    shards_of(saved)
    (saved / "model.safetensors.index.json").write_text(text)
    assert str(saved / "model.safetensors.index.json") in error_of(saved)


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/tmp/x.safetensors", "pytorch_model-00001-of-00002.bin"]
)
def test_an_index_may_name_only_safetensors_of_its_own_directory(saved, name):
    shards_of(saved)
    (saved / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"model.norm.weight": name}})
    )
    assert name in error_of(saved)


def test_a_truncated_or_missing_shard_is_named(saved):
    shards_of(saved)
    shard = sorted(saved.glob("model-*.safetensors"))[1]
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    assert str(shard) in error_of(saved)
    shard.unlink()
    assert str(shard) in error_of(saved)


def test_a_tensor_that_is_there_twice_is_named(saved):
    shards_of(saved)
    first, second = sorted(saved.glob("model-*.safetensors"))[:2]
    name, tensor = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: tensor.clone()}, second)
    text = error_of(saved)
    assert all(part in text for part in (name, str(first), str(second)))


def test_quantised_tensors_are_named(saved):
    change_weights(
        saved, lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)})
    )
    assert "model.norm.weight" in error_of(saved)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "num_kv_heads"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    ],
)
def test_a_config_that_this_transformer_cannot_follow_is_named(saved, change, told):
    change_config(saved, **change)
    assert told in error_of(saved)
    assert str(saved / "config.json") in error_of(saved)


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
    (saved / "tokenizer_config.json").write_text(
        json.dumps({key: value for key, value in config.items() if key != "mask_token"})
    )
    change_config(saved, mask_token_id=TOKENIZER.vocab_size)
    text = error_of(saved)
    assert str(saved / "config.json") in text
    assert f"got: {TOKENIZER.vocab_size}" in text
    assert f"0 to {TOKENIZER.vocab_size - 1}" in text
    change_config(saved, mask_token_id=TOKENIZER.mask_id)
    (saved / "generation_config.json").write_text('{"eos_token_id": [1, 400]}')
    assert "the end id is outside the vocabulary" in error_of(saved)


def test_ids_of_the_params_replace_the_directorys_own_and_are_saved(saved):
    ids = TokenIds(mask=7, end=[9, 8], pad=6)
    model, tokenizer = load_checkpoint(saved, token_ids=ids)
    assert (model.architecture.mask_id, tokenizer.mask_id, tokenizer.end_ids, tokenizer.pad_id) == (
        7,
        7,
        (9, 8),
        6,
    )
    save_checkpoint(model, tokenizer, saved / "again")
    model, tokenizer = load_checkpoint(saved / "again")
    assert (model.architecture.mask_id, tokenizer.mask_id, tokenizer.end_ids, tokenizer.pad_id) == (
        7,
        7,
        (9, 8),
        6,
    )
    with pytest.raises(CheckpointError, match="the mask id is outside"):
        load_checkpoint(saved, token_ids=TokenIds(mask=1000, end=None, pad=None))


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
    (saved / "tokenizer_config.json").write_text('{"eos_token": "<end>"')
    assert str(saved / "tokenizer_config.json") in error_of(saved)


def test_a_damaged_tokenizer_is_named(saved):
    (saved / "tokenizer.json").write_text("{")
    assert str(saved / "tokenizer.json") in error_of(saved)


def test_an_unknown_precision_is_named(saved):
    change_config(saved, torch_dtype="int7")
    assert "int7" in error_of(saved)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused_when_it_is_loaded(saved):
    content = json.loads((saved / "tokenizer.json").read_text())
    content["model"]["vocab"]["\u00d7"] = TOKENIZER.vocab_size
    (saved / "tokenizer.json").write_text(json.dumps(content))
    text = error_of(saved)
    assert "\u00d7" in text
    assert str(TOKENIZER.vocab_size) in text
