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
from tracerl.sampling.slots import ActiveBlock, Ints, Slots

_SHAPE_STEP = 128  # static shapes are multiples of this


class Passes:
    """The passes of one sampling run.

    Branch 0 is conditional, the canvas as it is; branch 1 (with guidance only) is unconditional,
    the canvas with its prompt masked. Each has its own keys. static: whether shapes are few rather
    than small. caches.py says which of these passes a step makes.
    """

    def __init__(self, model: Policy, slots: Slots, num_branches: int, static: bool) -> None:
        self.model = model
        self.slots = slots
        self.static = static
        self.settings = slots.settings
        self.caches: list[KeyValueCache] = []
        if slots.cache.stores_keys:
            self.caches = [
                KeyValueCache(model, slots.size, slots.width) for _ in range(num_branches)
            ]
        self._prompts: list[tuple[int, ...] | None] = [
            None
        ] * slots.size  # whose keys lie at the start of each slot

    # Prompts, with the exact cache

    def admit(self, indices: Sequence[int]) -> None:
        """Puts requests into free slots. With the exact cache the whole blocks of a prompt are
        passed through the model once, however many rows begin with them: a row takes the keys from
        its own slot or copies them from another, as long as one still holds them."""
        slots, first = self.slots, self.slots.count
        whole: list[tuple[int, ...]] = []
        for i in indices:
            num_shared = slots.first[i] if slots.cache.shares_prompts else 0
            whole.append(tuple(slots.requests[i].prompt_ids[:num_shared]))
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
        longest = max(map(len, whole), default=0)
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
            bound = max(64, 1 << (len(prompt) - 1).bit_length())
            by_width.setdefault(bound, []).append((prompt, row))
        for bound, part in by_width.items():
            lengths = np.array([len(prompt) for prompt, _ in part])
            width = bound if self.static else int(lengths.max())
            ids = np.full((len(part), width), self.slots.mask_id, dtype=np.int64)
            for line, (prompt, _) in zip(ids, part, strict=True):
                line[: len(prompt)] = prompt
            inside = np.arange(width) < lengths[:, None]
            positions = np.broadcast_to(np.arange(width), ids.shape)
            blocks, streams = positions // self.settings.block_size, np.where(inside, CLEAN, PAD)
            where, block, stream = self._to_device(positions, blocks, streams)
            columns, rows = self._to_device(
                np.where(inside, positions, self.slots.width), np.array([row for _, row in part])
            )
            for branch, cache in enumerate(self.caches):
                visible = np.full_like(ids, self.slots.mask_id) if branch else ids
                self.model(
                    self._to_device(visible)[0],
                    Layout(where, block, stream),
                    CacheWindow(cache, 0, 0, rows, columns),
                )

    def _copy(self, pairs: Sequence[tuple[int, int]], length: int) -> None:
        """Copies the first keys of slots over those of others, (target, source) each."""
        if not pairs:
            return
        targets, sources = self._to_device(*np.array(pairs).T)
        for cache in self.caches:
            cache.copy_rows(sources, targets, length)

    def close_gaps(self, finished: Sequence[int]) -> None:
        """Keeps the live rows together; the prompts of finished rows stay, to be found again."""
        holes, movers = self.slots.close_gaps(finished)
        if not (holes and self.caches):
            return
        targets, sources = self._to_device(np.array(holes + movers), np.array(movers + holes))
        for cache in self.caches:
            cache.copy_rows(sources, targets, self.slots.width)
        for hole, mover in zip(holes, movers, strict=True):
            self._prompts[hole], self._prompts[mover] = self._prompts[mover], self._prompts[hole]

    # Steps

    def canvas(
        self, active: ActiveBlock, branch: int, rows: Ints, key_end: Ints | None = None
    ) -> torch.Tensor:
        """Hidden states that predict the active blocks of some rows, [m, K, hidden], from a pass
        over the whole canvas, whose keys are all stored if there is a cache.

        key_end: [m], where what is seen ends; None for the end of the canvas, or of the active
        block where later blocks cannot be seen (block-causal attention).
        """
        slots, family, targets = self.slots, self.model.family, active.targets[rows]
        if family.attention == "block_causal":
            key_end = slots.block_end(active, rows)
        elif key_end is None:
            key_end = slots.end[rows]
        width = self._round_up(int(key_end.max()), slots.width)
        columns = np.broadcast_to(np.arange(width), (len(rows), width))
        streams = np.where(columns < key_end[:, None], CLEAN, PAD)
        ids, where, padding = self._to_device(
            slots.visible_ids(rows, columns, bool(branch)), columns, streams
        )
        layout = Layout(
            where, attention_blocks(where, self.settings.block_size, family.attention), padding
        )
        window = None
        if self.caches:
            window = CacheWindow(self.caches[branch], 0, 0, self._to_device(rows)[0])
        hidden: torch.Tensor = self.model(ids, layout, window)
        at = predictor_positions(self._to_device(targets)[0], family)
        at = at.clamp(max=width - 1)  # a short last block has no hidden states beyond its end
        return hidden.gather(1, at.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))

    def from_block(
        self, active: ActiveBlock, branch: int, rows: Ints, end: Ints, key_end: Ints
    ) -> torch.Tensor:
        """The same from a pass over positions from the active block to `end`, against the stored
        keys up to `key_end`; both [m].

        The predictor of a shifted family's first token is passed too, and padding makes the rows
        equally long; neither stores its keys.
        """
        positions = active.positions[rows]
        first = positions[:, 0] - self.model.family.shift
        queries = first[:, None] + np.arange(int((end - first).max()))
        writes = (queries >= positions[:, :1]) & (queries < end[:, None])
        columns = np.where(writes, queries, self.slots.width)
        return self.window(queries, branch, rows, columns, key_end)[:, : self.settings.block_size]

    def merge(self, parts: Sequence[torch.Tensor], rows: Sequence[Ints]) -> torch.Tensor:
        """Hidden states of several groups of rows in the order of the rows."""
        [back] = self._to_device(np.argsort(np.concatenate(list(rows))))
        hidden = [part[: len(group)] for part, group in zip(parts, rows, strict=True)]
        return torch.cat(hidden)[back]

    def window(
        self, queries: Ints, branch: int, rows: Ints, columns: Ints, key_end: Ints
    ) -> torch.Tensor:
        """Positions `queries` of some rows against the keys [0, key_end) of the cache, after
        writing theirs to `columns`."""
        slots = self.slots
        ids, length = (
            slots.visible_ids(rows, queries, bool(branch)),
            self._round_up(int(key_end.max()), slots.width),
        )
        everyone = len(rows) == slots.count
        if self.static and everyone and len(rows) < slots.size:
            idle = slots.size - len(rows)
            ids = np.pad(ids, ((0, idle), (0, 0)), mode="edge")
            queries = np.pad(queries, ((0, idle), (0, 0)), mode="edge")
            columns = np.pad(columns, ((0, idle), (0, 0)), constant_values=slots.width)
            key_end = np.pad(key_end, (0, idle), constant_values=1)
        tokens, where, written, seen = self._to_device(ids, queries, columns, key_end)
        # The keys of all rows are read where they lie; those of some are copied.
        some = None if everyone else self._to_device(rows)[0]
        layout = Layout(where, where, where, first_keys=seen, num_keys=length)
        hidden: torch.Tensor = self.model(
            tokens, layout, CacheWindow(self.caches[branch], 0, length, some, written)
        )
        return hidden

    def _round_up(self, length: int, most: int) -> int:
        return min(-(-length // _SHAPE_STEP) * _SHAPE_STEP, most) if self.static else length

    def _to_device(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        return to_device(self.model.device, *arrays)


def to_device(device: torch.device, *arrays: np.ndarray) -> list[torch.Tensor]:
    """Copies of arrays on a device."""
    return [torch.from_numpy(np.array(array)).to(device, non_blocking=True) for array in arrays]
