"""Laws of the puzzles: graded by their rules, solved by the steps that are written, and nothing
evaluated that a model wrote."""

import csv
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.published import published
from tests.verdicts import verify
from tracerl import puzzles
from tracerl.settings.tasks import TaskSet
from tracerl.tasks import make_task_set
from tracerl.types import Task


def generated(source, low, high, count=60):
    settings: TaskSet = TypeAdapter(TaskSet).validate_python(
        {
            "source": source,
            "difficulty": (low, high),
            "num_train": count,
            "num_test": count // 3,
        }
    )
    return make_task_set("set", settings, 0.25, 1, Path("nowhere"))


def verdict(task, response):
    return verify(task, response, "end", truncated_is_wrong=True).verdict


@pytest.mark.parametrize(("source", "low", "high"), [("countdown", 3, 4), ("sudoku", 4, 8)])
def test_a_worked_solution_and_the_answer_alone_are_correct(source, low, high):
    tasks = generated(source, low, high)
    assert {task.difficulty for task in tasks} == set(range(low, high + 1))
    assert {verdict(task, task.solution) for task in tasks} == {"correct"}
    assert {verdict(task, f"<answer>{task.answer}</answer>") for task in tasks} == {"correct"}
    assert {verdict(task, f"so\n{task.answer}") for task in tasks} == {"correct"}
    assert "correct" not in {verdict(task, task.solution.rpartition("#")[0]) for task in tasks}


def test_a_countdown_solution_is_worked_one_true_operation_at_a_time():
    for task in generated("countdown", 3, 4):
        numbers = [int(n) for n in task.spec.partition("=")[0].split(",")]
        *steps, answer = task.solution.split(";")
        assert answer == f"#{task.answer}"
        assert len(steps) == len(numbers) - 1
        for step in steps:
            left, _, right = step.partition("=")
            read = puzzles.read_expression(left)
            assert read is not None
            used, value = read
            assert value == int(right)
            for number in used:
                numbers.remove(number)
            numbers.append(int(right))
        assert numbers == [int(task.spec.partition("=")[2])]


def test_a_sudoku_step_follows_from_the_board_before_it():
    for task in generated("sudoku", 4, 8, 12):
        assert valid_grids(task.spec) == [task.answer], "single candidates leave one grid"
        board = [int(char) for char in task.spec]
        for step in task.solution.split(";")[:-1]:
            row, column, digit = int(step[1]) - 1, int(step[3]) - 1, int(step[5])
            cell = 4 * row + column
            seen = {
                board[4 * r + c]
                for r in range(4)
                for c in range(4)
                if r == row or c == column or (r // 2, c // 2) == (row // 2, column // 2)
            }
            assert board[cell] == 0
            assert {1, 2, 3, 4} - seen == {digit}
            board[cell] = digit


COUNTDOWN = [
    ("3*5+7", True),
    ("7+(5*3)", True),
    ("3*5+7=22", True),
    (" 3 * 5 + 7 ", True),
    ("3×5+7", True),  # noqa: RUF001
    ("(3)*(5)+(7)", True),
    ("3*5+7=23", False),
    ("22", False),
    ("15+7", False),
    ("3*5+7+0", False),
    ("3*5+7*1", False),
    ("3*5", False),
    ("3*5+7+7-7", False),
    ("35-7", False),
    ("3*5+7)", False),
    ("(3*5+7", False),
    ("3**5", False),
    ("3//5", False),
    ("", False),
    ("()", False),
    ("3*5+-7", False),
    ("-(3)*5+7", False),
    ("__import__('os').system('true')", False),
    ("3*5+7 #", False),
    ("3*5+7;", False),
    ("3,5,7", False),
    ("3 5 7", False),
    ("3*5+7==22", False),
    ("(3*5+7)/(7-7)", False),
    ("3/0+5*7", False),
    ("3*5+7" + "+0" * 5000, False),
    ("(" * 90 + "3*5+7" + ")" * 90, True),
    ("٣*5+7", False),
    ("3*5+7\x00", False),
]


@pytest.mark.parametrize(("given", "right"), COUNTDOWN)
def test_countdown_pays_an_expression_of_exactly_the_numbers_with_the_value(given, right):
    assert puzzles.is_countdown_answer("3,5,7=22", given) is right


@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda e: st.tuples(e, st.sampled_from("+-*/"), e).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
        max_leaves=6,
    )
)
@settings(derandomize=True, deadline=None)
def test_an_expression_has_the_value_that_exact_arithmetic_gives(text):
    import ast

    def value(node: Any) -> Any:
        if isinstance(node, ast.Constant):
            assert isinstance(node.value, int)
            return Fraction(node.value)
        a, b = value(node.left), value(node.right)
        kind = type(node.op).__name__
        if a is None or b is None or (kind == "Div" and b == 0):
            return None
        return {
            "Add": lambda: a + b,
            "Sub": lambda: a - b,
            "Mult": lambda: a * b,
            "Div": lambda: a / b,
        }[kind]()

    plain = "".join(str(int(part)) if part.isdigit() else part for part in re.split(r"(\d+)", text))
    if len(plain) <= 200:
        read = puzzles.read_expression(plain)
        assert read is not None
        assert read[1] == value(ast.parse(plain, mode="eval").body)


