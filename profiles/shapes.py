"""The published config.json of the profiles' checkpoints, as far as it says their shape.

`python -m profiles.make` writes them into profiles/configs/, for `tracerl doctor --config` before
a checkpoint is there.
"""

from typing import Any

Config = dict[str, Any]


def _qwen(
    kind: str,
    *,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
) -> Config:
    return {
        "model_type": kind,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "rope_theta": 1000000,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }


def _llada(kind: str, vocab_size: int) -> Config:
    return {
        "model_type": kind,
        "embedding_size": vocab_size,
        "vocab_size": vocab_size,
        "d_model": 4096,
        "mlp_hidden_size": 12288,
        "n_layers": 32,
        "n_heads": 32,
        "n_kv_heads": 32,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "weight_tying": False,
        "mask_token_id": 126336,
        "block_type": "llama",
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "torch_dtype": "bfloat16",
    }


_SDAR_1_7B = _qwen(
    "sdar",
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=6144,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
)
_SDAR_4B = _qwen(
    "sdar",
    vocab_size=151936,
    hidden_size=2560,
    intermediate_size=9728,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
)
_SDAR_8B = _qwen(
    "sdar",
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
)
_DREAM_7B = _qwen(
    "Dream",
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_layers=28,
    num_heads=28,
    num_kv_heads=4,
)

# Autoregressive; the profiles `words` adapt it.
_SMOLLM2_135M: Config = {
    **_qwen(
        "llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
    ),
    "architectures": ["LlamaForCausalLM"],
    "rope_theta": 100000,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}

CONFIGS: dict[str, Config] = {
    "SmolLM2-135M-Instruct": _SMOLLM2_135M,
    "SDAR-1.7B-Chat": _SDAR_1_7B,
    "SDAR-4B-Chat": _SDAR_4B,
    "SDAR-8B-Chat": _SDAR_8B,
    "TraDo-4B-Instruct": _SDAR_4B,
    "TraDo-8B-Instruct": _SDAR_8B,
    "TraDo-8B-Thinking": _SDAR_8B,
    "LLaDA-8B-Instruct": _llada("llada", 126464),
    "LLaDA-1.5": _llada("llada", 126464),
    "MMaDA-8B-MixCoT": _llada("mmada", 134656),
    "Dream-v0-Instruct-7B": _DREAM_7B,
    "Dream-Coder-v0-Instruct-7B": _DREAM_7B,
    "DiffuCoder-7B-Instruct": _DREAM_7B,
}
