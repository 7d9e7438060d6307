"""The policy's update: from groups of responses and their advantages to micro-batches, and from
those to the clipped loss of any method of objectives/methods.py.

Old and new log-probabilities are taken over the same views in the same micro-batches, so that the
ratio starts at 1 to rounding. The first optimizer step of an iteration is made with the policy that
sampled: its own pass gives the old ones, and there is no other. Views that are drawn are drawn anew
for every epoch; their draw is a function of (seed, stage, iteration, epoch, response).
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tracerl import distributed
from tracerl.errors import ParamsError
from tracerl.models.families import Family
from tracerl.models.policy import Policy
from tracerl.objectives.likelihood_units import Units, num_units, unit_weights, units_of
from tracerl.objectives.losses import (
    denominator,
    kl_penalty,
    policy_gain,
    policy_loss,
    response_mean,
)
from tracerl.objectives.methods import (
    ESTIMATORS,
    estimate_units,
    make_plan,
    score_predictions,
)
from tracerl.objectives.plans import Plan
from tracerl.objectives.supervised import num_trace_views
from tracerl.objectives.views import Views, build_views, max_row_tokens, row_bundles, split_plan
from tracerl.seeds import generator_for
from tracerl.settings.methods import Method
from tracerl.settings.rounds import RlRound
from tracerl.training.trainer import Trainer, pack_padded
from tracerl.types import Trajectory

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The responses of one optimizer step."""

    trajectories: list[Trajectory]
    """What is trained on."""
    advantages: list[Floats]
    """float64 [R] per trajectory: the advantage of each response token."""
    unit_totals: list[float] | None = None
    """Per trajectory, the summed weight of its units over all of its views, where a trajectory
    stands here with some of them; None where every one has all."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Views of some trajectories and their U units, with everything about them that the update
    leaves constant."""

    views: Views
    """The rows of one forward pass."""
    units: Units
    """Of what the likelihood is estimated."""
    weights: torch.Tensor
    """float32 [U]: weight in the loss; 0 in a repeat."""
    advantages: torch.Tensor
    """[U], of the model's dtype or float32 if that is wider."""
    old_logprobs: torch.Tensor | None
    """[U]: under the policy that sampled; None where it will not have moved."""
    reference_logprobs: torch.Tensor | None
    """[U]: under the reference; None where the reference is the policy that sampled."""
    old_order: torch.Tensor | None
    """[U]: log-probability of each unit's place in the order of commitment, if the method scores it
    and the policy will have moved."""
    counts: bool
    """False for a repeat that only gives this rank as many passes as the others have."""


def splits_views(settings: RlRound) -> bool:
    """Whether the views of one response may go through the model in several passes: whether the
    loss is a sum over views, as with a unit per prediction and a ratio per unit."""
    return settings.method.unit == "prediction" and settings.ratio != "sequence"


def check_rows(settings: RlRound, family: Family, stage: str) -> None:
    """Raises ParamsError if one response may need more tokens than `micro_batch_tokens` in a pass
    that cannot be split. Memory that is estimated from that limit is then right."""
    longest = longest_rl_row(settings, family)
    if not splits_views(settings) and longest > settings.micro_batch_tokens:
        raise ParamsError(
            "all views of a response go through the model in one pass, which may be larger than a "
            "micro-batch",
            where=f"{stage}: micro_batch_tokens",
            got=f"{settings.micro_batch_tokens:,}, with ratio {settings.ratio!r} and a likelihood "
            f"per {settings.method.unit}",
            wanted=f"at least {longest:,}",
            do="raise it (tracerl doctor says what that needs), shorten max_new_tokens, or use a "
            "ratio per token, whose views can be split",
        )


def longest_rl_row(settings: RlRound, family: Family) -> int:
    """The most tokens that have to go through the model in one pass: a prompt and a response of
    full length with one view, or with all of them where they cannot be split."""
    sampler = settings.sampler
    num_views = 1
    if not splits_views(settings):
        block, response = settings.train_block_size, sampler.max_new_tokens
        steps = num_trace_views(family.attention, block, settings.shrink, response)
        num_views = ESTIMATORS[type(settings.method)].num_views(settings.method, steps)
    return max_row_tokens(
        family,
        settings.train_block_size,
        sampler.max_prompt_tokens,
        sampler.max_new_tokens,
        num_views,
    )


