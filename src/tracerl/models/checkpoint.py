"""Checkpoints: a directory with config.json, safetensors under the published parameter names, and a tokenizer.

Reading is shard by shard from memory-mapped files and strict: every tensor the architecture needs, each of its shape, nothing left over.
No pickle is ever opened and no code from the directory is ever run.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tracerl.errors import CheckpointError
from tracerl.models.families import FAMILIES, Family
from tracerl.models.tokenizer import Tokenizer, load_tokenizer
from tracerl.models.transformer import Architecture, Transformer

WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# Settings of published configs that the one transformer knows in one value only.
_PLAIN = {
    "rope_scaling": None,
    "rope_type": "default",
    "use_sliding_window": False,
    "hidden_act": "silu",
    "activation_type": "silu",
    "alibi": False,
}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def save_checkpoint(model: Transformer, tokenizer: Tokenizer, directory: Path) -> None:
    """Writes a complete checkpoint into `directory` (created; the caller renames it into place, see store/workspace.py)."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_config_of(model), indent=2, sort_keys=True) + "\n")
    generation = {"eos_token_id": list(tokenizer.end_ids), "pad_token_id": tokenizer.end_ids[0]}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2, sort_keys=True) + "\n")
    tokenizer.save(directory)
    try:
        save_file(published_state(model), directory / WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:
        raise CheckpointError("the weights could not be written", where=str(directory / WEIGHTS), got=error,
                              do="free disk space and run the same command again: it resumes") from error  # fmt: skip


def load_checkpoint(directory: Path, dtype: torch.dtype | None = None) -> tuple[Transformer, Tokenizer]:
    """Model (evaluation mode, as stored or cast to `dtype`) and tokenizer of a checkpoint directory.

    Raises CheckpointError naming the file, the tensor, what was found and what was wanted.
    """
    config = _read_config(directory)
    architecture = _architecture_of(config, directory)
    tokenizer = load_tokenizer(directory, architecture.mask_id)
    if architecture.mask_id not in (-1, tokenizer.mask_id):
        raise CheckpointError("config and tokenizer disagree about the mask token", where=str(directory),
                              got=f"config.json {architecture.mask_id}, tokenizer {tokenizer.mask_id}", wanted="one id")  # fmt: skip
    if not 0 <= tokenizer.mask_id < architecture.vocab_size:
        raise CheckpointError("the mask id is outside the vocabulary", where=str(directory / "config.json"), got=tokenizer.mask_id,
                              wanted=f"0 to {architecture.vocab_size - 1}")  # fmt: skip
    architecture = replace(architecture, mask_id=tokenizer.mask_id)
    with torch.device("meta"):
        model = Transformer(architecture)
    model = model.to(dtype or _dtype_of(config, directory)).to_empty(device="cpu")
    model.tie()
    _fill(model, directory)
    return model.eval(), tokenizer


def published_state(model: Transformer) -> dict[str, torch.Tensor]:
    """Parameters under their published names, contiguous, without the head if it is tied to the embeddings."""
    skip = {"lm_head.weight"} if model.architecture.tie_embeddings else set()
    return {
        published_name(name, model.family): tensor.detach().contiguous() for name, tensor in model.state_dict().items() if name not in skip
    }


def published_name(name: str, family: Family) -> str:
    """Published name of one of our parameters."""
    parts = name.split(".")
    layer = parts[2] if parts[:2] == ["model", "layers"] else None
    generic = name if layer is None else ".".join([*parts[:2], "{i}", *parts[3:]])
    return family.parameter_names.get(generic, generic).replace("{i}", layer or "")


def policy_hash(model: Transformer) -> str:
    """16 hexadecimal digits that name the weights: SHA-256 over names and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _config_of(model: Transformer) -> dict[str, Any]:
    arch, family = model.architecture, model.family
    dtype = str(model.model.embed_tokens.weight.dtype).removeprefix("torch.")
    shape = {key: getattr(arch, ours) for ours, key in family.config_keys.items()}
    return {"model_type": family.model_type, "torch_dtype": dtype, **family.config_constants, **shape}


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError("not a checkpoint directory: its config.json cannot be read", where=str(path), got=error,
                              wanted="config.json, *.safetensors and tokenizer.json of a published checkpoint") from error  # fmt: skip
    return config


def _architecture_of(config: dict[str, Any], directory: Path) -> Architecture:
    by_type = {family.model_type.lower(): family for family in FAMILIES.values()}
    family = by_type.get(str(config.get("model_type", "")).lower())
    if family is None:
        raise CheckpointError("unknown architecture", where=str(directory / "config.json"), got=config.get("model_type"),
                              wanted="model_type one of " + ", ".join(sorted(by_type)))  # fmt: skip
    config = {**(config.get("rope_parameters") or {}), **config}  # newer configs keep the rotary settings in a section of their own
    values = {ours: config[key] for ours, key in family.config_keys.items() if key in config}
    heads = values.get("num_heads")
    values.setdefault("num_kv_heads", heads)
    values.setdefault("tie_embeddings", False)
    values.setdefault("mask_id", -1)
    if values.get("head_dim") is None and heads and "hidden_size" in values:
        values["head_dim"] = values["hidden_size"] // heads
    missing = [key for ours, key in family.config_keys.items() if values.get(ours) is None]
    if missing:
        raise CheckpointError("the config lacks keys", where=str(directory / "config.json"), got=sorted(config), wanted=missing)
    unsupported = {key: config[key] for key, plain in _PLAIN.items() if config.get(key, plain) not in (plain, None)}
    if unsupported:
        raise CheckpointError("the config asks for what this transformer does not do", where=str(directory / "config.json"),
                              got=unsupported, wanted={key: _PLAIN[key] for key in unsupported})  # fmt: skip
    values["rope_theta"], values["norm_eps"] = float(values["rope_theta"]), float(values["norm_eps"])
    return Architecture(family=family.name, **values)


def _dtype_of(config: dict[str, Any], directory: Path) -> torch.dtype:
    name = str(config.get("torch_dtype", config.get("dtype", "float32"))).removeprefix("torch.")
    if name not in _DTYPES:
        raise CheckpointError("unknown dtype", where=str(directory / "config.json"), got=name, wanted=", ".join(_DTYPES))
    return _DTYPES[name]


def _shards(directory: Path) -> list[Path]:
    index = directory / _INDEX
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [directory / name for name in names]
    single = directory / WEIGHTS
    if single.is_file():
        return [single]
    pickles = [path.name for path in directory.glob("*.bin")]
    raise CheckpointError("no weights", where=str(directory), got=pickles or "neither model.safetensors nor its index",
                          wanted=WEIGHTS, do="convert pickled weights with transformers: save_pretrained writes safetensors")  # fmt: skip


def _fill(model: Transformer, directory: Path) -> None:
    """Copies every tensor of the directory into the model's parameters; strict about names, shapes and completeness."""
    tied = model.architecture.tie_embeddings
    wanted = {published_name(name, model.family): parameter for name, parameter in model.named_parameters()}
    optional = {published_name("lm_head.weight", model.family)} if tied else set()
    found: set[str] = set()
    for shard in _shards(directory):
        try:
            with safe_open(shard, framework="pt") as file, torch.no_grad():
                for name in file.keys():  # noqa: SIM118 (a safetensors handle, not a dictionary)
                    if name in optional:
                        continue
                    if name not in wanted:
                        raise CheckpointError("unexpected tensor", where=str(shard), got=name, wanted=f"parameters of {model.family.name}")
                    tensor = file.get_tensor(name)
                    if tensor.shape != wanted[name].shape:
                        raise CheckpointError("wrong tensor shape", where=f"{shard}: {name}", got=list(tensor.shape),
                                              wanted=list(wanted[name].shape))  # fmt: skip
                    wanted[name].copy_(tensor)
                    found.add(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError("the weights file is damaged or truncated", where=str(shard), got=error,
                                  do="copy or download the file again") from error  # fmt: skip
    missing = sorted(set(wanted) - found)
    if missing:
        raise CheckpointError("tensors are missing", where=str(directory), got=f"{len(found)} tensors", wanted=missing[:8])
