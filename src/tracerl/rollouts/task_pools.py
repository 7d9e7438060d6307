"""The tasks that a stage samples responses to: those whose prompt fits, by split."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tracerl.errors import DataError
from tracerl.models.tokenizer import Tokenizer
from tracerl.rollouts.responses import opening_ids
from tracerl.settings.sampling import Sampler
from tracerl.store.files import read_tasks
from tracerl.types import Task


def fitting_tasks(
    files: Mapping[str, Path], tokenizer: Tokenizer, samplers: Sequence[Sampler], where: str
) -> tuple[dict[str, list[Task]], dict[str, int]]:
    """By task set, the tasks whose prompt fits `max_prompt_tokens` of all samplers, and how many do
    not.

    Raises DataError if none of a set fits.
    """
    limit = min(s.max_prompt_tokens - len(opening_ids(tokenizer, s)) for s in samplers)
    fitting: dict[str, list[Task]] = {}
    num_dropped = {}
    for name, path in files.items():
        tasks = read_tasks(path)
        fitting[name] = [t for t in tasks if len(tokenizer.prompt_ids(t.prompt)) <= limit]
        num_dropped[name] = len(tasks) - len(fitting[name])
        if tasks and not fitting[name]:
            raise DataError(
                "every prompt is longer than the limit",
                where=f"{where}: {name}",
                got=f"{len(tasks)} tasks",
                wanted=f"at most {limit} prompt tokens beside the opening",
                do="raise sampler.max_prompt_tokens",
            )
    return fitting, num_dropped


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
