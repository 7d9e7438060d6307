"""Tasks without a verifiable answer: read from a user's file, decided by a judge, paid by its
score."""

import json
from typing import Any

import pytest

from tests.tiny import sharp_model, tiny_sampler
from tests.tiny_run import ROOT
from tracerl.errors import DataError, ParamsError
from tracerl.models.tokenizer import character_tokenizer
from tracerl.rewards.judges.questions import Answer, rubric_of
from tracerl.rewards.verify.verifier import configure, release, verify_all
from tracerl.rollouts.responses import SampleContext, respond
from tracerl.settings.params import load_params
from tracerl.settings.tasks import OpenSet
from tracerl.tasks import make_task_set
from tracerl.types import Task

TOKENIZER = character_tokenizer()
VERIFICATION = load_params(ROOT / "params.yaml").verification


def read(tmp_path, rows):
    (tmp_path / "open.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = OpenSet(source="open", path="open.jsonl", num_train=9, num_test=9)
    return make_task_set("mine", settings, 0.25, 1, tmp_path)


def test_a_file_of_prompts_with_or_without_rubric_and_reference(tmp_path):
    rows: list[dict[str, Any]] = [
        {"prompt": "A haiku?", "rubric": "5-7-5"},
        {"prompt": "A joke?"},
        {"prompt": "Why?", "answer": "Because.", "difficulty": 3},
    ]
    tasks = {task.prompt: task for task in read(tmp_path, rows)}
    assert {task.kind for task in tasks.values()} == {"open"}
    assert [rubric_of(tasks[row["prompt"]]) for row in rows] == ["5-7-5", "", ""]
    assert [(tasks[row["prompt"]].answer, tasks[row["prompt"]].difficulty) for row in rows] == [
        ("", 1),
        ("", 1),
        ("Because.", 3),
    ]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"question": "?"}], "row 1"),
        ([{"prompt": " "}], "a task has an empty prompt"),
        ([{"prompt": "a"}, {"prompt": "b", "rubric": 5}], "row 2"),
        ([{"prompt": "a", "difficulty": "hard"}], "a whole number from 1"),
        ([{"prompt": "a", "rubric": "x"}, {"prompt": "a", "rubric": "y"}], "listed twice"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(rows, told, tmp_path):
    with pytest.raises(DataError, match=told):
        read(tmp_path, rows)


def test_a_spec_that_is_no_rubric_is_named():
    for spec in ("{", "[]", '{"rule": 1}'):
        with pytest.raises(DataError, match="set/1"):
            rubric_of(
                Task(
                    task_id="set/1",
                    task_set="set",
                    kind="open",
                    split="train",
                    difficulty=1,
                    prompt="p",
                    answer="",
                    solution="",
                    spec=spec,
                )
            )


class Recorder:
    """A judge that scores by the last character and keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, questions):
        self.asked.append([question.chunks for question in questions])
        known = {"+": 1.0, "-": -1.0, "0": 0.0, "h": 0.5}
        return [
            Answer(score=known.get("".join(question.chunks)[-1:]), reason="odd")
            for question in questions
        ]


@pytest.fixture
def judge():
    recorder = Recorder()
    release()
    configure(VERIFICATION, lambda: recorder)
    yield recorder
    release()


OPEN = Task(
    task_id="set/1",
    task_set="set",
    kind="open",
    split="train",
    difficulty=1,
    prompt="p",
    answer="",
    solution="",
)
SUM = Task(
    task_id="set/2",
    task_set="set",
    kind="sums",
    split="train",
    difficulty=2,
    prompt="1+2=",
    answer="3",
    solution="",
)


def test_a_verdict_is_the_judges_score_and_one_batch_serves_all(judge):
    texts = ["a+", "b-", "c0", "dh", "e?", "cut+"]
    items = [(OPEN, text, "length" if text == "cut+" else "end") for text in texts]
    verdicts = verify_all([*items[:3], (SUM, "#3", "end"), *items[3:]], truncated_is_wrong=True)
    said = [(verdict.verdict, verdict.reward) for verdict in verdicts]
    assert said == [
        ("correct", 1.0),
        ("wrong", 0.0),
        ("wrong", 0.5),
        ("correct", 1.0),
        ("correct", 0.75),
        ("undecided", 0.0),
        ("wrong", 0.0),
    ]
    assert judge.asked == [[(text,) for text in texts[:5]]], "what was cut is not asked about"


def test_without_a_judge_an_open_task_cannot_be_judged():
    release()
    with pytest.raises(ParamsError, match="configure"):
        verify_all([(OPEN, "a", "end")], truncated_is_wrong=True)
    configure(VERIFICATION)
    with pytest.raises(ParamsError, match=r"verification\.judge"):
        verify_all([(OPEN, "a", "end")], truncated_is_wrong=True)
    release()


def test_a_part_of_the_reward_is_the_judges_and_an_undecided_one_undoes_the_verdict(judge):
    """On verifiable tasks the judge is asked beside the verifier; on open ones it has been."""
    context = SampleContext(
        stage="rl@short",
        iteration=1,
        policy_hash="0" * 16,
        seed=1,
        truncated_is_wrong=False,
        reward={"correct": 1.0, "judge": 0.5},
    )
    model = sharp_model("sdar", vocab_size=TOKENIZER.vocab_size)
    rollouts = respond(model, TOKENIZER, [SUM, OPEN], 24, tiny_sampler(max_new_tokens=4), context)
    assert [len(batch) for batch in judge.asked] == [24, 24]
    known = {"+": 1.0, "-": -1.0, "0": 0.0, "h": 0.5}
    scores = [known.get(rollout.text[-1:]) for rollout in rollouts]
    assert len(set(scores)) > 1
    for rollout, score in zip(rollouts, scores, strict=True):
        if score is None:
            assert (rollout.verdict, rollout.reward_parts) == (
                "undecided",
                {"correct": 0.0, "judge": 0.0},
            )
        else:
            correct = (score + 1) / 2 if rollout.task == OPEN else 0.0
            assert rollout.reward_parts == {"correct": correct, "judge": 0.5 * (score + 1) / 2}
            assert rollout.reward == sum(rollout.reward_parts.values())
