"""Attention back ends give what the reference gives, and say what to do where they cannot run."""

import sys
import types

import numpy as np
import pytest
import torch

from tests.tiny import END_IDS, MASK_ID, RULES, sharp_model, tiny_requests, tiny_sampler
from tracerl.errors import ParamsError
from tracerl.models.attention import Prefix, check_backend, prepare
from tracerl.models.masks import CLEAN, PAD, Layout
from tracerl.models.policy import Policy
from tracerl.objectives.plans import trace_plan
from tracerl.objectives.views import build_views
from tracerl.sampling.sampler import sample


@torch.no_grad()
def hidden(model: Policy, backend: str, ids: torch.Tensor, layout: Layout) -> torch.Tensor:
    model.attention = backend  # type: ignore[assignment]
    out: torch.Tensor = model(ids, layout)
    return out


@pytest.mark.parametrize("family", RULES)
def test_flex_is_sdpa_on_the_training_layout(family):
    """Clean halves, noisy views and right padding, grouped heads."""
    model = sharp_model(family)
    trajectories = sample(model, END_IDS, tiny_requests([3, 6, 9]), tiny_sampler())
    plans = [trace_plan(t, 4, model.family, shrink=1) for t in trajectories]
    views = build_views(trajectories, plans, 4, model.family, MASK_ID)
    assert bool((views.layout.streams == PAD).any())
    one, other = (
        hidden(model, backend, views.input_ids, views.layout) for backend in ("sdpa", "flex")
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert float(one.std()) > 0.5


def test_flex_samples_what_sdpa_samples():
    """Through the exact cache: prefill with padding, and live blocks against their keys."""
    model = sharp_model("sdar")
    results = []
    for backend in ("sdpa", "flex"):
        model.attention = backend
        results.append(
            sample(model, END_IDS, tiny_requests([3, 6, 9]), tiny_sampler(cache="exact"))
        )
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one.response_ids, other.response_ids)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_which_masks_are_prefixes():
    rows = torch.zeros(2, 4, dtype=torch.int64)
    padded = torch.tensor([[CLEAN, CLEAN, CLEAN, PAD], [CLEAN, PAD, PAD, PAD]])
    prefix = Layout(rows, rows, padded).prefix()
    assert prefix is not None
    assert prefix.tolist() == [3, 1]
    live = Layout(rows, rows, rows, first_keys=torch.tensor([6, 2]), num_keys=8).prefix()
    assert live is not None
    assert live.tolist() == [6, 2]
    pad_left = Layout(rows, rows, torch.tensor([[PAD, CLEAN, CLEAN, CLEAN]] * 2))
    assert pad_left.prefix() is None, "the first keys are padding"
    blocks = torch.tensor([[0, 0, 1, 1]] * 2)
    assert Layout(rows, blocks, torch.zeros_like(rows)).prefix() is None, (
        "two blocks see different keys"
    )
    noisy = Layout(rows, rows, torch.tensor([[CLEAN, CLEAN, 1, 1]] * 2))
    assert noisy.prefix() is None


@torch.no_grad()
def test_prefixes_handed_to_flash_attention_are_the_mask(monkeypatch):
    """flash-attn runs on CUDA only; a plain implementation of the call that is made stands in for
    it."""
    seen = []

    def flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens, causal):
        assert not causal
        assert q.dtype is torch.bfloat16
        seen.append(cache_seqlens.tolist())
        k, v = (
            part.repeat_interleave(q.shape[2] // part.shape[2], dim=2)
            for part in (k_cache, v_cache)
        )
        mask = torch.arange(k.shape[1])[None, :] < cache_seqlens[:, None]
        query, key, value = (part.transpose(1, 2).float() for part in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask[:, None, None]
        )
        return out.transpose(1, 2).to(q.dtype)

    fake = types.ModuleType("flash_attn")
    fake.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", fake)
    model = sharp_model("llada", torch.bfloat16)
    ids = torch.arange(12).reshape(2, 6)
    streams = torch.tensor([[CLEAN] * 6, [CLEAN] * 4 + [PAD] * 2])
    layout = Layout(torch.arange(6).expand(2, -1), torch.zeros_like(ids), streams)
    one, other = (
        hidden(model, backend, ids, layout)[streams == CLEAN] for backend in ("sdpa", "flash")
    )
    torch.testing.assert_close(one, other, rtol=0, atol=0.06)
    assert seen == [[6, 4]] * 2, "one call in each of two layers"


def test_flash_leaves_masks_that_are_no_prefix_to_the_reference():
    rows = torch.zeros(1, 4, dtype=torch.int64)
    noisy = Layout(rows, rows, torch.tensor([[CLEAN, CLEAN, 1, 1]]))
    plain = Layout(rows, rows, torch.zeros_like(rows))
    with torch.no_grad():
        assert isinstance(prepare(plain, "flash", torch.bfloat16), Prefix)
        assert isinstance(prepare(noisy, "flash", torch.bfloat16), torch.Tensor)
        assert isinstance(prepare(plain, "flash", torch.float32), torch.Tensor), (
            "flash-attn knows half precision only"
        )
    assert isinstance(prepare(plain, "flash", torch.bfloat16), torch.Tensor), (
        "its call for caches has no backward pass"
    )


def test_auto_is_the_reference_on_a_cpu():
    rows = torch.zeros(1, 4, dtype=torch.int64)
    with torch.no_grad():
        assert isinstance(prepare(Layout(rows, rows, rows), "auto", torch.float32), torch.Tensor)


def test_a_missing_extra_says_what_to_install(monkeypatch):
    monkeypatch.setattr("tracerl.models.attention.flash_installed", lambda: False)
    with pytest.raises(ParamsError, match=r"pip install --no-build-isolation 'tracerl\[flash\]'"):
        check_backend("flash", torch.device("cuda"))
    monkeypatch.setattr("tracerl.models.attention.flash_installed", lambda: True)
    with pytest.raises(ParamsError, match="CUDA only"):
        check_backend("flash", torch.device("cpu"))
    with pytest.raises(ParamsError, match="on a CPU only"):
        check_backend("sparse", torch.device("cuda"))
    check_backend("auto", torch.device("cpu"))


def test_flex_on_a_cpu_refuses_to_train():
    model = sharp_model("sdar")
    model.attention = "flex"
    rows = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(ParamsError, match="backward"):
        model(rows, Layout(rows, rows, rows))
