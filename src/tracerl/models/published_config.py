"""config.json of published directories: which model it is, the shape it describes, and the config
that describes a shape.

A model is named by the modelling class of its `auto_map`, else by its `architectures`, else by its
`model_type`: published diffusion models say `model_type: llama` or `qwen3`. Every key is either
used, known to change nothing at its value, or refused. What published configs leave out has the
meaning their own code gives it. What a config says beyond the shape is kept with the policy and
written back in its place.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracerl.errors import CheckpointError
from tracerl.models.directory import read_json
from tracerl.models.families import ATTENTION_KEY, AUTOREGRESSIVE, FAMILIES, Family
from tracerl.models.mlp import Experts
from tracerl.models.policy import Policy
from tracerl.models.transformer import Architecture

# Keys that the transformer knows at one value only; null is as good.
_ONLY: dict[str, Any] = {
    "activation_type": "silu",
    "add_cross_attention": False,
    "alibi": False,
    "attention_bias": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "clip_qkv": None,
    "hidden_act": "silu",
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mlp_bias": False,
    "multi_query_attention": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "rope": True,
    "rope_full_precision": True,
    "rope_interleaved": False,
    "rope_type": "default",
    "scale_logits": False,
    "type": "default",  # the older name of rope_type
    "use_mrope": False,
    "use_sliding_window": False,
    "w_clip_vit": False,
}
# Keys that change nothing here whatever they say: names, training, speed, generation (the params
# say how responses are sampled), and parts of switches that `_ONLY` keeps off.
_IGNORED_NAMES = """
    _name_or_path architectures auto_map model_type transformers_version torch_dtype dtype
    bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id decoder_start_token_id
    attention_dropout embedding_dropout residual_dropout resid_pdrop hidden_dropout dropout
    initializer_range init_cutoff_factor init_device init_fn init_std
    max_position_embeddings max_sequence_length mlp_ratio precision alibi_bias_max
    attention_layer_norm_with_affine max_window_layers sliding_window layer_norm_eps
    _attn_implementation attn_implementation _attn_implementation_autoset flash_attention
    flash_attn_varlen use_cache debug ep_size fuse_cross_entropy micro_forward skip_checkpoint
    use_deepep gradient_checkpointing pretraining_tp block_size
    bd_size conplemenrary_mask
    codebook_size llm_vocab_size new_vocab_size num_new_special_tokens num_vq_tokens
    pretrained_model_path
    return_dict output_hidden_states output_attentions torchscript chunk_size_feed_forward
    use_bfloat16 tf_legacy_loss problem_type finetuning_task task_specific_params id2label label2id
    tokenizer_class prefix pruned_heads tie_encoder_decoder cross_attention_hidden_size
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
    return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    is_llama_config transformers.js_config
"""
_IGNORED = frozenset(_IGNORED_NAMES.split())
_ROPE_SECTIONS = ("rope_scaling", "rope_parameters")
# The largest values that are taken for a model's: beyond them a file is damaged or hostile.
_LARGEST: dict[str, float] = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 20,
    "num_layers": 1 << 10,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "rope_theta": 1e12,
    "norm_eps": 0.1,
    "rotary_factor": 1.0,
    "num_experts": 1 << 14,
    "per_token": 1 << 10,
    "shared_size": 1 << 20,
    "num_shared": 1 << 10,
    "num_groups": 1 << 14,
    "groups_per_token": 1 << 14,
    "scaling": 1e6,
}
_FLOATS = ("rope_theta", "norm_eps", "rotary_factor", "scaling")
_FLAGS = ("tie_embeddings", "renormalise")


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of a checkpoint directory."""
    return read_json(directory / "config.json")


