"""Phases of a round: which one an iteration belongs to, that it is trained as the phase says, and
that a killed round finds it again."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rounds import round_of, run_context
from tests.tiny import tiny_architecture
from tracerl.models.policy import new_model
from tracerl.models.tokenizer import character_tokenizer
from tracerl.seeds import generator_for
from tracerl.settings.rounds import Phase
from tracerl.store.files import read_rollouts
from tracerl.training.collect import Judging
from tracerl.training.phases import next_phase
from tracerl.training.rl import ROLLOUTS, Models, TaskPools, train_rl
from tracerl.types import Task


def played(phases: list[dict[str, Any]], accuracies: list[float]) -> list[str]:
    """The phase of each iteration, and of the one after the last."""
    parsed = [Phase.model_validate(phase) for phase in phases]
    return [
        next_phase(parsed, [{"accuracy": a} for a in accuracies[:n]]).name
        for n in range(len(accuracies) + 1)
    ]


def test_phases_of_one_iteration_alternate():
    assert played(
        [{"name": "math", "iterations": 1}, {"name": "code", "iterations": 1}], [0.5] * 4
    ) == ["math", "code"] * 2 + ["math"]


def test_a_phase_lasts_for_its_iterations_and_one_without_an_end_for_ever():
    names = played([{"name": "small", "iterations": 60}, {"name": "wide"}], [0.9] * 99)
    assert names == ["small"] * 60 + ["wide"] * 40


def test_a_phase_ends_when_the_mean_of_its_last_iterations_reaches_the_bar():
    phases: list[dict[str, Any]] = [
        {"name": name, "until": {"accuracy": 0.5, "over": 2}} for name in ("easy", "hard")
    ]
    # 0.25 and 0.75 reach it together; the 0.75 is not counted again in the next phase, where 0.75
    # alone is one too few.
    assert played(phases, [0.25, 0.25, 0.75, 0.75, 0.0, 0.75, 0.75]) == ["easy"] * 3 + [
        "hard"
    ] * 2 + ["hard"] * 2 + ["easy"]


def test_a_phase_that_does_not_reach_its_bar_ends_after_its_iterations():
    phases: list[dict[str, Any]] = [
        {"name": "easy", "iterations": 3, "until": {"accuracy": 0.5, "over": 1}},
        {"name": "hard"},
    ]
    assert played(phases, [0.1] * 4) == ["easy"] * 3 + ["hard"] * 2
    assert played(phases, [0.1, 0.5]) == ["easy"] * 2 + ["hard"]


def task_set(name: str) -> list[Task]:
    return [
        Task(
            task_id=f"{name}/{i}",
            task_set=name,
            kind="text",
            split=split,
            difficulty=1,
            prompt=f"{i}{name}?",
            answer="1",
            solution="",
        )
        for i in range(4)
        for split in ("train", "test")
    ]


PHASES: list[dict[str, Any]] = [
    {
        "name": "small",
        "tasks": {"a": 1.0},
        "until": {"accuracy": 0.9, "over": 1},
        "iterations": 2,
        "sampler": {"opening": "<"},
    },
    {
        "name": "wide",
        "tasks": {"b": 1.0},
        "train_block_size": 4,
        "sampler": {"block_size": 4, "steps_per_block": 4, "max_new_tokens": 8},
    },
]


class KilledError(Exception):
    pass


def trained(
    folder: Path,
    phases: list[dict[str, Any]] | None,
    stop_after: tuple[int, ...] = (),
    **changes: Any,
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A round of four iterations, stopped where asked and gone on with by new objects; returns
    weights and curves."""
    tokenizer, stops = character_tokenizer(), list(stop_after)
    shape = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_layers": 1,
        "head_dim": 8,
    }
    sampler = {
        "block_size": 2,
        "steps_per_block": 2,
        "order": {"kind": "static"},
        "max_new_tokens": 4,
    }
    few = {
        "iterations": 4,
        "groups": 2,
        "group_size": 2,
        "min_groups": 1,
        "max_sampled_groups": 4,
        "pass_rate": [0.0, 1.0],
    }
    held_out = {
        "tasks": None,
        "every": 4,
        "num_problems": 1,
        "bootstrap": 10,
        "num_samples": 1,
        "modes": {"static": {"order": {"kind": "static"}}},
    }
    settings = round_of(
        "tracerl",
        sampler,
        train_block_size=4,
        tasks={"b": 1.0},
        held_out=held_out,
        phases=phases,
        **{**few, **changes},
    )
    split = {
        name: {s: [t for t in task_set(name) if t.split == s] for s in ("train", "test")}
        for name in "ab"
    }

    def progress(done: int, total: int, text: str) -> None:
        if stops and done == stops[0]:
            stops.pop(0)
            raise KilledError

    while True:
        model = new_model(
            tiny_architecture("sdar", mask_id=tokenizer.mask_id, **shape),
            generator_for(1, "policy"),
        ).eval()
        try:
            curves = train_rl(
                Models(policy=model, tokenizer=tokenizer),
                TaskPools(
                    train={name: split[name]["train"] for name in "ab"},
                    held_out={"b": split["b"]["test"]},
                ),
                settings,
                Judging(truncated_is_wrong=True),
                run_context(folder, progress),
            )
        except KilledError:
            continue
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}, curves


