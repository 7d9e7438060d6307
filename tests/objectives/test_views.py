"""Laws of the views that noise makes and of StepMerge's, over random trajectories of both attention
rules."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import MASK_ID, RULES, sharp_model
from tests.trajectories import EVERYTHING, cases, make_trajectory, ordered
from tracerl.errors import DataError
from tracerl.models.families import FAMILIES
from tracerl.models.masks import DOCUMENT
from tracerl.objectives.likelihood import token_logprobs
from tracerl.objectives.plans import (
    CANDIDATE,
    MASKED,
    PREDICTED,
    VISIBLE,
    Masking,
    blockwise_plan,
    causal_plan,
    coupled_plan,
    full_mask_plan,
    segment_plan,
    trace_plan,
)
from tracerl.objectives.view_rows import num_layout_tokens
from tracerl.objectives.views import build_views, max_row_tokens, split_plan
from tracerl.seeds import generator_for
from tracerl.training.trainer import pack_concatenated


@given(case=cases(), seed=st.integers(0, 99), weighting=st.sampled_from(["uniform", "inverse_t"]))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_a_coupled_copy_is_the_exact_complement_in_every_block(case, seed, weighting):
    family, batch, block_size = case
    for trajectory in batch:
        plan = coupled_plan(
            trajectory,
            Masking(
                block_size=block_size,
                family=FAMILIES[family],
                noise=(0.1, 0.9),
                weighting=weighting,
            ),
            generator_for(seed, "coupled"),
        )
        masked = plan.states != VISIBLE
        assert (masked[0] ^ masked[1]).all()
        assert (
            (plan.states == PREDICTED).sum(0)
            == (np.arange(len(trajectory.response_ids)) < trajectory.num_tokens)
        ).all()
        if weighting == "inverse_t":  # 1/w and 1/w' are t and 1 - t
            np.testing.assert_allclose((1 / plan.weights).sum(0), 1.0, rtol=1e-5)
        else:
            assert (plan.weights == 1).all()
        views = build_views([trajectory], [plan], block_size, FAMILIES[family], MASK_ID)
        assert sorted(views.token.tolist()) == list(range(trajectory.num_tokens))


@given(case=cases(), rate=st.sampled_from([0.0, 0.5, 1.0]), seed=st.integers(0, 99))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_a_masked_response_shows_nobody_a_token_of_its_block_and_masks_the_prompt_at_its_rate(
    case, rate, seed
):
    family, batch, block_size = case
    record = FAMILIES[family]
    trajectory = batch[0]
    plan = full_mask_plan(trajectory, rate, generator_for(seed, "prompt"))
    views = build_views([trajectory], [plan], block_size, record, MASK_ID)
    assert sorted(views.token.tolist()) == list(range(trajectory.num_tokens))
    prompt = len(trajectory.prompt_ids)
    visible, positions = views.layout.mask(), views.layout.positions
    for row, column, token in zip(views.row, views.column, views.token, strict=True):
        seen = visible[row, column]
        own = (
            (views.layout.streams[row] == views.layout.streams[row, column])
            if record.attention == "block_causal"
            else seen
        )
        block_start = (prompt + int(token)) // block_size * block_size
        if record.crosses_edges and block_start == prompt + int(token):
            own &= positions[row] >= block_start  # it sees the clean blocks before its own
        answers = views.input_ids[row][seen & own & (positions[row] >= prompt)]
        assert (answers == MASK_ID).all()
        if rate in (0.0, 1.0):
            question = views.input_ids[row][seen & (positions[row] < prompt)].tolist()
            wanted = (
                [MASK_ID] * len(question)
                if rate
                else trajectory.prompt_ids[: len(question)].tolist()
            )
            assert sorted(question) == sorted(wanted)
        assert int(token) < trajectory.num_tokens


# StepMerge's segments


@given(case=cases(), shrink=st.integers(1, 4), seed=st.integers(0, 99))
@settings(derandomize=True, deadline=None, max_examples=150)
def test_all_segments_together_predict_every_trainable_token_once_and_none_crosses_a_rollout_block(
    case, shrink, seed
):
    family, batch, block_size = case
    record = FAMILIES[family]
    for trajectory in batch:
        plan = segment_plan(
            trajectory,
            block_size,
            record,
            shrink,
            EVERYTHING,
            False,
            generator_for(seed, "segments"),
        )
        assert (plan.states == PREDICTED).sum(0).tolist() == [
            int(j < trajectory.num_tokens) for j in range(len(trajectory.step_map))
        ]
        assert (plan.states != CANDIDATE).all()
        first = len(trajectory.prompt_ids) if record.attention == "block_causal" else 0
        live = (first + np.arange(len(trajectory.step_map))) // trajectory.block_size
        views = build_views([trajectory], [plan], block_size, record, MASK_ID)
        for group in views.group.unique():
            tokens = views.token[views.group == group].numpy()
            assert len(np.unique(live[tokens])) == 1
            assert len(np.unique(trajectory.step_map[tokens])) <= shrink


@given(case=cases(), seed=st.integers(0, 99))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_segments_of_one_step_are_the_views_of_the_trace(case, seed):
    family, batch, _ = case
    for trajectory in batch:
        size, record = trajectory.block_size, FAMILIES[family]
        segments = segment_plan(
            trajectory, size, record, 1, EVERYTHING, False, generator_for(seed, "segments")
        )
        trace = trace_plan(trajectory, size, record, 1)
        if record.attention == "block_causal" or len(np.unique(trajectory.step_map)) == len(
            trajectory.step_map
        ):
            np.testing.assert_array_equal(segments.states, trace.states)


@given(case=cases(), shrink=st.integers(1, 3), segments=st.integers(1, 3), seed=st.integers(0, 99))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_the_drawn_segments_are_whole_hold_a_trainable_token_and_are_as_many_as_asked_for(
    case, shrink, segments, seed
):
    family, batch, block_size = case
    record = FAMILIES[family]
    for trajectory in batch:
        every = segment_plan(
            trajectory,
            block_size,
            record,
            shrink,
            EVERYTHING,
            False,
            generator_for(seed, "segments"),
        )
        some = segment_plan(
            trajectory, block_size, record, shrink, segments, False, generator_for(seed, "segments")
        )
        whole = build_views([trajectory], [every], block_size, record, MASK_ID)
        part = build_views([trajectory], [some], block_size, record, MASK_ID)
        sets = {frozenset(whole.token[whole.group == g].tolist()) for g in whole.group.unique()}
        drawn = {frozenset(part.token[part.group == g].tolist()) for g in part.group.unique()}
        assert drawn <= sets
        assert len(drawn) == min(segments, len(sets))


@given(case=cases(), shrink=st.integers(1, 3), seed=st.integers(0, 99))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_the_rivals_of_a_token_are_the_masked_positions_of_its_live_block_from_its_own_place_on(
    case, shrink, seed
):
    family, batch, block_size = case
    record = FAMILIES[family]
    batch = [ordered(trajectory, seed) for trajectory in batch]
    rng = generator_for(seed, "segments")
    plans = [
        segment_plan(trajectory, block_size, record, shrink, EVERYTHING, True, rng)
        for trajectory in batch
    ]
    views = build_views(batch, plans, block_size, record, MASK_ID)
    candidates = views.candidates
    assert candidates is not None
    for i, source in enumerate(views.source.tolist()):
        trajectory, token = batch[source], int(views.token[i])
        order = list(
            zip(trajectory.step_map.tolist(), trajectory.order_in_step.tolist(), strict=True)
        )
        first = len(trajectory.prompt_ids) if record.attention == "block_causal" else 0
        live = (first + np.arange(len(order))) // trajectory.block_size
        forced = (first + np.arange(len(order))) % trajectory.block_size == 0
        forced &= record.crosses_edges
        wanted = sorted(
            j
            for j in range(len(order))
            if live[j] == live[token] and order[j] >= order[token] and not forced[j]
        )
        if forced[token]:
            wanted = [token]
        at = int(candidates.chosen[i])
        mine = (candidates.choice_set == candidates.choice_set[at]) & (
            candidates.place >= candidates.place[at]
        )
        positions = (
            views.layout.positions[candidates.row[mine], candidates.column[mine]] + record.shift
        )
        assert sorted((positions - len(trajectory.prompt_ids)).tolist()) == wanted
        assert (candidates.row[at], candidates.column[at]) == (views.row[i], views.column[i])
        if record.shift == 0:
            assert (views.input_ids[candidates.row[mine], candidates.column[mine]] == MASK_ID).all()


def test_a_trajectory_without_an_order_is_refused_where_the_order_is_scored():
    with pytest.raises(DataError, match="plackett_luce"):
        segment_plan(
            make_trajectory(2, [1, 1], 2, 2),
            2,
            FAMILIES["sdar"],
            1,
            1,
            True,
            generator_for(1, "segments"),
        )


def test_hidden_predicted_and_read_are_told_apart():
    """Four tokens of one block, two steps, the end token third: the first view reads what competes
    and predicts its own step."""
    trajectory = make_trajectory(4, [2, 1, 2, 1], 3, 4, order=[2, 1, 1, 2])
    plan = segment_plan(
        trajectory, 4, FAMILIES["sdar"], 1, EVERYTHING, True, generator_for(1, "segments")
    )
    assert plan.states.tolist() == [
        [CANDIDATE, PREDICTED, CANDIDATE, CANDIDATE],
        [PREDICTED, VISIBLE, PREDICTED, VISIBLE],
    ]
    assert plan.order is not None
    assert plan.order.tolist() == [3, 0, 2, 1]
    without = segment_plan(
        trajectory, 4, FAMILIES["sdar"], 1, EVERYTHING, False, generator_for(1, "segments")
    )
    assert without.states.tolist() == [
        [MASKED, PREDICTED, MASKED, MASKED],
        [PREDICTED, VISIBLE, PREDICTED, VISIBLE],
    ]


# Several documents in a row


SHIFTED = [name for name, family in RULES.items() if family.shift]


@pytest.mark.parametrize(
    ("family", "causal"),
    [*((name, False) for name in RULES), *((name, True) for name in SHIFTED)],
)
def test_documents_that_share_a_row_see_nothing_of_each_other_and_compute_the_same(family, causal):
    model, record = sharp_model(family, torch.float64), FAMILIES[family]
    rng = generator_for(1, "documents")
    batch = [
        replace(make_trajectory(p, list(range(1, r + 1)), r, 4), canvas_length=p + r)
        for p, r in ((3, 5), (2, 6), (4, 4), (1, 3))
    ]
    batch = [
        replace(t, response_ids=rng.integers(3, 32, len(t.response_ids)).astype(np.int32))
        for t in batch
    ]
    plans = [
        causal_plan(t)
        if causal
        else coupled_plan(
            t, Masking(block_size=4, family=record, noise=(0.2, 0.8), weighting="uniform"), rng
        )
        for t in batch
    ]
    apart = build_views(batch, plans, 4, record, MASK_ID)
    shared = build_views(batch, plans, 4, record, MASK_ID, row_tokens=40)
    assert len(shared.input_ids) < len(apart.input_ids)
    assert shared.input_ids.shape[1] <= 40
    assert torch.equal(
        shared.layout.positions[shared.row, shared.column],
        apart.layout.positions[apart.row, apart.column],
    )
    documents = shared.layout.streams // DOCUMENT
    seen = shared.layout.mask()
    assert not (seen & (documents.unsqueeze(-1) != documents.unsqueeze(-2))).any()
    assert int(documents.max()) >= 1
    outcomes = []
    for views in (apart, shared):
        logprobs = token_logprobs(model, views, 1.0)
        outcomes.append(
            (logprobs.detach(), torch.autograd.grad(logprobs.sum(), list(model.parameters())))
        )
    torch.testing.assert_close(outcomes[0][0], outcomes[1][0], rtol=0, atol=1e-11)
    for one, other in zip(outcomes[0][1], outcomes[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9 * max(1.0, float(one.abs().max())))


def test_micro_batches_of_documents_hold_every_index_once_and_no_more_tokens_than_allowed():
    lengths = [int(length) for length in generator_for(1, "together").integers(1, 50, size=60)]
    for most in (1, 50, 128):
        batches = pack_concatenated(lengths, most)
        assert [i for batch in batches for i in batch] == list(range(60))
        assert all(len(batch) == 1 or sum(lengths[i] for i in batch) <= most for batch in batches)


@torch.no_grad()
def test_a_masked_prompt_is_not_shared_between_responses():
    """Two responses to one prompt of which different tokens are masked, in rows that may share
    prompts: the log-probabilities are those of separate rows."""
    model = sharp_model("sdar", torch.float64)
    batch = [
        make_trajectory(8, [1, 2, 3, 4], 4, 4),
        replace(
            make_trajectory(8, [1, 2, 3, 4], 4, 4), response_ids=np.array([9, 8, 7, 6], np.int32)
        ),
    ]
    plans = [
        full_mask_plan(trajectory, 0.5, generator_for(seed, "prompt"))
        for seed, trajectory in enumerate(batch)
    ]
    first, second = (plan.masked_prompt for plan in plans)
    assert first is not None
    assert second is not None
    assert (first != second).any()
    apart = build_views(batch, plans, 4, model.family, MASK_ID)
    shared = build_views(batch, plans, 4, model.family, MASK_ID, group_tokens=100)
    torch.testing.assert_close(
        token_logprobs(model, shared, 1.0), token_logprobs(model, apart, 1.0), rtol=0, atol=1e-12
    )
    clean = [full_mask_plan(trajectory, 0.0, generator_for(1, "prompt")) for trajectory in batch]
    together = build_views(batch, clean, 4, model.family, MASK_ID, group_tokens=100)
    assert len(together.input_ids) == 1, "prompts that are not masked are shared"


def test_a_blockwise_view_masks_between_its_two_shares_of_a_block_both_included():
    trajectory = make_trajectory(4, [1, 2, 3, 4], 4, 4)
    counts = set()
    for seed in range(60):
        plan = blockwise_plan(trajectory, FAMILIES["sdar"], (0.5, 1.0), generator_for(seed, "b"))
        counts.add(int((plan.states == PREDICTED).sum()))
    assert counts == {2, 3, 4}
    plan = blockwise_plan(trajectory, FAMILIES["sdar"], (0.75, 0.75), generator_for(1, "b"))
    assert plan.weights[plan.states == PREDICTED].tolist() == pytest.approx([4 / 3] * 3)


@given(case=cases(), shrink=st.integers(1, 3), limit=st.integers(1, 200))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_a_split_plan_predicts_the_same_in_rows_within_the_limit_or_of_a_single_view(
    case, shrink, limit
):
    name, batch, block_size = case
    family = FAMILIES[name]
    trajectory = batch[0]
    plan = trace_plan(trajectory, block_size, family, shrink)
    parts = split_plan(trajectory, plan, block_size, family, limit)
    assert (np.concatenate([part.states for part in parts]) == plan.states).all()
    for part in parts:
        length = num_layout_tokens(trajectory, part, block_size, family)
        views = build_views([trajectory], [part], block_size, family, MASK_ID)
        assert views.input_ids.numel() == length
        assert length <= limit or len(part.states) == 1
        longest = max_row_tokens(
            family,
            block_size,
            trajectory.canvas_length - len(trajectory.response_ids),
            len(trajectory.response_ids),
        )
        assert len(part.states) > 1 or length <= longest
    whole = num_layout_tokens(trajectory, plan, block_size, family)
    assert len(parts) == 1 or whole > limit