def family_of(config: Mapping[str, Any], directory: Path, choice: str | None = None) -> Family:
    """The family of a config. Raises CheckpointError, naming it, for a model that is not
    supported, or that is a baseline.

    choice: name of the family of the params, which decides where checkpoints of one published
    class differ in attention and the config does not say which they have.
    """
    where = str(directory / "config.json")
    if is_autoregressive(config):
        raise CheckpointError(
            "an autoregressive model can be evaluated only",
            where=where,
            got=config["model_type"],
            do="import it with base.path and run evaluate stages alone",
        )
    families = [family for family in FAMILIES.values() if _is_of(config, family)]
    if not families:
        raise CheckpointError(
            "this model is not supported",
            where=where,
            got=_name_of(config),
            wanted=_family_list(),
            do="docs/models.md lists what can be loaded",
        )
    if not families[0].says_attention:
        return families[0]
    attention = config.get(ATTENTION_KEY)
    for family in families:
        if attention == family.attention or (attention is None and choice == family.name):
            return family
    raise CheckpointError(
        "the config does not say which attention the checkpoint was trained with",
        where=where,
        got=f"{_name_of(config)}, {ATTENTION_KEY} {attention!r}",
        wanted=" or ".join(f"{family.attention} ({family.name})" for family in families),
        do="import it with base.path and name that family in base.model.family, or write "
        f"{ATTENTION_KEY} into its config.json",
    )


def _is_of(config: Mapping[str, Any], family: Family) -> bool:
    """Whether class and type of a config, as far as it names them, are those of a family."""
    classes = _classes(config)
    has_class = not set(classes).isdisjoint(family.classes)
    has_class = has_class or not set(_remote_modules(config)).isdisjoint(family.modules)
    model_type = str(config.get("model_type") or "").lower()
    has_type = model_type in map(str.lower, family.model_types)
    agree = (has_class or not classes) and (has_type or not model_type)
    return agree and (has_class or (has_type and not family.needs_class))


def is_autoregressive(config: Mapping[str, Any]) -> bool:
    """Whether a config is that of a baseline: transformers' own class of its `model_type`, no
    modelling code of its own, and no mask token."""
    name = AUTOREGRESSIVE.get(str(config.get("model_type")))
    if name is None or _remote_classes(config) or config.get("mask_token_id") is not None:
        return False
    return _classes(config) in ([], [name])


def _classes(config: Mapping[str, Any]) -> list[str]:
    """Modelling classes: those of `auto_map`, or else `architectures`."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list):
        architectures = []
    return _remote_classes(config) or list(map(str, architectures))


def _remote_classes(config: Mapping[str, Any]) -> list[str]:
    """Modelling classes whose code lies in the directory."""
    return [path.split(".")[-1] for path in _remote_code(config)]


def _remote_modules(config: Mapping[str, Any]) -> list[str]:
    """Modelling files whose code lies in the directory, without `.py`."""
    return [path.split("--")[-1].rpartition(".")[0] for path in _remote_code(config)]


def _remote_code(config: Mapping[str, Any]) -> list[str]:
    """What the `AutoModel` keys of `auto_map` name: "file.Class" or "repository--file.Class"."""
    auto_map = config.get("auto_map")
    if not isinstance(auto_map, dict):
        return []
    return [str(value) for key, value in auto_map.items() if key.startswith("AutoModel")]


def _name_of(config: Mapping[str, Any]) -> str:
    names = []
    for key in ("auto_map", "architectures", "model_type"):
        if config.get(key):
            names.append(f"{key} {config[key]}")
    return ", ".join(names) or "no name of a model"


def _family_list() -> str:
    families = []
    for family in FAMILIES.values():
        classes = "/".join(family.classes)
        types = "/".join(family.model_types)
        families.append(f"{family.name}: {classes}, model_type {types}")
    baselines = []
    for kind, name in AUTOREGRESSIVE.items():
        baselines.append(f"{name} ({kind})")
    return f"{'; '.join(families)}; to be evaluated only: {', '.join(baselines)}"


def architecture_of(
    config: Mapping[str, Any], directory: Path, choice: str | None = None
) -> Architecture:
    """The shape that a published config.json describes; mask_id is -1 if it names none.

    choice: see `family_of`. Raises CheckpointError for keys that are missing or not known, and for
    values that are not of their type, out of range, or not supported.
    """
    family = family_of(config, directory, choice)
    where = str(directory / "config.json")
    flat = _flat(config, where)
    values = _values(flat, family)
    missing = [key for ours, key in family.config_keys.items() if values.get(ours) is None]
    if missing:
        raise CheckpointError(
            "the config lacks keys", where=where, got=sorted(config), wanted=missing
        )
    _check_keys(flat, family, where)
    for ours, key in family.config_keys.items():
        values[ours] = _check_value(ours, values[ours], f"{where}: {key}")
    _check_heads(values, where)
    experts = _experts_of(flat, family, values["num_layers"], where) if family.dense_key else None
    return Architecture(family=family.name, experts=experts, **values)


def _flat(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The config with the keys of its rotary sections among the others.

    Newer configs have the section `rope_parameters`, or one such section for each type of layer.
    """
    flat = {key: value for key, value in config.items() if key not in _ROPE_SECTIONS}
    layer_types = flat.pop("layer_types", None) or []
    if any(kind != "full_attention" for kind in layer_types):
        raise CheckpointError(
            "the config asks for what this transformer does not do",
            where=f"{where}: layer_types",
            got=sorted(set(map(str, layer_types))),
            wanted="full_attention in every layer",
        )
    for name in _ROPE_SECTIONS:
        section = config.get(name) or {}
        if not isinstance(section, dict):
            raise CheckpointError(
                "a key of the config is not of its type",
                where=f"{where}: {name}",
                got=repr(section),
                wanted="an object",
            )
        if section.keys() == {"full_attention"} and isinstance(section["full_attention"], dict):
            section = section["full_attention"]
        for key, value in section.items():
            if flat.get(key) not in (None, value):
                raise CheckpointError(
                    "the config says two things",
                    where=f"{where}: {key}",
                    got=f"{flat[key]!r}, and {value!r} in {name}",
                    wanted="one value",
                )
            flat[key] = value
    return flat


