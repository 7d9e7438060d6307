"""The mistake that claim 8 measures, put in on purpose and nowhere else: training blocks that begin
at the response.

The public training code of the block models counts blocks from the first response token, its
sampler from the first prompt token; both agree only where the prompt is a whole number of blocks
(docs/algorithm.md, deviation 1). The library has one grid, so that a cell that is to be wrong puts
the other one in for as long as it runs. Positions count relatively in every family, so that moving
the grid by some tokens is the same as as many tokens before the prompt that nobody sees.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from tracerl.models.families import Family
from tracerl.models.masks import PAD
from tracerl.objectives import plans, view_rows, views
from tracerl.types import Trajectory


def move_to_grid(trajectory: Trajectory, block_size: int) -> tuple[Trajectory, int]:
    """The trajectory behind as many further prompt tokens as let its response begin a block, and
    how many those are."""
    lead = -len(trajectory.prompt_ids) % block_size
    prompt = np.concatenate(
        [np.zeros(lead, dtype=trajectory.prompt_ids.dtype), trajectory.prompt_ids]
    )
    return replace(
        trajectory, prompt_ids=prompt, canvas_length=trajectory.canvas_length + lead
    ), lead


def grid_trajectory(trajectory: Trajectory, block_size: int, family: Family) -> Trajectory:
    """The trajectory on the other grid, for families whose attention has one."""
    if family.attention == "full":
        return trajectory
    return move_to_grid(trajectory, block_size)[0]


@contextlib.contextmanager
def response_aligned() -> Iterator[None]:
    """While it is open, views of block-causal families lie on a grid that begins at the response.
    Sampling is as it was."""
    grid_blocks = plans.grid_blocks
    block_row = view_rows.block_row
    canvas_length = view_rows.canvas_length_of

    def blocks(trajectory: Trajectory, block_size: int, family: Family) -> npt.NDArray[np.int64]:
        return grid_blocks(
            move_to_grid(trajectory, block_size)[0]
            if family.attention == "block_causal"
            else trajectory,
            block_size,
            family,
        )

    def row_of(
        trajectory: Trajectory, plan: Any, block_size: int, family: Family, mask_id: int
    ) -> Any:
        shifted, lead = move_to_grid(trajectory, block_size)
        masked = plan.masked_prompt
        if masked is not None:
            plan = replace(plan, masked_prompt=np.concatenate([np.zeros(lead, dtype=bool), masked]))
        row = block_row(shifted, plan, block_size, family, mask_id)
        # Every copy of the lead: a noisy view of the first block holds it too, where the prompt is
        # shorter than the lead is long.
        return replace(row, streams=np.where(row.positions < lead, PAD, row.streams))

    def length(trajectory: Trajectory, block_size: int, family: Family) -> int:
        return canvas_length(
            move_to_grid(trajectory, block_size)[0]
            if family.attention == "block_causal"
            else trajectory,
            block_size,
            family,
        )

    with (
        patch.object(plans, "grid_blocks", blocks),
        patch.object(view_rows, "grid_blocks", blocks),
        patch.object(view_rows, "block_row", row_of),
        patch.object(view_rows, "canvas_length_of", length),
        patch.object(views, "canvas_length_of", length),
    ):
        yield
