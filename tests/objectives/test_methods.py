"""Every method against a hand-computed case of three tokens, and the laws that hold for all of
them."""

import math
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
import torch
from torch import nn

from tests.rounds import METHOD_VALUES, METHODS, batch_of, round_of, update_on
from tests.tiny import MASK_ID, chi_square_z, sharp_model
from tests.trajectories import EVERYTHING, make_trajectory, responses
from tracerl.models.families import FAMILIES
from tracerl.models.policy import Policy
from tracerl.models.transformer import Read
from tracerl.objectives.likelihood import (
    plackett_luce_logprobs,
    token_and_order_logprobs,
    token_logprobs,
)
from tracerl.objectives.likelihood_units import num_units, unit_weights, units_of
from tracerl.objectives.losses import (
    clipped_objective,
    denominator,
    kl_penalty,
    policy_gain,
    token_weights,
)
from tracerl.objectives.methods import (
    ESTIMATORS,
    estimate_units,
    make_plan,
    score_predictions,
    wd1_weights,
)
from tracerl.objectives.plans import MASKED, PREDICTED, VISIBLE, Plan, segment_plan
from tracerl.objectives.view_rows import num_layout_tokens
from tracerl.objectives.views import Views, build_views
from tracerl.seeds import generator_for
from tracerl.settings.rounds import RlRound
from tracerl.settings.structure import tag_of
from tracerl.training.trainer import pack_padded
from tracerl.types import Trajectory

LLADA = FAMILIES["llada"]


def test_every_method_of_the_params_exists_and_is_told_its_own_keys_only():
    assert set(ESTIMATORS) == set(METHODS)
    assert {tag_of(method) for method in METHODS} == set(METHOD_VALUES)
    for method in METHODS:
        assert set(method.model_fields) - {"kind"} == set(METHOD_VALUES[str(tag_of(method))])
    assert {tag_of(method) for method in METHODS if method.unit == "response"} == {
        "wd1",
        "spg",
        "gdpo",
        "espo",
    }


# Three tokens, by hand. P = 1, steps 1 2 3 in the order of the positions, nothing ends.


def three() -> Trajectory:
    return make_trajectory(1, [1, 2, 3], 3, 4, order=[1, 1, 1])


def gains(
    settings: RlRound,
    plans: list[Plan],
    trajectories: list[Trajectory],
    new: list[float],
    old: list[float],
    advantages: list[float],
) -> tuple[list[float], list[float], list[float]]:
    """Estimates, gains and weights of the units when the views' predictions have these
    log-probabilities, in the views' order."""
    method = settings.method
    views = build_views(trajectories, plans, 4, LLADA, MASK_ID)
    units = units_of(method, views, [t.num_tokens for t in trajectories])
    per_unit = torch.tensor(advantages, dtype=torch.float64)[units.source]
    estimate, before = (
        estimate_units(method, torch.tensor(x, dtype=torch.float64), units, views, per_unit)
        for x in (new, old)
    )
    gain = policy_gain(
        settings.ratio, estimate, before, per_unit, settings.clip, units.source, units.weight
    )
    tokens = sum(num_units(method, p, t) for p, t in zip(plans, trajectories, strict=True))
    weights = unit_weights(
        settings.reduction, units, denominator(settings.reduction, len(trajectories), tokens, 10)
    )
    return estimate.tolist(), gain.tolist(), weights.tolist()


def plan_of(settings: RlRound, trajectory: Trajectory, seed: int = 1) -> Plan:
    return make_plan(trajectory, settings, LLADA, generator_for(seed, "plan"))


def test_tracerl_of_three_tokens():
    """One view a step; ratios e^0.1, e^-0.1, e^0.5 of which the last is clipped at 1.2; step means
    add up."""
    settings = round_of("tracerl", train_block_size=4)
    plan = plan_of(settings, three())
    assert plan.states.tolist() == [
        [PREDICTED, MASKED, MASKED],
        [VISIBLE, PREDICTED, MASKED],
        [VISIBLE, VISIBLE, PREDICTED],
    ]
    estimate, gain, weights = gains(
        settings, [plan], [three()], [-1.0, -2.0, -0.5], [-1.1, -1.9, -1.0], [2.0]
    )
    assert estimate == [-1.0, -2.0, -0.5]
    assert gain == pytest.approx([2 * math.exp(0.1), 2 * math.exp(-0.1), 2.4])
    assert weights == [1.0, 1.0, 1.0]
    sequence = round_of("tracerl", train_block_size=4, ratio="sequence", reduction="response")
    _, gain, weights = gains(
        sequence, [plan], [three()], [-1.0, -2.0, -0.5], [-1.1, -1.9, -1.0], [2.0]
    )
    assert gain == pytest.approx([2 * math.exp((0.1 - 0.1 + 0.5) / 3)] * 3)
    assert weights == pytest.approx([1 / 3] * 3)


