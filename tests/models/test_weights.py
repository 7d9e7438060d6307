"""Tensors of a directory: only finite floating-point numbers, from one set of files that lies in
the directory, and a tied head only if it is equal."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import sharp_model, with_order_module
from tracerl.errors import CheckpointError
from tracerl.models.checkpoint import load_checkpoint, policy_hash, save_checkpoint
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.weights import WEIGHTS

TOKENIZER = character_tokenizer()
INDEX = "model.safetensors.index.json"


def model_of(family: str, tied: bool = False) -> Policy:
    return sharp_model(
        family,
        tie_embeddings=tied,
        vocab_size=TOKENIZER.vocab_size,
        mask_id=TOKENIZER.mask_id,
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_checkpoint(model_of("sdar"), TOKENIZER, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def change(path: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def error_of(directory: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(directory)
    return str(raised.value)


@pytest.mark.parametrize(
    ("family", "head"),
    [("sdar", "lm_head.weight"), ("llada", "model.transformer.ff_out.weight")],
)
def test_a_tied_head_that_differs_is_refused(tmp_path, family, head):
    save_checkpoint(model_of(family, tied=True), TOKENIZER, tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    embeddings = next(tensor for tensor in tensors.values() if len(tensor) == TOKENIZER.vocab_size)
    copy = embeddings.clone()
    save_file({**tensors, head: copy}, tmp_path / WEIGHTS)
    assert policy_hash(load_checkpoint(tmp_path)[0]) == policy_hash(model_of(family, tied=True))
    copy[3, 4] += 1e-3
    save_file({**tensors, head: copy}, tmp_path / WEIGHTS)
    text = error_of(tmp_path)
    assert head in text
    assert "ties" in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(saved, value):
    name = "model.layers.1.self_attn.q_proj.weight"
    change(saved / WEIGHTS, lambda tensors: tensors[name].view(-1).__setitem__(7, value))
    text = error_of(saved)
    assert name in text
    assert "not finite" in text


def test_an_order_module_that_is_not_finite_is_refused(tmp_path):
    model = with_order_module(model_of("sdar"))
    save_checkpoint(model, TOKENIZER, tmp_path)
    change(tmp_path / "order" / WEIGHTS, lambda t: t["score.bias"].fill_(float("nan")))
    assert "score.bias" in error_of(tmp_path)


def test_a_tensor_of_eight_bits_is_refused(saved):
    name = "model.layers.0.mlp.up_proj.weight"
    change(saved / WEIGHTS, lambda t: t.update({name: t[name].to(torch.float8_e4m3fn)}))
    text = error_of(saved)
    assert name in text
    assert "float8" in text


@pytest.mark.parametrize(
    "name", ["model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"]
)
def test_buffers_that_the_config_determines_are_ignored(saved, name):
    change(saved / WEIGHTS, lambda t: t.update({name: torch.ones(8)}))
    assert policy_hash(load_checkpoint(saved)[0]) == policy_hash(model_of("sdar"))


def test_a_single_file_beside_the_index_of_others_is_refused(tmp_path):
    model = model_of("sdar")
    save_checkpoint(model, TOKENIZER, tmp_path, shard_bytes=20_000)
    save_file({"x": torch.ones(1)}, tmp_path / WEIGHTS)
    text = error_of(tmp_path)
    assert WEIGHTS in text
    assert "two sets of weights" in text
    (tmp_path / WEIGHTS).unlink()
    assert policy_hash(load_checkpoint(tmp_path)[0]) == policy_hash(model)


def test_dtype_is_read_before_torch_dtype_and_both_are_written(saved):
    config = json.loads((saved / "config.json").read_text())
    both = {**config, "torch_dtype": "bfloat16", "dtype": "float32"}
    (saved / "config.json").write_text(json.dumps(both))
    model, tokenizer = load_checkpoint(saved)
    assert model.dtype == torch.float32
    save_checkpoint(model.to(torch.bfloat16), tokenizer, saved / "again")
    written = json.loads((saved / "again" / "config.json").read_text())
    assert (written["torch_dtype"], written["dtype"]) == ("bfloat16", "bfloat16")


# Links


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "tokenizer.json",
        "generation_config.json",
        WEIGHTS,
    ],
)
def test_a_link_that_leads_out_of_the_directory_is_refused(saved, tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    target = outside / "secret"
    path = saved / name
    target.write_bytes(path.read_bytes() if path.is_file() else b"{}")
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    text = error_of(saved)
    assert str(path) in text
    assert "link" in text


def test_an_index_may_not_lead_to_a_link_out_of_the_directory(tmp_path):
    save_checkpoint(model_of("sdar"), TOKENIZER, tmp_path / "model", shard_bytes=20_000)
    shard = sorted((tmp_path / "model").glob("*.safetensors"))[0]
    shard.rename(tmp_path / "moved.safetensors")
    shard.symlink_to(tmp_path / "moved.safetensors")
    assert shard.name in error_of(tmp_path / "model")


def test_links_into_a_hub_cache_and_within_the_directory_are_followed(saved, tmp_path):
    repository = tmp_path / "models--org--name"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for i, path in enumerate(sorted(saved.iterdir())):
        blob = repository / "blobs" / f"{i:064x}"
        blob.write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    assert policy_hash(load_checkpoint(snapshot)[0]) == policy_hash(model_of("sdar"))
    (saved / WEIGHTS).rename(saved / "weights.bin")
    (saved / WEIGHTS).symlink_to("weights.bin")
    assert policy_hash(load_checkpoint(saved)[0]) == policy_hash(model_of("sdar"))
