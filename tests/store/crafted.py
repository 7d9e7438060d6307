"""A sound file of each table, and for every rule of the store a change that breaks it."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.reporting.synthetic_run import make_rollouts, make_tasks
from tracerl.store.files import rollout_table
from tracerl.store.schema import SCHEMAS, TASKS

Row = dict[str, Any]
VOCAB_SIZE = 200


def sound(table: str) -> list[Row]:
    """Rows that keep every rule."""
    if table == "tasks":
        return [{name: getattr(task, name) for name in TASKS.names} for task in make_tasks()]
    return rollout_table(make_rollouts("rl@short", 1)).to_pylist(maps_as_pydicts="strict")


def as_table(table: str, rows: list[Row]) -> pa.Table:
    plain = [
        {
            name: list(value.items()) if isinstance(value, dict) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    return pa.Table.from_pylist(plain, schema=SCHEMAS[table])


def _with(**changes: Any) -> Callable[[Row], Row]:
    return lambda row: {**row, **changes}


def _swapped_blocks(row: Row) -> Row:
    """The step map of the last two blocks of the grid exchanged."""
    steps = row["step_map"]
    return {**row, "step_map": [*steps[:-8], *steps[-4:], *steps[-8:-4]]}


def _chunks(row: Row, ends: list[int], scores: list[float]) -> Row:
    return {"chunk_ends": ends, "chunk_scores": scores, "chunk_rewards": scores}


def _merged_steps(row: Row) -> Row:
    """A step that no token has: the tokens of step 1 join step 2, which their block may not
    have."""
    return {**row, "step_map": [max(step, 2) for step in row["step_map"]]}


BREAKS: dict[str, dict[str, Callable[[Row], Row]]] = {
    "tasks": {
        "task_id_of_its_set": _with(task_id="other/1"),
        "split_is_known": _with(split="dev"),
        "prompt_is_not_empty": _with(prompt=" "),
        "kind_is_not_empty": _with(kind=""),
        "difficulty_is_positive": _with(difficulty=0),
    },
    "rollouts": {
        "id_is_not_empty": _with(stage=""),
        "numbers_are_not_negative": _with(seed=-1),
        "policy_is_named": _with(policy_hash="unknown"),
        "prompt_length": lambda row: {**row, "num_prompt_tokens": row["num_prompt_tokens"] + 4},
        "response_length": lambda row: {**row, "num_tokens": len(row["response_ids"]) + 1},
        "whole_blocks": _with(block_size=7),
        "canvas_holds_response": _with(canvas_length=3),
        "one_step_per_token": lambda row: {**row, "step_map": row["step_map"][:-1]},
        "counted_tokens_have_steps": lambda row: {**row, "step_map": [0, *row["step_map"][1:]]},
        "steps_are_a_partition": _merged_steps,
        "steps_stay_in_blocks": _swapped_blocks,
        "ids_in_vocabulary": lambda row: {
            **row,
            "response_ids": [VOCAB_SIZE, *row["response_ids"][1:]],
        },
        "one_logprob_per_token": lambda row: {**row, "logprobs": row["logprobs"][1:]},
        "logprobs_are_logarithms": lambda row: {**row, "logprobs": [0.5, *row["logprobs"][1:]]},
        "logprobs_are_known": lambda row: {**row, "logprobs": [float("nan"), *row["logprobs"][1:]]},
        "filtered_where_filtered": _with(top_k=3),
        "lists_of_one_length": _with(order_in_step=[1]),
        "order_where_drawn": _with(remasking="plackett_luce"),
        "forwards_add_up": _with(num_forwards=0),
        "verdict_is_known": _with(verdict="right"),
        "stop_is_known": _with(stop_reason="tired"),
        "reward_is_a_number": _with(reward=float("inf")),
        "parts_make_the_reward": _with(reward_parts={"correct": 0.5, "format": 0.25}),
        "undecided_is_not_paid": _with(verdict="undecided", reward=1.0),
        "chunks_are_the_response": lambda row: {**row, **_chunks(row, [3, 3], [1.0, 1.0])},
        "chunks_are_scored": lambda row: {
            **row,
            **_chunks(row, [3, row["num_tokens"]], [1.0, 1.5]),
        },
        "settings_make_sense": _with(temperature=-1.0),
    },
}

# Rows of rollouts that break a rule by another of its conditions or just at its bound.
BREAKS_AT_A_BOUND: list[tuple[str, Row]] = [
    ("id_is_not_empty", {"rollout_id": ""}),
    ("id_is_not_empty", {"task_id": ""}),
    ("numbers_are_not_negative", {"iteration": -1}),
    ("numbers_are_not_negative", {"sample_index": -1}),
    ("prompt_length", {"prompt_ids": [], "num_prompt_tokens": 0}),
    ("response_length", {"num_tokens": 0}),
    ("whole_blocks", {"block_size": 0}),
    ("canvas_holds_response", {"canvas_length": 15}),
    ("ids_in_vocabulary", {"prompt_ids": [-1, 1, 1, 1, 1, 1]}),
    ("steps_are_a_partition", {"num_steps": 8, "num_denoising_forwards": 8}),
    ("forwards_add_up", {"num_denoising_forwards": 11}),
    ("forwards_add_up", {"num_denoising_forwards": 6}),
    ("parts_make_the_reward", {"reward_parts": {"correct": 0.5}}),
    ("chunks_are_the_response", _chunks({}, [0, 10], [1.0, 1.0])),
    ("chunks_are_the_response", _chunks({}, [6, 3, 10], [1.0, 1.0, 1.0])),
    ("chunks_are_the_response", _chunks({}, [], [])),
    ("chunks_are_scored", {**_chunks({}, [10], [1.0]), "chunk_rewards": [float("inf")]}),
    ("chunks_are_scored", _chunks({}, [3, 10], [1.0])),
    ("chunks_are_scored", {"chunk_ends": [10]}),
    ("settings_make_sense", {"top_k": -1}),
    ("settings_make_sense", {"top_p": 0.0}),
    ("settings_make_sense", {"top_p": 1.5}),
    ("settings_make_sense", {"steps_per_block": 0}),
]
