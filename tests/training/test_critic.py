"""The value model: the identities of its returns and advantages, what it sees, that it learns, and
that a killed round resumes with it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import (
    CRITIC,
    by_split,
    critic_on,
    estimator_on,
    rollout_of,
    round_of,
    run_context,
)
from tests.tiny import MASK_ID, sharp_model, tiny_architecture
from tests.trajectories import responses
from tracerl.errors import CheckpointError
from tracerl.models.policy import Policy, fit_adapters, new_model
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.value import ValueModel, load_value_model, save_value_model
from tracerl.objectives.advantages import (
    explained_variance,
    outcome_rewards,
    returns_and_advantages,
)
from tracerl.objectives.plans import trace_plan
from tracerl.objectives.views import build_views
from tracerl.seeds import generator_for
from tracerl.settings.models import Lora
from tracerl.training.collect import Judging
from tracerl.training.critic import read_values, token_advantages
from tracerl.training.rl import Models, train_rl
from tracerl.types import Task


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, values and steps 0, 1, ..., S - 1 of some tokens, in any order."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    steps = np.repeat(np.arange(len(sizes)), sizes)
    steps = steps[np.array(draw(st.permutations(range(len(steps)))))]
    numbers = st.lists(st.floats(-3, 3), min_size=len(steps), max_size=len(steps)).map(np.array)
    return draw(numbers), draw(numbers), steps


def means(values: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return np.append([values[steps == t].mean() for t in range(steps.max() + 1)], 0.0)


@given(case=cases(), trace=st.floats(0, 1))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_without_a_discount_a_return_is_the_reward_and_the_step_means_that_follow(case, trace):
    rewards, values, steps = case
    returns, _ = returns_and_advantages(rewards, values, steps, 1.0, trace)
    later = means(rewards, steps)
    np.testing.assert_allclose(
        returns, [r + later[t + 1 :].sum() for r, t in zip(rewards, steps, strict=True)], atol=1e-9
    )


@given(case=cases())
@settings(derandomize=True, deadline=None, max_examples=100)
def test_without_a_discount_and_with_a_whole_trace_an_advantage_is_return_less_value(case):
    rewards, values, steps = case
    returns, advantages = returns_and_advantages(rewards, values, steps, 1.0, 1.0)
    np.testing.assert_allclose(advantages, returns - values, atol=1e-9)


@given(case=cases(), discount=st.floats(0, 1))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_without_a_trace_an_advantage_is_one_step_of_temporal_difference(case, discount):
    rewards, values, steps = case
    _, advantages = returns_and_advantages(rewards, values, steps, discount, 0.0)
    np.testing.assert_allclose(
        advantages, rewards - values + discount * means(values, steps)[steps + 1], atol=1e-9
    )


@given(case=cases(), discount=st.floats(0, 1), trace=st.floats(0, 1))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_the_mean_advantage_of_a_step_is_the_steps_own(case, discount, trace):
    rewards, values, steps = case
    _, advantages = returns_and_advantages(rewards, values, steps, discount, trace)
    reward, value = means(rewards, steps), means(values, steps)
    own = 0.0
    for t in range(steps.max(), -1, -1):
        own = reward[t] - value[t] + discount * value[t + 1] + discount * trace * own
        assert advantages[steps == t].mean() == pytest.approx(own, abs=1e-9)


def test_an_outcome_is_paid_on_the_last_step_with_the_reward_as_its_mean():
    assert outcome_rewards(0.5, np.array([0, 2, 1, 2])).tolist() == [0.0, 0.5, 0.0, 0.5]


def test_explained_variance():
    returns = np.array([1.0, 0.0, 1.0, 0.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(4, 0.3), returns) == 0.0
    assert explained_variance(returns, np.ones(4)) == 0.0
    assert explained_variance(np.array([0.5, 0.0, 0.5, 0.0]), returns) == pytest.approx(0.75)


@torch.no_grad()
@pytest.mark.parametrize("family", ["sdar", "llada", "dream"])
def test_a_value_conditions_on_the_steps_before_its_own_and_a_fresh_head_says_nothing(family):
    policy = sharp_model(family, torch.float64)
    model, (trajectory, *_) = ValueModel(policy), responses(family)

    def values(t):
        views = build_views([t], [trace_plan(t, 4, policy.family, 1)], 4, policy.family, MASK_ID)
        return read_values(model, views)[torch.argsort(views.token)]

    assert values(trajectory).tolist() == [0.0] * trajectory.num_tokens
    model.value_head.weight.normal_(generator=torch.Generator().manual_seed(1))
    before, ids = values(trajectory), trajectory.response_ids.copy()
    steps = trajectory.step_map[: trajectory.num_tokens]
    last = int(np.argmax(steps))
    ids[last] = (ids[last] + 1) % 29 + 3
    assert torch.equal(values(replace(trajectory, response_ids=ids)), before), (
        "nothing is decided after the last step"
    )
    first = int(np.argmin(steps))
    ids = trajectory.response_ids.copy()
    ids[first] = (ids[first] + 1) % 29 + 3
    changed = values(replace(trajectory, response_ids=ids)) != before
    assert not changed[torch.from_numpy(steps == steps.min())].any()
    assert changed[torch.from_numpy(steps > steps.min())].any()


@pytest.mark.parametrize("family", ["sdar", "dream"])
def test_a_value_model_comes_to_explain_what_its_responses_earn(family):
    """Six responses of fixed rewards, four rounds of updates: what it explains of the returns rises
    from nothing."""
    policy = sharp_model(family)
    round_settings = round_of("tracerl", train_block_size=4, advantages="gae", value=CRITIC)
    estimator = estimator_on(policy, round_settings, critic_on(policy, round_settings, 30))
    group = [rollout_of(t, r) for t, r in zip(responses(family), (1.0, 0.0, 0.0, 1.0), strict=True)]
    figures = [estimator.estimate([group], iteration)[1] for iteration in range(1, 13)]
    assert figures[0]["explained_variance"] == 0.0
    assert figures[-1]["explained_variance"] > 0.5
    assert figures[-1]["value_loss"] < 0.5 * figures[0]["value_loss"]


def test_the_micro_batches_do_not_change_advantages_or_the_value_update():
    results = []
    for tokens in (1, 60, 10_000):
        policy = sharp_model("sdar", torch.float64)
        round_settings = round_of(
            "tracerl", train_block_size=4, advantages="gae", value=CRITIC, micro_batch_tokens=tokens
        )
        estimator = estimator_on(policy, round_settings, critic_on(policy, round_settings, 10))
        group = [
            rollout_of(t, r) for t, r in zip(responses("sdar"), (1.0, 0.0, 0.0, 1.0), strict=True)
        ]
        for iteration in (1, 2):
            ((advantages,), _) = estimator.estimate([group], iteration)
        results.append(np.concatenate(advantages))
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-9)
    np.testing.assert_allclose(results[0], results[2], rtol=0, atol=1e-9)
    assert np.abs(results[0]).max() > 0.1


def test_token_advantages_are_zero_where_nothing_is_trained():
    assert [table.tolist() for table in token_advantages([], responses("sdar")[2:3])] == [
        [0.0] * len(responses("sdar")[2].response_ids)
    ]


def test_a_value_model_is_saved_with_its_checkpoint_and_read_again(tmp_path):
    policy = sharp_model("llada")
    model = ValueModel(policy)
    with torch.no_grad():
        model.value_head.weight.fill_(0.5)
    save_value_model(model, tmp_path)
    other = load_value_model(sharp_model("llada", seed=2), tmp_path)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    )
    with pytest.raises(CheckpointError, match="value model cannot be read"):
        load_value_model(policy, tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="value model cannot be read"):
        load_value_model(sharp_model("llada", hidden_size=48), tmp_path)


# Resuming

LORA = Lora(rank=2, alpha=4.0, dropout=0.5, targets=["q_proj", "down_proj"])


class KilledError(Exception):
    pass


def fresh_policy(lora: Lora | None = None, dtype: torch.dtype = torch.float32) -> Policy:
    tokenizer = character_tokenizer()
    shape = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_layers": 1,
        "head_dim": 8,
    }
    model = new_model(
        tiny_architecture("sdar", mask_id=tokenizer.mask_id, **shape), generator_for(1, "policy")
    ).eval()
    model.to(dtype)
    fit_adapters(model, lora, Path("base"), "", generator_for(1, "lora"))
    return model


def trained(
    folder: Path,
    kill_after: int | None,
    lora: Lora | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A round of four iterations with a value model, drawn views and a reference that moves; maybe
    killed once and started again."""
    tokenizer = character_tokenizer()
    sampler = {
        "block_size": 2,
        "steps_per_block": 2,
        "order": {"kind": "static"},
        "max_new_tokens": 4,
    }
    held_out = {
        "tasks": None,
        "every": 4,
        "num_problems": 1,
        "bootstrap": 10,
        "num_samples": 1,
        "modes": {"static": {"order": {"kind": "static"}}},
    }
    few = {
        "iterations": 4,
        "groups": 2,
        "group_size": 2,
        "min_groups": 1,
        "max_sampled_groups": 4,
        "pass_rate": [0.0, 1.0],
    }
    settings_ = round_of(
        "random",
        sampler,
        advantages="gae",
        value={**CRITIC, "every": 2},
        kl_to="synced",
        sync_every=3,
        epochs=2,
        train_block_size=2,
        tasks={"set": 1.0},
        held_out=held_out,
        **few,
    )
    tasks = [
        Task(
            task_id=f"set/{i}",
            task_set="set",
            kind="text",
            split=split,
            difficulty=1,
            prompt=f"{i}?",
            answer="1",
            solution="",
        )
        for i in range(4)
        for split in ("train", "test")
    ]
    while True:
        model, reference = fresh_policy(lora, dtype), fresh_policy(lora, dtype)
        value = ValueModel(model)

        def progress(done: int, total: int, text: str, last: int | None = kill_after) -> None:
            if done == last:
                raise KilledError

        try:
            curves = train_rl(
                Models(policy=model, tokenizer=tokenizer, reference=reference, value_model=value),
                by_split(tasks),
                settings_,
                Judging(truncated_is_wrong=True),
                run_context(folder, progress),
            )
        except KilledError:
            kill_after = None
            continue
        parts = {"policy": model, "value": value, "reference": reference}
        return {
            f"{n}.{k}": v.clone() for n, m in parts.items() for k, v in m.state_dict().items()
        }, curves


