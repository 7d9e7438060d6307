"""config.json of published directories: the shape it describes, and the config that describes a
shape.

What published configs leave out has the meaning their own code gives it. What a config asks for and
the one transformer does not have is an error. What it says beyond the shape is kept with the model
and written back in its place.
"""

from pathlib import Path
from typing import Any

from tracerl.errors import CheckpointError
from tracerl.models.directory import read_json
from tracerl.models.families import AUTOREGRESSIVE, FAMILIES, Family
from tracerl.models.policy import Policy
from tracerl.models.transformer import Architecture

# Settings of published configs that the one transformer knows in one value only; null is as good.
_PLAIN = {
    "rope_scaling": None,
    "rope_type": "default",
    "rope": True,
    "use_sliding_window": False,
    "use_mrope": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "activation_type": "silu",
    "block_type": "llama",
    "block_group_size": 1,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "clip_qkv": None,
    "scale_logits": False,
    "alibi": False,
    "multi_query_attention": False,
}


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of a checkpoint directory."""
    return read_json(directory / "config.json")


def architecture_of(config: dict[str, Any], directory: Path) -> Architecture:
    """The shape that a published config.json describes; mask_id is -1 if it names none.

    Raises CheckpointError for keys that are missing and for settings that the one transformer does
    not have.
    """
    family = family_of(config, directory)
    where = str(directory / "config.json")
    values = _values(config, family)
    missing = [key for ours, key in family.config_keys.items() if values.get(ours) is None]
    if missing:
        raise CheckpointError(
            "the config lacks keys", where=where, got=sorted(config), wanted=missing
        )
    flat = _flat(config)
    unsupported = {
        key: flat[key] for key, plain in _PLAIN.items() if flat.get(key, plain) not in (plain, None)
    }
    if unsupported:
        raise CheckpointError(
            "the config asks for what this transformer does not do",
            where=where,
            got=unsupported,
            wanted={key: _PLAIN[key] for key in unsupported},
        )
    kinds: dict[str, type] = {"rope_theta": float, "norm_eps": float, "tie_embeddings": bool}
    for ours, key in family.config_keys.items():
        kind = kinds.get(ours, int)
        if isinstance(values[ours], bool) != (kind is bool) or not isinstance(
            values[ours], (kind, int)
        ):
            raise CheckpointError(
                "a key of the config is not of its kind",
                where=f"{where}: {key}",
                got=repr(values[ours]),
                wanted=kind.__name__,
            )
        values[ours] = kind(values[ours])
    if (
        values["num_heads"] < 1
        or values["num_heads"] % values["num_kv_heads"]
        or values["head_dim"] % 2
    ):
        heads = {key: values[key] for key in ("num_heads", "num_kv_heads", "head_dim")}
        raise CheckpointError(
            "the heads do not fit together",
            where=where,
            got=heads,
            wanted="whole groups of heads, an even head_dim",
        )
    return Architecture(family=family.name, **values)


def family_of(config: dict[str, Any], directory: Path) -> Family:
    """The family of a config's `model_type`. Raises CheckpointError for one that is not known."""
    by_type = {name.lower(): family for family in FAMILIES.values() for name in family.model_types}
    family = by_type.get(str(config.get("model_type", "")).lower())
    if config.get("model_type") in AUTOREGRESSIVE:
        raise CheckpointError(
            "an autoregressive model can be evaluated only",
            where=str(directory / "config.json"),
            got=config["model_type"],
            do="import it with base.path and run evaluate stages alone",
        )
    if family is None:
        raise CheckpointError(
            "unknown architecture",
            where=str(directory / "config.json"),
            got=config.get("model_type"),
            wanted="model_type one of " + ", ".join(sorted(by_type)),
        )
    return family


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """Newer configs keep the rotary settings in a section of their own."""
    return {**(config.get("rope_parameters") or {}), **config}


def _values(config: dict[str, Any], family: Family) -> dict[str, Any]:
    """Our fields as the config gives them, with what published configs leave out."""
    flat = _flat(config)
    values = {
        ours: flat[key] for ours, key in family.config_keys.items() if flat.get(key) is not None
    }
    heads, hidden = values.get("num_heads"), values.get("hidden_size")
    head_dim = (
        hidden // heads
        if isinstance(heads, int) and isinstance(hidden, int) and heads > 0
        else None
    )
    left_out = {
        "vocab_size": flat.get("vocab_size"),  # LLaDA's embedding_size may be null
        "num_kv_heads": heads,
        "head_dim": family.default_head_dim or head_dim,
        "tie_embeddings": False,
        "mask_id": -1,  # the tokenizer names it
    }
    return {**left_out, **values}


def config_of(model: Policy) -> dict[str, Any]:
    """The config the model was loaded with, where it still holds, and its shape; of a new model the
    shape alone, sorted."""
    arch, family = model.architecture, model.family
    dtype = str(model.dtype).removeprefix("torch.")
    shape = {key: getattr(arch, ours) for ours, key in family.config_keys.items()}
    if arch.head_dim == (family.default_head_dim or arch.hidden_size // arch.num_heads):
        del shape[family.config_keys["head_dim"]]
    published = model.published_config
    if not published:
        new = {
            "model_type": family.model_types[0],
            "torch_dtype": dtype,
            **family.config_constants,
            **shape,
        }
        return dict(sorted(new.items()))
    config = dict(published)
    known = _values(published, family)
    for ours, key in family.config_keys.items():
        if (
            key in shape
            and known[ours] != shape[key]
            and not (ours == "mask_id" and known[ours] == -1)
        ):
            config[key] = shape[key]
    for key in ("torch_dtype", "dtype"):
        if key in config and str(config[key]).removeprefix("torch.") != dtype:
            config[key] = dtype
    return config
