"""Checkpoints: a directory with config.json, safetensors under the published parameter names, and a
tokenizer.

Reading is tensor by tensor from memory-mapped files, so that no more than the model and its largest
tensor are in memory, and strict: every tensor the architecture needs, each of its shape, nothing
left over. What config.json says beyond the shape is kept and written back. No pickle is ever opened
and no code from the directory is ever run.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from tracerl.errors import CheckpointError, ParamsError
from tracerl.models.attention import check_backend
from tracerl.models.families import published_name
from tracerl.models.lora import (
    Adapters,
    adapter_config,
    adapter_state,
    add_adapters,
    fit_adapters,
    load_adapter_state,
    settings_of,
)
from tracerl.models.order import load_order_module, save_order_module
from tracerl.models.published_config import (
    architecture_of,
    config_of,
    family_of,
    read_config,
    read_json,
)
from tracerl.models.tokenizer import Tokenizer, load_tokenizer
from tracerl.models.transformer import Transformer, empty_model
from tracerl.settings.models import Compute, Lora, TokenIds

WEIGHTS = "model.safetensors"
SHARD_BYTES = 5_000_000_000  # as published checkpoints are split
_ADAPTER, _ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_INDEX = "model.safetensors.index.json"
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_STORED_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}


def save_checkpoint(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: Path,
    place: Path | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a complete checkpoint into `directory` (created; the caller renames it into place, see
    store/workspace.py).

    Of a model with adapters it is the adapters alone, in PEFT's format, with the way from `place`,
    where the directory will end (by default it stays), to their base.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(directory)
    save_order_module(model, directory)
    if model.adapters is not None:
        base = os.path.relpath(model.adapters.base, place or directory)
        (directory / _ADAPTER_CONFIG).write_text(
            json.dumps(adapter_config(model, base), indent=2, sort_keys=True) + "\n"
        )
        _write(
            adapter_state(model),
            directory / _ADAPTER,
            {"base_policy_hash": model.adapters.base_hash},
        )
        return
    (directory / "config.json").write_text(json.dumps(config_of(model), indent=2) + "\n")
    state = published_state(model)
    split = split_torch_state_dict_into_shards(state, max_shard_size=shard_bytes)
    for name, tensors in split.filename_to_tensors.items():
        _write({tensor: state[tensor] for tensor in tensors}, directory / name, {"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _write(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
    """metadata: one entry at most, since the library writes several in an order of its own, and
    equal weights must be equal bytes."""
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        raise CheckpointError(
            "the weights could not be written",
            where=str(path),
            got=error,
            do="free disk space and run the same command again: it resumes",
        ) from error


def load_checkpoint(
    directory: Path, compute: Compute | None = None, token_ids: TokenIds | None = None
) -> tuple[Transformer, Tokenizer]:
    """Model (evaluation mode) and tokenizer of a checkpoint directory; without `compute`, on the
    CPU and as stored.

    token_ids: ids that replace the directory's own. Raises CheckpointError naming the file, the
    tensor, what was found and what was wanted, and ParamsError for a device or attention back end
    that is not there.
    """
    compute = compute or Compute(
        device="cpu", dtype="stored", attention="auto", checkpoint_layers=False, vectors="avx2"
    )
    if (directory / _ADAPTER_CONFIG).is_file() and not (directory / "config.json").is_file():
        config = read_json(directory / _ADAPTER_CONFIG)
        base = (directory / str(config.get("base_model_name_or_path"))).resolve()
        if not (base / "config.json").is_file():
            raise CheckpointError(
                "the adapter's base is not there",
                where=str(directory / _ADAPTER_CONFIG),
                got=str(base),
                wanted="base_model_name_or_path: the way from here to a checkpoint directory",
                do="correct the path, or merge with tracerl export --model BASE --merge-lora DIR",
            )
        model, tokenizer = load_checkpoint(
            base, compute.model_copy(update={"dtype": "stored"}), token_ids
        )
        apply_adapter(model, directory, base)
        load_order_module(model, directory)
        return apply_compute(model, compute).eval(), tokenizer
    device = device_of(compute)
    config = read_config(directory)
    family = family_of(config, directory)
    architecture = architecture_of(config, directory)
    tokenizer = load_tokenizer(
        directory,
        None if architecture.mask_id < 0 else architecture.mask_id,
        family.end_tokens,
        token_ids,
    )
    replaced = token_ids is not None and token_ids.mask is not None
    if not replaced and architecture.mask_id not in (-1, tokenizer.mask_id):
        raise CheckpointError(
            "config and tokenizer disagree about the mask token",
            where=str(directory),
            got=f"config.json {architecture.mask_id}, tokenizer {tokenizer.mask_id}",
            wanted="one id",
            do="correct one of them, or set base.token_ids.mask in the params",
        )
    for kind, ids in (
        ("mask", [tokenizer.mask_id]),
        ("end", tokenizer.end_ids),
        ("pad", [tokenizer.pad_id]),
    ):
        outside = [i for i in ids if not 0 <= i < architecture.vocab_size]
        if outside:
            raise CheckpointError(
                f"the {kind} id is outside the vocabulary",
                where=str(directory / "config.json"),
                got=outside[0],
                wanted=f"0 to {architecture.vocab_size - 1}",
            )
    architecture = replace(architecture, mask_id=tokenizer.mask_id)
    model = empty_model(architecture)
    dtype = dtype_of(config, directory) if compute.dtype == "stored" else _DTYPES[compute.dtype]
    for module in (
        model.modules()
    ):  # not `to_empty`: it asks torch's compiler for the strides, which takes a second to load
        for name, parameter in module.named_parameters(recurse=False):
            setattr(
                module, name, nn.Parameter(torch.empty(parameter.shape, dtype=dtype, device=device))
            )
    model.attention, model.checkpoint_layers = compute.attention, compute.checkpoint_layers
    model.published_config = (
        {**config, family.config_keys["mask_id"]: tokenizer.mask_id} if replaced else config
    )
    model.tie()
    _fill(model, directory)
    load_order_module(model, directory)
    return model.eval(), tokenizer


def load_for_training(
    directory: Path, compute: Compute, lora: Lora | None, generator: np.random.Generator
) -> tuple[Transformer, Tokenizer]:
    """A checkpoint as a round trains it: with the round's adapters, fresh or the checkpoint's own,
    or whole."""
    model, tokenizer = load_checkpoint(
        directory, compute.model_copy(update={"dtype": "stored"}) if lora is not None else compute
    )
    base_hash = (
        policy_hash(model) if lora is not None and model.adapters is None else ""
    )  # of the base as it is stored
    fit_adapters(model, lora, directory, base_hash, generator)
    if model.order is not None:
        model.order.requires_grad_(
            False
        )  # until a round that scores the order takes it up (fit_order_module)
    return apply_compute(model, compute), tokenizer


def apply_adapter(model: Transformer, directory: Path, base: Path) -> None:
    """Puts the adapter of a PEFT directory onto a model that was loaded from `base`. Raises
    CheckpointError if it was made for another."""
    path = directory / _ADAPTER
    config = read_json(directory / _ADAPTER_CONFIG)
    with _opened(path) as file:
        names, metadata = list(file.keys()), file.metadata() or {}
        settings = settings_of(config, names, model, str(path))
        base_hash = policy_hash(model)
        wanted = metadata.get("base_policy_hash", base_hash)  # files that PEFT wrote do not say
        if wanted != base_hash:
            raise CheckpointError(
                "the adapter was made for other weights",
                where=str(path),
                got=f"{base} with hash {base_hash}",
                wanted=f"hash {wanted}",
            )
        add_adapters(model, Adapters(settings, base, base_hash))
        load_adapter_state(model, {name: file.get_tensor(name) for name in names}, str(path))


def device_of(compute: Compute) -> torch.device:
    """The device of the params. Raises ParamsError if it, or the attention back end on it, is not
    there."""
    found = torch.cuda.is_available()
    if compute.device == "cuda" and not found:
        raise ParamsError(
            "there is no CUDA device",
            where="compute.device",
            got="cuda",
            do="set it to auto or cpu",
        )
    device = torch.device("cuda" if found and compute.device != "cpu" else "cpu")
    check_backend(compute.attention, device)
    return device


def apply_compute(model: Transformer, compute: Compute) -> Transformer:
    """A model on the device, in the precision and with the attention back end of the params."""
    model.attention, model.checkpoint_layers = compute.attention, compute.checkpoint_layers
    return model.to(
        device_of(compute), None if compute.dtype == "stored" else _DTYPES[compute.dtype]
    )


def published_state(model: Transformer) -> dict[str, torch.Tensor]:
    """Parameters under their published names, contiguous, without the head if it is tied to the
    embeddings."""
    skip = {"lm_head.weight"} if model.architecture.tie_embeddings else set()
    own = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name not in skip and ".lora_" not in name and not name.startswith("order.")
    }
    return {
        published_name(name, model.family): tensor.detach().contiguous()
        for name, tensor in own.items()
    }


def policy_hash(model: nn.Module) -> str:
    """16 hexadecimal digits that name the weights: SHA-256 over names and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:16]


