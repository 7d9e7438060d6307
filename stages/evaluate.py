"""One row of the evaluation matrix, evaluate.<name> in the params: every response in data/evals/<name>, figures in reports/metrics.

Example: python -m stages.evaluate sft-short
"""

import pyarrow as pa

from stages import context
from tracerl.evaluation.metrics import summarise
from tracerl.evaluation.responses import Occasion, respond, within_prompt_limit
from tracerl.models.checkpoint import load_checkpoint, policy_hash
from tracerl.store.files import read_rollouts, read_tasks, rollout_table, write_rollouts
from tracerl.store.workspace import write_json


def main(name: str) -> None:
    params = context.load()
    one, common = context.section(params.evaluate, "evaluate", name), params.evaluation
    checkpoint = context.CHECKPOINTS / one.checkpoint
    inputs = [checkpoint, *(context.TASKS / f"{s}.parquet" for s in one.tasks)]
    space = context.workspace(f"evaluate@{name}", params, (one, common), inputs)
    model, tokenizer = load_checkpoint(checkpoint)
    occasion = Occasion(f"evaluate@{name}", 0, policy_hash(model), params.seed, truncated_is_wrong=True)
    override = {"block_size": one.block_size, "steps_per_block": one.block_size, "max_new_tokens": one.max_new_tokens}
    batches = []
    dropped = {}
    for task_set in one.tasks:
        test = [t for t in read_tasks(context.TASKS / f"{task_set}.parquet") if t.split == "test"]
        fitting, dropped[task_set] = within_prompt_limit(test, tokenizer, common.sampler, f"{occasion.stage}: {task_set}")
        tasks = fitting[: common.num_problems]
        for mode in common.remasking:
            batches += [(task_set, mode, i, tasks[i : i + common.batch_size]) for i in range(0, len(tasks), common.batch_size)]
    show = context.progress(f"evaluate@{name}", "batch")
    tables: dict[tuple[str, str], list[pa.Table]] = {}
    for number, (task_set, mode, first, tasks) in enumerate(batches, start=1):
        path = space.directory / "rows" / f"{task_set}-{mode}-{first:06d}.parquet"
        if not path.is_file():
            at = Occasion(f"{occasion.stage}/{mode}", 0, occasion.policy_hash, occasion.seed, truncated_is_wrong=True)
            sampler = common.sampler.model_copy(update={**override, "remasking": mode})
            write_rollouts(path, rollout_table(respond(model, tokenizer, tasks, common.num_samples, sampler, at)))
        tables.setdefault((task_set, mode), []).append(read_rollouts(path))
        show(number, len(batches), f"{task_set} {mode}")
    rows = [
        {
            "checkpoint": one.checkpoint,
            "benchmark": task_set,
            "remasking": mode,
            "block_size": one.block_size,
            **summarise(pa.concat_tables(parts), common.bootstrap, params.seed),
        }
        for (task_set, mode), parts in tables.items()
    ]
    settings = {**common.sampler.model_dump(), **override, "seed": params.seed, "policy_hash": occasion.policy_hash}
    write_json(space.directory / "metrics.json", {"rows": rows, "settings": settings, "dropped_prompt_too_long": dropped})
    space.publish({"rows": context.EVALS / name, "metrics.json": context.REPORTS / "metrics" / "evaluate" / f"{name}.json"})


if __name__ == "__main__":
    context.run(main, __doc__, "name")