@given(st.text(max_size=40))
@settings(derandomize=True, deadline=None)
def test_no_text_at_all_is_an_error(text):
    for kind, spec in (("countdown", "3,5,7=22"), ("sudoku", "1320400131422403"), ("gym", "")):
        assert verdict(
            Task(
                task_id="t",
                task_set="t",
                kind=kind,
                split="test",
                difficulty=1,
                prompt="p",
                answer="a",
                solution="",
                spec=spec,
            ),
            text,
        ) in (
            "correct",
            "wrong",
        )


def valid_grids(spec):
    """Every grid that solves a puzzle, by trying each digit in each blank."""
    units = [{4 * r + c for c in range(4)} for r in range(4)]
    units += [{4 * r + c for r in range(4)} for c in range(4)]
    units += [{8 * (b // 2) + 2 * (b % 2) + i for i in (0, 1, 4, 5)} for b in range(4)]

    def fill(grid):
        for unit in units:
            digits = [grid[cell] for cell in unit if grid[cell] != "0"]
            if len(set(digits)) < len(digits):
                return []
        if "0" not in grid:
            return [grid]
        return [full for digit in "1234" for full in fill(grid.replace("0", digit, 1))]

    return fill(spec)


def test_sudoku_is_graded_by_the_rules():
    spec = "1200000000000000"
    grids = valid_grids(spec)
    assert len(grids) > 1
    assert all(puzzles.is_sudoku_answer(spec, grid) for grid in grids)
    assert all(
        puzzles.is_sudoku_answer(spec, "\n".join(" ".join(grid[i : i + 4]) for i in (0, 4, 8, 12)))
        for grid in grids[:5]
    )
    good = grids[0]
    for bad in (
        spec,
        "1" * 16,
        good[:-1],
        good + "1",
        "2" + good[1:],
        good.replace("1", "5"),
        good.replace("4", "x"),
        "",
        "[" + good + "a]",
    ):
        assert not puzzles.is_sudoku_answer(spec, bad), bad
    other = next(g for g in valid_grids("0" * 16) if g[:2] != "12")
    assert not puzzles.is_sudoku_answer(spec, other), "a valid grid that changes a clue"


def test_filled_blanks_pays_the_share_and_nothing_for_a_changed_clue():
    spec, answer = "1320400131422403", "1324423131422413"
    assert puzzles.filled_blanks(spec, answer, answer) == 1.0
    assert puzzles.filled_blanks(spec, answer, "1321423131422413") == 0.75
    assert puzzles.filled_blanks(spec, answer, "2324423131422413") == 0.0
    assert puzzles.filled_blanks(spec, answer, "none") == 0.0


@pytest.mark.parametrize("name", ["d1_sudoku4x4_test.csv", "spg_sudoku_test_split_new.csv"])
def test_published_sudokus_accept_every_valid_grid_and_no_near_miss(name):
    rows = list(csv.DictReader(published(name).read_text().splitlines()))
    assert len(rows) == {"d1_sudoku4x4_test.csv": 500, "spg_sudoku_test_split_new.csv": 256}[name]
    several = 0
    for row in rows:
        spec, stored = row["Puzzle"].zfill(16), row["Solution"].zfill(16)
        grids = valid_grids(spec)
        several += len(grids) > 1
        assert stored in grids
        assert all(puzzles.is_sudoku_answer(spec, grid) for grid in grids)
        blank = spec.index("0")
        near = stored[:blank] + str(int(stored[blank]) % 4 + 1) + stored[blank + 1 :]
        assert puzzles.is_sudoku_answer(spec, near) is (near in grids)
        assert not puzzles.is_sudoku_answer(spec, spec)
    assert several == (124 if name.startswith("d1") else 0)


def calculated(operator, a, b):
    """Exact value, None after a division by zero."""
    if a is None or b is None or (operator == "/" and b == 0):
        return None
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: Fraction(a) / b,
    }[operator]()


def test_published_countdowns_accept_right_expressions_and_reject_each_wrong_kind():
    rows = [
        json.loads(line)
        for line in published("d1_countdown_cd3_test.jsonl").read_text().splitlines()
        if line.strip()
    ]
    assert len(rows) == 256
    for row in rows:
        a, b, c = (int(n) for n in row["input"].split(","))
        spec = f"{a},{b},{c}={row['output']}"
        right = None
        for x, y, z in {(a, b, c), (a, c, b), (b, a, c), (b, c, a), (c, a, b), (c, b, a)}:
            for p in "+-*/":
                for q in "+-*/":
                    left = (f"({x}{p}{y}){q}{z}", calculated(q, calculated(p, x, y), z))
                    for text, value in (
                        left,
                        (f"{x}{p}({y}{q}{z})", calculated(p, x, calculated(q, y, z))),
                    ):
                        assert puzzles.is_countdown_answer(spec, text) is (
                            value == int(row["output"])
                        ), text
                        right = text if value == int(row["output"]) else right
        assert right is not None
        for kind in (
            row["output"],
            f"{right}+0",
            f"{right}*1",
            right + "9",
            f"{a}+{b}",
            f"{right}={int(row['output']) + 1}",
        ):
            assert not puzzles.is_countdown_answer(spec, kind), kind
