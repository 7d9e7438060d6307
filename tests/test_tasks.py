"""Task sets: right answers, written steps, disjoint splits, and a clear error for a file or a count
that cannot be served."""

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from tests.verdicts import verify
from tracerl.errors import DataError, ParamsError
from tracerl.settings.tasks import ArithmeticSet, FileSet, OpenSet, SumsSet, Tasks, TaskSet
from tracerl.store.files import write_tasks
from tracerl.store.schema import VERSION_KEY
from tracerl.tasks import make_task_set, make_task_sets, split_of
from tracerl.types import Task

HELD_OUT = 0.25
NOWHERE = Path("nowhere")
SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


def solved(node: ast.expr, steps: list[str]) -> int:
    """Value of an expression of whole numbers; `steps` gets each operation, innermost and leftmost
    first."""
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        return node.value
    assert isinstance(node, ast.BinOp)
    left, right = solved(node.left, steps), solved(node.right, steps)
    symbol = SYMBOLS[type(node.op)]
    value = {"+": left + right, "-": left - right, "*": left * right}[symbol]
    steps.append(f"{left}{symbol}{right}={value}")
    return value


def generated(
    source: Any,
    lowest: int,
    highest: int,
    num_train: int = 300,
    num_test: int = 100,
    seed: int = 1,
    name: str = "set",
) -> list[Task]:
    settings: TaskSet = TypeAdapter(TaskSet).validate_python(
        {
            "source": source,
            "difficulty": (lowest, highest),
            "num_train": num_train,
            "num_test": num_test,
        }
    )
    return make_task_set(name, settings, HELD_OUT, seed, NOWHERE)


# Generated problems


def test_sums_are_solved_by_running_totals():
    for task in generated("sums", 2, 5):
        terms = [int(term) for term in task.prompt.removesuffix("=").split("+")]
        assert all(1 <= term <= 9 for term in terms)
        totals = [sum(terms[: i + 1]) for i in range(1, len(terms))]
        assert task.prompt == "+".join(map(str, terms)) + "="
        assert task.difficulty == len(terms)
        assert task.answer == str(sum(terms))
        assert task.solution == ";".join(map(str, totals)) + f";#{sum(terms)}"


@pytest.mark.parametrize("difficulty", [1, 2, 3, 4, 6])
def test_arithmetic_is_solved_one_operation_at_a_time(difficulty):
    for task in generated(
        "arithmetic", difficulty, difficulty, *((50, 10) if difficulty == 1 else (300, 100))
    ):
        expression = ast.parse(task.prompt.removesuffix("="), mode="eval").body
        steps: list[str] = []
        value = solved(expression, steps)
        assert task.answer == str(value)
        assert task.solution == ";".join(steps) + f";#{value}"
        assert task.difficulty == len(steps) == difficulty
        assert all(0 <= int(step.partition("=")[2]) <= 9 for step in steps)
        assert task.prompt == ast.unparse(expression).replace(" ", "") + "=", (
            "brackets stand only where they are needed"
        )


@pytest.mark.parametrize("source", ["sums", "arithmetic"])
def test_a_worked_solution_is_judged_correct_by_the_verifier(source):
    tasks = generated(source, 2, 4)
    assert {
        verify(task, task.solution, "end", truncated_is_wrong=True).verdict for task in tasks
    } == {"correct"}
    assert {task.kind for task in tasks} == {source}


@pytest.mark.parametrize("source", ["sums", "arithmetic"])
def test_every_difficulty_of_the_ladder_occurs_and_no_other(source):
    counts = Counter(task.difficulty for task in generated(source, 3, 5))
    assert set(counts) == {3, 4, 5}
    assert min(counts.values()) > 80


def test_operators_and_brackets_all_occur():
    text = "".join(task.prompt for task in generated("arithmetic", 2, 3))
    assert all(text.count(symbol) > 50 for symbol in "+-*(")


# Splits, seeds, ids


