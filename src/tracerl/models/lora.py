"""Low-rank adapters (LoRA) in the file format of PEFT, for SFT, RL, evaluation and export.

An adapted linear layer computes `W x + (alpha / rank) B A drop(x)`; A is drawn, B starts at zero,
and W is frozen. The layer keeps the name of its weight, so that everything that reads a model by
its parameters' names goes on working; `adapter_state` gives the adapters the names that PEFT gives
them on the published model. Dropout draws from a generator of its own that training seeds at every
step, so that a resumed run drops what the killed one would have dropped; RL runs in evaluation mode
and drops nothing.

The peft package itself is not used: it wraps or renames the layers it adapts, knows LLaDA's names
only through remote code, and draws dropout from the global state. What is shared is the format, and
a test reads each other's files.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tracerl.errors import CheckpointError, ParamsError
from tracerl.models.families import published_name
from tracerl.models.mlp import ExpertLinear
from tracerl.models.nf4 import PackedWeight
from tracerl.models.transformer import Transformer
from tracerl.models.weights import check_tensor, published_parts
from tracerl.settings.models import Lora

_PREFIX = "base_model.model."
# Key of adapter_config.json that says how the base was kept in training. Written by us; PEFT, which
# leaves that to the caller, ignores it.
QUANTISE_KEY = "tracerl_quantise"
# Settings of adapter_config.json that are known in one value only; null or an empty collection is
# as good.
_SUPPORTED: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "fan_in_fan_out": False,
    "lora_bias": False,
    "modules_to_save": None,
    "rank_pattern": None,
    "alpha_pattern": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "layer_replication": None,
    "alora_invocation_tokens": None,
}
# Ways to start adapters that take something out of the base's weights: added to the base as it was,
# they are wrong.
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq")


@dataclass(kw_only=True)
class Adapters:
    """What all adapters of a model share. Not frozen: rounds replace settings and generator."""

    settings: Lora
    """rank, alpha, dropout and adapted layers"""
    base: Path
    """directory of the checkpoint they were made for"""
    base_hash: str
    """policy hash of that checkpoint"""
    generator: torch.Generator | None = None
    """what dropout draws from, once `policy.seed_dropout` has been called"""


def drop_inputs(x: torch.Tensor, adapters: Adapters) -> torch.Tensor:
    """x with entries dropped at the adapters' rate and the others scaled up, drawn from the
    adapters' generator."""
    rate = adapters.settings.dropout
    draws = torch.rand(x.shape, device=x.device, generator=adapters.generator)
    return x * (draws >= rate) / (1 - rate)


