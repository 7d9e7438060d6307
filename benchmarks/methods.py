"""Every RL method lifts a verifiable task above a bar within a fixed number of iterations: one row
per method, all in one run.

    python -m benchmarks.methods                       # every method and tracerl with a value
    model, some minutes on one core python -m benchmarks.methods tracerl spg           # these only
    python -m benchmarks.methods --family llada        # full attention

A small model learns sums of two and three numbers (`4+7+5=` is `11;16;#16`) from worked solutions
until it solves about half of them, and every method goes on from that checkpoint: as many prompts
and updates, its own views, judged by the shipped verifier. Accuracy is that on held-out problems,
sampled statically; the bar is the accuracy before plus --lift. Exits with 1 if a method stays below
it. This shows that a method learns, not which is best: rates and budgets are not tuned for any of
them.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tracerl.models.policy import Policy, new_model
from tracerl.models.tokenizer import Tokenizer, character_tokenizer
from tracerl.models.transformer import Architecture
from tracerl.models.value import ValueModel
from tracerl.seeds import generator_for
from tracerl.settings.params import load_params
from tracerl.settings.rounds import RlRound
from tracerl.settings.tasks import SumsSet
from tracerl.settings.training import Optimizer, RandomObjective, Training
from tracerl.tasks import make_task_set
from tracerl.training.collect import Judging
from tracerl.training.rl import Models, TaskPools, train_rl
from tracerl.training.run_context import RunContext
from tracerl.training.scratch import Workspace
from tracerl.training.sft import task_trajectory, train_sft
from tracerl.types import Task

PARAMS = Path(__file__).parents[1] / "params.yaml"
OPTIMIZER: dict[str, Any] = {
    "lr": 3e-3,
    "betas": [0.9, 0.99],
    "weight_decay": 0.0,
    "clip_norm": 1.0,
    "warmup": 2,
    "decay": 0.0,
}
ORDERED: dict[str, Any] = {
    "order": {"kind": "plackett_luce", "temperature": 0.5, "score": "max_logprob"}
}
VALUE: dict[str, Any] = {
    "start": "policy",
    "discount": 1.0,
    "trace": 1.0,
    "clip": 0.2,
    "every": 1,
    "updates": 2,
    "optimizer": OPTIMIZER,
}
# What each method needs beside the shared settings.
ROWS: dict[str, dict[str, Any]] = {
    "tracerl": {"method": {"kind": "tracerl"}},
    "tracerl, value model": {
        "method": {"kind": "tracerl"},
        "advantages": "gae",
        "value": VALUE,
    },
    "random": {"method": {"kind": "random", "copies": 2, "noise": [0.1, 0.9]}},
    "coupled": {"method": {"kind": "coupled", "copies": 1, "noise": [0.1, 0.9]}},
    "diffucoder": {"method": {"kind": "diffucoder", "copies": 1, "noise": [0.2, 0.8]}},
    "diffu_grpo": {"method": {"kind": "diffu_grpo", "prompt_masking": 0.15}},
    # A masked operand of so short a prompt makes another problem.
    "wd1": {"method": {"kind": "wd1", "prompt_masking": 0.0}, "ratio": "none"},
    "spg": {
        "method": {
            "kind": "spg",
            "copies": 2,
            "noise": [0.0, 1.0],
            "bound_exponent": 1.5,
            "bound_share": 0.5,
        },
        "ratio": "none",
    },
    "gdpo": {"method": {"kind": "gdpo", "copies": 1, "nodes": 3}, "ratio": "sequence"},
    "espo": {
        "method": {"kind": "espo", "copies": 2, "noise": [0.05, 0.95]},
        "ratio": "sequence",
    },
    "step_merge": {
        "method": {"kind": "step_merge", "segments": 8},
        "ratio": "sequence",
        "reduction": "response",
    },
    "mask_aware": {
        "method": {
            "kind": "mask_aware",
            "segments": 8,
            "order_weight": 1.0,
            "order_clip": [0.2, 0.2],
        },
        "ratio": "sequence",
        "reduction": "response",
        "sampler": ORDERED,
    },
}


def base(family: str, tokenizer: Tokenizer, tasks: list[Task], steps: int, folder: Path) -> Policy:
    """A small model that has seen worked solutions for some steps."""
    shape = {
        **load_params(PARAMS).base.model.model_dump(),
        "family": family,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_layers": 2,
    }
    shape |= {"num_heads": 2, "num_kv_heads": 2}
    architecture = Architecture(**shape, vocab_size=tokenizer.vocab_size, mask_id=tokenizer.mask_id)
    model = new_model(architecture, generator_for(1, "base", "weights"))
    settings = Training(
        objective=RandomObjective(kind="random", noise=(0.0, 1.0), weighting="uniform"),
        block_sizes={4: 1.0},
        tasks={"sums": 1.0},
        num_steps=steps,
        batch_size=32,
        micro_batch_tokens=2048,
        max_length=64,
        save_every=steps,
        optimizer=Optimizer(**{**OPTIMIZER, "betas": (0.9, 0.99)}),
    )
    examples = {"sums": [task_trajectory(task, tokenizer) for task in tasks]}
    train_sft(
        model,
        tokenizer,
        examples,
        settings,
        run_context("base", folder),
    )
    return model


def run_context(stage: str, folder: Path) -> RunContext:
    return RunContext(
        seed=1,
        stage=stage,
        workspace=Workspace(folder),
        on_progress=lambda done, total, text: None,
    )


def round_of(method: str, iterations: int, problems: int) -> RlRound:
    """The shipped round rl.short on sums, with a method's keys."""
    own = dict(ROWS[method])
    shipped = load_params(PARAMS).rl["short"].model_dump()
    sampler = {
        **shipped["sampler"],
        "order": {"kind": "static"},
        "max_new_tokens": 12,
        **own.pop("sampler", {}),
    }
    held_out = {
        "tasks": None,
        "every": iterations,
        "num_problems": problems,
        "bootstrap": 10,
        "num_samples": 1,
        "modes": {"static": {"order": {"kind": "static"}}},
    }
    changes = {
        "tasks": {"sums": 1.0},
        "iterations": iterations,
        "groups": 16,
        "group_size": 8,
        "max_sampled_groups": 32,
        "min_groups": 1,
        "kl": "k2",
        "held_out": held_out,
        "sampler": sampler,
        "save_every": iterations,
        "optimizer": {**OPTIMIZER, "lr": 4e-4},
    }
    return RlRound.model_validate_json(json.dumps({**shipped, **changes, **own}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=", ".join(ROWS))
    for name, value in {"iterations": 30, "base-steps": 700, "problems": 200}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lift", type=float, default=0.05)
    parser.add_argument("--family", default="sdar")
    options = parser.parse_args()
    if unknown := sorted(set(options.methods) - set(ROWS)):
        parser.error(f"no method {', '.join(unknown)}; there are {', '.join(ROWS)}")
    tokenizer = character_tokenizer()
    tasks = make_task_set(
        "sums",
        SumsSet(source="sums", difficulty=(2, 3), num_train=600, num_test=options.problems),
        0.25,
        1,
        Path(),
    )
    split = {name: [task for task in tasks if task.split == name] for name in ("train", "test")}
    below = []
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        start = base(
            options.family, tokenizer, split["train"], options.base_steps, Path(folder, "base")
        )
        print(
            f"{options.family}, a base of {time.process_time() - started:.0f} CPU seconds, "
            f"{options.problems} held-out problems"
        )
        print(
            f"{'method':22}{'before':>8}{'after':>8}{'bar':>8}{'iterations':>12}{'CPU seconds':>13}"
        )
        for method in options.methods or ROWS:
            model = new_model(start.architecture, generator_for(1, "base", "weights")).eval()
            model.load_state_dict(start.state_dict())
            settings, started = (
                round_of(method, options.iterations, options.problems),
                time.process_time(),
            )
            critic = ValueModel(model) if settings.value is not None else None
            train, test = ({"sums": split[name]} for name in ("train", "test"))
            curves = train_rl(
                Models(policy=model, tokenizer=tokenizer, value_model=critic),
                TaskPools(train=train, held_out=test),
                settings,
                Judging(truncated_is_wrong=True),
                run_context("rl@sums", Path(folder, method)),
            )
            before, after = (row["accuracy"] for row in curves["held_out"])
            bar = before + options.lift
            below += [method] * (after < bar)
            seconds = time.process_time() - started
            print(
                f"{method:22}{before:8.1%}{after:8.1%}{bar:8.1%}{options.iterations:12}{seconds:13.0f}",
                flush=True,
            )
    if below:
        sys.exit(f"below the bar: {', '.join(below)}")


if __name__ == "__main__":
    main()
