"""The train and test split of a task set."""

from collections.abc import Sequence

from tracerl.errors import DataError
from tracerl.types import Task


def training_tasks(tasks: Sequence[Task]) -> list[Task]:
    """The problems that a stage may train on."""
    return [task for task in tasks if task.split == "train"]


def held_out_tasks(tasks: Sequence[Task], where: str) -> list[Task]:
    """The held-out problems. Raises DataError if there are none."""
    test = [task for task in tasks if task.split == "test"]
    if not test:
        raise DataError(
            "a task set has no held-out problem",
            where=where,
            got=f"{len(tasks)} tasks",
            wanted="a test split",
            do="raise num_test of the set, or give its file more prompts",
        )
    return test
