"""One row of the evaluation matrix, evaluate.<name> in the params: every response in
data/evals/<name>, figures in reports/metrics.

Example: python -m stages.evaluate sft-short
"""

from itertools import product

import pyarrow as pa

from stages import context, judging
from tracerl import distributed
from tracerl.disk import file_sha256, write_json
from tracerl.evaluation.metrics import summarise
from tracerl.models.baselines import load_policy
from tracerl.models.checkpoint import policy_hash
from tracerl.rewards.verify.verifier import provenance
from tracerl.rollouts.responses import SampleContext, fitting_tasks, judged_table, respond
from tracerl.store.files import read_rollouts, write_rollouts
from tracerl.store.parquet import seal


def main(name: str) -> None:
    params = context.load(ranks=True)
    judging.prepare(params)
    one, common = context.section(params.evaluate, "evaluate", name), params.evaluation
    stage, checkpoint = f"evaluate@{name}", context.CHECKPOINTS / one.checkpoint
    files = context.task_files(one.tasks)
    space = context.workspace(stage, params, (one, common), [checkpoint, *files.values()])
    model, tokenizer = load_policy(checkpoint, params.compute)
    context.measure(stage, model)
    policy = policy_hash(model)
    fitting, dropped = fitting_tasks(files, tokenizer, one.sampler, stage)
    problems = {
        task_set: context.held_out(pool, f"{stage}: {task_set}")[: common.num_problems]
        for task_set, pool in fitting.items()
    }
    show, done = context.progress(stage, "response"), 0
    total = common.num_samples * len(common.remasking) * sum(map(len, problems.values()))
    rows = []
    for task_set, mode in product(problems, common.remasking):
        tasks, parts = problems[task_set], []
        sample_context = SampleContext(
            stage=f"{stage}/{mode}",
            iteration=0,
            policy_hash=policy,
            seed=params.seed,
            truncated_is_wrong=params.truncated_is_wrong,
        )
        sampler = one.sampler.model_copy(update={"remasking": mode})
        for first in range(0, len(tasks), common.batch_size):
            path = space.directory / "rows" / f"{task_set}-{mode}-{first:06d}.parquet"
            if not path.is_file():
                batch = tasks[first : first + common.batch_size]
                write_rollouts(
                    path,
                    judged_table(
                        respond(
                            model, tokenizer, batch, common.num_samples, sampler, sample_context
                        )
                    ),
                )
            parts.append(read_rollouts(path))
            done += parts[-1].num_rows
            show(done, total, f"{task_set} {mode}")
        figures = summarise(pa.concat_tables(parts), common.bootstrap, params.seed)
        place = {
            "checkpoint": one.checkpoint,
            "benchmark": task_set,
            "remasking": mode,
            "block_size": sampler.block_size,
        }
        rows.append({**place, **figures})
    if not distributed.is_first():
        return
    # DVC's metrics show and diff read numbers below names; the report reads the rows.
    accuracy = {
        task_set: {
            row["remasking"]: row["accuracy"] for row in rows if row["benchmark"] == task_set
        }
        for task_set in problems
    }
    kinds = {task.kind for tasks in problems.values() for task in tasks}
    settings = {
        **one.sampler.model_dump(exclude={"remasking"}),
        "seed": params.seed,
        "policy_hash": policy,
        "num_samples": common.num_samples,
        "truncated_is_wrong": params.truncated_is_wrong,
        "chat_template": tokenizer.template,
        "judged_by": provenance(kinds),
        "tasks_sha256": {name: file_sha256(path) for name, path in files.items()},
    }
    metrics = {
        "accuracy": accuracy,
        "rows": rows,
        "settings": settings,
        "dropped_prompt_too_long": dropped,
    }
    seal(space.directory / "rows")
    write_json(space.directory / "metrics.json", metrics)
    space.publish(
        {
            "rows": context.EVALS / name,
            "metrics.json": context.REPORTS / "metrics" / "evaluate" / f"{name}.json",
        }
    )


if __name__ == "__main__":
    context.run(main, __doc__, "name")
