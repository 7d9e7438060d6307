"""Tiny autoregressive directories, as transformers saves them."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tracerl.models.tokenizer import character_tokenizer

KINDS: dict[str, Any] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}
FREE_ID = 0  # the character tokenizer's mask: a token that no text holds


def write_autoregressive(folder: Path, kind: str, **changes: Any) -> PreTrainedModel:
    """Writes a random model of two layers over printable ASCII, whose tokenizer names no mask;
    returns it."""
    config_of, model_of = KINDS[kind]
    tokenizer = character_tokenizer()
    shape = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "initializer_range": 0.5,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": tokenizer.end_ids[0],
        "pad_token_id": None,
    }
    torch.manual_seed(1)
    model: PreTrainedModel = model_of(config_of(**{**shape, **changes})).eval()
    model.save_pretrained(folder)
    tokenizer.save(folder)
    names = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": names["eos_token"]}))
    return model