def test_random_of_three_tokens():
    """Two copies; each prediction is a unit that counts one half, so that the step mean of each
    copy counts one half."""
    settings = round_of("random", train_block_size=4)
    states = np.array(
        [[PREDICTED, VISIBLE, PREDICTED], [VISIBLE, PREDICTED, VISIBLE]], dtype=np.int8
    )
    drawn = plan_of(settings, three())
    assert drawn.states.shape == (2, 3)
    assert (drawn.weights == 0.5).all()
    plan = Plan(states=states, weights=drawn.weights)
    estimate, gain, weights = gains(
        settings, [plan], [three()], [-1.0, -2.0, -0.5], [-1.0, -2.1, -0.5], [1.0]
    )
    assert estimate == [-1.0, -2.0, -0.5]
    assert gain == pytest.approx([1.0, math.exp(0.1), 1.0])
    assert weights == pytest.approx([0.25, 0.25, 0.5])


def test_coupled_of_three_tokens():
    settings = round_of("coupled", train_block_size=4, copies=1, reduction="token")
    plan = plan_of(settings, three())
    assert ((plan.states == PREDICTED).sum(0) == 1).all()
    estimate, gain, weights = gains(
        settings, [plan], [three()], [-1.0, -2.0, -0.5], [-1.0, -2.0, -0.7], [-1.0]
    )
    assert estimate == [-1.0, -2.0, -0.5]
    # A worse token is pushed down from above 1.2 as well.
    assert gain == pytest.approx([-1.0, -1.0, -math.exp(0.2)])
    assert weights == pytest.approx([1 / 3] * 3)


def test_diffucoder_of_three_tokens():
    """Full pass and a pair at t = 1/4 (masking token 0) and 3/4 (masking 1 and 2): (l + l / t) / 2
    and (l + l / (1 - t)) / 2."""
    settings = round_of("diffucoder", train_block_size=4, copies=1, reduction="response")
    assert plan_of(settings, three()).states.tolist()[0] == [PREDICTED] * 3
    states = np.array(
        [[PREDICTED] * 3, [PREDICTED, VISIBLE, VISIBLE], [VISIBLE, PREDICTED, PREDICTED]],
        dtype=np.int8,
    )
    weights = np.array([[1 / 2] * 3, [4 / 2] * 3, [(4 / 3) / 2] * 3], dtype=np.float32)
    new, old = [-1.0, -2.0, -3.0, -0.5, -1.5, -3.0], [-1.0, -2.0, -3.0, -0.5, -1.5, -3.03]
    estimate, gain, weight = gains(
        settings, [Plan(states=states, weights=weights)], [three()], new, old, [1.0]
    )
    assert estimate == pytest.approx(
        [(-1 - 0.5 * 4) / 2, (-2 - 1.5 * 4 / 3) / 2, (-3 - 3 * 4 / 3) / 2]
    )
    assert gain == pytest.approx([1.0, 1.0, math.exp(0.03 * 4 / 3 / 2)])
    assert weight == pytest.approx([1 / 3] * 3)


def test_the_weights_of_diffucoders_pairs_are_half_of_one_over_their_level():
    settings = round_of("diffucoder", train_block_size=4, copies=1)
    plan = plan_of(settings, three())
    np.testing.assert_allclose(0.5 / plan.weights[1] + 0.5 / plan.weights[2], 1.0, rtol=1e-6)