def test_a_killed_round_resumes_to_the_same_bits_with_value_model_and_moving_reference(
    paid, tmp_path
):
    undisturbed, curves = trained(tmp_path / "whole", None)
    assert not all(
        torch.equal(undisturbed[f"policy.{k}"], undisturbed[f"reference.{k}"])
        for k in ("lm_head.weight",)
    )
    assert float(undisturbed["value.value_head.weight"].abs().max()) > 0
    assert {"explained_variance", "value_loss"} <= set(curves["train"][0])
    for kill_after in (1, 3):
        resumed, again = trained(tmp_path / f"killed-{kill_after}", kill_after)
        assert all(torch.equal(undisturbed[name], resumed[name]) for name in undisturbed)
        assert again == curves


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "adapters"])
def test_a_killed_round_in_bfloat16_resumes_to_the_same_bits(paid, tmp_path, lora):
    undisturbed, curves = trained(tmp_path / "whole", None, lora, torch.bfloat16)
    resumed, again = trained(tmp_path / "killed", 3, lora, torch.bfloat16)
    assert {tensor.dtype for tensor in resumed.values()} == {torch.bfloat16}
    assert all(torch.equal(undisturbed[name], resumed[name]) for name in undisturbed)
    assert again == curves


# Adapters


def test_with_adapters_a_round_trains_them_and_the_head_alone_and_resumes_to_the_same_bits(
    paid, tmp_path
):
    undisturbed, curves = trained(tmp_path / "whole", None, LORA)
    fresh = fresh_policy().state_dict()
    for name, tensor in undisturbed.items():
        model, _, rest = name.partition(".")
        trains = ".lora_" in rest or rest.startswith("value_head")
        if not trains:
            assert torch.equal(tensor, fresh[rest.removeprefix("transformer.")]), (
                f"{name} is frozen"
            )
    for model in ("policy", "value.transformer"):
        assert any(
            bool(tensor.any())
            for name, tensor in undisturbed.items()
            if name.startswith(f"{model}.") and ".lora_B" in name
        )
    assert undisturbed["value.value_head.weight"].any()
    resumed, again = trained(tmp_path / "killed", 3, LORA)
    assert all(torch.equal(undisturbed[name], resumed[name]) for name in undisturbed)
    assert again == curves


def test_the_value_model_of_a_round_with_adapters_goes_on_in_a_round_with_the_same_only(tmp_path):
    def policy(lora: Lora | None) -> Policy:
        model = sharp_model("dream")
        fit_adapters(model, lora, Path("base"), "", generator_for(1, "lora"))
        return model

    model = ValueModel(policy(LORA))
    assert {n for n, p in model.named_parameters() if p.requires_grad and ".lora_" not in n} == {
        "value_head.weight",
        "value_head.bias",
    }
    save_value_model(model, tmp_path)
    other = load_value_model(policy(LORA), tmp_path)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    )
    for lora in (
        None,
        LORA.model_copy(update={"rank": 3}),
        LORA.model_copy(update={"targets": ["q_proj"]}),
    ):
        with pytest.raises(CheckpointError, match="same lora"):
            load_value_model(policy(lora), tmp_path)
