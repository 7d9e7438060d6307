"""Parity of the one transformer with every family's published modelling code: stored inputs and
outputs, through the shipped loader."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import models as tokenizer_models

from tests.tiny import cached_pass
from tracerl.models.checkpoint import load_checkpoint, published_state, save_checkpoint
from tracerl.models.masks import CLEAN, PAD, Layout
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.models.transformer import KeyValueCache, predictor_positions

FIXTURES = Path(__file__).parents[1] / "fixtures" / "parity"
FULL = [
    (family, path.stem)
    for family in ("llada", "dream")
    for path in sorted((FIXTURES / family).glob("logits_*.npz"))
]


@pytest.fixture(scope="module", params=["llada", "dream", "sdar", "sdar_tied"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference weights as a checkpoint directory; tokens are named by their ids, since only
    ids are compared."""
    return reference(request.param, tmp_path_factory.mktemp(request.param))


def reference(name: str, directory: Path) -> Path:
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        if (FIXTURES / name / file).is_file():
            shutil.copy(FIXTURES / name / file, directory)
    TokenizerFile(tokenizer_models.WordLevel({str(i): i for i in range(128)}, unk_token="0")).save(
        str(directory / "tokenizer.json")
    )
    config = json.loads((directory / "config.json").read_text())
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": str(config["eos_token_id"])})
    )
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Policy, Tokenizer]]:
    names = ("llada", "dream", "sdar", "sdar_tied")
    return {name: load_checkpoint(reference(name, tmp_path_factory.mktemp(name))) for name in names}


def case(family: str, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(FIXTURES / family / f"{name}.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    return arrays, json.loads(str(arrays.pop("meta")))["params"]


def test_a_published_directory_comes_back_byte_for_byte(directory, tmp_path):
    """Every tensor, its name, and every file that is not a container of tensors."""
    model, tokenizer = load_checkpoint(directory)
    save_checkpoint(model, tokenizer, tmp_path)
    for name in (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ):
        if (directory / name).is_file():
            assert (tmp_path / name).read_text().strip() == (directory / name).read_text().strip()
    again, _ = load_checkpoint(tmp_path)
    one, other = published_state(model), published_state(again)
    assert set(one) == set(other)
    assert all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in directory.iterdir())


def test_ids_come_from_the_published_files(models):
    ids = {
        name: (tokenizer.mask_id, tokenizer.end_ids, tokenizer.pad_id)
        for name, (_, tokenizer) in models.items()
    }
    assert ids == {
        "llada": (125, (121,), 121),
        "dream": (124, (119,), 119),
        "sdar": (126, (122, 120), 120),
        "sdar_tied": (126, (122, 120), 120),
    }


@pytest.mark.parametrize(("family", "name"), FULL)
@torch.no_grad()
def test_full_attention_logits(models, family, name):
    assert len(FULL) == 9
    (model, _), (arrays, _) = models[family], case(family, name)
    ids = torch.from_numpy(arrays["in_input_ids"]).long()
    real = (
        torch.from_numpy(arrays["in_attention_mask"]).bool()
        if "in_attention_mask" in arrays
        else torch.ones_like(ids, dtype=torch.bool)
    )
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    if "in_position_ids" in arrays:
        positions = torch.from_numpy(arrays["in_position_ids"]).long()
    layout = Layout(positions, torch.zeros_like(ids), torch.where(real, CLEAN, PAD))
    logits = model.logits(model(ids, layout))
    np.testing.assert_allclose(
        logits[real].numpy(), arrays["out_logits"][real.numpy()], atol=1e-4, rtol=0
    )
    if "out_shifted_argmax" in arrays:
        shifted = logits[:, predictor_positions(torch.arange(ids.shape[1]), model.family)]
        # The first real token of a left-padded row is predicted from padding there; nobody asks for
        # it.
        asked = real & torch.cat([torch.ones_like(real[:, :1]), real[:, :-1]], 1)
        np.testing.assert_array_equal(
            shifted.argmax(-1)[asked].numpy(), arrays["out_shifted_argmax"][asked.numpy()]
        )


@pytest.mark.parametrize("cached", [False, True])
@torch.no_grad()
def test_block_causal_logits_with_a_tied_head(models, cached):
    (model, _), (arrays, params) = models["sdar_tied"], case("sdar_tied", "logits_block_b4")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    ids, size = torch.from_numpy(arrays["in_input_ids"]).long(), params["block_length"]
    bounds = [
        0,
        size * params["prefill_blocks"],
        *range(size * (params["prefill_blocks"] + 1), ids.shape[1] + 1, size),
    ]
    cache, parts = KeyValueCache(model, len(ids), ids.shape[1]), []
    for start, end in pairwise(bounds) if cached else [(0, ids.shape[1])]:
        layout, window = cached_pass(cache, len(ids), start, end, size)
        parts.append(model.logits(model(ids[:, start:end], layout, window)))
    wanted = arrays["out_logits_cached" if cached else "out_logits"]
    np.testing.assert_allclose(torch.cat(parts, 1).numpy(), wanted, atol=1e-4, rtol=0)


@torch.no_grad()
def test_packed_documents_are_rows_of_their_own(models):
    """Where the published code packs several documents into a row, ours gives each its row: the
    same logits, and a mask without leaks."""
    (model, _), (arrays, params) = models["sdar"], case("sdar", "train_layout_packed")
    for row, starts in enumerate(np.flatnonzero(p == 0) for p in arrays["in_position_ids"]):
        width = arrays["in_position_ids"].shape[1]
        seen = np.zeros((2 * width, 2 * width), dtype=bool)
        for start, end in zip(starts, [*starts[1:], width], strict=True):
            at = np.arange(2 * start, 2 * end)  # each document as [noisy | clean]
            ids = torch.from_numpy(arrays["out_concat_input_ids"][row][at]).long()[None]
            positions = torch.from_numpy(arrays["out_concat_position_ids"][row][at]).long()[None]
            streams = torch.tensor([1, CLEAN]).repeat_interleave(end - start)[None]
            layout = Layout(positions, positions // params["block_size"], streams)
            seen[np.ix_(at, at)] = layout.mask()[0].numpy()
            np.testing.assert_allclose(
                model.logits(model(ids, layout))[0].numpy(),
                arrays["out_logits"][row][at],
                atol=1e-4,
                rtol=0,
            )
        np.testing.assert_array_equal(seen, arrays["out_attention_mask"][row])
