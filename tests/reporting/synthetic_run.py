"""A run that nobody trained: the files that the stages would have left, with made-up but plausible
numbers, through the shipped writers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from stages.runtime.curves import write_curve
from stages.runtime.params import write_stage_params
from tests.tiny_run import write_code
from tracerl.disk import write_json, write_text
from tracerl.models.tokenizer import Tokenizer, character_tokenizer
from tracerl.reporting.trace_viewer import Response
from tracerl.reporting.validation_page import render_validation
from tracerl.seeds import generator_for
from tracerl.settings.params import Params, load_params
from tracerl.store.files import rollout_table, write_rollouts, write_tasks
from tracerl.store.parquet import seal
from tracerl.types import Rollout, Task, Trajectory

ROOT = Path(__file__).parents[2]
PROMPTS = {
    "4+7+5=": "11;16;#16",
    "9+2+6=": "11;17;#17",
    "(2+3)*4-5=": "2+3=5;5*4=20;20-5=15;#15",
    "3*3+8=": "3*3=9;9+8=17;#17",
}
SETTINGS: dict[str, object] = {
    "steps_per_block": 4,
    "schedule": "even",
    "remasking": "dynamic",
    "threshold": 0.9,
    "entropy_bound": None,
    "order_temperature": None,
    "order_score": None,
    "confidence": "raw",
    "confidence_of": "drawn",
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "guidance": 0.0,
    "opening": "",
    "max_new_tokens": 36,
    "cache_mode": "exact",
    "cache_horizon": None,
    "refresh_every": None,
    "refresh_sees": None,
}


def small_params(num_rounds: int = 2) -> Params:
    """The project's own params with its first RL rounds only."""
    params = load_params(ROOT / "params.yaml")
    rounds = dict(list(params.rl.items())[:num_rounds])
    made = {"base", *(f"sft@{name}" for name in params.sft), *(f"rl@{name}" for name in rounds)}
    return params.model_copy(
        update={
            "rl": rounds,
            "sft": {name: one for name, one in params.sft.items() if one.init in made},
            "evaluate": {
                name: one for name, one in params.evaluate.items() if one.checkpoint in made
            },
        }
    )


def make_tasks() -> list[Task]:
    return [
        Task(
            task_id=f"mixed/{i}",
            task_set="mixed",
            kind="sums",
            split="train",
            difficulty=2,
            prompt=prompt,
            answer=solution.split("#")[-1],
            solution=solution,
        )
        for i, (prompt, solution) in enumerate(PROMPTS.items())
    ]


def make_rollout(
    task: Task,
    index: int,
    stage: str,
    iteration: int,
    text: str,
    tokenizer: Tokenizer,
    block_size: int = 4,
) -> Rollout:
    """A response `text` whose step map unmasks each block in a made-up order of one to `block_size`
    steps."""
    prompt, response = (
        tokenizer.prompt_ids(task.prompt),
        [*tokenizer.encode(text), tokenizer.end_ids[0]],
    )
    num_tokens = len(response)
    response += [tokenizer.end_ids[0]] * (-(len(prompt) + len(response)) % block_size)
    rng, steps, last = (
        generator_for(0, stage, iteration, task.task_id, index),
        np.zeros(len(response), dtype=np.int32),
        0,
    )
    blocks = (len(prompt) + np.arange(len(response))) // block_size
    for block in np.unique(blocks):
        mine = np.flatnonzero(blocks == block)
        order = rng.permutation(len(mine)) % int(rng.integers(1, len(mine) + 1))
        steps[mine] = last + 1 + order
        last = int(steps.max())
    logprobs = -rng.exponential(0.2, len(response)).astype(np.float32)
    trajectory = Trajectory(
        prompt_ids=np.array(prompt, dtype=np.int32),
        response_ids=np.array(response, dtype=np.int32),
        step_map=steps,
        logprobs=logprobs,
        filtered_logprobs=logprobs,
        num_tokens=num_tokens,
        block_size=block_size,
        canvas_length=len(prompt) + len(response),
        stop_reason="end",
        num_denoising_forwards=last,
        num_forwards=last + len(np.unique(blocks)),
    )
    correct = text == task.solution
    return Rollout(
        rollout_id=f"{stage}/{iteration:05d}/{task.task_id}/{index}",
        stage=stage,
        iteration=iteration,
        sample_index=index,
        task=task,
        trajectory=trajectory,
        text=text,
        reward=float(correct),
        verdict="correct" if correct else "wrong",
        policy_hash="0123456789abcdef",
        seed=0,
        settings=SETTINGS,
    )