@dataclass(frozen=True, kw_only=True)
class PolicyUpdate:
    """Updates the policy of a round."""

    trainer: Trainer[Policy]
    """The trainer of the policy."""
    settings: RlRound
    """The round, or the phase of it."""
    mask_id: int
    """Token id of the mask."""
    seed: int
    """The run's random seed."""
    stage: str
    """The stage; names the random streams."""
    reference: Policy | None = None
    """What the KL penalty is taken to; None for the policy of the iteration's start."""

    @property
    def method(self) -> Method:
        return self.settings.method

    def update(self, batches: Sequence[Batch], iteration: int) -> dict[str, float]:
        """One optimizer step for every batch and epoch; metrics, means over the steps."""
        draws = self.method.draws_views
        # The first batch's views serve once, before any update, unless they serve every epoch.
        once = draws or self.settings.epochs == 1
        prepared = []
        for number, batch in enumerate(batches):
            prepared.append(self.prepare(batch, iteration, 0, on_policy=once and number == 0))
        for epoch in range(1, self.settings.epochs):
            if not draws:
                prepared += prepared[: len(batches)]
                continue
            for batch in batches:
                prepared.append(self.prepare(batch, iteration, epoch))
        rows = list(map(self.step, prepared))
        metrics = {}
        for name in rows[0]:
            values = [row[name] for row in rows]
            total = name == "oversize_micro_batches"
            metrics[name] = sum(values) if total else float(np.mean(values))
        return metrics

    def prepare(
        self, batch: Batch, iteration: int, epoch: int, on_policy: bool = False
    ) -> list[MicroBatch]:
        """The micro-batches of one optimizer step, this rank's share of them.

        on_policy: whether that step is made with the policy as it is now, so that its own pass will
        give the old log-probabilities.
        """
        settings = self.settings
        family = self.trainer.model.family
        plans = [self.plan(trajectory, iteration, epoch) for trajectory in batch.trajectories]
        parts, part_plans = self._split(batch, plans)
        bundles, lengths = row_bundles(
            parts.trajectories,
            part_plans,
            settings.train_block_size,
            family,
            settings.group_tokens or 0,
        )
        tokens = 0.0
        for plan, trajectory in zip(plans, batch.trajectories, strict=True):
            tokens += num_units(self.method, plan, trajectory)
        divisor = denominator(
            settings.reduction, len(batch.trajectories), tokens, settings.sampler.max_new_tokens
        )
        packings = pack_padded(lengths, settings.micro_batch_tokens)
        prepared = []
        for packing, counts in distributed.shard_padded(packings):
            indices = list(itertools.chain.from_iterable(bundles[bundle] for bundle in packing))
            part = Batch(
                trajectories=[parts.trajectories[i] for i in indices],
                advantages=[parts.advantages[i] for i in indices],
                unit_totals=_select_totals(parts.unit_totals, indices),
            )
            micro_batch = self._micro_batch(
                part, [part_plans[i] for i in indices], divisor, counts, on_policy
            )
            prepared.append(micro_batch)
        return prepared

    def _split(self, batch: Batch, plans: list[Plan]) -> tuple[Batch, list[Plan]]:
        """The batch with every response whose rows hold more than `micro_batch_tokens` tokens in
        several parts, each with some of its views."""
        if not splits_views(self.settings):
            return batch, plans
        totals: list[float] = []
        parts = Batch(trajectories=[], advantages=[], unit_totals=totals)
        part_plans: list[Plan] = []
        for i, (trajectory, plan) in enumerate(zip(batch.trajectories, plans, strict=True)):
            views = split_plan(
                trajectory,
                plan,
                self.settings.train_block_size,
                self.trainer.model.family,
                self.settings.micro_batch_tokens,
            )
            for part in views:
                parts.trajectories.append(trajectory)
                parts.advantages.append(batch.advantages[i])
                totals.append(num_units(self.method, plan, trajectory))
                part_plans.append(part)
        if len(part_plans) == len(plans):
            return batch, plans
        return parts, part_plans

    def _micro_batch(
        self, batch: Batch, plans: list[Plan], divisor: float, counts: bool, on_policy: bool
    ) -> MicroBatch:
        settings = self.settings
        model = self.trainer.model
        views = build_views(
            batch.trajectories,
            plans,
            settings.train_block_size,
            model.family,
            self.mask_id,
            group_tokens=settings.group_tokens or 0,
        )
        units = units_of(self.method, views, [t.num_tokens for t in batch.trajectories])
        weights = unit_weights(settings.reduction, units, divisor, batch.unit_totals)
        weights = weights.to(model.device) * counts
        advantages = self._unit_advantages(batch, units)
        units = units.to(model.device)
        old = order = reference = None
        with torch.no_grad():
            if not on_policy:
                old, order = self._likelihoods(model.eval(), views, units, advantages)
            if self.reference is not None:
                reference, _ = self._likelihoods(self.reference, views, units, advantages)
        return MicroBatch(
            views=views,
            units=units,
            weights=weights,
            advantages=advantages,
            old_logprobs=old,
            reference_logprobs=reference,
            old_order=order,
            counts=counts,
        )

    def _unit_advantages(self, batch: Batch, units: Units) -> torch.Tensor:
        """[U]: of each unit, that of the token it names."""
        lengths = [len(trajectory.response_ids) for trajectory in batch.trajectories]
        starts = torch.tensor(np.cumsum([0, *lengths])[:-1])
        table = torch.from_numpy(np.concatenate(batch.advantages))
        model = self.trainer.model
        return table[starts[units.source] + units.token].to(
            model.device, torch.promote_types(model.dtype, torch.float32)
        )

    def _likelihoods(
        self, model: Policy, views: Views, units: Units, advantages: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-likelihood of every unit, and of its place in the order of commitment if the method
        scores that, both [U]."""
        logprobs, order = score_predictions(model, views, self.settings)
        return estimate_units(self.method, logprobs, units, views, advantages), order

    def plan(self, trajectory: Trajectory, iteration: int, epoch: int) -> Plan:
        """The method's views of a trajectory. Their noise is a function of the trajectory's
        content, not of its place in a batch."""
        content = trajectory.prompt_ids.tobytes() + b"|" + trajectory.response_ids.tobytes()
        key = hashlib.blake2b(content, digest_size=8).hexdigest()
        generator = generator_for(self.seed, self.stage, iteration, epoch, "views", key)
        return make_plan(trajectory, self.settings, self.trainer.model.family, generator)

    def step(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        """One optimizer step (in evaluation mode: no dropout in any RL pass), with its metrics."""
        stats = self.trainer.step(micro_batches, self.loss)
        sums = dict(stats.metrics)
        count = max(sums.pop("units"), 1)
        oversize = sums.pop("oversize_micro_batches")
        means = {name: value / count for name, value in sums.items()}
        row = {"loss": stats.loss, "grad_norm": stats.grad_norm, "lr": stats.lr, **means}
        return {**row, "oversize_micro_batches": oversize}

    def loss(self, batch: MicroBatch) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of a micro-batch, a scalar, and metrics that are sums over its units: `kl` (k3
        of the policy that sampled and the new one), `clip_fraction`, `units`; and
        `oversize_micro_batches`: 1 if it holds more than `micro_batch_tokens` tokens."""
        settings = self.settings
        units = batch.units
        new, order = self._likelihoods(
            self.trainer.model.eval(), batch.views, units, batch.advantages
        )
        old = new.detach() if batch.old_logprobs is None else batch.old_logprobs
        reference = old if batch.reference_logprobs is None else batch.reference_logprobs
        difference = new.detach() - old
        metrics = {
            "kl": batch.counts * float((torch.exp(difference) - 1 - difference).sum()),
            "clip_fraction": batch.counts * self._num_clipped(difference, settings.clip, units),
        }
        gain = policy_gain(
            settings.ratio, new, old, batch.advantages, settings.clip, units.source, units.weight
        )
        penalty = kl_penalty(settings.kl, new * units.size, reference * units.size) / units.size
        loss = policy_loss(gain, penalty, batch.weights, settings.kl_weight)
        if order is not None:
            order_loss, num_clipped = self._order_loss(batch, order)
            loss = loss + order_loss
            metrics["order_clip_fraction"] = batch.counts * num_clipped
        metrics["units"] = float(batch.counts * len(batch.weights))
        is_oversize = batch.views.input_ids.numel() > settings.micro_batch_tokens
        metrics["oversize_micro_batches"] = float(batch.counts and is_oversize)
        return loss, metrics

    def _order_loss(self, batch: MicroBatch, order: torch.Tensor) -> tuple[torch.Tensor, float]:
        """The order's part of the loss, and how many of its ratios were clipped."""
        settings = self.settings
        units = batch.units
        term = self.method.order_term
        assert term is not None, "a method that scores the order"
        clip, weight = term
        old = order.detach() if batch.old_order is None else batch.old_order
        gain = policy_gain(
            settings.ratio, order, old, batch.advantages, clip, units.source, units.weight
        )
        num_clipped = self._num_clipped(order.detach() - old, clip, units)
        return -weight * (batch.weights * gain).sum(), num_clipped

    def _num_clipped(
        self, difference: torch.Tensor, clip: tuple[float, float], units: Units
    ) -> float:
        """How many units have a ratio outside the clip."""
        if self.settings.ratio == "none":
            return 0.0
        if self.settings.ratio == "sequence":
            difference = response_mean(difference, units.source, units.weight)
        is_clipped = (difference < np.log1p(-clip[0])) | (difference > np.log1p(clip[1]))
        return float(is_clipped.sum())


def _select_totals(totals: Sequence[float] | None, indices: Sequence[int]) -> list[float] | None:
    return None if totals is None else [totals[i] for i in indices]
