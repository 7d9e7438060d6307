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

from tracerl.models.families import Attention
from tracerl.models.masks import block_starts_after, first_live_start
from tracerl.settings.sampling import Sampler
from tracerl.types import Trajectory

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Request:
    """One response to sample. key: names its noise, from `seeds.key_for`."""

    prompt_ids: Sequence[int]
    key: int


@dataclass(frozen=True)
class Live:
    """What a step works on. positions: int64 [n, K], the live block of every row; masked: bool [n,
    K]; rows, columns: int64 [T], the masked entries of that table, row by row."""

    positions: Ints
    masked: Bools
    rows: Ints
    columns: Ints


@dataclass(frozen=True)
class Decided:
    """What a step commits, as the device says it. tokens: int64 [n, K], -1 where nothing is
    committed. logprobs, filtered_logprobs: float [n, K]. order, order_logprobs: [n, K] of a drawn
    order, else None."""

    tokens: Ints
    logprobs: npt.NDArray[np.float64]
    filtered_logprobs: npt.NDArray[np.float64]
    order: npt.NDArray[np.float64] | None = None
    order_logprobs: npt.NDArray[np.float64] | None = None


class Slots:
    """`size` rows of `width` positions. first, limit: where each request's first live block starts,
    and where its canvas ends."""

    def __init__(
        self,
        requests: Sequence[Request],
        end_ids: Sequence[int],
        settings: Sampler,
        attention: Attention,
        mask_id: int,
        mode: str,
    ) -> None:
        self.requests, self.settings, self.attention, self.mask_id, self.mode = (
            requests,
            settings,
            attention,
            mask_id,
            mode,
        )
        self.block_size = size = settings.block_size
        self.end_ids = np.array(list(end_ids), dtype=np.int64)
        self.first = [first_live_start(len(r.prompt_ids), size, attention) for r in requests]
        self.limit = [
            first + block_starts_after(len(r.prompt_ids) + settings.max_new_tokens - first, size)
            for r, first in zip(requests, self.first, strict=True)
        ]
        self.width = max(self.limit, default=size)
        self.size = min(settings.max_rows, max(len(requests), 1))
        self.count = 0

    def allocate(self, size: int) -> None:
        """Makes the tables of `size` rows."""
        self.size, shape = size, (size, self.width)
        self.canvas, self.step_map, self.order_in_step = (
            np.zeros(shape, dtype=np.int64) for _ in range(3)
        )
        self.logprobs, self.filtered_logprobs, self.order_logprobs = (
            np.zeros(shape, dtype=np.float32) for _ in range(3)
        )
        self.masked = np.zeros(shape, dtype=np.bool_)
        columns = np.zeros((8, size), dtype=np.int64)
        (
            self.request,
            self.key,
            self.start,
            self.end,
            self.prompt_length,
            self.num_steps,
            self.step_in_block,
            self.num_forwards,
        ) = columns
        scores = [self.logprobs, self.filtered_logprobs, self.order_logprobs]
        self._tables = [
            self.canvas,
            self.step_map,
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

    def live(self) -> Live:
        """The live block of every live row."""
        positions = self.start[: self.count, None] + np.arange(self.block_size)
        masked = np.take_along_axis(self.masked[: self.count], positions, 1)
        return Live(positions, masked, *masked.nonzero())

    def shown(self, rows: Ints, positions: Ints, prompt_masked: bool) -> Ints:
        """Ids at positions [m, Q] of some rows, as the canvas is or with its prompt masked (for
        guidance)."""
        ids = self.canvas[rows[:, None], positions.clip(max=self.width - 1)]
        if prompt_masked:
            ids[positions < self.prompt_length[rows, None]] = self.mask_id
        return ids

    def horizon(self, live: Live, rows: Ints) -> Ints:
        """Where the window of each of some rows ends."""
        return np.minimum(
            live.positions[rows, -1] + 1 + (self.settings.horizon or 0), self.end[rows]
        )

    def record(self, live: Live, decided: Decided | None, num_worlds: int) -> tuple[Ints, Ints]:
        """Writes down what a step committed; returns its rows and their positions. decided: None of
        a step that only writes keys."""
        n = self.count
        denoising = live.masked.any(1)
        self.num_steps[:n] += denoising
        self.step_in_block[:n] += denoising
        self.num_forwards[:n] += num_worlds
        if decided is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        commit = decided.tokens >= 0
        rows, columns = commit.nonzero()
        at = rows, live.positions[rows, columns]
        self.canvas[at], self.logprobs[at], self.filtered_logprobs[at] = (
            values[commit]
            for values in (decided.tokens, decided.logprobs, decided.filtered_logprobs)
        )
        self.step_map[at], self.masked[at] = self.num_steps[rows], False
        if decided.order is not None and decided.order_logprobs is not None:
            self.order_in_step[at], self.order_logprobs[at] = (
                decided.order[commit],
                decided.order_logprobs[commit],
            )
        return at

    def advance(self, live: Live) -> list[tuple[int, bool]]:
        """Moves rows whose block is complete to their next one; returns the rows that have
        finished, and whether an end token did it.

        With the exact cache a complete block is passed once more before the row moves on.
        """
        n, at = self.count, (np.arange(self.count)[:, None], live.positions)
        complete = ~self.masked[at].any(1)
        ended = np.asarray(
            (np.isin(self.canvas[at], self.end_ids) & (self.step_map[at] > 0)).any(1)
        )
        done = complete & (ended | (self.start[:n] + self.block_size >= self.end[:n]))
        moving = complete & ~done
        if self.mode == "exact":
            moving &= ~live.masked.any(1)
        self.start[:n] += moving * self.block_size
        self.step_in_block[:n][moving] = 0
        return [(int(row), bool(ended[row])) for row in done.nonzero()[0]]

    def trajectory(self, row: int, ended: bool) -> Trajectory:
        """What a finished row holds."""
        settings, prompt = self.settings, int(self.prompt_length[row])
        response = slice(prompt, int(self.start[row]) + self.block_size)
        ids = self.canvas[row, response].astype(np.int32)
        cut = settings.refresh_sees == "window" or self.attention == "block_causal"
        drawn_order = settings.remasking == "plackett_luce"
        return Trajectory(
            prompt_ids=self.canvas[row, :prompt].astype(np.int32),
            response_ids=ids,
            step_map=self.step_map[row, response].astype(np.int32),
            logprobs=self.logprobs[row, response].copy(),
            filtered_logprobs=self.filtered_logprobs[row, response].copy(),
            num_tokens=int(np.isin(ids, self.end_ids).argmax()) + 1 if ended else len(ids),
            block_size=self.block_size,
            canvas_length=min(int(self.end[row]), response.stop + (settings.horizon or 0))
            if cut
            else int(self.end[row]),
            stop_reason="end" if ended else "length",
            num_denoising_forwards=int(self.num_steps[row]),
            num_forwards=int(self.num_forwards[row]),
            order_in_step=self.order_in_step[row, response].astype(np.int32)
            if drawn_order
            else None,
            order_logprobs=self.order_logprobs[row, response].copy() if drawn_order else None,
            cache_mode=self.mode,
            cache_horizon=settings.horizon,
        )

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
