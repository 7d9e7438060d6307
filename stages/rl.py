"""One round of TraceRL, rl.<name> in the params: data/checkpoints/rl@<name> and every response in
data/rollouts/rl@<name>.

Example: python -m stages.rl short
"""

from stages import judging
from stages.runtime import entry, paths
from stages.runtime.curves import write_curve
from stages.runtime.meters import measure, write_meters
from stages.runtime.progress import progress, warn, warn_of_long_rows
from stages.runtime.scratch import open_workspace
from tracerl import distributed
from tracerl.disk import write_json
from tracerl.models.checkpoint import policy_hash
from tracerl.store.parquet import seal
from tracerl.training.policy_update import check_rows, longest_rl_row
from tracerl.training.rl import (
    ROLLOUTS,
    held_out_sets,
    load_models,
    load_pools,
    train_rl,
    training_sets,
)
from tracerl.training.round_metrics import held_out_declines, round_metrics
from tracerl.training.run_context import RunContext


def main(name: str) -> None:
    stage = f"rl@{name}"
    params = entry.start(stage, ranks=True)
    judging.prepare(params)
    settings = params.rl[name]
    rewarding = judging.round_judging(params, settings)
    files = paths.task_files(dict.fromkeys([*training_sets(settings), *held_out_sets(settings)]))
    start = paths.CHECKPOINTS / settings.init
    space = open_workspace(stage, [start, *files.values()])
    models = load_models(start, params.compute, settings, params.seed, stage)
    measure(stage, *models.transformers)
    pools = load_pools(files, models.tokenizer, settings, stage)
    for phase in settings.phase_rounds:
        check_rows(phase, models.policy.family, stage)
        longest = longest_rl_row(phase, models.policy.family)
        warn_of_long_rows(stage, longest, phase.micro_batch_tokens)
    context = RunContext(
        seed=params.seed,
        stage=stage,
        workspace=space,
        on_progress=progress(stage, "iteration"),
        launch=params.launch,
    )
    curves = train_rl(models, pools, settings, rewarding, context)
    if not distributed.is_first():
        return
    models.save(space.directory / "checkpoint", paths.CHECKPOINTS / stage)
    write_curve(space.directory / "curve.tsv", curves["train"])
    write_curve(space.directory / "held_out.tsv", curves["held_out"])
    seal(space.directory / ROLLOUTS)
    metrics = round_metrics(curves, settings, pools.num_dropped)
    write_json(
        space.directory / "metrics.json",
        {"policy_hash": policy_hash(models.policy), **metrics},
    )
    space.publish(
        {
            ROLLOUTS: paths.ROLLOUTS / stage,
            "held_out.tsv": paths.REPORTS / "curves" / f"{stage}-held-out.tsv",
            **paths.training_outputs(stage),
        }
    )
    write_meters(stage)
    for mode, words in held_out_declines(curves["held_out"]).items():
        warn(stage, f"under remasking '{mode}' {words}")


if __name__ == "__main__":
    entry.run(main, __doc__, "name")
