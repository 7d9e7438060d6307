"""Autoregressive baselines (Qwen2.5, Qwen3, Llama), which the papers' tables compare with:
evaluation only.

They are transformers' own classes, named one by one, so that no code from a directory can be run;
weights are safetensors, and complete.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from tracerl.errors import CheckpointError, NonFiniteError
from tracerl.models.checkpoint import device_of, load_checkpoint
from tracerl.models.directory import has_file, safe_path
from tracerl.models.families import AUTOREGRESSIVE
from tracerl.models.finite import first_nonfinite_weight, weights_error
from tracerl.models.policy import Policy
from tracerl.models.published_config import is_autoregressive, read_config
from tracerl.models.tokenizer import Tokenizer, load_tokenizer
from tracerl.models.weights import shards_of, stored_dtype
from tracerl.settings.models import Compute

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NO_MASK = -1
_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt")


def is_baseline(directory: Path) -> bool:
    """Whether a directory holds an autoregressive model (an adapter directory has no config.json
    and does not)."""
    return has_file(directory, "config.json") and is_autoregressive(read_config(directory))


def load_policy(directory: Path, compute: Compute) -> "tuple[Policy | PreTrainedModel, Tokenizer]":
    """What can be evaluated: a checkpoint of the one transformer, or a baseline."""
    return (
        load_baseline(directory, compute)
        if is_baseline(directory)
        else load_checkpoint(directory, compute)
    )


def load_baseline(directory: Path, compute: Compute) -> "tuple[PreTrainedModel, Tokenizer]":
    """A baseline in evaluation mode, and its tokenizer, whose mask id is NO_MASK.

    Raises CheckpointError for tensors that are missing, left over or of another shape, for damaged
    files and for pickled weights.
    """
    import transformers

    config = read_config(directory)
    kind = getattr(transformers, AUTOREGRESSIVE[config["model_type"]])
    tokenizer = load_tokenizer(directory, NO_MASK)
    _require_supported(directory, config, kind.__name__, tokenizer)
    shards_of(directory)  # refuses links out of the directory, and two sets of weights
    dtype = (
        stored_dtype(config, directory)
        if compute.dtype == "stored"
        else getattr(torch, compute.dtype)
    )
    try:
        model, report = kind.from_pretrained(
            directory,
            local_files_only=True,
            use_safetensors=True,
            dtype=dtype,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            "the weights cannot be read",
            where=str(directory),
            got=error,
            wanted="config.json and complete safetensors",
        ) from error
    wrong = {}
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report.get(key):
            wrong[key] = sorted(map(str, report[key]))
    if wrong:
        raise CheckpointError("tensors do not fit the config", where=str(directory), got=wrong)
    weight = first_nonfinite_weight(model)
    if weight is not None:
        raise CheckpointError(
            "a tensor holds numbers that are not finite",
            where=str(directory),
            got=weight,
            wanted="finite numbers",
            do="copy or download the files again",
        )
    return model.eval().to(device_of(compute)), tokenizer


def _require_supported(
    directory: Path, config: Mapping[str, Any], class_name: str, tokenizer: Tokenizer
) -> None:
    """Raises CheckpointError for a diffusion model under an autoregressive model's type, and for
    quantised weights."""
    if tokenizer.mask_id != NO_MASK:
        raise CheckpointError(
            "an autoregressive model with a mask token: a diffusion model that is not supported",
            where=str(directory),
            got=f"{class_name}, mask {tokenizer.names['mask_token']!r}",
            wanted="no mask_token in the tokenizer's files",
            do="docs/models.md lists the diffusion models that can be loaded",
        )
    if config.get("quantization_config") is not None:
        raise CheckpointError(
            "quantised weights are not supported",
            where=str(directory / "config.json"),
            got={"quantization_config": config["quantization_config"]},
            do="use the checkpoint that is not quantised",
        )


def pad_left(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompts of several lengths as rows that end together: ids, which of them are seen, positions;
    int64, bool, int64 [rows, longest]."""
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    width = int(lengths.max())
    ids = torch.zeros(len(prompts), width, dtype=torch.int64, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(list(prompt), device=device)
    seen = torch.arange(width, device=device) >= (width - lengths).unsqueeze(1)
    return (
        ids,
        seen,
        (torch.arange(width, device=device) - (width - lengths).unsqueeze(1)).clamp(min=0),
    )


def next_logits(
    model: "PreTrainedModel", forbidden: torch.Tensor, where: str, **inputs: Any
) -> torch.Tensor:
    """Logits of the token after each row, [rows, vocab], minus infinity at forbidden ids.

    forbidden: int64 [n], `forbidden_ids` of the baseline. where: names the pass in an error.
    inputs: of transformers' forward. Raises NonFiniteError naming the first row whose logits are
    not finite.
    """
    logits: torch.Tensor = model(**inputs, logits_to_keep=1).logits[:, -1]
    is_finite = logits.isfinite().all(-1)
    if not bool(is_finite.all()):
        row = int((~is_finite).nonzero()[0])
        raise _nonfinite_error(model, f"{where}, row {row} of the batch")
    return logits.index_fill(-1, forbidden, float("-inf")) if len(forbidden) else logits


def _nonfinite_error(model: "PreTrainedModel", where: str) -> NonFiniteError:
    weight = first_nonfinite_weight(model)
    if weight is not None:
        return weights_error(weight, where)
    return NonFiniteError(
        "the model's logits are not finite",
        where=where,
        got=f"{model.dtype}; all weights are finite",
        wanted="finite numbers",
        do="set compute.dtype to bfloat16 or float32 if it is float16",
    )


def copy_baseline(source: Path, target: Path) -> None:
    """Copies what a baseline consists of: configs, tokenizer, safetensors; no code and no
    pickle."""
    target.mkdir(parents=True, exist_ok=True)
    for pattern in _FILES:
        for path in source.glob(pattern):
            shutil.copyfile(safe_path(source, path.name), target / path.name)
