"""The order module: it starts as a uniform order, decides which positions are committed, is scored
as it decided, learns, and is saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.rounds import learn, rollout_of, round_of, update_on
from tests.tiny import (
    END_IDS,
    MASK_ID,
    RULES,
    order_of,
    sharp_model,
    tiny_architecture,
    tiny_requests,
    tiny_sampler,
    with_order_module,
)
from tests.trajectories import EVERYTHING
from tracerl.errors import CheckpointError, DataError
from tracerl.models.checkpoint import (
    load_checkpoint,
    load_for_training,
    policy_hash,
    save_checkpoint,
)
from tracerl.models.order import FOLDER
from tracerl.models.policy import Policy, fit_order_module, new_model
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.value import ValueModel
from tracerl.models.weights import WEIGHTS
from tracerl.objectives.likelihood import token_and_order_logprobs
from tracerl.objectives.plans import segment_plan
from tracerl.objectives.views import build_views
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import generator_for, key_for
from tracerl.settings.models import Compute, Lora
from tracerl.training.master_weights import trainable_parameters
from tracerl.training.trainer import Trainer

MODULE: dict[str, Any] = {
    "remasking": "plackett_luce",
    "order_temperature": 0.5,
    "order_score": "module",
}
TOKENIZER = character_tokenizer()
CPU = Compute(
    device="cpu", dtype="stored", attention="auto", checkpoint_layers=False, vectors="avx2"
)


def saved(folder: Path, **changes: Any) -> Policy:
    """A checkpoint with an order module, and the model that it was."""
    model = with_order_module(
        sharp_model("llada", vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id, **changes)
    )
    save_checkpoint(model, TOKENIZER, folder)
    return model


def test_a_fresh_module_draws_a_uniform_order():
    model = sharp_model("llada")
    fit_order_module(model, generator_for(1, "order"))
    (trajectory,) = sample(model, (), tiny_requests([3]), tiny_sampler(max_new_tokens=4, **MODULE))
    assert trajectory.order_logprobs is not None
    by_step = trajectory.order_logprobs[np.argsort(trajectory.step_map)]
    np.testing.assert_allclose(by_step, -np.log([4.0, 3.0, 2.0, 1.0]), atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("family", RULES)
def test_what_training_recomputes_of_an_order_is_what_the_sampler_recorded(family):
    model = with_order_module(sharp_model(family, torch.float64))
    batch = sample(model, END_IDS, tiny_requests([5, 8, 3]), tiny_sampler(**MODULE))
    plans = [segment_plan(t, 4, model.family, 1, EVERYTHING, True, generator_for(1)) for t in batch]
    views = build_views(batch, plans, 4, model.family, MASK_ID)
    _, order = token_and_order_logprobs(model, views, 1.0, 0.5, "module")
    recorded = np.array(
        [
            batch[i].order_logprobs[t]
            for i, t in zip(views.source.tolist(), views.token.tolist(), strict=True)
        ]
    )
    np.testing.assert_allclose(order.numpy(), recorded, atol=1e-5)
    assert recorded.std() > 0.1
    _, largest = token_and_order_logprobs(model, views, 1.0, 0.5, "max_logit")
    assert float((order - largest).abs().max()) > 0.1, "it is the module that is scored"


def test_the_module_learns_an_order_that_is_paid(tmp_path):
    """The policy is frozen; a response earns what share of its tokens were committed from right to
    left."""
    shape = {
        "vocab_size": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_layers": 1,
        "head_dim": 8,
    }
    model = (
        new_model(tiny_architecture("llada", **shape), generator_for(1, "policy"))
        .eval()
        .requires_grad_(False)
    )
    fit_order_module(model, generator_for(1, "order"))
    optimizer = {
        "lr": 0.05,
        "betas": [0.9, 0.99],
        "weight_decay": 0.0,
        "clip_norm": 1.0,
        "warmup": 0,
        "decay": 0.0,
    }
    flat = {**MODULE, "order_temperature": 1.0}
    sampler = {
        "order": order_of("plackett_luce", order_temperature=1.0, order_score="module"),
    }
    settings = round_of(
        "mask_aware", sampler, train_block_size=4, segments=4, kl_weight=0.0, optimizer=optimizer
    )
    trainer, means = Trainer(model, settings.optimizer, 16), []
    update = update_on(model, settings, trainer=trainer)
    assert set(trainable_parameters(model)) == {
        "order.inner.weight",
        "order.inner.bias",
        "order.score.weight",
        "order.score.bias",
    }
    for iteration in range(16):
        requests = [Request([4, 5, 6, 7], key_for(1, "order", iteration, i)) for i in range(32)]
        trajectories = sample(model, (), requests, tiny_sampler(max_new_tokens=4, **flat))
        rewards = [float((t.step_map == [4, 3, 2, 1]).mean()) for t in trajectories]
        group = [rollout_of(t, r) for t, r in zip(trajectories, rewards, strict=True)]
        learn(update, [group], iteration)
        means.append(float(np.mean(rewards)))
    assert means[0] < 0.4
    assert means[-1] > 0.7, means


def test_without_a_module_it_cannot_be_asked_for():
    with pytest.raises(DataError, match="no order module"):
        sample(sharp_model("sdar"), (), tiny_requests([3]), tiny_sampler(**MODULE))


def test_a_module_is_saved_with_its_checkpoint_and_read_again(tmp_path):
    model = saved(tmp_path / "a")
    other, _ = load_checkpoint(tmp_path / "a")
    assert model.order is not None
    assert other.order is not None
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            model.order.state_dict().values(), other.order.state_dict().values(), strict=True
        )
    )
    assert policy_hash(other) == policy_hash(model)
    with torch.no_grad():
        other.order.score.bias.add_(1.0)
    assert policy_hash(other) != policy_hash(model), "it is part of the policy"
    assert ValueModel(model).transformer.order is None
    (tmp_path / "a" / FOLDER / WEIGHTS).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="order module cannot be read"):
        load_checkpoint(tmp_path / "a")


def test_beside_adapters_the_module_is_trained_saved_and_read(tmp_path):
    saved(tmp_path / "base")
    lora = Lora(rank=2, alpha=4.0, dropout=0.0, targets=["q_proj"])
    model, _ = load_for_training(tmp_path / "base", CPU, lora, generator_for(1, "lora"))
    fit_order_module(model, generator_for(1, "order"))
    assert model.order is not None
    assert all(parameter.requires_grad for parameter in model.order.parameters())
    with torch.no_grad():
        model.order.score.bias.fill_(0.25)
    save_checkpoint(model, TOKENIZER, tmp_path / "adapted")
    again, _ = load_checkpoint(tmp_path / "adapted")
    assert again.order is not None
    assert float(again.order.score.bias[0].detach()) == 0.25
    assert policy_hash(again) == policy_hash(model)


def test_a_trainer_resumes_with_a_module_that_no_loss_has_reached():
    model = with_order_module(sharp_model("sdar"))
    round_settings = round_of("tracerl")

    def step(trainer: Trainer[Policy]) -> None:
        trainer.step([trainer.model.lm_head], lambda head: ((head.weight**2).sum(), {}))

    whole = Trainer(model, round_settings.optimizer, 2)
    step(whole)
    resumed = Trainer(with_order_module(sharp_model("sdar", seed=2)), round_settings.optimizer, 2)
    resumed.load_state({name: tensor.clone() for name, tensor in whole.state().items()})
    for trainer in (whole, resumed):
        step(trainer)
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    )
