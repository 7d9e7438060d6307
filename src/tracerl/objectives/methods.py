"""What each RL method computes: the views of a response, and the likelihood of a unit on them.

All methods share one sampler, one trainer and one loss. A method is a record in settings/methods.py
(its keys, its ratios, its unit) and an `Estimator` here:

* `plan`: the views of a response (objectives/plans.py makes the noise);
* `estimate`: the likelihood of each unit from the log-probabilities of the views' predictions;
* `weigh`: what becomes of the advantages of a group before they multiply anything (wd1);
* `num_views`, `num_predictions`: what it costs.

Each plan function says where it departs from its paper and whether it is an unbiased estimator of
the policy gradient. Only `mask_aware` with segments of one step, all of them drawn, order weight 1,
ratio `none` and reduction `fixed` is one; all others score something else than the decisions that
the sampler took. Formulas that could not be looked up in the method's own paper or code are marked
as such.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tracerl.models.families import Family
from tracerl.models.policy import Policy
from tracerl.objectives.likelihood import token_and_order_logprobs, token_logprobs
from tracerl.objectives.losses import token_weights
from tracerl.objectives.plans import (
    PREDICTED,
    Masking,
    Plan,
    blockwise_plan,
    concatenate_plans,
    coupled_plan,
    masked_response_plan,
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


@dataclass(frozen=True)
class Units:
    """The units of some views' likelihoods, U of them: the estimate of unit u is the sum of
    coefficient x log p over its predictions.

    unit: int64 [T], the unit of each prediction; coefficient: float32 [T]. The others are [U]:
    source, the response; token, one of its tokens (whose advantage counts); group, what reduction
    "step" averages in; weight, in the loss; size, the tokens a unit stands for.
    """

    unit: torch.Tensor
    coefficient: torch.Tensor
    source: torch.Tensor
    token: torch.Tensor
    group: torch.Tensor
    weight: torch.Tensor
    size: torch.Tensor

    def to(self, device: torch.device) -> "Units":
        return Units(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """What a method computes."""

    plan: Callable[[Any, Trajectory, RlRound, Family, np.random.Generator], Plan]
    """(method, trajectory, round, family, generator) -> the views of a response."""
    num_views: Callable[[Any, int], int]
    """(method, steps of a response after `shrink`) -> views of a response, at most."""
    num_predictions: Callable[[Any], int]
    """method -> times that each token of a response is predicted, at most."""
    estimate: Callable[[Any, torch.Tensor, Units, Views, torch.Tensor], torch.Tensor]
    """(method, log-probabilities [T], units, views, advantages [U]) -> likelihood of each unit."""
    weigh: Callable[[Floats], Floats] = lambda advantages: advantages
    """What becomes of the advantages of a group before they multiply anything."""


# Views, one function per method


def tracerl(
    method: TraceRL,
    trajectory: Trajectory,
    settings: RlRound,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """TraceRL (arXiv 2509.06949): the recorded trajectory, `shrink` neighbouring steps at a time,
    every token scored once.

    Departures: training/rl.py. Biased: under a confidence order, which positions are committed is a
    decision that is not scored.
    """
    return trace_plan(trajectory, settings.train_block_size, family, settings.shrink)


def random(
    method: Random,
    trajectory: Trajectory,
    settings: RlRound,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """UniGRPO (MMaDA, arXiv 2505.15809): `copies` masked copies, one level t ~ U(noise) each, a
    ratio per masked token.

    Departures: a level per block where attention is block-causal (as TraceRL's comparison does);
    levels are independent, where the paper spaces them over its inner steps. Biased: the scored
    canvases are not those the sampler saw.
    """
    size = settings.train_block_size
    plan = concatenate_plans(
        [
            random_plan(
                trajectory,
                Masking(block_size=size, family=family, noise=method.noise, weighting="uniform"),
                generator,
            )
            for _ in range(method.copies)
        ]
    )
    return scale_weights(plan, 1 / method.copies)


def coupled(
    method: Coupled,
    trajectory: Trajectory,
    settings: RlRound,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """Coupled masking as TraceRL's authors compare with it: `copies` masked copies, each with its
    exact complement inside each block.

    Departures: none known. Biased: as `random`; each token is scored as often as every other, which
    takes variance out.
    """
    size = settings.train_block_size
    plan = concatenate_plans(
        [
            coupled_plan(
                trajectory,
                Masking(block_size=size, family=family, noise=method.noise, weighting="uniform"),
                generator,
            )
            for _ in range(method.copies)
        ]
    )
    return scale_weights(plan, 1 / method.copies)


def diffucoder(
    method: DiffuCoder,
    trajectory: Trajectory,
    settings: RlRound,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """Coupled GRPO (DiffuCoder, arXiv 2506.20639): log p of a token = (its log p under full masking
    + its log p / t or / (1 - t)) / 2.

    `copies` pairs are averaged; the ratio is per token. Departures: the published code draws the
    complement with a strict inequality, which leaves a token whose number equals the level out of
    both copies. Biased: as `random`; the weights make the sum no likelihood either.
    """
    size = settings.train_block_size
    pairs = concatenate_plans(
        [
            coupled_plan(
                trajectory,
                Masking(block_size=size, family=family, noise=method.noise, weighting="inverse_t"),
                generator,
            )
            for _ in range(method.copies)
        ]
    )
    full = masked_response_plan(trajectory, 0.0, generator)
    return concatenate_plans(
        [scale_weights(full, 1 / 2), scale_weights(pairs, 1 / (2 * method.copies))]
    )


def diffu_grpo(
    method: DiffuGrpo,
    trajectory: Trajectory,
    settings: RlRound,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """diffu-GRPO (d1, arXiv 2504.12216): one pass over the wholly masked response, prompt tokens
    masked with probability `prompt_masking`.

    Departures: where attention is block-causal a block sees the clean blocks before it, so that the
    mean field is one per block. Biased: a mean field is not the likelihood of a sequence.
    """
    return masked_response_plan(trajectory, method.prompt_masking, generator)


def wd1(
    method: Wd1,
    trajectory: Trajectory,
    settings: RlRound,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """wd1 (arXiv 2507.08838): the mean-field likelihood of d1, weighted by softmax(A) - softmax(-A)
    over the group; no ratio.

    Departures: the weights are multiplied by the group's size, so that a mean over responses is the
    paper's sum over the group, averaged over groups; the likelihood is divided by the length unless
    the reduction is `token` or `fixed`. Biased: as `diffu_grpo`.
    """
    return masked_response_plan(trajectory, method.prompt_masking, generator)


def wd1_weights(advantages: Floats) -> Floats:
    """n (softmax(A) - softmax(-A)) over a group of n."""
    rising, falling = np.exp(advantages - advantages.max()), np.exp(advantages.min() - advantages)
    return len(advantages) * (rising / rising.sum() - falling / falling.sum())


def spg(
    method: Spg,
    trajectory: Trajectory,
    settings: RlRound,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """SPG (arXiv 2510.09541): the lower bound of the likelihood for positive advantages, an upper
    bound or a mixture for negative ones.

    `copies` block-wise masks; see `spg_bounds` for the bounds. Departures: the blocks are the
    sampler's; prompt tokens are not masked as well; the log of the mean is over the copies that
    hide a token, which differs from the paper's by a constant. Biased: bounds.
    """
    return concatenate_plans(
        [blockwise_plan(trajectory, family, method.noise, generator) for _ in range(method.copies)]
    )


def gdpo(
    method: Gdpo,
    trajectory: Trajectory,
    settings: RlRound,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """GDPO (arXiv 2510.08554): the evidence bound with the integral over t by Gauss quadrature
    (`nodes` points), `copies` masks at each.

    The ratio is exp(difference of the bounds / length). Departures: the level of a node holds in
    every block where attention is block-causal. Biased: the ratio is of bounds (the masks' part of
    it is unbiased, the quadrature's exact to its order).
    """
    points, shares = np.polynomial.legendre.leggauss(method.nodes)
    size = settings.train_block_size
    plans = []
    for level, share in zip((points + 1) / 2, shares / 2, strict=True):
        for _ in range(method.copies):
            plans.append(
                scale_weights(
                    random_plan(
                        trajectory,
                        Masking(
                            block_size=size,
                            family=family,
                            noise=(level, level),
                            weighting="inverse_t",
                        ),
                        generator,
                    ),
                    share / method.copies,
                )
            )
    return concatenate_plans(plans)


def espo(
    method: Espo,
    trajectory: Trajectory,
    settings: RlRound,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """ESPO (arXiv 2512.03759): the evidence bound from `copies` antithetic pairs of masks, t and 1
    - t; ratio exp(difference / length).

    Departures: the paper's masks have a uniform number of tokens, ours a uniform level (the same
    bound in expectation); levels are not stratified over the batch. Its k2 penalty is `kl: k2`, per
    token of the response as in its code. Biased: as `gdpo`.
    """
    size = settings.train_block_size
    plan = concatenate_plans(
        [
            coupled_plan(
                trajectory,
                Masking(block_size=size, family=family, noise=method.noise, weighting="inverse_t"),
                generator,
            )
            for _ in range(method.copies)
        ]
    )
    return scale_weights(plan, 1 / (2 * method.copies))


def step_merge(
    method: StepMerge,
    trajectory: Trajectory,
    settings: RlRound,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """d2-StepMerge (arXiv 2509.21474): segments of `shrink` steps scored on the canvas before them,
    `segments` of them drawn.

    The same draw serves old and new policy. Departures: segments count steps inside a rollout
    block, so that none straddles two. The paper's own formulas could not be looked up; this follows
    its description in the mask-aware paper. Biased: the order is not scored.
    """
    return segment_plan(
        trajectory,
        settings.train_block_size,
        family,
        settings.shrink,
        method.segments,
        False,
        generator,
    )


def mask_aware(
    method: MaskAware,
    trajectory: Trajectory,
    settings: RlRound,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """Mask-aware policy gradients (arXiv 2607.15200): the views of `step_merge`, with the order of
    commitment scored as well.

    The two ratios are clipped apart (`clip`, `order_clip`) and the order's term is multiplied by
    `order_weight`. Departures: those of `step_merge`; scores and temperature of the order are the
    sampler's own; no decision after the first end token is scored. Unbiased at `shrink` 1 with all
    segments drawn, `order_weight` 1, ratio `none` and reduction `fixed`, where no token follows an
    end token in its block.
    """
    return segment_plan(
        trajectory,
        settings.train_block_size,
        family,
        settings.shrink,
        method.segments,
        True,
        generator,
    )


# Likelihoods


def units_of(method: Method, views: Views, lengths: list[int]) -> Units:
    """The units of a method on some views. lengths: trainable tokens of each response."""
    ones = torch.ones(len(views.row))
    if method.unit == "prediction":
        return Units(
            torch.arange(len(ones)),
            ones,
            views.source,
            views.token,
            views.group,
            views.weight,
            ones,
        )
    if method.unit == "token":
        pairs, unit = torch.unique(
            torch.stack([views.source, views.token]), dim=1, return_inverse=True
        )
        ones = torch.ones(pairs.shape[1])
        return Units(unit, views.weight, pairs[0], pairs[1], pairs[0], ones, ones)
    everyone, size = torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.float32)
    return Units(
        views.source,
        views.weight / size[views.source],
        everyone,
        torch.zeros_like(everyone),
        everyone,
        torch.ones_like(size),
        size,
    )


def num_units(method: Method, plan: Plan, trajectory: Trajectory) -> float:
    """What one response adds to the denominator of reduction "token": its units, weighted by weight
    and size."""
    if method.unit == "prediction":
        return float(plan.weights[plan.states == PREDICTED].sum(dtype=np.float64))
    return (
        float((plan.states == PREDICTED).any(0).sum())
        if method.unit == "token"
        else float(trajectory.num_tokens)
    )


def unit_weights(reduction: str, units: Units, divisor: float) -> torch.Tensor:
    """Weight of each unit in the loss, float32 [U]. divisor: `losses.denominator`."""
    if reduction == "response":
        share = torch.zeros(int(units.source.max()) + 1 if len(units.source) else 0).index_add(
            0, units.source, units.weight
        )
        return units.weight / (share[units.source] * divisor)
    weights = token_weights(reduction, units.group, divisor) * units.weight
    return weights * units.size if reduction in ("token", "fixed") else weights


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
        plan=tracerl,
        num_views=lambda method, steps: steps,
        num_predictions=lambda method: 1,
        estimate=sum_predictions,
    ),
    Random: Estimator(
        plan=random,
        num_views=lambda method, steps: method.copies,
        num_predictions=lambda method: method.copies,
        estimate=sum_predictions,
    ),
    Coupled: Estimator(
        plan=coupled,
        num_views=lambda method, steps: 2 * method.copies,
        num_predictions=lambda method: method.copies,
        estimate=sum_predictions,
    ),
    DiffuCoder: Estimator(
        plan=diffucoder,
        num_views=lambda method, steps: 1 + 2 * method.copies,
        num_predictions=lambda method: 1 + method.copies,
        estimate=sum_predictions,
    ),
    DiffuGrpo: Estimator(
        plan=diffu_grpo,
        num_views=lambda method, steps: 1,
        num_predictions=lambda method: 1,
        estimate=sum_predictions,
    ),
    Wd1: Estimator(
        plan=wd1,
        num_views=lambda method, steps: 1,
        num_predictions=lambda method: 1,
        estimate=sum_predictions,
        weigh=wd1_weights,
    ),
    Spg: Estimator(
        plan=spg,
        num_views=lambda method, steps: method.copies,
        num_predictions=lambda method: method.copies,
        estimate=spg_bounds,
    ),
    Gdpo: Estimator(
        plan=gdpo,
        num_views=lambda method, steps: method.copies * method.nodes,
        num_predictions=lambda method: method.copies * method.nodes,
        estimate=sum_predictions,
    ),
    Espo: Estimator(
        plan=espo,
        num_views=lambda method, steps: 2 * method.copies,
        num_predictions=lambda method: method.copies,
        estimate=sum_predictions,
    ),
    StepMerge: Estimator(
        plan=step_merge,
        num_views=lambda method, steps: min(steps, method.segments),
        num_predictions=lambda method: 1,
        estimate=sum_predictions,
    ),
    MaskAware: Estimator(
        plan=mask_aware,
        num_views=lambda method, steps: min(steps, method.segments),
        num_predictions=lambda method: 1,
        estimate=sum_predictions,
    ),
}


def make_plan(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
) -> Plan:
    """The views of a response by the round's method."""
    method = settings.method
    return ESTIMATORS[type(method)].plan(method, trajectory, settings, family, generator)


def weigh_advantages(method: Method, advantages: Floats) -> Floats:
    """What becomes of the advantages of a group before they multiply anything, [group_size]."""
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
