"""Collects traces for SFT with traces.checkpoint: data/traces/<set>.parquet.

Known solutions in the model's own preferred order, and the model's own responses (SFT takes the
correct ones).

Example: python -m stages.traces
"""

from stages import judging
from stages.runtime import entry, paths
from stages.runtime.meters import measure, write_meters
from stages.runtime.progress import progress
from stages.runtime.scratch import open_workspace
from tracerl import distributed
from tracerl.disk import write_json
from tracerl.models.checkpoint import load_checkpoint, policy_hash
from tracerl.rollouts.responses import SampleContext
from tracerl.rollouts.task_pools import fitting_tasks, training_tasks
from tracerl.store.parquet import seal
from tracerl.training.traces import collect_traces


def main() -> None:
    params = entry.start("traces", ranks=True)
    judging.prepare(params)
    settings = params.traces
    start = paths.CHECKPOINTS / settings.checkpoint
    files = paths.task_files(sorted({*settings.preferred, *settings.rollouts}))
    space = open_workspace("traces", [start, *files.values()])
    model, tokenizer = load_checkpoint(start, params.compute)
    measure("traces", model)
    context = SampleContext(
        stage="traces",
        iteration=0,
        policy_hash=policy_hash(model),
        seed=params.seed,
        truncated_is_wrong=params.truncated_is_wrong,
    )
    tasks, num_dropped = fitting_tasks(files, tokenizer, [settings.sampler], "traces")
    counts = collect_traces(
        model,
        tokenizer,
        {name: training_tasks(pool) for name, pool in tasks.items()},
        settings,
        context,
        space.directory / "traces",
        progress("traces", "response"),
    )
    if not distributed.is_first():
        return
    for name in counts:
        counts[name]["dropped_prompt_too_long"] = num_dropped[name]
    seal(space.directory / "traces")
    metrics = {"sets": counts, "policy_hash": context.policy_hash}
    write_json(space.directory / "metrics.json", metrics)
    space.publish(
        {"traces": paths.TRACES, "metrics.json": paths.REPORTS / "metrics" / "traces.json"}
    )
    write_meters("traces")


if __name__ == "__main__":
    entry.run(main, __doc__)
