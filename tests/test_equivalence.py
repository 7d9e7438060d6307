"""Two ways to compute one thing give one result: batches, caches, layouts, micro-batches and block
sizes.

Everything is computed in float64, where rounding lies far below the smallest difference that an
error makes.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import run_context
from tests.tiny import (
    APPROXIMATE,
    END_IDS,
    FULL_ATTENTION,
    MASK_ID,
    RULES,
    SAMPLERS,
    VOCAB_SIZE,
    sharp_model,
    tiny_requests,
    tiny_sampler,
)
from tests.trajectories import cases
from tracerl.models.families import FAMILIES
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import character_tokenizer
from tracerl.objectives import likelihood
from tracerl.objectives.likelihood import (
    prediction_logits,
    token_and_order_logprobs,
    token_logprobs,
)
from tracerl.objectives.losses import (
    denominator,
    kl_penalty,
    policy_gain,
    policy_loss,
    sft_loss,
    token_weights,
)
from tracerl.objectives.plans import (
    MASKED,
    PREDICTED,
    VISIBLE,
    Masking,
    Plan,
    random_plan,
    segment_plan,
    trace_plan,
)
from tracerl.objectives.view_rows import num_layout_tokens
from tracerl.objectives.views import Views, build_views, row_bundles
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import generator_for
from tracerl.settings.sampling import Exact, NoCache, Sampler
from tracerl.settings.training import Optimizer, RandomObjective, SftRound, TraceObjective
from tracerl.training.sft import train_sft
from tracerl.training.trainer import Trainer, pack_padded
from tracerl.types import Trajectory

MODELS = {family: sharp_model(family, torch.float64) for family in RULES}
BLOCK_CAUSAL = [name for name, family in RULES.items() if family.attention == "block_causal"]
REMASKING = ["static", "dynamic", "sequential", "entropy", "plackett_luce"]
PROMPT_LENGTHS = [3, 8, 1, 13, 6, 9, 4, 2, 11]


def assert_same(one: Trajectory, other: Trajectory, without: Sequence[str] = ()) -> None:
    """Equal field by field, bit for bit."""
    for name, value in asdict(one).items():
        if name not in without:
            np.testing.assert_array_equal(value, getattr(other, name), err_msg=name)


# Batch mates


@pytest.mark.parametrize("remasking", REMASKING)
@pytest.mark.parametrize(("family", "cache"), SAMPLERS)
def test_a_row_depends_on_its_own_request_only(family, cache, remasking):
    check_batch_mates(family, tiny_sampler(remasking=remasking, temperature=0.7, cache=cache))


@pytest.mark.parametrize(
    "settings_",
    [*APPROXIMATE.values(), {"guidance": 0.5, "cache": "prefix"}, {"schedule": "dream"}],
    ids=str,
)
@pytest.mark.parametrize("family", FULL_ATTENTION)
def test_a_row_depends_on_its_own_request_only_with_approximate_caches_too(family, settings_):
    """Rows are refreshed at different steps, and their windows are of different lengths."""
    check_batch_mates(family, tiny_sampler(remasking="dynamic", **settings_))


def test_a_guided_row_depends_on_its_own_request_only():
    check_batch_mates("sdar", tiny_sampler(guidance=0.5, cache="exact"))


def check_batch_mates(family: str, settings_: Sampler) -> None:
    model = MODELS[family]
    requests = tiny_requests(PROMPT_LENGTHS)
    alone = [sample(model, END_IDS, [request], settings_)[0] for request in requests]
    assert len({len(trajectory.response_ids) for trajectory in alone}) > 1, (
        "rows must finish at different times"
    )

    def companions(order: Sequence[int], max_rows: int) -> None:
        batch = sample(
            model,
            END_IDS,
            [requests[i] for i in order],
            settings_.model_copy(update={"max_rows": max_rows}),
        )
        for i, trajectory in zip(order, batch, strict=True):
            assert_same(alone[i], trajectory)

    in_order, reverse = range(len(requests)), range(len(requests))[::-1]
    companions(in_order, max_rows=7)  # two rows wait for a slot
    companions(in_order, max_rows=100)
    companions(reverse, max_rows=2)  # every slot is refilled several times
    companions([4, 1], max_rows=7)


@pytest.mark.parametrize(("family", "cache"), SAMPLERS)
def test_a_row_does_not_depend_on_the_lengths_of_its_companions(family, cache):
    model, settings_ = MODELS[family], tiny_sampler(cache=cache)
    request = tiny_requests([5])[0]
    alone = sample(model, END_IDS, [request], settings_)[0]
    for lengths in ([1, 1], [30, 2], [4, 8, 29]):
        others = tiny_requests(lengths, seed=2)
        assert_same(alone, sample(model, END_IDS, [*others, request], settings_)[-1])


@pytest.mark.parametrize("remasking", REMASKING)
@pytest.mark.parametrize("family", BLOCK_CAUSAL)
@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
def test_the_exact_cache_changes_nothing_but_the_number_of_forwards(family, remasking, block_size):
    model, requests = MODELS[family], tiny_requests(PROMPT_LENGTHS)
    settings_ = tiny_sampler(block_size=block_size, steps_per_block=block_size, remasking=remasking)
    without, with_cache = (
        sample(model, END_IDS, requests, settings_.model_copy(update={"cache": cache}))
        for cache in (NoCache(kind="none"), Exact(kind="exact"))
    )
    for one, other in zip(without, with_cache, strict=True):
        assert_same(one, other, without=["logprobs", "filtered_logprobs", "num_forwards"])
        # They are recorded in float32.
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(other.logprobs, other.filtered_logprobs)


def test_equal_requests_with_other_keys_give_other_responses():
    first, second = tiny_requests([5, 5])
    again = Request(first.prompt_ids, second.key)
    same, other = sample(MODELS["sdar"], END_IDS, [first, again], tiny_sampler())
    assert same.response_ids.tolist() != other.response_ids.tolist()


# Views: the partition law


def views_of(family: str, batch: Sequence[Trajectory], block_size: int, shrink: int) -> Views:
    plans = [trace_plan(trajectory, block_size, FAMILIES[family], shrink) for trajectory in batch]
    return build_views(batch, plans, block_size, FAMILIES[family], MASK_ID)


def canvas_at(trajectory: Trajectory, step: int, length: int) -> dict[int, int]:
    """Position -> id of the first `length` positions of the sampler's canvas, just before
    `step`."""
    canvas = [int(i) for i in trajectory.prompt_ids]
    canvas += [
        int(i) if s < step else MASK_ID
        for i, s in zip(trajectory.response_ids, trajectory.step_map, strict=True)
    ]
    canvas += [MASK_ID] * (length - len(canvas))
    return dict(enumerate(canvas[:length]))


@given(case=cases(), shrink=st.integers(1, 4))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_every_trainable_token_is_predicted_exactly_once_and_no_other_is(case, shrink):
    family, batch, block_size = case
    views = views_of(family, batch, block_size, shrink)
    predicted = sorted(zip(views.source.tolist(), views.token.tolist(), strict=True))
    assert predicted == [
        (i, j) for i, trajectory in enumerate(batch) for j in range(trajectory.num_tokens)
    ]
    assert views.targets.tolist() == [
        batch[i].response_ids[j] for i, j in zip(views.source, views.token, strict=True)
    ]
    assert views.weight.tolist() == [1.0] * len(predicted)


@given(case=cases(), shrink=st.integers(1, 4))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_every_predicted_token_is_masked_where_it_is_predicted_and_nobody_sees_its_answer(
    case, shrink
):
    family, batch, block_size = case
    views = views_of(family, batch, block_size, shrink)
    visible = views.layout.mask()
    for row, column, source, token in zip(
        views.row, views.column, views.source, views.token, strict=True
    ):
        position = len(batch[source].prompt_ids) + int(token)
        assert views.layout.positions[row, column] == position - FAMILIES[family].shift
        seen = visible[row, column]
        at_position = views.input_ids[row][seen & (views.layout.positions[row] == position)]
        # A token at an edge is predicted from the block before it, which does not see it at all.
        at_edge = FAMILIES[family].crosses_edges and position % block_size == 0
        assert at_position.tolist() == ([] if at_edge else [MASK_ID])


@given(case=cases())
@settings(derandomize=True, deadline=None, max_examples=200)
def test_a_view_shows_what_the_samplers_canvas_held_at_that_step(case):
    family, batch, block_size = case
    views = views_of(family, batch, block_size, shrink=1)
    visible, positions = views.layout.mask(), views.layout.positions
    for row, column, source, token in zip(
        views.row, views.column, views.source, views.token, strict=True
    ):
        trajectory = batch[source]
        end = (len(trajectory.prompt_ids) + int(token)) // block_size * block_size + block_size
        length = trajectory.canvas_length if FAMILIES[family].attention == "full" else end
        if FAMILIES[family].crosses_edges and end - block_size == positions[row, column] + 1:
            length = end - block_size  # predicted from the block before it
        seen = visible[row, column]
        shown = sorted(
            zip(positions[row][seen].tolist(), views.input_ids[row][seen].tolist(), strict=True)
        )
        assert shown == sorted(
            canvas_at(trajectory, int(trajectory.step_map[token]), length).items()
        )


@given(case=cases(), shrink=st.integers(1, 4))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_a_group_is_shrink_neighbouring_steps_of_one_block(case, shrink):
    family, batch, block_size = case
    views = views_of(family, batch, block_size, shrink)
    full = FAMILIES[family].attention == "full"
    wanted = []
    for source, token in zip(views.source.tolist(), views.token.tolist(), strict=True):
        trajectory = batch[source]
        blocks = (
            (len(trajectory.prompt_ids) + np.arange(len(trajectory.step_map)))
            // block_size
            * (not full)
        )
        steps = np.unique(trajectory.step_map[blocks == blocks[token]])
        wanted.append(
            (
                source,
                int(blocks[token]),
                int(np.searchsorted(steps, trajectory.step_map[token])) // shrink,
            )
        )
    groups = views.group.tolist()
    assert sorted(set(groups)) == list(range(len(set(wanted))))
    assert len(set(zip(groups, wanted, strict=True))) == len(set(wanted))


@given(case=cases(), shrink=st.integers(1, 4))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_the_number_of_views_and_of_layout_tokens_is_as_promised(case, shrink):
    family, batch, block_size = case
    record = FAMILIES[family]
    for trajectory in batch:
        plan = trace_plan(trajectory, block_size, record, shrink)
        views = build_views([trajectory], [plan], block_size, record, MASK_ID)
        most = trajectory.num_steps if record.attention == "full" else block_size
        assert 1 <= len(plan.states) <= -(-most // shrink)
        assert num_layout_tokens(trajectory, plan, block_size, record) == int(
            (views.layout.streams >= 0).sum()
        )


def test_random_masking_predicts_what_it_masks_and_weighs_every_token_one_on_average():
    """With weights 1/t a token's expected weight is 1 whatever the level, which makes the loss an
    evidence bound."""
    trajectory = replace(
        sample(MODELS["sdar"], END_IDS, tiny_requests([6]), tiny_sampler())[0], num_tokens=5
    )
    rng, draws = generator_for(1, "random masking"), 4000
    for record in RULES.values():
        total = np.zeros(len(trajectory.response_ids))
        for _ in range(draws):
            plan = random_plan(
                trajectory,
                Masking(block_size=4, family=record, noise=(0.2, 1.0), weighting="inverse_t"),
                rng,
            )
            states = plan.states[0]
            assert plan.states.shape[0] == 1
            assert (states[5:] != PREDICTED).all()
            assert (states[:5] != MASKED).all()
            total += np.where(states == PREDICTED, plan.weights[0], 0.0)
        np.testing.assert_allclose(total[:5] / draws, 1.0, atol=0.08)


# One clean stream for all views


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    """Equal to 1e-12 of the larger one's scale, and the same where forbidden ids have no logit."""
    finite = one.isfinite()
    assert torch.equal(one[~finite], other[~finite])
    one, other = one[finite], other[finite]
    scale = float(torch.maximum(one.abs().max(), other.abs().max()))
    assert scale > 0
    assert float((one - other).abs().max()) <= 1e-12 * scale


