"""What a model says about the tokens that views predict, and about the order in which they were
committed.

One forward pass, the LM head only where something is predicted or, for the order, competed, and
never over more of those than fit a table of logits of a fixed size.
"""

import torch

from tracerl.models.policy import Policy
from tracerl.objectives.views import Views


def prediction_logits(model: Policy, views: Views) -> torch.Tensor:
    """Logits [T, vocab] at the predicted tokens of `views`, or [C, vocab] at their candidates if
    the order is scored; float32 or wider, minus infinity at ids that are not predicted."""
    logits = model.logits(prediction_hidden(model, views))
    return model.mask_logits_(logits.to(torch.promote_types(logits.dtype, torch.float32)))


def prediction_hidden(model: Policy, views: Views) -> torch.Tensor:
    """Hidden states [T, hidden] at the predicted tokens of `views`, or [C, hidden] at their
    candidates if the order is scored."""
    device = model.device
    hidden: torch.Tensor = model(views.input_ids.to(device), views.layout.to(device))
    at = views if views.candidates is None else views.candidates
    chosen: torch.Tensor = hidden[at.row.to(device), at.column.to(device)]
    return chosen


def token_logprobs(model: Policy, views: Views, temperature: float) -> torch.Tensor:
    """log softmax(logits / temperature) of each predicted token's target, [T], in the order of
    `views`."""
    targets = views.targets.to(model.device)
    return model.read_logits(
        prediction_hidden(model, views),
        targets,
        lambda logits, ids: _of_targets(logits, ids, temperature),
    )


def token_logprobs_and_hits(model: Policy, views: Views) -> tuple[torch.Tensor, torch.Tensor]:
    """`token_logprobs` at temperature 1, and whether each target is the most probable token (1.0 or
    0.0), both [T]."""

    def both(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        hits = (logits.argmax(-1) == ids).to(logits.dtype)
        return torch.stack([_of_targets(logits, ids, 1.0), hits], dim=-1)

    targets = views.targets.to(model.device)
    logprobs, hits = model.read_logits(prediction_hidden(model, views), targets, both).unbind(-1)
    return logprobs, hits.detach()


def token_and_order_logprobs(
    model: Policy, views: Views, temperature: float, order_temperature: float, order_score: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """`token_logprobs`, and of each predicted token the log-probability of having been committed at
    its place in the order, both [T].

    The second is Plackett-Luce (mask-aware policy gradients, section 3.1): v_u / tau minus the
    logsumexp of v / tau over the positions that were still masked and selectable when it was
    chosen, from one forward. v is the largest logit of a position ("max_logit", the paper) or its
    largest log-probability ("max_logprob", which adding a constant to the logits of a position
    cannot change), or what the model's order module says of it ("module"). A forced choice has 0.
    """
    candidates = views.candidates
    assert candidates is not None, "views of a method that scores the order"
    hidden, chosen = prediction_hidden(model, views), candidates.chosen.to(model.device)
    targets = torch.zeros(len(hidden), dtype=torch.int64, device=model.device).index_put(
        (chosen,), views.targets.to(model.device)
    )

    def both(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        scores = (logits if order_score == "max_logit" else logits.log_softmax(-1)).amax(
            -1
        ) / order_temperature
        return torch.stack([_of_targets(logits, ids, temperature), scores], dim=-1)

    tokens, scores = model.read_logits(hidden, targets, both).unbind(-1)
    if order_score == "module":
        assert model.order is not None, "a policy with an order module"
        scores = model.order(hidden) / order_temperature
    return tokens[chosen], plackett_luce_logprobs(scores, candidates.choice_set, candidates.place)[
        chosen
    ]


def plackett_luce_logprobs(
    scores: torch.Tensor, contest: torch.Tensor, place: torch.Tensor
) -> torch.Tensor:
    """log-probability of every entry [C] to be drawn at its place: v_k - logsumexp of v over the
    places k, k + 1, ... of its contest."""
    numbers = torch.unique_consecutive(contest, return_inverse=True)[1]
    shape = (int(numbers.max()) + 1, int(place.max()) + 1) if len(place) else (0, 0)
    nobody = torch.finfo(scores.dtype).min / 4  # finite, so that sums over nobody have a gradient
    table = scores.new_full(shape, nobody).index_put(
        (numbers.to(scores.device), place.to(scores.device)), scores
    )
    left = table.flip(1).logcumsumexp(1).flip(1)
    return scores - left[numbers, place]


def _of_targets(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    return (logits / temperature).log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
