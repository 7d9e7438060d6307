"""What is predicted from what: the plans of all objectives, and the one place that makes noise.

A *plan* says for each view and each response token whether the view shows the token, masks it, or
masks and predicts it. Plans differ by objective (`trace_plan`, `segment_plan`, `random_plan`,
`coupled_plan`, ...); objectives/views.py lays any plan out as rows for a forward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracerl.errors import DataError
from tracerl.models.families import Family
from tracerl.types import Trajectory

Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
States = npt.NDArray[np.int8]

VISIBLE, MASKED, PREDICTED, CANDIDATE = 0, 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the views of one response hold.

    Example: the response [4 1 2 0] with step_map [1 2 3 3], of which 3 tokens are trainable, in one
    block. `trace_plan` with shrink 1 makes three views:
    Plan(states=[[2 1 1 1] [0 2 1 1] [0 0 2 1]], weights=ones of that shape).
    """

    states: States
    """int8 [views, R]: VISIBLE, MASKED, PREDICTED (masked and scored), or CANDIDATE (masked, not
    scored, but it could have been committed in place of a scored token)."""
    weights: npt.NDArray[np.float32]
    """float32 [views, R]: the objective's weight of each predicted token."""
    masked_prompt: Bools | None = None
    """bool [P]: prompt tokens that are masked in all views; None for none."""
    order: Integers | None = None
    """int64 [R]: place of every token in the order of commitment, where that order is scored."""
    causal: bool = False
    """Whether the tokens are predicted left to right from one clean row instead."""


@dataclass(frozen=True, kw_only=True)
class Masking:
    """How random noise is drawn."""

    block_size: int
    """Training block size, in tokens."""
    family: Family
    """The model family: its attention decides over which tokens a noise level is shared."""
    noise: tuple[float, float]
    """Bounds of the uniform distribution of the noise level t."""
    weighting: str
    """"inverse_t": a masked token weighs 1/t (an evidence bound when noise is (0, 1)); "uniform":
    it weighs 1."""


def concatenate_plans(plans: Sequence[Plan]) -> Plan:
    """The views of several plans of one response as one plan."""
    return Plan(
        states=np.concatenate([plan.states for plan in plans]),
        weights=np.concatenate([plan.weights for plan in plans]),
    )


def select_views(plan: Plan, views: Sequence[int]) -> Plan:
    """Some of a plan's views as a plan."""
    return replace(plan, states=plan.states[list(views)], weights=plan.weights[list(views)])


def scale_weights(plan: Plan, factor: float) -> Plan:
    """The plan with all weights multiplied by a factor."""
    return replace(plan, weights=(plan.weights * factor).astype(np.float32))


def grid_blocks(trajectory: Trajectory, block_size: int, family: Family) -> Integers:
    """Block of each response token, int64 [R], on the absolute grid; for full attention the whole
    response is one block."""
    positions = len(trajectory.prompt_ids) + np.arange(len(trajectory.response_ids))
    if family.attention == "block_causal":
        return positions // block_size
    return np.zeros_like(positions)


def sampling_blocks(trajectory: Trajectory, family: Family, block_size: int) -> Integers:
    """Block of each response token in the order of sampling, int64 [R]: on the grid, or counted
    from the response for full attention."""
    first = len(trajectory.prompt_ids) if family.attention == "block_causal" else 0
    return (first + np.arange(len(trajectory.response_ids))) // block_size


def trace_plan(trajectory: Trajectory, block_size: int, family: Family, shrink: int) -> Plan:
    """TraceRL's views: every `shrink` neighbouring distinct steps of a block are one group; view l
    predicts the l-th group of every block.

    Tokens of earlier groups are visible, those of later ones masked. Tokens after the first end
    token take their place in the order but are never predicted. A larger block than the rollout's
    holds several of its blocks, in the recorded order (block enlargement).
    """
    blocks = grid_blocks(trajectory, block_size, family)
    groups = _step_groups(trajectory, blocks, blocks, shrink)
    states = _group_states(groups, trajectory.num_tokens)
    states = states[(states == PREDICTED).any(1)]
    return Plan(states=states, weights=np.ones(states.shape, dtype=np.float32))


def trace_steps(trajectory: Trajectory, block_size: int, family: Family, shrink: int) -> Integers:
    """Number of the step of each trainable token, int64 [num_tokens]: the groups of `trace_plan` in
    the order of (block, group), from 0."""
    blocks = grid_blocks(trajectory, block_size, family)
    groups = _step_groups(trajectory, blocks, blocks, shrink)
    pairs = (blocks * len(blocks) + groups)[: trajectory.num_tokens]
    return dense_ranks(np.zeros_like(pairs), pairs)