def _check_keys(flat: Mapping[str, Any], family: Family, where: str) -> None:
    """Raises CheckpointError for keys that are not known, or not at their value."""
    used = {*family.config_keys.values(), "vocab_size", *family.expert_keys.values()}
    used |= {family.dense_key, *family.ignored_keys}
    only = {**_ONLY, **family.fixed_keys}
    if family.says_attention:
        used.add(ATTENTION_KEY)
    unknown = {}
    unsupported = {}
    for key, value in flat.items():
        if value is None or key in used or key in _IGNORED:
            continue
        if key not in only:
            unknown[key] = value
        elif value != only[key] or isinstance(value, bool) != isinstance(only[key], bool):
            unsupported[key] = value
    if unsupported:
        raise CheckpointError(
            "the config asks for what this transformer does not do",
            where=where,
            got=unsupported,
            wanted={key: only[key] for key in unsupported},
        )
    if unknown:
        raise CheckpointError(
            "the config has keys that are not known, which may change the model",
            where=where,
            got=unknown,
            wanted="keys that this transformer uses or that change nothing",
            do="remove them from config.json if they change nothing",
        )


def _check_value(ours: str, value: Any, where: str) -> int | float | bool:
    """A value of its type and range. Raises CheckpointError."""
    kind: Any = bool if ours in _FLAGS else float if ours in _FLOATS else int
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, (kind, int)):
        raise CheckpointError(
            "a key of the config is not of its type",
            where=where,
            got=repr(value),
            wanted=kind.__name__,
        )
    if ours not in _LARGEST:
        return value
    if not 0 < value <= _LARGEST[ours]:  # false for NaN too
        raise CheckpointError(
            "a key of the config is out of range",
            where=where,
            got=repr(value),
            wanted=f"more than 0, at most {_LARGEST[ours]}",
        )
    return kind(value)


def _check_heads(values: Mapping[str, Any], where: str) -> None:
    rotated = int(values["head_dim"] * values.get("rotary_factor", 1.0))
    if values["num_heads"] % values["num_kv_heads"] or rotated % 2 or not rotated:
        raise CheckpointError(
            "the heads do not fit together",
            where=where,
            got={key: values[key] for key in ("num_heads", "num_kv_heads", "head_dim")},
            wanted="whole groups of heads, an even number of rotated dimensions",
        )


def _experts_of(flat: Mapping[str, Any], family: Family, num_layers: int, where: str) -> Experts:
    """The shape of a config's mixtures of experts. Raises CheckpointError for keys that are
    missing, of another type or out of range, and for groups that do not fit."""
    values: dict[str, Any] = {}
    for ours, key in family.expert_keys.items():
        value = flat.get(key)
        if value is None and ours == "shared_size":
            value = 0
        if value is None:
            raise CheckpointError(
                "the config lacks keys", where=where, got=sorted(flat), wanted=[key]
            )
        is_none = ours in ("shared_size", "num_shared") and value == 0
        values[ours] = 0 if is_none else _check_value(ours, value, f"{where}: {key}")
    if "num_shared" in values:
        values["shared_size"] = values.pop("num_shared") * values["intermediate_size"]
    experts = Experts(
        **{"shared_size": 0, **values}, dense_layers=_dense_layers(flat, family, num_layers, where)
    )
    group_size, rest = divmod(experts.num_experts, experts.num_groups)
    available = group_size * experts.groups_per_token
    if rest or experts.groups_per_token > experts.num_groups or experts.per_token > available:
        raise CheckpointError(
            "the experts do not fit together",
            where=where,
            got=values,
            wanted="groups of equal size, and at least as many experts in a token's groups as it "
            "is sent to",
        )
    return experts


