"""AdamW without ZeRO, on master weights of at least float32.

A step of a usual rate is smaller than half the distance between neighbouring numbers of bfloat16,
so that added to the weights themselves it would be lost. Weights that are stored in half precision
therefore have a float32 copy, the master, on which gradients are accumulated and the optimizer
steps; the weights that forward passes use are the masters rounded. Wider weights are their own
masters. The counterpart with ZeRO is training/sharded.py.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

import torch
from torch import nn

from tracerl import distributed
from tracerl.settings.training import Optimizer

Model = TypeVar("Model", bound=nn.Module)

_MOMENTS = ("exp_avg", "exp_avg_sq")


def adamw(parameters: Iterable[nn.Parameter], settings: Optimizer) -> torch.optim.AdamW:
    """The optimizer of every training."""
    return torch.optim.AdamW(
        parameters,
        lr=settings.lr,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        foreach=True,
    )


class MasterWeights(Generic[Model]):
    """The trainable parameters of a model, their masters and AdamW's moments, whole on every
    rank. `model` is what losses are computed with."""

    def __init__(self, model: Model, settings: Optimizer) -> None:
        self.model = model
        self.clip_norm = settings.clip_norm
        self.parameters = trainable_parameters(model)
        self.masters = {name: _make_master(p) for name, p in self.parameters.items()}
        self.optimizer = adamw(self.masters.values(), settings)

    def clear_gradients(self) -> None:
        """Before the first micro-batch of a step."""
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Adds the gradients of a micro-batch to those of the masters."""
        loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in self.parameters.items():
            master = self.masters[name]
            if master is parameter or parameter.grad is None:
                continue
            gradient = parameter.grad.to(master.dtype)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def sum_gradients(self) -> float:
        """Sums the gradients over ranks and clips them; returns their norm before clipping."""
        masters = list(self.masters.values())
        distributed.all_reduce_sum_([m.grad for m in masters if m.grad is not None])
        return float(torch.nn.utils.clip_grad_norm_(masters, self.clip_norm))

    def step(self, rate: float) -> None:
        """One step of AdamW on the masters; the parameters follow."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self._round()

    def state(self) -> dict[str, torch.Tensor]:
        """Masters and moments by name."""
        tensors: dict[str, torch.Tensor] = {}
        for name, master in self.masters.items():
            tensors[f"model.{name}"] = master
        for name, master in self.masters.items():
            for key, value in self.optimizer.state.get(master, {}).items():
                tensors[f"optimizer.{key}.{name}"] = value
        return tensors

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Continues from what `state` returned here or under ZeRO."""
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(tensors[f"model.{name}"])
                # What no loss has reached yet has no moments.
                if f"optimizer.step.{name}" not in tensors:
                    continue
                # The step count stays where AdamW keeps it, in host memory.
                state = {"step": tensors[f"optimizer.step.{name}"]}
                for key in _MOMENTS:
                    moment = tensors[f"optimizer.{key}.{name}"]
                    state[key] = moment.to(master.device, master.dtype)
                self.optimizer.state[master] = state
        self._round()

    @torch.no_grad()
    def _round(self) -> None:
        """Copies the masters into the parameters that are stored in half precision."""
        for name, parameter in self.parameters.items():
            if self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that have a gradient, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _make_master(parameter: nn.Parameter) -> nn.Parameter:
    """A float32 copy of a parameter in half precision; any other parameter itself."""
    if torch.promote_types(parameter.dtype, torch.float32) == parameter.dtype:
        return parameter
    return nn.Parameter(parameter.detach().to(torch.float32, copy=True))
