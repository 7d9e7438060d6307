"""The rows being sampled, as the host keeps them: rows [0, count) of every table are live, in no
particular order.

The host knows everything but the model: which positions are masked, where every row stands, which
keys it may read. A step therefore asks the device once, for what it committed, and the next step's
shapes are known before it starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracerl.models.families import Family
from tracerl.models.masks import block_starts_after, first_live_start
from tracerl.settings.sampling import Cache, Sampler
from tracerl.types import Trajectory

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Request:
    """One response to sample."""

    prompt_ids: Sequence[int]
    """Token ids of the prompt."""
    key: int
    """Seed of its noise, from `seeds.key_for`."""


@dataclass(frozen=True, kw_only=True)
class ActiveBlock:
    """The block of every row that a step works on."""

    positions: Ints
    """Positions in the canvas, int64 [n, K]."""
    targets: Ints
    """Position that each of them stands for in this step, int64 [n, K]: itself, or the next one
    where a family crosses the edges of blocks."""
    masked: Bools
    """Whether the target is masked and may be committed, bool [n, K]."""
    complete: Bools
    """Whether nothing of the block is masked, bool [n]."""
    editable: Bools
    """Whether the target is a committed token that may be replaced, bool [n, K]."""
    rows: Ints
    """Row of each entry that is masked or editable, row by row, int64 [T]."""
    columns: Ints
    """Column of each of these entries, int64 [T]."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step commits, as the device says it."""

    tokens: Ints
    """Token ids, -1 where nothing is committed, int64 [n, K]."""
    logprobs: npt.NDArray[np.float64]
    """Log-probability at the sampler's temperature, [n, K]."""
    filtered_logprobs: npt.NDArray[np.float64]
    """Log-probability after top-k and top-p, [n, K]."""
    order: npt.NDArray[np.float64] | None = None
    """Place in the order of commitment, 1-based, [n, K]; None unless the order is drawn."""
    order_logprobs: npt.NDArray[np.float64] | None = None
    """Log-probability of that place, [n, K]; None unless the order is drawn."""


