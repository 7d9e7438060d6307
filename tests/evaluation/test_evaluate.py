"""An evaluation samples every problem in every mode once, and a killed one ends with the same rows
and files as an undisturbed one."""

from dataclasses import replace

import pytest

from tests.tiny import sharp_model, tiny_sampler
from tracerl.evaluation.evaluate import EvaluationPlan, evaluate
from tracerl.models.tokenizer import character_tokenizer
from tracerl.store.files import read_rollouts
from tracerl.types import Task

TOKENIZER = character_tokenizer()
MODEL = sharp_model("sdar", vocab_size=TOKENIZER.vocab_size)
SETTINGS = tiny_sampler(max_new_tokens=4)
PLAN = EvaluationPlan(
    stage="evaluate@x",
    problems={
        task_set: [
            Task(
                task_id=f"{task_set}/{i}",
                task_set=task_set,
                kind="sums",
                split="test",
                difficulty=2,
                prompt=f"{i}+2=",
                answer=str(i + 2),
                solution="",
            )
            for i in range(3)
        ]
        for task_set in ("a", "b")
    },
    modes={
        "static": SETTINGS,
        "dynamic": tiny_sampler("dynamic", max_new_tokens=4),
    },
    num_samples={task_set: {"static": 2, "dynamic": 2} for task_set in ("a", "b")},
    batch_size=2,
    policy_hash="0" * 16,
    seed=1,
    truncated_is_wrong=True,
    num_resamples=10,
)


def test_each_problem_is_sampled_in_each_mode_and_every_response_is_saved(tmp_path):
    progress = []
    rows = evaluate(MODEL, TOKENIZER, PLAN, tmp_path, lambda *told: progress.append(told))
    assert [(row["benchmark"], row["remasking"]) for row in rows] == [
        ("a", "static"),
        ("a", "dynamic"),
        ("b", "static"),
        ("b", "dynamic"),
    ]
    assert all((row["num_problems"], row["num_responses"]) == (3, 6) for row in rows)
    assert PLAN.num_responses == 24
    assert [done for done, _, _ in progress] == [4, 6, 10, 12, 16, 18, 22, 24]
    assert {total for _, total, _ in progress} == {24}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[:4] == [
        "a-dynamic-000000.parquet",
        "a-dynamic-000002.parquet",
        "a-static-000000.parquet",
        "a-static-000002.parquet",
    ]
    stored = read_rollouts(tmp_path / "b-static-000002.parquet").to_pylist()
    assert [row["rollout_id"] for row in stored] == [
        "evaluate@x/static/00000/b/2/0",
        "evaluate@x/static/00000/b/2/1",
    ]
    assert {row["remasking"] for row in stored} == {"static"}


def test_task_sets_and_modes_have_numbers_of_responses_of_their_own(tmp_path):
    counts = {"a": {"static": 1, "dynamic": 3}, "b": {"static": 1, "dynamic": 5}}
    plan = replace(PLAN, num_samples=counts)
    assert plan.num_responses == 3 * (1 + 3 + 1 + 5)
    rows = evaluate(MODEL, TOKENIZER, plan, tmp_path, lambda *told: None)
    assert [row["num_responses"] for row in rows] == [3, 9, 3, 15]
    assert [row.get("pass_at_4") is None for row in rows] == [True, True, True, False]


def test_a_killed_evaluation_goes_on_after_its_last_batch_and_ends_the_same(tmp_path):
    whole = evaluate(MODEL, TOKENIZER, PLAN, tmp_path / "whole", lambda *told: None)

    def die(done, total, text):
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(MODEL, TOKENIZER, PLAN, tmp_path / "killed", die)
    saved = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "killed").iterdir()}
    assert len(saved) == 3
    assert evaluate(MODEL, TOKENIZER, PLAN, tmp_path / "killed", lambda *told: None) == whole
    for path in (tmp_path / "killed").iterdir():
        assert path.read_bytes() == (tmp_path / "whole" / path.name).read_bytes()
        assert path.stat().st_mtime_ns == saved.get(path.name, path.stat().st_mtime_ns)


def test_the_kinds_of_an_evaluation_are_those_of_its_problems():
    text = replace(PLAN.problems["a"][0], kind="text")
    plan = replace(PLAN, problems={**PLAN.problems, "c": [text]})
    assert plan.kinds == {"sums", "text"}