def test_an_iteration_draws_and_samples_as_its_phase_says_and_its_row_names_the_phase(
    paid, tmp_path
):
    _, curves = trained(tmp_path, PHASES)
    assert [row["phase"] for row in curves["train"]] == ["small", "small", "wide", "wide"]
    for iteration, row in enumerate(curves["train"], 1):
        table = read_rollouts(tmp_path / ROLLOUTS / f"iter-{iteration:05d}.parquet")
        assert row["accuracy"] == pytest.approx(
            table["verdict"].to_pylist().count("correct") / table.num_rows
        )
        small = iteration <= 2
        assert set(table["task_set"].to_pylist()) == {"a" if small else "b"}
        assert set(table["block_size"].to_pylist()) == {2 if small else 4}
        assert set(table["opening"].to_pylist()) == {"<" if small else ""}
        assert set(table["max_new_tokens"].to_pylist()) == {4 if small else 8}
    held_out = [read_rollouts(path) for path in sorted((tmp_path / ROLLOUTS).glob("held-out-*"))]
    assert [set(table["block_size"].to_pylist()) for table in held_out] == [{2}, {2}]


def test_a_killed_round_goes_on_in_the_phase_it_was_in(paid, tmp_path):
    weights, curves = trained(tmp_path / "whole", PHASES)
    again, resumed = trained(tmp_path / "killed", PHASES, stop_after=(1, 2, 3))
    assert resumed == curves
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_what_is_lost_with_a_kill_is_counted_once(paid, tmp_path):
    """Saved every second iteration only: the third is made twice, and ends the phase once."""
    alternating = [{**PHASES[0], "iterations": 1}, {**PHASES[1], "iterations": 2}]
    weights, curves = trained(tmp_path / "whole", alternating, save_every=2)
    assert [row["phase"] for row in curves["train"]] == ["small", "wide", "wide", "small"]
    again, resumed = trained(tmp_path / "killed", alternating, stop_after=(3, 3), save_every=2)
    assert resumed == curves
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_a_round_with_one_phase_that_changes_nothing_is_the_round_without(paid, tmp_path):
    plain, curves = trained(tmp_path / "plain", None)
    phased, named = trained(tmp_path / "phased", [{"name": "all"}])
    assert [
        {**row, "phase": "all", "accuracy": named["train"][i]["accuracy"]}
        for i, row in enumerate(curves["train"])
    ] == named["train"]
    assert all(torch.equal(plain[name], phased[name]) for name in plain)
