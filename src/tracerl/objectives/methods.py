"""What each RL method computes: the views of a response, and the likelihood of a unit on them.

All methods share one sampler, one trainer and one loss. A method is a record in settings/methods.py
(its keys, its ratios, its unit) and an `Estimator` here:

* `plan`: the views of a response (objectives/plans.py makes the noise);
* `estimate`: the likelihood of each unit from the log-probabilities of the views' predictions;
* `weigh`: the weights of a group's responses, from their advantages (wd1);
* `num_views`, `num_predictions`: what it costs.

Each plan function says where it departs from its paper and whether it is an unbiased estimator of
the policy gradient. Only `mask_aware` with segments of one step, all of them drawn, order weight 1,
ratio `none` and reduction `fixed` is one; all others score something else than the decisions that
the sampler took. Formulas that could not be looked up in the method's own paper or code are marked
as such.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tracerl.models.families import Family
from tracerl.models.policy import Policy
from tracerl.objectives.likelihood import token_and_order_logprobs, token_logprobs
from tracerl.objectives.likelihood_units import Units
from tracerl.objectives.plans import (
    Masking,
    Plan,
    blockwise_plan,
    concatenate_plans,
    coupled_plan,
    full_mask_plan,
    random_plan,
    scale_weights,
    segment_plan,
    trace_plan,
)
from tracerl.objectives.views import Views
from tracerl.settings.base import Section
from tracerl.settings.methods import (
    Coupled,
    DiffuCoder,
    DiffuGrpo,
    Espo,
    Gdpo,
    MaskAware,
    Method,
    Random,
    Spg,
    StepMerge,
    TraceRL,
    Wd1,
)
from tracerl.settings.rounds import RlRound
from tracerl.settings.sampling import PlackettLuce
from tracerl.types import Trajectory

Floats = npt.NDArray[np.float64]


PlanMaker = Callable[[Trajectory, Masking, np.random.Generator], Plan]


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A response whose views are asked for."""

    trajectory: Trajectory
    """The response, with the steps that committed its tokens."""
    settings: RlRound
    """The round: `train_block_size` and `shrink` are read."""
    family: Family
    """The model family, whose attention rule decides what a block sees."""
    generator: np.random.Generator
    """Source of the noise and of every other draw."""


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """What a method computes."""

    plan: Callable[[Any, PlanRequest], Plan]
    """(method, request) -> the views of a response."""
    num_views: Callable[[Any, int], int]
    """(method, steps of a response after `shrink`) -> views of a response, at most."""
    num_predictions: Callable[[Any], int]
    """method -> times that each token of a response is predicted, at most."""
    estimate: Callable[[Any, torch.Tensor, Units, Views, torch.Tensor], torch.Tensor]
    """(method, log-probabilities [T], units, views, advantages [U]) -> likelihood of each unit."""
    weigh: Callable[[Floats], Floats] = lambda advantages: advantages
    """The advantages of a group, [group_size] -> the weights of its responses in the loss."""


# Views, one function per method


def mask_copies(
    request: PlanRequest,
    maker: PlanMaker,
    copies: int,
    noise: tuple[float, float],
    weighting: str,
) -> Plan:
    """The views of `copies` draws of a maker of random masks, as one plan."""
    masking = Masking(
        block_size=request.settings.train_block_size,
        family=request.family,
        noise=noise,
        weighting=weighting,
    )
    plans = []
    for _ in range(copies):
        plans.append(maker(request.trajectory, masking, request.generator))
    return concatenate_plans(plans)


def plan_tracerl(method: TraceRL, request: PlanRequest) -> Plan:
    """TraceRL (arXiv 2509.06949): the recorded trajectory, `shrink` neighbouring steps at a time,
    every token scored once.

    Departures: training/rl.py. Biased: under a confidence order, which positions are committed is a
    decision that is not scored.
    """
    return trace_plan(
        request.trajectory,
        request.settings.train_block_size,
        request.family,
        request.settings.shrink,
    )