def segment_plan(
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    shrink: int,
    segments: int,
    ordered: bool,
    generator: np.random.Generator,
) -> Plan:
    """StepMerge's views: `shrink` neighbouring steps of one rollout block are a segment, scored on
    the canvas before its first step.

    The views of `trace_plan`, except that a segment never crosses a rollout block, whatever the
    attention rule or the training block, and that only `segments` of those that hold a trainable
    token are scored, drawn without replacement (all, if there are fewer).
    ordered: also keep what the order of commitment was chosen from. Raises DataError if the
    trajectory does not record its order.
    """
    blocks = grid_blocks(trajectory, block_size, family)
    rollout_blocks = sampling_blocks(trajectory, family, trajectory.block_size)
    groups = _step_groups(trajectory, blocks, rollout_blocks, shrink)
    states = _group_states(groups, trajectory.num_tokens)
    trainable = np.unique(np.stack([blocks, groups])[:, : trajectory.num_tokens], axis=1).T
    draw = np.sort(generator.permutation(len(trainable))[:segments])
    is_scored = np.zeros(states.shape, dtype=bool)
    for block, group in trainable[draw]:
        segment = (blocks == block) & (groups == group)
        is_scored[group] |= segment
        if ordered:
            in_same_block = (rollout_blocks == rollout_blocks[segment][0]) & (blocks == block)
            still_masked = (groups >= group) & (states[group] != PREDICTED)
            states[group, in_same_block & still_masked] = CANDIDATE
    states[(states == PREDICTED) & ~is_scored] = MASKED
    states = states[(states == PREDICTED).any(1)]
    return Plan(
        states=states,
        weights=np.ones(states.shape, dtype=np.float32),
        order=_commitment_order(trajectory) if ordered else None,
    )


def _step_groups(
    trajectory: Trajectory, blocks: Integers, inner: Integers, shrink: int
) -> Integers:
    """Group of each response token, int64 [R], counted in its block: every `shrink` neighbouring
    distinct steps of an inner block."""
    group = dense_ranks(inner, trajectory.step_map.astype(np.int64)) // shrink
    return dense_ranks(blocks, inner * len(blocks) + group)


def dense_ranks(parts: Integers, values: Integers) -> Integers:
    """Rank of each value among the distinct values of its part, from 0; all int64 [N]."""
    order = np.lexsort((values, parts))
    starts_part, is_distinct = np.ones((2, len(values)), dtype=bool)
    np.not_equal(parts[order[1:]], parts[order[:-1]], out=starts_part[1:])
    np.not_equal(values[order[1:]], values[order[:-1]], out=is_distinct[1:])
    number = (starts_part | is_distinct).cumsum()
    ranks = np.empty_like(values)
    ranks[order] = number - np.maximum.accumulate(np.where(starts_part, number, 0))
    return ranks


def _group_states(group: Integers, num_tokens: int) -> States:
    """States in which view l predicts group l, shows earlier groups and masks later ones."""
    view = np.arange(group.max() + 1)[:, None]
    later = np.where(group == view, PREDICTED, MASKED)
    states = np.where(group < view, VISIBLE, later).astype(np.int8)
    states[:, num_tokens:][states[:, num_tokens:] == PREDICTED] = MASKED
    return states


def _commitment_order(trajectory: Trajectory) -> Integers:
    """Place of each response token in the order of commitment, int64 [R]: by step, inside a step by
    the recorded order."""
    if trajectory.order_in_step is None:
        raise DataError(
            "a trajectory does not record in which order its tokens were committed",
            where="a method that scores the order",
            wanted="responses sampled with remasking 'plackett_luce'",
        )
    place = np.empty(len(trajectory.step_map), dtype=np.int64)
    order = np.lexsort((trajectory.order_in_step, trajectory.step_map))
    place[order] = np.arange(len(place))
    return place


def random_plan(trajectory: Trajectory, masking: Masking, generator: np.random.Generator) -> Plan:
    """One view of random masking: a level t ~ U(noise) per block (per sequence for full attention),
    each token masked with probability t.

    A draw that masks nothing stays: it has no predicted token but its trainable tokens are counted
    in the denominator.
    """
    blocks = grid_blocks(trajectory, masking.block_size, masking.family)
    levels = _noise_levels(blocks, masking.noise, generator)
    is_masked = generator.random(len(levels)) < levels
    return Plan(
        states=_mask_states(is_masked, trajectory.num_tokens)[None],
        weights=_level_weights(levels[None], masking.weighting),
    )


