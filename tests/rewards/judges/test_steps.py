"""The programmatic judge on written steps: true ones, untrue ones, and true statements that are no
steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracerl.rewards.judges.steps import step_scores
from tracerl.seeds import generator_for
from tracerl.tasks import GENERATORS
from tracerl.types import Task


def scores(kind: str, prompt: str, chunks: list[str], spec: str = "") -> list[float | None]:
    return step_scores(
        Task(
            task_id="t",
            task_set="t",
            kind=kind,
            split="train",
            difficulty=1,
            prompt=prompt,
            answer="",
            solution="",
            spec=spec,
        ),
        chunks,
    )


@pytest.mark.parametrize("kind", ["sums", "arithmetic", "countdown"])
def test_every_step_of_a_worked_solution_is_true(kind):
    for i in range(60):
        difficulty = 2 + i % 3
        prompt, answer, solution, spec = GENERATORS[kind](
            difficulty, generator_for(1, "steps", kind, i)
        )
        chunks = [chunk + ";" for chunk in solution.split(";")]
        assert step_scores(
            Task(
                task_id="t",
                task_set="t",
                kind=kind,
                split="train",
                difficulty=difficulty,
                prompt=prompt,
                answer=answer,
                solution=solution,
                spec=spec,
            ),
            chunks,
        ) == [1.0] * len(chunks)


@pytest.mark.parametrize(
    ("kind", "prompt", "chunks", "wanted"),
    [
        ("sums", "4+7+5=", ["11;", "16;", "#16"], [1, 1, 1]),
        ("sums", "4+7+5=", ["4+7=11\n", "11+5=16\n", "#16"], [1, 1, 1]),
        # One error, charged where it was made.
        (
            "sums",
            "4+7+5=",
            ["12;", "17;", "#17"],
            [-1, 1, 1],
        ),
        ("sums", "4+7+5=", ["12;", "16;", "#16"], [-1, -1, 1]),
        ("sums", "4+7+5=", ["11;", "16;", "#17"], [1, 1, -1]),
        ("sums", "4+7+5=", ["11;", "16;", "16;", "#16"], [1, 1, -1, 1]),  # there is no such step
        # True, and no step of this problem.
        (
            "sums",
            "4+7+5=",
            ["1+1=2;", "16;", "#16"],
            [-1, -1, 1],
        ),
        ("sums", "4+7+5=", ["#16"], [1]),
        ("sums", "4+7+5=", ["11;16;#16"], [1]),
        ("sums", "4+7+5=", ["11;17;#17"], [-1]),
        ("sums", "4+7+5=", ["so it is 16", "\n ", ""], [-1, 0, 0]),
        ("sums", "4+7+5=", [";", "11;;", "\n;16"], [-1, 1, 1]),  # an empty step is none
        ("sums", "5=", ["5;", "#5"], [1, 1]),
        ("sums", "4+7=", ["11" * 4000, "#" * 4000], [-1, -1]),
        ("arithmetic", "(1+3)*2-5=", ["1+3=4;", "4*2=8;", "8-5=3;", "#3"], [1, 1, 1, 1]),
        ("arithmetic", "(1+3)*2-5=", ["1+3=5;", "5*2=10;", "10-5=5;", "#5"], [-1, 1, 1, 1]),
        ("arithmetic", "(1+3)*2-5=", ["3+1=4;", "4*2=8;", "8-5=3;", "#3"], [1, 1, 1, 1]),
        # What binds later is no step yet.
        (
            "arithmetic",
            "(1+3)*2-5=",
            ["2-5=-3;", "1+1=2;", "#3"],
            [-1, -1, 1],
        ),
        ("arithmetic", "2+3*4=", ["2+3=5;", "3*4=12;", "2+12=14;", "#14"], [-1, 1, 1, 1]),
        ("arithmetic", "8-3-2=", ["3-2=1;", "8-3=5;", "2-5=3;", "5-2=3;", "#3"], [-1, 1, -1, 1, 1]),
        ("arithmetic", "1+2=", ["3;", "#3"], [-1, 1]),
        ("arithmetic", "1/2=", ["1/2=0"], [None]),
        ("text", "1+2=", ["3"], [None]),
        ("sums", "what is 4 + 7?", ["11"], [None]),
        ("countdown", "3,5,7=22?", ["3*5=15"], [None]),  # its numbers are not known
    ],
)
def test_a_step_is_true_where_the_problem_calls_for_it_and_its_value_is_right(
    kind, prompt, chunks, wanted
):
    assert scores(kind, prompt, chunks) == wanted


@pytest.mark.parametrize(
    ("chunks", "wanted"),
    [
        (["3*5=15;", "15+7=22;", "#3*5+7"], [1, 1, 1]),
        (["3*5=16;", "16+7=23;", "#3*5+7"], [-1, 1, 1]),
        (["3*5=15;", "3+7=10;", "#3*5"], [1, -1, -1]),  # 3 is used up
        (["3+3=6;"], [-1]),
        (["7/0=1;", "3/5=0;"], [-1, -1]),
        (["15;", "nothing"], [-1, -1]),
    ],
)
def test_countdown_joins_what_is_left(chunks, wanted):
    assert scores("countdown", "3,5,7=22?", chunks, "3,5,7=22") == wanted


@given(text=st.text("0123456789+-*/=;#\n ()ab", max_size=60))
@settings(derandomize=True, deadline=None, max_examples=150)
def test_any_text_has_a_score(text):
    for kind, prompt, spec in (
        ("sums", "4+7+5=", ""),
        ("arithmetic", "(1+3)*2-5=", ""),
        ("countdown", "3,5,7=22?", "3,5,7=22"),
    ):
        assert scores(kind, prompt, [text, text], spec)[0] in (1.0, 0.0, -1.0)
