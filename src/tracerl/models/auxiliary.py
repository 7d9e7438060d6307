"""Modules that lie beside a policy in folders of its checkpoint: a value model, an order module.
Safetensors only."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from tracerl.errors import CheckpointError

WEIGHTS = "model.safetensors"


def save_module(module: nn.Module, folder: Path, name: str) -> None:
    """Writes a module's weights into a folder. name: what errors call it. Raises CheckpointError."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        save_file(
            {key: tensor.detach().contiguous() for key, tensor in module.state_dict().items()},
            folder / WEIGHTS,
        )
    except SafetensorError as error:
        raise CheckpointError(
            f"the {name} could not be written",
            where=str(folder / WEIGHTS),
            got=error,
            do="free disk space and run the same command again: it resumes",
        ) from error


def load_module(module: nn.Module, folder: Path, name: str, wanted: str, do: str) -> None:
    """Reads a module's weights from a folder. Raises CheckpointError, with `wanted` and `do`, if
    there are none or they do not fit."""
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            module.load_state_dict({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError(
            f"the checkpoint's {name} cannot be read",
            where=str(folder / WEIGHTS),
            got=error,
            wanted=wanted,
            do=do,
        ) from error