def make_rollouts(stage: str, iteration: int) -> list[Rollout]:
    """Two responses per task, the second of them wrong; of the last task both are right."""
    tokenizer, tasks = character_tokenizer(), make_tasks()
    texts = [
        (task, index, task.solution[:-1] + "<" if index and task != tasks[-1] else task.solution)
        for task in tasks
        for index in (0, 1)
    ]
    return [
        make_rollout(task, index, stage, iteration, text, tokenizer) for task, index, text in texts
    ]


def long_responses(response: Response, count: int, num_tokens: int) -> list[Response]:
    """`response` as `count` others of `num_tokens` tokens, two a step."""
    steps = [1 + i // 2 for i in range(num_tokens)]
    long = {
        **response.row,
        "prompt_ids": [5] * 8,
        "response_ids": [5 + i % 90 for i in range(num_tokens)],
        "step_map": steps,
        "logprobs": [-0.01 * (i % 300) for i in range(num_tokens)],
        "num_tokens": num_tokens,
        "num_steps": steps[-1],
    }
    return [replace(response, row={**long, "rollout_id": f"long/{i}"}) for i in range(count)]


def write_run(root: Path, params: Params) -> None:
    """Everything the report reads, below `root`."""
    (root / "params.yaml").write_text(
        yaml.safe_dump(params.model_dump(mode="json"), sort_keys=False)
    )
    write_stage_params(root / "params.yaml", root / "data" / "params")
    write_code(root / "data" / "code")
    (root / "data" / "checkpoints" / "base").mkdir(parents=True)
    character_tokenizer().save(root / "data" / "checkpoints" / "base")
    write_tasks(root / "data" / "tasks" / "mixed.parquet", make_tasks())
    seal(root / "data" / "tasks")
    reports = root / "reports"
    for stage in ("base", *(f"sft@{name}" for name in params.sft)):
        write_json(
            reports / "metrics" / f"{stage}.json",
            {"policy_hash": "0123456789abcdef", "loss": 0.31, "num_examples": {"mixed": 4000}},
        )
        steps = range(25, 801 if stage == "base" else 101, 25)
        write_curve(
            reports / "curves" / f"{stage}.tsv",
            [{"step": step, "loss": 0.3 + 3 * np.exp(-step / 80), "lr": 2e-3} for step in steps],
        )
    for stage, settings in ((f"rl@{name}", one) for name, one in params.rl.items()):
        write_rollouts(
            root / "data" / "rollouts" / stage / "iter-00001.parquet",
            rollout_table(make_rollouts(stage, 1)),
        )
        write_rollouts(
            root / "data" / "rollouts" / stage / "iter-00002.parquet",
            rollout_table(make_rollouts(stage, 2)),
        )
        write_json(
            reports / "metrics" / f"{stage}.json",
            {"iterations": settings.iterations, "responses": 7680, "held_out": {"static": {}}},
        )
        write_curve(reports / "curves" / f"{stage}.tsv", train_curve(stage, settings.iterations))
        write_curve(
            reports / "curves" / f"{stage}-held-out.tsv",
            held_out_curve(settings.iterations, settings.held_out.every),
        )
    for dataset in ("tasks", "rollouts"):
        result = validation_result(dataset)
        write_json(reports / "validation" / f"{dataset}.json", result)
        write_text(reports / "validation" / f"{dataset}.html", render_validation(result))
    for name, one in params.evaluate.items():
        rows = [
            evaluation_row(one.checkpoint, task_set, mode, one.sampler.block_size)
            for task_set in one.tasks
            for mode in ("static", "dynamic")
        ]
        write_json(
            reports / "metrics" / "evaluate" / f"{name}.json",
            {"rows": rows, "settings": {"seed": 0}},
        )


def train_curve(stage: str, iterations: int) -> list[dict[str, Any]]:
    rng, rows = generator_for(0, stage), []
    for i in range(1, iterations + 1):
        rise, noise = 1 - np.exp(-i / 12), rng.normal(0, 1, 5)
        rows.append(
            {
                "iteration": i,
                "reward": 0.35 + 0.45 * rise + 0.03 * noise[0],
                "sampled_groups": int(min(96, 40 + 60 * rise)),
                "kept_groups": 24 - int(abs(noise[1]) * (i > 25)),
                "kl": abs(2e-4 + 1e-4 * noise[2]),
                "tokens_per_step": 1.4 + 1.1 * rise + 0.05 * noise[3],
                "mean_length": 14 + 0.4 * noise[4],
                "truncation_rate": 0.02 * float(np.exp(-i / 12)),
            }
        )
    return rows


def held_out_curve(iterations: int, every: int) -> list[dict[str, Any]]:
    rows = []
    for i in sorted({*range(0, iterations + 1, every), iterations}):
        for mode, offset, speed in (("static", 0.02, 0.0), ("dynamic", 0.0, 1.2)):
            accuracy = 0.38 + offset + 0.42 * (1 - np.exp(-i / 12))
            half = 0.06 * (1 - accuracy / 2)
            rate = 1.0 + speed * (0.4 + 0.6 * (1 - np.exp(-i / 12)))
            rows.append(
                {
                    "iteration": i,
                    "remasking": mode,
                    "num_problems": 256,
                    "accuracy": accuracy,
                    "ci_low": accuracy - half,
                    "ci_high": accuracy + half,
                    "tokens_per_step": rate,
                    "mean_length": 14.25 + i / 40,
                }
            )
    return rows


def evaluation_row(checkpoint: str, benchmark: str, mode: str, block_size: int) -> dict[str, Any]:
    rng = generator_for(0, checkpoint, benchmark, mode, block_size)
    accuracy, speed = float(rng.uniform(0.3, 0.95)), float(rng.uniform(1.1, 2.6))
    return {
        "checkpoint": checkpoint,
        "benchmark": benchmark,
        "remasking": mode,
        "block_size": block_size,
        "num_problems": 600,
        "num_responses": 600,
        "accuracy": accuracy,
        "ci_low": accuracy - 0.03,
        "ci_high": accuracy + 0.03,
        "undecided": 0,
        "tokens_per_step": speed,
        "tokens_per_forward": 0.8 * speed,
        "mean_length": 15.25,
        "truncation_rate": 0.0125,
    }


def validation_result(dataset: str) -> dict[str, Any]:
    """A result as stages/validate.py writes it: tasks fail, everything drifts."""
    success = dataset != "tasks"
    failed = {
        **{
            "name": "splits_do_not_overlap",
            "says": "no test problem is also a train problem",
            "severity": "critical",
        },
        **{"success": success, "count": int(not success), "first": [] if success else ["mixed/1"]},
    }
    drift = {
        **{
            "name": "drift",
            "says": "no figure moved by more than 50% against the accepted run",
            "severity": "warning",
        },
        **{"success": False, "count": 1, "first": ["rl@short, 0.71"]},
    }
    figures = {"num_rows": 3200, "pass_rate": 0.61, "truncation": 0.002, "drift": None}
    groups = [{"group": group, **figures} for group in ("rl@short", "rl@long")]
    return {
        "dataset": dataset,
        "success": success,
        "num_rows": 6400,
        "groups": groups,
        "expectations": [failed, drift],
    }
