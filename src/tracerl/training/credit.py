"""Credit assignment: from the rewards of groups of responses to an advantage for every token.

Without a value model a token gets the advantage of its response in the group, and from its step on
what the process rewards pay. With one, it gets the generalised advantage of its step
(training/critic.py).
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracerl.models.families import Family
from tracerl.models.tokenizer import Tokenizer
from tracerl.objectives.advantages import group_advantages, outcome_rewards
from tracerl.objectives.methods import weigh_advantages
from tracerl.objectives.plans import trace_steps
from tracerl.seeds import generator_for
from tracerl.settings.rounds import RlRound
from tracerl.training.critic import Critic, token_advantages, value_metrics
from tracerl.training.process_rewards import process_advantages, token_process_rewards
from tracerl.types import Rollout, Trajectory

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class AdvantageEstimator:
    """Estimates the advantages of an iteration's groups; updates the value model if there is
    one."""

    settings: RlRound
    """The round, or the phase of it."""
    family: Family
    """The policy's family."""
    tokenizer: Tokenizer
    """Its mask and end tokens."""
    seed: int
    """The run's random seed."""
    stage: str
    """The stage; names the random stream of the value model's updates."""
    critic: Critic | None = None
    """The value model, for advantages "gae"."""

    def estimate(
        self, groups: Sequence[Sequence[Rollout]], iteration: int
    ) -> tuple[list[list[Floats]], dict[str, float]]:
        """Advantage of each response token of each rollout, float64 [R], and the value model's
        metrics before its update."""
        if self.critic is not None:
            return self._estimate_with_critic(self.critic, groups, iteration)
        tables = []
        for group in groups:
            outcomes = group_advantages(self.settings.advantages, _rewards(group))
            outcomes = weigh_advantages(self.settings.method, outcomes)
            tables.append(
                [self._response_advantages(r, a) for r, a in zip(group, outcomes, strict=True)]
            )
        return tables, {}

    def _estimate_with_critic(
        self, critic: Critic, groups: Sequence[Sequence[Rollout]], iteration: int
    ) -> tuple[list[list[Floats]], dict[str, float]]:
        trajectories: list[Trajectory] = []
        rewards: list[Floats] = []
        for group in groups:
            outcomes = group_advantages("group", _rewards(group))
            for rollout, outcome in zip(group, outcomes, strict=True):
                trajectories.append(self.trainable(rollout))
                rewards.append(self.token_rewards(rollout, float(outcome)))
        stream = generator_for(self.seed, self.stage, iteration, "value updates")
        order = stream.permutation(len(trajectories))
        parts = []
        for part in np.array_split(order, critic.settings.updates):
            if len(part):
                targets = critic.compute_targets(
                    trajectories, part.tolist(), rewards, self.settings, self.tokenizer.mask_id
                )
                parts.append(targets)
        everything = list(itertools.chain.from_iterable(parts))
        tables = iter(token_advantages(everything, trajectories))
        metrics = value_metrics(everything)
        if (iteration - 1) % critic.settings.every == 0:
            critic.update(parts)
        return [list(itertools.islice(tables, len(group))) for group in groups], metrics

    def trainable(self, rollout: Rollout) -> Trajectory:
        """The rollout's trajectory with up to `num_pad` of the end tokens that follow the first one
        made trainable."""
        return extend_over_end_tokens(
            rollout.trajectory, self.settings.num_pad, self.tokenizer.end_ids
        )

    def token_rewards(self, rollout: Rollout, outcome: float) -> Floats:
        """Reward of each trainable token, float64 [num_tokens]: the outcome on the last step,
        process rewards where their chunks end."""
        steps = self._steps(self.trainable(rollout))
        return outcome_rewards(outcome, steps) + token_process_rewards(rollout, steps)

    def _response_advantages(self, rollout: Rollout, outcome: float) -> Floats:
        """Advantage of each response token, float64 [R]: the outcome's, and from each token on what
        its steps are paid."""
        table = np.full(len(rollout.trajectory.response_ids), outcome)
        if rollout.chunks is not None:
            steps = self._steps(self.trainable(rollout))
            table[: len(steps)] += process_advantages(rollout, steps)
        return table

    def _steps(self, trajectory: Trajectory) -> npt.NDArray[np.int64]:
        settings = self.settings
        return trace_steps(trajectory, settings.train_block_size, self.family, settings.shrink)


def extend_over_end_tokens(
    trajectory: Trajectory, num_pad: int, end_ids: Collection[int]
) -> Trajectory:
    """The trajectory with up to `num_pad` of the end tokens that follow the first one made
    trainable."""
    last = trajectory.num_tokens
    limit = min(trajectory.num_tokens + num_pad, len(trajectory.response_ids))
    while last < limit and trajectory.response_ids[last] in end_ids:
        last += 1
    return replace(trajectory, num_tokens=last)


def _rewards(group: Sequence[Rollout]) -> Floats:
    return np.array([rollout.reward for rollout in group], dtype=np.float64)
