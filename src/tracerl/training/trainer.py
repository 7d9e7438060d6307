"""The one optimisation loop: AdamW, a rate schedule, and optimizer steps over micro-batches with
globally counted denominators.

SFT, the policy and the value model run on it. All of its state, float32 master weights and moments
and step count, is plain tensors and one number, so that a resumed run continues bit for bit. Of
several ranks each brings its micro-batches, as many as the others, and gradients are summed. The
states are whole on every rank (master_weights.py), or under ZeRO (launch.zero 1 to 3) kept in parts
by DeepSpeed (sharded.py).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from tracerl import distributed
from tracerl.errors import ParamsError, TrainingError
from tracerl.models.finite import first_nonfinite_weight
from tracerl.settings.models import Launch
from tracerl.settings.training import Optimizer
from tracerl.training.master_weights import MasterWeights, Model
from tracerl.training.sharded import Sharded

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
    Raises ParamsError for weights of float16.
    """

    def __init__(
        self, model: Model, settings: Optimizer, total_steps: int, launch: Launch | None = None
    ) -> None:
        check_trainable(next(model.parameters()).dtype)
        self.settings = settings
        self.total_steps = total_steps
        self.num_steps = 0
        self.sharded: Sharded[Model] | None = None
        self.whole: MasterWeights[Model] | None = None
        if launch is not None and launch.zero:
            self.sharded = Sharded(model, settings, launch)
            self.model = self.sharded.model
        else:
            self.whole = MasterWeights(model, settings)
            self.model = model

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
        if self.whole is not None:
            self.whole.clear_gradients()
        totals: dict[str, float] = {"loss": 0.0}
        for number, micro_batch in enumerate(micro_batches, start=1):
            loss, metrics = loss_fn(micro_batch)
            value = float(loss.detach())
            self._check(value, "loss", f", micro-batch {number} of {len(micro_batches)}")
            self._states.backward(loss, last=number == len(micro_batches))
            totals["loss"] += value
            for name, metric in metrics.items():
                totals[name] = totals.get(name, 0.0) + metric
        norm = self._apply(rate)
        self.num_steps += 1
        sums = distributed.all_reduce_sum(totals)
        return StepStats(loss=sums.pop("loss"), grad_norm=norm, lr=rate, metrics=sums)

    @property
    def _states(self) -> "MasterWeights[Model] | Sharded[Model]":
        """What holds weights and moments."""
        states = self.whole or self.sharded
        assert states is not None
        return states

    def _apply(self, rate: float) -> float:
        """AdamW on the gradients summed over ranks; returns their norm before clipping."""
        if self.sharded is not None:
            norm = self.sharded.step(rate)
            self._check(norm, "gradient norm")
            return norm
        assert self.whole is not None
        norm = self.whole.sum_gradients()
        self._check(norm, "gradient norm")
        self.whole.step(rate)
        return norm

    def state(self) -> dict[str, torch.Tensor]:
        """Master weights, moments and step count, by name. All ranks must call it."""
        return {**self._states.state(), "num_steps": torch.tensor(self.num_steps)}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Continues from what `state` returned, under any number of ranks and any ZeRO stage."""
        self.num_steps = int(tensors["num_steps"])
        if self.sharded is not None:
            self.sharded.load_state(tensors, self.num_steps)
        elif self.whole is not None:
            self.whole.load_state(tensors)

    def _check(self, value: float, name: str, micro_batch: str = "") -> None:
        """Raises TrainingError if a loss or a norm is not finite. micro_batch: which one, in
        words."""
        if math.isfinite(value):
            return
        weight = first_nonfinite_weight(self.model)
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        state = f"not finite: {weight}" if weight else "all finite"
        do = "lower optimizer.lr or clip_norm"
        if weight is None and dtype == "bfloat16":
            do += ", or set compute.dtype to float32 to see whether it is rounding"
        raise TrainingError(
            f"the {name} is not finite",
            where=f"optimizer step {self.num_steps + 1}{micro_batch}",
            got=f"{value}; weights of {dtype}, {state}",
            wanted="a finite number",
            do=(
                f"{do}; the last saved state is untouched, so the same command resumes before this "
                "step"
            ),
        )


def check_trainable(dtype: torch.dtype) -> None:
    """Raises ParamsError for float16, with ZeRO and without: its gradients below 6e-8 are zero
    without a loss scale, which this training has not. Sampling in float16 is no problem."""
    if dtype == torch.float16:
        raise ParamsError(
            "float16 cannot be trained: without a loss scale its small gradients become zero",
            where="compute.dtype",
            got="float16",
            wanted="bfloat16 or float32",
            do="set compute.dtype to bfloat16: it has the range of float32",
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
