"""Advantages from the rewards of a prompt's group of responses, and which groups are worth training on."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def group_advantages(kind: str, rewards: Floats) -> Floats:
    """Advantage of each response, float64 [group], from its group's rewards.

    group: z-score with the population deviation, 0 when all are equal. mean: minus the group's mean. rloo: minus the mean of the others.
    """
    centred = rewards - rewards.mean()
    if kind == "group":
        # Equal rewards are asked for directly: their computed deviation can be a rounding error instead of zero.
        return centred / rewards.std() if rewards.min() != rewards.max() else np.zeros_like(rewards)
    if kind == "rloo":
        return centred * len(rewards) / (len(rewards) - 1)
    return centred


def keeps_group(rewards: Floats, pass_rate: tuple[float, float]) -> bool:
    """Whether a group is trained on.

    Binary rewards: its pass rate lies inside `pass_rate`, bounds included. Graded rewards: they are not all equal.
    """
    if np.isin(rewards, (0.0, 1.0)).all():
        return bool(pass_rate[0] <= rewards.mean() <= pass_rate[1])
    return bool(rewards.min() != rewards.max())
