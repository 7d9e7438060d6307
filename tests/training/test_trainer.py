"""The one optimisation loop: its rates, AdamW by hand, and master weights that take every step
whatever the weights are stored in."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from tracerl.errors import ParamsError, TrainingError
from tracerl.settings.models import Launch
from tracerl.settings.training import Optimizer
from tracerl.training.trainer import StepStats, Trainer, rate_at


def optimizer(**changes: Any) -> Optimizer:
    plain: dict[str, Any] = {
        "lr": 1.0,
        "betas": (0.9, 0.99),
        "weight_decay": 0.0,
        "clip_norm": 1e30,
        "warmup": 0,
        "decay": 0.0,
    }
    return Optimizer(**{**plain, **changes})


class Vector(nn.Module):
    """Two weights whose gradient a test chooses."""

    def __init__(self, values: list[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values, dtype=dtype))


def step(trainer: Trainer[Vector], *gradients: list[float]) -> StepStats:
    """One optimizer step with a micro-batch for each gradient."""
    weight = trainer.model.weight
    parts = [torch.tensor(gradient, dtype=weight.dtype) for gradient in gradients]
    return trainer.step(parts, lambda part: ((weight * part).sum(), {}))


# The schedule


def test_the_rate_rises_from_its_first_share_to_the_whole_at_the_end_of_warm_up():
    settings = optimizer(lr=8.0, warmup=4)
    assert [rate_at(i, 10, settings) for i in range(6)] == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]


def test_the_rate_falls_over_the_last_share_of_the_steps_and_the_last_step_still_moves():
    settings = optimizer(lr=8.0, decay=0.4)
    assert [rate_at(i, 10, settings) for i in range(5, 10)] == [8.0, 8.0, 6.0, 4.0, 2.0]


def test_a_step_uses_the_rate_of_its_number():
    trainer = Trainer(Vector([1.0, 1.0]), optimizer(lr=0.5, warmup=2, decay=0.5), 4)
    assert [step(trainer, [1.0, 1.0]).lr for _ in range(4)] == [0.25, 0.5, 0.5, 0.25]


# AdamW


def test_two_steps_of_adamw_with_decay_and_clipping_by_hand():
    """Gradients (3, 4), clipped to norm 1, then (0.3, 0.4), which is short enough."""
    trainer = Trainer(
        Vector([2.0, -1.0], torch.float64),
        optimizer(lr=0.1, weight_decay=0.5, clip_norm=1.0, betas=(0.5, 0.75)),
        10,
    )
    weights = [2.0, -1.0]
    norms = [step(trainer, [3.0, 4.0]).grad_norm, step(trainer, [0.3, 0.4]).grad_norm]
    assert norms == pytest.approx([5.0, 0.5])
    for i, clipped in enumerate(([0.6, 0.3], [0.8, 0.4])):
        first, second = 0.0, 0.0
        for number, gradient in enumerate(clipped, start=1):
            first = 0.5 * first + 0.5 * gradient
            second = 0.75 * second + 0.25 * gradient**2
            direction = (first / (1 - 0.5**number)) / math.sqrt(second / (1 - 0.75**number))
            weights[i] = weights[i] * (1 - 0.1 * 0.5) - 0.1 * direction
    assert trainer.model.weight.tolist() == pytest.approx(weights, rel=1e-6)


def test_losses_and_metrics_are_sums_over_micro_batches():
    trainer = Trainer(Vector([2.0, 3.0]), optimizer(), 10)
    weight = trainer.model.weight
    stats = trainer.step(
        [1.0, 2.0], lambda scale: ((scale * weight).sum(), {"scale": scale, "one": 1.0})
    )
    assert stats.loss == 15.0
    assert stats.metrics == {"scale": 3.0, "one": 2.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_or_gradient_that_is_not_finite_leaves_the_weights_as_they_were(dtype):
    trainer = Trainer(Vector([2.0, 3.0], dtype), optimizer(), 10)
    weight = trainer.model.weight
    name = str(dtype).removeprefix("torch.")
    words = (
        rf"loss is not finite(?s:.*)step 1, micro-batch 2 of 2(?s:.*)inf; weights of {name}, all"
    )
    with pytest.raises(TrainingError, match=words):
        trainer.step([1.0, float("inf")], lambda scale: (weight.sum() * scale, {}))
    with pytest.raises(TrainingError, match="gradient norm is not finite") as raised:
        trainer.step([weight.detach()], lambda start: ((weight - start).sum().sqrt(), {}))
    assert ("set compute.dtype to float32" in str(raised.value)) == (dtype == torch.bfloat16)
    assert weight.tolist() == [2.0, 3.0]


def test_a_loss_that_weights_made_infinite_names_them():
    trainer = Trainer(Vector([float("nan"), 3.0]), optimizer(), 10)
    with pytest.raises(TrainingError, match="not finite: weight"):
        step(trainer, [1.0, 1.0])


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_float16_is_refused_with_zero_and_without(zero):
    """A gradient of 1e-8 is zero in float16 and would teach nothing."""
    launch = Launch(ranks=1, hosts=[], port=29400, zero=zero, offload=False)
    assert float(torch.tensor(1e-8).to(torch.float16)) == 0.0
    with pytest.raises(ParamsError, match=r"float16 cannot be trained(?s:.*)bfloat16"):
        Trainer(Vector([1.0, 2.0], torch.float16), optimizer(), 10, launch)


# Master weights

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_with_constant_gradients_k_steps_of_rate_r_move_the_master_by_k_r(dtype):
    """A hundred steps of 1e-6, as RL takes them, from weights whose neighbours in bfloat16 are
    0.004 and more away."""
    trainer = Trainer(Vector([1.0, -0.75], dtype), optimizer(lr=1e-6), 100)
    for _ in range(100):
        step(trainer, [1.0, -2.0])
    master = trainer.state()["model.weight"]
    assert master.dtype == torch.promote_types(dtype, torch.float32)
    moved = (master.double() - torch.tensor([1.0, -0.75], dtype=torch.float64)).tolist()
    assert moved == pytest.approx([-1e-4, 1e-4], rel=0.05)
    assert trainer.model.weight.dtype == dtype
    assert torch.equal(trainer.model.weight, master.to(dtype)), "passes use the masters rounded"


def test_small_steps_add_up_to_one_that_half_precision_can_show():
    trainer = Trainer(Vector([1.0, 1.0], torch.bfloat16), optimizer(lr=1e-3), 100)
    for _ in range(3):
        step(trainer, [1.0, -1.0])
    assert trainer.model.weight.tolist() == [0.99609375, 1.0]
    for _ in range(3):
        step(trainer, [1.0, -1.0])
    assert trainer.model.weight.tolist() == [0.9921875, 1.0078125]


def test_gradients_of_micro_batches_are_added_in_float32():
    """256 micro-batches of gradient 1 beside one of 1/2: bfloat16 would lose the half."""
    trainer = Trainer(Vector([1.0, 1.0], torch.bfloat16), optimizer(), 10)
    parts = [[1.0, 0.0]] * 256 + [[0.5, 0.0]]
    assert step(trainer, *parts).grad_norm == 256.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_resumed_trainer_continues_bit_for_bit(dtype):
    def fresh() -> Trainer[Vector]:
        return Trainer(Vector([1.0, -0.3], dtype), optimizer(lr=1e-4, weight_decay=0.1), 20)

    whole, killed = fresh(), fresh()
    for number in range(8):
        step(whole, [0.5 + number, -1.0])
        if number < 5:
            step(killed, [0.5 + number, -1.0])
    resumed = fresh()
    resumed.load_state({name: tensor.clone() for name, tensor in killed.state().items()})
    assert torch.equal(resumed.model.weight, killed.model.weight)
    for number in range(5, 8):
        step(resumed, [0.5 + number, -1.0])
    ours, theirs = resumed.state(), whole.state()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