def plan_random(method: Random, request: PlanRequest) -> Plan:
    """UniGRPO (MMaDA, arXiv 2505.15809): `copies` masked copies, one level t ~ U(noise) each, a
    ratio per masked token.

    Departures: a level per block where attention is block-causal (as TraceRL's comparison does);
    levels are independent, where the paper spaces them over its inner steps. Biased: the scored
    canvases are not those the sampler saw.
    """
    plan = mask_copies(request, random_plan, method.copies, method.noise, "uniform")
    return scale_weights(plan, 1 / method.copies)


def plan_coupled(method: Coupled, request: PlanRequest) -> Plan:
    """Coupled masking as TraceRL's authors compare with it: `copies` masked copies, each with its
    exact complement inside each block.

    Departures: none known. Biased: as `random`; each token is scored as often as every other, which
    takes variance out.
    """
    plan = mask_copies(request, coupled_plan, method.copies, method.noise, "uniform")
    return scale_weights(plan, 1 / method.copies)


def plan_diffucoder(method: DiffuCoder, request: PlanRequest) -> Plan:
    """Coupled GRPO (DiffuCoder, arXiv 2506.20639): log p of a token = (its log p under full masking
    + its log p / t or / (1 - t)) / 2.

    `copies` pairs are averaged; the ratio is per token. Departures: the published code draws the
    complement with a strict inequality, which leaves a token whose number equals the level out of
    both copies. Biased: as `random`; the weights make the sum no likelihood either.
    """
    pairs = mask_copies(request, coupled_plan, method.copies, method.noise, "inverse_t")
    full = full_mask_plan(request.trajectory, 0.0, request.generator)
    return concatenate_plans(
        [scale_weights(full, 1 / 2), scale_weights(pairs, 1 / (2 * method.copies))]
    )


def plan_diffu_grpo(method: DiffuGrpo, request: PlanRequest) -> Plan:
    """diffu-GRPO (d1, arXiv 2504.12216): one pass over the wholly masked response, prompt tokens
    masked with probability `prompt_masking`.

    Departures: where attention is block-causal a block sees the clean blocks before it, so that the
    mean field is one per block. Biased: a mean field is not the likelihood of a sequence.
    """
    return full_mask_plan(request.trajectory, method.prompt_masking, request.generator)


def plan_wd1(method: Wd1, request: PlanRequest) -> Plan:
    """wd1 (arXiv 2507.08838): the mean-field likelihood of d1, weighted by softmax(A) - softmax(-A)
    over the group; no ratio.

    Departures: the weights are multiplied by the group's size, so that a mean over responses is the
    paper's sum over the group, averaged over groups; the likelihood is divided by the length unless
    the reduction is `token` or `fixed`. Biased: as `diffu_grpo`.
    """
    return full_mask_plan(request.trajectory, method.prompt_masking, request.generator)


def wd1_weights(advantages: Floats) -> Floats:
    """n (softmax(A) - softmax(-A)) over a group of n."""
    rising, falling = np.exp(advantages - advantages.max()), np.exp(advantages.min() - advantages)
    return len(advantages) * (rising / rising.sum() - falling / falling.sum())


def plan_spg(method: Spg, request: PlanRequest) -> Plan:
    """SPG (arXiv 2510.09541): the lower bound of the likelihood for positive advantages, an upper
    bound or a mixture for negative ones.

    `copies` block-wise masks; see `spg_bounds` for the bounds. Departures: the blocks are the
    sampler's; prompt tokens are not masked as well; the log of the mean is over the copies that
    hide a token, which differs from the paper's by a constant. Biased: bounds.
    """
    plans = []
    for _ in range(method.copies):
        plan = blockwise_plan(request.trajectory, request.family, method.noise, request.generator)
        plans.append(plan)
    return concatenate_plans(plans)


