"""Which positions a step commits: schedules, the entropy bound, and the order that is drawn."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import (
    END_IDS,
    MASK_ID,
    PLAIN_SAMPLERS,
    RULES,
    chi_square_z,
    sharp_model,
    tiny_requests,
    tiny_sampler,
    with_order_module,
)
from tracerl.models.families import FAMILIES
from tracerl.models.masks import CLEAN, Layout, attention_blocks
from tracerl.models.transformer import predictor_positions
from tracerl.sampling.orders import (
    choose,
    dream_shares,
    order_logprobs,
    perturb,
    static_schedule,
)
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import key_for, uniforms

MODELS = {family: sharp_model(family) for family in RULES}
NOTHING = torch.zeros(1, dtype=torch.int64)


# Schedules


@pytest.mark.parametrize(
    ("block_size", "steps", "counts"),
    [(4, 4, [1, 1, 1, 1]), (4, 3, [2, 1, 1]), (5, 2, [3, 2]), (8, 1, [8]), (7, 4, [2, 2, 2, 1])],
)
def test_the_even_schedule_gives_the_remainder_to_the_first_steps(block_size, steps, counts):
    assert static_schedule(block_size, steps) == counts


def committed_by_dream(num_masked: int, steps: int) -> list[int]:
    """Positions that each step commits when nothing else does."""
    settings_ = tiny_sampler(block_size=num_masked, steps_per_block=steps, schedule="dream")
    masked, counts = torch.ones(1, num_masked, dtype=torch.bool), []
    for step in range(steps):
        commit = choose(torch.rand(1, num_masked), masked, torch.tensor([step]), settings_)
        counts.append(int(commit.sum()))
        masked = masked & ~commit
    assert not masked.any(), "the schedule ends with nothing masked"
    return counts


def test_the_rounded_schedule_rounds_what_is_left_half_to_even_and_commits_at_least_one():
    """10 tokens in 4 steps: 10/4, 8/3, 5/2, 3/1; 2 tokens in 4 steps, of which 2 are not needed."""
    for num_masked, counts in ((10, [2, 3, 2, 3]), (2, [1, 1])):
        settings_ = tiny_sampler(block_size=10, steps_per_block=4, schedule="rounded")
        masked = torch.arange(10)[None] < num_masked
        for step, count in enumerate(counts):
            chosen = choose(torch.arange(10.0)[None], masked, torch.tensor([step]), settings_)
            assert int(chosen.sum()) == count
            masked = masked & ~chosen
        assert not masked.any()


def test_dreams_schedule_may_commit_nothing_at_first_and_commits_the_rest_at_last():
    # Computed by hand: t = 1, 0.875125, 0.75025, ...; 16 * (1 - t1 / t0) = 1.998 -> 1; 15 * (1 - t2
    # / t1) = 2.14 -> 2; ...
    assert committed_by_dream(16, 8) == [1, 2, 2, 2, 2, 2, 2, 3]
    assert committed_by_dream(4, 4) == [0, 1, 1, 2]


@given(num_masked=st.integers(1, 64), data=st.data())
@settings(derandomize=True, deadline=None, max_examples=40)
def test_dreams_shares_are_those_of_a_linear_grid_of_noise_levels(num_masked, data):
    steps = data.draw(st.integers(1, num_masked))
    levels = [1 + (1e-3 - 1) * i / steps for i in range(steps + 1)]
    shares = [1 - levels[i + 1] / levels[i] for i in range(steps - 1)] + [1.0]
    np.testing.assert_allclose(dream_shares(steps), shares, atol=1e-6)
    committed_by_dream(num_masked, steps)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_step_that_commits_nothing_is_a_step(family):
    [trajectory] = sample(MODELS[family], (), tiny_requests([5]), tiny_sampler(schedule="dream"))
    assert sorted(trajectory.step_map.tolist()) == [2, 3, 4, 4, 6, 7, 8, 8, 10, 11, 12, 12]
    assert trajectory.num_denoising_forwards == trajectory.num_steps == 12


# The entropy bound

entropies = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.2, 0.4, 1.0, 3.0]), st.booleans()),
    min_size=5,
    max_size=5,
)


@given(row=entropies, bound=st.sampled_from([0.0, 0.25, 0.75, 5.0]))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_entropies_are_added_up_from_the_smallest_while_they_stay_under_the_bound(row, bound):
    settings_ = tiny_sampler(remasking="entropy", entropy_bound=bound)
    confidence, masked = (
        -torch.tensor([[e for e, _ in row]], dtype=torch.float64),
        torch.tensor([[m for _, m in row]]),
    )
    [commit] = choose(confidence, masked, NOTHING, settings_).tolist()
    ranked = sorted((i for i in range(5) if row[i][1]), key=lambda i: (row[i][0], i))
    wanted, total = ranked[:1], row[ranked[0]][0] if ranked else 0.0
    for i in ranked[1:]:
        total += row[i][0]
        if total >= bound:
            break
        wanted.append(i)
    assert [i for i, yes in enumerate(commit) if yes] == sorted(wanted)


@pytest.mark.parametrize(("family", "cache"), PLAIN_SAMPLERS)
def test_a_larger_entropy_bound_needs_fewer_steps(family, cache):
    steps = []
    for bound in (0.0, 4.0, 1e9):
        settings_ = tiny_sampler(
            remasking="entropy", entropy_bound=bound, confidence="raw", cache=cache
        )
        steps.append(
            sum(
                t.num_steps for t in sample(MODELS[family], (), tiny_requests([3, 5, 8]), settings_)
            )
        )
    num_tokens = 3 * 12 if FAMILIES[family].attention == "full" else 13 + 15 + 12
    num_blocks = 3 * 3 if FAMILIES[family].attention == "full" else 4 + 4 + 3
    assert num_blocks == steps[2] < steps[1] < steps[0] == num_tokens


# The drawn order

SCORES = torch.tensor([0.3, -1.0, 1.2, 0.0], dtype=torch.float64)


def exact_logprob(order: tuple[int, ...], selectable: list[int]) -> float:
    """log p(U) = sum_j [ v_{u_j} - logsumexp over what is selectable and not drawn yet ], written
    out."""
    left, total = list(selectable), 0.0
    for position in order:
        total += float(SCORES[position]) - np.log(sum(np.exp(float(SCORES[i])) for i in left))
        left.remove(position)
    return total


@pytest.mark.parametrize("selectable", [[0, 1, 2, 3], [1, 2, 3], [0, 2], [3]])
def test_probabilities_of_all_ordered_subsets_sum_to_one(selectable):
    masked = torch.tensor([[i in selectable for i in range(4)]])
    for k in range(1, len(selectable) + 1):
        total = 0.0
        for order in permutations(selectable, k):
            rest = [i for i in selectable if i not in order]
            values = torch.full((1, 4), 99.0)  # what is not masked would come first
            values[0, [*order, *rest]] = torch.arange(len(selectable), 0, -1.0)
            places, logprobs = order_logprobs(SCORES[None], values, masked)
            assert [int(places[0, i]) for i in order] == list(range(1, k + 1))
            mine = float(logprobs[0, list(order)].sum())
            assert mine == pytest.approx(exact_logprob(order, selectable), abs=1e-12)
            total += np.exp(mine)
            assert (places[~masked] == 0).all()
            assert (logprobs[~masked] == 0).all()
        assert total == pytest.approx(1.0, abs=1e-12)


def test_a_forced_choice_has_log_probability_zero():
    _, logprobs = order_logprobs(
        SCORES[None], SCORES[None], torch.tensor([[False, True, False, False]])
    )
    assert logprobs.tolist() == [[0.0] * 4]


def test_ordered_pairs_are_drawn_with_their_exact_probabilities():
    draws = 40_000
    numbers = uniforms(torch.tensor(key_for(1, "order")), torch.arange(draws * 4).view(draws, 4))
    order = perturb(SCORES.expand(draws, -1), numbers).argsort(dim=1, descending=True)[:, :2]
    pairs = list(permutations(range(4), 2))
    counts = np.array([int(((order[:, 0] == a) & (order[:, 1] == b)).sum()) for a, b in pairs])
    wanted = np.array([np.exp(exact_logprob(pair, [0, 1, 2, 3])) for pair in pairs])
    assert wanted.sum() == pytest.approx(1.0)
    assert chi_square_z(counts, draws * wanted) < 3.5


def test_the_extreme_uniform_numbers_keep_an_order():
    values = perturb(
        torch.zeros(1, 2, dtype=torch.float64),
        torch.tensor([[0.0, 1.0 - 2.0**-53]], dtype=torch.float64),
    )
    assert torch.isfinite(values).all()
    assert values[0, 0] < values[0, 1]


@pytest.mark.parametrize("order_score", ["max_logit", "max_logprob", "module"])
@pytest.mark.parametrize(("family", "cache"), PLAIN_SAMPLERS)
@torch.no_grad()
def test_a_recorded_order_replays(family, cache, order_score):
    """From one pass over the canvas before each step: scores at all masked positions of the live
    block, then the formula."""
    model = with_order_module(sharp_model(family, torch.float64))
    assert model.order is not None
    settings_ = tiny_sampler(
        remasking="plackett_luce",
        steps_per_block=2,
        cache=cache,
        order_score=order_score,
        temperature=0.7,
    )
    for trajectory in sample(model, END_IDS, tiny_requests([5, 8, 3]), settings_):
        assert trajectory.order_in_step is not None
        assert trajectory.order_logprobs is not None
        prompt, length = len(trajectory.prompt_ids), trajectory.canvas_length
        forced = 0
        for step in range(1, trajectory.num_steps + 1):
            mine = np.flatnonzero(trajectory.step_map == step)
            mine = mine[np.argsort(trajectory.order_in_step[mine])]
            assert trajectory.order_in_step[mine].tolist() == list(range(1, len(mine) + 1))
            canvas = torch.full((length,), MASK_ID)
            canvas[:prompt] = torch.from_numpy(trajectory.prompt_ids)
            known = np.flatnonzero(trajectory.step_map < step)
            canvas[prompt + known] = torch.from_numpy(trajectory.response_ids[known]).long()
            grid = prompt if model.family.attention == "full" else 0
            block = (prompt + mine[0] - grid) // 4
            open_ = [
                t
                for t in range(len(trajectory.response_ids))
                if (prompt + t - grid) // 4 == block and trajectory.step_map[t] >= step
            ]
            positions = torch.arange(length)[None]
            blocks = attention_blocks(positions, 4, model.family.attention)
            hidden = model(
                canvas[None], Layout(positions, blocks, torch.zeros_like(blocks) + CLEAN)
            )[0]
            hidden = hidden[predictor_positions(prompt + torch.tensor(open_), model.family)]
            logits = model.mask_logits_(model.logits(hidden))
            largest = (
                (logits if order_score == "max_logit" else logits.log_softmax(-1)).max(-1).values
            )
            values = (model.order(hidden) if order_score == "module" else largest) / 0.5
            scores = dict(zip(open_, values.tolist(), strict=True))
            for token in map(int, mine):
                wanted = scores[token] - np.log(sum(np.exp(v) for v in scores.values()))
                assert trajectory.order_logprobs[token] == pytest.approx(wanted, abs=1e-5)
                forced += len(scores) == 1
                assert (len(scores) > 1) or trajectory.order_logprobs[token] == 0.0
                del scores[token]
        assert forced > 0


@pytest.mark.parametrize("family", ["sdar", "llada", "dream"])
@torch.no_grad()
def test_whole_trajectories_are_drawn_with_their_enumerated_probabilities(family):
    """A block of two tokens of a vocabulary of five: which position first, its token, and the
    other's token given the first's."""
    model, count = sharp_model(family, vocab_size=5), 8_000
    settings_ = tiny_sampler(
        block_size=2,
        steps_per_block=2,
        max_new_tokens=2,
        remasking="plackett_luce",
        order_temperature=2.0,
        temperature=0.8,
        max_rows=count,
    )
    requests = [Request([3, 4], key_for(1, "trajectory", i)) for i in range(count)]
    trajectories = sample(model, (), requests, settings_)

    def logits_of(*tokens: int) -> torch.Tensor:
        canvas = torch.tensor([[3, 4, *tokens]])
        blocks = attention_blocks(torch.arange(4)[None], 2, model.family.attention)
        hidden = model(canvas, Layout(torch.arange(4)[None], blocks, torch.zeros_like(blocks)))[0]
        at = predictor_positions(torch.tensor([2, 3]), model.family)
        return model.mask_logits_(model.logits(hidden[at])).double()

    wanted, start = np.zeros((2, 5, 5)), logits_of(MASK_ID, MASK_ID)
    order = (start.log_softmax(-1).max(-1).values / 2.0).softmax(-1)
    for first in (0, 1):
        for token, p in enumerate((start[first] / 0.8).softmax(-1).tolist()):
            then = (
                (
                    logits_of(*((token, MASK_ID) if first == 0 else (MASK_ID, token)))[1 - first]
                    / 0.8
                )
                .softmax(-1)
                .numpy()
            )
            wanted[(first, token) if first == 0 else (first, slice(None), token)] = (
                float(order[first]) * p * then
            )
    assert wanted.sum() == pytest.approx(1.0)
    counts = np.zeros_like(wanted)
    for trajectory in trajectories:
        counts[
            int(trajectory.step_map[0] == 2), trajectory.response_ids[0], trajectory.response_ids[1]
        ] += 1
    rare = wanted * count < 5
    pooled = [np.append(values[~rare], values[rare].sum()) for values in (counts, wanted * count)]
    assert len(pooled[0]) > 10
    assert chi_square_z(*pooled) < 3.5


def test_no_order_is_recorded_where_none_is_drawn():
    [trajectory] = sample(MODELS["sdar"], END_IDS, tiny_requests([5]), tiny_sampler())
    assert trajectory.order_in_step is None
    assert trajectory.order_logprobs is None
