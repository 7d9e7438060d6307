"""What a step passes through the model with each cache, and what that costs.

A new cache is a record in settings/sampling.py and an entry in `_CACHES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tracerl.models.families import Attention
from tracerl.sampling.passes import Passes
from tracerl.sampling.slots import ActiveBlock, Ints, Slots
from tracerl.settings.base import Section
from tracerl.settings.sampling import Cache, Dual, Exact, NoCache, Prefix, Sampler, Window


@dataclass(frozen=True, kw_only=True)
class ResponseShape:
    """A response as long as its limits allow."""

    attention: Attention
    """Attention of the model's family."""
    shift: int
    """1 if the family predicts a token from the position before it, else 0."""
    prompt: int
    """Tokens of the prompt."""
    canvas: int
    """Positions of the canvas."""
    block_size: int
    """Tokens of a block."""
    num_blocks: int
    """Blocks of the response."""
    num_steps: int
    """Denoising steps of a block."""


@dataclass(frozen=True, kw_only=True)
class CachePasses:
    """What a cache does."""

    hidden: Callable[[Any, Passes, ActiveBlock, int], torch.Tensor]
    """(cache, passes, active block, branch) -> hidden states that predict it, [n, K, hidden] or,
    with static shapes, of more rows."""
    cost: Callable[[Any, ResponseShape], tuple[int, int]]
    """(cache, shape) -> forward passes of a response, and tokens of all of them."""


def cache_for(attention: Attention, settings: Sampler) -> Cache:
    """The cache that models are sampled with. One that keeps the keys of committed blocks is none
    for full attention, whose keys depend on every later token."""
    if settings.cache.shares_prompts and attention == "full":
        return NoCache(kind="none")
    return settings.cache


def hidden_states(passes: Passes, active: ActiveBlock, branch: int) -> torch.Tensor:
    """Hidden states that predict the active blocks, [n, K, hidden] or, with static shapes, of more
    rows."""
    cache = passes.slots.cache
    return _CACHES[type(cache)].hidden(cache, passes, active, branch)


def cost(cache: Cache, shape: ResponseShape) -> tuple[int, int]:
    """Forward passes of a response, and tokens of all of them."""
    return _CACHES[type(cache)].cost(cache, shape)


def _whole_canvas(cache: NoCache, passes: Passes, active: ActiveBlock, branch: int) -> torch.Tensor:
    return passes.canvas(active, branch, np.arange(passes.slots.count))


def _whole_canvas_cost(cache: NoCache, shape: ResponseShape) -> tuple[int, int]:
    # Later blocks are not passed where they cannot be seen.
    hidden = shape.block_size if shape.attention == "block_causal" else 0
    tokens = 0
    for later in range(shape.num_blocks):
        tokens += shape.num_steps * (shape.canvas - hidden * later)
    return shape.num_blocks * shape.num_steps, tokens


def _active_block(cache: Exact, passes: Passes, active: ActiveBlock, branch: int) -> torch.Tensor:
    positions = active.positions
    rows = np.arange(passes.slots.count)
    end = passes.slots.block_end(active, rows)
    columns = np.where(positions < end[:, None], positions, passes.slots.width)
    return passes.window(positions, branch, rows, columns, end)


def _active_block_cost(cache: Exact, shape: ResponseShape) -> tuple[int, int]:
    passes = shape.num_blocks * (shape.num_steps + 1)  # and once more, clean, to store its keys
    return passes, shape.prompt + passes * shape.block_size


def _between_refreshes(
    cache: Any, passes: Passes, active: ActiveBlock, branch: int
) -> torch.Tensor:
    """The whole canvas for rows that are due, the cache's own pass for the others."""
    slots = passes.slots
    rows = np.arange(slots.count)
    step = slots.step_in_block[: slots.count]
    due = step == 0 if cache.refresh_every is None else step % cache.refresh_every == 0
    parts, groups = [], []
    if not due.all():
        groups.append(rows[~due])
        end, key_end = _REACH[type(cache)](cache, slots, active, rows[~due])
        parts.append(passes.from_block(active, branch, rows[~due], end, key_end))
    if due.any():
        groups.append(rows[due])
        horizon = cache.canvas_horizon
        seen = None if horizon is None else slots.window_end(active, rows[due], horizon)
        parts.append(passes.canvas(active, branch, rows[due], seen))
    return parts[0] if len(parts) == 1 else passes.merge(parts, groups)


def _between_refreshes_cost(cache: Any, shape: ResponseShape) -> tuple[int, int]:
    refreshes = -(-shape.num_steps // (cache.refresh_every or shape.num_steps))
    longest = _LONGEST[type(cache)](cache, shape)
    windows = 0
    for later in range(shape.num_blocks):
        windows += min(longest, (later + 1) * shape.block_size) + shape.shift
    tokens = shape.num_blocks * refreshes * shape.canvas
    tokens += (shape.num_steps - refreshes) * windows
    return shape.num_blocks * shape.num_steps, tokens


def _prefix_reach(
    cache: Prefix, slots: Slots, active: ActiveBlock, rows: Ints
) -> tuple[Ints, Ints]:
    return slots.end[rows], slots.end[rows]


def _dual_reach(cache: Dual, slots: Slots, active: ActiveBlock, rows: Ints) -> tuple[Ints, Ints]:
    return active.positions[rows, -1] + 1, slots.end[rows]


def _window_reach(
    cache: Window, slots: Slots, active: ActiveBlock, rows: Ints
) -> tuple[Ints, Ints]:
    end = slots.window_end(active, rows, cache.horizon)
    return end, end


# Approximate cache -> where the positions of its own pass end, and the keys that they see.
_REACH: dict[type[Section], Callable[[Any, Slots, ActiveBlock, Ints], tuple[Ints, Ints]]] = {
    Prefix: _prefix_reach,
    Dual: _dual_reach,
    Window: _window_reach,
}
# Approximate cache -> tokens of its own pass, at most.
_LONGEST: dict[type[Section], Callable[[Any, ResponseShape], int]] = {
    Prefix: lambda cache, shape: shape.canvas,
    Dual: lambda cache, shape: shape.block_size,
    Window: lambda cache, shape: shape.block_size + cache.horizon,
}
_APPROXIMATE = CachePasses(hidden=_between_refreshes, cost=_between_refreshes_cost)
_CACHES: dict[type[Section], CachePasses] = {
    NoCache: CachePasses(hidden=_whole_canvas, cost=_whole_canvas_cost),
    Exact: CachePasses(hidden=_active_block, cost=_active_block_cost),
    Prefix: _APPROXIMATE,
    Dual: _APPROXIMATE,
    Window: _APPROXIMATE,
}
