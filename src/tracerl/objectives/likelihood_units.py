"""Units: what a method estimates a likelihood of, and what each weighs in the loss.

A unit is a scored token of a view, a token with all its views, or a whole response
(`unit` of the method's record in settings/methods.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from tracerl.objectives.losses import token_weights
from tracerl.objectives.plans import PREDICTED, Plan
from tracerl.objectives.views import Views
from tracerl.settings.methods import Method
from tracerl.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class Units:
    """The U units of some views with T predictions. The estimate of unit u is the sum of
    coefficient x log p over its predictions.

    Example: one response of 2 tokens in two views, the first predicts both, the second the second.
    Unit "prediction" makes three units, unit [0 1 2], coefficient [1 1 1], source [0 0 0], token
    [0 1 1]. Unit "token" makes two, unit [0 1 1]; unit "response" makes one, unit [0 0 0],
    coefficient the views' weights / 2, size [2].
    """

    unit: torch.Tensor
    """int64 [T]: unit of each prediction."""
    coefficient: torch.Tensor
    """float32 [T]: factor of each prediction's log-probability."""
    source: torch.Tensor
    """int64 [U]: response that each unit belongs to."""
    token: torch.Tensor
    """int64 [U]: the token of the response whose advantage the unit has; 0 for a response."""
    group: torch.Tensor
    """int64 [U]: the units that reduction "step" averages."""
    weight: torch.Tensor
    """float32 [U]: weight in the loss before any reduction."""
    size: torch.Tensor
    """float32 [U]: tokens that each unit stands for."""

    def to(self, device: torch.device) -> "Units":
        """The same units on another device."""
        tensors = {field.name: getattr(self, field.name).to(device) for field in fields(self)}
        return Units(**tensors)


def units_of(method: Method, views: Views, lengths: list[int]) -> Units:
    """The units of a method on some views. lengths: trainable tokens of each response."""
    if method.unit == "prediction":
        return _prediction_units(views)
    if method.unit == "token":
        return _token_units(views)
    return _response_units(views, lengths)


def _prediction_units(views: Views) -> Units:
    ones = torch.ones(len(views.row))
    return Units(
        unit=torch.arange(len(ones)),
        coefficient=ones,
        source=views.source,
        token=views.token,
        group=views.group,
        weight=views.weight,
        size=ones,
    )


def _token_units(views: Views) -> Units:
    tokens = torch.stack([views.source, views.token])
    pairs, unit = torch.unique(tokens, dim=1, return_inverse=True)
    ones = torch.ones(pairs.shape[1])
    return Units(
        unit=unit,
        coefficient=views.weight,
        source=pairs[0],
        token=pairs[1],
        group=pairs[0],
        weight=ones,
        size=ones,
    )


def _response_units(views: Views, lengths: list[int]) -> Units:
    responses = torch.arange(len(lengths))
    size = torch.tensor(lengths, dtype=torch.float32)
    return Units(
        unit=views.source,
        coefficient=views.weight / size[views.source],
        source=responses,
        token=torch.zeros_like(responses),
        group=responses,
        weight=torch.ones_like(size),
        size=size,
    )


def num_units(method: Method, plan: Plan, trajectory: Trajectory) -> float:
    """What one response adds to the denominator of reduction "token": the sum of weight x size over
    its units."""
    is_predicted = plan.states == PREDICTED
    if method.unit == "prediction":
        return float(plan.weights[is_predicted].sum(dtype=np.float64))
    if method.unit == "token":
        return float(is_predicted.any(0).sum())
    return float(trajectory.num_tokens)


def unit_weights(
    reduction: str, units: Units, divisor: float, totals: Sequence[float] | None = None
) -> torch.Tensor:
    """Weight of each unit in the loss, float32 [U].

    divisor: `losses.denominator`. totals: summed weight of each response's units, where some of
    them are elsewhere (a response that is split over passes); None where all are here.
    """
    if reduction == "response":
        if totals is None:
            num_responses = int(units.source.max()) + 1 if len(units.source) else 0
            total = torch.zeros(num_responses).index_add(0, units.source, units.weight)
        else:
            total = torch.tensor(totals, dtype=torch.float32)
        return units.weight / (total[units.source] * divisor)
    weights = token_weights(reduction, units.group, divisor) * units.weight
    return weights * units.size if reduction in ("token", "fixed") else weights
