"""A value model: the backbone of a policy with a scalar head, for every family.

It is read where a policy's hidden states are read: at the positions from which the views predict
their tokens. The value of a token of step t therefore depends on the steps before t only. The head
starts at zero, so that a fresh value model says 0 everywhere.
"""

import copy
from pathlib import Path

import torch
from torch import nn

from tracerl.models.auxiliary import load_module, save_module
from tracerl.models.masks import Layout
from tracerl.models.policy import Policy

FOLDER = "value"


class ValueModel(nn.Module):
    """Backbone and head; `transformer` is a policy without its LM head. Of a policy with adapters,
    its copies of them and the head are trained."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.transformer = copy.deepcopy(policy)
        self.transformer.lm_head = nn.Identity()  # type: ignore[assignment]
        self.transformer.order = None
        self.value_head = nn.Linear(
            policy.architecture.hidden_size, 1, device=policy.device, dtype=policy.dtype
        )
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(
        self, input_ids: torch.Tensor, layout: Layout, at: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Values [T] read at rows and columns `at`, float32 or wider, for input_ids int64 [B,
        L]."""
        hidden: torch.Tensor = self.transformer(input_ids, layout)
        values: torch.Tensor = self.value_head(hidden[at]).squeeze(-1)
        return values.to(torch.promote_types(values.dtype, torch.float32))


def save_value_model(model: ValueModel, checkpoint: Path) -> None:
    """Writes the value model into the folder `value` of its policy's checkpoint directory."""
    save_module(model, checkpoint / FOLDER)


def load_value_model(policy: Policy, checkpoint: Path) -> ValueModel:
    """The value model that was saved with a checkpoint; `policy` gives its shape.

    Raises CheckpointError if the checkpoint has none or one of another shape.
    """
    model = ValueModel(policy)
    wanted = (
        "a value model of the policy's shape, saved by a round with advantages 'gae' and the "
        "same lora"
    )
    load_module(model, checkpoint / FOLDER, "value model", wanted, "set value.start to 'policy'")
    return model
