"""The value model of a round: step-wise values, the returns and advantages they give, and its own
update.

Values are read on the views of the recorded trajectory, whatever views the policy's method uses, so
that a token's value conditions on the steps before its own. Old values come from the model as it is
at the start of the iteration. The outcome reward is the one standardised in the group and sits on
the last step that holds a trainable token, process rewards on the last step of their chunks
(training/process_rewards.py); advantages are not standardised again.

Departures from the paper: steps are ordered by (block, group) and never merged across blocks; the
loss is a mean over all trainable tokens of the optimizer step, where the public code divides by the
padded length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from tracerl import distributed
from tracerl.models.value import ValueModel
from tracerl.objectives.advantages import explained_variance, returns_and_advantages
from tracerl.objectives.losses import value_loss
from tracerl.objectives.plans import Plan, trace_plan, trace_steps
from tracerl.objectives.view_rows import num_layout_tokens
from tracerl.objectives.views import Views, build_views, split_plan
from tracerl.settings.rounds import Critic as CriticSettings
from tracerl.settings.rounds import RlRound
from tracerl.training.trainer import Trainer, pack_padded
from tracerl.types import Trajectory

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ValueTargets:
    """One micro-batch of the value model: T predicted tokens and what their values should be."""

    views: Views
    """The recorded trajectories' views."""
    indices: list[int]
    """Index of each of the views' trajectories among all of the iteration."""
    old_values: Floats
    """float64 [T], in the order of the views: values at the start of the iteration."""
    returns: Floats
    """float64 [T]: what the value model is fitted to."""
    advantages: Floats
    """float64 [T]: what the policy is trained with."""
    counts: bool
    """False for a repeat that only gives this rank as many passes as the others have."""


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """One forward pass of the value model over some views of some trajectories."""

    indices: list[int]
    views: Views
    values: Floats
    counts: bool


