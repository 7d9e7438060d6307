"""Process rewards and undecided responses in a round: what a step is paid, where that goes, what is
stored, what a kill changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.reporting.synthetic_run import make_rollout
from tests.rounds import (
    CRITIC,
    by_split,
    collector_on,
    critic_on,
    estimator_on,
    rollout_of,
    round_of,
    run_context,
)
from tests.tiny import sharp_model, tiny_architecture
from tests.tiny_run import digests
from tests.trajectories import make_trajectory, responses
from tracerl.errors import TrainingError
from tracerl.models.policy import new_model
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.value import ValueModel
from tracerl.objectives.plans import trace_plan, trace_steps
from tracerl.objectives.views import build_views
from tracerl.rewards.judges.kinds import steps_judge
from tracerl.rewards.judges.questions import Answer
from tracerl.seeds import generator_for
from tracerl.settings.rewards import Process
from tracerl.store.files import read_rollouts
from tracerl.training import collect
from tracerl.training.collect import Judging
from tracerl.training.process_rewards import ProcessRewarder
from tracerl.training.rl import Models, train_rl
from tracerl.types import Chunks, Rollout, Task

TOKENIZER = character_tokenizer()
PROCESS: dict[str, Any] = {"judge": "steps", "weight": 0.5, "separators": [";"], "max_chunks": 8}
TASKS = [
    Task(
        task_id=f"set/{a}",
        task_set="set",
        kind="sums",
        split=split,
        difficulty=2,
        prompt=f"{a}+5+1=",
        answer=str(a + 6),
        solution="",
    )
    for a in (2, 3)
    for split in ("train", "test")
]
# What is written to a+5+1=, by sample index: right; one wrong step; a wrong answer; nothing but the
# answer.
WRITTEN = ["{0};{1};#{1}", "{2};{1};#{1}", "{0};{1};#{0}", "#{1}"]
RIGHT = [True, True, False, True]
SCORES = [[1, 1, 1], [-1, -1, 1], [1, 1, -1], [1]]


def written(
    task: Task, index: int, stage: str, iteration: int, verdict: str | None = None
) -> Rollout:
    a = int(task.prompt[0])
    text = WRITTEN[index].format(a + 5, a + 6, a + 4)
    verdict = verdict or ("correct" if RIGHT[index] else "wrong")
    paid = float(verdict == "correct")
    row = make_rollout(task, index, stage, iteration, text, TOKENIZER)
    return replace(row, reward=paid, reward_parts={"correct": paid}, verdict=verdict)


def responding(monkeypatch: pytest.MonkeyPatch, size: int, undecided: bool = False) -> None:
    """Lets the round be given written responses: the first `size` of each task, the last one
    undecided if asked for."""

    def respond(model, tokenizer, tasks, num_samples, sampler, context):
        return [
            written(
                task,
                i,
                context.stage,
                context.iteration,
                "undecided" if undecided and i == size - 1 else None,
            )
            for task in tasks
            for i in range(min(size, num_samples) if "held-out" not in context.stage else 1)
        ]

    monkeypatch.setattr(collect, "respond", respond)


class KilledError(Exception):
    pass


def train(
    folder: Path, size: int, kill_after: int | None = None, judge: Any = steps_judge, **changes: Any
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Two iterations on groups of `size` written responses, killed once and resumed if asked for:
    weights and curves."""
    few = {
        "iterations": 2,
        "groups": 2,
        "group_size": size,
        "min_groups": 1,
        "max_sampled_groups": 2,
        "pass_rate": [0.0, 1.0],
    }
    held_out = {
        "tasks": None,
        "every": 2,
        "num_problems": 1,
        "bootstrap": 10,
        "num_samples": 1,
        "modes": {"static": {"order": {"kind": "static"}}},
    }
    settings = round_of(
        "tracerl",
        **{"tasks": {"set": 1.0}, "held_out": held_out, "process": PROCESS, **few, **changes},
    )
    shape = {
        "vocab_size": TOKENIZER.vocab_size,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_layers": 1,
        "head_dim": 8,
    }
    while True:
        model = new_model(
            tiny_architecture("sdar", mask_id=TOKENIZER.mask_id, **shape),
            generator_for(1, "policy"),
        ).eval()
        value = ValueModel(model) if settings.value is not None else None

        def progress(done: int, total: int, text: str, last: int | None = kill_after) -> None:
            if done == last:
                raise KilledError

        rewarder = None
        if settings.process is not None:
            rewarder = ProcessRewarder(judge=judge, settings=settings.process)
        try:
            curves = train_rl(
                Models(policy=model, tokenizer=TOKENIZER, value_model=value),
                by_split(TASKS),
                settings,
                Judging(truncated_is_wrong=True, rewarder=rewarder),
                run_context(folder, progress),
            )
        except KilledError:
            kill_after = None
            continue
        parts = {"policy": model, **({"value": value} if value is not None else {})}
        return {
            f"{n}.{k}": v.clone() for n, m in parts.items() for k, v in m.state_dict().items()
        }, curves


