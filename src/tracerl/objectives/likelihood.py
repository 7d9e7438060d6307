"""What a model says about the tokens that views predict: one forward pass, the LM head only where something is predicted."""

import torch

from tracerl.models.transformer import Layout, Transformer
from tracerl.types import Views


def predicted_logits(model: Transformer, views: Views) -> torch.Tensor:
    """Logits [T, vocab] at the predicted tokens of `views`, float32 or wider."""
    device = model.device
    layout = Layout(views.layout.positions.to(device), views.layout.blocks.to(device), views.layout.streams.to(device))
    hidden = model(views.input_ids.to(device), layout)
    logits = model.logits(hidden[views.row.to(device), views.column.to(device)])
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def token_logprobs(model: Transformer, views: Views, temperature: float) -> torch.Tensor:
    """log softmax(logits / temperature) of each predicted token's target, [T], in the order of `views`."""
    logprobs = (predicted_logits(model, views) / temperature).log_softmax(-1)
    return logprobs.gather(-1, views.targets.to(logprobs.device).unsqueeze(-1)).squeeze(-1)
