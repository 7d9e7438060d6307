"""An autoregressive checkpoint as a policy that predicts masked tokens, before any training.

The weights stay what they are: a Llama, Qwen2 or Qwen3 directory is read into the family of the
same shape that has the attention rule and the shift of the params. Families with biases that the
origin lacks get biases of zero. The mask is a token of the vocabulary that is never used, or a new
one; its embedding starts as the mean of all embeddings (a mask that means nothing would be far from
what the layers know).
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken

from tracerl.errors import CheckpointError, ParamsError
from tracerl.models.checkpoint import (
    Spec,
    allocate,
    apply_compute,
    device_of,
    target_of,
)
from tracerl.models.families import (
    ATTENTION_KEY,
    AUTOREGRESSIVE,
    FAMILIES,
    Family,
    published_name,
)
from tracerl.models.policy import Policy
from tracerl.models.published_config import architecture_of, is_autoregressive, read_config
from tracerl.models.tokenizer import Tokenizer, load_tokenizer
from tracerl.models.tokenizer_files import CONFIG, TOKENIZER
from tracerl.models.transformer import Architecture
from tracerl.models.weights import DTYPES, Target, fill_parameters, stored_dtype
from tracerl.settings.models import Compute, TokenIds
from tracerl.settings.training import Adapt

NEW_MASK = "<|mask|>"
_NO_MASK = -1
# Records that take the tensors of each autoregressive `model_type`, those of the same names and
# biases first.
_RECORDS = {
    "llama": ("a2d-llama", "a2d-llama-block", "dream", "fast-dllm-v2"),
    "qwen2": ("a2d-qwen2", "a2d-qwen2-block", "dream", "fast-dllm-v2"),
    "qwen3": ("a2d-qwen3", "a2d-qwen3-block"),
}


def convert_checkpoint(
    directory: Path, adapt: Adapt, token_ids: TokenIds, compute: Compute
) -> tuple[Policy, Tokenizer]:
    """The policy (evaluation mode) and the tokenizer that an adaptation starts from.

    token_ids: ids that replace the directory's own; without a mask there, a token NEW_MASK is
    added. Raises CheckpointError for a directory that holds no autoregressive model or is damaged,
    and ParamsError if no family has the attention and the shift for its shape.
    """
    spec = convert_spec(directory, adapt, token_ids)
    dtype = spec.dtype if compute.dtype == "stored" else DTYPES[compute.dtype]
    policy = allocate(spec, device_of(compute), dtype)
    _fill(policy, directory)
    return apply_compute(policy, compute).eval(), spec.tokenizer


def convert_spec(directory: Path, adapt: Adapt, token_ids: TokenIds) -> Spec:
    """What the converted checkpoint is, before any tensor is read; raises as
    `convert_checkpoint`."""
    config = read_config(directory)
    if not is_autoregressive(config):
        raise CheckpointError(
            "only an autoregressive checkpoint can be adapted",
            where=str(directory / "config.json"),
            got=config.get("architectures") or config.get("model_type"),
            wanted=", ".join(AUTOREGRESSIVE.values()),
            do="leave out base.adapt to import a diffusion model",
        )
    family = _family_for(config, adapt, directory)
    tokenizer = _tokenizer_with_mask(directory, family, token_ids)
    architecture = converted_architecture(config, adapt, directory)
    rows = max(architecture.vocab_size, tokenizer.vocab_size)
    converted = _config_for(config, family)
    converted[family.config_keys["mask_id"]] = tokenizer.mask_id
    converted[family.config_keys["vocab_size"]] = rows
    return Spec(
        directory=directory,
        adapter=None,
        architecture=replace(architecture, vocab_size=rows, mask_id=tokenizer.mask_id),
        tokenizer=tokenizer,
        published_config=converted,
        dtype=stored_dtype(config, directory),
    )


def converted_architecture(
    config: Mapping[str, Any], adapt: Adapt, directory: Path
) -> Architecture:
    """The shape of an autoregressive config.json in the family of the result, without a mask and
    the row that a new one would add."""
    return architecture_of(_config_for(config, _family_for(config, adapt, directory)), directory)


def origin_family(config: Mapping[str, Any]) -> str:
    """The family that has the tensors of an autoregressive config.json, no more and no fewer."""
    return _RECORDS[str(config["model_type"])][0]


def _family_for(config: Mapping[str, Any], adapt: Adapt, directory: Path) -> Family:
    """The family of the result."""
    records = [FAMILIES[name] for name in _RECORDS[str(config["model_type"])]]
    for family in records:
        if (family.attention, family.shift) == (adapt.attention, int(adapt.shift)):
            return family
    raise ParamsError(
        "no published family has this attention and shift for the shape of the checkpoint",
        where=f"base.adapt, {directory}",
        got=f"{config['model_type']}: attention {adapt.attention}, shift {adapt.shift}",
        wanted="; ".join(f"{f.name}: {f.attention}, shift {bool(f.shift)}" for f in records),
        do="change base.adapt.attention or base.adapt.shift",
    )


def _config_for(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The origin's config.json as that of the family."""
    own = ("model_type", "architectures", "auto_map")
    converted = {key: value for key, value in config.items() if key not in own}
    converted["model_type"] = family.model_types[0]
    converted["architectures"] = [family.classes[0]]
    if family.says_attention:
        converted[ATTENTION_KEY] = family.attention
    return converted


