"""A policy: the transformer, and what lies beside its weights in a checkpoint directory.

The transformer knows neither low-rank adapters (lora.py) nor the order module (order.py); the
policy holds them, and its published config. Parameters keep the names they have in the transformer.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tracerl.errors import ParamsError
from tracerl.models.auxiliary import load_module, save_module
from tracerl.models.families import FAMILIES, Family
from tracerl.models.lora import (
    Adapters,
    adapt_layers,
    adapter_kind,
    draw_adapters,
    merge_layers,
    quantise_layers,
)
from tracerl.models.mlp import Experts
from tracerl.models.order import FOLDER, OrderModule, draw_order_module
from tracerl.models.tokenizer import Tokenizer
from tracerl.models.transformer import (
    Architecture,
    SkipInit,
    Transformer,
    draw_weights,
)
from tracerl.settings.models import ExpertShape, Lora, ModelShape


class Policy(Transformer):
    """A transformer with adapters, an order module and the config it was published with.

    Attributes:
        published_config: config.json as it was read; empty for a new model.
        adapters: the low-rank adapters of its linear layers; None if it has none.
        order: scores the order of commitment; None if it has no order module.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        self.published_config: dict[str, Any] = {}
        self.adapters: Adapters | None = None
        self.order: OrderModule | None = None


def shape_architecture(shape: ModelShape, tokenizer: Tokenizer) -> Architecture:
    """The architecture of a new model: the shape of the params over a tokenizer's vocabulary.

    Raises ParamsError for experts or partial rotary positions of a family that has none.
    """
    family = FAMILIES[shape.family]
    if (shape.experts is not None) != bool(family.dense_key):
        raise ParamsError(
            "the family does not go with experts" if shape.experts else "the family needs experts",
            where="base.model.experts",
            got=shape.family,
            wanted=", ".join(name for name, other in FAMILIES.items() if other.dense_key),
        )
    if shape.rotary_factor is not None and "rotary_factor" not in family.config_keys:
        raise ParamsError(
            "the family rotates whole heads",
            where="base.model.rotary_factor",
            got=shape.rotary_factor,
            wanted="null",
        )
    return Architecture(
        family=shape.family,
        vocab_size=tokenizer.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rope_theta=shape.rope_theta,
        norm_eps=shape.norm_eps,
        tie_embeddings=shape.tie_embeddings,
        mask_id=tokenizer.mask_id,
        rotary_factor=1.0 if shape.rotary_factor is None else shape.rotary_factor,
        experts=None if shape.experts is None else _experts_of(shape.experts, family),
    )


def _experts_of(shape: ExpertShape, family: Family) -> Experts:
    """The experts of the params, as far as the family has what they say."""
    values = {
        "num_groups": (shape.num_groups, 1),
        "groups_per_token": (shape.groups_per_token, 1),
        "scaling": (shape.scaling, 1.0),
        "num_shared": (shape.num_shared, 0),
    }
    has_shared = {"num_shared", "shared_size"} & family.expert_keys.keys()
    for name, (value, plain) in values.items():
        is_there = has_shared if name == "num_shared" else name in family.expert_keys
        if value != plain and not is_there:
            raise ParamsError(
                "the family's experts have no such key",
                where=f"base.model.experts.{name}",
                got=value,
                wanted=plain,
            )
    return Experts(
        num_experts=shape.num_experts,
        per_token=shape.per_token,
        intermediate_size=shape.intermediate_size,
        shared_size=shape.num_shared * shape.intermediate_size,
        dense_layers=tuple(range(shape.num_dense)),
        renormalise="renormalise" in family.expert_keys,
        num_groups=shape.num_groups,
        groups_per_token=shape.groups_per_token,
        scaling=shape.scaling,
    )


def new_model(architecture: Architecture, generator: np.random.Generator) -> Policy:
    """A policy with fresh weights drawn from `generator`: normal, 1/sqrt(fan-in) for matrices, 0.02
    for embeddings; norms are one."""
    policy = Policy(architecture)
    draw_weights(policy, generator)
    return policy


def empty_model(architecture: Architecture) -> Policy:
    """A policy without storage (on "meta"), to be filled or asked for its shapes."""
    with torch.device("meta"), SkipInit():
        return Policy(architecture)


def attach_adapters(policy: Policy, adapters: Adapters) -> None:
    """Freezes the policy and adapts the layers that the settings name. The caller sets the
    adapters' values."""
    adapt_layers(policy, adapters)
    policy.adapters = adapters


def merge_adapters(policy: Policy) -> None:
    """Adds the adapters to the weights and makes all weights trainable; without adapters nothing
    else happens."""
    merge_layers(policy)
    policy.adapters = None


def fit_adapters(
    policy: Policy,
    settings: Lora | None,
    base: Path,
    base_hash: str,
    generator: np.random.Generator,
) -> None:
    """Makes a loaded policy what a round trains: with the round's adapters, or, without `settings`,
    whole.

    Adapters it was loaded with are trained on if they are of the same kind, and merged into the
    weights of a round without any. Raises ParamsError if they are of another kind.

    base: directory of the checkpoint that fresh adapters are made for. base_hash: its policy hash.
    """
    if settings is None:
        merge_adapters(policy)
    elif policy.adapters is None:
        attach_adapters(policy, Adapters(settings=settings, base=base, base_hash=base_hash))
        draw_adapters(policy, generator)
        quantise_layers(policy)
    elif adapter_kind(policy.adapters.settings) != adapter_kind(settings):
        raise ParamsError(
            "the checkpoint's adapters are not of the kind this round trains",
            where="lora",
            got=adapter_kind(settings),
            wanted=adapter_kind(policy.adapters.settings),
            do="use the same, or set lora to null to merge them and train all weights",
        )
    else:
        policy.adapters.settings = settings


def seed_dropout(policy: Policy, seed: int) -> None:
    """Fixes what the adapters' dropout drops from here on."""
    if policy.adapters is not None and policy.adapters.settings.dropout:
        generator = policy.adapters.generator or torch.Generator(policy.device)
        policy.adapters.generator = generator.manual_seed(seed)


def fit_order_module(policy: Policy, generator: np.random.Generator) -> None:
    """Makes the order module trainable; a policy without one gets a fresh one."""
    if policy.order is not None:
        policy.order.requires_grad_(True)
        return
    module = _order_module_for(policy)
    draw_order_module(module, generator)
    policy.order = module


def save_order_module(policy: Policy, checkpoint: Path) -> None:
    """Writes the order module, if there is one, into the folder `order` of a checkpoint
    directory."""
    if policy.order is not None:
        save_module(policy.order, checkpoint / FOLDER)


def load_order_module(policy: Policy, checkpoint: Path) -> None:
    """Gives the policy the order module of a checkpoint directory, if that has one.

    Raises CheckpointError if it does not fit.
    """
    if not (checkpoint / FOLDER).is_dir():
        return
    module = _order_module_for(policy)
    load_module(
        module,
        checkpoint / FOLDER,
        "order module",
        "the module of a policy of this shape",
        "delete the folder `order` to go on without it",
    )
    policy.order = module


def _order_module_for(policy: Policy) -> OrderModule:
    return OrderModule(policy.architecture.hidden_size).to(policy.device, policy.dtype)
