"""Parity with the published SDAR code on stored inputs and outputs: logits, layouts and losses to
rounding, ids and steps exactly."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import models as tokenizer_models

from tests.tiny import cached_pass, tiny_sampler
from tracerl.models.checkpoint import load_checkpoint
from tracerl.models.masks import CLEAN, Layout, visible
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.models.transformer import KeyValueCache
from tracerl.objectives.likelihood import token_logprobs
from tracerl.objectives.losses import sft_loss
from tracerl.objectives.plans import PREDICTED, VISIBLE, Plan
from tracerl.objectives.views import build_views
from tracerl.sampling.sampler import Request, sample
from tracerl.types import Trajectory

FIXTURES = Path(__file__).parent / "fixtures" / "parity" / "sdar"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Policy, Tokenizer]:
    """The reference weights through the shipped loader; the tokens are named by their ids, since
    only ids are compared."""
    directory = tmp_path_factory.mktemp("sdar")
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(FIXTURES / name, directory)
    TokenizerFile(tokenizer_models.WordLevel({str(i): i for i in range(128)}, unk_token="0")).save(
        str(directory / "tokenizer.json")
    )
    return load_checkpoint(directory)


def case(name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(FIXTURES / f"{name}.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    return arrays, json.loads(str(arrays.pop("meta")))["params"]


def test_ids_come_from_the_published_config(checkpoint):
    model, tokenizer = checkpoint
    assert (tokenizer.mask_id, model.architecture.mask_id, tokenizer.end_ids) == (
        126,
        126,
        (122, 120),
    )
    assert (
        model.architecture.head_dim
        != model.architecture.hidden_size // model.architecture.num_heads
    )


@pytest.mark.parametrize(
    "name", ["logits_block_b4", "logits_block_b4_noprefill", "logits_block_b8"]
)
@torch.no_grad()
def test_block_causal_logits(checkpoint, name):
    model, (arrays, params) = checkpoint[0], case(name)
    ids = torch.from_numpy(arrays["in_input_ids"]).long()
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    layout = Layout(positions, positions // params["block_length"], torch.full_like(ids, CLEAN))
    logits = model.logits(model(ids, layout))
    np.testing.assert_allclose(logits.numpy(), arrays["out_logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "name", ["logits_block_b4", "logits_block_b4_noprefill", "logits_block_b8"]
)
@torch.no_grad()
def test_block_causal_logits_through_the_cache(checkpoint, name):
    model, (arrays, params) = checkpoint[0], case(name)
    ids, size = torch.from_numpy(arrays["in_input_ids"]).long(), params["block_length"]
    cache = KeyValueCache(model, len(ids), ids.shape[1])
    bounds = [
        params["prefill_blocks"] * size,
        *range((params["prefill_blocks"] + 1) * size, ids.shape[1] + 1, size),
    ]
    logits, start = [], 0
    for end in bounds:
        layout, window = cached_pass(cache, len(ids), start, end, size)
        if end > start:
            logits.append(model.logits(model(ids[:, start:end], layout, window)))
        start = end
    np.testing.assert_allclose(
        torch.cat(logits, 1).numpy(), arrays["out_logits_cached"], atol=1e-4, rtol=0
    )


@pytest.mark.parametrize(
    "name", ["block_diff_mask_n10_b4", "block_diff_mask_n12_b4", "block_diff_mask_n16_b8"]
)
def test_visibility_in_the_training_layout(name):
    arrays, params = case(name)
    blocks = (torch.arange(params["n"]) // params["block_size"]).repeat(2)
    streams = torch.tensor([1, CLEAN]).repeat_interleave(params["n"])  # [noisy | clean]
    np.testing.assert_array_equal(
        visible(blocks, streams, blocks, streams).numpy(), arrays["out_mask"]
    )


@pytest.mark.parametrize("name", ["train_layout_single", "train_layout_b8"])
@torch.no_grad()
def test_logits_of_the_training_layout(checkpoint, name):
    model, (arrays, params) = checkpoint[0], case(name)
    ids, positions = (
        torch.from_numpy(arrays[key]).long()
        for key in ("out_concat_input_ids", "out_concat_position_ids")
    )
    half = ids.shape[1] // 2
    streams = torch.tensor([1, CLEAN]).repeat_interleave(half).expand_as(ids)
    layout = Layout(positions, positions // params["block_size"], streams)
    np.testing.assert_array_equal(layout.mask().numpy(), arrays["out_attention_mask"])
    np.testing.assert_allclose(
        model.logits(model(ids, layout)).numpy(), arrays["out_logits"], atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("name", ["train_layout_single", "train_layout_b8"])
@torch.no_grad()
def test_sft_loss_of_the_training_layout(checkpoint, name):
    """Our views ([clean | noisy blocks that predict something]) of the stored noise give the stored
    loss."""
    (loaded, tokenizer), (arrays, params) = checkpoint, case(name)
    model = copy.deepcopy(loaded)
    model.lm_head.forbid([])  # the published loss gives probability to the mask
    trajectories, plans, num_trainable, first = [], [], 0, 0
    for ids, labels, masked in zip(
        arrays["in_input_ids"], arrays["in_labels"], arrays["out_masked_half"], strict=True
    ):
        prompt = int((labels == -100).sum())
        nothing = np.zeros(len(ids) - prompt, dtype=np.float32)
        states = np.where(masked[prompt:], PREDICTED, VISIBLE).astype(np.int8)
        levels = np.ones_like(nothing)
        levels[masked[prompt:]] = arrays["out_p_mask"][first : first + int(masked.sum())]
        first += int(masked.sum())
        plans.append(Plan(states=states[None], weights=(1 / levels)[None].astype(np.float32)))
        trajectories.append(
            Trajectory(
                prompt_ids=ids[:prompt],
                response_ids=ids[prompt:],
                step_map=np.ones(len(nothing), np.int32),
                logprobs=nothing,
                filtered_logprobs=nothing,
                num_tokens=len(nothing),
                block_size=4,
                canvas_length=len(ids),
                stop_reason="length",
            )
        )
        num_trainable += len(nothing)
    views = build_views(trajectories, plans, params["block_size"], model.family, tokenizer.mask_id)
    loss = sft_loss(token_logprobs(model, views, temperature=1.0), views.weight / num_trainable)
    assert float(loss) == pytest.approx(float(arrays["out_loss"]), abs=1e-5)


REMASKING = {
    "low_confidence_static": "static",
    "low_confidence_dynamic": "dynamic",
    "sequential": "sequential",
}
GENERATIONS = sorted(path.stem for path in FIXTURES.glob("gen_*.npz"))


@pytest.mark.parametrize("cache", ["none", "exact"])
@pytest.mark.parametrize("name", GENERATIONS)
def test_ids_steps_and_forwards_of_generation(checkpoint, name, cache):
    assert len(GENERATIONS) == 10
    model, (arrays, params) = checkpoint[0], case(name)
    size, prompt = params["block_length"], arrays["in_prompt"][0].tolist()
    settings = tiny_sampler(
        block_size=size,
        steps_per_block=params["denoising_steps"],
        remasking=REMASKING[params["remasking_strategy"]],
        threshold=params["confidence_threshold"],
        temperature=0.0,
        max_new_tokens=params["gen_length"],
        cache=cache,
    )
    [trajectory] = sample(model, params.get("stop_ids", []), [Request(prompt, 1)], settings)
    ids, steps = arrays["out_ids"][0], arrays["out_unmask_step"][0]
    reached = len(prompt) + len(trajectory.response_ids)
    assert trajectory.response_ids.tolist() == ids[len(prompt) : reached].tolist()
    assert trajectory.step_map.tolist() == (steps[len(prompt) : reached] + 1).tolist()
    assert (steps[reached:] == -2).all(), "what we did not reach was not reached there either"
    assert trajectory.num_denoising_forwards == len(arrays["out_update_block"])
    if cache == "exact":  # the published code passes the last block once more as well, for nothing
        assert trajectory.num_forwards == int(arrays["out_num_forward"]) - 1
    confident = np.array(
        [
            arrays["out_x0_p"][step, position % size]
            for position, step in enumerate(steps)
            if step >= 0
        ]
    )
    np.testing.assert_allclose(np.exp(trajectory.logprobs), confident, atol=1e-4)
