"""What a judge is shown of a response."""

import re

import pytest

from tracerl.rewards.judges.questions import Question, prompt_of
from tracerl.types import Task

TASK = Task(
    task_id="sums/1",
    task_set="sums",
    kind="sums",
    split="train",
    difficulty=1,
    prompt="4+7+5=",
    answer="16",
    solution="",
    spec="",
)
CHUNKS = ("11;", "17;", "#17")


@pytest.mark.parametrize(
    ("index", "before"), [(0, ""), (1, "11;"), (2, "11;17;")], ids=["first", "second", "last"]
)
def test_a_step_is_shown_with_the_chunks_before_it_and_no_others(index, before):
    text = prompt_of(Question(task=TASK, chunks=CHUNKS, index=index), "", "Say 1 or -1.")
    pattern = r"<([a-z-]+) [0-9a-f]{12}>\n(.*?)\n</"
    blocks = dict(re.findall(pattern, text, re.DOTALL))
    assert blocks == {
        "problem": "4+7+5=",
        "reference-answer": "16",
        "response-so-far": before,
        "next-step": CHUNKS[index],
    }
