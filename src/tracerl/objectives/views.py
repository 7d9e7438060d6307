"""Views: plans laid out as rows for one forward pass, for a family's attention rule.

* full attention: one row per view, the canvas with the view's positions masked;
* block-causal: one row per trajectory, `[clean | noisy_1 | ... | noisy_n]`, where a noisy view
  holds only the blocks in which it predicts something. The clean half never attends to a noisy one,
  so that one clean copy serves all views exactly (a test compares with separate rows).

Everything lies on the one absolute block grid of models/masks.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from tracerl.models.families import Family
from tracerl.models.masks import CLEAN, COMMON, DOCUMENT, PAD, Layout, block_starts_after
from tracerl.models.transformer import predictor_positions
from tracerl.objectives.plans import (
    CANDIDATE,
    PREDICTED,
    VISIBLE,
    Plan,
    dense_ranks,
    grid_blocks,
    select_views,
)
from tracerl.types import Trajectory

Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class OrderCandidates:
    """From which positions each predicted token was chosen: one choice set per predicted segment,
    its C entries in the order of commitment. Entry k was chosen among the entries k, k + 1, ... of
    its choice set.
    """

    row: torch.Tensor
    """int64 [C]: row of the hidden state that scores each entry."""
    column: torch.Tensor
    """int64 [C]: column of that hidden state."""
    choice_set: torch.Tensor
    """int64 [C]: number of the entry's choice set, ascending."""
    place: torch.Tensor
    """int64 [C]: 0, 1, ... inside each choice set."""
    chosen: torch.Tensor
    """int64 [T]: the entry of each predicted token."""


@dataclass(frozen=True, kw_only=True)
class Views:
    """Rows ready for one forward pass, and the T tokens that this pass predicts.

    Law (TraceRL): over the views of one trajectory every trainable token is predicted exactly once.

    Example: prompt [7 9], response [4 1 2 0] with step_map [1 2 3 3], 3 trainable tokens, block
    size 2, a block-causal family that does not shift, mask id 0. The two noisy views predict the
    first and the second step of each block:
    input_ids [[7 9 4 1 2 0 | 0 0 0 0 | 4 0]], row [0 0 0], column [6 8 11], targets [4 2 1],
    source [0 0 0], token [0 2 1], group [0 2 1], weight [1 1 1].
    """

    input_ids: torch.Tensor
    """int64 [rows, length]: token ids, right-padded."""
    layout: Layout
    """Positions, blocks and streams, each int64 [rows, length]."""
    row: torch.Tensor
    """int64 [T]: row of the hidden state that predicts each token."""
    column: torch.Tensor
    """int64 [T]: its column; a family's shift is included."""
    targets: torch.Tensor
    """int64 [T]: the token ids to predict."""
    source: torch.Tensor
    """int64 [T]: index of the trajectory that each token belongs to."""
    token: torch.Tensor
    """int64 [T]: index of each token in its trajectory's response."""
    group: torch.Tensor
    """int64 [T]: number of the token's (block, step group), counted over the batch."""
    weight: torch.Tensor
    """float32 [T]: the objective's weight of each token before any reduction."""
    candidates: OrderCandidates | None = None
    """What the order of commitment is scored with, for the method that scores it."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One row before padding, with the tokens that it predicts or scores as candidates."""

    ids: Integers
    """[length]: token ids."""
    positions: Integers
    """[length]: absolute positions."""
    blocks: Integers
    """[length]: attention blocks."""
    streams: Integers
    """[length]: streams of models/masks.py."""
    columns: Integers
    """[n]: column of the hidden state for each token of `tokens`."""
    tokens: Integers
    """[n]: indices in the response."""
    views: Integers
    """[n]: the view of each token of `tokens`."""
    prompt: npt.NDArray[np.int32]
    """The leading prompt tokens that other responses to the same prompt could share."""

    def select(self, chosen: Bools) -> "_Row":
        """The row with some of its tokens."""
        return replace(
            self, columns=self.columns[chosen], tokens=self.tokens[chosen], views=self.views[chosen]
        )

    def share_prompt(self) -> "_Row":
        """The row with its shareable prompt visible to every document of the row."""
        is_prompt = np.arange(len(self.streams)) < len(self.prompt)
        return replace(self, streams=np.where(is_prompt, COMMON, self.streams))

    def drop_prompt(self) -> "_Row":
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


