"""Which masked positions of the live block a denoising step commits. Pure functions over [rows, K]."""

import torch

from tracerl.config import Sampler


def static_schedule(block_size: int, steps: int) -> list[int]:
    """Tokens to commit at each step of a block: `block_size` spread evenly, the first steps taking the remainder."""
    return [block_size // steps + (step < block_size % steps) for step in range(steps)]


def choose(confidence: torch.Tensor, masked: torch.Tensor, step_in_block: torch.Tensor, settings: Sampler) -> torch.Tensor:
    """Positions to commit, bool [rows, K]; at least one per row that has a masked position, and only masked ones.

    confidence: float [rows, K]; masked: bool [rows, K]; step_in_block: int64 [rows], denoising steps the block has had.
    Ties break by position. Rows whose schedule is over (a prompt tail makes a block shorter, never longer) commit one at a time.
    """
    if settings.remasking == "sequential":
        confidence = -torch.arange(masked.shape[1], device=masked.device, dtype=confidence.dtype).expand_as(confidence)
    score = confidence.masked_fill(~masked, float("-inf"))
    rank = score.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    if settings.remasking == "dynamic":
        return masked & ((score > settings.threshold) | (rank == 0))
    schedule = torch.tensor(static_schedule(settings.block_size, settings.steps_per_block), device=masked.device)
    count = schedule[step_in_block.clamp(max=settings.steps_per_block - 1)].clamp(min=1)
    return masked & (rank < count.unsqueeze(1))
