"""The replay law, the first test of the project: what training recomputes is what the sampler
computed.

For every family, prompt length, block size and positive temperature, without a cache and with the
exact one, the log-probabilities recomputed through the views (shrink 1, training block = rollout
block) equal the sampler's own at every trainable token. A mistake in the shift, the mask, the grid,
the positions, the padding, the temperature or the cache breaks it; the second half shows that it
does.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from tests.tiny import (
    END_IDS,
    MASK_ID,
    RULES,
    SAMPLERS,
    concatenated,
    sharp_model,
    tiny_requests,
    tiny_sampler,
)
from tracerl.models.families import FAMILIES
from tracerl.models.policy import Policy
from tracerl.objectives.likelihood import token_logprobs
from tracerl.objectives.plans import trace_plan
from tracerl.objectives.views import Views, build_views
from tracerl.sampling.sampler import sample
from tracerl.settings.sampling import Sampler
from tracerl.types import Trajectory

TOLERANCE = 1e-5
REMASKING = ("static", "dynamic", "sequential")
TEMPERATURES = (0.7, 1.0)
MODELS = {family: sharp_model(family) for family in RULES}


def views_of(model: Policy, trajectories: Sequence[Trajectory], block_size: int) -> Views:
    plans = [
        trace_plan(trajectory, block_size, model.family, shrink=1) for trajectory in trajectories
    ]
    return build_views(trajectories, plans, block_size, model.family, MASK_ID)


@torch.no_grad()
def replay_error(
    model: Policy, trajectories: Sequence[Trajectory], views: Views, temperature: float
) -> float:
    """Largest difference between recomputed log-probabilities and the sampler's own, after checking
    that every trainable token is there."""
    predicted = sorted(zip(views.source.tolist(), views.token.tolist(), strict=True))
    assert predicted == [
        (i, j) for i, trajectory in enumerate(trajectories) for j in range(trajectory.num_tokens)
    ]
    recorded = torch.tensor(
        [trajectories[i].logprobs[j] for i, j in zip(views.source, views.token, strict=True)]
    )
    return float((token_logprobs(model, views, temperature) - recorded).abs().max())


def prompt_lengths() -> list[int]:
    """Fourteen unequal prompt lengths; the first K leave every remainder modulo K, for K = 2, 4,
    8."""
    return [1 + (5 * i) % 16 for i in range(14)]


def sampled(model: Policy, settings: Sampler, batch_size: int) -> list[list[Trajectory]]:
    lengths = prompt_lengths()
    requests = tiny_requests(lengths if batch_size > 1 else lengths[: settings.block_size + 4])
    batches = [requests[i : i + batch_size] for i in range(0, len(requests), batch_size)]
    return [sample(model, END_IDS, batch, settings) for batch in batches]


def settings_for(block_size: int, remasking: str, temperature: float, cache: str) -> Sampler:
    # Static sampling commits two tokens a step, so that a step holds more than one token whatever
    # the confidences are.
    steps = max(block_size // 2, 1) if remasking == "static" else block_size
    return tiny_sampler(
        block_size=block_size,
        steps_per_block=steps,
        remasking=remasking,
        threshold=0.4,
        temperature=temperature,
        cache=cache,
        max_new_tokens=block_size + 4,
    )


@pytest.mark.parametrize("batch_size", [1, 7])
@pytest.mark.parametrize("block_size", [2, 4, 8])
@pytest.mark.parametrize(("family", "cache"), SAMPLERS)
def test_replayed_logprobs_equal_the_samplers_own(family, cache, block_size, batch_size):
    model = MODELS[family]
    assert {length % block_size for length in prompt_lengths()[:block_size]} == set(
        range(block_size)
    )
    seen: list[Trajectory] = []
    for remasking, temperature in product(REMASKING, TEMPERATURES):
        for trajectories in sampled(
            model, settings_for(block_size, remasking, temperature, cache), batch_size
        ):
            error = replay_error(
                model, trajectories, views_of(model, trajectories, block_size), temperature
            )
            assert error < TOLERANCE, f"{remasking} at temperature {temperature}: {error}"
            seen += trajectories
    # The law was put to the test: all kinds of responses, and log-probabilities that differ by
    # nats.
    assert {trajectory.stop_reason for trajectory in seen} == {"end", "length"}
    assert any(trajectory.num_tokens < len(trajectory.response_ids) for trajectory in seen)
    assert np.std(concatenated([trajectory.logprobs for trajectory in seen]).numpy()) > 0.8


@pytest.mark.parametrize("family", RULES)
def test_a_full_canvas_is_replayed_with_the_blocks_never_reached(family):
    """A response that stops in its first of four blocks: full attention saw the three others as
    masks."""
    model, settings = MODELS[family], tiny_sampler(max_new_tokens=16)
    trajectories = sample(model, END_IDS, tiny_requests([6] * 30), settings)
    full = model.family.attention == "full"
    short = [
        trajectory
        for trajectory in trajectories
        if len(trajectory.response_ids) == (4 if full else 2)
    ]
    assert short
    assert {trajectory.canvas_length for trajectory in short} == {22 if full else 8}
    assert replay_error(model, short, views_of(model, short, 4), 1.0) < TOLERANCE
    if full:
        cut = [replace(trajectory, canvas_length=10) for trajectory in short]
        assert replay_error(model, cut, views_of(model, cut, 4), 1.0) > 0.1


# From here on: each wrong argument is an error that has been made in public code, and the law must
# see it.

Wrong = Callable[[Policy, list[Trajectory], int], Views]


def grid_shifted_by_one(model: Policy, trajectories: list[Trajectory], block_size: int) -> Views:
    views = views_of(model, trajectories, block_size)
    return replace(
        views, layout=replace(views.layout, blocks=(views.layout.positions + 1) // block_size)
    )


def grid_that_starts_at_the_response(
    model: Policy, trajectories: list[Trajectory], block_size: int
) -> Views:
    views = views_of(model, trajectories, block_size)
    start = torch.zeros(len(views.input_ids), dtype=torch.int64)
    start[views.row] = torch.tensor([len(trajectory.prompt_ids) for trajectory in trajectories])[
        views.source
    ]
    return replace(
        views,
        layout=replace(
            views.layout, blocks=(views.layout.positions - start[:, None]) // block_size
        ),
    )


def prompt_tail_masked(model: Policy, trajectories: list[Trajectory], block_size: int) -> Views:
    views = views_of(model, trajectories, block_size)
    length = torch.zeros(len(views.input_ids), dtype=torch.int64)
    length[views.row] = torch.tensor([len(trajectory.prompt_ids) for trajectory in trajectories])[
        views.source
    ]
    in_tail = (views.layout.positions < length[:, None]) & (
        views.layout.positions >= length[:, None] // block_size * block_size
    )
    return replace(views, input_ids=views.input_ids.masked_fill(in_tail, MASK_ID))


def prompt_tail_dropped(model: Policy, trajectories: list[Trajectory], block_size: int) -> Views:
    cut = [
        replace(t, prompt_ids=t.prompt_ids[: len(t.prompt_ids) // block_size * block_size])
        for t in trajectories
    ]
    return views_of(model, cut, block_size)


def other_shift(model: Policy, trajectories: list[Trajectory], block_size: int) -> Views:
    views = views_of(model, trajectories, block_size)
    return replace(views, column=views.column + (1 if model.family.shift else -1))


def positions_of_the_layout(
    model: Policy, trajectories: list[Trajectory], block_size: int
) -> Views:
    views = views_of(model, trajectories, block_size)
    columns = torch.arange(views.input_ids.shape[1]).expand_as(views.input_ids)
    return replace(views, layout=replace(views.layout, positions=columns))


def padding_seen(model: Policy, trajectories: list[Trajectory], block_size: int) -> Views:
    views = views_of(model, trajectories, block_size)
    return replace(views, layout=replace(views.layout, streams=views.layout.streams.clamp(min=0)))


def later_steps_shown(model: Policy, trajectories: list[Trajectory], block_size: int) -> Views:
    return views_of(
        model,
        [replace(t, step_map=t.step_map.max() + 1 - t.step_map) for t in trajectories],
        block_size,
    )


WRONG_FOR_BOTH: list[Wrong] = [
    prompt_tail_masked,
    prompt_tail_dropped,
    other_shift,
    padding_seen,
    later_steps_shown,
]
WRONG_FOR_BLOCKS: list[Wrong] = [
    grid_shifted_by_one,
    grid_that_starts_at_the_response,
    positions_of_the_layout,
]
MISTAKES = [
    (family, wrong)
    for family in RULES
    for wrong in WRONG_FOR_BOTH
    + (WRONG_FOR_BLOCKS if FAMILIES[family].attention == "block_causal" else [])
]


def unfinished_grid(family: str) -> list[Trajectory]:
    """Seven responses whose prompts (of unequal lengths) end inside a block of four."""
    trajectories = sample(
        MODELS[family],
        END_IDS,
        tiny_requests([5, 6, 7, 9, 10, 11, 3]),
        settings_for(4, "static", 0.7, "none"),
    )
    assert (
        replay_error(MODELS[family], trajectories, views_of(MODELS[family], trajectories, 4), 0.7)
        < TOLERANCE
    )
    return trajectories


@pytest.mark.parametrize(
    ("family", "wrong"), MISTAKES, ids=lambda value: getattr(value, "__name__", value)
)
def test_the_law_sees(family, wrong):
    trajectories = unfinished_grid(family)
    assert (
        replay_error(MODELS[family], trajectories, wrong(MODELS[family], trajectories, 4), 0.7)
        > 0.1
    )


@pytest.mark.parametrize("family", RULES)
def test_the_law_sees_a_temperature_that_is_ignored(family):
    trajectories = unfinished_grid(family)
    assert (
        replay_error(MODELS[family], trajectories, views_of(MODELS[family], trajectories, 4), 1.0)
        > 0.1
    )


@pytest.mark.parametrize("family", RULES)
def test_the_law_sees_another_block_size(family):
    """Views of blocks of two cannot replay decisions made in blocks of four; full attention has no
    grid to get wrong."""
    error = replay_error(
        MODELS[family],
        unfinished_grid(family),
        views_of(MODELS[family], unfinished_grid(family), 2),
        0.7,
    )
    assert error < TOLERANCE if MODELS[family].family.attention == "full" else error > 0.1