def rows(folder: Path, iteration: int = 1) -> list[dict[str, Any]]:
    return read_rollouts(folder / "rollouts" / f"iter-{iteration:05d}.parquet").to_pylist(
        maps_as_pydicts="strict"
    )


def test_a_round_with_a_judge_and_a_value_model_stores_its_rewards_and_resumes_to_the_same_bits(
    tmp_path, monkeypatch
):
    responding(monkeypatch, 4)
    gae: dict[str, Any] = {"advantages": "gae", "value": CRITIC}
    weights, curves = train(tmp_path / "whole", 4, **gae)
    for row in rows(tmp_path / "whole"):
        index = row["sample_index"]
        assert row["chunk_ends"][-1] == row["num_tokens"]
        assert row["chunk_scores"] == SCORES[index]
        assert row["reward_parts"] == {"correct": float(RIGHT[index])}
        assert row["reward"] == float(RIGHT[index])
    # At the first place the scores are 1, -1, 1, 1; at the second 1, -1, 1; at the third 1, 1, -1.
    # The weight is 0.5.
    first, other = [0.5 / 3**0.5, -0.5 * 3**0.5], [0.5 * 0.5**0.5, -0.5 * 2**0.5]
    wanted = {
        0: [first[0], other[0], other[0]],
        1: [first[1], other[1], other[0]],
        2: [first[0], other[0], other[1]],
        3: [first[0]],
    }
    for row in rows(tmp_path / "whole")[:4]:
        assert row["chunk_rewards"] == pytest.approx(wanted[row["sample_index"]], rel=1e-6)
    held_out = read_rollouts(tmp_path / "whole" / "rollouts" / "held-out-static-00002.parquet")
    assert held_out["chunk_ends"].null_count == held_out.num_rows == 1
    assert {
        name: curves["train"][0][name] for name in ("chunks", "undecided_chunks", "undecided")
    } == {"chunks": 20.0, "undecided_chunks": 0.0, "undecided": 0}
    assert curves["train"][0]["chunk_score"] == pytest.approx(
        np.mean([score for row in SCORES for score in row])
    )
    assert float(weights["value.value_head.weight"].abs().max()) > 0
    without, _ = train(tmp_path / "without", 4, process=None, **gae)
    assert not torch.equal(without["policy.lm_head.weight"], weights["policy.lm_head.weight"])
    resumed, again = train(tmp_path / "killed", 4, kill_after=1, **gae)
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)
    assert again == curves
    assert digests(tmp_path / "killed" / "rollouts") == digests(tmp_path / "whole" / "rollouts")


def test_a_judge_that_is_undecided_of_every_step_changes_nothing(tmp_path, monkeypatch):
    responding(monkeypatch, 4)
    plain, _ = train(tmp_path / "plain", 4, process=None)
    silent, curves = train(
        tmp_path / "silent",
        4,
        judge=lambda questions: [Answer(score=None, reason="no answer")] * len(questions),
    )
    assert all(torch.equal(plain[name], silent[name]) for name in plain)
    assert (curves["train"][0]["undecided_chunks"], curves["train"][0]["chunk_score"]) == (
        20.0,
        0.0,
    )
    assert all(
        np.isnan(row["chunk_scores"]).all() and not any(row["chunk_rewards"])
        for row in rows(tmp_path / "silent")
    )


@pytest.mark.parametrize("advantages", ["group", "rloo", "gae"])
def test_an_undecided_response_is_stored_and_counted_and_neither_paid_nor_charged(
    advantages, tmp_path, monkeypatch
):
    """The weights are those of a round that never saw it."""
    changes: dict[str, Any] = {
        "advantages": advantages,
        **({"value": CRITIC} if advantages == "gae" else {}),
    }
    responding(monkeypatch, 4, undecided=True)
    with_it, curves = train(tmp_path / "with", 4, **changes)
    responding(monkeypatch, 3)
    without, others = train(tmp_path / "without", 3, **changes)
    assert all(torch.equal(with_it[name], without[name]) for name in without)
    assert [row["undecided"] for row in curves["train"]] == [2, 2]
    assert [row["undecided"] for row in others["train"]] == [0, 0]
    stored = [row for row in rows(tmp_path / "with") if row["verdict"] == "undecided"]
    assert [(row["reward"], row["chunk_ends"]) for row in stored] == [(0.0, None)] * 2


def test_groups_without_two_decided_responses_are_counted_and_stop_a_round_that_has_no_others(
    tmp_path, monkeypatch
):
    responding(monkeypatch, 2, undecided=True)
    with pytest.raises(TrainingError, match="2 of 4 responses undecided"):
        train(tmp_path, 2)
    assert len(rows(tmp_path)) == 4
    collector = collector_on(sharp_model("sdar"), round_of("tracerl"), tmp_path)
    group = [written(TASKS[0], i, "rl@test", 1, "undecided" if i else None) for i in range(3)]
    wrong = [written(TASKS[0], i, "rl@test", 1, "wrong") for i in range(3)]
    assert collector.count_uninformative([group, wrong, [*group[1:], *wrong]]) == {
        "too_easy_groups": 0,
        "too_hard_groups": 2,
        "undecided_groups": 1,
    }


