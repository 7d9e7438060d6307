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

from tracerl.sampling.orders import order_scores
from tracerl.settings.sampling import Sampler


@dataclass(frozen=True, kw_only=True)
class TokenDraws:
    """Tokens drawn at masked positions; all fields have one shape, [T] or [rows, K]."""

    tokens: torch.Tensor
    """Token ids, int64."""
    confidence: torch.Tensor
    """What positions are ranked by, float."""
    logprobs: torch.Tensor
    """Log-probability at the sampler's temperature, float."""
    filtered_logprobs: torch.Tensor
    """Log-probability after top-k and top-p as well, float."""
    order_scores: torch.Tensor
    """Order score of the position, float64; zero unless the order is drawn."""

    def scatter(self, at: tuple[torch.Tensor, torch.Tensor], shape: torch.Size) -> "TokenDraws":
        """The flat entries at their places of a [rows, K] table, zeros elsewhere."""

        def put(values: torch.Tensor) -> torch.Tensor:
            return values.new_zeros(shape).index_put(at, values)

        return TokenDraws(
            tokens=put(self.tokens),
            confidence=put(self.confidence),
            logprobs=put(self.logprobs),
            filtered_logprobs=put(self.filtered_logprobs),
            order_scores=put(self.order_scores),
        )


def draw(
    logits: torch.Tensor,
    numbers: torch.Tensor,
    settings: Sampler,
    order: torch.Tensor | None = None,
) -> TokenDraws:
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
    filtered = _filter(tempered, settings)
    if settings.temperature == 0.0:
        tokens = raw.argmax(-1)
    else:
        distribution = filtered.double().exp().cumsum(-1)
        total = distribution[:, -1:]
        # A number near 1 may round up to the total, behind which no token has probability.
        below = torch.nextafter(total, torch.zeros_like(total))
        target = torch.minimum(numbers.unsqueeze(-1) * total, below)
        tokens = (
            torch.searchsorted(distribution, target, right=True)
            .squeeze(-1)
            .clamp(max=logits.shape[-1] - 1)
        )

    def of_tokens(logprobs: torch.Tensor) -> torch.Tensor:
        return logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    source = settings.confidence_source
    if source == "neg_entropy":
        confidence = -torch.special.entr(raw.exp()).sum(-1)
    elif source == "margin":
        largest = raw.topk(2, dim=-1).values.exp()
        confidence = largest[:, 0] - largest[:, 1]
    else:
        distribution_of = {"raw": raw, "tempered": tempered, "filtered": filtered}[source]
        if settings.confidence_of == "drawn":
            confidence = of_tokens(distribution_of).exp()
        else:
            confidence = distribution_of.max(-1).values.exp()
    return TokenDraws(
        tokens=tokens,
        confidence=confidence,
        logprobs=of_tokens(tempered),
        filtered_logprobs=of_tokens(filtered),
        order_scores=order_scores(logits, raw, order, settings.order),
    )


def guide(logits: torch.Tensor, unconditional: torch.Tensor, guidance: float) -> torch.Tensor:
    """Classifier-free guidance (LLaDA, equation 16): logits moved away from those of the canvas
    whose prompt is masked."""
    return unconditional + (guidance + 1.0) * (logits - unconditional)


def _filter(logprobs: torch.Tensor, settings: Sampler) -> torch.Tensor:
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
