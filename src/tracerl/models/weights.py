"""Tensors of a checkpoint directory: safetensors under published names, in one file or in shards.

Reading is tensor by tensor from memory-mapped files, so that no more than the model and its largest
tensor are in memory, and strict: every parameter of the model, each of its shape, of plain
floating-point numbers that are all finite, and nothing left over. No pickle is ever opened.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tracerl.errors import CheckpointError
from tracerl.models.directory import has_file, read_json, safe_path
from tracerl.models.families import Family, published_name

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000  # as published checkpoints are split
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_STORED_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
# Buffers that old checkpoints store and every reader computes anew from the config.
_BUFFERS = re.compile(r"(.*\.)?rotary_emb\.inv_freq")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Parameters that the tensors of a directory are copied into."""

    parameters: Mapping[str, torch.Tensor]
    """by published name"""
    tied: Mapping[str, str]
    """published name of a tensor that may be stored besides -> of the parameter it must equal"""
    owner: str
    """what has these parameters, for errors"""


def published_parts(
    name: str, tensor: torch.Tensor, family: Family
) -> Iterator[tuple[str, torch.Tensor]]:
    """Published names and tensors of one of our parameters: itself, or one for each expert, which
    share its memory."""
    published = published_name(name, family)
    if "{e}" not in published:
        yield published, tensor
        return
    for expert, part in enumerate(tensor.unbind()):
        yield published.replace("{e}", str(expert)), part


def fill_parameters(target: Target, directory: Path) -> None:
    """Copies every tensor of the directory into the parameters of its name.

    Raises CheckpointError, naming file and tensor, for a tensor that is missing, left over, there
    twice, of another shape, not of floating-point numbers, not finite, or tied and not equal.
    """
    shards: dict[str, Path] = {}
    copies: list[str] = []
    for name, shard, tensor in read_tensors(directory):
        if _BUFFERS.fullmatch(name):
            continue
        if name in shards:
            raise CheckpointError(
                "a tensor is there twice",
                where=str(shard),
                got=name,
                wanted=f"only that of {shards[name]}",
            )
        shards[name] = shard
        if name in target.tied:
            copies.append(name)
            continue
        if name not in target.parameters:
            raise CheckpointError(
                "unexpected tensor",
                where=str(shard),
                got=name,
                wanted=f"parameters of {target.owner}",
            )
        parameter = target.parameters[name]
        check_tensor(tensor, parameter, f"{shard}: {name}")
        with torch.no_grad():
            parameter.copy_(tensor)
        del tensor
    missing = sorted(set(target.parameters) - set(shards))
    if missing:
        raise CheckpointError(
            "tensors are missing",
            where=str(directory),
            got=f"{len(shards)} tensors",
            wanted=missing[:8],
        )
    for name in copies:
        _check_tied(target, name, shards[name])


def check_tensor(tensor: torch.Tensor, parameter: torch.Tensor, where: str) -> None:
    """Raises CheckpointError if a stored tensor is not one for the parameter: of its shape, of
    plain floating-point numbers, all finite."""
    if tensor.shape != parameter.shape:
        raise CheckpointError(
            "wrong tensor shape",
            where=where,
            got=list(tensor.shape),
            wanted=list(parameter.shape),
        )
    if tensor.dtype not in DTYPES.values():
        raise CheckpointError(
            "a tensor is not of floating-point numbers",
            where=where,
            got=tensor.dtype,
            wanted=", ".join(DTYPES),
            do="use the checkpoint that is not quantised",
        )
    check_finite(tensor, where)


def check_finite(tensor: torch.Tensor, where: str) -> None:
    """Raises CheckpointError if a tensor holds NaN or infinity."""
    if not tensor.numel():
        return
    smallest, largest = tensor.aminmax()  # NaN propagates; no copy of the tensor is made
    if not (smallest.isfinite() and largest.isfinite()):
        raise CheckpointError(
            "a tensor holds numbers that are not finite",
            where=where,
            got=f"{float(smallest)} to {float(largest)}",
            wanted="finite numbers",
            do="copy or download the file again, or use an earlier checkpoint",
        )


def _check_tied(target: Target, name: str, shard: Path) -> None:
    """A stored copy of a tied parameter may be left out only if it says the same."""
    parameter = target.parameters[target.tied[name]]
    with open_shard(shard) as file:
        tensor = file.get_tensor(name).to(parameter.device, parameter.dtype)
    if not torch.equal(tensor, parameter):
        raise CheckpointError(
            "the config ties two tensors that are stored with different values",
            where=f"{shard}: {name}",
            got=f"shape {list(tensor.shape)}, other values than {target.tied[name]}",
            wanted="equal tensors, or tie_word_embeddings (LLaDA: weight_tying) false",
            do="set that key to false in config.json to use both tensors, or remove this one",
        )