@dataclass(frozen=True, kw_only=True)
class _Places:
    """Where each of n rows ends up in the padded table; all int64 [n]."""

    row: Integers
    """Row of the table."""
    start: Integers
    """Its first column."""
    document: Integers
    """Its number among the documents of that row."""


def num_layout_tokens(trajectory: Trajectory, plan: Plan, block_size: int, family: Family) -> int:
    """Tokens that this trajectory's rows will have together (for packing micro-batches)."""
    canvas = _canvas_length(trajectory, block_size, family)
    if plan.causal:
        return len(trajectory.prompt_ids) + len(trajectory.response_ids)
    if family.attention == "full":
        return canvas * len(plan.states)
    predicts, _ = _blocks_with(trajectory, block_size, family, plan.states == PREDICTED)
    return canvas + block_size * int(predicts.sum())


def max_row_tokens(
    family: Family, block_size: int, prompt_tokens: int, response_tokens: int, num_views: int = 1
) -> int:
    """The most tokens that the rows of one response can have. num_views: the views that must go
    through the model together; 1 where they are split over several passes."""
    canvas = prompt_tokens + response_tokens
    if family.attention == "full":
        return num_views * canvas
    canvas = block_starts_after(canvas, block_size)
    # The response may begin inside a block.
    noisy = min(block_starts_after(response_tokens + block_size - 1, block_size), canvas)
    return canvas + num_views * noisy


def split_plan(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family, max_tokens: int
) -> list[Plan]:
    """The plan in parts of whole views, each with rows of at most `max_tokens` tokens, or of one
    view if that alone has more.

    With block-causal attention every part recomputes the clean copy, which never attends to a noisy
    view: losses that are sums over views, and their gradients, stay equal.
    """
    if plan.causal or num_layout_tokens(trajectory, plan, block_size, family) <= max_tokens:
        return [plan]
    canvas = _canvas_length(trajectory, block_size, family)
    parts: list[list[int]] = []
    total = 0
    for view in range(len(plan.states)):
        single = select_views(plan, [view])
        length = num_layout_tokens(trajectory, single, block_size, family)
        added = length if family.attention == "full" else length - canvas
        if parts and total + added <= max_tokens:
            parts[-1].append(view)
            total += added
        else:
            parts.append([view])
            total = length
    return [select_views(plan, part) for part in parts]


def row_bundles(
    trajectories: Sequence[Trajectory],
    plans: Sequence[Plan],
    block_size: int,
    family: Family,
    group_tokens: int,
) -> tuple[list[list[int]], list[int]]:
    """Indices of neighbours whose rows `build_views` will put into one row, and the number of
    tokens of each of those rows (for packing micro-batches)."""
    lengths = []
    prompts = []
    for trajectory, plan in zip(trajectories, plans, strict=True):
        lengths.append(num_layout_tokens(trajectory, plan, block_size, family))
        prompts.append(_shareable_prompt(trajectory, plan, block_size, family))
    bundles: list[list[int]] = []
    totals: list[int] = []
    for index, joins in enumerate(_joins(lengths, prompts, group_tokens)):
        if joins:
            bundles[-1].append(index)
            totals[-1] += lengths[index] - len(prompts[index])
        else:
            bundles.append([index])
            totals.append(lengths[index])
    return bundles, totals


