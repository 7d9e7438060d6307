"""One round of TraceRL, rl.<name> in the params: data/checkpoints/rl@<name> and every response in data/rollouts/rl@<name>.

Example: python -m stages.rl short
"""

from stages import context
from tracerl.evaluation.responses import within_prompt_limit
from tracerl.models.checkpoint import load_checkpoint, policy_hash, save_checkpoint
from tracerl.rewards.verify import configure
from tracerl.store.files import read_tasks
from tracerl.store.workspace import write_json
from tracerl.training.rl import ROLLOUTS, train_rl


def main(name: str) -> None:
    params = context.load()
    configure(params.verification)
    settings, stage = context.section(params.rl, "rl", name), f"rl@{name}"
    start = context.CHECKPOINTS / settings.init
    space = context.workspace(stage, params, settings, [start, *(context.TASKS / f"{s}.parquet" for s in settings.tasks)])
    model, tokenizer = load_checkpoint(start)
    reference = load_checkpoint(start)[0] if settings.kl_to == "initial" else None
    tasks = {task_set: read_tasks(context.TASKS / f"{task_set}.parquet") for task_set in settings.tasks}
    fitting = {n: within_prompt_limit(pool, tokenizer, settings.sampler, f"{stage}: {n}") for n, pool in tasks.items()}
    train = {n: [task for task in pool if task.split == "train"] for n, (pool, _) in fitting.items()}
    test = {n: context.held_out(pool, f"{stage}: {n}") for n, (pool, _) in fitting.items()}
    show = context.progress(stage, "iteration")
    curves = train_rl(model, reference, tokenizer, train, test, settings, params.truncated_is_wrong, params.seed, stage, space, show)
    save_checkpoint(model, tokenizer, space.directory / "checkpoint")
    context.write_curve(space.directory / "curve.tsv", curves["train"])
    context.write_curve(space.directory / "held_out.tsv", curves["held_out"])
    first, last = ({row["remasking"]: row for row in curves["held_out"] if row["iteration"] == i} for i in (0, settings.iterations))
    figures = ("accuracy", "tokens_per_step")
    metrics = {
        "policy_hash": policy_hash(model),
        "iterations": settings.iterations,
        "responses": sum(row["sampled_groups"] for row in curves["train"]) * settings.group_size,
        "dropped_prompt_too_long": {n: dropped for n, (_, dropped) in fitting.items()},
        "held_out": {mode: {f: {"before": first[mode][f], "after": last[mode][f]} for f in figures} for mode in last},
    }
    write_json(space.directory / "metrics.json", metrics)
    space.publish(
        {
            ROLLOUTS: context.ROLLOUTS / stage,
            "held_out.tsv": context.REPORTS / "curves" / f"{stage}-held-out.tsv",
            **context.training_outputs(stage),
        }
    )


if __name__ == "__main__":
    context.run(main, __doc__, "name")
