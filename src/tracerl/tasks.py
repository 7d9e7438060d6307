"""Task sets: verifiable problems with worked solutions, generated or read from a user's file, split
by a hash of the problem.

The split of a problem depends on nothing but its prompt, so train and test never overlap, whatever
the seed, the counts or the set.

Generators (difficulty = length of the chain of thought):
* sums: `4+7+5=`, solved by running totals `11;16;#16`; difficulty is the number of terms.
* arithmetic: `(1+3)*2-5=`, solved one operation at a time, innermost and leftmost first,
`1+3=4;4*2=8;8-5=3;#3`; difficulty is the
  number of operators. No division; every value lies in 0 to 9.
* countdown, sudoku: see `puzzles.py`; judged by their rules.
* open: a user's problems without a verifiable answer, each with a rubric or none; decided by a
judge.
* gym: any task of reasoning-gym (extra `gym`); `gym.py` says how each is judged.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracerl import puzzles
from tracerl.disk import file_rows
from tracerl.errors import DataError, ParamsError
from tracerl.gym import gym_items
from tracerl.seeds import generator_for
from tracerl.settings.base import Section
from tracerl.settings.tasks import (
    ArithmeticSet,
    CountdownSet,
    FileSet,
    GeneratedSet,
    GymSet,
    OpenSet,
    SudokuSet,
    SumsSet,
    Tasks,
    TaskSet,
)
from tracerl.store.parquet import read_parquet
from tracerl.store.schema import VERSION_KEY
from tracerl.types import TASK_KINDS, Task

# What a generator gives: prompt, answer, worked solution, and what the verifier needs besides (the
# problem's own spec), "" if nothing.
Generated = tuple[str, str, str, str]

# some hundred facts: with two-digit values they were too many for fifty iterations of RL to reach
_LARGEST = 9

_LARGEST_DIFFICULTY = 2**31 - 1  # the column is int32


def make_task_set(
    name: str, settings: TaskSet, held_out: float, seed: int, root: Path
) -> list[Task]:
    """All tasks of one set, train before test. `root` is where a relative path of a file set
    starts.

    Raises ParamsError if the generator runs out of distinct problems, DataError for a bad file.
    """
    return _MAKERS[type(settings)](name, settings, held_out, seed, root)


def _generate_tasks(
    name: str, settings: GeneratedSet, held_out: float, seed: int, root: Path
) -> list[Task]:
    """Distinct problems of a generator, until both splits are full."""
    sizes = {"train": settings.num_train, "test": settings.num_test}
    tasks: dict[str, dict[str, Task]] = {"train": {}, "test": {}}
    low, high = settings.difficulty
    rng = generator_for(seed, "tasks", name)
    for _ in range(200 * (sum(sizes.values()) + 1)):
        if all(len(tasks[split]) >= size for split, size in sizes.items()):
            break
        difficulty = int(rng.integers(low, high + 1))
        prompt, answer, solution, spec = GENERATORS[settings.source](difficulty, rng)
        split = split_of(prompt, held_out)
        if len(tasks[split]) < sizes[split] and prompt not in tasks[split]:
            tasks[split][prompt] = Task(
                task_id=f"{name}/{_digest(prompt)}",
                task_set=name,
                kind=settings.source,
                split=split,
                difficulty=difficulty,
                prompt=prompt,
                answer=answer,
                solution=solution,
                spec=spec,
            )
    _require_full({split: len(tasks[split]) for split in tasks}, sizes, f"tasks.sets.{name}")
    return [*tasks["train"].values(), *tasks["test"].values()]


def _require_full(counts: dict[str, int], sizes: dict[str, int], where: str) -> None:
    short: dict[str, str] = {}
    for split, size in sizes.items():
        if counts[split] < size:
            short[split] = f"{counts[split]} of {size}"
    if short:
        raise ParamsError(
            "the generator ran out of distinct problems",
            where=where,
            got=short,
            wanted=sizes,
            do="widen difficulty, or ask for fewer problems",
        )


def make_task_sets(settings: Tasks, seed: int, root: Path) -> dict[str, list[Task]]:
    """Every task set of the params. Checks that no problem is in one set's train split and
    another's test split."""
    sets = {}
    for name, task_set in settings.sets.items():
        sets[name] = make_task_set(name, task_set, settings.held_out, seed, root)
    tasks = list(itertools.chain.from_iterable(sets.values()))
    train = {task.prompt for task in tasks if task.split == "train"}
    leaked = []
    for task in tasks:
        if task.split == "test" and task.prompt in train:
            leaked.append(task.task_id)
    if leaked:
        raise DataError(
            "problems are in a train and in a test split",
            where="tasks",
            got=leaked[:8],
            wanted="none",
        )
    return sets


def split_of(prompt: str, held_out: float) -> str:
    """ "test" for the share `held_out` of all prompts, by hash."""
    return "test" if int(_digest(prompt), 16) / 16**16 < held_out else "train"


def _digest(prompt: str) -> str:
    return hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest()


