"""Every RL method as one record: how its views are made and what a unit of likelihood is on them.

All methods share one sampler, one trainer and one loss. A method differs in (its ratios and its
keys in the params are in settings/methods.py)

* `plan`: the views of a response (objectives/views.py makes the noise);
* `unit`: of what the likelihood is estimated and the ratio taken. `prediction`: each scored token
of each view; `token`: each token, its
  predictions in several views summed with their weights; `response`: the whole response, such a sum
  divided by its length;
* `bounds`: SPG's estimate, which is another one for responses with negative advantage;
* `weigh`: what becomes of the advantages of a group before they multiply anything (wd1);
* `ordered`: whether the order of commitment is scored as well.

Each plan function says where it departs from its paper and whether it is an unbiased estimator of
the policy gradient. Only `mask_aware` with segments of one step, all of them drawn, order weight 1,
ratio `none` and reduction `fixed` is one; all others score something else than the decisions that
the sampler took. Formulas that could not be looked up in the method's own paper or code are marked
as such.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, TypeVar

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
from tracerl.settings.training import RlRound
from tracerl.types import Trajectory

Floats = npt.NDArray[np.float64]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Method:
    """See the head of this module. plan: (trajectory, settings, family, generator) -> its views.
    draws: whether a plan is random."""

    plan: Callable[[Trajectory, RlRound, Family, np.random.Generator], Plan]
    unit: Literal["prediction", "token", "response"]
    draws: bool = True
    ordered: bool = False
    bounds: bool = False
    weigh: Callable[[Floats], Floats] = lambda advantages: advantages


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


def given(value: Value | None) -> Value:
    """A setting that the method needs; settings/ has checked that it is there."""
    assert value is not None
    return value


# Views, one function per method


def tracerl(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
) -> Plan:
    """TraceRL (arXiv 2509.06949): the recorded trajectory, `shrink` neighbouring steps at a time,
    every token scored once.

    Departures: training/rl.py. Biased: under a confidence order, which positions are committed is a
    decision that is not scored.
    """
    return trace_plan(trajectory, settings.train_block_size, family, settings.shrink)


def random(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
) -> Plan:
    """UniGRPO (MMaDA, arXiv 2505.15809): `copies` masked copies, one level t ~ U(noise) each, a
    ratio per masked token.

    Departures: a level per block where attention is block-causal (as TraceRL's comparison does);
    levels are independent, where the paper spaces them over its inner steps. Biased: the scored
    canvases are not those the sampler saw.
    """
    size, noise, copies = settings.train_block_size, given(settings.noise), given(settings.copies)
    plan = concatenate_plans(
        [
            random_plan(
                trajectory,
                Masking(block_size=size, family=family, noise=noise, weighting="uniform"),
                generator,
            )
            for _ in range(copies)
        ]
    )
    return scale_weights(plan, 1 / copies)


def coupled(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
) -> Plan:
    """Coupled masking as TraceRL's authors compare with it: `copies` masked copies, each with its
    exact complement inside each block.

    Departures: none known. Biased: as `random`; each token is scored as often as every other, which
    takes variance out.
    """
    size, noise, copies = settings.train_block_size, given(settings.noise), given(settings.copies)
    plan = concatenate_plans(
        [
            coupled_plan(
                trajectory,
                Masking(block_size=size, family=family, noise=noise, weighting="uniform"),
                generator,
            )
            for _ in range(copies)
        ]
    )
    return scale_weights(plan, 1 / copies)


def diffucoder(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
) -> Plan:
    """Coupled GRPO (DiffuCoder, arXiv 2506.20639): log p of a token = (its log p under full masking
    + its log p / t or / (1 - t)) / 2.

    `copies` pairs are averaged; the ratio is per token. Departures: the published code draws the
    complement with a strict inequality, which leaves a token whose number equals the level out of
    both copies. Biased: as `random`; the weights make the sum no likelihood either.
    """
    size, noise, copies = settings.train_block_size, given(settings.noise), given(settings.copies)
    pairs = concatenate_plans(
        [
            coupled_plan(
                trajectory,
                Masking(block_size=size, family=family, noise=noise, weighting="inverse_t"),
                generator,
            )
            for _ in range(copies)
        ]
    )
    full = masked_response_plan(trajectory, 0.0, generator)
    return concatenate_plans([scale_weights(full, 1 / 2), scale_weights(pairs, 1 / (2 * copies))])


def diffu_grpo(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
) -> Plan:
    """diffu-GRPO (d1, arXiv 2504.12216): one pass over the wholly masked response, prompt tokens
    masked with probability `prompt_masking`.

    Departures: where attention is block-causal a block sees the clean blocks before it, so that the
    mean field is one per block. Biased: a mean field is not the likelihood of a sequence.
    """
    return masked_response_plan(trajectory, given(settings.prompt_masking), generator)


def wd1(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
) -> Plan:
    """wd1 (arXiv 2507.08838): the mean-field likelihood of d1, weighted by softmax(A) - softmax(-A)
    over the group; no ratio.

    Departures: the weights are multiplied by the group's size, so that a mean over responses is the
    paper's sum over the group, averaged over groups; the likelihood is divided by the length unless
    the reduction is `token` or `fixed`. Biased: as `diffu_grpo`.
    """
    return masked_response_plan(trajectory, given(settings.prompt_masking), generator)


def wd1_weights(advantages: Floats) -> Floats:
    """n (softmax(A) - softmax(-A)) over a group of n."""
    rising, falling = np.exp(advantages - advantages.max()), np.exp(advantages.min() - advantages)
    return len(advantages) * (rising / rising.sum() - falling / falling.sum())


def spg(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
) -> Plan:
    """SPG (arXiv 2510.09541): the lower bound of the likelihood for positive advantages, an upper
    bound or a mixture for negative ones.

    `copies` block-wise masks; see `sandwiched` for the bounds. Departures: the blocks are the
    sampler's; prompt tokens are not masked as well; the log of the mean is over the copies that
    hide a token, which differs from the paper's by a constant. Biased: bounds.
    """
    return concatenate_plans(
        [
            blockwise_plan(trajectory, family, given(settings.noise), generator)
            for _ in range(given(settings.copies))
        ]
    )


def gdpo(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
) -> Plan:
    """GDPO (arXiv 2510.08554): the evidence bound with the integral over t by Gauss quadrature
    (`nodes` points), `copies` masks at each.

    The ratio is exp(difference of the bounds / length). Departures: the level of a node holds in
    every block where attention is block-causal. Biased: the ratio is of bounds (the masks' part of
    it is unbiased, the quadrature's exact to its order).
    """
    points, shares = np.polynomial.legendre.leggauss(given(settings.nodes))
    size, copies = settings.train_block_size, given(settings.copies)
    plans = []
    for level, share in zip((points + 1) / 2, shares / 2, strict=True):
        for _ in range(copies):
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
                    share / copies,
                )
            )
    return concatenate_plans(plans)


def espo(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
) -> Plan:
    """ESPO (arXiv 2512.03759): the evidence bound from `copies` antithetic pairs of masks, t and 1
    - t; ratio exp(difference / length).

    Departures: the paper's masks have a uniform number of tokens, ours a uniform level (the same
    bound in expectation); levels are not stratified over the batch. Its k2 penalty is `kl: k2`, per
    token of the response as in its code. Biased: as `gdpo`.
    """
    size, noise, copies = settings.train_block_size, given(settings.noise), given(settings.copies)
    plan = concatenate_plans(
        [
            coupled_plan(
                trajectory,
                Masking(block_size=size, family=family, noise=noise, weighting="inverse_t"),
                generator,
            )
            for _ in range(copies)
        ]
    )
    return scale_weights(plan, 1 / (2 * copies))


def step_merge(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
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
        given(settings.segments),
        False,
        generator,
    )


def mask_aware(
    trajectory: Trajectory, settings: RlRound, family: Family, generator: np.random.Generator
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
        given(settings.segments),
        True,
        generator,
    )


METHODS: dict[str, Method] = {
    "tracerl": Method(tracerl, "prediction", draws=False),
    "random": Method(random, "prediction"),
    "coupled": Method(coupled, "prediction"),
    "diffucoder": Method(diffucoder, "token"),
    "diffu_grpo": Method(diffu_grpo, "prediction"),
    "wd1": Method(wd1, "response", weigh=wd1_weights),
    "spg": Method(spg, "response", bounds=True),
    "gdpo": Method(gdpo, "response"),
    "espo": Method(espo, "response"),
    "step_merge": Method(step_merge, "prediction"),
    "mask_aware": Method(mask_aware, "prediction", ordered=True),
}


# Likelihoods


def units_of(method: Method, views: Views, lengths: list[int]) -> Units:
    """The units of a method on some views. lengths: trainable tokens of each response of the views."""
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


def estimates(
    method: Method,
    logprobs: torch.Tensor,
    units: Units,
    views: Views,
    advantages: torch.Tensor,
    settings: RlRound,
) -> torch.Tensor:
    """The likelihood of every unit, [U], from the log-probabilities of the views' predictions, [T].
    advantages: [U]."""
    if method.bounds:
        exponent, share = given(settings.bound_exponent), given(settings.bound_share)
        return sandwiched(
            logprobs, units, views, advantages, given(settings.copies), exponent, share
        )
    return summed(logprobs, units)


def summed(logprobs: torch.Tensor, units: Units) -> torch.Tensor:
    """sum of coefficient x log p over the predictions of each unit, [U]."""
    return logprobs.new_zeros(len(units.source)).index_add(
        0, units.unit, units.coefficient.to(logprobs.dtype) * logprobs
    )


def sandwiched(
    logprobs: torch.Tensor,
    units: Units,
    views: Views,
    advantages: torch.Tensor,
    copies: int,
    exponent: float,
    share: float,
) -> torch.Tensor:
    """SPG's estimate per response and token of it, [U].

    Advantage >= 0: the lower bound, (1/L) mean over copies of sum_i w log p_i. Below 0: `share` x
    the upper bound (1/(b n)) sum_i log (mean over the copies that hide i of w p_i^b) over the n
    tokens hidden at all, plus (1 - share) x the lower one.
    """
    lower = summed(logprobs, units) / copies
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


def scores(
    method: Method, model: Policy, views: Views, settings: RlRound
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities of the views' predictions, and of the order of their commitment if the
    method scores it; both [T]."""
    sampler = settings.sampler
    if not method.ordered:
        return token_logprobs(model, views, sampler.temperature), None
    return token_and_order_logprobs(
        model,
        views,
        sampler.temperature,
        given(sampler.order_temperature),
        given(sampler.order_score),
    )
