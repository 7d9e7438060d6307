"""Which masked positions of the active block a denoising step commits. Pure functions over
[rows, K]; a new order is a record in settings/sampling.py and a function in `_CHOOSE`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tracerl.settings.base import Section
from tracerl.settings.sampling import (
    Dynamic,
    Entropy,
    PlackettLuce,
    Sampler,
    Sequential,
    Static,
    SubBlocks,
)

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


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The masked positions of some active blocks, ranked."""

    masked: torch.Tensor
    """Positions that may be committed, bool [rows, K]."""
    score: torch.Tensor
    """Confidence of each position, -inf where it is not masked, float [rows, K]."""
    order: torch.Tensor
    """Positions by falling score, int64 [rows, K]; ties by position."""
    rank: torch.Tensor
    """Place of each position in `order`, int64 [rows, K]."""
    step_in_block: torch.Tensor
    """Denoising steps that each block has had, int64 [rows]."""
    place: torch.Tensor
    """Place of each column in its block, from 0, int64 [K]."""


def choose(
    confidence: torch.Tensor,
    masked: torch.Tensor,
    step_in_block: torch.Tensor,
    settings: Sampler,
    first_place: int = 0,
) -> torch.Tensor:
    """Positions to commit, bool [rows, K], only masked ones; at least one per row that has one,
    except on Dream's schedule.

    confidence: float [rows, K]; masked: bool [rows, K]; step_in_block: int64 [rows], denoising
    steps the block has had. Ties break by position. Rows whose schedule is over (a prompt tail
    makes a block shorter, never longer) commit one at a time. For a drawn order the confidence is
    `perturb`ed; for an order by entropy it is the negative entropy. first_place: place in the block
    of the first column; the columns go on from there and, at the block's end, from the next one's
    start.
    """
    score = confidence.masked_fill(~masked, float("-inf"))
    order = score.argsort(dim=1, descending=True, stable=True)
    columns = torch.arange(masked.shape[1], device=masked.device)
    candidates = Candidates(
        masked=masked,
        score=score,
        order=order,
        rank=order.argsort(dim=1),
        step_in_block=step_in_block,
        place=(first_place + columns) % settings.block_size,
    )
    return masked & _CHOOSE[type(settings.order)](settings.order, candidates, settings)


def num_steps(settings: Sampler) -> int:
    """Steps that a block takes at most."""
    return settings.steps_per_block if settings.order.scheduled else settings.block_size


def _most_confident(order: Section, candidates: Candidates, settings: Sampler) -> torch.Tensor:
    """The first positions, as many as the schedule says."""
    count = _count(candidates.masked, candidates.step_in_block, settings)
    return candidates.rank < count.unsqueeze(1)


def _leftmost(order: Section, candidates: Candidates, settings: Sampler) -> torch.Tensor:
    """The first masked positions from the left, as many as the schedule says."""
    count = _count(candidates.masked, candidates.step_in_block, settings)
    return candidates.masked.cumsum(1) <= count.unsqueeze(1)


def _above_threshold(order: Dynamic, candidates: Candidates, settings: Sampler) -> torch.Tensor:
    return (candidates.score > order.threshold) | (candidates.rank < (order.at_least or 1))


def _in_sub_block(order: SubBlocks, candidates: Candidates, settings: Sampler) -> torch.Tensor:
    number = (candidates.place // order.size).expand_as(candidates.masked)
    first = number.masked_fill(~candidates.masked, settings.block_size).amin(1, keepdim=True)
    inside = candidates.masked & (number == first)
    score = candidates.score.masked_fill(~inside, float("-inf"))
    best = score.argmax(1, keepdim=True)
    is_best = torch.zeros_like(inside).scatter(1, best, True)
    return inside & ((score > order.threshold) | is_best)


def _below_entropy(order: Entropy, candidates: Candidates, settings: Sampler) -> torch.Tensor:
    entropies = (-candidates.score).masked_fill(~candidates.masked, 0.0)
    total = entropies.gather(1, candidates.order).cumsum(1).gather(1, candidates.rank)
    return (total < order.bound) | (candidates.rank == 0)


# Order -> (order, candidates, sampler) -> positions to commit, bool [rows, K]; what is not masked
# does not count.
_CHOOSE: dict[type[Section], Callable[[Any, Candidates, Sampler], torch.Tensor]] = {
    Static: _most_confident,
    Sequential: _leftmost,
    PlackettLuce: _most_confident,
    Dynamic: _above_threshold,
    SubBlocks: _in_sub_block,
    Entropy: _below_entropy,
}


def _count(masked: torch.Tensor, step_in_block: torch.Tensor, settings: Sampler) -> torch.Tensor:
    """Positions that the schedule commits in each row, int64 [rows]."""
    step = step_in_block.clamp(max=settings.steps_per_block - 1)
    if settings.schedule == "dream":
        return (
            masked.sum(1).float() * dream_shares(settings.steps_per_block).to(masked.device)[step]
        ).long()
    if settings.schedule == "rounded":  # torch rounds a half to the even number
        return (masked.sum(1) / (settings.steps_per_block - step)).round().long().clamp(min=1)
    schedule = torch.tensor(
        static_schedule(settings.block_size, settings.steps_per_block), device=masked.device
    )
    return schedule[step].clamp(min=1)


def perturb(scores: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
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


def order_scores(
    logits: torch.Tensor, raw: torch.Tensor, module: torch.Tensor | None, order: Section
) -> torch.Tensor:
    """Score of each position before noise, float64 [T]; zeros unless the order is drawn.

    logits, raw: logits and their log-softmax, [T, V]. module: an order module's scores, [T].
    Plackett-Luce: v / temperature, in float64, because an exact order needs no more noise than it
    draws.
    """
    if not isinstance(order, PlackettLuce):
        return torch.zeros_like(raw[:, 0])
    if module is not None:
        values = module
    else:
        values = (logits if order.score == "max_logit" else raw).max(-1).values
    return values.double() / order.temperature


def needs_module(order: Section) -> bool:
    """Whether the order is drawn from the scores of an order module (models/order.py)."""
    return isinstance(order, PlackettLuce) and order.score == "module"
