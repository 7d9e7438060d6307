"""A value model: the backbone of a policy with a scalar head, for every family.

It is read where a policy's hidden states are read: at the positions from which the views predict their tokens. The value of a token of
step t therefore depends on the steps before t only. The head starts at zero, so that a fresh value model says 0 everywhere.
"""

import copy
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from tracerl.errors import CheckpointError
from tracerl.models.transformer import Layout, Transformer

FOLDER, WEIGHTS = "value", "model.safetensors"


class ValueModel(nn.Module):
    """Backbone and head; `transformer` is a policy without its LM head. Of a policy with adapters, its copies of them and the head are
    trained."""

    def __init__(self, policy: Transformer) -> None:
        super().__init__()
        self.transformer = copy.deepcopy(policy)
        self.transformer.lm_head = nn.Identity()  # type: ignore[assignment]
        self.transformer.order = None
        weight = policy.model.embed_tokens.weight
        self.value_head = nn.Linear(policy.architecture.hidden_size, 1, device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, input_ids: torch.Tensor, layout: Layout, at: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Values [T] read at rows and columns `at`, float32 or wider, for input_ids int64 [B, L]."""
        hidden: torch.Tensor = self.transformer(input_ids, layout)
        values: torch.Tensor = self.value_head(hidden[at]).squeeze(-1)
        return values.to(torch.promote_types(values.dtype, torch.float32))


def save_value_model(model: ValueModel, checkpoint: Path) -> None:
    """Writes the value model into the folder `value` of its policy's checkpoint directory."""
    folder = checkpoint / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}, folder / WEIGHTS)
    except SafetensorError as error:
        raise CheckpointError("the value model could not be written", where=str(folder / WEIGHTS), got=error,
                              do="free disk space and run the same command again: it resumes") from error  # fmt: skip


def load_value_model(policy: Transformer, checkpoint: Path) -> ValueModel:
    """The value model that was saved with a checkpoint; `policy` gives its shape.

    Raises CheckpointError if the checkpoint has none or one of another shape.
    """
    path, model = checkpoint / FOLDER / WEIGHTS, ValueModel(policy)
    try:
        with safe_open(path, framework="pt") as file:
            model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError("the checkpoint's value model cannot be read", where=str(path), got=error,
                              wanted="a value model of the policy's shape, saved by a round with advantages 'gae' and the same lora",
                              do="set value.start to 'policy'") from error  # fmt: skip
    return model
