"""The one optimisation loop: AdamW, a rate schedule, and optimizer steps over micro-batches with
globally counted denominators.

SFT, the policy and the value model run on it. All of its state, weights and moments and step count,
is plain tensors and one number, so that a resumed run continues bit for bit. Of several ranks each
brings its micro-batches, as many as the others, and gradients are summed; under ZeRO (launch.zero 1
to 3) DeepSpeed keeps the states in parts, see sharded.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from tracerl import distributed
from tracerl.errors import TrainingError
from tracerl.settings.models import Launch
from tracerl.settings.training import Optimizer
from tracerl.training.sharded import Model, Sharded, adamw

MicroBatch = TypeVar("MicroBatch")


@dataclass(frozen=True, kw_only=True)
class StepStats:
    """What came of one optimizer step."""

    loss: float
    """Of the whole optimizer step, over all ranks."""
    grad_norm: float
    """Norm of the gradients before clipping."""
    lr: float
    """Learning rate of this step."""
    metrics: dict[str, float]
    """Sums over all micro-batches of all ranks."""


class Trainer(Generic[Model]):
    """A model with its optimizer; `model` is what losses are computed with, see `sync_model`.

    `total_steps` is where the rate schedule ends. launch: how states are sharded, if they are.
    """

    def __init__(
        self, model: Model, settings: Optimizer, total_steps: int, launch: Launch | None = None
    ) -> None:
        self.settings = settings
        self.total_steps = total_steps
        self.num_steps = 0
        self.sharded = None
        if launch is not None and launch.zero:
            self.sharded = Sharded(model, settings, launch)
        self.model = model if self.sharded is None else self.sharded.model
        self.parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self.optimizer = adamw(self.parameters.values(), settings)

    def sync_model(self) -> None:
        """Copies ZeRO-3 shards back into the full model that is used for sampling and saving. All
        ranks must call it."""
        if self.sharded is not None:
            self.sharded.sync_model()

    def step(
        self,
        micro_batches: Sequence[MicroBatch],
        loss_fn: Callable[[MicroBatch], tuple[torch.Tensor, dict[str, float]]],
    ) -> StepStats:
        """One optimizer step on the sum of the micro-batches' losses over all ranks; each is run
        and back-propagated in turn.

        loss_fn: the loss of a micro-batch, a scalar with a gradient, and metrics that are summed,
        with the same names for all. Raises TrainingError if the loss or the gradient norm is not
        finite: with the weights untouched, except that DeepSpeed has made its step when it knows
        the norm.
        """
        rate = rate_at(self.num_steps, self.total_steps, self.settings)
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, float] = {"loss": 0.0}
        for number, micro_batch in enumerate(micro_batches, start=1):
            loss, metrics = loss_fn(micro_batch)
            value = float(loss.detach())
            self._check(value, "loss")
            if self.sharded is None:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                self.sharded.backward(loss, last=number == len(micro_batches))
            totals["loss"] += value
            for name, metric in metrics.items():
                totals[name] = totals.get(name, 0.0) + metric
        norm = self._apply(rate) if self.sharded is None else self.sharded.step(rate)
        self._check(norm, "gradient norm")
        self.num_steps += 1
        sums = distributed.all_reduce_sum(totals)
        return StepStats(loss=sums.pop("loss"), grad_norm=norm, lr=rate, metrics=sums)

    def _apply(self, rate: float) -> float:
        """AdamW on the gradients summed over ranks; returns their norm before clipping."""
        distributed.all_reduce_sum_(
            [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        )
        norm = float(
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.clip_norm)
        )
        self._check(norm, "gradient norm")
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return norm

    def state(self) -> dict[str, torch.Tensor]:
        """Trained weights, moments and step count, by name. All ranks must call it."""
        return {
            **(self._state() if self.sharded is None else self.sharded.state()),
            "num_steps": torch.tensor(self.num_steps),
        }

    def _state(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {
            f"model.{name}": parameter for name, parameter in self.parameters.items()
        }
        for name, parameter in self.parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{key}.{name}"] = value
        return tensors

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Continues from what `state` returned, under any number of ranks and any ZeRO stage."""
        self.num_steps = int(tensors["num_steps"])
        if self.sharded is not None:
            self.sharded.load_state(tensors, self.num_steps)
            return
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[f"model.{name}"])
                if (
                    f"optimizer.step.{name}" in tensors
                ):  # what no loss has reached yet has no moments
                    keys = ("step", "exp_avg", "exp_avg_sq")
                    state = {key: tensors[f"optimizer.{key}.{name}"] for key in keys}
                    # The step count stays where AdamW keeps it, in host memory.
                    self.optimizer.state[parameter] = {
                        key: v if key == "step" else v.to(parameter.device, parameter.dtype)
                        for key, v in state.items()
                    }

    def _check(self, value: float, name: str) -> None:
        if not math.isfinite(value):
            raise TrainingError(
                f"the {name} is not finite",
                where=f"optimizer step {self.num_steps + 1}",
                got=value,
                wanted="a finite number",
                do="lower optimizer.lr; the last saved state is untouched, so the same command resumes before this step",
            )


def rate_at(step: int, total_steps: int, settings: Optimizer) -> float:
    """Learning rate of a 0-based step: linear warm-up, constant, then a linear fall to zero over
    the last share `decay` of the steps."""
    rise = min(1.0, (step + 1) / settings.warmup) if settings.warmup else 1.0
    fall_steps = settings.decay * total_steps
    fall = min(1.0, (total_steps - step) / fall_steps) if fall_steps else 1.0
    return settings.lr * rise * fall


def pack_padded(lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Indices packed into micro-batches of rows of similar length, each at most `max_tokens` after
    padding (or one row)."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i), reverse=True):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def pack_concatenated(lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Indices in micro-batches of at most `max_tokens` tokens in all (or one index), for examples
    that share rows."""
    batches: list[list[int]] = []
    total = 0
    for index, length in enumerate(lengths):
        if batches and total + length <= max_tokens:
            batches[-1].append(index)
            total += length
        else:
            batches.append([index])
            total = length
    return batches
