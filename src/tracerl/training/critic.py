"""The value model of a round: step-wise values, the returns and advantages they give, and its own
update.

Values are read on the views of the recorded trajectory, whatever views the policy's method uses, so
that a token's value conditions on the steps before its own. Old values come from the model as it is
at the start of the iteration. The outcome reward is the one standardised in the group and sits on
the last step that holds a trainable token, process rewards on the last step of their chunks
(training/process.py); advantages are not standardised again.

Departures from the paper: steps are ordered by (block, group) and never merged across blocks; the
loss is a mean over all trainable tokens of the optimizer step, where the public code divides by the
padded length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tracerl import distributed
from tracerl.models.value import ValueModel
from tracerl.objectives.advantages import explained_variance, returns_and_advantages
from tracerl.objectives.losses import value_loss
from tracerl.objectives.plans import trace_plan
from tracerl.objectives.views import Views, build_views, num_layout_tokens
from tracerl.settings.training import Critic, RlRound
from tracerl.training.trainer import Trainer, packed
from tracerl.types import Trajectory

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """Some trajectories' views with old values, returns and advantages of their tokens, float64 [T]
    in the order of the views.

    counts: false for a repeated one that only gives this rank as many passes as the others have.
    """

    views: Views
    indices: list[int]
    old_values: Floats
    returns: Floats
    advantages: Floats
    counts: bool


def read_values(model: ValueModel, views: Views) -> torch.Tensor:
    """Values [T] at the predicted tokens of `views`."""
    device = model.value_head.weight.device
    values: torch.Tensor = model(
        views.input_ids.to(device),
        views.layout.to(device),
        (views.row.to(device), views.column.to(device)),
    )
    return values


def score(
    model: ValueModel,
    trajectories: Sequence[Trajectory],
    chosen: Sequence[int],
    rewards: Sequence[Floats],
    settings: RlRound,
    critic: Critic,
    mask_id: int,
) -> list[Scored]:
    """Values, returns and advantages of the trainable tokens of the chosen trajectories, in this
    rank's share of the micro-batches.

    rewards: of every trajectory, those of its trainable tokens, float64 [num_tokens].
    """
    family, size = model.transformer.family, settings.train_block_size
    plans = {i: trace_plan(trajectories[i], size, family, settings.shrink) for i in chosen}
    lengths = [num_layout_tokens(trajectories[i], plans[i], size, family) for i in chosen]
    scored = []
    for packing, counts in distributed.shard_padded(packed(lengths, settings.micro_batch_tokens)):
        indices = [int(chosen[i]) for i in packing]
        views = build_views(
            [trajectories[i] for i in indices], [plans[i] for i in indices], size, family, mask_id
        )
        with torch.no_grad():
            old = read_values(model.eval(), views).double().cpu().numpy()
        returns, advantages = np.empty_like(old), np.empty_like(old)
        for number, index in enumerate(indices):
            mine = (views.source == number).numpy()
            steps = np.unique(views.group[mine].numpy(), return_inverse=True)[1].reshape(-1)
            paid = rewards[index][views.token[mine].numpy()]
            returns[mine], advantages[mine] = returns_and_advantages(
                paid, old[mine], steps, critic.discount, critic.trace
            )
        scored.append(Scored(views, indices, old, returns, advantages, counts))
    return scored


def token_advantages(scored: Sequence[Scored], trajectories: Sequence[Trajectory]) -> list[Floats]:
    """The advantages of every rank's `score` at each response token, float64 [R] per trajectory; 0
    where nothing is trained."""
    own = []
    for part in scored:
        for number, index in enumerate(part.indices if part.counts else ()):
            mine = (part.views.source == number).numpy()
            own.append((index, part.views.token[mine].numpy(), part.advantages[mine]))
    tables = [np.zeros(len(trajectory.response_ids)) for trajectory in trajectories]
    for index, tokens, advantages in distributed.all_gather(own):
        tables[index][tokens] = advantages
    return tables


def update(trainer: Trainer[ValueModel], parts: Sequence[Sequence[Scored]], clip: float) -> None:
    """One optimizer step on each part: the clipped value loss, a mean over all its tokens."""

    def loss_of(batch: Scored, count: float) -> Callable[[], torch.Tensor]:
        def loss() -> torch.Tensor:
            values = read_values(trainer.model, batch.views)
            old, returns = (
                torch.from_numpy(x).to(values) for x in (batch.old_values, batch.returns)
            )
            return value_loss(
                values, old, returns, torch.full_like(values, batch.counts / count), clip
            )

        return loss

    for part in parts:
        count = distributed.all_reduce_sum(
            {"tokens": sum(len(scored.returns) for scored in part if scored.counts)}
        )["tokens"]
        trainer.step([loss_of(scored, count) for scored in part])


def explained(scored: Sequence[Scored]) -> dict[str, float]:
    """Explained variance and squared error (halved, a mean) of the old values over all tokens of
    all ranks."""
    values, returns = (
        np.concatenate(distributed.all_gather([getattr(s, name) for s in scored if s.counts]))
        for name in ("old_values", "returns")
    )
    return {
        "explained_variance": explained_variance(values, returns),
        "value_loss": float(0.5 * ((values - returns) ** 2).mean()),
    }
