"""RL rounds for tests: the shipped params with another method, and rounds around a model without a
params file or a folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.tiny import END_IDS, MASK_ID
from tracerl.models.policy import Policy
from tracerl.models.value import ValueModel
from tracerl.settings.defaults import resolve
from tracerl.settings.methods import Method
from tracerl.settings.models import Launch
from tracerl.settings.rounds import RlRound
from tracerl.settings.structure import sections, tag_of
from tracerl.training.collect import Collector, Judging
from tracerl.training.credit import AdvantageEstimator
from tracerl.training.critic import Critic
from tracerl.training.policy_update import Batch, PolicyUpdate
from tracerl.training.rl import TaskPools, make_batch
from tracerl.training.run_context import RunContext
from tracerl.training.scratch import Workspace
from tracerl.training.trainer import Trainer
from tracerl.types import Rollout, Task, Trajectory

SHIPPED = Path(__file__).parents[1] / "params.yaml"
# Every method with values of its own keys.
METHOD_VALUES: dict[str, dict[str, Any]] = {
    "tracerl": {},
    "random": {"copies": 2, "noise": [0.2, 0.8]},
    "coupled": {"copies": 2, "noise": [0.2, 0.8]},
    "diffucoder": {"copies": 2, "noise": [0.2, 0.8]},
    "diffu_grpo": {"prompt_masking": 0.15},
    "wd1": {"prompt_masking": 0.15},
    "spg": {"copies": 2, "noise": [0.2, 0.8], "bound_exponent": 1.5, "bound_share": 0.5},
    "gdpo": {"copies": 2, "nodes": 3},
    "espo": {"copies": 2, "noise": [0.2, 0.8]},
    "step_merge": {"segments": 3},
    "mask_aware": {"segments": 3, "order_weight": 1.0, "order_clip": [0.2, 0.2]},
}
PLACKETT_LUCE = {"kind": "plackett_luce", "temperature": 0.5, "score": "max_logit"}
# A judge behind a server that nobody runs.
SERVER: dict[str, Any] = {
    "kind": "server",
    "url": "http://127.0.0.1:9/v1",
    "model": "m",
    "api_key_variable": None,
    "temperature": 0.0,
    "max_answer_tokens": 50,
    "timeout_seconds": 0.4,
    "retries": 2,
    "backoff_seconds": 0.01,
    "concurrency": 8,
    "instructions": "",
}
CRITIC: dict[str, Any] = {
    "start": "policy",
    "discount": 1.0,
    "trace": 1.0,
    "clip": 10.0,
    "every": 1,
    "updates": 2,
    "optimizer": {
        "lr": 0.01,
        "betas": [0.9, 0.99],
        "weight_decay": 0.0,
        "clip_norm": 1.0,
        "warmup": 0,
        "decay": 0.0,
    },
}
METHODS: list[Any] = sections(Method)
OWN_RATIO = {
    "wd1": "none",
    "spg": "none",
    "gdpo": "sequence",
    "espo": "sequence",
    "step_merge": "sequence",
    "mask_aware": "sequence",
}


def round_of(method: str, sampler: dict[str, Any] | None = None, **changes: Any) -> RlRound:
    """The shipped round rl.short with this method, its keys, and changes of the round and of the
    method."""
    data = resolve(yaml.safe_load(SHIPPED.read_text()))["rl"]["short"]
    keys = {key: changes.pop(key, value) for key, value in METHOD_VALUES[method].items()}
    data.update(method={"kind": method, **keys}, ratio=OWN_RATIO.get(method, "token"))
    order = {}
    for section in METHODS:
        if tag_of(section) == method:
            if section.unit == "response":
                data["kl"] = "k2"
            elif data["ratio"] == "sequence":
                data["reduction"] = "response"
            if section.scores_order:
                order = {"order": PLACKETT_LUCE}
    data.update(changes)
    data["sampler"] = {**data["sampler"], **order, **(sampler or {})}
    return RlRound.model_validate_json(json.dumps(data))


class TinyTokenizer:
    """What a round asks of a tokenizer, for the vocabulary of tests/tiny.py."""

    mask_id, end_ids = MASK_ID, END_IDS


def trainer_on(model: Policy, settings: RlRound) -> Trainer[Policy]:
    num_steps = settings.iterations * settings.updates * settings.epochs
    return Trainer(model, settings.optimizer, num_steps)


def update_on(
    model: Policy,
    settings: RlRound,
    reference: Policy | None = None,
    trainer: Trainer[Policy] | None = None,
) -> PolicyUpdate:
    return PolicyUpdate(
        trainer=trainer or trainer_on(model, settings),
        settings=settings,
        mask_id=MASK_ID,
        seed=1,
        stage="rl@test",
        reference=reference,
    )


def estimator_on(
    model: Policy, settings: RlRound, critic: Critic | None = None
) -> AdvantageEstimator:
    tokenizer: Any = TinyTokenizer()
    return AdvantageEstimator(
        settings=settings,
        family=model.family,
        tokenizer=tokenizer,
        seed=1,
        stage="rl@test",
        critic=critic,
    )


def collector_on(model: Policy, settings: RlRound, folder: Path) -> Collector:
    tokenizer: Any = TinyTokenizer()
    return Collector(
        model=model,
        tokenizer=tokenizer,
        settings=settings,
        judging=Judging(truncated_is_wrong=True),
        seed=1,
        stage="rl@test",
        folder=folder,
    )


def critic_on(policy: Policy, settings: RlRound, num_steps: int) -> Critic:
    assert settings.value is not None
    model = ValueModel(policy)
    trainer = Trainer(model, settings.value.optimizer, num_steps)
    return Critic(settings=settings.value, trainer=trainer)


def learn(update: PolicyUpdate, groups: list[list[Rollout]], iteration: int) -> None:
    """One optimizer step on groups of rollouts."""
    estimator = estimator_on(update.trainer.model, update.settings)
    advantages, _ = estimator.estimate(groups, iteration)
    batch = make_batch(estimator, groups, advantages, range(len(groups)))
    update.step(update.prepare(batch, iteration, 0))


def ignore_progress(done: int, total: int, text: str) -> None:
    pass


def run_context(
    folder: Path,
    on_progress: Callable[[int, int, str], None] = ignore_progress,
    launch: Launch | None = None,
    stage: str = "rl@test",
) -> RunContext:
    return RunContext(
        seed=1,
        stage=stage,
        workspace=Workspace(folder),
        on_progress=on_progress,
        launch=launch,
    )


def by_split(tasks: list[Task]) -> TaskPools:
    """The tasks, all of one set, by their split."""
    name = tasks[0].task_set
    return TaskPools(
        train={name: [task for task in tasks if task.split == "train"]},
        held_out={name: [task for task in tasks if task.split == "test"]},
    )


def rollout_of(trajectory: Trajectory, reward: float) -> Rollout:
    task = Task(
        task_id="set/1",
        task_set="set",
        kind="text",
        split="train",
        difficulty=1,
        prompt="",
        answer="",
        solution="",
    )
    return Rollout(
        rollout_id="",
        stage="rl@test",
        iteration=1,
        sample_index=0,
        task=task,
        trajectory=trajectory,
        text="",
        reward=reward,
        verdict="correct",
        policy_hash="",
        seed=1,
        settings={},
    )


def batch_of(trajectories: list[Trajectory], advantages: list[float]) -> Batch:
    tables = []
    for trajectory, advantage in zip(trajectories, advantages, strict=True):
        tables.append(np.full(len(trajectory.response_ids), advantage))
    return Batch(trajectories=trajectories, advantages=tables)
