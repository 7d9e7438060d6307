"""Advantages from the rewards of a prompt's group of responses or from a value model, and which
groups are worth training on."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ROUNDING = 1e-9  # relative difference up to which rewards count as equal


def group_advantages(kind: str, rewards: Floats) -> Floats:
    """Advantage of each response, float64 [group], from its group's rewards.

    group: z-score with the population deviation. mean: minus the group's mean. rloo: minus the mean
    of the others. All are 0 where the rewards are equal up to rounding.
    """
    if are_equal(rewards):
        return np.zeros_like(rewards)
    centred = rewards - rewards.mean()
    if kind == "group":
        return centred / rewards.std()
    if kind == "rloo":
        return centred * len(rewards) / (len(rewards) - 1)
    return centred


def are_equal(rewards: Floats) -> bool:
    """Whether rewards are equal up to rounding: a reward is a sum of weighted parts, whose value
    depends in its last bits on the order of the parts."""
    tolerance = ROUNDING * max(1.0, float(np.abs(rewards).max()))
    return float(rewards.max() - rewards.min()) <= tolerance


def keeps_group(rewards: Floats, pass_rate: tuple[float, float], graded: bool) -> bool:
    """Whether a group is trained on. rewards: those of its decided responses; of fewer than two
    none is better than another.

    Binary rewards (0, or what a correct response is paid): its pass rate lies inside `pass_rate`,
    bounds included. Graded rewards: they are not all equal up to rounding.
    """
    if len(rewards) < 2:
        return False
    if graded:
        return not are_equal(rewards)
    return bool(pass_rate[0] <= (rewards != 0.0).mean() <= pass_rate[1])


def outcome_rewards(reward: float, steps: npt.NDArray[np.int64]) -> Floats:
    """Reward of each trainable token, float64 [T], when a response is paid once: all of it on every
    token of the last step.

    steps: int64 [T], the step of each trainable token. The step's mean reward, which is what
    counts, is then the reward.
    """
    return np.where(steps == steps.max(initial=0), reward, 0.0)


def chunk_rewards(
    rewards: Floats, ends: npt.NDArray[np.int64], steps: npt.NDArray[np.int64]
) -> Floats:
    """Reward of each trainable token, float64 [T], of rewards for chunks: each on every token of
    the last step that lies in its chunk.

    rewards: float64 [C]. ends: int64 [C], chunk c holds the tokens ends[c - 1] to ends[c]. steps:
    int64 [T], the step of each token. The sum over steps of their mean rewards is then the sum of
    the rewards, as with `outcome_rewards`.
    """
    token_rewards = np.zeros(len(steps))
    for reward, start, end in zip(rewards, [0, *ends[:-1]], ends, strict=True):
        token_rewards += np.where(steps == steps[start:end].max(), reward, 0.0)
    return token_rewards


def chunk_advantages(kind: str, scores: list[Floats]) -> list[Floats]:
    """Standardised scores of the chunks of a group's responses: each with `group_advantages` over
    those that share its place.

    scores: float64 [C_i] per response, NaN where undecided. What is undecided, or the only one
    decided at its place, gets 0.
    """
    standard = [np.zeros(len(row)) for row in scores]
    for place in range(max(map(len, scores), default=0)):
        there = [i for i, row in enumerate(scores) if place < len(row) and not np.isnan(row[place])]
        if len(there) > 1:
            at_place = np.array([scores[i][place] for i in there])
            for i, value in zip(there, group_advantages(kind, at_place), strict=True):
                standard[i][place] = value
    return standard


def returns_and_advantages(
    rewards: Floats, values: Floats, steps: npt.NDArray[np.int64], discount: float, trace: float
) -> tuple[Floats, Floats]:
    """Returns R_j and advantages A_j of each trainable token of a response, float64 [T] (TraceRL,
    section 4.2).

    rewards, values: float64 [T]. steps: int64 [T], 0, 1, ..., S - 1 in the order of (block, group),
    none left out. With the means over a step r*, V* (zero beyond S - 1), gamma = discount and
    lambda = trace, backwards: R*_t = r*_t + gamma R*_{t+1}; delta*_t = r*_t - V*_t + gamma
    V*_{t+1}; A*_t = delta*_t + gamma lambda A*_{t+1}; and for tokens R_j = r_j + gamma R*_{t_j +
    1}; A_j = r_j - V_j + gamma V*_{t_j + 1} + gamma lambda A*_{t_j + 1}.
    """
    size = np.bincount(steps)
    step_reward = np.append(np.bincount(steps, weights=rewards) / size, 0.0)
    step_value = np.append(np.bincount(steps, weights=values) / size, 0.0)
    step_return = np.zeros_like(step_reward)
    step_advantage = np.zeros_like(step_reward)
    for step in range(len(size) - 1, -1, -1):
        step_return[step] = step_reward[step] + discount * step_return[step + 1]
        delta = step_reward[step] - step_value[step] + discount * step_value[step + 1]
        step_advantage[step] = delta + discount * trace * step_advantage[step + 1]
    after = steps + 1
    returns = rewards + discount * step_return[after]
    deltas = rewards - values + discount * step_value[after]
    return returns, deltas + discount * trace * step_advantage[after]


def explained_variance(values: Floats, returns: Floats) -> float:
    """1 - Var(R - V) / Var(R): 1 for a perfect value model, 0 for a constant; 0 where all returns
    are equal."""
    variance = float(returns.var())
    return 1.0 - float((returns - values).var()) / variance if variance else 0.0
