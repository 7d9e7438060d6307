"""Checkpoints: a directory with config.json, safetensors under the published parameter names, and a
tokenizer; or with PEFT's adapter_config.json and adapters for another directory.

A directory is read in three steps: `read_spec` reads and checks what it describes, `build` makes
the policy and fills it (weights.py), `attach` puts adapters and the order module onto it. What
config.json says beyond the shape is kept and written back. No code from the directory is ever run.
"""

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tracerl.errors import CheckpointError, ParamsError
from tracerl.models.attention import check_backend
from tracerl.models.directory import has_file, read_json, safe_path
from tracerl.models.families import published_name
from tracerl.models.lora import (
    Adapters,
    adapter_config,
    adapter_state,
    load_adapter_state,
    quantise_layers,
    settings_of,
)
from tracerl.models.mlp import Router
from tracerl.models.policy import (
    Policy,
    attach_adapters,
    empty_model,
    fit_adapters,
    load_order_module,
    save_order_module,
)
from tracerl.models.published_config import (
    architecture_of,
    config_of,
    family_of,
    read_config,
)
from tracerl.models.tokenizer import Tokenizer, load_tokenizer
from tracerl.models.transformer import Architecture
from tracerl.models.weights import (
    DTYPES,
    SHARD_BYTES,
    Target,
    fill_parameters,
    open_shard,
    published_parts,
    stored_dtype,
    write_shards,
    write_tensors,
)
from tracerl.settings.models import Compute, Lora, TokenIds

ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a checkpoint directory describes, read and checked before any tensor is."""

    directory: Path
    """holds config, tokenizer and whole weights (of adapters: those of their base)"""
    adapter: Path | None
    """holds PEFT adapters to put onto these weights"""
    architecture: Architecture
    """with the tokenizer's mask id"""
    tokenizer: Tokenizer
    published_config: dict[str, Any]
    """config.json, with the mask id of the params if they replace it"""
    dtype: torch.dtype
    """precision of the stored weights"""


def save_checkpoint(
    policy: Policy,
    tokenizer: Tokenizer,
    directory: Path,
    final_dir: Path | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a complete checkpoint into `directory` (created; the caller renames it, see
    training/scratch.py). Of a policy with adapters these are written alone, in PEFT's format.

    final_dir: directory this will be renamed to (default: it stays); the adapter's relative path of
    its base starts there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(directory)
    save_order_module(policy, directory)
    if policy.adapters is None:
        (directory / "config.json").write_text(
            json.dumps(config_of(policy), indent=2) + "\n", "utf-8"
        )
        write_shards(published_state(policy), directory, shard_bytes)
        return
    base = os.path.relpath(policy.adapters.base, final_dir or directory)
    config = adapter_config(policy, policy.adapters.settings, base)
    (directory / ADAPTER_CONFIG).write_text(
        json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8"
    )
    write_tensors(
        adapter_state(policy),
        directory / ADAPTER,
        {"base_policy_hash": policy.adapters.base_hash},
    )


def load_checkpoint(
    directory: Path,
    compute: Compute | None = None,
    token_ids: TokenIds | None = None,
    family: str | None = None,
) -> tuple[Policy, Tokenizer]:
    """Policy (evaluation mode) and tokenizer of a checkpoint directory; without `compute`, on the
    CPU and as stored.

    token_ids: ids that replace the directory's own. family: decides where the config leaves open
    which attention the checkpoint was trained with (published_config.family_of). Raises
    CheckpointError naming the file, the tensor, what is there and what should be, and ParamsError
    for a device or attention back end that is not there.
    """
    compute = compute or Compute(
        device="cpu",
        dtype="stored",
        attention="auto",
        checkpoint_layers=False,
        vectors="avx2",
    )
    device = device_of(compute)
    spec = read_spec(directory, token_ids, family)
    dtype = spec.dtype if compute.dtype == "stored" else DTYPES[compute.dtype]
    # Adapters are checked against the hash of the base as it is stored.
    policy = build(spec, device, dtype if spec.adapter is None else spec.dtype)
    attach(policy, spec)
    return apply_compute(policy, compute).eval(), spec.tokenizer


def read_spec(
    directory: Path, token_ids: TokenIds | None = None, choice: str | None = None
) -> Spec:
    """Reads what a checkpoint directory describes. token_ids, choice: as in `load_checkpoint`
    (there `family`). Raises CheckpointError for files that are missing or damaged, and for what is
    not supported."""
    adapter = None
    if has_file(directory, ADAPTER_CONFIG) and not has_file(directory, "config.json"):
        adapter = directory
        directory = _base_of(adapter)
    config = read_config(directory)
    family = family_of(config, directory, choice)
    architecture = architecture_of(config, directory, choice)
    tokenizer = load_tokenizer(
        directory,
        None if architecture.mask_id < 0 else architecture.mask_id,
        family.end_tokens,
        token_ids,
    )
    is_replaced = token_ids is not None and token_ids.mask is not None
    if not is_replaced:
        _check_mask_ids(architecture, tokenizer, directory)
    _check_id_range(architecture, tokenizer, directory)
    if is_replaced:
        config = {**config, family.config_keys["mask_id"]: tokenizer.mask_id}
    return Spec(
        directory=directory,
        adapter=adapter,
        architecture=replace(architecture, mask_id=tokenizer.mask_id),
        tokenizer=tokenizer,
        published_config=config,
        dtype=stored_dtype(config, directory),
    )


def build(spec: Spec, device: torch.device, dtype: torch.dtype) -> Policy:
    """The policy of a spec with its whole weights, without adapters and order module."""
    policy = allocate(spec, device, dtype)
    fill_parameters(target_of(policy), spec.directory)
    return policy


def allocate(spec: Spec, device: torch.device, dtype: torch.dtype) -> Policy:
    """The policy of a spec, its parameters not yet set."""
    policy = empty_model(spec.architecture)
    # Not `to_empty`: it asks torch's compiler for the strides, which takes a second to load.
    for module in policy.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty(parameter.shape, dtype=dtype, device=device)
            setattr(module, name, nn.Parameter(empty))
        if isinstance(module, Router):
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, torch.empty(buffer.shape, dtype=dtype, device=device))
    policy.published_config = spec.published_config
    policy.tie()
    policy.lm_head.forbid(forbidden_ids(spec.architecture.vocab_size, spec.tokenizer))
    return policy


