"""The one Parquet schema of responses (traces, rollouts, evaluations) and that of tasks, versioned
in the file metadata.

A change of the columns is a new version: raise SCHEMA_VERSION and say in MIGRATIONS what the new
columns hold in rows written before it. Files are never rewritten; readers and views bring old rows
up to date while they read. A version that is newer than this one is refused.

Encodings are the smallest of those measured (benchmarks/store.py): response ids by dictionary (a
response holds few of a vocabulary's words), steps by their differences (which are small),
log-probabilities split into byte streams; all compressed with zstd. Statistics are kept for scalar
columns only.
"""

from typing import NamedTuple

import pyarrow as pa

SCHEMA_VERSION = 4
VERSION_KEY = b"tracerl.schema_version"
# Of a file of responses: what their verdicts depend on besides task and text, as JSON.
JUDGED_BY_KEY = b"tracerl.judged_by"
_META = {VERSION_KEY: str(SCHEMA_VERSION).encode()}


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


TASKS = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("task_set", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("difficulty", pa.int32(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("answer", pa.string(), nullable=False),
        pa.field("solution", pa.string(), nullable=False),
        pa.field("spec", pa.string(), nullable=False),
    ],
    metadata=_META,
)

ROLLOUTS = pa.schema(
    [
        # whose response it is
        pa.field("rollout_id", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("iteration", pa.int32(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("task_set", pa.string(), nullable=False),
        pa.field("policy_hash", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        # what was judged
        pa.field("text", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("reward", pa.float64(), nullable=False),
        pa.field("reward_parts", pa.map_(pa.string(), pa.float64()), nullable=False),
        # its chunks, where a judge scored them (docs/judges.md)
        pa.field("chunk_ends", _list(pa.int32())),
        pa.field("chunk_scores", _list(pa.float32())),
        pa.field("chunk_rewards", _list(pa.float32())),
        # the trajectory
        pa.field("prompt_ids", _list(pa.int32()), nullable=False),
        pa.field("response_ids", _list(pa.int32()), nullable=False),
        pa.field("step_map", _list(pa.int32()), nullable=False),
        pa.field("logprobs", _list(pa.float32()), nullable=False),
        pa.field("filtered_logprobs", _list(pa.float32())),
        pa.field("order_in_step", _list(pa.int32())),
        pa.field("order_logprobs", _list(pa.float32())),
        pa.field("num_prompt_tokens", pa.int32(), nullable=False),
        pa.field("num_tokens", pa.int32(), nullable=False),
        pa.field("num_steps", pa.int32(), nullable=False),
        pa.field("num_denoising_forwards", pa.int32(), nullable=False),
        pa.field("num_forwards", pa.int32(), nullable=False),
        pa.field("canvas_length", pa.int32(), nullable=False),
        pa.field("stop_reason", pa.string(), nullable=False),
        # how it was sampled
        pa.field("block_size", pa.int32(), nullable=False),
        pa.field("steps_per_block", pa.int32(), nullable=False),
        pa.field("schedule", pa.string(), nullable=False),
        pa.field("remasking", pa.string(), nullable=False),
        pa.field("threshold", pa.float64()),
        pa.field("entropy_bound", pa.float64()),
        pa.field("order_temperature", pa.float64()),
        pa.field("order_score", pa.string()),
        pa.field("confidence", pa.string(), nullable=False),
        pa.field("confidence_of", pa.string(), nullable=False),
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("top_k", pa.int32(), nullable=False),
        pa.field("top_p", pa.float64(), nullable=False),
        pa.field("guidance", pa.float64(), nullable=False),
        pa.field("opening", pa.string(), nullable=False),
        pa.field("max_new_tokens", pa.int32(), nullable=False),
        pa.field("cache_mode", pa.string(), nullable=False),
        pa.field("cache_horizon", pa.int32()),
        pa.field("refresh_every", pa.int32()),
        pa.field("refresh_sees", pa.string()),
    ],
    metadata=_META,
)

SCHEMAS = {"tasks": TASKS, "rollouts": ROLLOUTS}


class Dataset(NamedTuple):
    """Where the files of a data set lie, and the schema they have."""

    folder: str
    """Its folders below data/, a pattern."""

    table: str
    """Its schema in SCHEMAS."""

    scratch: str | None
    """Folders below data/ where stages that have not ended keep theirs; None if there are none."""

    held_out: str | None
    """SQL that is true of a response to a held-out problem; None where rows are no responses."""


# `rollouts` holds the RL rounds' training and held-out responses.
DATASETS = {
    "tasks": Dataset("tasks", "tasks", None, None),
    "traces": Dataset("traces", "rollouts", "scratch/traces-*/traces", "false"),
    "rollouts": Dataset(
        "rollouts/*", "rollouts", "scratch/rl@*/rollouts", "contains(stage, '/held-out')"
    ),
    "evals": Dataset("evals/*", "rollouts", "scratch/evaluate@*/rows", "true"),
}

# Columns that the views of responses add to the stored ones, and what each is.
MARKS = {
    "held_out": "whether the response is to a held-out problem",
    "unfinished": "whether its stage has not ended: the row lies in data/scratch",
    "outdated": "whether params or an input changed since the stage ran, as dvc.lock has it",
}


def view_columns(dataset: str) -> list[str]:
    """Columns of the view of a data set, in their order."""
    _, table, _, held_out = DATASETS[dataset]
    return [*SCHEMAS[table].names, *(MARKS if held_out is not None else ())]


# Version -> table -> the columns that the next version added, as DuckDB expressions over a row of
# this version.
MIGRATIONS: dict[int, dict[str, dict[str, str]]] = {
    1: {
        "tasks": {"spec": "''"},
        "rollouts": {
            "num_prompt_tokens": "len(prompt_ids)::INTEGER",
            "schedule": "'even'",
            "entropy_bound": "NULL::DOUBLE",
            "order_temperature": "NULL::DOUBLE",
            "order_score": "NULL::VARCHAR",
            "confidence_of": "'drawn'",
            "guidance": "0.0::DOUBLE",
            "opening": "''",
            "refresh_every": "NULL::INTEGER",
            "refresh_sees": "NULL::VARCHAR",
        },
    },
    2: {
        "rollouts": {
            "detail": "''",
            "chunk_ends": "NULL::INTEGER[]",
            "chunk_scores": "NULL::FLOAT[]",
            "chunk_rewards": "NULL::FLOAT[]",
        }
    },
    3: {},  # threshold is null where the order has none
}

# Encodings of list columns; a column that is not named is dictionary-encoded.
LIST_ENCODINGS = {
    "prompt_ids": "PLAIN",  # the prompts of a group are equal and compress to one
    "step_map": "DELTA_BINARY_PACKED",
    "logprobs": "BYTE_STREAM_SPLIT",
    "filtered_logprobs": "BYTE_STREAM_SPLIT",
    "order_in_step": "DELTA_BINARY_PACKED",
    "order_logprobs": "BYTE_STREAM_SPLIT",
}


def upgrades(table: str, version: int) -> dict[str, str]:
    """Columns that rows of `table` written under `version` lack, as expressions over such a row,
    oldest first."""
    expressions: dict[str, str] = {}
    for older in range(version, SCHEMA_VERSION):
        expressions |= MIGRATIONS[older].get(table, {})
    return expressions