def _sums(difficulty: int, rng: np.random.Generator) -> Generated:
    terms = rng.integers(1, 10, size=difficulty)
    totals = [str(total) for total in terms.cumsum()[1:]] or [str(terms[0])]
    return "+".join(map(str, terms)) + "=", totals[-1], ";".join([*totals, f"#{totals[-1]}"]), ""


def _arithmetic(difficulty: int, rng: np.random.Generator) -> Generated:
    expression = _expression(difficulty, rng)
    return (
        expression.text + "=",
        str(expression.value),
        "".join(expression.steps) + f"#{expression.value}",
        "",
    )


@dataclass(frozen=True, kw_only=True)
class _Expression:
    """Arithmetic that is worked out step by step."""

    text: str
    """Infix, with brackets only where needed."""
    binds: int
    """How tightly its operator binds."""
    value: int
    steps: list[str]
    """One line per operation, in the order in which they are solved: those of the left operand, of
    the right one, its own."""


def _expression(num_operators: int, rng: np.random.Generator) -> _Expression:
    """A random expression. The operator is drawn among those that keep its value in range, so
    nothing is ever rejected."""
    if num_operators == 0:
        digit = int(rng.integers(1, 10))
        return _Expression(text=str(digit), binds=3, value=digit, steps=[])
    in_left = int(rng.integers(0, num_operators))
    left, right = _expression(in_left, rng), _expression(num_operators - 1 - in_left, rng)
    if left.value < right.value and left.value + right.value > _LARGEST:
        left, right = right, left  # so that the difference is always allowed
    values = {
        "+": left.value + right.value,
        "-": left.value - right.value,
        "*": left.value * right.value,
    }
    allowed = [name for name, value in values.items() if 0 <= value <= _LARGEST]
    operator = allowed[int(rng.integers(len(allowed)))]
    binds = 2 if operator == "*" else 1
    step = f"{left.value}{operator}{right.value}={values[operator]};"
    left_text = f"({left.text})" if left.binds < binds else left.text
    right_text = f"({right.text})" if right.binds <= binds else right.text
    return _Expression(
        text=left_text + operator + right_text,
        binds=binds,
        value=values[operator],
        steps=[*left.steps, *right.steps, step],
    )


GENERATORS: dict[str, Callable[[int, np.random.Generator], Generated]] = {
    "sums": _sums,
    "arithmetic": _arithmetic,
    "countdown": puzzles.countdown,
    "sudoku": puzzles.sudoku,
}


def _gym_tasks(name: str, settings: GymSet, held_out: float, seed: int, root: Path) -> list[Task]:
    """Items of a reasoning-gym task. Item i of a seed is item i - 1 of the next seed, so that only
    a hash can split them."""
    size = int(4 * max(settings.num_train / (1 - held_out), settings.num_test / held_out)) + 20
    tasks: dict[str, Task] = {}
    where = f"tasks.sets.{name}"
    for item in gym_items(settings.task, settings.options, size, seed, where):
        prompt = item.prompt
        task = Task(
            task_id=f"{name}/{_digest(prompt)}",
            task_set=name,
            kind=item.kind,
            split=split_of(prompt, held_out),
            difficulty=1,
            prompt=prompt,
            answer=item.answer,
            solution="",
            spec=item.spec,
        )
        tasks.setdefault(prompt, task)
    return _choose(list(tasks.values()), settings, where)


def _read_user_file(
    name: str, settings: FileSet, held_out: float, seed: int, root: Path
) -> list[Task]:
    """Tasks of a user's JSONL or Parquet file with columns prompt, answer and optionally solution
    and difficulty."""
    path = root / settings.path
    if _has_our_schema(path):
        return _choose(_read_imported_tasks(name, path), settings, str(path))
    tasks: dict[str, Task] = {}
    for number, row in enumerate(file_rows(path, "task file"), start=1):
        where = f"{path}, row {number}"
        _require_columns(row, ("prompt", "answer"), "optionally solution and difficulty", where)
        prompt = _require_text(row, "prompt", where)
        answer = _require_text(row, "answer", where).strip()
        _require_possible(answer, where)
        if prompt in tasks and tasks[prompt].answer != answer:
            raise DataError(
                "a problem is listed twice with different answers",
                where=where,
                got=[tasks[prompt].answer, answer],
                wanted="one answer per prompt",
                do="correct or remove one of the rows",
            )
        task = Task(
            task_id=f"{name}/{_digest(prompt)}",
            task_set=name,
            kind="text",
            split=split_of(prompt, held_out),
            difficulty=_difficulty(row, where),
            prompt=prompt,
            answer=answer,
            solution=_text(row, "solution", where),
        )
        tasks.setdefault(prompt, task)
    return _choose(list(tasks.values()), settings, str(path))


def _require_possible(answer: str, where: str) -> None:
    if "#" in answer or len(answer.splitlines()) != 1:
        raise DataError(
            "an answer can never be given",
            where=where,
            got=answer,
            wanted="one line without '#'",
            do="a response's answer is what follows its last '#', or else its last line",
        )


