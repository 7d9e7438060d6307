"""The lines that join a round's parts, each on values that can be worked out by hand: metrics of an
update, denominators of its penalty, what is clipped against what, when reference and value model
move, how many groups are trained on, and by which shares tasks are drawn."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.reporting.synthetic_run import make_rollout
from tests.rounds import (
    CRITIC,
    batch_of,
    by_split,
    collector_on,
    critic_on,
    estimator_on,
    rollout_of,
    round_of,
    run_context,
    update_on,
)
from tests.tiny import MASK_ID, sharp_model, tiny_architecture
from tests.trajectories import responses
from tracerl.errors import ParamsError
from tracerl.models.families import FAMILIES
from tracerl.models.policy import Policy, new_model
from tracerl.models.tokenizer import character_tokenizer
from tracerl.objectives.plans import trace_plan
from tracerl.objectives.views import build_views
from tracerl.rollouts.responses import SampleContext
from tracerl.seeds import generator_for
from tracerl.settings.rounds import RlRound
from tracerl.training import collect
from tracerl.training.collect import Judging, draw_tasks
from tracerl.training.critic import Critic, ValueTargets
from tracerl.training.policy_update import (
    MicroBatch,
    PolicyUpdate,
    check_rows,
    longest_rl_row,
    splits_views,
)
from tracerl.training.rl import Models, train_rl
from tracerl.training.round_metrics import held_out_declines
from tracerl.types import Rollout, Task

TOKENIZER = character_tokenizer()


def prepared(settings: RlRound, advantage: float = 1.0) -> tuple[PolicyUpdate, MicroBatch]:
    """The update of one response, whose old log-probabilities are those of the policy itself."""
    update = update_on(sharp_model("sdar", torch.float64), settings)
    (part,) = update.prepare(batch_of(responses("sdar")[:1], [advantage]), 1, 0)
    return update, part


def old_of(part: MicroBatch) -> torch.Tensor:
    assert part.old_logprobs is not None
    return part.old_logprobs


# Metrics


def test_kl_and_clip_fraction_are_those_of_the_ratios_with_unequal_bounds():
    """Three trainable tokens whose ratios of new to old policy are 0.85, 0.8 and 1.25; the clip is
    0.1 below and 0.3 above, so that two of them are clipped."""
    settings = round_of("tracerl", train_block_size=4, clip=[0.1, 0.3], ratio="token")
    update, part = prepared(settings)
    ratios = torch.tensor([0.85, 0.8, 1.25], dtype=torch.float64)
    assert len(part.weights) == 3
    part = replace(part, old_logprobs=old_of(part) - ratios.log())
    _, metrics = update.loss(part)
    assert metrics["units"] == 3
    assert metrics["clip_fraction"] == 2
    assert metrics["kl"] == pytest.approx(float((ratios - 1 - ratios.log()).sum()), rel=1e-6)
    assert set(update.loss(replace(part, counts=False))[1].values()) == {0}


def test_a_step_reports_means_over_its_units():
    settings = round_of("tracerl", train_block_size=4, clip=[0.1, 0.3], ratio="token")
    update, part = prepared(settings)
    ratios = torch.tensor([0.85, 0.8, 1.25], dtype=torch.float64)
    row = update.step([replace(part, old_logprobs=old_of(part) - ratios.log())])
    assert row["clip_fraction"] == pytest.approx(2 / 3)
    assert row["kl"] == pytest.approx(float((ratios - 1 - ratios.log()).mean()), rel=1e-6)
    assert list(row) == [
        "loss",
        "grad_norm",
        "lr",
        "kl",
        "clip_fraction",
        "oversize_micro_batches",
    ]


# The loss


def test_the_penalty_of_a_whole_response_is_that_of_its_sum_divided_by_its_length():
    """Per token the policy is 0.2 nats above the reference: k2 of the sum of L tokens is
    (0.2 L)^2 / 2, and its share per token that divided by L."""
    settings = round_of("espo", train_block_size=4, kl="k2", kl_weight=0.5, reduction="response")
    update, part = prepared(settings, advantage=0.0)
    assert len(part.weights) == 1
    length = responses("sdar")[0].num_tokens
    part = replace(part, reference_logprobs=old_of(part) - 0.2)
    loss, _ = update.loss(part)
    penalty = 0.5 * (0.2 * length) ** 2 / length
    assert float(loss.detach()) == pytest.approx(0.5 * float(part.weights[0]) * penalty, rel=1e-6)


def test_the_order_is_clipped_against_its_stored_log_probabilities():
    """The order's ratio is 1.5 everywhere and clipped at 1.2, the tokens' is 1; advantage 1."""
    settings = round_of(
        "mask_aware",
        train_block_size=4,
        shrink=1,
        kl_weight=0.0,
        order_weight=2.0,
        order_clip=[0.1, 0.2],
    )
    update, part = prepared(settings)
    assert part.old_order is not None
    part = replace(part, old_order=part.old_order - math.log(1.5))
    loss, metrics = update.loss(part)
    total = float(part.weights.sum())
    assert float(loss.detach()) == pytest.approx(-total - 2.0 * total * 1.2, rel=1e-6)
    assert metrics["order_clip_fraction"] == metrics["units"] == len(part.weights)


def test_values_are_clipped_around_the_old_ones():
    """A fresh value model says 0. Old values of 0.5 and a clip of 0.1 allow 0.4; the return is -1,
    so that the larger error, 1.4 squared, counts."""
    policy = sharp_model("sdar")
    settings = round_of(
        "tracerl", train_block_size=4, advantages="gae", value={**CRITIC, "clip": 0.1}
    )
    critic = critic_on(policy, settings, 10)
    trajectory = responses("sdar")[0]
    plan = trace_plan(trajectory, 4, policy.family, 1)
    views = build_views([trajectory], [plan], 4, policy.family, MASK_ID)
    count = len(views.targets)
    targets = ValueTargets(
        views=views,
        indices=[0],
        old_values=np.full(count, 0.5),
        returns=np.full(count, -1.0),
        advantages=np.zeros(count),
        counts=True,
    )
    loss, _ = critic.loss(targets, num_tokens=count)
    assert float(loss.detach()) == pytest.approx(0.5 * 1.4**2, rel=1e-5)


# When


def weights_of(critic: Critic) -> torch.Tensor:
    return critic.trainer.model.value_head.weight.detach().clone()


def test_the_value_model_moves_in_its_first_iteration_and_every_so_many_after_it():
    policy = sharp_model("sdar")
    settings = round_of(
        "tracerl", train_block_size=4, advantages="gae", value={**CRITIC, "every": 3}
    )
    critic = critic_on(policy, settings, 30)
    estimator = estimator_on(policy, settings, critic)
    group = [rollout_of(t, r) for t, r in zip(responses("sdar"), (1, 0, 0, 1), strict=True)]
    moved = []
    for iteration in range(1, 8):
        before = weights_of(critic)
        estimator.estimate([group], iteration)
        moved.append(not torch.equal(before, weights_of(critic)))
    assert moved == [True, False, False, True, False, False, True]


def small_policy() -> Policy:
    architecture = tiny_architecture(
        "sdar",
        vocab_size=TOKENIZER.vocab_size,
        mask_id=TOKENIZER.mask_id,
        hidden_size=16,
        intermediate_size=16,
        num_layers=1,
        head_dim=8,
    )
    return new_model(architecture, generator_for(1, "policy")).eval()


def small_tasks(count: int, name: str = "set") -> list[Task]:
    tasks = []
    for i in range(count):
        for split in ("train", "test"):
            task = Task(
                task_id=f"{name}/{i}",
                task_set=name,
                kind="text",
                split=split,
                difficulty=1,
                prompt=f"{i}?",
                answer="1",
                solution="",
            )
            tasks.append(task)
    return tasks


def test_the_reference_moves_when_so_many_optimizer_steps_have_been_made(paid, tmp_path: Path):
    """One step an iteration and a sync every second step: before iterations 3 and 5."""
    held_out = {
        "tasks": None,
        "every": 5,
        "num_problems": 1,
        "bootstrap": 10,
        "num_samples": 1,
        "modes": {"static": {"order": {"kind": "static"}}},
    }
    settings = round_of(
        "tracerl",
        {"block_size": 2, "steps_per_block": 2, "order": {"kind": "static"}, "max_new_tokens": 4},
        train_block_size=2,
        tasks={"set": 1.0},
        held_out=held_out,
        iterations=5,
        groups=2,
        group_size=2,
        min_groups=1,
        max_sampled_groups=4,
        pass_rate=[0.0, 1.0],
        updates=1,
        epochs=1,
        kl_to="synced",
        sync_every=2,
    )
    policy, reference = small_policy(), small_policy()
    seen = [reference.lm_head.weight.detach().clone()]

    def note(done: int, total: int, text: str) -> None:
        seen.append(reference.lm_head.weight.detach().clone())

    train_rl(
        Models(policy=policy, tokenizer=TOKENIZER, reference=reference),
        by_split(small_tasks(4)),
        settings,
        Judging(truncated_is_wrong=True),
        run_context(tmp_path, note),
    )
    moved = [not torch.equal(before, after) for before, after in pairwise(seen)]
    assert moved == [False, False, True, False, True]


# Which


def test_no_more_groups_are_trained_on_than_asked_for(monkeypatch, tmp_path: Path):
    """Eight groups are wanted and at least a quarter of them sampled at a time. One of the first
    eight is of no use; of the two that follow both are, and the last one is left out."""
    calls: list[int] = []

    def respond(
        model: Policy,
        tokenizer: Any,
        tasks: list[Task],
        num_samples: int,
        sampler: Any,
        context: SampleContext,
    ) -> list[Rollout]:
        rollouts = []
        for number, task in enumerate(tasks):
            for i in range(num_samples):
                correct = i == 0 or (number == 0 and not calls)
                row = make_rollout(task, i, context.stage, context.iteration, "1", TOKENIZER)
                reward = float(correct)
                verdict = "correct" if correct else "wrong"
                parts = {"correct": reward}
                rollouts.append(replace(row, reward=reward, reward_parts=parts, verdict=verdict))
        calls.append(len(tasks))
        return rollouts

    monkeypatch.setattr(collect, "respond", respond)
    settings = round_of(
        "tracerl",
        tasks={"set": 1.0},
        groups=8,
        group_size=2,
        max_sampled_groups=20,
        min_groups=1,
        pass_rate=[0.4, 0.6],
    )
    collector = collector_on(small_policy(), settings, tmp_path)
    tasks = [task for task in small_tasks(20) if task.split == "train"]
    collection = collector.collect({"set": tasks}, 1)
    assert calls == [8, 2]
    assert len(collection.groups) == 8
    assert collection.rows.num_rows == 20
    wanted = {"sampled_groups": 10, "kept_groups": 8, "too_easy_groups": 1, "too_hard_groups": 0}
    assert {name: collection.metrics[name] for name in wanted} == wanted


def test_tasks_of_a_round_are_drawn_by_their_shares_and_none_twice():
    pools = {
        name: [task for task in small_tasks(2000, name) if task.split == "train"] for name in "ab"
    }
    tasks = draw_tasks(pools, {"a": 1.0, "b": 4.0}, 1000, generator_for(1, "draw"))
    assert len({task.task_id for task in tasks}) == 1000
    share = np.mean([task.task_set == "b" for task in tasks])
    assert abs(share - 0.8) < 5 * math.sqrt(0.8 * 0.2 / 1000)
    few = draw_tasks(
        {"a": pools["a"][:3], "b": pools["b"]}, {"a": 9.0, "b": 1.0}, 50, generator_for(1, "draw")
    )
    assert [task.task_set for task in few].count("a") == 3


# A round that ends below its start


def test_a_round_that_ends_below_the_interval_of_its_start_says_so_for_each_mode():
    def row(iteration: int, mode: str, accuracy: float) -> dict[str, Any]:
        return {
            "iteration": iteration,
            "remasking": mode,
            "accuracy": accuracy,
            "ci_low": accuracy - 0.1,
            "ci_high": accuracy + 0.1,
            "empty_rate": 0.25,
        }

    rows = [row(0, "static", 0.4), row(0, "dynamic", 0.4), row(5, "static", 0.1)]
    rows += [row(5, "dynamic", 0.2), row(9, "static", 0.31), row(9, "dynamic", 0.29)]
    assert held_out_declines(rows) == {
        "dynamic": "held-out accuracy fell from 0.400 (95% interval from 0.300) to 0.290; "
        "25% of the responses are empty"
    }
    assert held_out_declines(rows[:2]) == {}


# Long rows


@pytest.mark.parametrize("reduction", ["step", "response", "token", "fixed"])
@pytest.mark.parametrize("family", ["sdar", "dream"])
def test_a_response_longer_than_the_limit_is_split_over_passes_with_an_equal_gradient(
    family, reduction
):
    """One response; its longest pass then holds a clean copy and one view. The loss, its gradient
    and the old log-probabilities are those of one pass."""
    trajectory = responses(family)[1]
    results = []
    for tokens in (10_000, 1):
        model = sharp_model(family, torch.float64)
        settings = round_of(
            "tracerl", train_block_size=4, micro_batch_tokens=tokens, reduction=reduction
        )
        update = update_on(model, settings, sharp_model(family, torch.float64, seed=3))
        parts = update.prepare(batch_of([trajectory], [0.5]), 1, 0)
        losses = [update.loss(part) for part in parts]
        total = torch.stack([loss for loss, _ in losses]).sum()
        gradient = torch.autograd.grad(total, list(model.parameters()))
        longest = max(part.views.input_ids.numel() for part in parts)
        oversize = sum(metrics["oversize_micro_batches"] for _, metrics in losses)
        results.append((len(parts), longest, oversize, float(total.detach()), gradient))
    (one, whole, none, loss, gradient), (many, longest, all_, split_loss, split_gradient) = results
    assert (one, none) == (1, 0)
    assert many >= 2
    assert all_ == many, "each of them has more than one token"
    assert longest < 0.8 * whole
    assert split_loss == pytest.approx(loss, rel=1e-10)
    for ours, theirs in zip(split_gradient, gradient, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_views_whose_likelihoods_are_joined_stay_together():
    settings = [
        (round_of("tracerl", train_block_size=4), True),
        (round_of("tracerl", train_block_size=4, reduction="response"), True),
        (
            round_of("tracerl", train_block_size=4, ratio="sequence", reduction="response"),
            False,
        ),
        (round_of("espo", train_block_size=4), False),
        (round_of("diffucoder", train_block_size=4), False),
        (round_of("random", train_block_size=4), True),
    ]
    for round_, splits in settings:
        assert splits_views(round_) == splits
        whole, longest = (
            longest_rl_row(r, FAMILIES["sdar"])
            for r in (round_.model_copy(update={"ratio": "sequence"}), round_)
        )
        assert longest == whole or splits


def test_views_that_cannot_be_split_and_are_longer_than_a_micro_batch_are_refused():
    """Ratio `sequence`: a clean copy and all views are one row."""
    whole = round_of("tracerl", train_block_size=4, ratio="sequence", reduction="response")
    longest = longest_rl_row(whole, FAMILIES["sdar"])
    fits = whole.model_copy(update={"micro_batch_tokens": longest})
    check_rows(fits, FAMILIES["sdar"], "rl@x")
    short = whole.model_copy(update={"micro_batch_tokens": longest - 1})
    with pytest.raises(ParamsError, match=rf"rl@x: micro_batch_tokens(?s:.*)at least {longest:,}"):
        check_rows(short, FAMILIES["sdar"], "rl@x")
    check_rows(short.model_copy(update={"ratio": "token"}), FAMILIES["sdar"], "rl@x")