@pytest.mark.parametrize("source", ["sums", "arithmetic"])
def test_a_set_has_its_counts_without_a_repeated_problem(source):
    tasks = generated(source, 2, 4)
    assert Counter(task.split for task in tasks) == {"train": 300, "test": 100}
    assert [task.split for task in tasks] == ["train"] * 300 + ["test"] * 100
    assert len({task.prompt for task in tasks}) == len({task.task_id for task in tasks}) == 400
    assert (
        {task.task_id.split("/")[0] for task in tasks}
        == {task.task_set for task in tasks}
        == {"set"}
    )


def test_no_problem_is_in_one_sets_train_split_and_in_anothers_test_split():
    one, other = generated("sums", 2, 3, name="one"), generated("sums", 2, 3, seed=2, name="other")
    prompts = {
        (name, split): {t.prompt for t in s if t.split == split}
        for name, s in (("one", one), ("other", other))
        for split in ("train", "test")
    }
    assert prompts["one", "train"] & prompts["other", "train"], "the sets share problems"
    for first in ("one", "other"):
        for second in ("one", "other"):
            assert not prompts[first, "train"] & prompts[second, "test"]


def test_the_split_depends_on_the_problem_only_and_has_its_share():
    splits = Counter(split_of(f"problem {i}", HELD_OUT) for i in range(4000))
    assert splits["test"] == pytest.approx(1000, abs=90)
    assert split_of("problem 1", HELD_OUT) == split_of("problem 1", HELD_OUT)
    for held_out in (0.01, 0.5, 0.99):
        more = {i for i in range(500) if split_of(f"{i}", held_out) == "test"}
        assert {i for i in range(500) if split_of(f"{i}", held_out / 2) == "test"} <= more


@pytest.mark.parametrize("source", ["sums", "arithmetic"])
def test_a_set_is_a_function_of_its_seed_and_name(source):
    assert generated(source, 2, 4) == generated(source, 2, 4)
    assert {t.prompt for t in generated(source, 2, 4)} != {
        t.prompt for t in generated(source, 2, 4, seed=2)
    }
    assert {t.prompt for t in generated(source, 2, 4)} != {
        t.prompt for t in generated(source, 2, 4, name="other")
    }


def test_all_sets_of_the_params_are_made():
    settings = Tasks(
        held_out=HELD_OUT,
        sets={
            "short": SumsSet(source="sums", difficulty=(2, 3), num_train=30, num_test=10),
            "mixed": ArithmeticSet(
                source="arithmetic", difficulty=(2, 4), num_train=30, num_test=10
            ),
        },
    )
    sets = make_task_sets(settings, 1, NOWHERE)
    assert {name: len(tasks) for name, tasks in sets.items()} == {"short": 40, "mixed": 40}
    assert sets["short"] == make_task_set("short", settings.sets["short"], HELD_OUT, 1, NOWHERE)


def test_a_generator_that_runs_out_stops_with_counts():
    with pytest.raises(ParamsError) as raised:
        generated("sums", 2, 2, num_train=5, num_test=200)  # there are 81 sums of two digits
    text = str(raised.value)
    assert "tasks.sets.set" in text
    found = sum(
        split_of(f"{a}+{b}=", HELD_OUT) == "test" for a in range(1, 10) for b in range(1, 10)
    )
    assert f"{found} of 200" in text


# Files of the user's own

ROWS: list[dict[str, Any]] = [
    {"prompt": f"What is {i} + 1?", "answer": f"{i + 1}", "solution": f"Add one.\n#{i + 1}"}
    for i in range(60)
]


def user_file(folder: Path, rows: list[Any], suffix: str = ".jsonl") -> Path:
    path = folder / f"mine{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(
            "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows),
            encoding="utf-8",
        )
    return path


def read(path: Path, num_train: int = 100, num_test: int = 100) -> list[Task]:
    settings = FileSet(source="file", path=path.name, num_train=num_train, num_test=num_test)
    return make_task_set("mine", settings, HELD_OUT, 1, path.parent)