def test_diffu_grpo_of_three_tokens():
    settings = round_of("diffu_grpo", reduction="response")
    plan = plan_of(settings, three())
    assert plan.states.tolist() == [[PREDICTED] * 3]
    estimate, gain, weights = gains(
        settings, [plan], [three()], [-1.0, -2.0, -0.5], [-1.0, -2.1, -1.5], [3.0]
    )
    assert estimate == [-1.0, -2.0, -0.5]
    assert gain == pytest.approx([3.0, 3 * math.exp(0.1), 3.6])
    assert weights == pytest.approx([1 / 3] * 3)


def test_the_prompt_is_masked_at_its_rate_and_anew_for_every_draw():
    settings, long = (
        round_of("diffu_grpo", prompt_masking=0.5),
        make_trajectory(400, [1, 2, 3], 3, 4),
    )
    first, second = (
        plan_of(settings, long, 1).masked_prompt,
        plan_of(settings, long, 2).masked_prompt,
    )
    assert first is not None
    assert second is not None
    assert 150 < first.sum() < 250
    assert (first != second).any()


def test_wd1_of_a_group_of_three():
    """Advantages log 2, 0, -log 2: softmax (4, 2, 1) / 7 less (1, 2, 4) / 7, times 3; the sum of
    the tokens' log p under `fixed`."""
    weights = wd1_weights(np.log([2.0, 1.0, 0.5]))
    assert weights.tolist() == pytest.approx([9 / 7, 0.0, -9 / 7])
    settings = round_of("wd1", reduction="fixed")
    estimate, gain, weight = gains(
        settings,
        [plan_of(settings, three())],
        [three()],
        [-1.0, -2.0, -0.5],
        [0.0, 0.0, 0.0],
        [9 / 7],
    )
    assert [e * w for e, w in zip(estimate, weight, strict=True)] == pytest.approx([-3.5 / 10])
    assert gain == pytest.approx([9 / 7 * -3.5 / 3])


def test_spg_of_three_tokens():
    """Copies masking tokens {0, 1} (weight 3/2) and {1} (weight 3); b = 3/2; token 2 is hidden
    nowhere and is not bounded."""
    settings = round_of("spg", copies=2, bound_exponent=1.5, bound_share=0.5, reduction="step")
    plan = Plan(
        states=np.array(
            [[PREDICTED, PREDICTED, VISIBLE], [VISIBLE, PREDICTED, VISIBLE]], dtype=np.int8
        ),
        weights=np.array([[1.5] * 3, [3.0] * 3], np.float32),
    )
    new = [-1.0, -2.0, -0.5]
    lower = (1.5 * (-1 - 2) / 3 + 3 * -0.5 / 3) / 2
    zero, one = (
        math.log(1.5 * math.exp(-1.5)),
        math.log((1.5 * math.exp(-3) + 3 * math.exp(-0.75)) / 2),
    )
    upper = (zero + one) / (2 * 1.5)
    estimate, gain, weight = gains(settings, [plan], [three()], new, new, [2.0])
    assert estimate == pytest.approx([lower])
    assert gain == pytest.approx([2 * lower])
    assert weight == [1.0]
    assert gains(settings, [plan], [three()], new, new, [-1.0])[0] == pytest.approx(
        [0.5 * upper + 0.5 * lower]
    )
    alone = round_of("spg", copies=2, bound_exponent=1.5, bound_share=1.0)
    assert gains(alone, [plan], [three()], new, new, [-1.0])[0] == pytest.approx([upper])


