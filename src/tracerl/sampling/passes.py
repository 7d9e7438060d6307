"""What a step passes through the model, and the caches it reads and writes.

All shapes and indices come from the host's tables (slots.py), so nothing here waits for the device.
On a CUDA device shapes are few: passes hold every slot, idle ones included, and keys up to a
multiple of 128, which is what compiled graphs need; idle and padding positions write to a spare
column that nobody reads. On a CPU every token costs, so passes hold what is needed and no more.
"""

from collections.abc import Sequence

import numpy as np
import torch

from tracerl.models.masks import CLEAN, PAD, Layout, attention_blocks
from tracerl.models.policy import Policy
from tracerl.models.transformer import CacheWindow, KeyValueCache, predictor_positions
from tracerl.sampling.slots import Ints, Live, Slots

_SHAPE_STEP = 128  # static shapes are multiples of this


class Passes:
    """The passes of one sampling run. Worlds: 0 is the canvas as it is, 1 (with guidance only) the
    canvas with its prompt masked; each has its own cache. static: whether shapes are few rather
    than small."""

    def __init__(self, model: Policy, slots: Slots, num_worlds: int, static: bool) -> None:
        self.model, self.slots, self.mode, self.static = model, slots, slots.mode, static
        self.settings, self.attention = slots.settings, model.family.attention
        self.caches = (
            [KeyValueCache(model, slots.size, slots.width) for _ in range(num_worlds)]
            if self.mode != "none"
            else []
        )
        self._prompts: list[tuple[int, ...] | None] = [
            None
        ] * slots.size  # whose keys lie at the start of each slot

    # Prompts, with the exact cache

    def admit(self, indices: Sequence[int]) -> None:
        """Puts requests into free slots. With the exact cache the whole blocks of a prompt are
        passed through the model once, however many rows begin with them: a row takes the keys from
        its own slot or copies them from another, as long as one still holds them."""
        slots, first = self.slots, self.slots.count
        whole = [
            tuple(slots.requests[i].prompt_ids[: slots.first[i]]) if self.mode == "exact" else ()
            for i in indices
        ]
        rows = self._places(whole, range(first, first + len(indices)))
        for row, index in zip(rows, indices, strict=True):
            slots.put(row, index)
        slots.count += len(indices)
        held: list[tuple[int, int]] = []
        made: list[tuple[int, int]] = []
        missing: dict[tuple[int, ...], int] = {}
        for row, prompt in zip(rows, whole, strict=True):
            slots.num_forwards[row] += len(self.caches) * bool(prompt)
            if not prompt or self._prompts[row] == prompt:
                continue
            if prompt in missing:
                made.append((row, missing[prompt]))
            elif prompt in self._prompts:
                held.append((row, self._prompts.index(prompt)))
            else:
                missing[prompt] = row
        longest = max((len(prompt) for prompt in whole), default=0)
        self._copy(held, longest)  # before the slots that hold these prompts are given others
        self._prefill(missing)
        self._copy(made, longest)
        for row, prompt in zip(rows, whole, strict=True):
            self._prompts[row] = prompt or None

    def _places(self, prompts: Sequence[tuple[int, ...]], free: Sequence[int]) -> list[int]:
        """A free slot for each of some prompts: where it can, the slot that holds the prompt's keys
        already."""
        left = dict.fromkeys(free)
        holders = {self._prompts[row]: row for row in free if self._prompts[row]}
        kept = [holders.pop(prompt, None) for prompt in prompts]
        for row in kept:
            left.pop(row, None)  # type: ignore[arg-type]
        others = iter(left)
        return [next(others) if row is None else row for row in kept]

    def _prefill(self, prompts: dict[tuple[int, ...], int]) -> None:
        """Passes prompts (each with its slot), those of similar length together."""
        by_width: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for prompt, row in prompts.items():
            by_width.setdefault(max(64, 1 << (len(prompt) - 1).bit_length()), []).append(
                (prompt, row)
            )
        for bound, part in by_width.items():
            width = bound if self.static else max(len(prompt) for prompt, _ in part)
            ids = np.full((len(part), width), self.slots.mask_id, dtype=np.int64)
            for line, (prompt, _) in zip(ids, part, strict=True):
                line[: len(prompt)] = prompt
            inside = np.arange(width) < np.array([len(prompt) for prompt, _ in part])[:, None]
            positions = np.broadcast_to(np.arange(width), ids.shape)
            blocks, streams = positions // self.settings.block_size, np.where(inside, CLEAN, PAD)
            where, block, stream = self._sent(positions, blocks, streams)
            columns, rows = self._sent(
                np.where(inside, positions, self.slots.width), np.array([row for _, row in part])
            )
            for world, cache in enumerate(self.caches):
                shown = np.full_like(ids, self.slots.mask_id) if world else ids
                self.model(
                    self._sent(shown)[0],
                    Layout(where, block, stream),
                    CacheWindow(cache, 0, 0, rows, columns),
                )

    def _copy(self, pairs: Sequence[tuple[int, int]], length: int) -> None:
        """Copies the first keys of slots over those of others, (target, source) each."""
        if not pairs:
            return
        targets, sources = self._sent(*np.array(pairs).T)
        for cache in self.caches:
            cache.copy_rows(sources, targets, length)

    def close_gaps(self, finished: Sequence[int]) -> None:
        """Keeps the live rows together; the prompts of finished rows stay where they can be found."""
        holes, movers = self.slots.close_gaps(finished)
        if not (holes and self.caches):
            return
        targets, sources = self._sent(np.array(holes + movers), np.array(movers + holes))
        for cache in self.caches:
            cache.copy_rows(sources, targets, self.slots.width)
        for hole, mover in zip(holes, movers, strict=True):
            self._prompts[hole], self._prompts[mover] = self._prompts[mover], self._prompts[hole]

    # Steps

    def hidden(self, live: Live, world: int) -> torch.Tensor:
        """Hidden states that predict the live positions, [n, K, hidden] or, with static shapes, of
        more rows."""
        everyone = np.arange(self.slots.count)
        if self.mode == "none":
            return self._canvas(live, world, everyone, cached=False)
        if self.mode == "exact":
            return self._window(
                live.positions, world, everyone, live.positions, live.positions[:, -1] + 1
            )
        every, step = self.settings.refresh_every, self.slots.step_in_block[: self.slots.count]
        stale = step == 0 if every is None else step % every == 0
        if stale.all():
            return self._canvas(live, world, everyone, cached=True)
        if not stale.any():
            return self._approximate(live, world, everyone)
        parts = [
            self._approximate(live, world, everyone[~stale]),
            self._canvas(live, world, everyone[stale], cached=True),
        ]
        [back] = self._sent(np.argsort(np.concatenate([everyone[~stale], everyone[stale]])))
        return torch.cat([parts[0][: int((~stale).sum())], parts[1]])[back]

    def _canvas(self, live: Live, world: int, rows: Ints, cached: bool) -> torch.Tensor:
        """The whole canvas of some rows, whose keys are all written to the cache if there is one."""
        slots, family, positions = self.slots, self.model.family, live.positions[rows]
        cut = self.settings.refresh_sees == "window"
        seen = (
            positions[:, -1] + 1
            if family.attention == "block_causal"
            else slots.horizon(live, rows)
            if cut
            else slots.end[rows]
        )
        width = self._rounded(int(seen.max()), slots.width)
        columns = np.broadcast_to(np.arange(width), (len(rows), width))
        streams = np.where(columns < seen[:, None], CLEAN, PAD)
        ids, where, padding = self._sent(slots.shown(rows, columns, bool(world)), columns, streams)
        layout = Layout(
            where, attention_blocks(where, self.settings.block_size, family.attention), padding
        )
        window = CacheWindow(self.caches[world], 0, 0, self._sent(rows)[0]) if cached else None
        hidden: torch.Tensor = self.model(ids, layout, window)
        at = predictor_positions(self._sent(positions)[0], family)
        return hidden.gather(1, at.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))

    def _approximate(self, live: Live, world: int, rows: Ints) -> torch.Tensor:
        """The live blocks of some rows and what the mode forwards after them, against the keys of
        the last refresh.

        The predictor of a shifted family's first token is passed too, and padding makes the rows
        equally long; neither writes its keys.
        """
        slots, positions = self.slots, live.positions[rows]
        end, behind = slots.end[rows], positions[:, -1] + 1
        last = {"prefix": end, "dual": behind, "window": slots.horizon(live, rows)}[self.mode]
        first = positions[:, 0] - self.model.family.shift
        queries = first[:, None] + np.arange(int((last - first).max()))
        own = (queries >= positions[:, :1]) & (queries < last[:, None])
        columns = np.where(own, queries, slots.width)
        return self._window(queries, world, rows, columns, end if self.mode == "dual" else last)[
            :, : self.settings.block_size
        ]

    def _window(
        self, queries: Ints, world: int, rows: Ints, columns: Ints, key_end: Ints
    ) -> torch.Tensor:
        """Positions `queries` of some rows against the keys [0, key_end) of the cache, after
        writing theirs to `columns`."""
        slots = self.slots
        ids, length = (
            slots.shown(rows, queries, bool(world)),
            self._rounded(int(key_end.max()), slots.width),
        )
        everyone = len(rows) == slots.count
        if self.static and everyone and len(rows) < slots.size:
            idle = slots.size - len(rows)
            ids, queries = (
                np.pad(part, ((0, idle), (0, 0)), mode="edge") for part in (ids, queries)
            )
            columns = np.pad(columns, ((0, idle), (0, 0)), constant_values=slots.width)
            key_end = np.pad(key_end, (0, idle), constant_values=1)
        given, where, written, seen = self._sent(ids, queries, columns, key_end)
        # The keys of all rows are read where they lie; those of some are copied.
        some = None if everyone else self._sent(rows)[0]
        layout = Layout(where, where, where, first_keys=seen, num_keys=length)
        hidden: torch.Tensor = self.model(
            given, layout, CacheWindow(self.caches[world], 0, length, some, written)
        )
        return hidden

    def _rounded(self, length: int, most: int) -> int:
        return min(-(-length // _SHAPE_STEP) * _SHAPE_STEP, most) if self.static else length

    def _sent(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        return sent(self.model.device, *arrays)


def sent(device: torch.device, *arrays: np.ndarray) -> list[torch.Tensor]:
    """Copies of arrays on a device."""
    return [torch.from_numpy(np.array(array)).to(device, non_blocking=True) for array in arrays]