def in_token_order(views: Views) -> torch.Tensor:
    return torch.argsort(views.source * 1000 + views.token)


def gradients_of(model: Policy, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize(("block_size", "train_block_size"), [(2, 2), (4, 4), (8, 8), (4, 8)])
@pytest.mark.parametrize("family", BLOCK_CAUSAL)
def test_one_clean_stream_for_all_views_equals_a_row_for_each(family, block_size, train_block_size):
    model, record = MODELS[family], FAMILIES[family]
    settings_ = tiny_sampler(block_size=block_size, steps_per_block=block_size, remasking="dynamic")
    batch = sample(model, END_IDS, tiny_requests([3, 9, 6]), settings_)
    plans = [trace_plan(trajectory, train_block_size, record, shrink=1) for trajectory in batch]
    shared = build_views(batch, plans, train_block_size, record, MASK_ID)
    single = [
        (i, Plan(states=p.states[v : v + 1], weights=p.weights[v : v + 1]))
        for i, p in enumerate(plans)
        for v in range(len(p.states))
    ]
    separate = build_views(
        [batch[i] for i, _ in single],
        [plan for _, plan in single],
        train_block_size,
        record,
        MASK_ID,
    )
    separate = replace(separate, source=torch.tensor([i for i, _ in single])[separate.source])
    assert len(separate.input_ids) > len(shared.input_ids) == len(batch)

    logits, gradients = [], []
    for views in (shared, separate):
        order = in_token_order(views)
        rows = prediction_logits(model, views)[order]
        weights = torch.from_numpy(generator_for(1, "weights").standard_normal(tuple(rows.shape)))
        logits.append(rows.detach())
        gradients.append(gradients_of(model, (weights * rows.log_softmax(-1)).sum()))
    assert_close(*logits)
    for one, other in zip(*gradients, strict=True):
        assert_close(one, other)


# Accumulation


def splits(batch: Sequence[Trajectory], lengths: list[int]) -> list[list[list[int]]]:
    """The whole batch at once, in another order, one by one, and as micro-batches of two sizes."""
    everything = list(range(len(batch)))
    packings = [
        pack_padded(lengths, max_tokens) for max_tokens in (2 * max(lengths), 4 * max(lengths))
    ]
    assert all(sorted(i for part in packing for i in part) == everything for packing in packings)
    assert all(1 < len(packing) < len(batch) for packing in packings)
    return [[everything], [everything[::-1]], [[i] for i in everything], *packings]


def totals(
    model: Policy, loss_of: Callable[[list[int]], torch.Tensor], parts: list[list[int]]
) -> tuple[float, list[torch.Tensor]]:
    """Loss of an optimizer step over these micro-batches and the gradient it used, from the one
    optimisation loop."""
    optimizer = Optimizer(
        lr=1e-30, betas=(0.9, 0.99), weight_decay=0.0, clip_norm=1e30, warmup=0, decay=0.0
    )
    trainer = Trainer(model, optimizer, total_steps=10)
    stats = trainer.step(parts, lambda part: (loss_of(part), {}))
    return stats.loss, [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


@pytest.mark.parametrize("reduction", ["step", "token", "fixed"])
@pytest.mark.parametrize("family", RULES)
def test_micro_batches_and_row_order_do_not_change_the_policy_loss(family, reduction):
    model, record, block_size = sharp_model(family, torch.float64), FAMILIES[family], 4
    batch = sample(
        model, END_IDS, tiny_requests([3, 9, 6, 4, 12, 5, 7]), tiny_sampler(remasking="dynamic")
    )
    plans = [trace_plan(trajectory, block_size, record, shrink=2) for trajectory in batch]
    lengths = [
        num_layout_tokens(t, p, block_size, record) for t, p in zip(batch, plans, strict=True)
    ]
    divisor = denominator(reduction, len(batch), sum(t.num_tokens for t in batch), fixed_length=12)
    rng = generator_for(1, "policy")
    advantages = torch.from_numpy(rng.standard_normal(len(batch)))
    old, reference = (torch.from_numpy(rng.normal(-2.0, 0.5, (len(batch), 100))) for _ in range(2))

    def loss_of(part: list[int]) -> torch.Tensor:
        views = build_views(
            [batch[i] for i in part], [plans[i] for i in part], block_size, record, MASK_ID
        )
        source = torch.tensor(part)[views.source]
        at = source, views.token
        weights = token_weights(reduction, views.group, divisor)
        logprobs = token_logprobs(model, views, temperature=0.7)
        gain = policy_gain(
            "token", logprobs, old[at], advantages[source], (0.2, 0.3), source, views.weight
        )
        return policy_loss(gain, kl_penalty("k3", logprobs, reference[at]), weights, 0.05)

    results = [totals(model, loss_of, parts) for parts in splits(batch, lengths)]
    for (loss, gradients), (other_loss, other_gradients) in pairwise(results):
        assert loss == pytest.approx(other_loss, rel=1e-12)
        assert len(gradients) == len(list(model.parameters()))
        for one, other in zip(gradients, other_gradients, strict=True):
            assert_close(one, other)


@pytest.mark.parametrize("family", RULES)
def test_micro_batches_and_row_order_do_not_change_the_sft_loss(family):
    model, record, block_size = sharp_model(family, torch.float64), FAMILIES[family], 4
    batch = sample(model, END_IDS, tiny_requests([3, 9, 6, 4, 12, 5, 7]), tiny_sampler())
    rng = generator_for(1, "sft")
    plans = [
        random_plan(
            trajectory,
            Masking(block_size=block_size, family=record, noise=(0.1, 1.0), weighting="inverse_t"),
            rng,
        )
        for trajectory in batch
    ]
    lengths = [
        num_layout_tokens(t, p, block_size, record) for t, p in zip(batch, plans, strict=True)
    ]
    num_trainable = sum(trajectory.num_tokens for trajectory in batch)

    def loss_of(part: list[int]) -> torch.Tensor:
        views = build_views(
            [batch[i] for i in part], [plans[i] for i in part], block_size, record, MASK_ID
        )
        return sft_loss(token_logprobs(model, views, temperature=1.0), views.weight / num_trainable)

    results = [totals(model, loss_of, parts) for parts in splits(batch, lengths)]
    for (loss, gradients), (other_loss, other_gradients) in pairwise(results):
        assert loss == pytest.approx(other_loss, rel=1e-12)
        for one, other in zip(gradients, other_gradients, strict=True):
            assert_close(one, other)


@pytest.mark.parametrize(
    "objective",
    [
        RandomObjective(kind="random", noise=(0.0, 1.0), weighting="inverse_t"),
        TraceObjective(kind="trace", shrink=1),
    ],
    ids=lambda objective: objective.kind,
)
@pytest.mark.parametrize("family", RULES)
def test_sft_takes_the_same_step_whatever_the_micro_batch_size(family, objective, tmp_path):
    tokenizer = character_tokenizer()
    examples = {
        "set": sample(sharp_model(family), END_IDS, tiny_requests([3, 9, 6, 4, 12]), tiny_sampler())
    }
    ends, weights, losses = [], [], []
    for micro_batch_tokens in (1, 100, 10_000):
        model = sharp_model(family, torch.float64, vocab_size=tokenizer.vocab_size)
        round_ = SftRound(
            init="base",
            lora=None,
            data="traces",
            objective=objective,
            block_sizes={4: 0.5, 8: 0.5},
            tasks={"set": 1.0},
            num_steps=3,
            batch_size=6,
            micro_batch_tokens=micro_batch_tokens,
            max_length=64,
            save_every=1,
            optimizer=Optimizer(
                lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01, clip_norm=1.0, warmup=0, decay=0.0
            ),
        )
        folder = tmp_path / f"{micro_batch_tokens}"
        curve = train_sft(model, tokenizer, examples, round_, run_context(folder, stage="sft@test"))
        ends.append(len(curve))
        losses.append([row["loss"] for row in curve])
        weights.append(
            torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        )
    assert ends == [3, 3, 3]
    for loss, other_loss in pairwise(losses):
        assert loss == pytest.approx(other_loss, rel=1e-9)
    for one, other in pairwise(weights):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_packing_holds_every_index_once_and_never_exceeds_its_limit():
    lengths = [int(length) for length in generator_for(1, "packing").integers(1, 50, size=200)]
    for max_tokens in (1, 49, 50, 128, 10_000):
        batches = pack_padded(lengths, max_tokens)
        assert sorted(i for batch in batches for i in batch) == list(range(200))
        assert all(
            len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= max_tokens
            for batch in batches
        )


# Block enlargement


def enlarged() -> Trajectory:
    """Prompt 6, block size 4: response tokens 0, 1 | 2 3 4 5 | 6 7 8 9, at absolute positions 6 7 |
    8 ... 11 | 12 ... 15."""
    nothing = np.zeros(10, dtype=np.float32)
    return Trajectory(
        prompt_ids=np.arange(3, 9, dtype=np.int32),
        response_ids=np.arange(10, 20, dtype=np.int32),
        step_map=np.array([2, 1, 4, 3, 4, 5, 7, 6, 8, 6], dtype=np.int32),
        logprobs=nothing,
        filtered_logprobs=nothing,
        num_tokens=10,
        block_size=4,
        canvas_length=16,
        stop_reason="length",
    )


def states(groups: Sequence[int]) -> list[list[int]]:
    """States of a plan in which token j is predicted by view groups[j]."""
    return [
        [VISIBLE if g < view else PREDICTED if g == view else MASKED for g in groups]
        for view in range(max(groups) + 1)
    ]


def test_in_a_block_of_eight_the_groups_of_two_blocks_of_four_follow_the_recorded_order():
    plan = trace_plan(enlarged(), 8, FAMILIES["sdar"], shrink=1)
    # The first block of eight holds tokens 0, 1; the second one the steps 3, 4, 5 of its first
    # half, then 6, 7, 8 of its second.
    assert plan.states.tolist() == states([1, 0, 1, 0, 1, 2, 4, 3, 5, 3])


def test_in_a_block_of_eight_shrink_joins_neighbouring_steps_across_its_halves():
    plan = trace_plan(enlarged(), 8, FAMILIES["sdar"], shrink=2)
    assert plan.states.tolist() == states([0, 0, 0, 0, 0, 1, 2, 1, 2, 1])


def test_in_its_own_blocks_of_four_the_groups_restart_in_each():
    plan = trace_plan(enlarged(), 4, FAMILIES["sdar"], shrink=1)
    assert plan.states.tolist() == states([1, 0, 1, 0, 1, 2, 1, 0, 2, 0])


def test_full_attention_orders_the_whole_response_whatever_the_block_size():
    for name in ("llada", "dream"):
        for block_size in (4, 8):
            assert trace_plan(
                enlarged(), block_size, FAMILIES[name], shrink=1
            ).states.tolist() == states([1, 0, 3, 2, 3, 4, 6, 5, 7, 5])


def test_what_follows_the_end_token_keeps_its_place_but_is_never_predicted():
    plan = trace_plan(replace(enlarged(), num_tokens=4), 4, FAMILIES["sdar"], shrink=1)
    # The third view predicts nothing that counts.
    wanted = states([1, 0, 1, 0, 1, 2, 1, 0, 2, 0])[:2]
    wanted = [
        [MASKED if j >= 4 and state == PREDICTED else state for j, state in enumerate(view)]
        for view in wanted
    ]
    assert plan.states.tolist() == wanted


# One prompt for a group


@pytest.mark.parametrize("order_scored", [False, True])
@pytest.mark.parametrize("block_size", [2, 4])
def test_one_prompt_for_the_responses_of_a_group_equals_one_each(
    block_size: int, order_scored: bool
):
    """Whole prompt blocks are held once a row; the prompt's tail, which sees the response, is held
    by every response."""
    model, record = MODELS["sdar"], FAMILIES["sdar"]
    settings_ = tiny_sampler(
        block_size=block_size, steps_per_block=block_size, remasking="plackett_luce"
    )
    prompts = tiny_requests([9, 9, 9, 5, 5, 1])
    requests = [
        Request(prompts[i].prompt_ids, prompts[j].key) for j, i in enumerate([0, 0, 0, 3, 3, 5])
    ]
    batch = sample(model, END_IDS, requests, settings_)
    rng = generator_for(1, "segments")
    plans = [
        segment_plan(t, block_size, record, 1, 99, True, rng)
        if order_scored
        else trace_plan(t, block_size, record, 1)
        for t in batch
    ]
    alone = build_views(batch, plans, block_size, record, MASK_ID)
    most = (
        max(num_layout_tokens(t, p, block_size, record) for t, p in zip(batch, plans, strict=True))
        * 2
    )
    bundles, lengths = row_bundles(batch, plans, block_size, record, most)
    shared = build_views(batch, plans, block_size, record, MASK_ID, group_tokens=most)
    assert [i for bundle in bundles for i in bundle] == list(range(6))
    assert (shared.layout.streams >= 0).sum(1).tolist() == lengths
    assert max(lengths) <= most
    assert len(bundles) == len(shared.input_ids) < len(alone.input_ids)
    saved = sum(
        (len(batch[i].prompt_ids) // block_size * block_size)
        for bundle in bundles
        for i in bundle[1:]
    )
    assert sum(lengths) == int((alone.layout.streams >= 0).sum()) - saved
    found = []
    for views in (alone, shared):
        logprobs = token_logprobs(model, views, 0.7) if not order_scored else None
        if logprobs is None:
            logprobs = torch.stack(token_and_order_logprobs(model, views, 0.7, 0.5, "max_logprob"))
        found.append(
            [
                logprobs.detach(),
                *gradients_of(model, (logprobs * torch.arange(logprobs.shape[-1])).sum()),
            ]
        )
    for one, other in zip(*found, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logits_in_parts_equal_all_at_once(temperature: float, monkeypatch: pytest.MonkeyPatch):
    """And no table of logits is larger than allowed."""
    model, record, found, sizes = MODELS["sdar"], FAMILIES["sdar"], [], []
    batch = sample(model, END_IDS, tiny_requests([3, 9, 6]), tiny_sampler())
    views = build_views(batch, [trace_plan(t, 4, record, 1) for t in batch], 4, record, MASK_ID)
    read = likelihood._of_targets

    def watched(logits: torch.Tensor, targets: torch.Tensor, by: float) -> torch.Tensor:
        sizes.append(logits.numel())
        return read(logits, targets, by)

    monkeypatch.setattr(likelihood, "_of_targets", watched)
    for most in (1 << 24, 5 * VOCAB_SIZE):
        monkeypatch.setattr("tracerl.models.transformer.LOGITS_AT_ONCE", most)
        logprobs = token_logprobs(model, views, temperature)
        found.append(
            [
                logprobs.detach(),
                *gradients_of(model, (logprobs * torch.arange(len(logprobs))).sum()),
            ]
        )
    for one, other in zip(*found, strict=True):
        assert_close(one, other)
    assert sizes[0] == len(views.row) * VOCAB_SIZE
    assert max(sizes[1:]) == 5 * VOCAB_SIZE
