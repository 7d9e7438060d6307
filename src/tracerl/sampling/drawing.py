"""Tokens from logits: temperature, filters, the draw, and how confident the model is of each. Pure
functions over rows of logits.

Tokens are drawn by inverting the distribution function in float64, one uniform number per position,
which is exact and needs no noise over the vocabulary.

Confidence (`confidence`, `confidence_of`): the probability of the drawn token, or the largest
probability, under the `raw`, the `tempered` or the `filtered` distribution; or, whichever token was
drawn, the difference of the two largest raw probabilities (`margin`) or the negative entropy of the
raw distribution in nats (`neg_entropy`). The public samplers use the drawn token's, the papers'
text the largest; Dream's own code filters first, which with top_k = 1 makes every confidence 1 and
the order an accident of ties.
"""

from dataclasses import dataclass

import torch

from tracerl.settings.sampling import Sampler


@dataclass(frozen=True)
class Drawn:
    """Tokens drawn at masked positions, all of one shape: int64 tokens and, of each, its
    confidence, its log-probability at temperature, the same under the distribution after top-k and
    top-p, and the order score of its position (zero unless the order is drawn)."""

    tokens: torch.Tensor
    confidence: torch.Tensor
    logprobs: torch.Tensor
    filtered_logprobs: torch.Tensor
    order_scores: torch.Tensor

    def scattered(self, at: tuple[torch.Tensor, torch.Tensor], shape: torch.Size) -> "Drawn":
        """The flat entries put at their places of a [rows, K] table; zeros elsewhere."""

        def put(values: torch.Tensor) -> torch.Tensor:
            return values.new_zeros(shape).index_put(at, values)

        return Drawn(
            put(self.tokens),
            put(self.confidence),
            put(self.logprobs),
            put(self.filtered_logprobs),
            put(self.order_scores),
        )


def draw(
    logits: torch.Tensor,
    numbers: torch.Tensor,
    settings: Sampler,
    order: torch.Tensor | None = None,
) -> Drawn:
    """Draws one token from each row of logits [T, V], using one uniform number each, float64 [T].
    order: an order module's scores, [T].

    At temperature 0 the token is the most likely one and its log-probability that of the unmodified
    distribution.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    raw = logits.log_softmax(-1)
    tempered = (
        (logits / settings.temperature).log_softmax(-1)
        if settings.temperature not in (0.0, 1.0)
        else raw
    )
    filtered = _filtered(tempered, settings)
    if settings.temperature == 0.0:
        tokens = raw.argmax(-1)
    else:
        distribution = filtered.double().exp().cumsum(-1)
        target = numbers.unsqueeze(-1) * distribution[:, -1:]
        tokens = (
            torch.searchsorted(distribution, target, right=True)
            .squeeze(-1)
            .clamp(max=logits.shape[-1] - 1)
        )

    def of_tokens(logprobs: torch.Tensor) -> torch.Tensor:
        return logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    # The entropy-bounded order is about entropies, whatever else is asked for.
    source = "neg_entropy" if settings.remasking == "entropy" else settings.confidence
    if source == "neg_entropy":
        confidence = -torch.special.entr(raw.exp()).sum(-1)
    elif source == "margin":
        largest = raw.topk(2, dim=-1).values.exp()
        confidence = largest[:, 0] - largest[:, 1]
    else:
        distribution_of = {"raw": raw, "tempered": tempered, "filtered": filtered}[source]
        confidence = (
            of_tokens(distribution_of)
            if settings.confidence_of == "drawn"
            else distribution_of.max(-1).values
        ).exp()
    return Drawn(
        tokens,
        confidence,
        of_tokens(tempered),
        of_tokens(filtered),
        _order_scores(logits, raw, order, settings),
    )


def guided(logits: torch.Tensor, unconditional: torch.Tensor, guidance: float) -> torch.Tensor:
    """Classifier-free guidance (LLaDA, equation 16): logits moved away from those of the canvas
    whose prompt is masked."""
    return unconditional + (guidance + 1.0) * (logits - unconditional)


def _order_scores(
    logits: torch.Tensor, raw: torch.Tensor, order: torch.Tensor | None, settings: Sampler
) -> torch.Tensor:
    """Plackett-Luce scores v / order_temperature of each position, [T], in float64: an exact order
    needs no more noise than it draws."""
    if settings.remasking != "plackett_luce" or settings.order_temperature is None:
        return torch.zeros_like(raw[:, 0])
    values = (
        order
        if order is not None
        else (logits if settings.order_score == "max_logit" else raw).max(-1).values
    )
    return values.double() / settings.order_temperature


def _filtered(logprobs: torch.Tensor, settings: Sampler) -> torch.Tensor:
    """Log-probabilities after top-k, then top-p, renormalised; the very same tensor when both are
    off."""
    if not settings.filters:
        return logprobs
    if settings.top_k:
        smallest = logprobs.topk(min(settings.top_k, logprobs.shape[-1]), dim=-1).values[:, -1:]
        logprobs = logprobs.masked_fill(logprobs < smallest, float("-inf"))
    if settings.top_p < 1.0:
        ordered, order = logprobs.softmax(-1).sort(dim=-1, descending=True, stable=True)
        beyond = ordered.cumsum(-1) - ordered >= settings.top_p
        logprobs = logprobs.masked_fill(
            torch.zeros_like(beyond).scatter(-1, order, beyond), float("-inf")
        )
    return logprobs.log_softmax(-1)
