"""The MLPs of a layer: SwiGLU, dense or as a mixture of experts.

The experts of a layer are one tensor per projection, [experts, out, in]; published checkpoints have
a tensor for each expert. A token goes through the experts that the router chooses for it and no
others: tokens are sorted by expert, and each projection is one grouped product. No table of
[tokens, experts, width] is made.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from tracerl.models.families import Family


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Shape of the mixtures of a model."""

    num_experts: int
    """experts of a layer"""
    per_token: int
    """experts that each token goes through"""
    intermediate_size: int
    """width inside an expert"""
    shared_size: int
    """width inside the MLP that every token goes through besides; 0 for none"""
    dense_layers: tuple[int, ...]
    """layers with a dense MLP instead, ascending"""
    renormalise: bool = False
    """softmax router: whether a token's weights are divided by their sum"""
    num_groups: int = 1
    """grouped router: groups of neighbouring experts"""
    groups_per_token: int = 1
    """grouped router: groups that a token's experts are chosen from"""
    scaling: float = 1.0
    """grouped router: factor of the weights"""


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The experts of T tokens."""

    experts: torch.Tensor
    """int64 [T, k], ascending"""
    weights: torch.Tensor
    """[T, k], float32 or wider: what each expert's output is multiplied by"""
    margins: torch.Tensor
    """[T]: how much the last chosen expert (or group) is ahead of the first that was not"""


class MLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class ExpertLinear(nn.Module):
    """A linear layer of every expert, weight [experts, out, in], without bias."""

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features))

    def forward(self, input: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Rows [N, out] of rows [N, in], sorted by expert; ends int32 [experts]: where the rows of
        each expert end."""
        return grouped_linear(input, self.weight, ends)


def grouped_linear(rows: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Product of rows [N, in] with the matrix [out, in] of the expert they belong to, [N, out].

    One kernel on CUDA in bfloat16 where torch has it, else one product for each expert in use.
    """
    if rows.is_cuda and rows.dtype == torch.bfloat16 and hasattr(F, "grouped_mm"):
        out: torch.Tensor = F.grouped_mm(rows, weight.transpose(1, 2), offs=ends)
        return out
    parts = []
    start = 0
    # One unbind, whose gradient is one tensor; each indexing would make one of the whole weight.
    matrices = weight.unbind()
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            parts.append(F.linear(rows[start:end], matrices[expert]))
        start = end
    return torch.cat(parts)


class Router(nn.Module):
    """Chooses the experts of each token, in float32 or wider.

    Attributes:
        expert_bias: [experts], added to the scores that experts are chosen by and not to their
            weights; for families that have it. No gradient reaches it.
    """

    expert_bias: torch.Tensor

    def __init__(self, hidden_size: int, experts: Experts, family: Family) -> None:
        super().__init__()
        self.experts = experts
        self.rule = _RULES[family.router]
        self.weight = nn.Parameter(torch.empty(experts.num_experts, hidden_size))
        if family.expert_bias:
            self.register_buffer("expert_bias", torch.zeros(experts.num_experts))

    def forward(self, x: torch.Tensor) -> Routing:
        """The routing of tokens [T, hidden]."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return self.rule(self, F.linear(x.to(wide), self.weight.to(wide)))


def _softmax_rule(router: Router, logits: torch.Tensor) -> Routing:
    """The most probable experts, weighted by their probabilities."""
    experts = router.experts
    probabilities = logits.softmax(-1)
    chosen, margins = _largest(probabilities, experts.per_token)
    weights = probabilities.gather(1, chosen)
    if experts.renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routing(experts=chosen, weights=weights, margins=margins)


def _grouped_sigmoid_rule(router: Router, logits: torch.Tensor) -> Routing:
    """The experts of largest biased score among the groups whose two best experts have the largest
    sum (DeepSeek-V3, section 2.1.2)."""
    experts = router.experts
    scores = logits.sigmoid()
    biased = scores + router.expert_bias.to(scores.dtype)
    in_groups = biased.view(len(biased), experts.num_groups, -1)
    best_two = in_groups.topk(min(2, in_groups.shape[-1]), dim=-1).values.sum(-1)
    groups, group_margins = _largest(best_two, experts.groups_per_token)
    is_open = torch.zeros_like(best_two, dtype=torch.bool).scatter(1, groups, True)
    candidates = in_groups.masked_fill(~is_open.unsqueeze(-1), float("-inf")).view_as(biased)
    chosen, margins = _largest(candidates, experts.per_token)
    weights = scores.gather(1, chosen)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * experts.scaling
    return Routing(experts=chosen, weights=weights, margins=torch.minimum(margins, group_margins))


def _largest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices [T, count] of the largest scores [T, n], ascending, and how much the smallest of them
    is ahead of the largest other, [T] (infinity if there is no other)."""
    values, indices = scores.topk(min(count + 1, scores.shape[1]), dim=-1)
    margins = torch.full_like(values[:, 0], float("inf"))
    if values.shape[1] > count:
        margins = values[:, count - 1] - values[:, count]
    return indices[:, :count].sort(-1).values, margins.detach()


# Family.router -> (router, logits [T, experts]) -> routing.
_RULES: dict[str, Callable[[Router, torch.Tensor], Routing]] = {
    "softmax": _softmax_rule,
    "grouped_sigmoid": _grouped_sigmoid_rule,
}


class ExpertProjections(nn.Module):
    """The three projections of all experts of a layer."""

    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = ExpertLinear(num_experts, hidden_size, intermediate_size)
        self.up_proj = ExpertLinear(num_experts, hidden_size, intermediate_size)
        self.down_proj = ExpertLinear(num_experts, intermediate_size, hidden_size)

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """SwiGLU of rows [N, hidden] that are sorted by expert."""
        inner = F.silu(self.gate_proj(rows, ends)) * self.up_proj(rows, ends)
        out: torch.Tensor = self.down_proj(inner, ends)
        return out


class MixtureOfExperts(nn.Module):
    def __init__(self, hidden_size: int, experts: Experts, family: Family) -> None:
        super().__init__()
        self.shape = experts
        self.router = Router(hidden_size, experts, family)
        self.experts = ExpertProjections(
            experts.num_experts, hidden_size, experts.intermediate_size
        )
        self.shared_experts = MLP(hidden_size, experts.shared_size) if experts.shared_size else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        routing: Routing = self.router(tokens)
        chosen = routing.experts.flatten()
        by_expert = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=self.shape.num_experts)
        ends = counts.cumsum(0).to(torch.int32)
        outputs = self.experts(tokens[by_expert // self.shape.per_token], ends)
        place = torch.empty_like(by_expert)
        place[by_expert] = torch.arange(len(place), device=place.device)
        outputs = outputs[place].view(len(tokens), self.shape.per_token, -1)
        out = (outputs * routing.weights.unsqueeze(-1).to(x.dtype)).sum(1).view_as(x)
        return out if self.shared_experts is None else out + self.shared_experts(x)