class LoraLinear(nn.Linear):
    """A frozen linear layer and its adapter: lora_A [rank, in], lora_B [out, rank]."""

    def __init__(self, frozen: nn.Linear, adapters: Adapters) -> None:
        nn.Module.__init__(self)
        device = frozen.weight.device
        dtype = frozen.weight.dtype
        rank = adapters.settings.rank
        self.in_features = frozen.in_features
        self.out_features = frozen.out_features
        self.training = frozen.training
        self.weight = frozen.weight
        self.bias = frozen.bias
        self.adapters = adapters
        self.scale = adapters.settings.alpha / rank
        self.packed: PackedWeight | None = None
        self.lora_A = nn.Linear(self.in_features, rank, bias=False, device=device, dtype=dtype)
        self.lora_B = nn.Linear(rank, self.out_features, bias=False, device=device, dtype=dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        is_dropping = self.training and self.adapters.settings.dropout > 0
        inputs = drop_inputs(input, self.adapters) if is_dropping else input
        out: torch.Tensor = self._frozen(input) + self.scale * self.lora_B(self.lora_A(inputs))
        return out

    def _frozen(self, input: torch.Tensor) -> torch.Tensor:
        """The layer without its adapter."""
        if self.packed is None:
            return super().forward(input)
        return self.packed.product(input, bias=self.bias)

    def quantise(self) -> None:
        """Keeps the frozen weight in 4 bits."""
        self.packed = PackedWeight(self.weight)
        self.register_parameter("weight", None)

    def merge(self) -> nn.Linear:
        """The layer with its adapter added to the weight, in float32 or wider before it is
        rounded; a weight in 4 bits becomes one of the adapters' type."""
        dtype = self.lora_A.weight.dtype
        weight = self.weight.detach() if self.packed is None else self.packed.matrix(dtype)
        wide = torch.promote_types(weight.dtype, torch.float32)
        change = self.scale * (
            self.lora_B.weight.detach().to(wide) @ self.lora_A.weight.detach().to(wide)
        )
        plain = nn.Linear(
            self.in_features, self.out_features, bias=self.bias is not None, device="meta"
        )
        plain.weight = nn.Parameter((weight.to(wide) + change).to(weight.dtype))
        plain.bias = self.bias
        return plain


class LoraExpertLinear(ExpertLinear):
    """A frozen linear layer of every expert and an adapter for each: lora_A [experts, rank, in],
    lora_B [experts, out, rank]."""

    def __init__(self, frozen: ExpertLinear, adapters: Adapters) -> None:
        nn.Module.__init__(self)
        device = frozen.weight.device
        dtype = frozen.weight.dtype
        rank = adapters.settings.rank
        count = len(frozen.weight)
        self.in_features = frozen.in_features
        self.out_features = frozen.out_features
        self.training = frozen.training
        self.weight = frozen.weight
        self.adapters = adapters
        self.scale = adapters.settings.alpha / rank
        self.packed: PackedWeight | None = None
        with torch.device(device):
            self.lora_A = ExpertLinear(count, self.in_features, rank).to(dtype)
            self.lora_B = ExpertLinear(count, rank, self.out_features).to(dtype)

    def forward(self, input: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        is_dropping = self.training and self.adapters.settings.dropout > 0
        inputs = drop_inputs(input, self.adapters) if is_dropping else input
        change = self.lora_B(self.lora_A(inputs, ends), ends)
        out: torch.Tensor = self._frozen(input, ends) + self.scale * change
        return out

    def _frozen(self, input: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """The layer without its adapters."""
        if self.packed is None:
            return super().forward(input, ends)
        return self.packed.grouped_product(input, ends)

    def quantise(self) -> None:
        """Keeps the frozen weight in 4 bits."""
        self.packed = PackedWeight(self.weight)
        self.register_parameter("weight", None)

    def merge(self) -> ExpertLinear:
        """The layer with its adapters added to the weight, expert by expert, in float32 or wider
        before it is rounded; a weight in 4 bits becomes one of the adapters' type."""
        dtype = self.lora_A.weight.dtype
        wide = torch.promote_types(dtype, torch.float32)
        count = len(self.lora_A.weight)
        device = self.lora_A.weight.device
        shape = (count, self.out_features, self.in_features)
        merged = torch.empty(shape, dtype=dtype, device=device)
        for expert, (a, b) in enumerate(zip(self.lora_A.weight, self.lora_B.weight, strict=True)):
            frozen = (
                self.weight[expert].detach()
                if self.packed is None
                else self.packed.matrix(wide, expert)
            )
            change = self.scale * (b.detach().to(wide) @ a.detach().to(wide))
            merged[expert] = (frozen.to(wide) + change).to(dtype)
        with torch.device("meta"):
            plain = ExpertLinear(count, self.in_features, self.out_features)
        plain.weight = nn.Parameter(merged)
        return plain


AnyLinear = nn.Linear | ExpertLinear


def adapt_layers(model: Transformer, adapters: Adapters) -> None:
    """Freezes the model and replaces the layers that the settings name by adapted ones. Raises
    ParamsError for a name that no layer of the model has."""
    model.requires_grad_(False)
    layers = list(_linear_layers(model))
    names = {path.rpartition(".")[2] for path, _ in layers}
    missing = [name for name in adapters.settings.targets if name not in names]
    if missing:
        raise ParamsError(
            "the model has no layers of these names",
            where="lora.targets",
            got=missing,
            wanted=f"of {sorted(names)}",
        )
    for path, layer in layers:
        if path.rpartition(".")[2] not in adapters.settings.targets:
            continue
        if isinstance(layer, ExpertLinear):
            model.set_submodule(path, LoraExpertLinear(layer, adapters))
        else:
            model.set_submodule(path, LoraLinear(layer, adapters))


def quantise_layers(model: Transformer) -> None:
    """Keeps the frozen weights of adapted layers in 4 bits, where the adapters' settings say so."""
    for _, layer in list(_linear_layers(model)):
        if isinstance(layer, LoraLinear | LoraExpertLinear) and layer.adapters.settings.quantise:
            layer.quantise()


def merge_layers(model: Transformer) -> None:
    """Adds adapters to the weights of their layers and makes all weights trainable."""
    for path, layer in list(_linear_layers(model)):
        if isinstance(layer, LoraLinear | LoraExpertLinear):
            model.set_submodule(path, layer.merge())
    model.requires_grad_(True)


def adapter_state(model: Transformer) -> dict[str, torch.Tensor]:
    """The adapters' tensors under the names that PEFT gives them on the published model."""
    state = {}
    for name, tensor in model.state_dict().items():
        if ".lora_" in name:
            for published, part in _peft_parts(name, tensor, model):
                state[published] = part.detach().contiguous()
    return state


def load_adapter_state(model: Transformer, tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Copies a PEFT file's tensors into the model's adapters. Raises CheckpointError for what is
    missing, left over or misshapen."""
    wanted: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            wanted.update(_peft_parts(name, parameter.detach(), model))
    for kind, names in (
        ("are missing", wanted.keys() - tensors.keys()),
        ("are left over", tensors.keys() - wanted.keys()),
    ):
        if names:
            raise CheckpointError(
                f"tensors of the adapter {kind}",
                where=where,
                got=sorted(names)[:4],
                wanted=f"{len(wanted)} tensors",
            )
    with torch.no_grad():
        for name, target in wanted.items():
            check_tensor(tensors[name], target, f"{where}: {name}")
            target.copy_(tensors[name])


def adapter_config(model: Transformer, settings: Lora, base: str) -> dict[str, Any]:
    """adapter_config.json, as PEFT reads it. base: path of the base, written as it is."""
    quantised = {} if settings.quantise is None else {QUANTISE_KEY: settings.quantise}
    return quantised | {
        "base_model_name_or_path": base,
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "peft_type": "LORA",
        "r": settings.rank,
        "target_modules": _peft_targets(model),
        "task_type": None,
    }


def settings_of(
    config: Mapping[str, Any], names: list[str], model: Transformer, where: str
) -> Lora:
    """The settings of a PEFT adapter: rank, alpha and dropout from its config, targets from the
    names of its tensors.

    Raises CheckpointError for kinds of adapters that are not read.
    """
    unsupported = {}
    for key, plain in _SUPPORTED.items():
        if config.get(key) and config[key] != plain:
            unsupported[key] = config[key]
    start = "init_lora_weights"
    if str(config.get(start)).startswith(_CHANGE_THE_BASE):
        unsupported[start] = config[start]
    if unsupported:
        raise CheckpointError(
            "the adapter is of a kind that is not read",
            where=where,
            got=unsupported,
            wanted={key: _SUPPORTED.get(key, True) for key in unsupported},
        )
    by_name = {}
    for module, layer in _linear_layers(model):
        for published, _ in published_parts(f"{module}.weight", layer.weight, model.family):
            by_name[f"{_PREFIX}{published}"] = module
    targets = set()
    for name in names:
        path = by_name.get(name.replace(".lora_A.", ".").replace(".lora_B.", "."))
        if path is None:
            raise CheckpointError(
                "the adapter changes what this model does not have", where=where, got=name
            )
        targets.add(path.split(".")[-1])
    try:
        values = {
            "rank": config["r"],
            "alpha": config["lora_alpha"],
            "dropout": config.get("lora_dropout", 0.0),
            "targets": sorted(targets),
            "quantise": config.get(QUANTISE_KEY),
        }
        # JSON's rules: a whole number may be a float.
        return Lora.model_validate_json(json.dumps(values))
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            "the adapter's config is damaged",
            where=where,
            got=error,
            wanted="r, lora_alpha, lora_dropout",
        ) from error


def adapter_kind(settings: Lora) -> tuple[int, float, list[str], str | None]:
    return settings.rank, settings.alpha, sorted(settings.targets), settings.quantise


def draw_adapters(model: Transformer, generator: np.random.Generator) -> None:
    """Fresh adapters: A uniform in +-1/sqrt(fan-in), as PEFT draws it, B zero."""
    with torch.no_grad():
        for _, layer in _linear_layers(model):
            if isinstance(layer, LoraLinear | LoraExpertLinear):
                bound = layer.in_features**-0.5
                drawn = generator.uniform(-bound, bound, tuple(layer.lora_A.weight.shape))
                layer.lora_A.weight.copy_(torch.from_numpy(drawn))
                layer.lora_B.weight.zero_()


def _linear_layers(model: Transformer) -> Iterator[tuple[str, AnyLinear]]:
    """(dotted path, layer) of every linear layer inside the transformer's layers, adapted or not,
    those of all experts as one."""
    for path, layer in model.named_modules():
        if (
            isinstance(layer, AnyLinear)
            and path.startswith("model.layers.")
            and ".lora_" not in path
        ):
            yield path, layer


def _peft_parts(
    name: str, tensor: torch.Tensor, model: Transformer
) -> Iterator[tuple[str, torch.Tensor]]:
    """PEFT's names and tensors of one of our adapters' tensors: itself, or one for each expert."""
    path, kind = name.removesuffix(".weight").rsplit(".", 1)
    for published, part in published_parts(f"{path}.weight", tensor, model.family):
        yield f"{_PREFIX}{published.removesuffix('.weight')}.{kind}.weight", part


def _peft_targets(model: Transformer) -> list[str]:
    """Published names of the adapted modules: the last part where no other module ends so (LLaDA's
    head does), else the whole path."""
    layers = dict(_linear_layers(model))
    kinds = LoraLinear | LoraExpertLinear
    adapted = {path for path, layer in layers.items() if isinstance(layer, kinds)}
    paths = {}
    for path in (*layers, "lm_head"):
        paths[path] = published_name(f"{path}.weight", model.family).removesuffix(".weight")
    others = set()
    whole = []
    for path, published in paths.items():
        if path in adapted:
            whole.append(published)
        else:
            others.add(published.split(".")[-1])
    targets = set()
    for published in whole:
        last = published.split(".")[-1]
        targets.add(published if last in others else last)
    return sorted(targets)