def _tokenizer_with_mask(directory: Path, family: Family, token_ids: TokenIds) -> Tokenizer:
    """The directory's tokenizer with the mask of the params, or with a new one."""
    if token_ids.mask is not None:
        return load_tokenizer(directory, None, family.end_tokens, token_ids)
    tokenizer = load_tokenizer(directory, _NO_MASK, family.end_tokens, token_ids)
    if tokenizer.mask_id != _NO_MASK:
        return tokenizer
    if NEW_MASK not in tokenizer.file.get_vocab():
        tokenizer.file.add_special_tokens([AddedToken(NEW_MASK, special=True, normalized=False)])
    mask_id = tokenizer.file.get_vocab()[NEW_MASK]
    config = json.loads(tokenizer.files.get(CONFIG, b"{}"))
    config["mask_token"] = NEW_MASK
    if "added_tokens_decoder" in config:
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
        config["added_tokens_decoder"][str(mask_id)] = {
            "content": NEW_MASK,
            "special": True,
            **flags,
        }
    files = {
        **tokenizer.files,
        TOKENIZER: tokenizer.file.to_str(pretty=True).encode(),
        CONFIG: (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode(),
    }
    return Tokenizer(
        tokenizer.file,
        tokenizer.end_ids,
        mask_id,
        tokenizer.template,
        pad_id=tokenizer.pad_id,
        names={**tokenizer.names, "mask_token": NEW_MASK},
        files=files,
        where=str(directory),
    )


@torch.no_grad()
def _fill(policy: Policy, directory: Path) -> None:
    """Sets all parameters: the origin's tensors, zeros for biases that it lacks, and the mean
    embedding for the mask and for rows that it lacks."""
    origin = FAMILIES[_RECORDS[str(read_config(directory)["model_type"])][0]]
    num_rows = int(read_config(directory)["vocab_size"])
    whole = target_of(policy)
    tables = (policy.model.embed_tokens.weight, policy.lm_head.weight)
    names = ("model.embed_tokens.weight", "lm_head.weight")
    vocabulary = {published_name(name, policy.family) for name in names}
    parameters = {}
    for name, parameter in whole.parameters.items():
        if name.endswith(".bias") and not origin.qkv_bias:
            parameter.zero_()
        elif name in vocabulary:
            parameters[name] = parameter.detach()[:num_rows]
        else:
            parameters[name] = parameter.detach()
    owner = f"{policy.family.name}, converted from {origin.model_types[0].removeprefix('a2d-')}"
    fill_parameters(Target(parameters=parameters, tied=whole.tied, owner=owner), directory)
    for table in dict.fromkeys(tables):
        mean = table[:num_rows].mean(0)
        table[num_rows:] = mean
        table[policy.architecture.mask_id] = mean