def forbidden_ids(vocab_size: int, tokenizer: Tokenizer) -> list[int]:
    """Ids that must not be predicted: the mask, and those that decode to nothing because the model
    has logits for more ids than there are tokens. vocab_size: of the model."""
    tokens = set(tokenizer.file.get_vocab().values())
    tokens.discard(tokenizer.mask_id)
    return [i for i in range(vocab_size) if i not in tokens]


def attach(policy: Policy, spec: Spec) -> None:
    """Puts the adapters of a spec onto its policy, and the order module that lies nearest."""
    load_order_module(policy, spec.directory)
    if spec.adapter is not None:
        apply_adapter(policy, spec.adapter, spec.directory)
        load_order_module(policy, spec.adapter)


def _base_of(adapter: Path) -> Path:
    """The directory of whole weights that an adapter directory names."""
    path = adapter / ADAPTER_CONFIG
    base = (adapter / str(read_json(path).get("base_model_name_or_path"))).resolve()
    if not (base / "config.json").is_file():
        raise CheckpointError(
            "the adapter's base is not there",
            where=str(path),
            got=str(base),
            wanted="base_model_name_or_path: the way from here to a checkpoint directory",
            do="correct the path, or merge with tracerl export --model BASE --merge-lora DIR",
        )
    return base


def _check_mask_ids(architecture: Architecture, tokenizer: Tokenizer, directory: Path) -> None:
    if architecture.mask_id not in (-1, tokenizer.mask_id):
        raise CheckpointError(
            "config and tokenizer disagree about the mask token",
            where=str(directory),
            got=f"config.json {architecture.mask_id}, tokenizer {tokenizer.mask_id}",
            wanted="one id",
            do="correct one of them, or set base.token_ids.mask in the params",
        )


def _check_id_range(architecture: Architecture, tokenizer: Tokenizer, directory: Path) -> None:
    if tokenizer.vocab_size > architecture.vocab_size:
        last = tokenizer.vocab_size - 1
        raise CheckpointError(
            "the tokenizer has tokens that the model has no embedding for",
            where=str(directory),
            got=f"id {last}, {tokenizer.file.id_to_token(last)!r}",
            wanted=f"0 to {architecture.vocab_size - 1}",
            do="use the tokenizer that the model was trained with",
        )
    ids = {
        "mask": [tokenizer.mask_id],
        "end": list(tokenizer.end_ids),
        "pad": [tokenizer.pad_id],
    }
    for kind, values in ids.items():
        outside = [i for i in values if not 0 <= i < architecture.vocab_size]
        if outside:
            raise CheckpointError(
                f"the {kind} id is outside the vocabulary",
                where=str(directory / "config.json"),
                got=outside[0],
                wanted=f"0 to {architecture.vocab_size - 1}",
                do="correct it there, or set base.token_ids in the params",
            )