def plan_gdpo(method: Gdpo, request: PlanRequest) -> Plan:
    """GDPO (arXiv 2510.08554): the evidence bound with the integral over t by Gauss quadrature
    (`nodes` points), `copies` masks at each.

    The ratio is exp(difference of the bounds / length). Departures: the level of a node holds in
    every block where attention is block-causal. Biased: the ratio is of bounds (the masks' part of
    it is unbiased, the quadrature's exact to its order).
    """
    points, shares = np.polynomial.legendre.leggauss(method.nodes)
    plans = []
    for level, share in zip((points + 1) / 2, shares / 2, strict=True):
        plan = mask_copies(request, random_plan, method.copies, (level, level), "inverse_t")
        plans.append(scale_weights(plan, share / method.copies))
    return concatenate_plans(plans)


def plan_espo(method: Espo, request: PlanRequest) -> Plan:
    """ESPO (arXiv 2512.03759): the evidence bound from `copies` antithetic pairs of masks, t and 1
    - t; ratio exp(difference / length).

    Departures: the paper's masks have a uniform number of tokens, ours a uniform level (the same
    bound in expectation); levels are not stratified over the batch. Its k2 penalty is `kl: k2`, per
    token of the response as in its code. Biased: as `gdpo`.
    """
    plan = mask_copies(request, coupled_plan, method.copies, method.noise, "inverse_t")
    return scale_weights(plan, 1 / (2 * method.copies))


def plan_step_merge(method: StepMerge, request: PlanRequest) -> Plan:
    """d2-StepMerge (arXiv 2509.21474): segments of `shrink` steps scored on the canvas before them,
    `segments` of them drawn.

    The same draw serves old and new policy. Departures: segments count steps inside a rollout
    block, so that none straddles two. The paper's own formulas could not be looked up; this follows
    its description in the mask-aware paper. Biased: the order is not scored.
    """
    return _segments(request, method.segments, ordered=False)


def plan_mask_aware(method: MaskAware, request: PlanRequest) -> Plan:
    """Mask-aware policy gradients (arXiv 2607.15200): the views of `step_merge`, with the order of
    commitment scored as well.

    The two ratios are clipped apart (`clip`, `order_clip`) and the order's term is multiplied by
    `order_weight`. Departures: those of `step_merge`; scores and temperature of the order are the
    sampler's own; no decision after the first end token is scored. Unbiased at `shrink` 1 with all
    segments drawn, `order_weight` 1, ratio `none` and reduction `fixed`, where no token follows an
    end token in its block.
    """
    return _segments(request, method.segments, ordered=True)


def _segments(request: PlanRequest, segments: int, ordered: bool) -> Plan:
    return segment_plan(
        request.trajectory,
        request.settings.train_block_size,
        request.family,
        request.settings.shrink,
        segments,
        ordered,
        request.generator,
    )


# Likelihoods


def sum_predictions(
    method: object, logprobs: torch.Tensor, units: Units, views: Views, advantages: torch.Tensor
) -> torch.Tensor:
    """sum of coefficient x log p over the predictions of each unit, [U]."""
    return logprobs.new_zeros(len(units.source)).index_add(
        0, units.unit, units.coefficient.to(logprobs.dtype) * logprobs
    )


def spg_bounds(
    method: Spg, logprobs: torch.Tensor, units: Units, views: Views, advantages: torch.Tensor
) -> torch.Tensor:
    """SPG's estimate per response and token of it, [U].

    Advantage >= 0: the lower bound, (1/L) mean over copies of sum_i w log p_i. Below 0:
    `bound_share` x the upper bound (1/(b n)) sum_i log (mean over the copies that hide i of w
    p_i^b) over the n tokens hidden at all, plus (1 - share) x the lower one; b: `bound_exponent`.
    """
    exponent = method.bound_exponent
    share = method.bound_share
    lower = sum_predictions(method, logprobs, units, views, advantages) / method.copies
    tokens = torch.stack([views.source, views.token]).to(logprobs.device)
    pairs, unit = torch.unique(tokens, dim=1, return_inverse=True)
    terms = exponent * logprobs + views.weight.to(logprobs).log()
    largest = terms.new_full((pairs.shape[1],), float("-inf")).scatter_reduce(
        0, unit, terms.detach(), "amax"
    )
    total = terms.new_zeros(pairs.shape[1]).index_add(0, unit, (terms - largest[unit]).exp())
    mean = total.log() + largest - torch.bincount(unit).to(terms.dtype).log()
    size = torch.bincount(pairs[0], minlength=len(lower)).clamp(min=1).to(terms.dtype)
    upper = terms.new_zeros(len(lower)).index_add(0, pairs[0], mean) / (exponent * size)
    return torch.where(advantages < 0, share * upper + (1 - share) * lower, lower)


