"""Every family is put to the laws once: what training recomputes is what the sampler computed, a
row depends on its own request only, and the exact cache changes nothing.

The laws themselves are tested in test_replay.py and test_equivalence.py, with one family of each
pair of attention and shift.
"""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from tests.tiny import MASK_ID, RULES, sharp_model, tiny_requests, tiny_sampler
from tracerl.errors import DataError
from tracerl.models.families import FAMILIES
from tracerl.objectives.likelihood import token_and_order_logprobs, token_logprobs
from tracerl.objectives.plans import segment_plan, trace_plan
from tracerl.objectives.view_rows import num_layout_tokens
from tracerl.objectives.views import build_views
from tracerl.sampling.sampler import sample
from tracerl.seeds import generator_for
from tracerl.settings.sampling import Edit, Sampler
from tracerl.types import Trajectory

OTHERS = [name for name in FAMILIES if name not in RULES]
PROMPT_LENGTHS = [3, 8, 1, 13, 6, 9, 4]
END = (1, 2, 3, 4)


def settings_for(cache: str) -> Sampler:
    """Responses of 10 tokens at most: two blocks and a half."""
    return tiny_sampler(
        remasking="dynamic", threshold=0.4, temperature=0.7, cache=cache, max_new_tokens=10
    )


def sample_all(family: str, cache: str) -> list[Trajectory]:
    model = sharp_model(family, torch.float64)
    return sample(model, END, tiny_requests(PROMPT_LENGTHS), settings_for(cache))


def assert_same(one: Trajectory, other: Trajectory, without: tuple[str, ...] = ()) -> None:
    for name, value in asdict(one).items():
        if name not in without:
            np.testing.assert_array_equal(value, getattr(other, name), err_msg=name)


@pytest.mark.parametrize("cache", ["none", "exact"])
@pytest.mark.parametrize("family", OTHERS)
@torch.no_grad()
def test_replayed_logprobs_equal_the_samplers_own(family, cache):
    model = sharp_model(family, torch.float64)
    trajectories = sample_all(family, cache)
    plans = [trace_plan(t, 4, model.family, shrink=1) for t in trajectories]
    views = build_views(trajectories, plans, 4, model.family, MASK_ID, row_tokens=200)
    recorded = [trajectories[i].logprobs[j] for i, j in zip(views.source, views.token, strict=True)]
    assert len(recorded) == sum(t.num_tokens for t in trajectories)
    replayed = token_logprobs(model, views, temperature=0.7)
    np.testing.assert_allclose(replayed.numpy(), recorded, atol=1e-5)
    assert len({t.num_tokens for t in trajectories}) > 1
    for trajectory, plan in zip(trajectories, plans, strict=True):
        alone = build_views([trajectory], [plan], 4, model.family, MASK_ID)
        assert num_layout_tokens(trajectory, plan, 4, model.family) == int(
            (alone.layout.streams >= 0).sum()
        )


@pytest.mark.parametrize("cache", ["none", "exact"])
@pytest.mark.parametrize("family", OTHERS)
def test_a_row_depends_on_its_own_request_only(family, cache):
    model = sharp_model(family, torch.float64)
    requests = tiny_requests(PROMPT_LENGTHS)
    for request, trajectory in zip(requests, sample_all(family, cache), strict=True):
        [alone] = sample(model, END, [request], settings_for(cache))
        assert_same(alone, trajectory)


@pytest.mark.parametrize("family", OTHERS)
def test_the_exact_cache_changes_nothing_but_the_number_of_forwards(family):
    for one, other in zip(sample_all(family, "none"), sample_all(family, "exact"), strict=True):
        assert_same(one, other, without=("logprobs", "filtered_logprobs", "num_forwards"))
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_response_is_as_long_as_its_canvas_says(family):
    """Ten new tokens after six in blocks of four: whole blocks, or a short last one."""
    model = sharp_model(family)
    [trajectory] = sample(model, [], tiny_requests([7]), tiny_sampler(max_new_tokens=10))
    length = len(trajectory.response_ids)
    if model.family.short_last_block:
        assert length == 10
    else:
        assert length == (13 if model.family.attention == "block_causal" else 12)
    assert trajectory.canvas_length == 7 + length


def test_the_first_token_of_a_block_is_a_step_of_its_own_where_a_family_crosses_edges():
    trajectories = sample_all("fast-dllm-v2", "exact")
    for trajectory in trajectories:
        position = len(trajectory.prompt_ids) + np.arange(len(trajectory.step_map))
        for at_edge in np.flatnonzero(position % 4 == 0):
            assert (trajectory.step_map == trajectory.step_map[at_edge]).sum() == 1
            in_block = position // 4 == position[at_edge] // 4
            assert trajectory.step_map[in_block].min() == trajectory.step_map[at_edge]


def test_every_pass_of_a_family_that_crosses_edges_denoises_but_the_prefill():
    """The pass that stores a block's keys commits the next block's first token."""
    for trajectory in sample_all("fast-dllm-v2", "exact"):
        steps = trajectory.num_denoising_forwards
        assert steps == len(np.unique(trajectory.step_map))
        assert trajectory.num_forwards == steps + (len(trajectory.prompt_ids) > 4)


