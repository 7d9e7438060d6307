"""The one Parquet schema of responses (traces, rollouts, evaluations) and that of tasks, versioned in the file metadata.

Encodings: token-level lists are split into byte streams and compressed with zstd (smallest and fastest of those measured for ids that are
nearly random); statistics are kept for scalar columns only.
"""

import pyarrow as pa

SCHEMA_VERSION = 1
VERSION_KEY = b"tracerl.schema_version"
_META = {VERSION_KEY: str(SCHEMA_VERSION).encode()}


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


TASKS = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("task_id", pa.string()),
            ("task_set", pa.string()),
            ("kind", pa.string()),
            ("split", pa.string()),
            ("difficulty", pa.int32()),
            ("prompt", pa.string()),
            ("answer", pa.string()),
            ("solution", pa.string()),
            ("spec", pa.string()),
        )
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
        pa.field("reward", pa.float64(), nullable=False),
        pa.field("reward_parts", pa.map_(pa.string(), pa.float64()), nullable=False),
        # the trajectory
        pa.field("prompt_ids", _list(pa.int32()), nullable=False),
        pa.field("response_ids", _list(pa.int32()), nullable=False),
        pa.field("step_map", _list(pa.int32()), nullable=False),
        pa.field("logprobs", _list(pa.float32()), nullable=False),
        pa.field("filtered_logprobs", _list(pa.float32())),
        pa.field("order_in_step", _list(pa.int32())),
        pa.field("order_logprobs", _list(pa.float32())),
        pa.field("num_tokens", pa.int32(), nullable=False),
        pa.field("num_steps", pa.int32(), nullable=False),
        pa.field("num_denoising_forwards", pa.int32(), nullable=False),
        pa.field("num_forwards", pa.int32(), nullable=False),
        pa.field("canvas_length", pa.int32(), nullable=False),
        pa.field("stop_reason", pa.string(), nullable=False),
        # how it was sampled
        pa.field("block_size", pa.int32(), nullable=False),
        pa.field("steps_per_block", pa.int32(), nullable=False),
        pa.field("remasking", pa.string(), nullable=False),
        pa.field("threshold", pa.float64(), nullable=False),
        pa.field("confidence", pa.string(), nullable=False),
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("top_k", pa.int32(), nullable=False),
        pa.field("top_p", pa.float64(), nullable=False),
        pa.field("max_new_tokens", pa.int32(), nullable=False),
        pa.field("cache_mode", pa.string(), nullable=False),
        pa.field("cache_horizon", pa.int32()),
    ],
    metadata=_META,
)