def build_views(
    trajectories: Sequence[Trajectory],
    plans: Sequence[Plan],
    block_size: int,
    family: Family,
    mask_id: int,
    row_tokens: int = 0,
    group_tokens: int = 0,
) -> Views:
    """Lays plans out for one forward pass. Rows are right-padded; `source` counts `trajectories`.

    row_tokens: neighbouring rows are put into one as long as it holds no more tokens than that, as
    documents that do not see each other.
    group_tokens: the same for neighbours with one prompt only, which then share one copy of its
    whole blocks (block-causal attention).
    """
    rows: list[_Row] = []
    source: list[Integers] = []
    group: list[Integers] = []
    weight: list[npt.NDArray[np.float32]] = []
    targets: list[Integers] = []
    candidates: list[OrderCandidates] = []
    num_groups = 0
    num_candidates = 0
    for index, (trajectory, plan) in enumerate(zip(trajectories, plans, strict=True)):
        blocks = grid_blocks(trajectory, block_size, family)
        for row in _rows_of(trajectory, plan, block_size, family, mask_id):
            ranks = dense_ranks(
                np.zeros_like(row.tokens), blocks[row.tokens] * len(plan.states) + row.views
            )
            groups = ranks + num_groups
            is_scored = plan.states[row.views, row.tokens] == PREDICTED
            if plan.order is not None:
                entries = _order_candidates(
                    row, groups, plan.order, is_scored, len(rows), num_candidates
                )
                candidates.append(entries)
                num_candidates += len(groups)
            scored = row.select(is_scored)
            rows.append(scored)
            source.append(np.full(len(scored.tokens), index))
            weight.append(plan.weights[scored.views, scored.tokens])
            targets.append(trajectory.response_ids[scored.tokens].astype(np.int64))
            group.append(groups[is_scored])
            num_groups += int(ranks.max(initial=-1)) + 1
    joins = _row_joins(rows, row_tokens, group_tokens)
    rows, dropped = _share_prompts(rows, joins) if group_tokens else (rows, [0] * len(rows))
    places = _place_rows(rows, joins)
    row_of = [np.full(len(row.tokens), places.row[i]) for i, row in enumerate(rows)]
    column = [row.columns + places.start[i] for i, row in enumerate(rows)]
    input_ids, layout = _pad_rows(rows, places, mask_id)
    return Views(
        input_ids=input_ids,
        layout=layout,
        row=_concatenate(row_of),
        column=_concatenate(column),
        targets=_concatenate(targets),
        source=_concatenate(source),
        token=_concatenate([row.tokens for row in rows]),
        group=_concatenate(group),
        weight=torch.from_numpy(np.concatenate(weight)) if weight else torch.zeros(0),
        candidates=_place_candidates(candidates, places, dropped) if candidates else None,
    )


def _rows_of(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int
) -> list[_Row]:
    if plan.causal:
        return [_causal_row(trajectory, plan, family)]
    if family.attention == "full":
        return _full_rows(trajectory, plan, block_size, family, mask_id)
    return [_block_row(trajectory, plan, block_size, family, mask_id)]


def _row_joins(rows: Sequence[_Row], row_tokens: int, group_tokens: int) -> list[bool]:
    lengths = [len(row.ids) for row in rows]
    if group_tokens:
        return _joins(lengths, [row.prompt for row in rows], group_tokens)
    return _joins(lengths, None, row_tokens)


def _joins(
    lengths: Sequence[int], prompts: Sequence[npt.NDArray[np.int32]] | None, max_tokens: int
) -> list[bool]:
    """Whether each row is put behind the one before it, in rows of at most `max_tokens`. prompts:
    then only rows that begin with the same shareable prompt are, and they hold it once."""
    joins = [False] * len(lengths)
    total = 0
    for i, length in enumerate(lengths):
        added = length if prompts is None else length - len(prompts[i])
        joins[i] = i > 0 and _same_prompt(prompts, i) and total + added <= max_tokens
        total = total + added if joins[i] else length
    return joins


def _same_prompt(prompts: Sequence[npt.NDArray[np.int32]] | None, i: int) -> bool:
    """Whether row i has the shareable prompt of the row before it."""
    if prompts is None:
        return True
    return len(prompts[i]) > 0 and np.array_equal(prompts[i], prompts[i - 1])


def _share_prompts(rows: Sequence[_Row], joins: Sequence[bool]) -> tuple[list[_Row], list[int]]:
    """The rows, those that join another without their prompt, and how many tokens each lost."""
    shared = []
    dropped = []
    for row, joined in zip(rows, joins, strict=True):
        shared.append(row.drop_prompt() if joined else row.share_prompt())
        dropped.append(len(row.prompt) if joined else 0)
    return shared, dropped


