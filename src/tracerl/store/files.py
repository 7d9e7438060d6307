"""Tasks and responses as rows of the store and back: the records of types.py on one side, Parquet
files on the other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tracerl import distributed
from tracerl.store.parquet import read_parquet, write_parquet
from tracerl.store.schema import ROLLOUTS, TASKS
from tracerl.types import Rollout, Task, Trajectory


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Writes one task set."""
    columns = {name: [getattr(task, name) for task in tasks] for name in TASKS.names}
    write_parquet(path, pa.table(columns, schema=TASKS))


def read_tasks(path: Path) -> list[Task]:
    """Tasks of one file, in its order. Raises DataError naming the file if it is damaged or of
    another schema."""
    return [Task(**row) for row in read_parquet(path, "tasks").to_pylist()]


def rollout_table(rollouts: Sequence[Rollout]) -> pa.Table:
    """Rollouts as rows of the store's schema."""
    rows = list(map(_row, rollouts))
    return pa.table({name: [row[name] for row in rows] for name in ROLLOUTS.names}, schema=ROLLOUTS)


def write_rollouts(path: Path, table: pa.Table) -> None:
    """Writes a rollout table as one Parquet file, aside and then renamed. Equal rows give equal
    bytes.

    Of several ranks, which all have the table, the first one writes; the file is there for all when
    this returns.
    """
    if distributed.is_first():
        write_parquet(path, table)
    distributed.barrier()


def read_rollouts(path: Path) -> pa.Table:
    """All rows of a rollout file. Raises DataError naming the file if it is damaged or of another
    schema."""
    return read_parquet(path, "rollouts")


def read_trajectories(path: Path, verdict: str) -> list[Trajectory]:
    """Trajectories of the rows of a rollout file that have this verdict, in its order."""
    trajectories = []
    for row in read_rollouts(path).to_pylist():
        if row["verdict"] == verdict:
            trajectories.append(_trajectory(row))
    return trajectories


def _row(rollout: Rollout) -> dict[str, Any]:
    trajectory = rollout.trajectory
    settings = rollout.settings
    has_filter = settings["top_k"] != 0 or settings["top_p"] != 1.0
    return {
        "rollout_id": rollout.rollout_id,
        "stage": rollout.stage,
        "iteration": rollout.iteration,
        "sample_index": rollout.sample_index,
        "policy_hash": rollout.policy_hash,
        "seed": rollout.seed,
        "text": rollout.text,
        "verdict": rollout.verdict,
        "detail": rollout.detail,
        "reward": rollout.reward,
        "reward_parts": list(rollout.reward_parts.items()),
        "chunk_ends": rollout.chunks and rollout.chunks.ends,
        "chunk_scores": rollout.chunks and rollout.chunks.scores,
        "chunk_rewards": rollout.chunks and rollout.chunks.rewards,
        "task_id": rollout.task.task_id,
        "task_set": rollout.task.task_set,
        "prompt_ids": trajectory.prompt_ids,
        "response_ids": trajectory.response_ids,
        "step_map": trajectory.step_map,
        "logprobs": trajectory.logprobs,
        "filtered_logprobs": trajectory.filtered_logprobs if has_filter else None,
        "order_in_step": trajectory.order_in_step,
        "order_logprobs": trajectory.order_logprobs,
        "num_prompt_tokens": trajectory.num_prompt_tokens,
        "num_tokens": trajectory.num_tokens,
        "num_steps": trajectory.num_steps,
        "num_denoising_forwards": trajectory.num_denoising_forwards,
        "num_forwards": trajectory.num_forwards,
        "canvas_length": trajectory.canvas_length,
        "stop_reason": trajectory.stop_reason,
        "block_size": trajectory.block_size,
        **settings,
    }


def _trajectory(row: dict[str, Any]) -> Trajectory:
    logprobs = np.array(row["logprobs"], dtype=np.float32)
    filtered = row["filtered_logprobs"]
    return Trajectory(
        prompt_ids=np.array(row["prompt_ids"], dtype=np.int32),
        response_ids=np.array(row["response_ids"], dtype=np.int32),
        step_map=np.array(row["step_map"], dtype=np.int32),
        logprobs=logprobs,
        filtered_logprobs=logprobs if filtered is None else np.array(filtered, dtype=np.float32),
        num_tokens=row["num_tokens"],
        block_size=row["block_size"],
        canvas_length=row["canvas_length"],
        stop_reason=row["stop_reason"],
        num_denoising_forwards=row["num_denoising_forwards"],
        num_forwards=row["num_forwards"],
        order_in_step=None
        if row["order_in_step"] is None
        else np.array(row["order_in_step"], dtype=np.int32),
        order_logprobs=None
        if row["order_logprobs"] is None
        else np.array(row["order_logprobs"], dtype=np.float32),
    )
