"""RL rounds for tests: the shipped params with another method, and rounds around a model without a
params file or a folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.tiny import END_IDS, MASK_ID
from tracerl.models.policy import Policy
from tracerl.settings.methods import METHOD_KEYS, WHOLE_RESPONSE
from tracerl.settings.training import RlRound
from tracerl.store.workspace import Workspace
from tracerl.training.rl import Batch, ValueSide, _Round
from tracerl.training.trainer import Trainer
from tracerl.types import Rollout, Task, Trajectory

SHIPPED = Path(__file__).parents[1] / "params.yaml"
# A value for every key that only some methods have.
METHOD_VALUES: dict[str, Any] = {
    "copies": 2,
    "noise": [0.2, 0.8],
    "prompt_masking": 0.15,
    "nodes": 3,
    "bound_exponent": 1.5,
    "bound_share": 0.5,
    "segments": 3,
    "order_weight": 1.0,
    "order_clip": [0.2, 0.2],
}
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
OWN_RATIO = {
    "wd1": "none",
    "spg": "none",
    "gdpo": "sequence",
    "espo": "sequence",
    "step_merge": "sequence",
    "mask_aware": "sequence",
}


def round_of(method: str, sampler: dict[str, Any] | None = None, **changes: Any) -> RlRound:
    """The shipped round rl.short with this method, its keys, and changes."""
    data = yaml.safe_load(SHIPPED.read_text())["rl"]["short"]
    data.update(
        method=method,
        ratio=OWN_RATIO.get(method, "token"),
        **{key: METHOD_VALUES[key] for key in METHOD_KEYS[method]},
    )
    if method in WHOLE_RESPONSE:
        data.update(kl="k2")
    data.update(changes)
    if method == "mask_aware":
        sampler = {
            "remasking": "plackett_luce",
            "order_temperature": 0.5,
            "order_score": "max_logit",
            **(sampler or {}),
        }
    data["sampler"] = {**data["sampler"], **(sampler or {})}
    return RlRound.model_validate_json(json.dumps(data))


class TinyTokenizer:
    """What a round asks of a tokenizer, for the vocabulary of tests/tiny.py."""

    mask_id, end_ids = MASK_ID, END_IDS


def round_on(
    model: Policy,
    settings: RlRound,
    folder: Path,
    reference: Policy | None = None,
    value: ValueSide | None = None,
) -> _Round:
    tokenizer: Any = TinyTokenizer()
    trainer = Trainer(
        model, settings.optimizer, settings.iterations * settings.updates * settings.epochs
    )
    return _Round(
        model, trainer, reference, value, tokenizer, settings, True, 1, "rl@test", Workspace(folder)
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
    return Batch(
        trajectories,
        [np.full(len(t.response_ids), a) for t, a in zip(trajectories, advantages, strict=True)],
    )