def _place_rows(rows: Sequence[_Row], joins: Sequence[bool]) -> _Places:
    places: list[tuple[int, int, int]] = []
    end = 0
    for row, joined in zip(rows, joins, strict=True):
        number, _, document = places[-1] if places else (-1, 0, 0)
        places.append((number, end, document + 1) if joined else (number + 1, 0, 0))
        end = places[-1][1] + len(row.ids)
    row_number, start, document_number = np.array(places, dtype=np.int64).reshape(-1, 3).T
    return _Places(row=row_number.copy(), start=start, document=document_number)


def _pad_rows(rows: Sequence[_Row], places: _Places, mask_id: int) -> tuple[torch.Tensor, Layout]:
    """Token ids and layout of all rows; where nothing is masked, one row of padding."""
    height = max(int(places.row.max(initial=-1)) + 1, 1)
    width = 1
    for i, row in enumerate(rows):
        width = max(width, int(places.start[i]) + len(row.ids))
    ids = np.full((height, width), mask_id, dtype=np.int64)
    positions, blocks = np.zeros((2, height, width), dtype=np.int64)
    streams = np.full((height, width), PAD, dtype=np.int64)
    for i, row in enumerate(rows):
        at = places.row[i], slice(int(places.start[i]), int(places.start[i]) + len(row.ids))
        ids[at] = row.ids
        positions[at] = row.positions
        blocks[at] = row.blocks
        streams[at] = row.streams + DOCUMENT * places.document[i]
    layout = Layout(
        torch.from_numpy(positions), torch.from_numpy(blocks), torch.from_numpy(streams)
    )
    return torch.from_numpy(ids), layout


def _concatenate(parts: Sequence[Integers]) -> torch.Tensor:
    if not parts:
        return torch.zeros(0, dtype=torch.int64)
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def _order_candidates(
    row: _Row,
    groups: Integers,
    order: Integers,
    is_scored: Bools,
    row_number: int,
    first_entry: int,
) -> OrderCandidates:
    """The choice sets of one row, `row` and `column` counted before rows are placed."""
    by_place = np.lexsort((order[row.tokens], groups))
    starts = np.searchsorted(groups[by_place], groups[by_place])
    entry = np.empty(len(groups), dtype=np.int64)
    entry[by_place] = first_entry + np.arange(len(groups))
    return OrderCandidates(
        row=torch.full((len(groups),), row_number),
        column=torch.from_numpy(row.columns[by_place]),
        choice_set=torch.from_numpy(groups[by_place]),
        place=torch.from_numpy(np.arange(len(groups)) - starts),
        chosen=torch.from_numpy(entry[is_scored]),
    )


def _place_candidates(
    parts: Sequence[OrderCandidates], places: _Places, dropped: Sequence[int]
) -> OrderCandidates:
    """The choice sets of all rows, where those rows ended up."""
    row = torch.cat([part.row for part in parts])
    shift = torch.from_numpy(places.start - np.array(dropped, dtype=np.int64))
    return OrderCandidates(
        row=torch.from_numpy(places.row)[row],
        column=torch.cat([part.column for part in parts]) + shift[row],
        choice_set=torch.cat([part.choice_set for part in parts]),
        place=torch.cat([part.place for part in parts]),
        chosen=torch.cat([part.chosen for part in parts]),
    )


