"""Views of trajectories, and the one place that makes noise.

A *plan* says for each view and response token whether the view holds it clean, masked, or masked and predicted. Plans differ by
objective (`trace_plan`, `random_plan`); `build_views` lays any plan out for a family's attention rule:

* full attention: one row per view, the canvas with the view's positions masked;
* block-causal: one row per trajectory, `[clean | noisy_1 | ... | noisy_n]`, where a noisy view holds only the blocks in which it predicts
  something. The clean half never looks at a noisy one, so one clean copy serves all views exactly (a test compares with separate rows).

Everything lies on the one absolute block grid of models/masks.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tracerl.models.families import Family
from tracerl.models.masks import CLEAN, PAD, block_starts_after
from tracerl.models.transformer import Layout, predictor_positions
from tracerl.types import Trajectory, Views

SHOWN, HIDDEN, PREDICTED = 0, 1, 2


@dataclass(frozen=True)
class Plan:
    """State of every response token in every view, int8 [views, R] (SHOWN, HIDDEN or PREDICTED), and its weight float32 [views, R]."""

    states: npt.NDArray[np.int8]
    weights: npt.NDArray[np.float32]


def grid_blocks(trajectory: Trajectory, block_size: int, family: Family) -> npt.NDArray[np.int64]:
    """Block of each response token, int64 [R], on the absolute grid; for full attention the whole response is one block."""
    positions = len(trajectory.prompt_ids) + np.arange(len(trajectory.response_ids))
    return positions // block_size if family.attention == "block_causal" else np.zeros_like(positions)


def trace_plan(trajectory: Trajectory, block_size: int, family: Family, shrink: int) -> Plan:
    """TraceRL's views: every `shrink` neighbouring distinct steps of a block are one group; view l predicts the l-th group of every block.

    Tokens of earlier groups are shown, of later ones hidden. Tokens after the first end token take their place in the order but are
    never predicted. A larger block than the rollout's holds several of its blocks, in the recorded order (block enlargement).
    """
    blocks = grid_blocks(trajectory, block_size, family)
    steps = trajectory.step_map.astype(np.int64)
    group = np.empty(len(steps), dtype=np.int64)
    for block in np.unique(blocks):
        inside = blocks == block
        _, rank = np.unique(steps[inside], return_inverse=True)
        group[inside] = rank // shrink
    view = np.arange(group.max() + 1)[:, None]
    states = np.where(group < view, SHOWN, np.where(group == view, PREDICTED, HIDDEN)).astype(np.int8)
    states[:, trajectory.num_tokens :][states[:, trajectory.num_tokens :] == PREDICTED] = HIDDEN
    states = states[(states == PREDICTED).any(1)]
    return Plan(states, np.ones(states.shape, dtype=np.float32))


def random_plan(
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    noise: tuple[float, float],
    weighting: str,
    generator: np.random.Generator,
) -> Plan:
    """One view of random masking: a level t ~ U(noise) per block (per sequence for full attention), each token masked with probability t.

    weighting "inverse_t" gives each masked token the weight 1/t (an evidence bound when noise is (0, 1)), "uniform" the weight 1. A draw
    that masks nothing stays: it has no predicted token but its trainable tokens are counted in the denominator.
    """
    blocks = grid_blocks(trajectory, block_size, family)
    first = blocks[0]
    levels = generator.uniform(*noise, size=int(blocks[-1] - first) + 1)[blocks - first]
    masked = generator.random(len(blocks)) < levels
    states = np.where(masked, PREDICTED, SHOWN).astype(np.int8)
    states[trajectory.num_tokens :][masked[trajectory.num_tokens :]] = HIDDEN
    weights = 1.0 / levels if weighting == "inverse_t" else np.ones_like(levels)
    return Plan(states[None], weights[None].astype(np.float32))


@dataclass(frozen=True)
class _Row:
    """One row before padding; arrays of one length, and its predicted tokens (see Views)."""

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]
    streams: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    views: npt.NDArray[np.int64]


def num_layout_tokens(trajectory: Trajectory, plan: Plan, block_size: int, family: Family) -> int:
    """Tokens that this trajectory's rows will have together (for packing micro-batches)."""
    canvas = _canvas_length(trajectory, block_size, family)
    if family.attention == "full":
        return canvas * len(plan.states)
    blocks = grid_blocks(trajectory, block_size, family)
    return canvas + block_size * sum(len(np.unique(blocks[states == PREDICTED])) for states in plan.states)


