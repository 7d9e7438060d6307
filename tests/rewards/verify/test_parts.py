"""Parts of the reward, on the cases d1 gives and on what would be paid for nothing."""

import json

import pytest

from tracerl.rewards.verify.parts import is_graded, reward_parts
from tracerl.rewards.verify.verifier import Verdict
from tracerl.types import Task

FORM = "<reasoning>\nthree\n</reasoning>\n<answer>\n{}\n</answer>\n"
COUNTDOWN = Task(
    task_id="t",
    task_set="t",
    kind="countdown",
    split="train",
    difficulty=3,
    prompt="p",
    answer="a",
    solution="",
    spec="3,5,7=22",
)
SUDOKU = Task(
    task_id="t",
    task_set="t",
    kind="sudoku",
    split="train",
    difficulty=4,
    prompt="p",
    answer="1324423131422413",
    solution="",
    spec="1320400131422403",
)
MATH = Task(
    task_id="t",
    task_set="t",
    kind="math",
    split="train",
    difficulty=1,
    prompt="p",
    answer="3",
    solution="",
)
RIGHT, WRONG = (
    Verdict(verdict="correct", parts={"correct": 1.0}),
    Verdict(verdict="wrong", parts={"correct": 0.0}),
)


def part(name, text, task=MATH, verdict=WRONG):
    (value,) = reward_parts({name: 1.0}, task, text, verdict, 25, 100).values()
    return value


@pytest.mark.parametrize(
    ("name", "text", "score"),
    [
        ("boxed_format", "<answer>\\boxed{3}</answer>", 1.0),
        ("boxed_format", "<answer>3</answer>", 0.75),
        ("boxed_format", "\\boxed{3}", 0.5),
        ("boxed_format", "3", 0.25),
        ("strict_format", FORM.format(3), 1.0),
        ("strict_format", FORM.format(3) + "more", 0.0),
        ("strict_format", "<reasoning>a</reasoning><answer>b</answer>", 0.0),
        ("soft_format", "<reasoning>a < b</reasoning> <answer>b</answer>", 1.0),
        ("soft_format", "<answer>b</answer>", 0.0),
        ("xml_count", FORM.format(3), 1.0),
        ("xml_count", "", 0.0),
        ("xml_count", FORM.format(3) + "abcde", 1.0 - 0.01),
        ("integer_answer", "<answer>1,234</answer>", 1.0),
        ("integer_answer", "<answer>2.5</answer>", 0.0),
        ("integer_answer", "<answer>many</answer>", 0.0),
    ],
)
def test_format_parts(name, text, score):
    assert part(name, text) == pytest.approx(score)


def test_partial_credit_of_puzzles():
    assert part("right_numbers", "<answer>3+5+7</answer>", COUNTDOWN) == 1.0
    assert part("right_numbers", "<answer>3+5</answer>", COUNTDOWN) == 0.0
    assert part("right_numbers", "<answer>3*5+7</answer>", COUNTDOWN, RIGHT) == 0.0, (
        "paid by correct already"
    )
    assert part("filled_blanks", "<answer>1321423131422413</answer>", SUDOKU) == 0.75
    assert part("filled_blanks", "<answer>1321423131422413</answer>", MATH) == 0.0


def test_weights_and_brevity():
    assert reward_parts(
        {"correct": 2.0, "boxed_format": 0.5}, MATH, "\\boxed{3}", RIGHT, 25, 100
    ) == {"correct": 2.0, "boxed_format": 0.25}
    assert part("brevity", "3", MATH, RIGHT) == 0.75
    assert part("brevity", "3", MATH, WRONG) == 0.0


@pytest.mark.parametrize(("score", "paid"), [(1.0, 0.5), (-1.0, 0.0), (0.0, 0.25), (0.5, 0.375)])
def test_a_judges_score_is_paid_from_nothing_to_its_weight(score, paid):
    assert reward_parts({"correct": 1.0, "judge": 0.5}, MATH, "", WRONG, 1, 9, score) == {
        "correct": 0.0,
        "judge": paid,
    }


def test_rewards_are_graded_where_they_can_lie_between_nothing_and_everything():
    tests = {"style": "stdin", "tests": [{"input": "", "output": ""}]}
    code = {
        kind: Task(
            task_id="t",
            task_set="t",
            kind="code",
            split="train",
            difficulty=1,
            prompt="p",
            answer="",
            solution="",
            spec=json.dumps({**tests, "reward": kind}),
        )
        for kind in ("all", "fraction")
    }
    assert not is_graded({"correct": 2.0}, MATH)
    assert is_graded({"correct": 1.0, "brevity": 0.1}, MATH)
    assert is_graded({"filled_blanks": 1.0}, SUDOKU)
    assert not is_graded({"correct": 1.0}, code["all"])
    assert is_graded({"correct": 1.0}, code["fraction"])
    assert is_graded(
        {"correct": 1.0},
        Task(
            task_id="t",
            task_set="t",
            kind="open",
            split="train",
            difficulty=1,
            prompt="p",
            answer="",
            solution="",
        ),
    )


def test_an_undecided_response_is_paid_for_no_part():
    undecided = Verdict(verdict="undecided", parts={"correct": 0.0})
    assert set(
        reward_parts(
            {"correct": 1.0, "boxed_format": 1.0, "brevity": 1.0},
            MATH,
            "\\boxed{3}",
            undecided,
            1,
            100,
        ).values()
    ) == {0.0}


def test_a_hostile_text_costs_linear_time():
    for text in (
        "<reasoning>" * 20_000,
        "<reasoning>" + "<" * 50_000,
        "<answer>" * 20_000,
        FORM.format("<" * 50_000),
    ):
        for name in ("soft_format", "strict_format", "xml_count", "boxed_format", "integer_answer"):
            part(name, text)
