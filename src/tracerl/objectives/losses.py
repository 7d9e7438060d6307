"""Losses as pure functions over flat tokens, and the one reduction.

Every loss is `sum over tokens of weight * term`. `token_weights` makes the weights once per optimizer step, over all its trajectories,
before any backward pass: accumulation, micro-batch size and world size therefore cannot change a loss.
"""

import torch

MAX_LOG_RATIO = 20.0  # exp(20) = 5e8: log-ratios are clamped here, so that an overflow shows as a huge ratio and not as infinity


def denominator(reduction: str, num_responses: int, num_tokens: int, fixed_length: int) -> int:
    """What a reduction divides by, counted over a whole optimizer step: responses, trainable tokens, or responses x fixed length."""
    return {"step": num_responses, "token": num_tokens, "fixed": num_responses * fixed_length}[reduction]


def token_weights(reduction: str, group: torch.Tensor, divisor: int) -> torch.Tensor:
    """Weight of each token, float32 [T]; one meaning for every family (docs/algorithm.md, section 6).

    group: int64 [T], the (block, step group) of each token; a group's tokens are never split between calls. divisor: `denominator`.
    step: mean inside a group, sum over groups, mean over responses (the paper's objective). token: mean over all tokens.
    fixed: sum over tokens divided by responses times a fixed length (the response limit).
    """
    counts = torch.bincount(group)[group] if reduction == "step" else torch.ones(len(group))
    return 1.0 / (counts.to(torch.float32) * divisor)


def sft_loss(logprobs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted cross-entropy, a scalar: `-sum_j w_j log p_j` with logprobs, weights [T]."""
    return -(weights * logprobs).sum()


def clipped_objective(log_ratio: torch.Tensor, advantages: torch.Tensor, clip: tuple[float, float]) -> torch.Tensor:
    """C(r, A) = min(r A, clip(r, 1 - low, 1 + high) A) per token (paper, section 4.1), from log-ratios and advantages [T]."""
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - clip[0], 1 + clip[1]) * advantages)


def kl_penalty(kind: str, logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Per-token estimate of KL(policy || reference) from log-probabilities [T]; d = logprobs - reference.

    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. As a loss on its own policy's samples, k1 has zero expected gradient.
    """
    difference = (logprobs - reference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if kind == "k1":
        return difference
    return 0.5 * difference**2 if kind == "k2" else torch.exp(-difference) - 1 + difference


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    clip: tuple[float, float],
    kl: str,
    kl_weight: float,
) -> torch.Tensor:
    """`-sum_j w_j (C(r_j, A_j) - beta KL_j)`, a scalar; all tensors [T] over the same tokens."""
    gain = clipped_objective(logprobs - old_logprobs, advantages, clip)
    return -(weights * (gain - kl_weight * kl_penalty(kl, logprobs, reference_logprobs))).sum()