def build_views(trajectories: Sequence[Trajectory], plans: Sequence[Plan], block_size: int, family: Family, mask_id: int) -> Views:
    """Lays plans out for one forward pass. Rows are right-padded; `source` counts the given trajectories."""
    lay_out = _full_rows if family.attention == "full" else _block_rows
    rows: list[_Row] = []
    row_of, source, group, weight, targets = [], [], [], [], []
    num_groups = 0
    for index, (trajectory, plan) in enumerate(zip(trajectories, plans, strict=True)):
        blocks = grid_blocks(trajectory, block_size, family)
        for row in lay_out(trajectory, plan, block_size, family, mask_id):
            row_of.append(np.full(len(row.tokens), len(rows)))
            rows.append(row)
            source.append(np.full(len(row.tokens), index))
            weight.append(plan.weights[row.views, row.tokens])
            targets.append(trajectory.response_ids[row.tokens].astype(np.int64))
            _, local = np.unique(np.stack([blocks[row.tokens], row.views]), axis=1, return_inverse=True)
            group.append(local.reshape(-1) + num_groups)
            num_groups += int(local.max(initial=-1)) + 1
    width = max((len(row.ids) for row in rows), default=0)

    def padded(name: str, fill: int) -> torch.Tensor:
        out = np.full((len(rows), width), fill, dtype=np.int64)
        for i, row in enumerate(rows):
            values = getattr(row, name)
            out[i, : len(values)] = values
        return torch.from_numpy(out)

    def flat(parts: list[npt.NDArray[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.int64)) if parts else torch.zeros(0, dtype=torch.int64)

    return Views(
        input_ids=padded("ids", mask_id),
        layout=Layout(padded("positions", 0), padded("blocks", 0), padded("streams", PAD)),
        row=flat(row_of),
        column=flat([row.columns for row in rows]),
        targets=flat(targets),
        source=flat(source),
        token=flat([row.tokens for row in rows]),
        group=flat(group),
        weight=torch.from_numpy(np.concatenate(weight).astype(np.float32)) if weight else torch.zeros(0),
    )


def _canvas_length(trajectory: Trajectory, block_size: int, family: Family) -> int:
    """Tokens of the canvas: what the sampler saw, completed to whole training blocks."""
    return block_starts_after(trajectory.canvas_length, block_size) if family.attention == "block_causal" else trajectory.canvas_length


def _canvas(trajectory: Trajectory, block_size: int, family: Family, mask_id: int) -> npt.NDArray[np.int64]:
    """Prompt, response, and the mask on what the sampler never reached."""
    canvas = np.full(_canvas_length(trajectory, block_size, family), mask_id, dtype=np.int64)
    known = np.concatenate([trajectory.prompt_ids, trajectory.response_ids])
    canvas[: len(known)] = known
    return canvas


def _full_rows(trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int) -> list[_Row]:
    canvas = _canvas(trajectory, block_size, family, mask_id)
    prompt, response = len(trajectory.prompt_ids), len(trajectory.response_ids)
    zeros = np.zeros_like(canvas)
    rows = []
    for view, states in enumerate(plan.states):
        ids = canvas.copy()
        ids[prompt : prompt + response][states != SHOWN] = mask_id
        tokens = np.flatnonzero(states == PREDICTED)
        columns = predictor_positions(torch.from_numpy(prompt + tokens), family).numpy()
        rows.append(_Row(ids, np.arange(len(canvas)), zeros, zeros + CLEAN, columns, tokens, np.full(len(tokens), view)))
    return rows


def _block_rows(trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int) -> list[_Row]:
    """[clean | noisy views], each noisy view only with the blocks in which it predicts something."""
    canvas = _canvas(trajectory, block_size, family, mask_id)
    prompt, response = len(trajectory.prompt_ids), len(trajectory.response_ids)
    positions = np.arange(len(canvas))
    pieces = [(canvas, positions, np.zeros_like(positions) + CLEAN)]
    columns, tokens, views = [], [], []
    offset = len(canvas)
    for view, states in enumerate(plan.states):
        predicted = np.flatnonzero(states == PREDICTED)
        if not len(predicted):
            continue
        noisy = canvas.copy()
        noisy[prompt : prompt + response][states != SHOWN] = mask_id
        blocks = np.unique((prompt + predicted) // block_size)
        at = (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)
        pieces.append((noisy[at], at, np.full(len(at), view + 1)))
        columns.append(offset + np.searchsorted(at, prompt + predicted))
        tokens.append(predicted)
        views.append(np.full(len(predicted), view))
        offset += len(at)
    ids, where, streams = (np.concatenate(part) for part in zip(*pieces, strict=True))
    none = np.zeros(0, dtype=np.int64)
    return [_Row(ids, where, where // block_size, streams, *(np.concatenate(p) if p else none for p in (columns, tokens, views)))]
