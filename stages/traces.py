"""Collects traces for SFT with traces.checkpoint: data/traces/<set>.parquet.

Known solutions in the model's own preferred order, and the model's own responses (SFT takes the
correct ones).

Example: python -m stages.traces
"""

from dataclasses import replace

from stages import judging
from stages.runtime import entry, paths
from stages.runtime.meters import measure, write_measured
from stages.runtime.progress import progress
from stages.runtime.scratch import open_workspace
from stages.runtime.splits import training_tasks
from tracerl import distributed
from tracerl.disk import write_json
from tracerl.models.checkpoint import load_checkpoint, policy_hash
from tracerl.rollouts.responses import SampleContext, fitting_tasks, respond, rollouts_to_table
from tracerl.settings.training import Traces
from tracerl.store.files import read_rollouts, write_rollouts
from tracerl.store.parquet import seal
from tracerl.training.traces import collect_solutions


def main() -> None:
    params = entry.start("traces", ranks=True)
    judging.prepare(params)
    settings: Traces = params.traces
    start = paths.CHECKPOINTS / settings.checkpoint
    files = paths.task_files(sorted({*settings.preferred, *settings.rollouts}))
    space = open_workspace("traces", [start, *files.values()])
    model, tokenizer = load_checkpoint(start, params.compute)
    measure("traces", model)
    sample_context = SampleContext(
        stage="traces",
        iteration=0,
        policy_hash=policy_hash(model),
        seed=params.seed,
        truncated_is_wrong=params.truncated_is_wrong,
    )
    show, done, counts = progress("traces", "response"), 0, {}
    total = sum(settings.preferred.values()) + settings.group_size * sum(settings.rollouts.values())

    def on_done(number: int) -> None:
        nonlocal done
        done += number
        show(done, max(total, done), name)

    tasks, dropped = fitting_tasks(files, tokenizer, settings.sampler, "traces")
    for name in files:
        path = space.directory / "traces" / f"{name}.parquet"
        train = training_tasks(tasks[name])
        solved = [task for task in train if task.solution][: settings.preferred.get(name, 0)]
        # From the other end of the set.
        unseen = train[max(0, len(train) - settings.rollouts.get(name, 0)) :]
        if not path.is_file():
            preferred = collect_solutions(
                model,
                tokenizer,
                solved,
                settings,
                replace(sample_context, stage="traces/preferred"),
                on_done,
            )
            own = respond(
                model,
                tokenizer,
                unseen,
                settings.group_size,
                settings.sampler,
                sample_context,
                on_done,
            )
            write_rollouts(path, rollouts_to_table([*preferred, *own]))
        table = read_rollouts(path)
        counts[name] = {
            "num_responses": table.num_rows,
            "num_verified": table["verdict"].to_pylist().count("correct"),
            "mean_steps": sum(table["num_steps"].to_pylist()) / max(table.num_rows, 1),
            "dropped_prompt_too_long": dropped[name],
        }
    if not distributed.is_first():
        return
    seal(space.directory / "traces")
    write_json(
        space.directory / "metrics.json",
        {"sets": counts, "policy_hash": sample_context.policy_hash},
    )
    space.publish(
        {"traces": paths.TRACES, "metrics.json": paths.REPORTS / "metrics" / "traces.json"}
    )
    write_measured("traces")


if __name__ == "__main__":
    entry.run(main, __doc__)
