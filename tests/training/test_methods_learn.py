"""Every method lifts a trivially verifiable task on a model of a few thousand parameters above a
bar within a fixed number of updates."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.rounds import METHOD_VALUES, learn, rollout_of, round_of, update_on
from tests.tiny import tiny_architecture, tiny_sampler
from tracerl.models.policy import Policy, new_model
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import generator_for, key_for
from tracerl.training.policy_update import PolicyUpdate
from tracerl.training.trainer import Trainer

GROUPS, GROUP_SIZE, UPDATES, WANTED = 2, 16, 12, 3
BAR = 0.6  # share of tokens that are the wanted one; a fresh model writes 1 in 8


def fresh(family: str) -> Policy:
    shape = {
        "vocab_size": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_layers": 1,
        "head_dim": 8,
    }
    return new_model(tiny_architecture(family, **shape), generator_for(1, "learner")).eval()


def iterate(model: Policy, update: PolicyUpdate, iteration: int) -> float:
    """One iteration: groups of responses, rewarded by the share of their four tokens that are the
    wanted one. Returns the mean reward."""
    settings = tiny_sampler(max_new_tokens=4, max_rows=GROUPS * GROUP_SIZE, **ordered(update))
    prompts = [[4, 5, 6, 7], [7, 6, 5, 4]]
    requests = [
        Request(p, key_for(1, "learn", iteration, g, i))
        for g, p in enumerate(prompts)
        for i in range(GROUP_SIZE)
    ]
    trajectories = sample(model, (), requests, settings)
    rewards = [float((t.response_ids == WANTED).mean()) for t in trajectories]
    rollouts = [rollout_of(t, r) for t, r in zip(trajectories, rewards, strict=True)]
    groups = [rollouts[i : i + GROUP_SIZE] for i in range(0, len(rollouts), GROUP_SIZE)]
    learn(update, groups, iteration)
    return float(np.mean(rewards))


def ordered(update: PolicyUpdate) -> dict[str, Any]:
    return {"order": update.settings.sampler.order} if update.method.scores_order else {}


@pytest.mark.parametrize("method", METHOD_VALUES)
def test_a_method_learns_to_write_one_token(method):
    model = fresh("llada" if method in ("spg", "diffu_grpo", "gdpo", "mask_aware") else "sdar")
    optimizer = {
        "lr": 0.03,
        "betas": [0.9, 0.99],
        "weight_decay": 0.0,
        "clip_norm": 1.0,
        "warmup": 0,
        "decay": 0.0,
    }
    settings = round_of(method, train_block_size=4, kl_weight=0.0, optimizer=optimizer)
    update = update_on(model, settings, trainer=Trainer(model, settings.optimizer, UPDATES))
    means = [iterate(model, update, iteration) for iteration in range(UPDATES)]
    assert means[0] < 0.3
    assert max(means[-2:]) > BAR, means


def test_bfloat16_learns_as_float32_does_at_a_rate_below_its_resolution():
    """Updates of 0.0002, where weights of 0.25 have neighbours in bfloat16 at 0.002: rewards rise
    alike, and the weights go where those of float32 go (without float32 masters, a third of the
    way)."""
    optimizer = {
        "lr": 0.0002,
        "betas": [0.9, 0.99],
        "weight_decay": 0.0,
        "clip_norm": 1.0,
        "warmup": 0,
        "decay": 0.0,
    }
    updates = 40
    settings = round_of("tracerl", train_block_size=4, kl_weight=0.0, optimizer=optimizer)
    ways = []
    for dtype in (torch.float32, torch.bfloat16):
        model = fresh("sdar").to(dtype)
        start = flat_weights(model)
        update = update_on(model, settings, trainer=Trainer(model, settings.optimizer, updates))
        means = [iterate(model, update, iteration) for iteration in range(updates)]
        assert np.mean(means[-10:]) > np.mean(means[:5]) + 0.1, means
        ways.append(flat_weights(model) - start)
    wide, half = ways
    assert float(half @ wide / (wide @ wide)) == pytest.approx(1.0, abs=0.1)


def flat_weights(model: Policy) -> torch.Tensor:
    return torch.cat(
        [p.detach().to(torch.float32, copy=True).reshape(-1) for p in model.parameters()]
    )
