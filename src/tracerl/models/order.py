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

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

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


def draw_order_module(module: OrderModule, generator: np.random.Generator) -> None:
    """Fresh weights: normal inside, zero in the last layer, so that the order is uniform at
    first."""
    with torch.no_grad():
        shape = tuple(module.inner.weight.shape)
        drawn = generator.standard_normal(shape) * shape[1] ** -0.5
        module.inner.weight.copy_(torch.from_numpy(drawn))
        for parameter in (module.inner.bias, module.score.weight, module.score.bias):
            parameter.zero_()
