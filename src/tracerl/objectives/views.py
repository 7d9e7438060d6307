"""Views: plans laid out as rows for one forward pass (objectives/view_rows.py), with what those
rows predict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tracerl.models.families import Family
from tracerl.models.masks import DOCUMENT, PAD, Layout, block_starts_after
from tracerl.objectives.plans import Plan, select_views
from tracerl.objectives.view_rows import (
    Row,
    RowTokens,
    canvas_length_of,
    make_rows,
    num_layout_tokens,
    shareable_prompt,
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
class _Places:
    """Where each of n rows ends up in the padded table; all int64 [n]."""

    row: Integers
    """Row of the table."""
    start: Integers
    """Its first column."""
    document: Integers
    """Its number among the documents of that row."""


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
    canvas = canvas_length_of(trajectory, block_size, family)
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
        prompts.append(shareable_prompt(trajectory, plan, block_size, family))
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
    rows: list[Row] = []
    sources: list[Integers] = []
    for source, (trajectory, plan) in enumerate(zip(trajectories, plans, strict=True)):
        for part in make_rows(trajectory, plan, block_size, family, mask_id):
            rows.append(part)
            sources.append(np.full(len(part.columns), source))
    joins = _row_joins(rows, row_tokens, group_tokens)
    if group_tokens:
        rows = _share_prompts(rows, joins)
    places = _place_rows(rows, joins)
    input_ids, layout = _pad_rows(rows, places, mask_id)
    row, column = _token_places(rows, places)
    group = _number_groups(rows)
    tokens = [part.tokens for part in rows]
    is_predicted = _concatenate([part.is_predicted for part in tokens], np.bool_)

    def select_predicted(values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values[is_predicted])

    return Views(
        input_ids=input_ids,
        layout=layout,
        row=select_predicted(row),
        column=select_predicted(column),
        targets=select_predicted(_concatenate([part.target for part in tokens], np.int64)),
        source=select_predicted(_concatenate(sources, np.int64)),
        token=select_predicted(_concatenate([part.index for part in tokens], np.int64)),
        group=select_predicted(group),
        weight=select_predicted(_concatenate([part.weight for part in tokens], np.float32)),
        candidates=_order_candidates(tokens, row, column, group, is_predicted),
    )


def _row_joins(rows: Sequence[Row], row_tokens: int, group_tokens: int) -> list[bool]:
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


def _share_prompts(rows: Sequence[Row], joins: Sequence[bool]) -> list[Row]:
    """The rows, those that join another without their prompt."""
    shared = []
    for row, joined in zip(rows, joins, strict=True):
        shared.append(row.drop_prompt() if joined else row.share_prompt())
    return shared


def _place_rows(rows: Sequence[Row], joins: Sequence[bool]) -> _Places:
    places: list[tuple[int, int, int]] = []
    end = 0
    for row, joined in zip(rows, joins, strict=True):
        number, _, document = places[-1] if places else (-1, 0, 0)
        places.append((number, end, document + 1) if joined else (number + 1, 0, 0))
        end = places[-1][1] + len(row.ids)
    row_number, start, document_number = np.array(places, dtype=np.int64).reshape(-1, 3).T
    return _Places(row=row_number.copy(), start=start, document=document_number)


def _pad_rows(rows: Sequence[Row], places: _Places, mask_id: int) -> tuple[torch.Tensor, Layout]:
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


def _token_places(rows: Sequence[Row], places: _Places) -> tuple[Integers, Integers]:
    """Row and column of the padded table that each token of the rows is read from."""
    row_numbers = []
    columns = []
    for i, row in enumerate(rows):
        row_numbers.append(np.full(len(row.columns), places.row[i]))
        columns.append(row.columns + places.start[i])
    return _concatenate(row_numbers, np.int64), _concatenate(columns, np.int64)


def _number_groups(rows: Sequence[Row]) -> Integers:
    """The group of each token of the rows, counted over all rows."""
    groups = []
    num_groups = 0
    for row in rows:
        groups.append(row.tokens.group + num_groups)
        num_groups += int(row.tokens.group.max(initial=-1)) + 1
    return _concatenate(groups, np.int64)


def _order_candidates(
    tokens: Sequence[RowTokens],
    row: Integers,
    column: Integers,
    group: Integers,
    is_predicted: Bools,
) -> OrderCandidates | None:
    """The choice sets of all rows, one a group, without the tokens that were forced: each of these
    is alone; None where no order is scored. row, column, group and is_predicted: of all tokens of
    the rows."""
    orders = [part.order for part in tokens if part.order is not None]
    if not orders:
        return None
    number = 2 * group + np.concatenate([part.is_forced for part in tokens])
    by_place = np.lexsort((np.concatenate(orders), number))
    entry = np.empty(len(group), dtype=np.int64)
    entry[by_place] = np.arange(len(group))
    choice_set = number[by_place]
    return OrderCandidates(
        row=torch.from_numpy(row[by_place]),
        column=torch.from_numpy(column[by_place]),
        choice_set=torch.from_numpy(choice_set),
        place=torch.from_numpy(np.arange(len(group)) - np.searchsorted(choice_set, choice_set)),
        chosen=torch.from_numpy(entry[is_predicted]),
    )


def _concatenate(parts: Sequence[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """The parts one behind the other; there may be none."""
    return np.concatenate([np.zeros(0, dtype=dtype), *parts])