def error_of(path: Path) -> str:
    with pytest.raises(DataError) as raised:
        read(path)
    return str(raised.value)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_file_gives_its_problems_split_like_all_others(tmp_path, suffix):
    tasks = read(user_file(tmp_path, ROWS, suffix))
    assert {(t.prompt, t.answer, t.solution) for t in tasks} == {
        (r["prompt"], r["answer"], r["solution"]) for r in ROWS
    }
    assert {(t.task_set, t.kind, t.difficulty) for t in tasks} == {("mine", "text", 1)}
    assert all(t.split == split_of(t.prompt, HELD_OUT) for t in tasks)
    assert {t.split for t in tasks} == {"train", "test"}
    assert {verify(t, t.solution, "end", truncated_is_wrong=True).verdict for t in tasks} == {
        "correct"
    }
    limited = read(user_file(tmp_path, ROWS, suffix), num_train=7, num_test=3)
    assert Counter(t.split for t in limited) == {"train": 7, "test": 3}


def test_both_kinds_of_file_give_the_same_tasks(tmp_path):
    assert read(user_file(tmp_path, ROWS)) == read(user_file(tmp_path, ROWS, ".parquet"))


def test_a_solution_and_a_difficulty_are_optional(tmp_path):
    rows = [
        {"prompt": "a", "answer": " 1 "},
        {"prompt": "b", "answer": "2", "difficulty": 3, "solution": None},
    ]
    tasks = {task.prompt: task for task in read(user_file(tmp_path, rows))}
    assert (tasks["a"].answer, tasks["a"].solution, tasks["a"].difficulty) == ("1", "", 1)
    assert (tasks["b"].solution, tasks["b"].difficulty) == ("", 3)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("column", ["prompt", "answer"])
def test_a_missing_column_is_named_with_its_row(tmp_path, suffix, column):
    rows = [{key: value for key, value in row.items() if key != column} for row in ROWS[:3]]
    text = error_of(user_file(tmp_path, rows, suffix))
    assert f"{tmp_path / f'mine{suffix}'}, row 1" in text
    assert column in text


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("column", ["prompt", "answer"])
@pytest.mark.parametrize("empty", ["", " \n", None])
def test_an_empty_entry_is_named_with_its_row(tmp_path, suffix, column, empty):
    rows = [*ROWS[:2], {**ROWS[2], column: empty}]
    text = error_of(user_file(tmp_path, rows, suffix))
    assert f"{tmp_path / f'mine{suffix}'}, row 3" in text
    assert f"empty {column}" in text


@pytest.mark.parametrize(
    "bad",
    [
        '{"prompt": "a", "answer": ',
        '["a", "b"]',
        '"text"',
        {"prompt": "a", "answer": 3},
        {"prompt": "a", "answer": ["1"]},
        {"prompt": "a", "answer": "1", "difficulty": "hard"},
    ],
    ids=str,
)
def test_a_bad_line_is_named_with_its_number(tmp_path, bad):
    text = error_of(user_file(tmp_path, [*ROWS[:4], bad]))
    assert str(tmp_path / "mine.jsonl") in text
    assert "line 5" in text or "row 5" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"prompt": "a", "answer": 3}, "a task's answer is not text"),
        ({"prompt": 3, "answer": "a"}, "a task's prompt is not text"),
        ({"prompt": "a", "answer": "1", "solution": ["a"]}, "a task's solution is not text"),
        ({"prompt": "\ud800", "answer": "1"}, "half of a surrogate pair"),
        ({"prompt": "a", "answer": "\udfff"}, "half of a surrogate pair"),
        ({"prompt": "a", "answer": "1", "difficulty": True}, "a difficulty cannot be used"),
        ({"prompt": "a", "answer": "1", "difficulty": 0}, "a difficulty cannot be used"),
        ({"prompt": "a", "answer": "1", "difficulty": -5}, "a difficulty cannot be used"),
        ({"prompt": "a", "answer": "1", "difficulty": 10**30}, "a difficulty cannot be used"),
        ({"prompt": "a", "answer": "1", "difficulty": 2.0}, "a difficulty cannot be used"),
        ("", "a line is blank"),
        (" ", "a line is blank"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_row_is_said(tmp_path, line, words):
    assert words in error_of(user_file(tmp_path, [*ROWS[:4], line]))


@pytest.mark.parametrize("column", ["prompt", "rubric", "answer", "solution"])
def test_a_row_of_an_open_file_holds_text(tmp_path, column):
    path = user_file(tmp_path, [{"prompt": "a", column: 3}])
    settings = OpenSet(source="open", path=path.name, num_train=1, num_test=1)
    with pytest.raises(DataError, match=f"{column} is not text"):
        make_task_set("mine", settings, HELD_OUT, 1, path.parent)


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    path = user_file(tmp_path, ROWS)
    plain = read(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(path) == plain


def imported_task(prompt: str) -> Task:
    return Task(
        task_id=f"mine/{prompt}",
        task_set="mine",
        kind="math",
        split="test",
        difficulty=1,
        prompt=prompt,
        answer="2",
        solution="",
    )


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("kind", "chess", "unknown kind"),
        ("split", "valid", "unknown split"),
        ("difficulty", -5, "a difficulty cannot be used"),
        ("prompt", None, "no prompt"),
    ],
)
def test_an_imported_file_is_checked_row_by_row(tmp_path, column, value, words):
    tasks = [imported_task(f"{i}?") for i in range(3)]
    path = tmp_path / "mine.parquet"
    write_tasks(path, tasks)
    assert [task.prompt for task in read(path)] == ["0?", "1?", "2?"]
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[1] = value
    place = table.schema.get_field_index(column)
    field = pa.field(column, table.schema.field(place).type)
    changed = table.set_column(place, field, pa.array(values, field.type))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    text = error_of(path)
    assert words in text
    assert f"{path}, row 2" in text


