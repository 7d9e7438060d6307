"""The approximate caches of full attention: what a pass holds, when it equals no cache, and what a
trajectory says about it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.tiny import (
    APPROXIMATE,
    END_IDS,
    FULL_ATTENTION,
    MASK_ID,
    sharp_model,
    tiny_requests,
    tiny_sampler,
)
from tracerl.errors import DataError
from tracerl.models.masks import CLEAN, Layout
from tracerl.models.policy import Policy
from tracerl.models.transformer import CacheWindow, predictor_positions
from tracerl.rollouts.responses import settings_columns
from tracerl.sampling.sampler import Request, sample
from tracerl.settings.sampling import Sampler
from tracerl.types import Trajectory

MODELS = {family: sharp_model(family, torch.float64) for family in FULL_ATTENTION}
LENGTHS = [3, 8, 1, 6, 11]


def decisions(trajectory: Trajectory) -> tuple[list[int], list[int]]:
    return trajectory.response_ids.tolist(), trajectory.step_map.tolist()


@torch.no_grad()
def recomputed(
    model: Policy, trajectory: Trajectory, settings: Sampler, seen_end: Callable[[int], int]
) -> np.ndarray:
    """Log-probability of every token from one pass over the canvas as it stood before the token's
    step, cut at `seen_end(block's end)`."""
    prompt, size = len(trajectory.prompt_ids), settings.block_size
    full_length = prompt + -(-settings.max_new_tokens // size) * size
    out = np.full(len(trajectory.response_ids), np.nan)
    for step in range(1, trajectory.num_steps + 1):
        tokens = np.flatnonzero(trajectory.step_map == step)
        end = min(seen_end(prompt + (int(tokens[0]) // size + 1) * size), full_length)
        canvas = torch.full((1, full_length), MASK_ID)
        canvas[0, :prompt] = torch.from_numpy(trajectory.prompt_ids)
        known = np.flatnonzero(trajectory.step_map < step)
        canvas[0, prompt + known] = torch.from_numpy(trajectory.response_ids[known]).long()
        zeros = torch.zeros(1, end, dtype=torch.int64)
        hidden = model(canvas[:, :end], Layout(torch.arange(end)[None], zeros, zeros + CLEAN))
        at = predictor_positions(torch.from_numpy(prompt + tokens), model.family)
        logits = model.mask_logits_(model.logits(hidden[0, at]))
        logprobs = (logits / settings.temperature).log_softmax(-1)
        out[tokens] = logprobs[
            torch.arange(len(tokens)), torch.from_numpy(trajectory.response_ids[tokens]).long()
        ].numpy()
    return out


# The equalities


@pytest.mark.parametrize("mode", ["prefix", "dual", "window"])
@pytest.mark.parametrize("family", FULL_ATTENTION)
def test_a_cache_that_is_refreshed_at_every_step_is_no_cache(family, mode):
    model, requests = MODELS[family], tiny_requests(LENGTHS)
    without = sample(model, END_IDS, requests, tiny_sampler(temperature=0.7))
    refreshed = sample(
        model,
        END_IDS,
        requests,
        tiny_sampler(temperature=0.7, refresh_every=1, **APPROXIMATE[mode]),
    )
    for one, other in zip(without, refreshed, strict=True):
        assert decisions(one) == decisions(other)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)
        assert (one.num_forwards, one.canvas_length) == (other.num_forwards, other.canvas_length)


@pytest.mark.parametrize("horizon", [0, 4, 8, 100])
@pytest.mark.parametrize("family", FULL_ATTENTION)
def test_a_refreshed_finite_horizon_is_no_cache_on_a_canvas_cut_at_the_horizon(family, horizon):
    """Every block is sampled anew without a cache, as the first block of a canvas that ends where
    the window did."""
    model, length, size = MODELS[family], 16, 4
    window = tiny_sampler(
        temperature=0.0,
        max_new_tokens=length,
        cache="window",
        horizon=horizon,
        refresh_every=1,
        refresh_sees="window",
    )
    for request in tiny_requests(LENGTHS):
        [trajectory] = sample(model, (), [request], window)
        prompt = [*request.prompt_ids]
        for block in range(length // size):
            mine = slice(block * size, (block + 1) * size)
            cut = tiny_sampler(
                temperature=0.0, max_new_tokens=min(size + horizon, length - block * size)
            )
            [alone] = sample(model, (), [Request(prompt, 1)], cut)
            assert alone.response_ids[:size].tolist() == trajectory.response_ids[mine].tolist()
            before = block * size  # static sampling of one token a step
            assert (alone.step_map[:size] + before).tolist() == trajectory.step_map[mine].tolist()
            np.testing.assert_allclose(
                alone.logprobs[:size], trajectory.logprobs[mine], rtol=0, atol=1e-6
            )
            prompt += trajectory.response_ids[mine].tolist()


@pytest.mark.parametrize("horizon", [0, 3, 6])
@pytest.mark.parametrize("family", FULL_ATTENTION)
def test_the_replay_law_holds_for_a_refreshed_horizon_on_the_cut_canvas(family, horizon):
    model = MODELS[family]
    settings = tiny_sampler(
        temperature=0.7,
        remasking="dynamic",
        cache="window",
        horizon=horizon,
        refresh_every=1,
        refresh_sees="window",
        max_new_tokens=16,
    )
    for trajectory in sample(model, END_IDS, tiny_requests(LENGTHS), settings):
        cut = recomputed(model, trajectory, settings, lambda end: end + horizon)
        np.testing.assert_allclose(trajectory.logprobs, cut, rtol=0, atol=1e-6)
        whole = recomputed(model, trajectory, settings, lambda end: end + 100)
        if trajectory.num_tokens > 4:
            assert np.abs(trajectory.logprobs - whole).max() > 0.1, (
                "a scorer of the whole canvas would be wrong"
            )


@pytest.mark.parametrize("family", FULL_ATTENTION)
def test_a_horizon_beyond_the_canvas_is_the_prefix_cache(family):
    model, requests = MODELS[family], tiny_requests(LENGTHS)
    prefix = sample(model, END_IDS, requests, tiny_sampler(cache="prefix", refresh_every=2))
    for sees in ("canvas", "window"):
        window = sample(
            model,
            END_IDS,
            requests,
            tiny_sampler(cache="window", horizon=12, refresh_sees=sees, refresh_every=2),
        )
        for one, other in zip(prefix, window, strict=True):
            assert decisions(one) == decisions(other)
            np.testing.assert_array_equal(one.logprobs, other.logprobs)


@pytest.mark.parametrize("family", FULL_ATTENTION)
def test_the_first_pass_of_a_block_is_exact(family):
    """The pass that refreshes the keys is a pass over the whole canvas, and it decides the block's
    first step."""
    model, settings = MODELS[family], tiny_sampler(temperature=0.7, cache="dual", steps_per_block=2)
    for trajectory in sample(model, (), tiny_requests(LENGTHS), settings):
        exact = recomputed(model, trajectory, settings, lambda end: end + 100)
        error = np.abs(trajectory.logprobs - exact)
        first = np.isin(trajectory.step_map, [1, 3, 5])
        assert error[first].max() < 1e-6
        assert error[~first].max() > 1e-3, "the others are approximate"


# What is passed


@pytest.mark.parametrize("mode", APPROXIMATE)
@pytest.mark.parametrize("family", FULL_ATTENTION)
def test_a_pass_holds_the_window_of_its_cache_and_the_predictor_of_its_first_token(family, mode):
    model, prompt, end, shown = MODELS[family], 5, 5 + 12, []

    def note(module: torch.nn.Module, arguments: tuple[torch.Tensor, Layout, CacheWindow]) -> None:
        shown.append(arguments[1].positions[0].tolist())

    handle = model.register_forward_pre_hook(note)
    [trajectory] = sample(model, (), tiny_requests([prompt]), tiny_sampler(**APPROXIMATE[mode]))
    handle.remove()
    wanted = []
    for start in range(prompt, end, 4):
        behind = {"prefix": end, "dual": start + 4}.get(mode, min(start + 4 + 3, end))
        wanted.append(list(range(behind if mode == "cut" else end)))
        wanted += [list(range(start - model.family.shift, behind))] * 3
    assert shown == wanted
    assert trajectory.num_forwards == trajectory.num_denoising_forwards == len(shown) == 12


@pytest.mark.parametrize("every", [2, 3])
def test_keys_are_refreshed_as_often_as_asked(every):
    model, shown = MODELS["llada"], []
    handle = model.register_forward_pre_hook(
        lambda module, arguments: shown.append(arguments[0].shape[1])
    )
    sample(model, (), tiny_requests([5]), tiny_sampler(cache="dual", refresh_every=every))
    handle.remove()
    assert shown == [17 if step % every == 0 else 4 for step in range(4)] * 3


# What a trajectory says


@pytest.mark.parametrize("mode", APPROXIMATE)
@pytest.mark.parametrize("family", FULL_ATTENTION)
def test_a_trajectory_names_the_cache_it_was_sampled_with(family, mode):
    model, requests, settings = (
        MODELS[family],
        tiny_requests(LENGTHS),
        tiny_sampler(temperature=0.7, **APPROXIMATE[mode]),
    )
    trajectories = sample(model, END_IDS, requests, settings)
    recorded = settings_columns(settings, model)
    assert recorded["cache_mode"] == settings.cache.kind
    assert recorded["cache_horizon"] == (3 if mode in ("window", "cut") else None)
    for trajectory in trajectories:
        seen = len(trajectory.prompt_ids) + (
            min(len(trajectory.response_ids) + 3, 12) if mode == "cut" else 12
        )
        assert trajectory.canvas_length == seen
    errors = [
        np.abs(t.logprobs - recomputed(model, t, settings, lambda end: end + 100)).max()
        for t in trajectories
    ]
    assert max(errors) > 0.1, "it had better say so"


def test_the_exact_cache_of_full_attention_is_none():
    exact = tiny_sampler(cache="exact")
    assert settings_columns(exact, MODELS["llada"])["cache_mode"] == "none"
    assert settings_columns(exact, sharp_model("sdar"))["cache_mode"] == "exact"


def test_a_block_causal_family_refuses_an_approximate_cache():
    with pytest.raises(DataError, match=r"sampler\.cache, family sdar"):
        sample(sharp_model("sdar"), END_IDS, tiny_requests([5]), tiny_sampler(cache="dual"))