def _dense_layers(
    flat: Mapping[str, Any], family: Family, num_layers: int, where: str
) -> tuple[int, ...]:
    """Layers with a dense MLP, as `dense_key` says it: how many are first, which ones, or for every
    layer whether it is sparse."""
    value = flat.get(family.dense_key)
    if type(value) is int and value >= 0:
        value = list(range(min(value, num_layers)))
    elif family.dense_key == "moe_layer_freq" and isinstance(value, list):
        is_whole = len(value) == num_layers
        value = [i for i, is_sparse in enumerate(value) if not is_sparse] if is_whole else None
    if not isinstance(value, list) or any(i not in range(num_layers) for i in value):
        raise CheckpointError(
            "a key of the config is not of its type",
            where=f"{where}: {family.dense_key}",
            got=repr(flat.get(family.dense_key)),
            wanted=f"which of {num_layers} layers are dense",
        )
    return tuple(sorted(value))


def _values(flat: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Our fields as the flat config gives them, with what published configs leave out."""
    values = {}
    for ours, key in family.config_keys.items():
        if flat.get(key) is not None:
            values[ours] = flat[key]
    heads = values.get("num_heads")
    hidden = values.get("hidden_size")
    head_dim = family.default_head_dim
    if head_dim is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        head_dim = hidden // heads
    defaults = {
        "vocab_size": flat.get("vocab_size"),  # LLaDA's embedding_size may be null
        "num_kv_heads": heads,
        "head_dim": head_dim,
        "tie_embeddings": False,
        "mask_id": -1,  # the tokenizer names it
        "rotary_factor": 1.0,
    }
    known = {ours: value for ours, value in defaults.items() if ours in family.config_keys}
    return {**known, **values}


def _expert_config(arch: Architecture, family: Family) -> dict[str, Any]:
    """What a new model's config says of its experts."""
    experts = arch.experts
    if experts is None:
        return {}
    config = dict(family.fixed_keys)
    num_shared = experts.shared_size // experts.intermediate_size
    for ours, key in family.expert_keys.items():
        config[key] = num_shared if ours == "num_shared" else getattr(experts, ours)
    forms = {
        "first_k_dense_replace": len(experts.dense_layers),
        "moe_layer_freq": [int(i not in experts.dense_layers) for i in range(arch.num_layers)],
        "mlp_only_layers": list(experts.dense_layers),
    }
    return {**config, family.dense_key: forms[family.dense_key]}


def config_of(policy: Policy) -> dict[str, Any]:
    """The config the model was loaded with, where it still holds, and its shape; of a new model the
    shape alone, sorted."""
    arch, family = policy.architecture, policy.family
    dtype = str(policy.dtype).removeprefix("torch.")
    shape = {key: getattr(arch, ours) for ours, key in family.config_keys.items()}
    if arch.head_dim == (family.default_head_dim or arch.hidden_size // arch.num_heads):
        del shape[family.config_keys["head_dim"]]
    if family.says_attention:
        shape[ATTENTION_KEY] = family.attention
    shape |= _expert_config(arch, family)
    published = policy.published_config
    if not published:
        new = {
            "model_type": family.model_types[0],
            "torch_dtype": dtype,
            "architectures": [family.classes[0]],
            **shape,
        }
        return dict(sorted(new.items()))
    config = dict(published)
    known = _values(_flat(published, "config.json"), family)
    for ours, key in family.config_keys.items():
        if (
            key in shape
            and known[ours] != shape[key]
            and not (ours == "mask_id" and known[ours] == -1)
        ):
            config[key] = shape[key]
    if family.says_attention:
        config[ATTENTION_KEY] = family.attention
    for key in ("torch_dtype", "dtype"):
        if key in config and str(config[key]).removeprefix("torch.") != dtype:
            config[key] = dtype
    return config
