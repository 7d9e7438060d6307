"""Losses as pure functions over flat tokens, and the one reduction.

Every loss is `sum over tokens of weight * term`. `token_weights` makes the weights once per
optimizer step, over all its trajectories, before any backward pass: accumulation, micro-batch size
and world size therefore cannot change a loss.
"""

import torch

# exp(20) = 5e8: log-ratios are clamped here, so that an overflow shows as a huge ratio and not as
# infinity
MAX_LOG_RATIO = 20.0


def denominator(reduction: str, num_responses: int, num_tokens: float, fixed_length: int) -> float:
    """What a reduction divides by, counted over a whole optimizer step: responses, trainable
    tokens, or responses x fixed length."""
    return {
        "step": num_responses,
        "response": num_responses,
        "token": num_tokens,
        "fixed": num_responses * fixed_length,
    }[reduction]


def token_weights(reduction: str, group: torch.Tensor, divisor: float) -> torch.Tensor:
    """Weight of each token, float32 [T]; one meaning for every family (docs/algorithm.md, section
    6).

    group: int64 [T], the (block, step group) of each token, or its response for reduction
    "response"; a group's tokens are never split between calls. divisor: `denominator`.
    step: mean inside a group, sum over groups, mean over responses (TraceRL's objective). response:
    mean inside a response, mean over responses (that of GRPO and GSPO). token: mean over all
    tokens. fixed: sum over tokens divided by responses times a fixed length (the response limit).
    """
    counts = torch.ones(len(group))
    if reduction in ("step", "response"):
        counts = torch.bincount(group)[group]
    return 1.0 / (counts.to(torch.float32) * divisor)


def sft_loss(logprobs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted cross-entropy, a scalar: `-sum_j w_j log p_j` with logprobs, weights [T]."""
    return -(weights * logprobs).sum()


def clipped_objective(
    log_ratio: torch.Tensor, advantages: torch.Tensor, clip: tuple[float, float]
) -> torch.Tensor:
    """C(r, A) = min(r A, clip(r, 1 - low, 1 + high) A) per token (TraceRL, section 4.1), from
    log-ratios and advantages [T]."""
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - clip[0], 1 + clip[1]) * advantages)


def kl_penalty(kind: str, logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Per-token estimate of KL(policy || reference) from log-probabilities [T]; d = logprobs -
    reference.

    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. As a loss on its own policy's samples, k1 has zero
    expected gradient. Only where there is an exponential is d clamped: that of a whole response may
    be hundreds of nats, from where k2 must still pull back.
    """
    difference = logprobs - reference
    if kind == "k1":
        return difference
    if kind == "k2":
        return 0.5 * difference**2
    clamped = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.exp(-clamped) - 1 + clamped


def response_mean(values: torch.Tensor, source: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each response's weighted mean of its values, at every one of them, [T]. source: int64 [T],
    the response; weight: [T]."""
    size = int(source.max()) + 1 if len(source) else 0
    weight = weight.to(values.dtype)
    total = values.new_zeros(size).index_add(0, source, weight * values)
    return (total / values.new_zeros(size).index_add(0, source, weight))[source]


def policy_gain(
    ratio: str,
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clip: tuple[float, float],
    source: torch.Tensor,
    weight: torch.Tensor,
) -> torch.Tensor:
    """What is maximised, per unit [T]; all tensors [T] over the same units (tokens, or whole
    responses).

    token: C(r_j, A_j) with a ratio per unit (PPO, GRPO). sequence: the same with one ratio per
    response, r = exp(mean over the response of logprobs - old_logprobs) (GSPO). none: A_j log p_j,
    whose gradient is the policy gradient without correction or clip.
    """
    if ratio == "none":
        return advantages * logprobs
    log_ratio = logprobs - old_logprobs
    if ratio == "sequence":
        log_ratio = response_mean(log_ratio, source, weight)
    return clipped_objective(log_ratio, advantages, clip)


def policy_loss(
    gain: torch.Tensor, penalty: torch.Tensor, weights: torch.Tensor, kl_weight: float
) -> torch.Tensor:
    """`-sum_j w_j (gain_j - beta KL_j)`, a scalar; all tensors [T] over the same units, penalty
    from `kl_penalty`."""
    return -(weights * (gain - kl_weight * penalty)).sum()


def value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    weights: torch.Tensor,
    clip: float,
) -> torch.Tensor:
    """`sum_j w_j 0.5 max((V - R)^2, (V_old + clip(V - V_old, -eps, eps) - R)^2)`, a scalar; all
    tensors [T] (TraceRL, section 4.2)."""
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    error = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
    return (weights * 0.5 * error).sum()