def target_of(policy: Policy) -> Target:
    """Where the tensors of whole weights go."""
    head = published_name("lm_head.weight", policy.family)
    embeddings = published_name("model.embed_tokens.weight", policy.family)
    parameters: dict[str, torch.Tensor] = {}
    for name, tensor in policy.state_dict().items():
        parameters.update(published_parts(name, tensor, policy.family))
    if policy.architecture.tie_embeddings:
        del parameters[head]
    tied = {head: embeddings} if policy.architecture.tie_embeddings else {}
    return Target(parameters=parameters, tied=tied, owner=policy.family.name)


def load_for_training(
    directory: Path, compute: Compute, lora: Lora | None, generator: np.random.Generator
) -> tuple[Policy, Tokenizer]:
    """A checkpoint as a round trains it: with the round's adapters, fresh or the checkpoint's own,
    or whole."""
    policy, tokenizer = load_checkpoint(
        directory, compute.model_copy(update={"dtype": "stored"}) if lora is not None else compute
    )
    base_hash = ""
    if lora is not None and policy.adapters is None:
        base_hash = policy_hash(policy)  # of the base as it is stored
    fit_adapters(policy, lora, directory, base_hash, generator)
    if policy.order is not None:
        # Frozen until a round that scores the order makes it trainable (fit_order_module).
        policy.order.requires_grad_(False)
    return apply_compute(policy, compute), tokenizer


def apply_adapter(policy: Policy, directory: Path, base: Path) -> None:
    """Puts the adapter of a PEFT directory onto a policy that was loaded from `base`.

    Raises CheckpointError if it was made for other weights.
    """
    path = safe_path(directory, ADAPTER)
    config = read_json(directory / ADAPTER_CONFIG)
    with open_shard(path) as file:
        names = list(file.keys())
        metadata = file.metadata() or {}
        settings = settings_of(config, names, policy, str(path))
        base_hash = policy_hash(policy)
        wanted_hash = metadata.get("base_policy_hash", base_hash)  # PEFT's own files do not say
        if wanted_hash != base_hash:
            raise CheckpointError(
                "the adapter was made for other weights",
                where=str(path),
                got=f"{base} with hash {base_hash}",
                wanted=f"hash {wanted_hash}",
                do="use the base that the adapter was trained on",
            )
        attach_adapters(policy, Adapters(settings=settings, base=base, base_hash=base_hash))
        load_adapter_state(policy, {name: file.get_tensor(name) for name in names}, str(path))
        quantise_layers(policy)


def device_of(compute: Compute) -> torch.device:
    """The device of the params. Raises ParamsError if it, or the attention back end on it, is not
    there."""
    is_available = torch.cuda.is_available()
    if compute.device == "cuda" and not is_available:
        raise ParamsError(
            "there is no CUDA device",
            where="compute.device",
            got="cuda",
            do="set it to auto or cpu",
        )
    device = torch.device("cuda" if is_available and compute.device != "cpu" else "cpu")
    check_backend(compute.attention, device)
    return device


def apply_compute(policy: Policy, compute: Compute) -> Policy:
    """The policy on the device, in the precision and with the attention back end of the params."""
    policy.attention = compute.attention
    policy.checkpoint_layers = compute.checkpoint_layers
    dtype = None if compute.dtype == "stored" else DTYPES[compute.dtype]
    return policy.to(device_of(compute), dtype)


def published_state(policy: Policy) -> dict[str, torch.Tensor]:
    """Parameters under their published names, contiguous, without the head if it is tied to the
    embeddings."""
    tensors = {}
    for name, tensor in policy.state_dict().items():
        is_tied = name == "lm_head.weight" and policy.architecture.tie_embeddings
        if is_tied or ".lora_" in name or name.startswith("order."):
            continue
        for published, part in published_parts(name, tensor, policy.family):
            tensors[published] = part.detach().contiguous()
    return tensors


def policy_hash(model: nn.Module) -> str:
    """16 hexadecimal digits that name the weights: SHA-256 over names and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:16]