def with_chunks(trajectories: list[Any]) -> list[Rollout]:
    """Rollouts with some chunks and rewards."""
    rollouts = []
    for i, t in enumerate(trajectories):
        ends = np.unique([min(2 + i, t.num_tokens), t.num_tokens]).astype(np.int32)
        rewards = generator_for(1, "rewards", i).normal(size=len(ends)).astype(np.float32)
        rollouts.append(
            replace(
                rollout_of(t, float(i % 2)),
                chunks=Chunks(ends=ends, scores=np.ones(len(ends), np.float32), rewards=rewards),
            )
        )
    return rollouts


@pytest.mark.parametrize(
    ("family", "shrink"), [("sdar", 1), ("sdar", 2), ("llada", 3), ("dream", 1)]
)
def test_process_rewards_without_a_value_model_are_those_of_one_that_says_nothing(family, shrink):
    """With discount and trace 1 and a value of 0 everywhere, an advantage is what is paid from its
    step on."""
    policy, group = sharp_model(family), with_chunks(responses(family))
    settings: dict[str, Any] = {"train_block_size": 4, "shrink": shrink, "process": PROCESS}
    plain = estimator_on(policy, round_of("tracerl", advantages="group", **settings))
    round_settings = round_of("tracerl", advantages="gae", value=CRITIC, **settings)
    valued = estimator_on(policy, round_settings, critic_on(policy, round_settings, 2))
    ours, theirs = (estimator.estimate([group], 1)[0][0] for estimator in (plain, valued))
    for rollout, one, other in zip(group, ours, theirs, strict=True):
        size = rollout.trajectory.num_tokens
        np.testing.assert_allclose(one[:size], other[:size], rtol=0, atol=1e-6)
    assert any(
        len(np.unique(one[: r.trajectory.num_tokens].round(9))) > 1
        for r, one in zip(group, ours, strict=True)
    )
    bare = [replace(rollout, chunks=None) for rollout in group]
    assert all(len(np.unique(table)) == 1 for table in plain.estimate([bare], 1)[0][0])


@pytest.mark.parametrize(
    ("family", "shrink", "size"), [("sdar", 1, 4), ("sdar", 2, 8), ("llada", 3, 4), ("dream", 1, 4)]
)
def test_steps_are_the_groups_of_the_views_in_their_order(family, shrink, size):
    policy = sharp_model(family)
    for trajectory in responses(family):
        views = build_views(
            [trajectory],
            [trace_plan(trajectory, size, policy.family, shrink)],
            size,
            policy.family,
            0,
        )
        wanted = np.empty(trajectory.num_tokens, dtype=np.int64)
        wanted[views.token.numpy()] = np.unique(views.group.numpy(), return_inverse=True)[
            1
        ].reshape(-1)
        assert trace_steps(trajectory, size, policy.family, shrink).tolist() == wanted.tolist()


BLOCKS_OF_2: dict[str, Any] = {"block_size": 2, "steps_per_block": 2}


def test_end_tokens_that_are_trained_as_well_are_paid_nothing():
    """A response that ends after 3 tokens, then two more end tokens and an ordinary one; with
    num_pad 2 five tokens are trainable, and the chunk reward sits on the last step of its chunk."""
    trajectory = replace(
        make_trajectory(2, [1, 2, 3, 4, 5, 6], 3, 2),
        response_ids=np.array([5, 6, 1, 1, 2, 7], dtype=np.int32),
    )
    chunks = Chunks(
        ends=np.array([3], np.int32),
        scores=np.ones(1, np.float32),
        rewards=np.array([0.5], np.float32),
    )
    rollout = replace(rollout_of(trajectory, 1.0), chunks=chunks)
    for num_pad, paid in ((0, [0, 0, 1.5]), (1, [0, 0, 0.5, 1]), (2, [0, 0, 0.5, 0, 1])):
        settings = round_of(
            "tracerl", BLOCKS_OF_2, train_block_size=2, process=PROCESS, num_pad=num_pad
        )
        estimator = estimator_on(sharp_model("sdar"), settings)
        assert estimator.trainable(rollout).num_tokens == 3 + num_pad
        assert estimator.token_rewards(rollout, 1.0).tolist() == paid
    settings = round_of("tracerl", BLOCKS_OF_2, train_block_size=2, process=PROCESS, num_pad=9)
    longest = estimator_on(sharp_model("sdar"), settings).trainable(rollout)
    assert longest.num_tokens == 5, "an ordinary token ends the run of end tokens"


def test_mean_and_leave_one_out_standardise_steps_as_they_do_outcomes():
    rewarder = ProcessRewarder(judge=steps_judge, settings=Process(**PROCESS))
    group = [written(TASKS[0], i, "rl@test", 1) for i in range(3)]
    for kind, wanted in (("mean", [1 / 3, -2 / 3, 1 / 3]), ("rloo", [0.5, -1.0, 0.5])):
        paid, _ = rewarder.pay([group], kind, TOKENIZER)
        assert [r.chunks.rewards[0] for r in paid[0] if r.chunks is not None] == pytest.approx(
            wanted
        )