class Slots:
    """`size` rows of `width` positions. first, limit: where each request's first active block
    starts, and where its canvas ends. cache: `caches.cache_for` the model.

    A family that crosses the edges of blocks predicts the first token of a block from the last
    position of the block before it. There, the first active block is the one that holds the token
    before the response, and a complete block is passed once more before the row moves on: that
    pass, of a step of its own, commits the first token of the next block and nothing else.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        end_ids: Sequence[int],
        settings: Sampler,
        family: Family,
        mask_id: int,
        cache: Cache,
    ) -> None:
        self.requests = requests
        self.settings = settings
        self.family = family
        self.cache = cache
        self.mask_id = mask_id
        self.block_size = size = settings.block_size
        self.end_ids = np.array(list(end_ids), dtype=np.int64)
        # The last token that the first step may read is the one before the response.
        edge = int(family.crosses_edges)
        self.first = []
        for request in requests:
            num_prompt = len(request.prompt_ids) - edge
            self.first.append(first_live_start(num_prompt, size, family.attention))
        self.limit = []
        for r, first in zip(requests, self.first, strict=True):
            end = len(r.prompt_ids) + settings.max_new_tokens
            whole = first + block_starts_after(end - first, size)
            self.limit.append(end if family.short_last_block else whole)
        self.width = max(self.limit, default=size)
        self.size = min(settings.max_rows, max(len(requests), 1))
        self.count = 0

    def allocate(self, size: int) -> None:
        """Makes the tables of `size` rows."""
        self.size, shape = size, (size, self.width)
        self.canvas = np.zeros(shape, dtype=np.int64)
        self.step_map = np.zeros(shape, dtype=np.int64)
        self.edit_map = np.zeros(shape, dtype=np.int64)
        self.order_in_step = np.zeros(shape, dtype=np.int64)
        self.logprobs = np.zeros(shape, dtype=np.float32)
        self.filtered_logprobs = np.zeros(shape, dtype=np.float32)
        self.order_logprobs = np.zeros(shape, dtype=np.float32)
        self.masked = np.zeros(shape, dtype=np.bool_)
        columns = np.zeros((10, size), dtype=np.int64)
        (
            self.request,
            self.key,
            self.start,
            self.end,
            self.prompt_length,
            self.num_steps,
            self.step_in_block,
            self.num_forwards,
            self.post_steps,
            self.num_changes,  # of the last step
        ) = columns
        scores = [self.logprobs, self.filtered_logprobs, self.order_logprobs]
        self._tables = [
            self.canvas,
            self.step_map,
            self.edit_map,
            self.order_in_step,
            *scores,
            self.masked,
            *columns,
        ]

    def put(self, row: int, index: int) -> None:
        """A request into a free slot."""
        request = self.requests[index]
        for table in self._tables:
            table[row] = 0
        length, end = len(request.prompt_ids), self.limit[index]
        self.canvas[row] = self.mask_id
        self.canvas[row, :length] = request.prompt_ids
        self.masked[row, length:end] = True
        self.request[row], self.key[row], self.start[row], self.end[row] = (
            index,
            request.key,
            self.first[index],
            end,
        )
        self.prompt_length[row] = length

    def active_block(self) -> ActiveBlock:
        """The block that every live row works on; of a short last block also positions beyond the
        end, where nothing is masked."""
        positions = self.start[: self.count, None] + np.arange(self.block_size)
        inside = self._masked_at(positions)
        complete = np.asarray(~inside.any(1))
        targets = positions
        masked = inside
        if self.family.crosses_edges:
            targets = positions + 1
            masked = self._masked_at(targets)
            masked[:, -1] &= complete
        editable = self._editable(positions, inside)
        rows, columns = (masked | editable).nonzero()
        return ActiveBlock(
            positions=positions,
            targets=targets,
            masked=masked,
            complete=complete,
            editable=editable,
            rows=rows,
            columns=columns,
        )

    def _editable(self, positions: Ints, masked: Bools) -> Bools:
        """Which positions [n, K] of the active blocks hold tokens that may be replaced."""
        edit = self.settings.edit
        if edit is None:
            return np.zeros_like(masked)
        n = self.count
        is_response = positions >= self.prompt_length[:n, None]
        is_open = is_response & (positions < self.end[:n, None]) & ~masked
        return np.asarray(is_open & (self.post_steps[:n, None] < edit.max_post_steps))

    def _masked_at(self, positions: Ints) -> Bools:
        """Whether positions [n, K] of the live rows are masked; False beyond the canvas."""
        masked = np.take_along_axis(
            self.masked[: self.count], positions.clip(max=self.width - 1), 1
        )
        return np.asarray(masked & (positions < self.end[: self.count, None]))

    def visible_ids(self, rows: Ints, positions: Ints, mask_prompt: bool) -> Ints:
        """Ids at positions [m, Q] of some rows, as the canvas is or with its prompt masked (for
        guidance)."""
        ids = self.canvas[rows[:, None], positions.clip(max=self.width - 1)]
        if mask_prompt:
            ids[positions < self.prompt_length[rows, None]] = self.mask_id
        return ids

    def window_end(self, active: ActiveBlock, rows: Ints, horizon: int) -> Ints:
        """Where a window of `horizon` tokens after the active block of some rows ends."""
        return np.minimum(active.positions[rows, -1] + 1 + horizon, self.end[rows])

    def block_end(self, active: ActiveBlock, rows: Ints) -> Ints:
        """Where the active block of some rows ends, [m]: a short last block with its canvas."""
        return np.minimum(active.positions[rows, -1] + 1, self.end[rows])

    def record(
        self, active: ActiveBlock, result: StepResult | None, num_branches: int
    ) -> tuple[Ints, Ints]:
        """Writes down what a step committed; returns its rows and their positions. result: None of
        a step that only writes keys."""
        n = self.count
        denoising = (active.masked | active.editable).any(1)
        self.post_steps[:n] += active.complete & active.editable.any(1)
        self.num_steps[:n] += denoising
        self.step_in_block[:n] += denoising
        self.num_forwards[:n] += num_branches
        self.num_changes[:n] = 0
        if result is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        commit = result.tokens >= 0
        rows, columns = commit.nonzero()
        at = rows, active.targets[rows, columns]
        self.num_changes[:n] = commit.sum(1)
        self.canvas[at] = result.tokens[commit]
        self.logprobs[at] = result.logprobs[commit]
        self.filtered_logprobs[at] = result.filtered_logprobs[commit]
        is_first = self.step_map[at] == 0
        self.step_map[at] = np.where(is_first, self.num_steps[rows], self.step_map[at])
        self.edit_map[at] = np.where(is_first, 0, self.num_steps[rows])
        self.masked[at] = False
        if result.order is not None and result.order_logprobs is not None:
            self.order_in_step[at] = result.order[commit]
            self.order_logprobs[at] = result.order_logprobs[commit]
        return at

    def advance(self, active: ActiveBlock) -> list[tuple[int, bool]]:
        """Moves rows whose block is complete to their next one; returns the rows that have
        finished, and whether an end token did it.

        Where a cache keeps the keys of committed blocks, or the next block's first token is
        predicted from here, a complete block is passed once more before the row moves on.
        """
        n = self.count
        inside = active.positions < self.end[:n, None]
        at = np.arange(n)[:, None], active.positions.clip(max=self.width - 1)
        complete = ~(self.masked[at] & inside).any(1) & self._is_settled(active)
        is_end = np.isin(self.canvas[at], self.end_ids) & (self.step_map[at] > 0)
        ended = np.asarray((is_end & inside).any(1))
        done = complete & (ended | (self.start[:n] + self.block_size >= self.end[:n]))
        moving = complete & ~done
        if self.cache.shares_prompts or self.family.crosses_edges:
            moving &= active.complete
        self.start[:n] += moving * self.block_size
        self.step_in_block[:n][moving] = 0
        self.post_steps[:n][moving] = 0
        return [(int(row), bool(ended[row])) for row in done.nonzero()[0]]

    def _is_settled(self, active: ActiveBlock) -> Bools:
        """Whether rows, bool [n], will replace no more tokens of their block: its last pass began
        without masks and changed nothing, or was the last that may.

        Where a cache keeps the keys of that pass, it must have changed nothing.
        """
        edit = self.settings.edit
        if edit is None:
            return np.ones(self.count, dtype=np.bool_)
        n = self.count
        is_over = self.num_changes[:n] == 0
        if not self.cache.shares_prompts:
            is_over |= self.post_steps[:n] >= edit.max_post_steps
        return np.asarray(active.complete & is_over)

    def trajectory(self, row: int, ended: bool) -> Trajectory:
        """What a finished row holds."""
        prompt = int(self.prompt_length[row])
        stop = min(int(self.start[row]) + self.block_size, int(self.end[row]))
        response = slice(prompt, stop)
        ids = self.canvas[row, response].astype(np.int32)
        order = None
        order_logprobs = None
        if self.settings.order.is_drawn:
            order = self.order_in_step[row, response].astype(np.int32)
            order_logprobs = self.order_logprobs[row, response].copy()
        return Trajectory(
            prompt_ids=self.canvas[row, :prompt].astype(np.int32),
            response_ids=ids,
            step_map=self.step_map[row, response].astype(np.int32),
            logprobs=self.logprobs[row, response].copy(),
            filtered_logprobs=self.filtered_logprobs[row, response].copy(),
            num_tokens=int(np.isin(ids, self.end_ids).argmax()) + 1 if ended else len(ids),
            block_size=self.block_size,
            canvas_length=self._canvas_length(row, response.stop),
            stop_reason="end" if ended else "length",
            num_denoising_forwards=int(self.num_steps[row]),
            num_forwards=int(self.num_forwards[row]),
            edit_map=None
            if self.settings.edit is None
            else self.edit_map[row, response].astype(np.int32),
            order_in_step=order,
            order_logprobs=order_logprobs,
        )

    def _canvas_length(self, row: int, stop: int) -> int:
        """Positions that the passes of a finished row have seen. stop: end of its response."""
        end = int(self.end[row])
        horizon = 0 if self.family.attention == "block_causal" else self.cache.canvas_horizon
        return end if horizon is None else min(end, stop + horizon)

    def close_gaps(self, finished: Sequence[int]) -> tuple[list[int], list[int]]:
        """Moves live rows from the tail into the slots of finished ones; returns the slots filled
        and those their rows came from."""
        gone = set(finished)
        remaining = self.count - len(finished)
        movers = [row for row in range(remaining, self.count) if row not in gone]
        holes = [row for row in finished if row < remaining]
        for table in self._tables:
            table[holes] = table[movers]
        self.count = remaining
        return holes, movers
