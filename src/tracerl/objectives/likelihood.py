"""What a model says about the tokens that views predict, and about the order in which they were committed.

One forward pass, the LM head only where something is predicted or, for the order, competed.
"""

import torch

from tracerl.models.transformer import Transformer
from tracerl.types import Views


def predicted_logits(model: Transformer, views: Views) -> torch.Tensor:
    """Logits [T, vocab] at the predicted tokens of `views`, or [C, vocab] at their rivals if the order is scored; float32 or wider."""
    return _wide_logits(model, _read(model, views))


def _read(model: Transformer, views: Views) -> torch.Tensor:
    """Hidden states [T, hidden] that predict the tokens of `views`, or [C, hidden] those of their rivals."""
    device = model.device
    hidden: torch.Tensor = model(views.input_ids.to(device), views.layout.to(device))
    at = views if views.rivals is None else views.rivals
    return hidden[at.row.to(device), at.column.to(device)]


def _wide_logits(model: Transformer, hidden: torch.Tensor) -> torch.Tensor:
    logits = model.logits(hidden)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def token_logprobs(model: Transformer, views: Views, temperature: float) -> torch.Tensor:
    """log softmax(logits / temperature) of each predicted token's target, [T], in the order of `views`."""
    return _of_targets(predicted_logits(model, views), views, temperature)


def token_and_order_logprobs(
    model: Transformer, views: Views, temperature: float, order_temperature: float, order_score: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """`token_logprobs`, and of each predicted token the log-probability of having been committed at its place in the order, both [T].

    The second is Plackett-Luce (mask-aware policy gradients, section 3.1): v_u / tau minus the logsumexp of v / tau over the positions that
    were still masked and selectable when it was chosen, from one forward. v is the largest logit of a position ("max_logit", the paper) or
    its largest log-probability ("max_logprob", which adding a constant to the logits of a position cannot change), or what the model's
    order module says of it ("module"). A forced choice has 0.
    """
    rivals = views.rivals
    assert rivals is not None, "views of a method that scores the order"
    hidden = _read(model, views)
    logits = _wide_logits(model, hidden)
    if order_score == "module" and model.order is not None:
        values = model.order(hidden)
    else:
        values = (logits if order_score == "max_logit" else logits.log_softmax(-1)).amax(-1)
    scores = values / order_temperature
    tokens = _of_targets(logits[rivals.chosen.to(logits.device)], views, temperature)
    return tokens, plackett_luce_logprobs(scores, rivals.contest, rivals.place)[rivals.chosen.to(logits.device)]


def plackett_luce_logprobs(scores: torch.Tensor, contest: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """log-probability of every entry [C] to be drawn at its place: v_k - logsumexp of v over the places k, k + 1, ... of its contest."""
    numbers = torch.unique_consecutive(contest, return_inverse=True)[1]
    shape = (int(numbers.max()) + 1, int(place.max()) + 1) if len(place) else (0, 0)
    nobody = torch.finfo(scores.dtype).min / 4  # finite, so that sums over nobody have a gradient
    table = scores.new_full(shape, nobody).index_put((numbers.to(scores.device), place.to(scores.device)), scores)
    left = table.flip(1).logcumsumexp(1).flip(1)
    return scores - left[numbers, place]


def _of_targets(logits: torch.Tensor, views: Views, temperature: float) -> torch.Tensor:
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(-1, views.targets.to(logprobs.device).unsqueeze(-1)).squeeze(-1)