def test_spgs_views_show_earlier_blocks_and_mask_later_ones():
    settings, long = (
        round_of("spg", copies=50, noise=[0.2, 0.8]),
        make_trajectory(3, list(range(1, 11)), 10, 4),
    )
    plan = plan_of(settings, long)
    for states, weights in zip(plan.states, plan.weights, strict=True):
        masked = states == PREDICTED
        first = int(np.flatnonzero(masked)[0]) // 4
        assert masked[(first + 1) * 4 :].all()
        inside = masked[first * 4 : (first + 1) * 4]
        assert 1 <= inside.sum() <= max(1, int(0.8 * len(inside)))
        assert weights[0] == pytest.approx(10 / masked.sum())
    assert len({int(np.flatnonzero(s == PREDICTED)[0]) // 4 for s in plan.states}) == 3


def test_gdpo_of_three_tokens():
    """Nodes of three-point Gauss quadrature on [0, 1]: 1/2 -+ sqrt(3/5)/2 and 1/2, shares 5/18,
    8/18, 5/18; ratio exp(delta / 3)."""
    settings = round_of("gdpo", copies=1, nodes=3, train_block_size=4)
    levels, shares = [0.5 - math.sqrt(0.15), 0.5, 0.5 + math.sqrt(0.15)], [5 / 18, 8 / 18, 5 / 18]
    drawn = plan_of(settings, three())
    np.testing.assert_allclose(
        drawn.weights[:, 0], [s / t for s, t in zip(shares, levels, strict=True)], rtol=1e-6
    )
    states = np.array(
        [
            [VISIBLE, PREDICTED, VISIBLE],
            [PREDICTED, VISIBLE, VISIBLE],
            [PREDICTED, PREDICTED, PREDICTED],
        ],
        dtype=np.int8,
    )
    new, old = [-1.0, -2.0, -0.5, -1.5, -0.25], [-1.2, -2.0, -0.5, -1.5, -0.25]
    estimate, gain, weight = gains(
        settings, [Plan(states=states, weights=drawn.weights)], [three()], new, old, [1.0]
    )
    w = [s / t for s, t in zip(shares, levels, strict=True)]
    assert estimate == pytest.approx(
        [(w[0] * -1.0 + w[1] * -2.0 + w[2] * (-0.5 - 1.5 - 0.25)) / 3], rel=1e-6
    )
    assert gain == pytest.approx([min(math.exp(w[0] * 0.2 / 3), 1.2)], rel=1e-6)
    assert weight == [1.0]


def test_espo_of_three_tokens():
    """A pair at t = 1/4 and 3/4: half of l_0 / t plus half of (l_1 + l_2) / (1 - t); k2 per token
    of the response."""
    settings = round_of("espo", copies=1, noise=[0.0, 1.0], train_block_size=4, kl="k2")
    plan = plan_of(settings, three())
    assert ((plan.states == PREDICTED).sum(0) == 1).all()
    np.testing.assert_allclose(0.5 / plan.weights[0] + 0.5 / plan.weights[1], 1.0, rtol=1e-6)
    states = np.array(
        [[PREDICTED, VISIBLE, VISIBLE], [VISIBLE, PREDICTED, PREDICTED]], dtype=np.int8
    )
    weights = np.array([[4 / 2] * 3, [(4 / 3) / 2] * 3], dtype=np.float32)
    estimate, gain, _ = gains(
        settings,
        [Plan(states=states, weights=weights)],
        [three()],
        [-1.0, -2.0, -0.5],
        [-1.1, -2.0, -0.5],
        [-1.0],
    )
    assert estimate == pytest.approx([(2 * -1.0 + (2 / 3) * -2.5) / 3], rel=1e-6)
    assert gain == pytest.approx([-math.exp(0.2 / 3)], rel=1e-6)


def test_step_merge_of_three_tokens():
    """Segments of two steps: tokens 0 and 1 from the empty canvas, token 2 after them; one ratio
    from the mean of the drawn."""
    settings = round_of(
        "step_merge", shrink=2, segments=EVERYTHING, train_block_size=4, reduction="response"
    )
    plan = plan_of(settings, three())
    assert plan.states.tolist() == [[PREDICTED, PREDICTED, MASKED], [VISIBLE, VISIBLE, PREDICTED]]
    _, gain, weights = gains(
        settings, [plan], [three()], [-1.0, -2.0, -0.5], [-1.1, -2.2, -0.5], [2.0]
    )
    assert gain == pytest.approx([2 * math.exp(0.3 / 3)] * 3)
    assert weights == pytest.approx([1 / 3] * 3)
    one = plan_of(round_of("step_merge", shrink=2, segments=1, train_block_size=4), three())
    assert (one.states == PREDICTED).sum() in (1, 2)


# The order of commitment


def test_the_order_of_three_positions_by_hand():
    """Scores log 2, log 1, log 4, drawn in the order 2, 0, 1: 4/7, then 2/3, then a forced
    choice."""
    ranked = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64).log()
    place, contest = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    assert plackett_luce_logprobs(ranked, contest, place).exp().tolist() == pytest.approx(
        [4 / 7, 2 / 3, 1.0]
    )
    assert float(plackett_luce_logprobs(ranked, contest, place)[2]) == 0.0
    both = plackett_luce_logprobs(
        torch.cat([ranked, ranked[:2]]),
        torch.tensor([0, 0, 0, 5, 5]),
        torch.tensor([0, 1, 2, 0, 1]),
    )
    assert both.exp().tolist() == pytest.approx([4 / 7, 2 / 3, 1.0, 2 / 3, 1.0])


def ordered_subset_probability(scores_: torch.Tensor, subset: tuple[int, ...]) -> float:
    rest = [i for i in range(len(scores_)) if i not in subset]
    ranked = scores_[[*subset, *rest]]
    factors = plackett_luce_logprobs(
        ranked, torch.zeros(len(scores_), dtype=torch.int64), torch.arange(len(scores_))
    )
    return float(factors[: len(subset)].sum().exp())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_probabilities_of_all_ordered_subsets_sum_to_one(size):
    scores_ = torch.from_numpy(generator_for(1, "scores").normal(0, 2, 5))
    assert sum(
        ordered_subset_probability(scores_, s) for s in permutations(range(5), size)
    ) == pytest.approx(1.0, abs=1e-12)


def test_gumbel_top_k_draws_ordered_subsets_with_these_probabilities():
    scores_, draws, rng = (
        torch.tensor([0.5, -0.3, 1.0, 0.0], dtype=torch.float64),
        40_000,
        generator_for(1, "gumbel"),
    )
    noisy = scores_.numpy() + rng.gumbel(size=(draws, 4))
    top = np.argsort(-noisy, axis=1)[:, :2]
    subsets = list(permutations(range(4), 2))
    counts = np.array([int(((top == s).all(1)).sum()) for s in subsets])
    expected = draws * np.array([ordered_subset_probability(scores_, s) for s in subsets])
    assert abs(chi_square_z(counts, expected)) < 4


class CanvasTable(nn.Module):
    """A model of full attention that is a table: the logits of every position for every canvas of
    three response positions.

    Vocabulary: the mask (never drawn), 1 and 2. Parameters: logits of token 1 and 2, [3 ** 3, 3,
    2]. Positions count from the prompt.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.table = nn.Parameter(
            torch.from_numpy(generator_for(seed, "table").normal(0, 1.0, (27, 3, 2)))
        )
        self.family, self.device = LLADA, torch.device("cpu")

    def forward(self, input_ids: torch.Tensor, layout: object) -> torch.Tensor:
        canvas = (input_ids[:, 1:] * torch.tensor([9, 3, 1])).sum(1)
        logits = torch.cat([torch.full((27, 3, 1), -1e9, dtype=torch.float64), self.table], 2)
        return torch.cat([torch.zeros(len(canvas), 1, 3, dtype=torch.float64), logits[canvas]], 1)

    def read_logits(self, hidden: torch.Tensor, targets: torch.Tensor, read: Read) -> torch.Tensor:
        return read(hidden, targets)


def all_trajectories() -> list[Trajectory]:
    """Every way to write three tokens of {1, 2}, one position a step."""
    return [
        replace(
            make_trajectory(1, [order.index(j) + 1 for j in range(3)], 3, 3, order=[1, 1, 1]),
            response_ids=np.array(tokens, dtype=np.int32),
        )
        for order in permutations(range(3))
        for tokens in product((1, 2), repeat=3)
    ]


def step_by_step(
    model: CanvasTable, trajectory: Trajectory, temperature: float, tau: float
) -> torch.Tensor:
    """log-probability of a trajectory, from the rules of sampling alone."""
    canvas, total = [0, 0, 0], torch.zeros((), dtype=torch.float64)
    for step in range(1, 4):
        position = int(np.flatnonzero(trajectory.step_map == step)[0])
        logits = model.table[canvas[0] * 9 + canvas[1] * 3 + canvas[2]]
        masked = [j for j in range(3) if canvas[j] == 0]
        token = int(trajectory.response_ids[position])
        total = total + (logits[position] / temperature).log_softmax(-1)[token - 1]
        total = (
            total + (logits[masked].max(-1).values / tau).log_softmax(-1)[masked.index(position)]
        )
        canvas[position] = token
    return total


def order_round() -> RlRound:
    return round_of(
        "mask_aware",
        shrink=1,
        segments=EVERYTHING,
        ratio="none",
        reduction="fixed",
        train_block_size=4,
    )


def log_likelihoods(
    model: CanvasTable, trajectories: list[Trajectory], settings: RlRound
) -> tuple[torch.Tensor, torch.Tensor, Views]:
    plans = [plan_of(settings, trajectory) for trajectory in trajectories]
    views = build_views(trajectories, plans, 4, LLADA, MASK_ID)
    tokens, order = score_predictions(model, views, settings)  # type: ignore[arg-type]
    assert order is not None
    return tokens, order, views


def test_with_one_step_segments_all_drawn_the_likelihood_is_that_of_the_trajectory():
    model, settings, everything = CanvasTable(1), order_round(), all_trajectories()
    tokens, order, views = log_likelihoods(model, everything, settings)
    total = torch.zeros(len(everything), dtype=torch.float64).index_add(
        0, views.source, tokens + order
    )
    wanted = torch.stack(
        [step_by_step(model, t, settings.sampler.temperature, 0.5) for t in everything]
    )
    torch.testing.assert_close(total, wanted, rtol=0, atol=1e-12)
    assert float(total.detach().exp().sum()) == pytest.approx(1.0, abs=1e-12), (
        "every way to write the response was enumerated"
    )


def test_the_expected_gradient_of_mask_aware_is_that_of_the_enumerated_expected_reward():
    """Reward: whether the middle token equals the first, plus a third of the last. One step a
    segment, all drawn, no ratio, `fixed`."""
    model, settings, everything = CanvasTable(2), order_round(), all_trajectories()
    rewards = torch.tensor(
        [float(t.response_ids[0] == t.response_ids[1]) + t.response_ids[2] / 3 for t in everything],
        dtype=torch.float64,
    )
    likelihood = torch.stack(
        [step_by_step(model, t, settings.sampler.temperature, 0.5) for t in everything]
    )
    exact = torch.autograd.grad((likelihood.exp() * rewards).sum(), model.table)[0]
    tokens, order, views = log_likelihoods(model, everything, settings)
    units = units_of(settings.method, views, [3] * len(everything))
    weights = (
        unit_weights("fixed", units, denominator("fixed", 1, 3, 1))
        * likelihood.detach().exp()[units.source]
    )
    gain = sum(
        policy_gain(
            "none", x, x.detach(), rewards[units.source], (0.2, 0.2), units.source, units.weight
        )
        for x in (tokens, order)
    )
    expected = torch.autograd.grad((weights * gain).sum(), model.table, retain_graph=True)[0]
    torch.testing.assert_close(expected, exact, rtol=1e-6, atol=1e-9)
    token_only = torch.autograd.grad(
        (
            weights
            * policy_gain(
                "none",
                tokens,
                tokens.detach(),
                rewards[units.source],
                (0.2, 0.2),
                units.source,
                units.weight,
            )
        ).sum(),
        model.table,
    )[0]
    assert float((token_only - exact).abs().max()) > 1e-2, (
        "without the order's term it is another gradient"
    )


class Counterexample(nn.Module):
    """The paper's appendix G: two positions, tokens 1 and 2. Token 1 has odds exp(theta_1) at the
    first position and exp(theta_3) at the second; theta_2 is added to both logits of the second,
    which no token's probability feels, but its largest logit does."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.2, 0.7, -0.9], dtype=torch.float64))
        self.family, self.device = LLADA, torch.device("cpu")

    def forward(self, input_ids: torch.Tensor, layout: object) -> torch.Tensor:
        a, b, c = self.theta
        zero, never = torch.zeros_like(a), torch.full_like(a, -1e9)
        rows = torch.stack(
            [
                torch.stack([never, zero, zero]),
                torch.stack([never, a, zero]),
                torch.stack([never, c + b, b]),
            ]
        )
        return rows.expand(len(input_ids), -1, -1)

    def read_logits(self, hidden: torch.Tensor, targets: torch.Tensor, read: Read) -> torch.Tensor:
        return read(hidden, targets)


def test_the_papers_counterexample_token_only_has_no_gradient_where_the_return_has_one():
    """One step commits one position; the reward is whether token 1 was written there. theta_2 moves
    which position is chosen."""
    model = Counterexample()
    everything = [
        replace(
            make_trajectory(1, [1, 2], 2, 2, order=[1, 1]),
            response_ids=np.array([1, 1], np.int32),
            step_map=np.array(steps, np.int32),
        )
        for steps in ([1, 2], [2, 1])
    ]
    plans = [
        segment_plan(t, 2, LLADA, 1, EVERYTHING, True, generator_for(1, "g")) for t in everything
    ]
    # The horizon is one step.
    plans = [replace(p, states=p.states[:1], weights=p.weights[:1]) for p in plans]
    views = build_views(everything, plans, 2, LLADA, MASK_ID)
    gradients = {}
    for score in ("max_logit", "max_logprob"):
        tokens, order = token_and_order_logprobs(model, views, 1.0, 0.5, score)  # type: ignore[arg-type]
        # Only writing token 1 is paid, so the other outcomes add nothing.
        probability = (tokens + order).detach().exp()
        exact = torch.autograd.grad((tokens + order).exp().sum(), model.theta, retain_graph=True)[0]
        token_only = torch.autograd.grad(
            (probability * tokens).sum(), model.theta, retain_graph=True
        )[0]
        full = torch.autograd.grad((probability * (tokens + order)).sum(), model.theta)[0]
        torch.testing.assert_close(full, exact, rtol=0, atol=1e-12)
        gradients[score] = float(token_only[1]), float(full[1])
    assert gradients["max_logit"][0] == 0.0
    assert abs(gradients["max_logit"][1]) > 0.05
    assert gradients["max_logprob"] == pytest.approx((0.0, 0.0), abs=1e-12)


# All methods


ADVANTAGES = [1.0, -0.5, 0.25, -1.5]


def loss_and_gradient(
    model: Policy, settings: RlRound, batch: list[Trajectory], advantages: list[float]
) -> tuple[float, torch.Tensor]:
    """The loss of one optimizer step after the policy has moved away from the one whose
    log-probabilities are the old ones."""
    reference = sharp_model(model.family.name, torch.float64, seed=3)
    prepared = update_on(model, settings, reference).prepare(batch_of(batch, advantages), 1, 0)
    moved = sharp_model(model.family.name, torch.float64, seed=1)
    with torch.no_grad():
        for parameter, other in zip(
            moved.parameters(),
            sharp_model(model.family.name, torch.float64, seed=2).parameters(),
            strict=True,
        ):
            parameter.lerp_(other, 0.01)
    total = torch.zeros((), dtype=torch.float64)
    for part in prepared:
        total = total + update_on(moved, settings).loss(part)[0]
    return float(total.detach()), torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(total, list(moved.parameters()))]
    )


