"""Forwards and FLOPs are predicted from the shape alone, are counted as they happen, and the first
bound the second."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.tiny import (
    APPROXIMATE,
    FULL_ATTENTION,
    MASK_ID,
    VOCAB_SIZE,
    sharp_model,
    tiny_requests,
    tiny_sampler,
)
from tracerl.models.cost import Meter, head_flops, layer_flops
from tracerl.models.masks import Layout
from tracerl.objectives.likelihood import token_logprobs
from tracerl.objectives.plans import trace_plan
from tracerl.objectives.views import build_views
from tracerl.reporting.work import Work, sampling_work
from tracerl.sampling.sampler import sample


def test_a_token_costs_two_operations_for_every_weight_it_meets():
    model = sharp_model("sdar")
    weights = sum(
        p.numel() for name, p in model.named_parameters() if "layers" in name and p.dim() == 2
    )
    assert layer_flops(model.architecture) == 2 * weights
    assert head_flops(model.architecture) == 2 * model.lm_head.weight.numel()
    assert layer_flops(replace(model.architecture, num_layers=4)) == 4 * weights


def test_passes_are_counted_and_those_with_a_gradient_three_times():
    model, meter = sharp_model("sdar"), Meter()
    meter.watch(model)
    ids = torch.arange(6).reshape(2, 3)
    layout = Layout(torch.arange(3).expand(2, -1), torch.zeros_like(ids), torch.zeros_like(ids))
    shape = model.architecture
    with torch.no_grad():
        model.logits(model(ids, layout)[:, :1])
    assert meter == Meter(1, 6, 2, 6 * layer_flops(shape) + 2 * head_flops(shape))
    model.logits(model(ids, layout))
    assert meter == Meter(2, 12, 8, 24 * layer_flops(shape) + (2 + 18) * head_flops(shape))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("sdar", {"cache": "exact"}),
        ("sdar", {"cache": "none"}),
        *((f, APPROXIMATE[mode]) for f in FULL_ATTENTION for mode in ("prefix", "dual")),
    ],
    ids=str,
)
def test_sampling_at_its_limits_takes_what_is_predicted(family: str, changes: dict[str, Any]):
    """Prompts and responses as long as allowed, one token a step. The last block needs no commit; a
    step's committed positions no head."""
    model, meter = sharp_model(family), Meter()
    meter.watch(model)
    settings = tiny_sampler(max_prompt_tokens=8, **changes)
    sample(model, (), tiny_requests([8, 8, 8]), settings)
    found = sampling_work(settings, model.architecture, 3)
    saved = 1 if changes["cache"] == "exact" else 0
    assert meter.forwards == found.forwards - saved
    heads = 3 * 3 * (16 - 10) * head_flops(model.architecture)
    assert meter.flops == found.flops - heads - saved * 3 * 4 * layer_flops(model.architecture)


def test_a_guided_response_takes_twice_the_passes():
    shape = sharp_model("sdar").architecture
    plain, guided = (
        sampling_work(tiny_sampler(cache="exact", guidance=g), shape, 5) for g in (0.0, 0.5)
    )
    assert guided == Work(2 * plain.forwards, 2 * plain.flops)


def test_likelihoods_apply_the_head_to_predicted_tokens_only():
    model, meter = sharp_model("sdar"), Meter()
    batch = sample(model, (), tiny_requests([8]), tiny_sampler())
    views = build_views(
        batch, [trace_plan(t, 4, model.family, 1) for t in batch], 4, model.family, MASK_ID
    )
    meter.watch(model)
    with torch.no_grad():
        token_logprobs(model, views, 1.0)
    assert (meter.forwards, meter.tokens, meter.predicted) == (1, 20 + 4 * 12, 12)
    assert VOCAB_SIZE * 12 < 1 << 24
