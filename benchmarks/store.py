"""The store at scale: synthetic rollouts of 256 tokens, their size, the ten questions of
docs/sql.md, memory, and validation.

Run: python -m benchmarks.store [--rows 1000000] [--folder DIR]

What is synthetic: token ids follow a Zipf-Mandelbrot law of 8.2 bits a token over shuffled ids of a
vocabulary of 151,936, independent of each other. Real solutions have 6.8 (GSM8K) to 8.0 bits
(MATH-500) as single tokens, and repeat themselves besides. Steps are those of dynamic sampling in
blocks of 4 with every number of steps per block equally likely. Log-probabilities are not
compressible.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracerl.seeds import generator_for
from tracerl.store.files import write_rollouts, write_tasks
from tracerl.store.parquet import ROWS_PER_GROUP, seal
from tracerl.store.schema import ROLLOUTS
from tracerl.types import Task

TOKENS, PROMPT, VOCAB_SIZE, BLOCK, GROUP, TASKS = 256, 64, 151_936, 4, 32, 4096


def make_table(iteration: int, rows: int, ids: np.ndarray, cumulative: np.ndarray) -> pa.Table:
    """One iteration's rollouts: groups of 32 responses to a prompt, made without a model."""
    rng = generator_for(0, "benchmark", iteration)
    groups = -(-rows // GROUP)
    task = np.repeat((iteration * groups + np.arange(groups)) % TASKS, GROUP)[:rows]
    task_id, sample = [f"mixed/{i:04d}" for i in task], np.arange(rows) % GROUP
    response = ids[np.searchsorted(cumulative, rng.random((rows, TOKENS)))]
    prompt = ids[np.searchsorted(cumulative, np.random.default_rng(0).random((TASKS, PROMPT)))][
        task
    ]
    per_block = rng.integers(1, BLOCK + 1, (rows, TOKENS // BLOCK, 1))
    inside = rng.random((rows, TOKENS // BLOCK, BLOCK)).argsort(-1) * per_block // BLOCK
    steps = (inside + per_block.cumsum(1) - per_block + 1).reshape(rows, TOKENS)
    correct = rng.random(rows) < 0.3 + 0.5 * (task / TASKS)
    columns = {
        "rollout_id": [
            f"rl@big/{iteration:05d}/{t}/{s}" for t, s in zip(task_id, sample, strict=True)
        ],
        "sample_index": sample,
        "task_id": task_id,
        "text": ["#1"] * rows,
        "verdict": np.where(correct, "correct", "wrong"),
        "reward": correct.astype(np.float64),
        "reward_parts": [[("correct", float(c))] for c in correct],
        "prompt_ids": _lists(prompt, pa.int32()),
        "response_ids": _lists(response, pa.int32()),
        "step_map": _lists(steps, pa.int32()),
        "logprobs": _lists(-rng.exponential(0.3, (rows, TOKENS)), pa.float32()),
        "num_steps": steps.max(1),
        "num_denoising_forwards": steps.max(1),
        "num_forwards": steps.max(1) + TOKENS // BLOCK,
    }
    same = {
        **{
            "stage": "rl@big",
            "iteration": iteration,
            "task_set": "mixed",
            "policy_hash": f"{iteration:016x}",
            "seed": 0,
        },
        **{
            "num_prompt_tokens": PROMPT,
            "num_tokens": TOKENS,
            "canvas_length": PROMPT + TOKENS,
            "stop_reason": "length",
        },
        **{
            "block_size": BLOCK,
            "steps_per_block": BLOCK,
            "schedule": "even",
            "remasking": "dynamic",
            "threshold": 0.9,
        },
        **{
            "confidence": "raw",
            "confidence_of": "drawn",
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "guidance": 0.0,
        },
        **{"opening": "", "max_new_tokens": TOKENS, "cache_mode": "exact"},
    }
    arrays = {
        name: value if isinstance(value, pa.Array) else pa.array(value, ROLLOUTS.field(name).type)
        for name, value in columns.items()
    }
    empty = {
        field.name: pa.array([same.get(field.name)] * rows, field.type)
        for field in ROLLOUTS
        if field.name not in columns
    }
    return pa.table(
        {field.name: {**arrays, **empty}[field.name] for field in ROLLOUTS}, schema=ROLLOUTS
    )


def _lists(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    offsets = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
    flat = pa.array(values.reshape(-1), kind, safe=False)
    return pa.ListArray.from_arrays(
        offsets, flat, type=pa.list_(pa.field("element", kind, nullable=False))
    )


def write(folder: Path, rows: int) -> float:
    """Writes tasks and rollouts below `folder`/data; returns the seconds it took to encode and
    write the rollouts."""
    tasks = [
        Task(
            task_id=f"mixed/{i:04d}",
            task_set="mixed",
            kind="sums",
            split="train",
            difficulty=1 + i % 8,
            prompt=f"{i}=",
            answer="1",
            solution="#1",
        )
        for i in range(TASKS)
    ]
    write_tasks(folder / "data" / "tasks" / "mixed.parquet", tasks)
    seal(folder / "data" / "tasks")
    weights = 1 / (np.arange(1, VOCAB_SIZE + 1) + 2.7) ** 1.355
    weights /= weights.sum()
    print(f"entropy of the token ids: {-(weights * np.log2(weights)).sum():.2f} bits")
    ids, cumulative, spent = (
        np.random.default_rng(1).permutation(VOCAB_SIZE).astype(np.int32),
        weights.cumsum(),
        0.0,
    )
    cumulative[-1] = 1.0
    target = folder / "data" / "rollouts" / "rl@big"
    for iteration, first in enumerate(range(0, rows, ROWS_PER_GROUP), start=1):
        table = make_table(iteration, min(ROWS_PER_GROUP, rows - first), ids, cumulative)
        start = time.perf_counter()
        write_rollouts(target / f"iter-{iteration:05d}.parquet", table)
        spent += time.perf_counter() - start
    seal(target)
    return spent


def sizes(folder: Path, rows: int) -> dict[str, float]:
    """Compressed bytes per response token of each list column."""
    total: dict[str, int] = {}
    for path in (folder / "data" / "rollouts").rglob("*.parquet"):
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                name = column.path_in_schema.split(".")[0]
                total[name] = total.get(name, 0) + column.total_compressed_size
    return {name: size / (rows * TOKENS) for name, size in total.items()}


# What each child process does: its peak memory is its own.
_QUESTIONS = """
import json, re, resource, sys, time
from pathlib import Path
from tracerl.store.catalog import answer, connect
start = time.perf_counter()
connection = connect(sys.argv[1])
times = {"connect": time.perf_counter() - start}
docs = Path("docs/sql.md").read_text()
for number, title, sql in re.findall(r"### (\\d+)\\. (.*?)\\n.*?```sql\\n(.*?)```", docs, re.S):
    if "decoded" in sql:
        sql = sql.replace("decoded(response_ids)", "text")  # there is no tokenizer here
    start, busy = time.perf_counter(), time.process_time()
    answer(connection, sql)
    times[number + ". " + title] = [time.perf_counter() - start, time.process_time() - busy]
print(json.dumps({"times": times, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
_VALIDATION = """
import json, resource, sys, time
start, busy = time.perf_counter(), time.process_time()
from pathlib import Path
from tracerl.settings.evaluation import Validation
from tracerl.store.expectations import check_expectations, collect_evidence
bounds = Validation(pass_rate=(0.02, 1.0), truncation=1.0, undecided=0.05, drift=0.5)
outcomes = check_expectations(collect_evidence(Path(sys.argv[1]), "rollouts", 151_936, {}), bounds)
failed = [outcome.name for outcome in outcomes if not outcome.success]
seconds = [time.perf_counter() - start, time.process_time() - busy]
print(json.dumps({"times": {"validate": seconds}, "failed": failed,
                  "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def run(code: str, folder: Path) -> dict[str, Any]:
    """What a child process prints of its times and memory."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--folder", type=Path, help="keep the rollouts there, and use those that are there already"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        if not (folder / "data").exists():
            print(f"written in {write(folder, options.rows):.1f} s")
        by_column = sizes(folder, options.rows)
        both = by_column["response_ids"] + by_column["step_map"]
        print(
            f"bytes per token: tokens {by_column['response_ids']:.3f} + steps "
            f"{by_column['step_map']:.3f} = {both:.3f} (at most 2.0); "
            f"log-probabilities {by_column['logprobs']:.3f}"
        )
        for name, code in (("questions", _QUESTIONS), ("validation", _VALIDATION)):
            figures = run(code, folder)
            for what, value in figures["times"].items():
                wall, busy = value if isinstance(value, list) else (value, value)
                print(f"{wall:7.2f} s ({busy:.2f} s of processors)  {what}")
            print(
                f"{name}: {figures['mb']:.0f} MB at most (limit 500), failed: "
                f"{figures.get('failed', [])}"
            )


if __name__ == "__main__":
    main()
