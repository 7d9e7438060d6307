"""The smallest models and requests that can show an error: random weights, sharp enough that a
wrong mask or position moves a log-probability by nats, and a vocabulary small enough that end
tokens turn up in some responses and not in others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tracerl.models.families import FAMILIES
from tracerl.models.masks import Layout
from tracerl.models.mlp import Experts
from tracerl.models.policy import Policy, fit_order_module, new_model
from tracerl.models.transformer import Architecture, CacheWindow, KeyValueCache
from tracerl.sampling.sampler import Request
from tracerl.seeds import generator_for, key_for
from tracerl.settings.sampling import Sampler

MASK_ID = 0
END_IDS = (1, 2)
VOCAB_SIZE = 32

# One family of each pair of attention and shift, for laws that are put to many tests; every record
# is put to them once in test_records.py.
RULES = {name: FAMILIES[name] for name in ("sdar", "llada", "dream", "fast-dllm-v2")}
# Those with each cache that is exact for them.
SAMPLERS = [
    (name, cache)
    for name, family in RULES.items()
    for cache in (["none", "exact"] if family.attention == "block_causal" else ["none"])
]
# Those without families that cross the edges of blocks, whose steps test_records.py counts.
PLAIN_SAMPLERS = [(name, cache) for name, cache in SAMPLERS if not FAMILIES[name].crosses_edges]
FULL_ATTENTION = [name for name, family in RULES.items() if family.attention == "full"]
APPROXIMATE: dict[str, dict[str, Any]] = {
    "prefix": {"cache": "prefix"},
    "dual": {"cache": "dual"},
    "window": {"cache": "window", "horizon": 3, "refresh_sees": "canvas"},
    "cut": {"cache": "window", "horizon": 3, "refresh_sees": "window"},
}


def tiny_architecture(family: str, **changes: Any) -> Architecture:
    base = Architecture(
        family=family,
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        rope_theta=10000.0,
        norm_eps=1e-6,
        tie_embeddings=False,
        mask_id=MASK_ID,
    )
    experts: dict[str, Any] = {}
    if FAMILIES[family].dense_key:
        experts["experts"] = tiny_experts(family)
    if "rotary_factor" in FAMILIES[family].config_keys:
        experts["rotary_factor"] = 0.5
    return replace(base, **experts | changes)


def tiny_experts(family: str) -> Experts:
    """Eight experts of which each token has three, in the second of two layers or in both."""
    keys = FAMILIES[family].expert_keys
    has_groups = "num_groups" in keys
    has_shared = bool({"num_shared", "shared_size"} & keys.keys())
    return Experts(
        num_experts=8,
        per_token=3,
        intermediate_size=16,
        shared_size=16 if has_shared else 0,
        dense_layers=(0,) if has_shared else (),
        renormalise="renormalise" in keys,
        num_groups=4 if has_groups else 1,
        groups_per_token=2 if has_groups else 1,
        scaling=2.5 if has_groups else 1.0,
    )


def sharp_model(
    family: str, dtype: torch.dtype = torch.float32, seed: int = 1, **changes: Any
) -> Policy:
    """A random model whose norms and biases are not the identity and whose log-probabilities spread
    over several nats."""
    rng = generator_for(seed, "sharp", family)
    model = new_model(tiny_architecture(family, **changes), rng)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.from_numpy(rng.uniform(0.5, 1.5, tuple(parameter.shape))))
            elif name.endswith("bias"):
                parameter.copy_(torch.from_numpy(rng.normal(0.0, 0.5, tuple(parameter.shape))))
            elif "embed_tokens" in name:
                parameter.mul_(1.0 / 0.02)
            elif "lm_head" in name:
                parameter.mul_(0.4 / 0.02)
            elif "router" in name:
                parameter.mul_(3.0)
            elif "q_proj" in name or "o_proj" in name or "v_proj" in name:
                parameter.mul_(2.0)
        for name, buffer in model.named_buffers():
            if name.endswith("expert_bias"):
                buffer.copy_(torch.from_numpy(rng.normal(0.0, 0.3, tuple(buffer.shape))))
    return model.to(dtype).eval()


def with_order_module(model: Policy) -> Policy:
    """The model with an order module that prefers some positions to others by nats."""
    fit_order_module(model, generator_for(1, "order"))
    assert model.order is not None
    with torch.no_grad():
        drawn = generator_for(2, "order").normal(0.0, 1.0, tuple(model.order.score.weight.shape))
        model.order.score.weight.copy_(torch.from_numpy(drawn))
    return model


# What a kind of order or cache has besides its name, by the column of the store that holds it.
ORDER_KEYS = {
    "static": {},
    "sequential": {},
    "dynamic": {"threshold": "threshold"},
    "sub_blocks": {"threshold": "threshold", "size": "sub_block_size"},
    "entropy": {"bound": "entropy_bound"},
    "plackett_luce": {"temperature": "order_temperature", "score": "order_score"},
}
CACHE_KEYS = {
    "none": {},
    "exact": {},
    "prefix": {"refresh_every": "refresh_every"},
    "dual": {"refresh_every": "refresh_every"},
    "window": {
        "horizon": "horizon",
        "refresh_every": "refresh_every",
        "refresh_sees": "refresh_sees",
    },
}
KIND_VALUES: dict[str, Any] = {
    "threshold": 0.5,
    "sub_block_size": 2,
    "entropy_bound": 2.5,
    "order_temperature": 0.5,
    "order_score": "max_logprob",
    "horizon": 3,
    "refresh_every": None,
    "refresh_sees": "canvas",
}


def order_of(kind: str, **values: Any) -> dict[str, Any]:
    """Plain data of an order. values: by column; others are KIND_VALUES."""
    keys = ORDER_KEYS[kind]
    return {"kind": kind} | {
        key: values.get(column, KIND_VALUES[column]) for key, column in keys.items()
    }


def cache_of(kind: str, **values: Any) -> dict[str, Any]:
    """Plain data of a cache. values: by column; others are KIND_VALUES."""
    keys = CACHE_KEYS[kind]
    return {"kind": kind} | {
        key: values.get(column, KIND_VALUES[column]) for key, column in keys.items()
    }


def tiny_sampler(remasking: str = "static", cache: str = "none", **changes: Any) -> Sampler:
    """Settings for a few small blocks. remasking, cache: kinds; their own keys are changes by
    column (threshold, order_score, horizon, ...), and KIND_VALUES where they are left out."""
    values = {key: changes.pop(key) for key in list(changes) if key in KIND_VALUES}
    settings: dict[str, Any] = {
        "block_size": 4,
        "steps_per_block": 4,
        "schedule": "even",
        "order": order_of(remasking, **values),
        "confidence": "raw",
        "confidence_of": "drawn",
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "guidance": 0.0,
        "opening": "",
        "max_prompt_tokens": 64,
        "max_new_tokens": 12,
        "cache": cache_of(cache, **values),
        "max_rows": 7,
        "cache_tokens": None,
    }
    return Sampler(**{**settings, **changes})


def tiny_requests(prompt_lengths: Sequence[int], seed: int = 1) -> list[Request]:
    """One request per prompt length, of random ordinary tokens and end tokens; request i is the
    same in whatever list it stands."""
    requests = []
    for i, length in enumerate(prompt_lengths):
        prompt = generator_for(seed, "prompt", i).integers(1, VOCAB_SIZE, size=length)
        requests.append(Request([int(token) for token in prompt], key_for(seed, "noise", i)))
    return requests


def cached_pass(
    cache: KeyValueCache, rows: int, start: int, end: int, block_size: int
) -> tuple[Layout, CacheWindow]:
    """Of positions [start, end): a prefill from the first on, or the live block that follows what
    the cache holds."""
    positions = torch.arange(start, end).expand(rows, -1)
    if start == 0:
        return Layout(positions, positions // block_size, torch.zeros_like(positions)), CacheWindow(
            cache, 0, 0
        )
    return Layout(
        positions, positions, positions, first_keys=torch.full((rows,), end), num_keys=end
    ), CacheWindow(cache, 0, end)


def concatenated(parts: Sequence[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts))


def chi_square_z(counts: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's statistic of counts against expected counts, as standard deviations from its mean
    (Wilson and Hilferty's cube root)."""
    freedom = len(counts) - 1
    ratio = float(((counts - expected) ** 2 / expected).sum()) / freedom
    spread = 2 / (9 * freedom)
    return float((np.cbrt(ratio) - (1 - spread)) / np.sqrt(spread))
