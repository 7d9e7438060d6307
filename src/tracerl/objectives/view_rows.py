"""One row of a forward pass before padding: the canvas of a response and its views, as a family's
attention rule needs them.

* full attention: one row per view, the canvas with the view's positions masked;
* block-causal: one row per trajectory, `[clean | noisy_1 | ... | noisy_n]`, where a noisy view
  holds only the blocks in which it predicts something. The clean half never attends to a noisy one,
  so that one clean copy serves all views exactly (a test compares with separate rows).

Everything lies on the one absolute block grid of models/masks.py.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from tracerl.models.families import Family
from tracerl.models.masks import CLEAN, COMMON, block_starts_after
from tracerl.models.transformer import predictor_positions
from tracerl.objectives.plans import CANDIDATE, PREDICTED, VISIBLE, Plan, dense_ranks, grid_blocks
from tracerl.types import Trajectory

Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class RowTokens:
    """The n tokens of a response that one row predicts, or scores as candidates."""

    index: Integers
    """[n]: indices in the response."""
    group: Integers
    """[n]: number of each token's (block, view), from 0 without gaps."""
    target: Integers
    """[n]: the token ids of the response."""
    weight: npt.NDArray[np.float32]
    """[n]: the plan's weights."""
    is_predicted: Bools
    """[n]: whether each token is predicted; the others are candidates."""
    order: Integers | None
    """[n]: places in the order of commitment, where the plan scores it."""
    is_forced: Bools
    """[n]: whether the sampler had no choice among positions: the first token of each of its
    blocks, where a family crosses their edges."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row before padding, with the tokens that it predicts or scores as candidates."""

    ids: Integers
    """[length]: token ids."""
    positions: Integers
    """[length]: absolute positions."""
    blocks: Integers
    """[length]: attention blocks."""
    streams: Integers
    """[length]: streams of models/masks.py."""
    tokens: RowTokens
    """The n tokens that are read from this row."""
    columns: Integers
    """[n]: column of the hidden state that each of these tokens is read from."""
    prompt: npt.NDArray[np.int32]
    """The leading prompt tokens that other responses to the same prompt could share."""

    def share_prompt(self) -> "Row":
        """The row with its shareable prompt visible to every document of the row."""
        is_prompt = np.arange(len(self.streams)) < len(self.prompt)
        return replace(self, streams=np.where(is_prompt, COMMON, self.streams))

    def drop_prompt(self) -> "Row":
        """The row without its shareable prompt, of which nothing is predicted."""
        length = len(self.prompt)
        return replace(
            self,
            ids=self.ids[length:],
            positions=self.positions[length:],
            blocks=self.blocks[length:],
            streams=self.streams[length:],
            columns=self.columns - length,
        )


def make_rows(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int
) -> list[Row]:
    """The rows of one response."""
    if plan.causal:
        return [_causal_row(trajectory, plan, block_size, family)]
    if family.attention == "full":
        return _full_rows(trajectory, plan, block_size, family, mask_id)
    return [block_row(trajectory, plan, block_size, family, mask_id)]


def num_layout_tokens(trajectory: Trajectory, plan: Plan, block_size: int, family: Family) -> int:
    """Tokens that this trajectory's rows have together (for packing micro-batches)."""
    canvas = canvas_length_of(trajectory, block_size, family)
    if plan.causal:
        return len(trajectory.prompt_ids) + len(trajectory.response_ids)
    if family.attention == "full":
        return canvas * len(plan.states)
    predicts, numbers = _blocks_with(trajectory, block_size, family, plan.states == PREDICTED)
    sizes = np.minimum(canvas - numbers * block_size, block_size)
    return canvas + int((predicts * sizes).sum())


