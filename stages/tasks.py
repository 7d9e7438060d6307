"""Makes every task set of the params: data/tasks/<set>.parquet.

Example: python -m stages.tasks
"""

import shutil

from stages.runtime import entry, paths
from stages.runtime.code import check_code
from stages.runtime.params import read_params
from stages.runtime.scratch import open_workspace
from tracerl.disk import write_json
from tracerl.store.files import write_tasks
from tracerl.store.parquet import seal
from tracerl.tasks import make_task_sets


def main() -> None:
    params = read_params("tasks")
    check_code("tasks")
    space = open_workspace("tasks", [])
    # A run that ended while it published has sealed the folder, into which nothing is written.
    shutil.rmtree(space.directory / "tasks", ignore_errors=True)
    sets = make_task_sets(params.tasks, params.seed, paths.ROOT)
    counts = {}
    for name, tasks in sets.items():
        write_tasks(space.directory / "tasks" / f"{name}.parquet", tasks)
        counts[name] = {
            split: sum(task.split == split for task in tasks) for split in ("train", "test")
        }
    seal(space.directory / "tasks")
    write_json(space.directory / "metrics.json", counts)
    space.publish({"tasks": paths.TASKS, "metrics.json": paths.REPORTS / "metrics" / "tasks.json"})


if __name__ == "__main__":
    entry.run(main, __doc__)