def _shareable_prompt(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family
) -> npt.NDArray[np.int32]:
    """The prompt tokens whose hidden states are the same for every response: its whole blocks,
    where attention is block-causal and nothing of the prompt is masked."""
    if family.attention == "full" or plan.causal or plan.masked_prompt is not None:
        return trajectory.prompt_ids[:0]
    return trajectory.prompt_ids[: len(trajectory.prompt_ids) // block_size * block_size]


def _blocks_with(
    trajectory: Trajectory, block_size: int, family: Family, chosen: Bools
) -> tuple[Bools, Integers]:
    """Which blocks of the grid hold a chosen token in which view, bool [views, B], from bool
    [views, R]; and their numbers, int64 [B]."""
    blocks = grid_blocks(trajectory, block_size, family)
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    return np.logical_or.reduceat(chosen, starts, axis=1), blocks[starts]


def _canvas_length(trajectory: Trajectory, block_size: int, family: Family) -> int:
    """Tokens of the canvas: what the sampler saw, completed to whole training blocks."""
    if family.attention == "block_causal":
        return block_starts_after(trajectory.canvas_length, block_size)
    return trajectory.canvas_length


def _canvas(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int
) -> Integers:
    """Prompt, response, and the mask on what the sampler never reached and on the prompt tokens
    that the plan masks."""
    canvas = np.full(_canvas_length(trajectory, block_size, family), mask_id, dtype=np.int64)
    known = np.concatenate([trajectory.prompt_ids, trajectory.response_ids])
    canvas[: len(known)] = known
    if plan.masked_prompt is not None:
        canvas[: len(plan.masked_prompt)][plan.masked_prompt] = mask_id
    return canvas


def _full_rows(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int
) -> list[_Row]:
    canvas = _canvas(trajectory, plan, block_size, family, mask_id)
    prompt = len(trajectory.prompt_ids)
    response = len(trajectory.response_ids)
    zeros = np.zeros_like(canvas)
    rows = []
    for view, states in enumerate(plan.states):
        ids = canvas.copy()
        ids[prompt : prompt + response][states != VISIBLE] = mask_id
        tokens = np.flatnonzero((states == PREDICTED) | (states == CANDIDATE))
        row = _Row(
            ids=ids,
            positions=np.arange(len(canvas)),
            blocks=zeros,
            streams=zeros + CLEAN,
            columns=predictor_positions(torch.from_numpy(prompt + tokens), family).numpy(),
            tokens=tokens,
            views=np.full(len(tokens), view),
            prompt=_shareable_prompt(trajectory, plan, block_size, family),
        )
        rows.append(row)
    return rows


def _causal_row(trajectory: Trajectory, plan: Plan, family: Family) -> _Row:
    """Prompt and response, clean, every position a block of its own: it sees itself and what stands
    before it."""
    ids = np.concatenate([trajectory.prompt_ids, trajectory.response_ids]).astype(np.int64)
    positions = np.arange(len(ids))
    tokens = np.flatnonzero(plan.states[0] == PREDICTED)
    predicted_at = torch.from_numpy(len(trajectory.prompt_ids) + tokens)
    return _Row(
        ids=ids,
        positions=positions,
        blocks=positions,
        streams=np.zeros_like(positions) + CLEAN,
        columns=predictor_positions(predicted_at, family).numpy(),
        tokens=tokens,
        views=np.zeros_like(tokens),
        prompt=trajectory.prompt_ids[:0],
    )


def _block_row(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int
) -> _Row:
    """[clean | noisy views], each noisy view only with the blocks in which it predicts
    something."""
    canvas = _canvas(trajectory, plan, block_size, family, mask_id)
    prompt = len(trajectory.prompt_ids)
    response = len(trajectory.response_ids)
    chosen = (plan.states == PREDICTED) | (plan.states == CANDIDATE)
    holds, numbers = _blocks_with(trajectory, block_size, family, chosen)
    view, block = holds.nonzero()
    # Absolute positions of the noisy blocks, [noisy blocks, K], view by view.
    noisy_at = numbers[block][:, None] * block_size + np.arange(block_size)
    is_masked = np.zeros((len(plan.states), len(canvas)), dtype=bool)
    is_masked[:, prompt : prompt + response] = plan.states != VISIBLE
    noisy = np.where(is_masked[view[:, None], noisy_at], mask_id, canvas[noisy_at])
    positions = np.concatenate([np.arange(len(canvas)), noisy_at.reshape(-1)])
    noisy_streams = (view + 1).repeat(block_size)
    views, tokens = chosen.nonzero()
    nth_noisy_block = holds.cumsum().reshape(holds.shape) - 1
    block_of = (prompt + tokens) // block_size - prompt // block_size
    columns = (
        len(canvas) + nth_noisy_block[views, block_of] * block_size + (prompt + tokens) % block_size
    )
    return _Row(
        ids=np.concatenate([canvas, noisy.reshape(-1)]),
        positions=positions,
        blocks=positions // block_size,
        streams=np.concatenate([np.full(len(canvas), CLEAN), noisy_streams]),
        columns=columns,
        tokens=tokens,
        views=views,
        prompt=_shareable_prompt(trajectory, plan, block_size, family),
    )