def shareable_prompt(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family
) -> npt.NDArray[np.int32]:
    """The prompt tokens whose hidden states are the same for every response and predict nothing of
    it: whole blocks, where attention is block-causal and nothing of the prompt is masked."""
    if family.attention == "full" or plan.causal or plan.masked_prompt is not None:
        return trajectory.prompt_ids[:0]
    length = len(trajectory.prompt_ids) - int(family.crosses_edges)
    return trajectory.prompt_ids[: length // block_size * block_size]


def _blocks_with(
    trajectory: Trajectory, block_size: int, family: Family, chosen: Bools
) -> tuple[Bools, Integers]:
    """Which blocks of the grid hold a chosen token in which view, bool [views, B], from bool
    [views, R]; and their numbers, int64 [B]."""
    blocks = grid_blocks(trajectory, block_size, family)
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    return np.logical_or.reduceat(chosen, starts, axis=1), blocks[starts]


def canvas_length_of(trajectory: Trajectory, block_size: int, family: Family) -> int:
    """Tokens of the canvas: what the sampler saw, completed to whole training blocks where the
    family's last block is whole."""
    if family.attention == "block_causal" and not family.short_last_block:
        return block_starts_after(trajectory.canvas_length, block_size)
    return trajectory.canvas_length


def _canvas(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int
) -> Integers:
    """Prompt, response, and the mask on what the sampler never reached and on the prompt tokens
    that the plan masks."""
    canvas = np.full(canvas_length_of(trajectory, block_size, family), mask_id, dtype=np.int64)
    known = np.concatenate([trajectory.prompt_ids, trajectory.response_ids])
    canvas[: len(known)] = known
    if plan.masked_prompt is not None:
        canvas[: len(plan.masked_prompt)][plan.masked_prompt] = mask_id
    return canvas


def _full_rows(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int
) -> list[Row]:
    canvas = _canvas(trajectory, plan, block_size, family, mask_id)
    prompt = len(trajectory.prompt_ids)
    response = len(trajectory.response_ids)
    zeros = np.zeros_like(canvas)
    rows = []
    for view, states in enumerate(plan.states):
        ids = canvas.copy()
        ids[prompt : prompt + response][states != VISIBLE] = mask_id
        tokens = np.flatnonzero((states == PREDICTED) | (states == CANDIDATE))
        views = np.full(len(tokens), view)
        row = Row(
            ids=ids,
            positions=np.arange(len(canvas)),
            blocks=zeros,
            streams=zeros + CLEAN,
            columns=predictor_positions(torch.from_numpy(prompt + tokens), family).numpy(),
            tokens=_row_tokens(trajectory, plan, block_size, family, views, tokens),
            prompt=shareable_prompt(trajectory, plan, block_size, family),
        )
        rows.append(row)
    return rows


def _causal_row(trajectory: Trajectory, plan: Plan, block_size: int, family: Family) -> Row:
    """Prompt and response, clean, every position a block of its own: it sees itself and what stands
    before it."""
    ids = np.concatenate([trajectory.prompt_ids, trajectory.response_ids]).astype(np.int64)
    positions = np.arange(len(ids))
    tokens = np.flatnonzero(plan.states[0] == PREDICTED)
    predicted_at = torch.from_numpy(len(trajectory.prompt_ids) + tokens)
    return Row(
        ids=ids,
        positions=positions,
        blocks=positions,
        streams=np.zeros_like(positions) + CLEAN,
        columns=predictor_positions(predicted_at, family).numpy(),
        tokens=_row_tokens(trajectory, plan, block_size, family, np.zeros_like(tokens), tokens),
        prompt=trajectory.prompt_ids[:0],
    )


def block_row(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int
) -> Row:
    """[clean | noisy views], each noisy view only with the blocks in which it predicts something.

    The predictor of a token lies in its own noisy block or, where a family crosses the edges of
    blocks, of a block's first token in the clean block before it.
    """
    canvas = _canvas(trajectory, plan, block_size, family, mask_id)
    prompt = len(trajectory.prompt_ids)
    response = len(trajectory.response_ids)
    chosen = (plan.states == PREDICTED) | (plan.states == CANDIDATE)
    holds, numbers = _blocks_with(trajectory, block_size, family, chosen)
    view, block = holds.nonzero()
    # Absolute positions of the noisy blocks, [noisy blocks, K], view by view.
    noisy_at = numbers[block][:, None] * block_size + np.arange(block_size)
    inside = noisy_at < len(canvas)  # the last block may be short
    sizes = inside.sum(1)
    noisy_at = noisy_at[inside]
    noisy_view = view.repeat(sizes)
    is_masked = np.zeros((len(plan.states), len(canvas)), dtype=bool)
    is_masked[:, prompt : prompt + response] = plan.states != VISIBLE
    noisy = np.where(is_masked[noisy_view, noisy_at], mask_id, canvas[noisy_at])
    positions = np.concatenate([np.arange(len(canvas)), noisy_at])
    noisy_streams = noisy_view + 1
    views, tokens = chosen.nonzero()
    nth_noisy_block = holds.cumsum().reshape(holds.shape) - 1
    at = prompt + tokens
    predictor = predictor_positions(torch.from_numpy(at), family).numpy()
    noisy_start = len(canvas) + sizes.cumsum() - sizes
    own_block = noisy_start[nth_noisy_block[views, at // block_size - prompt // block_size]]
    is_inside = predictor // block_size == at // block_size
    columns = np.where(is_inside, own_block + predictor % block_size, predictor)
    return Row(
        ids=np.concatenate([canvas, noisy]),
        positions=positions,
        blocks=positions // block_size,
        streams=np.concatenate([np.full(len(canvas), CLEAN), noisy_streams]),
        columns=columns,
        tokens=_row_tokens(trajectory, plan, block_size, family, views, tokens),
        prompt=shareable_prompt(trajectory, plan, block_size, family),
    )


def _row_tokens(
    trajectory: Trajectory,
    plan: Plan,
    block_size: int,
    family: Family,
    views: Integers,
    index: Integers,
) -> RowTokens:
    """What the plan says of some response tokens, each in one view. views, index: int64 [n]."""
    blocks = grid_blocks(trajectory, block_size, family)[index]
    at_edge = (len(trajectory.prompt_ids) + index) % trajectory.block_size == 0
    return RowTokens(
        index=index,
        group=dense_ranks(np.zeros_like(index), blocks * len(plan.states) + views),
        target=trajectory.response_ids[index].astype(np.int64),
        weight=plan.weights[views, index],
        is_predicted=plan.states[views, index] == PREDICTED,
        order=None if plan.order is None else plan.order[index],
        is_forced=at_edge & family.crosses_edges,
    )