def test_an_imported_file_of_an_unknown_version_is_named(tmp_path):
    path = tmp_path / "mine.parquet"
    write_tasks(path, [imported_task("1+1")])
    table = pq.read_table(path).replace_schema_metadata({VERSION_KEY: b"999"})
    pq.write_table(table, path)
    assert "another schema version" in error_of(path)


def test_a_line_ends_at_a_newline_only(tmp_path):
    """JSON strings may hold other line separators as they are."""
    path = user_file(
        tmp_path,
        [json.dumps({"prompt": "one\u2028two\x85three", "answer": "1"}, ensure_ascii=False)],
    )
    assert [task.prompt for task in read(path)] == ["one\u2028two\x85three"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_damaged_file_is_named(tmp_path, suffix):
    path = user_file(tmp_path, ROWS, suffix)
    path.write_bytes(
        path.read_bytes()[:-20]
        if suffix == ".parquet"
        else b'{"prompt": "\xff\xfe", "answer": "1"}\n'
    )
    assert str(path) in error_of(path)


def test_a_file_that_is_not_there_or_of_another_kind_is_named(tmp_path):
    assert str(tmp_path / "mine.jsonl") in error_of(tmp_path / "mine.jsonl")
    other = tmp_path / "mine.csv"
    other.write_text("prompt,answer\na,1\n")
    text = error_of(other)
    assert ".csv" in text
    assert ".jsonl" in text


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_file_without_tasks_is_named(tmp_path, suffix):
    path = tmp_path / f"mine{suffix}"
    if suffix == ".parquet":
        pq.write_table(
            pa.table({"prompt": pa.array([], pa.string()), "answer": pa.array([], pa.string())}),
            path,
        )
    else:
        path.write_text("")
    assert str(path) in error_of(path)


def test_one_problem_with_two_answers_is_an_error_not_a_dropped_row(tmp_path):
    path = user_file(tmp_path, [*ROWS[:3], {**ROWS[1], "answer": "another"}])
    assert "row 4" in error_of(path)


@pytest.mark.parametrize(
    "answer", ["16", "x = 3", "C#", "#5", "first\nsecond", "a\x0bb", "a\u2028b"]
)
def test_a_problem_that_no_response_could_solve_is_refused_with_its_row(tmp_path, answer):
    """The verifier reads an answer after the last # or on the last line: one that does not survive
    that could never be paid."""
    path = user_file(tmp_path, [{"prompt": "a", "answer": answer}])
    refusal = ""
    try:
        tasks = read(path)
    except DataError as error:
        tasks, refusal = [], str(error)
    said = [answer, f"#{answer}", f"because\n#{answer}"]
    solved_by = [
        verify(task, response, "end", truncated_is_wrong=True).verdict
        for task in tasks
        for response in said
    ]
    assert solved_by == ["correct"] * 3 or "row 1" in refusal