@pytest.mark.parametrize("family", ["sdar", "dream"])
@pytest.mark.parametrize("method", METHOD_VALUES)
def test_neither_the_micro_batches_nor_the_order_of_the_rows_change_the_loss(method, family):
    model, batch = sharp_model(family, torch.float64), responses(family)
    settings = [
        round_of(method, kl="k2", kl_weight=0.1, train_block_size=4, micro_batch_tokens=tokens)
        for tokens in (10_000, 1, 60)
    ]
    loss, gradient = loss_and_gradient(model, settings[0], batch, ADVANTAGES)
    assert abs(loss) > 1e-4
    for other in settings[1:]:
        other_loss, other_gradient = loss_and_gradient(model, other, batch, ADVANTAGES)
        assert other_loss == pytest.approx(loss, rel=1e-10, abs=1e-10)
        torch.testing.assert_close(
            other_gradient, gradient, rtol=0, atol=1e-9 * float(gradient.abs().max())
        )
    assert loss_and_gradient(model, settings[0], batch[::-1], ADVANTAGES[::-1])[0] == pytest.approx(
        loss, rel=1e-10, abs=1e-10
    )


@torch.no_grad()
@pytest.mark.parametrize("family", ["sdar", "llada", "dream"])
@pytest.mark.parametrize("method", METHOD_VALUES)
def test_the_ratio_is_one_at_the_first_inner_step_although_dropout_is_configured(method, family):
    model = sharp_model(family)
    for layer in model.model.layers:
        layer.register_module("mlp", nn.Sequential(layer.get_submodule("mlp"), nn.Dropout(0.5)))
    model.train()
    settings = round_of(method, train_block_size=4, micro_batch_tokens=60)
    update = update_on(model, settings)
    for part in update.prepare(batch_of(responses(family), ADVANTAGES), 1, 0):
        logprobs, order = score_predictions(model, part.views, settings)
        new = estimate_units(update.method, logprobs, part.units, part.views, part.advantages)
        assert part.old_logprobs is not None
        assert float((new - part.old_logprobs).abs().max()) <= 1e-6
        assert (order is None) == (part.old_order is None)
        if order is not None and part.old_order is not None:
            assert float((order - part.old_order).abs().max()) <= 1e-6