def read_tensors(directory: Path) -> Iterator[tuple[str, Path, torch.Tensor]]:
    """Name, file and data of every tensor of a directory. A tensor's pages stay in memory only
    until the next one is asked for."""
    for shard in shards_of(directory):
        with open_shard(shard) as file:
            names = list(file.keys())
        for name in names:
            # Each tensor has a mapping of its own: closing it is what gives the pages back.
            with open_shard(shard) as file:
                yield name, shard, file.get_tensor(name)


@contextmanager
def open_shard(path: Path) -> Iterator[Any]:
    """A safetensors file, memory-mapped while it is open. Raises CheckpointError if damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            "the weights file is damaged or truncated",
            where=str(path),
            got=error,
            do="copy or download the file again",
        ) from error


def stored_dtype(config: Mapping[str, Any], directory: Path) -> torch.dtype:
    """The precision that the config names (`dtype` before the older `torch_dtype`), or else that of
    the stored tensors (LLaDA's configs name none)."""
    name = config.get("dtype") or config.get("torch_dtype")
    if name is None:
        with open_shard(shards_of(directory)[0]) as file:
            stored = file.get_slice(next(iter(file.keys()))).get_dtype()
        name = _STORED_DTYPES.get(stored, stored)
    name = str(name).removeprefix("torch.")
    if name not in DTYPES:
        raise CheckpointError(
            "unknown dtype",
            where=str(directory / "config.json"),
            got=name,
            wanted=", ".join(DTYPES),
        )
    return DTYPES[name]


def shards_of(directory: Path) -> list[Path]:
    """The safetensors files of a directory: those of the index, or the single one.

    Raises CheckpointError if there are none, one is missing or is a link out of the directory, the
    index is damaged, or a single file lies beside an index that does not name it.
    """
    if has_file(directory, INDEX):
        names = _names_of_index(directory)
        if WEIGHTS not in names and has_file(directory, WEIGHTS):
            raise CheckpointError(
                "there are two sets of weights",
                where=str(directory),
                got=f"{WEIGHTS} beside an index of {', '.join(names)}",
                wanted="one of them",
                do=f"remove {WEIGHTS}, or {INDEX} and its shards",
            )
        return [safe_path(directory, name) for name in names]
    if has_file(directory, WEIGHTS):
        return [directory / WEIGHTS]
    others = []
    for path in sorted(directory.glob("*")):
        if path.suffix in (".bin", ".safetensors", ".pt", ".pth"):
            others.append(path.name)
    raise CheckpointError(
        "no weights",
        where=str(directory),
        got=others or f"neither {WEIGHTS} nor {INDEX}",
        wanted=WEIGHTS,
        do="convert pickled weights with transformers: save_pretrained writes safetensors",
    )


def _names_of_index(directory: Path) -> list[str]:
    """Names of the shards that the index lists, all of them there."""
    index = directory / INDEX
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
    except (CheckpointError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            "the index of the weights is damaged",
            where=str(index),
            got=repr(error),
            wanted="weight_map: tensor -> file",
            do="copy it again",
        ) from error
    for name in names:
        if (
            not isinstance(name, str)
            or Path(name).name != name
            or not name.endswith(".safetensors")
        ):
            raise CheckpointError(
                "the index names what is not a safetensors file of its directory",
                where=str(index),
                got=name,
            )
        if not has_file(directory, name):
            raise CheckpointError(
                "a file of the weights is missing",
                where=str(directory / name),
                wanted=f"all {len(names)} of it",
                do="copy or download it",
            )
    return names


def write_tensors(
    tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str]
) -> None:
    """Writes one safetensors file. Raises CheckpointError if the disk is full.

    metadata: one entry at most, since the library writes several in an order of its own, and equal
    weights must be equal bytes.
    """
    try:
        save_file(dict(tensors), path, metadata=dict(metadata) or None)
    except SafetensorError as error:
        raise CheckpointError(
            "the weights could not be written",
            where=str(path),
            got=error,
            do="free disk space and run the same command again: it resumes",
        ) from error


def write_shards(state: Mapping[str, torch.Tensor], directory: Path, shard_bytes: int) -> None:
    """Writes tensors as published checkpoints are: one file, or shards and their index."""
    split = split_state_dict_into_shards_factory(
        dict(state),
        get_storage_size=lambda tensor: tensor.nbytes,
        # Experts share the memory of one tensor, and still are tensors of their own in a file.
        get_storage_id=lambda tensor: None,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for name, tensors in split.filename_to_tensors.items():
        write_tensors(
            {tensor: state[tensor] for tensor in tensors}, directory / name, {"format": "pt"}
        )
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", "utf-8")
