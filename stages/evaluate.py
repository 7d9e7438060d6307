"""One row of the evaluation matrix, evaluate.<name> in the params: every response in
data/evals/<name>, metrics in reports/metrics.

Example: python -m stages.evaluate sft-short
"""

from stages import judging
from stages.runtime import entry, paths
from stages.runtime.machine import library_versions
from stages.runtime.meters import measure, write_meters
from stages.runtime.progress import progress
from stages.runtime.scratch import open_workspace
from tracerl import distributed
from tracerl.disk import file_sha256, write_json
from tracerl.evaluation.evaluate import evaluate
from tracerl.evaluation.matrix import accuracies, make_evaluation_plan, mode_settings
from tracerl.models.baselines import load_policy
from tracerl.models.checkpoint import policy_hash
from tracerl.rewards.verify.verifier import provenance
from tracerl.rollouts.task_pools import fitting_tasks
from tracerl.store.parquet import seal


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
    tasks, num_dropped = fitting_tasks(files, tokenizer, [settings.sampler], stage)
    plan = make_evaluation_plan(params, settings, stage, tasks, policy_hash(model))
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
        "dropped_prompt_too_long": num_dropped,
    }
    seal(space.directory / "rows")
    write_json(space.directory / "metrics.json", metrics)
    space.publish(
        {
            "rows": paths.EVALS / name,
            "metrics.json": paths.REPORTS / "metrics" / "evaluate" / f"{name}.json",
        }
    )
    write_meters(stage)


if __name__ == "__main__":
    entry.run(main, __doc__, "name")
