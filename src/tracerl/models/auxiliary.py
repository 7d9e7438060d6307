"""Save and load auxiliary modules (value model, order module) in folders of a checkpoint."""

from pathlib import Path

from torch import nn

from tracerl.errors import CheckpointError
from tracerl.models.weights import (
    WEIGHTS,
    Target,
    fill_parameters,
    write_tensors,
)


def save_module(module: nn.Module, folder: Path) -> None:
    """Writes a module's weights into a folder (created). Raises CheckpointError if it cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous() for name, tensor in module.state_dict().items()}
    write_tensors(tensors, folder / WEIGHTS, {})


def load_module(module: nn.Module, folder: Path, name: str, wanted: str, do: str) -> None:
    """Reads a module's weights from a folder. Raises CheckpointError, with `wanted` and `do`, if
    there are none or they do not fit.

    name: what errors call the module.
    """
    target = Target(parameters=module.state_dict(), tied={}, owner=f"the {name}")
    try:
        fill_parameters(target, folder)
    except CheckpointError as error:
        raise CheckpointError(
            f"the checkpoint's {name} cannot be read",
            where=str(folder / WEIGHTS),
            got=error,
            wanted=wanted,
            do=do,
        ) from error
