"""The examples of an adaptation: worked solutions of task sets, or files of prompts and solutions
or of plain text."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tracerl.disk import file_rows
from tracerl.errors import DataError
from tracerl.models.tokenizer import Tokenizer
from tracerl.settings.base import Section
from tracerl.settings.training import Adapt, PairData, SolutionData, TextData
from tracerl.store.files import read_tasks
from tracerl.training.examples import drop_long_examples
from tracerl.training.sft import solution_trajectory
from tracerl.types import Trajectory

Examples = dict[str, list[Trajectory]]


@dataclass(frozen=True, kw_only=True)
class AdaptationFolders:
    """Where the data of an adaptation lie."""

    root: Path
    """Where the paths of files start."""
    tasks: Path
    """Folder of the task files."""


def adaptation_files(adapt: Adapt, folders: AdaptationFolders) -> dict[str, Path]:
    """Task set or file as the params name it -> its path."""
    if adapt.data.task_sets:
        return {name: folders.tasks / f"{name}.parquet" for name in adapt.data.shares}
    return {name: folders.root / name for name in adapt.data.shares}


def load_adaptation_examples(
    adapt: Adapt, files: Mapping[str, Path], tokenizer: Tokenizer, stage: str
) -> tuple[Examples, dict[str, int]]:
    """Examples of at most `max_length` tokens by task set or file, and how many were longer.

    Raises DataError for a file that cannot be read, has no such columns or gives no example.
    """
    read = _READERS[type(adapt.data)]
    examples = {}
    for name, path in files.items():
        examples[name] = list(read(adapt, path, tokenizer))
    return drop_long_examples(examples, adapt.max_length, stage)


def mean_tokens(examples: Examples, adapt: Adapt) -> float:
    """Tokens of an example as they are drawn, prompt included."""
    total = 0.0
    for name, share in adapt.data.shares.items():
        total += share * float(np.mean([num_example_tokens(example) for example in examples[name]]))
    return total / sum(adapt.data.shares.values())


def num_example_tokens(trajectory: Trajectory) -> int:
    """Tokens of prompt and response."""
    return len(trajectory.prompt_ids) + len(trajectory.response_ids)


def _read_solutions(adapt: Adapt, path: Path, tokenizer: Tokenizer) -> Iterator[Trajectory]:
    for task in read_tasks(path):
        if task.split == "train" and task.solution:
            yield _pair(task.prompt, task.solution, tokenizer, adapt)


def _read_pairs(adapt: Adapt, path: Path, tokenizer: Tokenizer) -> Iterator[Trajectory]:
    for number, row in enumerate(file_rows(path, "data file"), start=1):
        where = f"{path}, row {number}"
        prompt = _text(row, "prompt", where)
        yield _pair(prompt, _text(row, "solution", where), tokenizer, adapt)


def _pair(prompt: str, solution: str, tokenizer: Tokenizer, adapt: Adapt) -> Trajectory:
    """Prompt and solution; where prompts are learned, all tokens but the first."""
    trajectory = solution_trajectory(prompt, solution, tokenizer)
    if not adapt.data.learns_prompts:
        return trajectory
    return _document(np.concatenate([trajectory.prompt_ids, trajectory.response_ids]))


def _read_text(adapt: Adapt, path: Path, tokenizer: Tokenizer) -> Iterator[Trajectory]:
    """Documents with their end token, in pieces of `max_length` tokens."""
    for number, row in enumerate(file_rows(path, "data file"), start=1):
        text = _text(row, "text", f"{path}, row {number}")
        ids = np.array([*tokenizer.encode(text), tokenizer.end_ids[0]], dtype=np.int32)
        for start in range(0, len(ids), adapt.max_length):
            piece = ids[start : start + adapt.max_length]
            if len(piece) > 1:
                yield _document(piece, ends=start + len(piece) == len(ids))


def _document(ids: np.ndarray, ends: bool = True) -> Trajectory:
    """A piece of text whose first token is given and whose others are learned. ends: whether its
    last token ends the text."""
    response = ids[1:].astype(np.int32)
    unknown = np.full(len(response), np.nan, dtype=np.float32)
    return Trajectory(
        prompt_ids=ids[:1].astype(np.int32),
        response_ids=response,
        step_map=np.zeros(len(response), dtype=np.int32),
        logprobs=unknown,
        filtered_logprobs=unknown,
        num_tokens=len(response),
        block_size=1,
        canvas_length=len(ids),
        stop_reason="end" if ends else "length",
    )


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    text = row.get(column)
    if not isinstance(text, str) or not text:
        raise DataError(
            f"a row has no text in its column {column!r}",
            where=where,
            got=sorted(row) if column not in row else repr(text)[:80],
            wanted="text",
            do="correct or remove this row",
        )
    return text


_READERS: dict[type[Section], Callable[[Adapt, Path, Tokenizer], Iterator[Trajectory]]] = {
    SolutionData: _read_solutions,
    PairData: _read_pairs,
    TextData: _read_text,
}