@pytest.mark.parametrize("method", METHOD_VALUES)
def test_the_first_step_of_an_iteration_takes_the_old_logprobs_from_its_own_pass(method):
    """The same loss and gradient, bit for bit, as with a pass before; and no such pass."""
    model, passes = sharp_model("sdar"), []
    model.register_forward_hook(lambda *_: passes.append(1))
    update = update_on(model, round_of(method, train_block_size=4, micro_batch_tokens=60))
    found = []
    for on_policy in (False, True):
        passes.clear()
        parts = update.prepare(batch_of(responses("sdar"), ADVANTAGES), 1, 0, on_policy)
        assert len(passes) == (0 if on_policy else len(parts))
        results = [update.loss(part) for part in parts]
        loss = torch.stack([part_loss for part_loss, _ in results]).sum()
        found.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
        for _, metrics in results:
            for name in ("kl", "clip_fraction", "order_clip_fraction"):
                assert metrics.get(name, 0.0) == 0.0
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_the_default_method_is_the_plain_clipped_objective_bit_for_bit():
    model, batch, settings = (
        sharp_model("sdar"),
        responses("sdar"),
        round_of("tracerl", train_block_size=4),
    )
    update = update_on(model, settings)
    (part,) = update.prepare(batch_of(batch, ADVANTAGES), 1, 0)
    assert part.old_logprobs is not None
    old, reference = part.old_logprobs + 0.1, part.old_logprobs - 0.2
    part = replace(part, old_logprobs=old, reference_logprobs=reference)
    logprobs = token_logprobs(model, part.views, settings.sampler.temperature)
    plans = [update.plan(trajectory, 1, 0) for trajectory in batch]
    (order,) = pack_padded(
        [num_layout_tokens(t, p, 4, model.family) for t, p in zip(batch, plans, strict=True)],
        settings.micro_batch_tokens,
    )
    advantages = torch.tensor(ADVANTAGES)[torch.tensor(order)[part.views.source]]
    weights = token_weights("step", part.views.group, len(batch))
    gain = clipped_objective(logprobs - old, advantages, settings.clip)
    penalty = kl_penalty(settings.kl, logprobs, reference)
    plain = -(weights * (gain - settings.kl_weight * penalty)).sum()
    ours, _ = update.loss(part)
    assert torch.equal(plain, ours)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in (plain, ours)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_what_is_drawn_for_a_response_depends_on_it_and_on_the_epoch_but_on_nothing_else():
    update = update_on(sharp_model("sdar"), round_of("random", train_block_size=4))
    first, second = responses("sdar")[:2]
    assert (
        update.plan(first, 1, 0).states
        == update.plan(replace(first, logprobs=second.logprobs), 1, 0).states
    ).all()
    assert (update.plan(second, 1, 0).states != update.plan(second, 1, 1).states).any()
    assert (update.plan(second, 1, 0).states != update.plan(second, 2, 0).states).any()


@torch.no_grad()
def test_token_and_order_logprobs_agree_with_token_logprobs():
    model, batch = sharp_model("sdar"), responses("sdar")
    plans = [
        segment_plan(t, 4, model.family, 1, EVERYTHING, ordered, generator_for(1, "s"))
        for ordered in (True, False)
        for t in batch
    ]
    with_order = build_views(batch, plans[: len(batch)], 4, model.family, MASK_ID)
    without = build_views(batch, plans[len(batch) :], 4, model.family, MASK_ID)
    tokens, order = token_and_order_logprobs(model, with_order, 0.7, 0.5, "max_logprob")
    torch.testing.assert_close(tokens, token_logprobs(model, without, 0.7), rtol=0, atol=1e-5)
    assert (order <= 0).all()
    assert (order == 0).any(), "the last position of a block has no rival"
