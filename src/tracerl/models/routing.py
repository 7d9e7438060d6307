"""Figures of a model's routers: how evenly tokens are spread over experts, and how many choices of
experts hang on rounding.

The sampler and the scorer pass the same tokens in other layouts, so their router logits differ by
rounding. Where the last chosen expert is ahead of the next by no more than that, they may choose
different experts: such a tie is no error of either, and it is counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tracerl.models.masks import PAD
from tracerl.models.mlp import Router, Routing
from tracerl.models.transformer import Transformer

TIE = 1e-5  # margins of a float32 router that another order of additions can turn


@dataclass
class RoutingFigures:
    """What routers did in some passes, padding left out. loads: per router int64 [experts], tokens
    of each expert. num_ties, num_choices: choices with a margin of at most TIE, and all."""

    loads: dict[Router, torch.Tensor] = field(default_factory=dict)
    num_ties: int = 0
    num_choices: int = 0

    def count(self, router: Router, routing: Routing, is_real: torch.Tensor) -> None:
        """Adds one pass of a router; is_real: bool [T]."""
        experts = routing.experts[is_real].flatten()
        load = torch.bincount(experts, minlength=router.experts.num_experts)
        self.loads[router] = self.loads.get(router, torch.zeros_like(load)) + load
        self.num_ties += int((routing.margins[is_real] <= TIE).sum())
        self.num_choices += int(is_real.sum())

    def row(self) -> dict[str, float]:
        """For a curve: `expert_load`, the largest share of a layer's tokens that one expert has, as
        a multiple of an even share; `idle_experts`, the share of experts without a token;
        `router_ties`, the share of choices that are ties. Empty without experts."""
        if not self.num_choices:
            return {}
        loads = torch.stack(list(self.loads.values())).double()
        even = loads.mean(1, keepdim=True)
        return {
            "expert_load": float((loads / even).max()),
            "idle_experts": float((loads == 0).double().mean()),
            "router_ties": self.num_ties / self.num_choices,
        }


@contextmanager
def watch_routing(model: Transformer) -> Iterator[RoutingFigures]:
    """Counts what a model's routers do in the passes inside the block."""
    figures = RoutingFigures()
    is_real = torch.ones(0, dtype=torch.bool)

    def note_padding(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        nonlocal is_real
        is_real = (arguments[1].streams != PAD).flatten()

    def count_routing(
        module: torch.nn.Module, arguments: tuple[Any, ...], routing: Routing
    ) -> None:
        assert isinstance(module, Router)
        figures.count(module, routing, is_real)

    routers = [module for module in model.modules() if isinstance(module, Router)]
    handles = [router.register_forward_hook(count_routing) for router in routers]
    if routers:
        handles.append(model.register_forward_pre_hook(note_padding))
    try:
        yield figures
    finally:
        for handle in handles:
            handle.remove()
