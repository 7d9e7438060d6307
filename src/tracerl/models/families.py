"""Model families, as data.

A family differs from another in a few mathematical facts: its attention rule, its logits shift,
whether its last block may be short. Everything else here says how its published directories name
things. No code branches on a family's name: new behaviour is a new field of this record.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

Attention = Literal["block_causal", "full"]
Router = Literal["softmax", "grouped_sigmoid"]
# Key of config.json that says which attention a checkpoint was trained with, where its published
# config does not. Written by us; other software ignores it.
ATTENTION_KEY = "tracerl_attention"


@dataclass(frozen=True, kw_only=True)
class Family:
    """What has to be known to load, run and save a checkpoint of one family."""

    name: str
    model_types: tuple[str, ...]
    """what `model_type` of a published config.json may say (compared in lower case); the first is
    written for a new model"""
    classes: tuple[str, ...]
    """published modelling classes, as `auto_map` and `architectures` name them; the first is
    written for a new model"""
    attention: Attention
    shift: Literal[0, 1]
    """0: logit i predicts token i; 1: logit i-1 does (models adapted from autoregressive ones)"""
    qk_norm: bool
    """whether queries and keys of each head are normalised"""
    qkv_bias: bool
    """whether the projections to queries, keys and values have a bias"""
    config_keys: dict[str, str]
    """our architecture field -> key of the published config.json"""
    parameter_names: dict[str, str]
    """our parameter name -> published name, where they differ; `{i}` is the layer"""
    default_head_dim: int | None
    """what a config without head_dim means; None: hidden_size / num_heads"""
    end_tokens: tuple[str, ...]
    """tokens that end a response, where the vocabulary has them, beside those that the directory
    names itself"""
    modules: tuple[str, ...] = ()
    """published modelling files, as `auto_map` names them, whatever their class is called"""
    needs_class: bool = False
    """whether `model_type` alone does not tell it from a model of another kind"""
    says_attention: bool = False
    """whether config.json needs the key ATTENTION_KEY: records of one published class differ in
    attention only"""
    short_last_block: bool = False
    """whether the canvas ends where the response does, inside a block if it must (block-causal
    attention); else it is filled up with masks to a whole block"""

    fused_qkv: bool = False
    """whether queries, keys and values are one projection, its rows in this order"""
    router: Router = "softmax"
    """how a mixture of experts chooses (mlp.py)"""
    expert_bias: bool = False
    """whether the router has a bias that only the choice of experts sees"""
    expert_keys: dict[str, str] = field(default_factory=dict)
    """field of our Experts -> key of the published config.json; empty: no mixture of experts"""
    dense_key: str = ""
    """key of the published config.json that says which layers are dense"""
    fixed_keys: dict[str, Any] = field(default_factory=dict)
    """keys that published configs of this family have, at the one value that is supported"""
    ignored_keys: tuple[str, ...] = ()
    """keys of published configs that their own code does not read"""

    @property
    def crosses_edges(self) -> bool:
        """Whether the first token of a block is predicted by the last position of the block before
        it, which has to be complete then (shifted logits with block-causal attention)."""
        return self.attention == "block_causal" and self.shift == 1


_QWEN_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
    "mask_id": "mask_token_id",
}

_LLADA_KEYS = {
    "vocab_size": "embedding_size",
    "hidden_size": "d_model",
    "intermediate_size": "mlp_hidden_size",
    "num_layers": "n_layers",
    "num_heads": "n_heads",
    "num_kv_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "weight_tying",
    "mask_id": "mask_token_id",
}

_LLADA_BLOCK = "model.transformer.blocks.{i}"
_LLADA_NAMES = {
    "model.embed_tokens.weight": "model.transformer.wte.weight",
    "model.norm.weight": "model.transformer.ln_f.weight",
    "lm_head.weight": "model.transformer.ff_out.weight",
    "model.layers.{i}.input_layernorm.weight": f"{_LLADA_BLOCK}.attn_norm.weight",
    "model.layers.{i}.post_attention_layernorm.weight": f"{_LLADA_BLOCK}.ff_norm.weight",
    "model.layers.{i}.self_attn.q_proj.weight": f"{_LLADA_BLOCK}.q_proj.weight",
    "model.layers.{i}.self_attn.k_proj.weight": f"{_LLADA_BLOCK}.k_proj.weight",
    "model.layers.{i}.self_attn.v_proj.weight": f"{_LLADA_BLOCK}.v_proj.weight",
    "model.layers.{i}.self_attn.o_proj.weight": f"{_LLADA_BLOCK}.attn_out.weight",
    "model.layers.{i}.mlp.gate_proj.weight": f"{_LLADA_BLOCK}.ff_proj.weight",
    "model.layers.{i}.mlp.up_proj.weight": f"{_LLADA_BLOCK}.up_proj.weight",
    "model.layers.{i}.mlp.down_proj.weight": f"{_LLADA_BLOCK}.ff_out.weight",
}

_A2D_QWEN3 = Family(
    name="a2d-qwen3",
    model_types=("a2d-qwen3",),
    classes=("A2DQwen3LMHeadModel", "A2DQwen3Model"),
    attention="full",
    shift=0,
    qk_norm=True,
    qkv_bias=False,
    config_keys=_QWEN_KEYS,
    parameter_names={},
    default_head_dim=128,
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    says_attention=True,
)
_A2D_QWEN2 = replace(
    _A2D_QWEN3,
    name="a2d-qwen2",
    model_types=("a2d-qwen2",),
    classes=("A2DQwen2LMHeadModel", "A2DQwen2Model"),
    qk_norm=False,
    qkv_bias=True,
    default_head_dim=None,
)
_A2D_LLAMA = replace(
    _A2D_QWEN2,
    name="a2d-llama",
    model_types=("a2d-llama",),
    classes=("A2DLlamaLMHeadModel", "A2DLlamaModel"),
    qkv_bias=False,
    end_tokens=("<|eot_id|>", "<|end_of_text|>"),
)


def _block_variant(family: Family) -> Family:
    """The record of checkpoints of the same class that were trained block by block."""
    return replace(family, name=f"{family.name}-block", attention="block_causal")


_ROUTER_NAMES = {
    "model.layers.{i}.mlp.router.weight": "model.layers.{i}.mlp.gate.weight",
    "model.layers.{i}.mlp.router.expert_bias": "model.layers.{i}.mlp.gate.expert_bias",
}
_EXPERT_NAMES = {
    f"model.layers.{{i}}.mlp.experts.{name}_proj.weight": (
        f"model.layers.{{i}}.mlp.experts.{{e}}.{name}_proj.weight"
    )
    for name in ("gate", "up", "down")
} | _ROUTER_NAMES
_LLADA_MOE_NAMES = _EXPERT_NAMES | {
    f"model.layers.{{i}}.mlp.shared_experts.{name}_proj.weight": (
        f"model.layers.{{i}}.shared_expert.{name}_proj.weight"
    )
    for name in ("gate", "up", "down")
}
_LLADA2_NAMES = _EXPERT_NAMES | {
    "model.embed_tokens.weight": "model.word_embeddings.weight",
    "model.layers.{i}.self_attn.qkv_proj.weight": (
        "model.layers.{i}.attention.query_key_value.weight"
    ),
    "model.layers.{i}.self_attn.q_norm.weight": "model.layers.{i}.attention.query_layernorm.weight",
    "model.layers.{i}.self_attn.k_norm.weight": "model.layers.{i}.attention.key_layernorm.weight",
    "model.layers.{i}.self_attn.o_proj.weight": "model.layers.{i}.attention.dense.weight",
}
_ROUTER_KEYS = {"num_experts": "num_experts", "per_token": "num_experts_per_tok"}

_RECORDS = (
    Family(
        name="sdar",
        model_types=("sdar",),
        classes=("SDARForCausalLM", "SDARModel"),
        attention="block_causal",
        shift=0,
        qk_norm=True,
        qkv_bias=False,
        config_keys=_QWEN_KEYS,
        parameter_names={},
        default_head_dim=128,
        end_tokens=("<|im_end|>", "<|endoftext|>"),
    ),
    Family(
        name="llada",
        model_types=("llada", "mmada"),
        classes=("LLaDAModelLM", "MMadaModelLM"),
        attention="full",
        shift=0,
        qk_norm=False,
        qkv_bias=False,
        config_keys=_LLADA_KEYS,
        parameter_names=_LLADA_NAMES,
        default_head_dim=None,
        end_tokens=("<|endoftext|>", "<|eot_id|>"),
    ),
    Family(
        name="dream",
        model_types=("Dream",),
        classes=("DreamModel",),
        attention="full",
        shift=1,
        qk_norm=False,
        qkv_bias=True,
        config_keys=_QWEN_KEYS,
        parameter_names={},
        default_head_dim=None,
        end_tokens=("<|endoftext|>", "<|im_end|>"),
    ),
    _A2D_QWEN3,
    _block_variant(_A2D_QWEN3),
    _A2D_QWEN2,
    _block_variant(_A2D_QWEN2),
    _A2D_LLAMA,
    _block_variant(_A2D_LLAMA),
    Family(
        name="stable-diffcoder",
        model_types=("llama",),
        classes=("StableDiffcoderForCausalLM",),
        attention="block_causal",
        shift=0,
        qk_norm=False,
        qkv_bias=False,
        config_keys=_QWEN_KEYS,
        parameter_names={},
        default_head_dim=None,
        end_tokens=("<[end▁of▁sentence]>",),
        modules=("modeling_stable_diffcoder", "modeling_seed_diffcoder"),
        needs_class=True,
        short_last_block=True,
    ),
    Family(
        name="fast-dllm-v2",
        model_types=("Fast_dLLM_Qwen",),
        classes=("Fast_dLLM_QwenForCausalLM", "Fast_dLLM_QwenModel"),
        attention="block_causal",
        shift=1,
        qk_norm=False,
        qkv_bias=True,
        config_keys=_QWEN_KEYS,
        parameter_names={},
        default_head_dim=None,
        end_tokens=("<|im_end|>", "<|endoftext|>"),
    ),
    Family(
        name="sdar-moe",
        model_types=("sdar_moe",),
        classes=("SDARMoeForCausalLM", "SDARMoeModel"),
        attention="block_causal",
        shift=0,
        qk_norm=True,
        qkv_bias=False,
        config_keys=_QWEN_KEYS,
        parameter_names=_EXPERT_NAMES,
        default_head_dim=128,
        end_tokens=("<|im_end|>", "<|endoftext|>"),
        expert_keys={
            **_ROUTER_KEYS,
            "intermediate_size": "moe_intermediate_size",
            "renormalise": "norm_topk_prob",
        },
        dense_key="mlp_only_layers",
        fixed_keys={"decoder_sparse_step": 1},
        ignored_keys=("output_router_logits", "router_aux_loss_coef"),
    ),
    Family(
        name="llada-moe",
        model_types=("llada",),
        classes=("LLaDAMoEModelLM", "LLaDAMoEModel"),
        attention="full",
        shift=0,
        qk_norm=True,
        qkv_bias=False,
        config_keys={
            **_QWEN_KEYS,
            "intermediate_size": "dense_intermediate_size",
            "rotary_factor": "partial_rotary_factor",
        },
        parameter_names=_LLADA_MOE_NAMES,
        default_head_dim=None,
        end_tokens=("<|role_end|>", "<|endoftext|>"),
        needs_class=True,
        expert_keys={
            **_ROUTER_KEYS,
            "intermediate_size": "expert_intermediate_size",
            "shared_size": "shared_expert_intermediate_size",
        },
        dense_key="moe_layer_freq",
        fixed_keys={
            "qk_layernorm": True,
            "moe_router_score_function": "softmax",
            "moe_router_enable_expert_bias": False,
            "routed_scaling_factor": 1,
            "router_num_group": None,
            "router_topk_group": None,
        },
        ignored_keys=("norm_topk_prob", "output_router_logits", "router_aux_loss_coef"),
    ),
    Family(
        name="llada2",
        model_types=("llada2_moe",),
        classes=("LLaDA2MoeModelLM", "LLaDA2MoeModel"),
        attention="block_causal",
        shift=0,
        qk_norm=True,
        qkv_bias=False,
        config_keys={**_QWEN_KEYS, "rotary_factor": "partial_rotary_factor"},
        parameter_names=_LLADA2_NAMES,
        default_head_dim=None,
        end_tokens=("<|role_end|>", "<|endoftext|>"),
        fused_qkv=True,
        router="grouped_sigmoid",
        expert_bias=True,
        expert_keys={
            **_ROUTER_KEYS,
            "intermediate_size": "moe_intermediate_size",
            "num_shared": "num_shared_experts",
            "num_groups": "n_group",
            "groups_per_token": "topk_group",
            "scaling": "routed_scaling_factor",
        },
        dense_key="first_k_dense_replace",
        fixed_keys={
            "score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "norm_topk_prob": True,
            "use_qk_norm": True,
            "use_rmsnorm": True,
            "use_bias": False,
            "use_qkv_bias": False,
            "norm_head": False,
            "norm_softmax": False,
            "using_split_qkv_in_self_attention": False,
            "router_dtype": "fp32",
        },
        ignored_keys=("output_dropout", "output_router_logits", "rotary_dim"),
    ),
)
FAMILIES: dict[str, Family] = {family.name: family for family in _RECORDS}

# Autoregressive baselines by `model_type`: which of transformers' classes they are (baselines.py).
AUTOREGRESSIVE = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
}


def published_name(name: str, family: Family) -> str:
    """Published name of one of our parameters; of a tensor of all experts with `{e}` where each
    expert's number stands."""
    parts = name.split(".")
    layer = parts[2] if parts[:2] == ["model", "layers"] else None
    generic = name if layer is None else ".".join([*parts[:2], "{i}", *parts[3:]])
    return family.parameter_names.get(generic, generic).replace("{i}", layer or "")