def _read_open_file(
    name: str, settings: OpenSet, held_out: float, seed: int, root: Path
) -> list[Task]:
    """Tasks of a JSONL or Parquet file with the column prompt and optionally rubric, answer (a
    reference), solution and difficulty."""
    path = root / settings.path
    tasks: dict[str, Task] = {}
    for number, row in enumerate(file_rows(path, "task file"), start=1):
        where = f"{path}, row {number}"
        _require_columns(row, ("prompt",), "optionally rubric and answer", where)
        prompt, rubric = _require_text(row, "prompt", where), _text(row, "rubric", where)
        task = Task(
            task_id=f"{name}/{_digest(prompt)}",
            task_set=name,
            kind="open",
            split=split_of(prompt, held_out),
            difficulty=_difficulty(row, where),
            prompt=prompt,
            answer=_text(row, "answer", where).strip(),
            solution=_text(row, "solution", where),
            spec=json.dumps({"rubric": rubric}) if rubric else "",
        )
        if tasks.setdefault(prompt, task) != task:
            raise DataError(
                "a problem is listed twice with different rubrics or answers",
                where=where,
                got=prompt[:80],
                wanted="one row per prompt",
                do="correct or remove one of the rows",
            )
    return _choose(list(tasks.values()), settings, str(path))


_MAKERS: dict[type[Section], Callable[[str, Any, float, int, Path], list[Task]]] = {
    SumsSet: _generate_tasks,
    ArithmeticSet: _generate_tasks,
    CountdownSet: _generate_tasks,
    SudokuSet: _generate_tasks,
    GymSet: _gym_tasks,
    FileSet: _read_user_file,
    OpenSet: _read_open_file,
}


def _require_columns(
    row: dict[str, Any], columns: Sequence[str], optional: str, where: str
) -> None:
    missing = [column for column in columns if column not in row]
    if missing:
        raise DataError(
            f"a task file lacks the column {missing[0]!r}",
            where=where,
            got=sorted(row),
            wanted=f"{', '.join(columns)}, {optional}",
        )


def _text(row: dict[str, Any], column: str, where: str) -> str:
    """The text in a column, "" if it is absent or null."""
    value = row.get(column)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(
            f"a task's {column} is not text",
            where=where,
            got=value,
            wanted=f'text: {{"{column}": "..."}}',
            do="put it in quotes, or remove this row",
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"a task's {column} holds half of a surrogate pair, which is no character",
            where=where,
            got=ascii(value[:80]),
            wanted="Unicode text",
            do="correct or remove this row",
        ) from error
    return value


def _require_text(row: dict[str, Any], column: str, where: str) -> str:
    text = _text(row, column, where)
    if not text.strip():
        raise DataError(
            f"a task has an empty {column}",
            where=where,
            got=row[column],
            wanted="non-empty text",
            do="correct or remove this row",
        )
    return text


def _difficulty(row: dict[str, Any], where: str) -> int:
    """The difficulty of a row, 1 if it has none."""
    value = row.get("difficulty")
    if value is None:
        return 1
    if type(value) is not int or not 1 <= value <= _LARGEST_DIFFICULTY:
        raise DataError(
            "a difficulty cannot be used",
            where=where,
            got=value,
            wanted=f"a whole number from 1 to {_LARGEST_DIFFICULTY}, or no such column",
        )
    return value


def _has_our_schema(path: Path) -> bool:
    """Whether `tracerl data add` wrote the file. False for a file that cannot be read at all."""
    if path.suffix != ".parquet":
        return False
    try:
        return VERSION_KEY in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return False


def _read_imported_tasks(name: str, path: Path) -> list[Task]:
    """Tasks of a file that `tracerl data add` wrote, with their kinds, splits and ids."""
    tasks = []
    for number, row in enumerate(read_parquet(path, "tasks").to_pylist(), start=1):
        where = f"{path}, row {number}"
        empty = [column for column, value in row.items() if value is None]
        if empty:
            raise DataError(
                "a task has an empty column",
                where=where,
                got=f"no {empty[0]}",
                wanted="a value in every column",
                do="import the file again",
            )
        for column, values in (("kind", TASK_KINDS), ("split", ("train", "test"))):
            if row[column] not in values:
                raise DataError(
                    f"a task has an unknown {column}",
                    where=where,
                    got=row[column],
                    wanted=f"one of {', '.join(values)}",
                    do="import the file again with this version",
                )
        _difficulty(row, where)
        tasks.append(Task(**{**row, "task_set": name}))
    return tasks


def _choose(tasks: Sequence[Task], settings: TaskSet, where: str) -> list[Task]:
    """The first num_train and num_test tasks of each split."""
    chosen: list[Task] = []
    for split, limit in (("train", settings.num_train), ("test", settings.num_test)):
        chosen += [task for task in tasks if task.split == split][:limit]
    if not chosen:
        raise DataError(
            "a task file gives no tasks",
            where=where,
            got=f"{len(tasks)} distinct prompts",
            wanted=f"up to {settings.num_train} train and {settings.num_test} test tasks",
        )
    return chosen