@dataclass(frozen=True, kw_only=True)
class Critic:
    """A round's value model with its trainer."""

    settings: CriticSettings
    """Discount, trace, clip, and how often it is updated."""
    trainer: Trainer[ValueModel]
    """The trainer of the value model."""

    def compute_targets(
        self,
        trajectories: Sequence[Trajectory],
        chosen: Sequence[int],
        rewards: Sequence[Floats],
        settings: RlRound,
        mask_id: int,
    ) -> list[ValueTargets]:
        """Values, returns and advantages of the trainable tokens of the chosen trajectories, in
        this rank's share of the micro-batches.

        rewards: of every trajectory, those of its trainable tokens, float64 [num_tokens].
        """
        passes = self._read_values(trajectories, chosen, settings, mask_id)
        values = _token_values(passes, trajectories)
        family = self.trainer.model.transformer.family
        tables: dict[int, tuple[Floats, Floats]] = {}
        for i in chosen:
            steps = trace_steps(trajectories[i], settings.train_block_size, family, settings.shrink)
            tables[i] = returns_and_advantages(
                rewards[i], values[i], steps, self.settings.discount, self.settings.trace
            )
        targets = []
        for done in passes:
            returns, advantages = np.empty((2, len(done.values)))
            for number, i in enumerate(done.indices):
                here, tokens = _tokens_of(done.views, number)
                returns[here] = tables[i][0][tokens]
                advantages[here] = tables[i][1][tokens]
            targets.append(
                ValueTargets(
                    views=done.views,
                    indices=done.indices,
                    old_values=done.values,
                    returns=returns,
                    advantages=advantages,
                    counts=done.counts,
                )
            )
        return targets

    def _read_values(
        self,
        trajectories: Sequence[Trajectory],
        chosen: Sequence[int],
        settings: RlRound,
        mask_id: int,
    ) -> list["_Pass"]:
        """This rank's passes over the chosen trajectories; a long one is split over several."""
        model = self.trainer.model.eval()
        family = model.transformer.family
        size = settings.train_block_size
        limit = settings.micro_batch_tokens
        parts: list[tuple[int, Plan]] = []
        for i in chosen:
            plan = trace_plan(trajectories[i], size, family, settings.shrink)
            for part in split_plan(trajectories[i], plan, size, family, limit):
                parts.append((int(i), part))
        lengths = [num_layout_tokens(trajectories[i], plan, size, family) for i, plan in parts]
        passes = []
        for packing, counts in distributed.shard_padded(pack_padded(lengths, limit)):
            indices = []
            plans = []
            for i in packing:
                index, plan = parts[i]
                indices.append(index)
                plans.append(plan)
            batch = [trajectories[i] for i in indices]
            views = build_views(batch, plans, size, family, mask_id)
            with torch.no_grad():
                values = read_values(model, views).double().cpu().numpy()
            passes.append(_Pass(indices=indices, views=views, values=values, counts=counts))
        return passes

    def update(self, parts: Sequence[Sequence[ValueTargets]]) -> None:
        """One optimizer step on each part: the clipped value loss, a mean over all its tokens."""
        for part in parts:
            on_rank = sum(len(targets.returns) for targets in part if targets.counts)
            count = distributed.all_reduce_sum({"tokens": on_rank})["tokens"]
            self.trainer.step(part, partial(self.loss, num_tokens=count))

    def loss(
        self, targets: ValueTargets, num_tokens: float
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The value loss of a micro-batch, a scalar, without metrics. num_tokens: of the whole
        optimizer step."""
        values = read_values(self.trainer.model, targets.views)
        loss = value_loss(
            values,
            torch.from_numpy(targets.old_values).to(values),
            torch.from_numpy(targets.returns).to(values),
            torch.full_like(values, targets.counts / num_tokens),
            self.settings.clip,
        )
        return loss, {}


def read_values(model: ValueModel, views: Views) -> torch.Tensor:
    """Values [T] at the predicted tokens of `views`."""
    device = model.value_head.weight.device
    values: torch.Tensor = model(
        views.input_ids.to(device),
        views.layout.to(device),
        (views.row.to(device), views.column.to(device)),
    )
    return values


def _token_values(passes: Sequence[_Pass], trajectories: Sequence[Trajectory]) -> list[Floats]:
    """The value of every trainable token, float64 [num_tokens] per trajectory, from the passes of
    all ranks; 0 where none was read."""
    shard = []
    for done in passes:
        if not done.counts:
            continue
        for number, index in enumerate(done.indices):
            here, tokens = _tokens_of(done.views, number)
            shard.append((index, tokens, done.values[here]))
    tables = [np.zeros(trajectory.num_tokens) for trajectory in trajectories]
    for index, tokens, values in distributed.all_gather(shard):
        tables[index][tokens] = values
    return tables


def _tokens_of(views: Views, number: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which predictions of the views are of one of their trajectories, bool [T], and of which of
    its tokens, int64."""
    here = (views.source == number).numpy()
    return here, views.token.numpy()[here]


def token_advantages(
    parts: Sequence[ValueTargets], trajectories: Sequence[Trajectory]
) -> list[Floats]:
    """The advantages of all ranks' targets at each response token, float64 [R] per trajectory; 0
    where nothing is trained."""
    shard = []
    for part in parts:
        if not part.counts:
            continue
        for number, index in enumerate(part.indices):
            here, tokens = _tokens_of(part.views, number)
            shard.append((index, tokens, part.advantages[here]))
    tables = [np.zeros(len(trajectory.response_ids)) for trajectory in trajectories]
    for index, tokens, advantages in distributed.all_gather(shard):
        tables[index][tokens] = advantages
    return tables


def value_metrics(parts: Sequence[ValueTargets]) -> dict[str, float]:
    """Explained variance and squared error (halved, a mean) of the old values over all tokens of
    all ranks."""
    rank_values = []
    rank_returns = []
    for part in parts:
        if part.counts:
            rank_values.append(part.old_values)
            rank_returns.append(part.returns)
    values = np.concatenate(distributed.all_gather(rank_values))
    returns = np.concatenate(distributed.all_gather(rank_returns))
    return {
        "explained_variance": explained_variance(values, returns),
        "value_loss": float(0.5 * ((values - returns) ** 2).mean()),
    }
