"""The order module: a small network beside a policy that says which masked position to commit next
(DCoLT, arXiv 2505.10446).

It reads the hidden state that predicts a position's token and gives the position a score; the
sampler draws the positions of a step by Plackett-Luce over these scores (`order_score: module`),
and method `mask_aware` trains it with the policy, by the same reward. With segments of one step,
all of them scored, that is the exact likelihood of both decisions of every step, as DCoLT has it.

Departures from DCoLT: a network per position, where the published one is a transformer layer over
the response, told by learned embeddings how far denoising is and what is masked or live (what ours
reads has attended to the canvas already; it needs no cache and replays exactly); it starts at zero,
a uniform order; its ratio is clipped apart from the tokens'. It lies in the folder `order` of a
checkpoint, since no published format has a place for it.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tracerl.models.auxiliary import WEIGHTS, load_module, save_module

if TYPE_CHECKING:
    from tracerl.models.transformer import Transformer

FOLDER = "order"


class OrderModule(nn.Module):
    """Scores [..., 1] of hidden states [..., hidden]: a hidden layer of the same width and a
    scalar."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, hidden_size)
        self.score = nn.Linear(hidden_size, 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores [...], float32 or wider, for hidden states [..., hidden]."""
        scores: torch.Tensor = self.score(F.silu(self.inner(hidden))).squeeze(-1)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))


def fit_order_module(model: "Transformer", generator: np.random.Generator) -> None:
    """Makes a loaded model one with an order module to train, its own or a fresh one: drawn inside,
    zero in its last layer, so that the order is uniform at first."""
    if model.order is not None:
        model.order.requires_grad_(True)
        return
    module = OrderModule(model.architecture.hidden_size).to(model.device, model.dtype)
    with torch.no_grad():
        shape = tuple(module.inner.weight.shape)
        module.inner.weight.copy_(
            torch.from_numpy(generator.standard_normal(shape) * shape[1] ** -0.5)
        )
        for parameter in (module.inner.bias, module.score.weight, module.score.bias):
            parameter.zero_()
    model.order = module


def save_order_module(model: "Transformer", checkpoint: Path) -> None:
    """Writes the order module, if there is one, into the folder `order` of a checkpoint directory."""
    if model.order is not None:
        save_module(model.order, checkpoint / FOLDER, "order module")


def load_order_module(model: "Transformer", checkpoint: Path) -> None:
    """Gives the model the order module of a checkpoint directory, if that has one. Raises
    CheckpointError if it does not fit."""
    if not (checkpoint / FOLDER / WEIGHTS).is_file():
        return
    module = OrderModule(model.architecture.hidden_size).to(model.device, model.dtype)
    load_module(
        module,
        checkpoint / FOLDER,
        "order module",
        "the module of a policy of this shape",
        "delete the folder `order` to go on without it",
    )
    model.order = module
