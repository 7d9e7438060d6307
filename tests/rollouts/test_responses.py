"""Tasks in, judged responses out: what the sampler's settings add to a prompt."""

import json

import duckdb
import pytest

from tests.tiny import sharp_model, tiny_sampler
from tracerl.errors import DataError
from tracerl.models.tokenizer import character_tokenizer
from tracerl.rewards.verify.verifier import VERSION, provenance
from tracerl.rollouts.responses import (
    SampleContext,
    prompt_ids,
    respond,
    rollouts_to_table,
)
from tracerl.rollouts.task_pools import fitting_tasks
from tracerl.store.files import read_rollouts, write_rollouts, write_tasks
from tracerl.types import Task

TOKENIZER = character_tokenizer()
CONTEXT = SampleContext(
    stage="rl@short", iteration=1, policy_hash="0" * 16, seed=1, truncated_is_wrong=True
)
TASKS = [
    Task(
        task_id=f"sums/{i}",
        task_set="sums",
        kind="sums",
        split="train",
        difficulty=2,
        prompt=prompt,
        answer="3",
        solution="",
    )
    for i, prompt in enumerate(("1+2=", "1+1+1="))
]


def test_every_response_begins_with_the_opening_which_is_not_part_of_it():
    settings = tiny_sampler(opening="So ", max_new_tokens=4)
    assert prompt_ids("1+2=", TOKENIZER, settings) == TOKENIZER.encode("1+2=So ")
    model = sharp_model("llada", vocab_size=TOKENIZER.vocab_size)
    rollouts = respond(model, TOKENIZER, TASKS, 2, settings, CONTEXT)
    for rollout in rollouts:
        assert (
            TOKENIZER.decode(rollout.trajectory.prompt_ids.tolist()) == rollout.task.prompt + "So "
        )
        assert len(rollout.trajectory.response_ids) == 4
        assert rollout.settings["opening"] == "So "


def test_a_file_of_responses_names_what_judged_them(tmp_path):
    model = sharp_model("llada", vocab_size=TOKENIZER.vocab_size)
    rollouts = respond(
        model,
        TOKENIZER,
        TASKS,
        1,
        tiny_sampler(max_new_tokens=4),
        CONTEXT,
    )
    write_rollouts(tmp_path / "rows.parquet", rollouts_to_table(rollouts))
    query = (
        f"SELECT decode(value) FROM parquet_kv_metadata('{tmp_path}/*.parquet') WHERE "
        "decode(key) = 'tracerl.judged_by'"
    )
    with duckdb.connect() as connection:
        ((named,),) = connection.execute(query).fetchall()
    assert json.loads(named) == provenance({"sums"}) == {"verifier": VERSION}
    assert read_rollouts(tmp_path / "rows.parquet").num_rows == 2
    assert set(provenance({"math"})) == {"verifier", "sympy", "latex2sympy2_extended"}


def test_the_opening_counts_towards_the_prompt_limit(tmp_path):
    files = {"sums": tmp_path / "sums.parquet"}
    write_tasks(files["sums"], TASKS)
    sampler = tiny_sampler(opening="So ", max_prompt_tokens=8)
    tasks, num_dropped = fitting_tasks(files, TOKENIZER, [sampler], "here")
    assert (tasks, num_dropped) == ({"sums": TASKS[:1]}, {"sums": 1})
    tight = tiny_sampler(opening="So ", max_prompt_tokens=6)
    with pytest.raises(DataError, match="longer than the limit"):
        fitting_tasks(files, TOKENIZER, [tight], "here")


def test_a_prompt_must_fit_every_sampler(tmp_path):
    files = {"sums": tmp_path / "sums.parquet"}
    write_tasks(files["sums"], TASKS)
    # The second prompt has six tokens; an opening of three leaves it five of the eight.
    samplers = [tiny_sampler(max_prompt_tokens=6)]
    assert fitting_tasks(files, TOKENIZER, samplers, "here")[1] == {"sums": 0}
    samplers.append(tiny_sampler(opening="So ", max_prompt_tokens=8))
    assert fitting_tasks(files, TOKENIZER, samplers, "here")[1] == {"sums": 1}
