"""Which masked positions of the live block a denoising step commits. Pure functions over [rows, K]."""

import torch

from tracerl.settings.sampling import Sampler

# Dream's noise levels run from 1 down to this number (`eps` of its published generation code).
DREAM_LAST_NOISE = 1e-3


def static_schedule(block_size: int, steps: int) -> list[int]:
    """Tokens to commit at each step of a block: `block_size` spread evenly, the first steps taking
    the remainder."""
    return [block_size // steps + (step < block_size % steps) for step in range(steps)]


def dream_shares(steps: int) -> torch.Tensor:
    """Share of the masked positions that each step commits in Dream's own schedule, float32
    [steps].

    Noise levels t_0 = 1, ..., t_steps = 1e-3 on a linear grid; step i commits the whole part of (1
    - t_{i+1} / t_i) of what is masked, the last step the rest. A step may commit nothing. In
    float32, as published: the whole part depends on it.
    """
    levels = torch.linspace(1.0, DREAM_LAST_NOISE, steps + 1, dtype=torch.float32)
    shares = 1 - levels[1:] / levels[:-1]
    shares[-1] = 1.0
    return shares


def choose(
    confidence: torch.Tensor, masked: torch.Tensor, step_in_block: torch.Tensor, settings: Sampler
) -> torch.Tensor:
    """Positions to commit, bool [rows, K], only masked ones; at least one per row that has one,
    except on Dream's schedule.

    confidence: float [rows, K]; masked: bool [rows, K]; step_in_block: int64 [rows], denoising
    steps the block has had. Ties break by position. Rows whose schedule is over (a prompt tail
    makes a block shorter, never longer) commit one at a time. For `plackett_luce` the confidence is
    `perturbed`; for `entropy` it is the negative entropy.
    """
    if settings.remasking == "sequential":
        confidence = -torch.arange(
            masked.shape[1], device=masked.device, dtype=confidence.dtype
        ).expand_as(confidence)
    score = confidence.masked_fill(~masked, float("-inf"))
    order = score.argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)
    if settings.remasking == "dynamic":
        return masked & ((score > settings.threshold) | (rank == 0))
    if settings.remasking == "entropy":
        entropies = (-confidence).masked_fill(~masked, 0.0).gather(1, order)
        return masked & (
            (entropies.cumsum(1).gather(1, rank) < (settings.entropy_bound or 0.0)) | (rank == 0)
        )
    return masked & (rank < _count(masked, step_in_block, settings).unsqueeze(1))


def _count(masked: torch.Tensor, step_in_block: torch.Tensor, settings: Sampler) -> torch.Tensor:
    """Positions that the schedule commits in each row, int64 [rows]."""
    step = step_in_block.clamp(max=settings.steps_per_block - 1)
    if settings.schedule == "dream":
        return (
            masked.sum(1).float() * dream_shares(settings.steps_per_block).to(masked.device)[step]
        ).long()
    schedule = torch.tensor(
        static_schedule(settings.block_size, settings.steps_per_block), device=masked.device
    )
    return schedule[step].clamp(min=1)


def perturbed(scores: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Scores plus standard Gumbel noise made from uniform numbers in [0, 1), float64 [rows, K].

    Taking the n largest draws n positions without replacement with Plackett-Luce probabilities, in
    the order of the values.
    """
    return scores - (-numbers.clamp(min=2.0**-54).log()).log()


def order_logprobs(
    scores: torch.Tensor, values: torch.Tensor, masked: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Place of every masked position in the order of `values` (1-based), int64, and the
    log-probability of being drawn there, float.

    scores: Plackett-Luce scores [rows, K]; log p(u_j) = v_{u_j} - logsumexp of v over the masked
    positions not drawn before (mask-aware policy gradients, equation for p(U)). The sum over the
    first n places is the exact log-probability of that ordered set; a forced choice has 0. Both are
    0 where nothing is masked.
    """
    order = values.masked_fill(~masked, float("-inf")).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)
    ordered = scores.masked_fill(~masked, float("-inf")).gather(1, order)
    left = ordered.flip(1).logcumsumexp(1).flip(1)
    logprobs = (ordered - left).gather(1, rank)
    return (rank + 1).masked_fill(~masked, 0), logprobs.masked_fill(~masked, 0.0)
