"""One row of the evaluation matrix: from the params to what is sampled, and from its metrics to
what is published."""

from collections.abc import Mapping, Sequence
from typing import Any

from tracerl.evaluation.evaluate import EvaluationPlan
from tracerl.rollouts.task_pools import held_out_tasks
from tracerl.settings.evaluation import Evaluation, EvaluationDefaults, samplers_of
from tracerl.settings.params import Params
from tracerl.types import Task


def make_evaluation_plan(
    params: Params, settings: Evaluation, stage: str, tasks: dict[str, list[Task]], policy: str
) -> EvaluationPlan:
    """The first problems of each set's test split, in each mode. policy: hash of the weights."""
    problems = {}
    for task_set in tasks:
        test = held_out_tasks(tasks[task_set], f"{stage}: {task_set}")
        problems[task_set] = test[: params.evaluation.num_problems]
    modes = samplers_of(params.evaluation.modes, settings.sampler, "evaluation.modes")
    num_samples: dict[str, dict[str, int]] = {}
    for task_set in problems:
        num_samples[task_set] = {}
        for mode in modes:
            num_samples[task_set][mode] = params.evaluation.samples_of(task_set, mode)
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
