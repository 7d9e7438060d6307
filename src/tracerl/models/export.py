"""A model as a directory that others can use: published names, config and tokenizer, adapters
merged into the weights."""

from collections.abc import Sequence
from pathlib import Path

from tracerl.disk import atomic_file
from tracerl.errors import CheckpointError
from tracerl.models.checkpoint import (
    apply_adapter,
    apply_compute,
    load_checkpoint,
    policy_hash,
    save_checkpoint,
)
from tracerl.models.policy import merge_adapters
from tracerl.settings.models import Compute


def export_checkpoint(model: Path, out: Path, adapters: Sequence[Path], compute: Compute) -> str:
    """Writes the checkpoint `model`, with `adapters` (PEFT directories) merged into it one after
    the other, to the new directory `out`.

    If `model` is itself a directory of adapters, it is merged into its base. Returns the policy
    hash of what was written.
    Raises CheckpointError if `out` holds something, or an adapter was made for other weights.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(
            "the export would overwrite something",
            where=str(out),
            wanted="a new or empty directory",
        )
    loaded, tokenizer = load_checkpoint(model, compute.model_copy(update={"dtype": "stored"}))
    merge_adapters(loaded)
    for adapter in adapters:
        apply_adapter(loaded, adapter, model)
        merge_adapters(loaded)
    apply_compute(loaded, compute)
    with atomic_file(out, "the checkpoint cannot be written") as aside:
        save_checkpoint(loaded, tokenizer, aside)
    return policy_hash(loaded)
