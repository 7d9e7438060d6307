"""A chain of supervised training and RL in bfloat16 beside the same in float32: both reward curves.

    python -m benchmarks.half_precision                       # some minutes on one core
    python -m benchmarks.half_precision --out curves.tsv      # the curves as a table

A small model learns sums of two and three numbers from worked solutions and goes on with TraceRL,
all of it in one precision: weights, activations, sampling and scoring. Rates are those of float32;
their steps are smaller than the distance between neighbouring numbers of bfloat16, so that a chain
without float32 masters would stand still. Exits with 1 unless both rewards rise, and alike: by at
least --least, and the smaller rise no less than --share of the larger one.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.methods import PARAMS, round_of, run_context
from tracerl.models.policy import new_model, shape_architecture
from tracerl.models.tokenizer import Tokenizer, character_tokenizer
from tracerl.seeds import generator_for
from tracerl.settings.params import load_params
from tracerl.settings.tasks import SumsSet
from tracerl.settings.training import Training
from tracerl.tasks import make_task_set
from tracerl.training.collect import Judging
from tracerl.training.rl import Curves, Models, TaskPools, train_rl
from tracerl.training.sft import task_trajectory, train_sft
from tracerl.types import Task

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FIRST, LAST = 5, 5  # iterations whose mean reward is the curve's begin and its end


def base_settings(num_steps: int) -> Training:
    """The shipped base training on sums, with fewer steps."""
    train = load_params(PARAMS).base.train
    changes: dict[str, Any] = {
        "tasks": {"sums": 1.0},
        "block_sizes": {4: 1.0},
        "num_steps": num_steps,
        "save_every": num_steps,
    }
    return train.model_copy(update=changes)


def run_chain(
    dtype: torch.dtype, tokenizer: Tokenizer, tasks: list[Task], options: argparse.Namespace
) -> Curves:
    """Base training and an RL round in one precision; the round's curves."""
    shape = load_params(PARAMS).base.model.model_copy(
        update={"hidden_size": 64, "intermediate_size": 128, "num_layers": 2, "num_heads": 2}
        | {"num_kv_heads": 2}
    )
    architecture = shape_architecture(shape, tokenizer)
    policy = new_model(architecture, generator_for(1, "base", "weights")).to(dtype)
    train = [task for task in tasks if task.split == "train"]
    test = [task for task in tasks if task.split == "test"]
    examples = {"sums": [task_trajectory(task, tokenizer) for task in train]}
    with tempfile.TemporaryDirectory() as folder:
        context = run_context("base", Path(folder, "base"))
        train_sft(policy, tokenizer, examples, base_settings(options.base_steps), context)
        return train_rl(
            Models(policy=policy, tokenizer=tokenizer),
            TaskPools(train={"sums": train}, held_out={"sums": test}),
            round_of("tracerl", options.iterations, options.problems),
            Judging(truncated_is_wrong=True),
            run_context("rl@sums", Path(folder, "rl")),
        )


def table_of(curves: dict[str, Curves]) -> str:
    """Rewards of both chains by iteration, tab-separated."""
    lines = ["\t".join(["iteration", *curves])]
    for rows in zip(*(curve["train"] for curve in curves.values()), strict=True):
        cells = [f"{row['reward']:.4f}" for row in rows]
        lines.append("\t".join([str(rows[0]["iteration"]), *cells]))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in {"iterations": 40, "base-steps": 500, "problems": 200}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--least", type=float, default=0.1, help="least rise of a reward (0.1)")
    parser.add_argument("--share", type=float, default=0.75, help="of the larger rise (0.75)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the curves go")
    options = parser.parse_args()
    tokenizer = character_tokenizer()
    sums = SumsSet(source="sums", difficulty=(2, 3), num_train=600, num_test=options.problems)
    tasks = make_task_set("sums", sums, 0.25, 1, Path())
    curves = {}
    rises = []
    for name, dtype in DTYPES.items():
        curves[name] = run_chain(dtype, tokenizer, tasks, options)
        rewards = [row["reward"] for row in curves[name]["train"]]
        begin = float(np.mean(rewards[:FIRST]))
        end = float(np.mean(rewards[-LAST:]))
        rises.append(end - begin)
        before, *_, after = [row["accuracy"] for row in curves[name]["held_out"]]
        print(
            f"{name}: reward {begin:.3f} -> {end:.3f} over {options.iterations} iterations, "
            f"held-out accuracy {before:.3f} -> {after:.3f}"
        )
    table = table_of(curves)
    if options.out is None:
        print(table, end="")
    else:
        options.out.write_text(table)
    if min(rises) < options.least or min(rises) < options.share * max(rises):
        sys.exit("the rewards do not rise alike")


if __name__ == "__main__":
    main()
