"""An iteration of RL with one process of one thread against several: seconds, and whether they
sampled and learned the same.

    python -m benchmarks.ranks
    python -m benchmarks.ranks --ranks 2 --iterations 3 --hidden 192

The two are timed in turn, and the median of each counts; a row goes to
reports/metrics/benchmarks.json. Needs as many free cores as ranks.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

from benchmarks.rows import merge_rows, row
from tracerl import distributed
from tracerl.models.policy import new_model, shape_architecture
from tracerl.models.tokenizer import character_tokenizer
from tracerl.seeds import generator_for
from tracerl.settings.models import Launch
from tracerl.settings.params import parse_params
from tracerl.store.files import read_rollouts
from tracerl.tasks import make_task_set
from tracerl.training.collect import Judging
from tracerl.training.rl import ROLLOUTS, Models, TaskPools, train_rl
from tracerl.training.run_context import RunContext
from tracerl.training.scratch import Workspace

ROOT = Path(__file__).resolve().parents[1]
TARGET = 1.6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes (2)")
    parser.add_argument(
        "--iterations", type=int, default=3, help="timed iterations, after one that is not (3)"
    )
    parser.add_argument("--hidden", type=int, default=192, help="hidden size of the model (192)")
    parser.add_argument("--zero", type=int, default=0, help="ZeRO stage (0)")
    parser.add_argument(
        "--rounds", type=int, default=2, help="how often both are timed, in turn (2)"
    )
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of is not None:
        return rank_of(options)
    seconds: dict[int, list[float]] = {1: [], options.ranks: []}
    seen: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(options.rounds):
            for ranks, times in seconds.items():
                out = Path(scratch) / f"{number}-{ranks}"
                out.mkdir()
                command = [
                    sys.executable,
                    "-m",
                    "torch.distributed.run",
                    "--standalone",
                    "--nproc-per-node",
                    str(ranks),
                ]
                command += ["-m", "benchmarks.ranks", *sys.argv[1:], "--rank-of", str(out)]
                subprocess.run(
                    command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=ROOT
                )
                found = json.loads((out / "found.json").read_text())
                times += found.pop("seconds")
                seen[ranks] = found
    one, several = median(seconds[1]), median(seconds[options.ranks])
    mine, theirs = (dict(found["responses"]) for found in seen.values())
    same = sum(mine[name] == theirs[name] for name in mine)
    equal = same == len(mine) == len(theirs)
    print(
        f"one process {one:.2f} s, {options.ranks} processes {several:.2f} s an iteration: "
        f"{one / several:.2f} times (target {TARGET})"
    )
    merge_rows(
        [
            row(
                f"ranks/{options.ranks}-of-one-thread",
                several,
                one,
                TARGET,
                equal,
                zero=options.zero,
            )
        ]
    )
    losses = [found["losses"] for found in seen.values()]
    print(
        f"the same responses in the first iteration: {same} of {len(mine)}; losses {losses[0]} "
        f"and {losses[1]}"
    )


def rank_of(options: argparse.Namespace) -> None:
    """One rank's part of the timed iterations; the first one writes what it saw."""
    torch.set_num_threads(1)
    distributed.join()
    data = yaml.safe_load((ROOT / "params.yaml").read_text())
    total = options.iterations + 1
    data["rl"]["short"].update(iterations=total, groups=32, pass_rate=[0.0, 1.0], save_every=total)
    data["rl"]["short"]["held_out"].update(every=total, num_problems=1)
    data["base"]["model"].update(hidden_size=options.hidden, intermediate_size=3 * options.hidden)
    params = parse_params(data, where="params.yaml")
    settings, tokenizer = params.rl["short"], character_tokenizer()
    architecture = shape_architecture(params.base.model, tokenizer)
    model = new_model(architecture, generator_for(1, "weights")).eval()
    tasks = {
        name: make_task_set(name, params.tasks.sets[name], params.tasks.held_out, params.seed, ROOT)
        for name in settings.tasks
    }
    train, test = (
        {name: [t for t in pool if t.split == split] for name, pool in tasks.items()}
        for split in ("train", "test")
    )
    marks = []

    def mark(done: int, total: int, text: str) -> None:
        distributed.barrier()
        marks.append(time.perf_counter())

    launch = Launch(
        ranks=distributed.size(), hosts=[], port=29400, zero=options.zero, offload=False
    )
    curves = train_rl(
        Models(policy=model, tokenizer=tokenizer),
        TaskPools(train=train, held_out=test),
        settings,
        Judging(truncated_is_wrong=True),
        RunContext(
            seed=1,
            stage="rl@bench",
            workspace=Workspace(options.rank_of / "w"),
            on_progress=mark,
            launch=launch,
        ),
    )
    if distributed.is_first():
        first = read_rollouts(options.rank_of / "w" / ROLLOUTS / "iter-00001.parquet")
        found = {
            "seconds": [after - before for before, after in pairwise(marks)],
            "responses": {
                one["rollout_id"]: [one["response_ids"], one["step_map"]]
                for one in first.to_pylist()
            },
            "losses": [round(row["loss"], 6) for row in curves["train"]],
        }
        (options.rank_of / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