ESTIMATORS: dict[type[Section], Estimator] = {
    TraceRL: Estimator(
        plan=plan_tracerl,
        num_views=lambda method, steps: steps,
        num_predictions=lambda method: 1,
        estimate=sum_predictions,
    ),
    Random: Estimator(
        plan=plan_random,
        num_views=lambda method, steps: method.copies,
        num_predictions=lambda method: method.copies,
        estimate=sum_predictions,
    ),
    Coupled: Estimator(
        plan=plan_coupled,
        num_views=lambda method, steps: 2 * method.copies,
        num_predictions=lambda method: method.copies,
        estimate=sum_predictions,
    ),
    DiffuCoder: Estimator(
        plan=plan_diffucoder,
        num_views=lambda method, steps: 1 + 2 * method.copies,
        num_predictions=lambda method: 1 + method.copies,
        estimate=sum_predictions,
    ),
    DiffuGrpo: Estimator(
        plan=plan_diffu_grpo,
        num_views=lambda method, steps: 1,
        num_predictions=lambda method: 1,
        estimate=sum_predictions,
    ),
    Wd1: Estimator(
        plan=plan_wd1,
        num_views=lambda method, steps: 1,
        num_predictions=lambda method: 1,
        estimate=sum_predictions,
        weigh=wd1_weights,
    ),
    Spg: Estimator(
        plan=plan_spg,
        num_views=lambda method, steps: method.copies,
        num_predictions=lambda method: method.copies,
        estimate=spg_bounds,
    ),
    Gdpo: Estimator(
        plan=plan_gdpo,
        num_views=lambda method, steps: method.copies * method.nodes,
        num_predictions=lambda method: method.copies * method.nodes,
        estimate=sum_predictions,
    ),
    Espo: Estimator(
        plan=plan_espo,
        num_views=lambda method, steps: 2 * method.copies,
        num_predictions=lambda method: method.copies,
        estimate=sum_predictions,
    ),
    StepMerge: Estimator(
        plan=plan_step_merge,
        num_views=lambda method, steps: min(steps, method.segments),
        num_predictions=lambda method: 1,
        estimate=sum_predictions,
    ),
    MaskAware: Estimator(
        plan=plan_mask_aware,
        num_views=lambda method, steps: min(steps, method.segments),
        num_predictions=lambda method: 1,
        estimate=sum_predictions,
    ),
}


def make_plan(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
) -> Plan:
    """The views of a response by the round's method."""
    request = PlanRequest(
        trajectory=trajectory,
        settings=settings,
        family=family,
        generator=generator,
    )
    return ESTIMATORS[type(settings.method)].plan(settings.method, request)


def weigh_advantages(method: Method, advantages: Floats) -> Floats:
    """The weights of a group's responses in the loss, from its advantages; both [group_size]."""
    return ESTIMATORS[type(method)].weigh(advantages)


def estimate_units(
    method: Method, logprobs: torch.Tensor, units: Units, views: Views, advantages: torch.Tensor
) -> torch.Tensor:
    """The likelihood of every unit, [U], from the log-probabilities of the views' predictions, [T].
    advantages: [U]."""
    return ESTIMATORS[type(method)].estimate(method, logprobs, units, views, advantages)


def score_predictions(
    model: Policy, views: Views, settings: RlRound
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities of the views' predictions, and of the order of their commitment if the
    round's method scores it; both [T]."""
    sampler = settings.sampler
    if not (settings.method.scores_order and isinstance(sampler.order, PlackettLuce)):
        return token_logprobs(model, views, sampler.temperature), None
    return token_and_order_logprobs(
        model, views, sampler.temperature, sampler.order.temperature, sampler.order.score
    )