def semi_ar_plan(trajectory: Trajectory, masking: Masking, generator: np.random.Generator) -> Plan:
    """Semi-autoregressive views: a level per block, and for full attention a view per block, in
    which earlier blocks are visible and later ones masked.

    With block-causal attention it is `random_plan`: later blocks are invisible anyway, and earlier
    ones clean. Views that mask nothing are left out.
    """
    if masking.family.attention == "block_causal":
        return random_plan(trajectory, masking, generator)
    blocks = sampling_blocks(trajectory, masking.family, masking.block_size)
    levels = _noise_levels(blocks, masking.noise, generator)
    is_masked = generator.random(len(levels)) < levels
    inside = _mask_states(is_masked, trajectory.num_tokens)
    view = np.unique(blocks)[:, None]
    later = np.where(blocks == view, inside, MASKED)
    states = np.where(blocks < view, VISIBLE, later).astype(np.int8)
    states = states[(states == PREDICTED).any(1)]
    weights = np.broadcast_to(_level_weights(levels, masking.weighting), states.shape)
    return Plan(states=states, weights=weights)


def causal_plan(trajectory: Trajectory) -> Plan:
    """Next-token prediction: every trainable token from the clean tokens before it, for families
    that shift their logits."""
    is_trainable = np.arange(len(trajectory.response_ids)) < trajectory.num_tokens
    states = np.where(is_trainable, PREDICTED, VISIBLE).astype(np.int8)[None]
    return Plan(states=states, weights=np.ones(states.shape, dtype=np.float32), causal=True)


def coupled_plan(trajectory: Trajectory, masking: Masking, generator: np.random.Generator) -> Plan:
    """A view of random masking and its complement, so that every token is masked in exactly one of
    the two.

    weighting "inverse_t" gives the weights 1/t and 1/(1 - t), "uniform" the weight 1.
    """
    blocks = grid_blocks(trajectory, masking.block_size, masking.family)
    levels = _noise_levels(blocks, masking.noise, generator)
    is_masked = generator.random(len(levels)) < levels
    first = _mask_states(is_masked, trajectory.num_tokens)
    second = _mask_states(~is_masked, trajectory.num_tokens)
    return Plan(
        states=np.stack([first, second]),
        weights=_level_weights(np.stack([levels, 1.0 - levels]), masking.weighting),
    )


def blockwise_plan(
    trajectory: Trajectory,
    family: Family,
    noise: tuple[float, float],
    generator: np.random.Generator,
) -> Plan:
    """One view as sampling in blocks sees a response: blocks before a drawn one visible, the drawn
    one partly masked, later ones wholly.

    The number of tokens masked in the drawn block is uniform between the two shares `noise` of its
    trainable tokens, at least one; both bounds included. Every masked trainable token is predicted
    and weighted by (trainable tokens) / (predicted tokens), an empirical 1/t.
    """
    blocks = sampling_blocks(trajectory, family, trajectory.block_size)
    count = trajectory.num_tokens
    block = generator.choice(np.unique(blocks[:count]))
    inside = np.flatnonzero(blocks[:count] == block)
    low = max(1, int(noise[0] * len(inside)))
    high = max(1, int(noise[1] * len(inside)))
    is_masked = blocks > block
    is_masked[generator.permutation(inside)[: int(generator.integers(low, high + 1))]] = True
    is_masked[count:] = True
    weight = count / is_masked[:count].sum()
    return Plan(
        states=_mask_states(is_masked, count)[None],
        weights=np.full((1, len(blocks)), weight, dtype=np.float32),
    )


def full_mask_plan(
    trajectory: Trajectory, prompt_rate: float, generator: np.random.Generator
) -> Plan:
    """One view of the wholly masked response after a prompt whose tokens are masked with
    probability `prompt_rate`."""
    everything = np.ones(len(trajectory.response_ids), dtype=bool)
    states = _mask_states(everything, trajectory.num_tokens)[None]
    masked_prompt = None
    if prompt_rate:
        masked_prompt = generator.random(len(trajectory.prompt_ids)) < prompt_rate
    return Plan(
        states=states,
        weights=np.ones(states.shape, dtype=np.float32),
        masked_prompt=masked_prompt,
    )


def _noise_levels(
    blocks: Integers, noise: tuple[float, float], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """A noise level per block, at each of its tokens."""
    return generator.uniform(*noise, size=int(blocks[-1] - blocks[0]) + 1)[blocks - blocks[0]]


def _level_weights(levels: npt.NDArray[np.float64], weighting: str) -> npt.NDArray[np.float32]:
    """Weight of a token masked at each noise level: 1/t for "inverse_t", 1 for "uniform"."""
    weights = 1.0 / levels if weighting == "inverse_t" else np.ones_like(levels)
    return weights.astype(np.float32)


def _mask_states(is_masked: Bools, num_tokens: int) -> States:
    """Masked tokens are predicted; those after the first end token are only masked."""
    states = np.where(is_masked, PREDICTED, VISIBLE).astype(np.int8)
    states[num_tokens:][is_masked[num_tokens:]] = MASKED
    return states
