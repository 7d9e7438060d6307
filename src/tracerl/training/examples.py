"""The examples of supervised training: worked solutions of tasks, or the model's own correct
responses."""

from collections.abc import Mapping
from pathlib import Path

from tracerl.errors import DataError
from tracerl.models.tokenizer import Tokenizer
from tracerl.store.files import read_tasks, read_trajectories
from tracerl.training.sft import task_trajectory
from tracerl.types import Trajectory


def load_examples(
    data: str, files: Mapping[str, Path], tokenizer: Tokenizer, max_length: int, stage: str
) -> tuple[dict[str, list[Trajectory]], dict[str, int]]:
    """Examples of at most `max_length` tokens by task set, and how many were longer.

    data: "tasks", the worked solutions of task files, or "traces", the correct responses of trace
    files. Raises DataError if a set has no example left.
    """
    examples = {}
    for name, path in files.items():
        examples[name] = (
            _solutions(path, tokenizer)
            if data == "tasks"
            else read_trajectories(path, verdict="correct")
        )
    return drop_long_examples(examples, max_length, stage)


def _solutions(path: Path, tokenizer: Tokenizer) -> list[Trajectory]:
    """The worked solutions of a task file's train split."""
    examples = []
    for task in read_tasks(path):
        if task.split == "train" and task.solution:
            examples.append(task_trajectory(task, tokenizer))
    return examples


def drop_long_examples(
    examples: dict[str, list[Trajectory]], max_length: int, stage: str
) -> tuple[dict[str, list[Trajectory]], dict[str, int]]:
    """Leaves out examples longer than `max_length` tokens and counts them per task set.

    Raises DataError if a set has no example left.
    """
    short: dict[str, list[Trajectory]] = {}
    for name, pool in examples.items():
        short[name] = [t for t in pool if len(t.prompt_ids) + len(t.response_ids) <= max_length]
    dropped = {}
    empty = []
    for name, pool in short.items():
        dropped[name] = len(examples[name]) - len(pool)
        if not pool:
            empty.append(name)
    if empty:
        counts = {}
        for name in empty:
            counts[name] = (
                f"{len(examples[name])} examples, {dropped[name]} longer than {max_length}"
            )
        raise DataError(
            "a task set gives no training example",
            where=f"{stage}: {', '.join(empty)}",
            got=counts,
            wanted="at least one with a solution",
            do="raise max_length, or add solutions or traces to the set",
        )
    return short, dropped