@torch.no_grad()
def test_a_drawn_order_is_replayed_with_a_forced_choice_at_every_edge():
    model = sharp_model("fast-dllm-v2", torch.float64)
    settings = tiny_sampler(
        remasking="plackett_luce",
        order_score="max_logprob",
        order_temperature=0.5,
        steps_per_block=2,
    )
    trajectories = sample(model, END, tiny_requests(PROMPT_LENGTHS), settings)
    draw = generator_for(1, "segments")
    plans = [segment_plan(t, 4, model.family, 1, 99, True, draw) for t in trajectories]
    views = build_views(trajectories, plans, 4, model.family, MASK_ID)
    _, order = token_and_order_logprobs(model, views, 1.0, 0.5, "max_logprob")
    recorded, at_edge = [], []
    for i, j in zip(views.source.tolist(), views.token.tolist(), strict=True):
        logprobs = trajectories[i].order_logprobs
        assert logprobs is not None
        recorded.append(logprobs[j])
        at_edge.append((len(trajectories[i].prompt_ids) + j) % 4 == 0)
    np.testing.assert_allclose(order.numpy(), recorded, atol=1e-5)
    assert (order.numpy()[at_edge] == 0).all()
    assert np.std(recorded) > 0.3


EDITORS = [
    name
    for name, family in FAMILIES.items()
    if family.attention == "block_causal" and not family.crosses_edges
]


def sample_edited(family: str, cache: str, rows: slice, threshold: float) -> list[Trajectory]:
    """Some of the requests, tokens replaced where another is more probable than a threshold."""
    settings = settings_for(cache)
    edit = Edit(threshold=threshold, max_post_steps=3)
    requests = tiny_requests(PROMPT_LENGTHS)[rows]
    model = sharp_model(family, torch.float64)
    return sample(model, END, requests, settings.model_copy(update={"edit": edit}))


@pytest.mark.parametrize("family", EDITORS)
def test_replaced_tokens_depend_on_their_own_request_only_and_not_on_the_cache(family):
    batches = []
    for cache in ("none", "exact"):
        batches.append(sample_edited(family, cache, slice(None), 0.2))
        [alone] = sample_edited(family, cache, slice(3, 4), 0.2)
        assert_same(alone, batches[-1][3])
    num_edits = 0
    for request, one, other in zip(tiny_requests(PROMPT_LENGTHS), *batches, strict=True):
        assert_same(one, other, without=("logprobs", "filtered_logprobs", "num_forwards"))
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=1e-6)
        assert one.prompt_ids.tolist() == list(request.prompt_ids)
        assert one.edit_map is not None
        is_edited = one.edit_map > 0
        assert (one.edit_map[is_edited] > one.step_map[is_edited]).all()
        num_edits += int(is_edited.sum())
    assert num_edits > 5


def has_final_context(trajectory: Trajectory) -> np.ndarray:
    """Which tokens, bool [R], were never replaced and were committed when every token of their
    block that they saw was the final one."""
    assert trajectory.edit_map is not None
    steps, edits = trajectory.step_map, trajectory.edit_map
    block = (len(trajectory.prompt_ids) + np.arange(len(steps))) // 4
    is_seen = (block[:, None] == block) & (steps < steps[:, None])  # [R, token seen]
    is_replaced_later = is_seen & (edits >= steps[:, None])
    return (edits == 0) & ~is_replaced_later.any(1)


@pytest.mark.parametrize("cache", ["none", "exact"])
@pytest.mark.parametrize("family", EDITORS)
@torch.no_grad()
def test_tokens_that_saw_no_replaced_one_are_replayed_and_the_others_are_not(family, cache):
    """Blocks before are final when a block begins, so that edits there change nothing."""
    model = sharp_model(family, torch.float64)
    trajectories = sample_edited(family, cache, slice(None), 0.6)
    plans = [trace_plan(t, 4, model.family, shrink=1) for t in trajectories]
    views = build_views(trajectories, plans, 4, model.family, MASK_ID)
    pairs = list(zip(views.source.tolist(), views.token.tolist(), strict=True))
    is_final = np.array([has_final_context(trajectories[i])[j] for i, j in pairs])
    recorded = np.array([trajectories[i].logprobs[j] for i, j in pairs])
    errors = np.abs(token_logprobs(model, views, temperature=0.7).numpy() - recorded)
    assert errors[is_final].max() < 1e-5
    assert is_final.sum() > 10
    assert errors[~is_final].max() > 0.1


@pytest.mark.parametrize("family", ["llada", "dream", "fast-dllm-v2"])
def test_other_families_do_not_replace_tokens(family):
    sampler = tiny_sampler(edit={"threshold": 0.2, "max_post_steps": 3})
    with pytest.raises(DataError, match=r"sampler\.edit"):
        sample(sharp_model(family), END, tiny_requests([3]), sampler)


def test_sub_blocks_are_finished_from_left_to_right():
    model = sharp_model("sdar", torch.float64)
    settings = tiny_sampler(
        remasking="sub_blocks", threshold=0.5, block_size=8, steps_per_block=8, sub_block_size=4
    )
    for trajectory in sample(model, END, tiny_requests(PROMPT_LENGTHS), settings):
        position = len(trajectory.prompt_ids) + np.arange(len(trajectory.step_map))
        for first in np.unique(position // 4)[:-1]:
            ours = trajectory.step_map[position // 4 == first]
            assert ours.max() < trajectory.step_map[position // 4 == first + 1].min()
