"""Reading and writing Parquet files of tasks and responses. A file is complete or absent; a bad one is named, never skipped."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracerl.errors import DataError
from tracerl.store.schema import ROLLOUTS, SCHEMA_VERSION, TASKS, VERSION_KEY
from tracerl.types import Rollout, Task, Trajectory

_LIST_LEAVES = [f"{field.name}.list.element" for field in ROLLOUTS if pa.types.is_list(field.type)]
_SCALARS = [field.name for field in ROLLOUTS if not pa.types.is_nested(field.type)]


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Writes one task set."""
    columns = {name: [getattr(task, name) for task in tasks] for name in TASKS.names}
    _write(path, pa.table(columns, schema=TASKS))


def read_tasks(path: Path) -> list[Task]:
    """Tasks of one file, in its order. Raises DataError naming the file if it is damaged or of another schema."""
    return [Task(**row) for row in _read(path, TASKS, optional=("spec",)).to_pylist()]


def rollout_table(rollouts: Sequence[Rollout]) -> pa.Table:
    """Rollouts as rows of the store's schema."""
    rows = [_row(rollout) for rollout in rollouts]
    return pa.table({name: [row[name] for row in rows] for name in ROLLOUTS.names}, schema=ROLLOUTS)


def write_rollouts(path: Path, table: pa.Table) -> None:
    """Writes a rollout table as one Parquet file, aside and then renamed. Equal rows give equal bytes."""
    _write(
        path,
        table,
        row_group_size=8192,
        use_dictionary=_SCALARS,
        write_statistics=_SCALARS,
        column_encoding=dict.fromkeys(_LIST_LEAVES, "BYTE_STREAM_SPLIT"),
    )


def read_rollouts(path: Path) -> pa.Table:
    """All rows of a rollout file. Raises DataError naming the file if it is damaged or of another schema."""
    return _read(path, ROLLOUTS)


def read_trajectories(path: Path, verdict: str) -> list[Trajectory]:
    """Trajectories of the rows of a rollout file that have this verdict, in its order."""
    return [_trajectory(row) for row in read_rollouts(path).to_pylist() if row["verdict"] == verdict]


def _row(rollout: Rollout) -> dict[str, Any]:
    trajectory, settings = rollout.trajectory, rollout.settings
    own = ("rollout_id", "stage", "iteration", "sample_index", "policy_hash", "seed", "text", "verdict", "reward")
    lists = ("prompt_ids", "response_ids", "step_map", "logprobs")
    scalars = ("num_tokens", "num_steps", "num_denoising_forwards", "num_forwards", "canvas_length", "stop_reason", "block_size")
    filtered = settings["top_k"] != 0 or settings["top_p"] != 1.0
    return {
        **{name: getattr(rollout, name) for name in own},
        "reward_parts": list(rollout.reward_parts.items()),
        "task_id": rollout.task.task_id,
        "task_set": rollout.task.task_set,
        **{name: getattr(trajectory, name) for name in lists},
        "filtered_logprobs": trajectory.filtered_logprobs if filtered else None,
        "order_in_step": None,
        "order_logprobs": None,
        **{name: getattr(trajectory, name) for name in scalars},
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
    )


def _write(path: Path, table: pa.Table, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    try:
        pq.write_table(table, aside, compression="zstd", **options)
        os.replace(aside, path)
    except BaseException as error:
        aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DataError("a Parquet file could not be written", where=str(path), got=error,
                            do="free disk space and run the same command again: it resumes") from error  # fmt: skip
        raise


def _read(path: Path, schema: pa.Schema, optional: Sequence[str] = ()) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError("a Parquet file is damaged or missing", where=str(path), got=error,
                        do="delete it and run the stage that wrote it again") from error  # fmt: skip
    version = (table.schema.metadata or {}).get(VERSION_KEY)
    if version != str(SCHEMA_VERSION).encode():
        raise DataError("a Parquet file has another schema version", where=str(path), got=version, wanted=SCHEMA_VERSION)
    missing = [name for name in schema.names if name not in table.schema.names and name not in optional]
    if missing:
        raise DataError("a Parquet file lacks columns", where=str(path), got=table.schema.names, wanted=missing)
    return table
