"""Makes every task set of the params: data/tasks/<set>.parquet.

Example: python -m stages.tasks
"""

from stages import context
from tracerl.disk import write_json
from tracerl.settings.params import load_params
from tracerl.store.files import write_tasks
from tracerl.store.parquet import seal
from tracerl.tasks import make_task_sets


def main() -> None:
    params = load_params(context.ROOT / "params.yaml")
    space = context.workspace("tasks", params, params.tasks, [])
    sets = make_task_sets(params.tasks, params.seed, context.ROOT)
    counts = {}
    for name, tasks in sets.items():
        write_tasks(space.directory / "tasks" / f"{name}.parquet", tasks)
        counts[name] = {
            split: sum(task.split == split for task in tasks) for split in ("train", "test")
        }
    seal(space.directory / "tasks")
    write_json(space.directory / "metrics.json", counts)
    space.publish(
        {"tasks": context.TASKS, "metrics.json": context.REPORTS / "metrics" / "tasks.json"}
    )


if __name__ == "__main__":
    context.run(main, __doc__)
