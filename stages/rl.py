"""One round of TraceRL, rl.<name> in the params: data/checkpoints/rl@<name> and every response in
data/rollouts/rl@<name>.

Example: python -m stages.rl short
"""

from collections import Counter
from typing import Any

from stages import judging
from stages.runtime import entry, paths
from stages.runtime.curves import write_curve
from stages.runtime.meters import measure, write_measured
from stages.runtime.progress import progress, warn, warn_of_long_rows
from stages.runtime.scratch import open_workspace
from stages.runtime.splits import held_out_tasks, training_tasks
from tracerl import distributed
from tracerl.disk import write_json
from tracerl.models.checkpoint import policy_hash, save_checkpoint
from tracerl.models.value import save_value_model
from tracerl.rollouts.responses import fitting_tasks, opening_ids
from tracerl.settings.rounds import RlRound
from tracerl.store.parquet import seal
from tracerl.training.collect import Judging
from tracerl.training.policy_update import longest_rl_row
from tracerl.training.process_rewards import ProcessRewarder
from tracerl.training.rl import ROLLOUTS, TaskPools, held_out_declines, load_models, train_rl
from tracerl.training.run_context import RunContext


def main(name: str) -> None:
    stage = f"rl@{name}"
    params = entry.start(stage, ranks=True)
    judging.prepare(params)
    settings = params.rl[name]
    rewarder = None
    if settings.process is not None:
        rewarder = ProcessRewarder(
            judge=judging.judge(params, settings.process.judge), settings=settings.process
        )
    asked, drawn = (
        settings.held_out.tasks or list(settings.tasks),
        dict.fromkeys(t for one in settings.phase_rounds for t in one.tasks),
    )
    files = paths.task_files(dict.fromkeys([*drawn, *asked]))
    start = paths.CHECKPOINTS / settings.init
    space = open_workspace(stage, [start, *files.values()])
    models = load_models(start, params.compute, settings, params.seed, stage)
    value_model = models.value_model
    measure(
        stage,
        models.policy,
        models.reference,
        *([value_model.transformer] if value_model is not None else []),
    )
    samplers = [settings.sampler, *(one.sampler for one in settings.phase_rounds)]
    tightest = min(
        samplers, key=lambda one: one.max_prompt_tokens - len(opening_ids(models.tokenizer, one))
    )
    tasks, dropped = fitting_tasks(files, models.tokenizer, tightest, stage)
    train = {task_set: training_tasks(tasks[task_set]) for task_set in drawn}
    test = {task_set: held_out_tasks(tasks[task_set], f"{stage}: {task_set}") for task_set in asked}
    for phase in (settings, *settings.phase_rounds):
        family = models.policy.family
        warn_of_long_rows(stage, longest_rl_row(phase, family), phase.micro_batch_tokens)
    curves = train_rl(
        models,
        TaskPools(train=train, held_out=test),
        settings,
        Judging(
            truncated_is_wrong=params.truncated_is_wrong,
            rewarder=rewarder,
            judges=judging.asked(params, settings),
        ),
        RunContext(
            seed=params.seed,
            stage=stage,
            workspace=space,
            on_progress=progress(stage, "iteration"),
            launch=params.launch,
        ),
    )
    if not distributed.is_first():
        return
    save_checkpoint(
        models.policy,
        models.tokenizer,
        space.directory / "checkpoint",
        paths.CHECKPOINTS / stage,
    )
    if value_model is not None:
        save_value_model(value_model, space.directory / "checkpoint")
    write_curve(space.directory / "curve.tsv", curves["train"])
    write_curve(space.directory / "held_out.tsv", curves["held_out"])
    seal(space.directory / ROLLOUTS)
    write_json(
        space.directory / "metrics.json",
        {"policy_hash": policy_hash(models.policy), **figures(curves, settings, dropped)},
    )
    space.publish(
        {
            ROLLOUTS: paths.ROLLOUTS / stage,
            "held_out.tsv": paths.REPORTS / "curves" / f"{stage}-held-out.tsv",
            **paths.training_outputs(stage),
        }
    )
    write_measured(stage)
    for mode, words in held_out_declines(curves["held_out"]).items():
        warn(stage, f"under remasking '{mode}' {words}")


def figures(
    curves: dict[str, list[dict[str, Any]]], settings: RlRound, dropped: dict[str, int]
) -> dict[str, Any]:
    """What the metrics say of a round: how much it sampled, and how it answered held-out problems
    before and after."""
    first, last = (
        {row["remasking"]: row for row in curves["held_out"] if row["iteration"] == i}
        for i in (0, settings.iterations)
    )
    return {
        "iterations": settings.iterations,
        **(
            {}
            if settings.phases is None
            else {"phases": Counter(row["phase"] for row in curves["train"])}
        ),
        "responses": sum(row["sampled_groups"] for row in curves["train"]) * settings.group_size,
        "dropped_prompt_too_long": dropped,
        "held_out": {
            mode: {
                name: {"before": first[mode][name], "after": last[mode][name]}
                for name in ("accuracy", "tokens_per_step", "empty_rate")
            }
            for mode in last
        },
        "ended_below_start": sorted(held_out_declines(curves["held_out"])),
    }


if __name__ == "__main__":
    entry.run(main, __doc__, "name")
