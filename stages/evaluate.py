"""One row of the evaluation matrix, evaluate.<name> in the params: every response in
data/evals/<name>, metrics in reports/metrics.

Example: python -m stages.evaluate sft-short
"""

from collections.abc import Mapping, Sequence
from typing import Any

from stages import judging
from stages.runtime import entry, paths
from stages.runtime.machine import library_versions
from stages.runtime.meters import measure, write_measured
from stages.runtime.progress import progress
from stages.runtime.scratch import open_workspace
from stages.runtime.splits import held_out_tasks
from tracerl import distributed
from tracerl.disk import file_sha256, write_json
from tracerl.evaluation.evaluate import EvaluationPlan, evaluate
from tracerl.models.baselines import load_policy
from tracerl.models.checkpoint import policy_hash
from tracerl.rewards.verify.verifier import provenance
from tracerl.rollouts.responses import fitting_tasks
from tracerl.settings.evaluation import Evaluation, EvaluationDefaults, samplers_of
from tracerl.settings.params import Params
from tracerl.store.parquet import seal
from tracerl.types import Task


def main(name: str) -> None:
    stage = f"evaluate@{name}"
    params = entry.start(stage, ranks=True)
    judging.prepare(params)
    settings = params.evaluate[name]
    checkpoint = paths.CHECKPOINTS / settings.checkpoint
    files = paths.task_files(settings.tasks)
    space = open_workspace(stage, [checkpoint, *files.values()])
    model, tokenizer = load_policy(checkpoint, params.compute)
    measure(stage, model)
    tasks, dropped = fitting_tasks(files, tokenizer, settings.sampler, stage)
    plan = make_plan(params, settings, stage, tasks, policy_hash(model))
    show = progress(stage, "response")
    rows = evaluate(model, tokenizer, plan, space.directory / "rows", show)
    if not distributed.is_first():
        return
    metrics = {
        "accuracy": accuracies(rows),
        "rows": [{"checkpoint": settings.checkpoint, **row} for row in rows],
        "settings": {
            "modes": mode_settings(params.evaluation, plan),
            "seed": params.seed,
            "threads": params.threads,
            "vectors": params.compute.vectors,
            "libraries": library_versions(),
            "policy_hash": plan.policy_hash,
            "truncated_is_wrong": params.truncated_is_wrong,
            "chat_template": tokenizer.template,
            "judged_by": provenance(plan.kinds),
            "tasks_sha256": {name: file_sha256(path) for name, path in files.items()},
        },
        "dropped_prompt_too_long": dropped,
    }
    seal(space.directory / "rows")
    write_json(space.directory / "metrics.json", metrics)
    space.publish(
        {
            "rows": paths.EVALS / name,
            "metrics.json": paths.REPORTS / "metrics" / "evaluate" / f"{name}.json",
        }
    )
    write_measured(stage)


def make_plan(
    params: Params, settings: Evaluation, stage: str, tasks: dict[str, list[Task]], policy: str
) -> EvaluationPlan:
    """The first problems of each set's test split, in each mode. policy: hash of the weights."""
    problems = {}
    for task_set in tasks:
        test = held_out_tasks(tasks[task_set], f"{stage}: {task_set}")
        problems[task_set] = test[: params.evaluation.num_problems]
    modes = samplers_of(params.evaluation.modes, settings.sampler, "evaluation.modes")
    num_samples = {}
    for task_set in problems:
        num_samples[task_set] = {
            mode: params.evaluation.samples_of(task_set, mode) for mode in modes
        }
    return EvaluationPlan(
        stage=stage,
        problems=problems,
        modes=modes,
        num_samples=num_samples,
        batch_size=params.evaluation.batch_size,
        policy_hash=policy,
        seed=params.seed,
        truncated_is_wrong=params.truncated_is_wrong,
        num_resamples=params.evaluation.bootstrap,
    )


def mode_settings(evaluation: EvaluationDefaults, plan: EvaluationPlan) -> dict[str, Any]:
    """Name of a mode -> its sampler's settings and `num_samples`, responses per problem; where task
    sets have numbers of their own also `samples`, the number of each set."""
    settings = {}
    for mode, sampler in plan.modes.items():
        num_samples = evaluation.modes[mode].samples(evaluation.num_samples)
        settings[mode] = {**sampler.model_dump(), "num_samples": num_samples}
        if evaluation.samples:
            of_sets = {task_set: plan.num_samples[task_set][mode] for task_set in plan.problems}
            settings[mode]["samples"] = of_sets
    return settings


def accuracies(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Task set -> mode -> accuracy: DVC's metrics show and diff read numbers below names, the
    report reads the rows."""
    accuracy: dict[str, dict[str, float]] = {}
    for row in rows:
        accuracy.setdefault(row["benchmark"], {})[row["remasking"]] = row["accuracy"]
    return accuracy


if __name__ == "__main__":
    entry.run(main, __doc__, "name")