def dtype_of(config: dict[str, Any], directory: Path) -> torch.dtype:
    """The precision that the config names, or else that of the stored tensors (LLaDA's configs name
    none)."""
    name = config.get("torch_dtype") or config.get("dtype")
    if name is None:
        with _opened(next(iter(_shards(directory)))) as file:
            stored = file.get_slice(next(iter(file.keys()))).get_dtype()
        name = _STORED_DTYPES.get(stored, stored)
    name = str(name).removeprefix("torch.")
    if name not in _DTYPES:
        raise CheckpointError(
            "unknown dtype",
            where=str(directory / "config.json"),
            got=name,
            wanted=", ".join(_DTYPES),
        )
    return _DTYPES[name]


def _shards(directory: Path) -> list[Path]:
    index = directory / _INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
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
            if not (directory / name).is_file():
                raise CheckpointError(
                    "a file of the weights is missing",
                    where=str(directory / name),
                    wanted=f"all {len(names)} of it",
                    do="copy or download it",
                )
        return [directory / name for name in names]
    single = directory / WEIGHTS
    if single.is_file():
        return [single]
    others = sorted(
        path.name
        for pattern in ("*.bin", "*.safetensors", "*.pt", "*.pth")
        for path in directory.glob(pattern)
    )
    raise CheckpointError(
        "no weights",
        where=str(directory),
        got=others or f"neither {WEIGHTS} nor {_INDEX}",
        wanted=WEIGHTS,
        do="convert pickled weights with transformers: save_pretrained writes safetensors",
    )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file, memory-mapped while it is open."""
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


def read_tensors(directory: Path) -> Iterator[tuple[str, Path, torch.Tensor]]:
    """Name, file and data of every tensor of a directory. A tensor's pages stay in memory only
    until the next one is asked for."""
    for shard in _shards(directory):
        with _opened(shard) as file:
            names = list(file.keys())
        for name in names:
            with _opened(
                shard
            ) as file:  # a mapping of its own: closing it is what gives the pages back
                yield name, shard, file.get_tensor(name)


def _fill(model: Transformer, directory: Path) -> None:
    """Copies every tensor of the directory into the model's parameters; strict about names, shapes
    and completeness."""
    tied = model.architecture.tie_embeddings
    wanted = {
        published_name(name, model.family): parameter
        for name, parameter in model.named_parameters()
    }
    optional = {published_name("lm_head.weight", model.family)} if tied else set()
    found: dict[str, Path] = {}
    for name, shard, tensor in read_tensors(directory):
        if name in optional:
            continue
        if name not in wanted:
            raise CheckpointError(
                "unexpected tensor",
                where=str(shard),
                got=name,
                wanted=f"parameters of {model.family.name}",
            )
        if name in found:
            raise CheckpointError(
                "a tensor is there twice",
                where=str(shard),
                got=name,
                wanted=f"only that of {found[name]}",
            )
        if tensor.shape != wanted[name].shape:
            raise CheckpointError(
                "wrong tensor shape",
                where=f"{shard}: {name}",
                got=list(tensor.shape),
                wanted=list(wanted[name].shape),
            )
        if not tensor.is_floating_point():
            raise CheckpointError(
                "a tensor is not of floating-point numbers",
                where=f"{shard}: {name}",
                got=tensor.dtype,
                wanted=", ".join(_DTYPES),
                do="use the checkpoint that is not quantised",
            )
        with torch.no_grad():
            wanted[name].copy_(tensor)
        found[name] = shard
        del tensor
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise CheckpointError(
            "tensors are missing",
            where=str(directory),
            got=f"{len(found)} tensors",
            wanted=missing[:8],
        )
