"""Laws of adaptation: documents of a row see nothing of each other, complementary views learn every
token once, phases keep to their tokens, and a run that was stopped ends as if it had not been."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.autoregressive import FREE_ID, write_autoregressive
from tracerl.errors import DataError
from tracerl.models.conversion import convert_checkpoint
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.objectives.plans import Plan, scale_weights
from tracerl.objectives.supervised import make_plan
from tracerl.seeds import generator_for
from tracerl.settings.models import Compute, TokenIds
from tracerl.settings.training import Adapt
from tracerl.training.adaptation import adaptation_loss, train_adaptation
from tracerl.training.adaptation_examples import (
    AdaptationFolders,
    adaptation_files,
    load_adaptation_examples,
    mean_tokens,
)
from tracerl.training.run_context import RunContext
from tracerl.training.scratch import Workspace
from tracerl.training.sft import SftBatch, SftMicroBatch, draw_batch, split_batch
from tracerl.types import Trajectory

CPU = Compute(
    device="cpu", dtype="stored", attention="auto", checkpoint_layers=False, vectors="avx2"
)
OPTIMIZER = {
    "lr": 0.01,
    "betas": [0.9, 0.99],
    "weight_decay": 0.0,
    "clip_norm": 1.0,
    "warmup": 0,
    "decay": 0.5,
}
ROWS = [{"prompt": f"{i}+1=", "solution": f"#{i + 1}", "text": f"{i} and {i}"} for i in range(9)]


def adapt_settings(**changes: Any) -> Adapt:
    data: dict[str, Any] = {
        "attention": "block_causal",
        "shift": True,
        "data": {"kind": "pairs", "files": {"rows.jsonl": 1.0}, "prompts": False},
        "objective": {
            "kind": "adapt",
            "noise": [0.0, 1.0],
            "weighting": "uniform",
            "complementary": True,
            "clean": 0.25,
        },
        "phases": [
            {"block_size": 1, "tokens": 60},
            {"block_size": 2, "tokens": 60},
            {"block_size": 4, "tokens": 120},
        ],
        "batch_size": 4,
        "micro_batch_tokens": 64,
        "row_tokens": None,
        "max_length": 32,
        "save_every": 2,
        "optimizer": OPTIMIZER,
    }
    return Adapt.model_validate_json(json.dumps({**data, **changes}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_autoregressive(tmp_path / "origin", "llama")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def start(
    folder: Path, adapt: Adapt, compute: Compute = CPU
) -> tuple[Policy, Tokenizer, dict[str, list[Trajectory]]]:
    token_ids = TokenIds(mask=FREE_ID, end=None, pad=None)
    model, tokenizer = convert_checkpoint(folder / "origin", adapt, token_ids, compute)
    files = adaptation_files(adapt, AdaptationFolders(root=folder, tasks=folder))
    examples, _ = load_adaptation_examples(adapt, files, tokenizer, "base")
    return model, tokenizer, examples


def context(workspace: Workspace, stop_after: int | None = None) -> RunContext:
    def on_progress(done: int, total: int, text: str) -> None:
        if done == stop_after:
            raise KeyboardInterrupt

    return RunContext(seed=1, stage="base", workspace=workspace, on_progress=on_progress)


def change_ids(trajectory: Trajectory) -> Trajectory:
    """The same layout with other tokens."""
    return replace(
        trajectory,
        prompt_ids=(trajectory.prompt_ids + 7) % 90 + 2,
        response_ids=(trajectory.response_ids + 7) % 90 + 2,
    )


@pytest.mark.parametrize("block_size", [1, 4])
def test_documents_of_a_row_see_nothing_of_each_other(folder: Path, block_size: int) -> None:
    """A packed row's loss is that of rows of their own; and with other tokens in the other
    documents, what is predicted in the first one stays as it was."""
    adapt = adapt_settings(row_tokens=200, phases=[{"block_size": block_size, "tokens": 60}])
    model, tokenizer, examples = start(folder, adapt)
    (phase,) = adapt.phase_trainings(mean_tokens(examples, adapt))
    batch = draw_batch(examples, phase, tokenizer, model.family, generator_for(1, "draw"))

    def loss_of(trajectories: list[Trajectory], plans: list[Plan], row_tokens: int | None) -> float:
        whole = SftBatch(trajectories=trajectories, plans=plans, block_size=block_size)
        micro_batch = SftMicroBatch(number=0, trajectories=trajectories, plans=plans, counts=True)
        settings = phase.model_copy(update={"row_tokens": row_tokens})
        loss, _ = adaptation_loss(model, whole, micro_batch, settings, tokenizer.mask_id)
        return float(loss.detach())

    trajectories, plans = batch.trajectories, batch.plans
    assert loss_of(trajectories, plans, 200) == pytest.approx(
        loss_of(trajectories, plans, None), rel=1e-5
    )
    only_first = [plans[0], *[scale_weights(plan, 0.0) for plan in plans[1:]]]
    others = [trajectories[0], *[change_ids(trajectory) for trajectory in trajectories[1:]]]
    assert loss_of(others, plans, 200) != pytest.approx(loss_of(trajectories, plans, 200))
    assert loss_of(others, only_first, 200) == pytest.approx(
        loss_of(trajectories, only_first, 200), rel=1e-6
    )


@pytest.mark.parametrize("block_size", [2, 4])
def test_complementary_views_learn_every_token_once(folder: Path, block_size: int) -> None:
    adapt = adapt_settings()
    model, _, examples = start(folder, adapt)
    for example in examples["rows.jsonl"]:
        plan = make_plan(
            adapt.objective, example, block_size, model.family, generator_for(1, block_size)
        )
        predicted = (plan.states == 2).sum(0)[: example.num_tokens]
        assert (predicted == 1).all()


def test_the_clean_share_of_examples_is_predicted_left_to_right(folder: Path) -> None:
    """All of them in blocks of one, where that is what a masked token sees."""
    adapt = adapt_settings()
    model, _, examples = start(folder, adapt)
    example = examples["rows.jsonl"][0]
    rng = generator_for(1, "share")
    causal = [make_plan(adapt.objective, example, 4, model.family, rng).causal for _ in range(800)]
    assert abs(np.mean(causal) - 0.25) < 0.05
    assert make_plan(adapt.objective, example, 1, model.family, rng).causal


def test_the_objective_without_the_shift_has_no_clean_tokens() -> None:
    with pytest.raises(ValueError, match="needs shift"):
        adapt_settings(shift=False)


def test_phases_take_the_steps_that_their_tokens_need(folder: Path) -> None:
    adapt = adapt_settings()
    _, _, examples = start(folder, adapt)
    tokens = mean_tokens(examples, adapt)
    assert tokens == np.mean([len(row["prompt"] + row["solution"]) + 1 for row in ROWS])
    phases = adapt.phase_trainings(tokens)
    assert [phase.num_steps for phase in phases] == [3, 3, 5]
    assert [phase.block_sizes for phase in phases] == [{1: 1.0}, {2: 1.0}, {4: 1.0}]


@pytest.mark.parametrize("dtype", ["stored", "bfloat16"])
@pytest.mark.parametrize("row_tokens", [None, 48])
def test_a_stopped_adaptation_ends_as_if_it_had_not_been(
    folder: Path, dtype: str, row_tokens: int | None
) -> None:
    """Stopped after every step in turn, between phases too: equal bytes and an equal curve."""
    compute = CPU.model_copy(update={"dtype": dtype, "checkpoint_layers": True})
    adapt = adapt_settings(row_tokens=row_tokens, save_every=1)
    model, tokenizer, examples = start(folder, adapt, compute)
    whole = context(Workspace(folder / "whole"))
    curve = train_adaptation(model, tokenizer, examples, adapt, whole)
    assert [row["block_size"] for row in curve] == [1] * 3 + [2] * 3 + [4] * 5
    for step in range(1, len(curve)):
        again, _, _ = start(folder, adapt, compute)
        with pytest.raises(KeyboardInterrupt):
            train_adaptation(
                again, tokenizer, examples, adapt, context(Workspace(folder / "parts"), step)
            )
    again, _, _ = start(folder, adapt, compute)
    rest = train_adaptation(again, tokenizer, examples, adapt, context(Workspace(folder / "parts")))
    assert rest == curve
    for name, parameter in model.state_dict().items():
        assert torch.equal(parameter, again.state_dict()[name]), name


def test_the_curve_is_what_the_model_says_of_its_tokens(folder: Path) -> None:
    """Loss and accuracy of a step before any update, against the batch computed anew; and both
    improve."""
    adapt = adapt_settings(save_every=1, phases=[{"block_size": 4, "tokens": 1600}])
    model, tokenizer, examples = start(folder, adapt)
    (phase,) = adapt.phase_trainings(mean_tokens(examples, adapt))
    batch = draw_batch(examples, phase, tokenizer, model.family, generator_for(1, "base", 0))
    nll, predicted, hits = np.zeros(3)
    for micro_batch in split_batch(batch, phase, model.family):
        _, sums = adaptation_loss(model, batch, micro_batch, phase, tokenizer.mask_id)
        nll += sums["nll"]
        predicted += sums["predicted"]
        hits += sums["hits"]
    curve = train_adaptation(model, tokenizer, examples, adapt, context(Workspace(folder / "a")))
    assert curve[0]["loss"] == pytest.approx(nll / predicted)
    assert curve[0]["accuracy"] == pytest.approx(hits / predicted)
    assert curve[-1]["loss"] < 0.5 * curve[0]["loss"]
    assert curve[-1]["accuracy"] > curve[0]["accuracy"]


def test_documents_are_cut_into_pieces_that_hold_all_their_text(folder: Path) -> None:
    data = {"kind": "text", "files": {"rows.jsonl": 1.0}}
    adapt = adapt_settings(data=data, max_length=4)
    _, tokenizer, examples = start(folder, adapt)
    pieces = examples["rows.jsonl"]
    text = ""
    for piece in pieces:
        assert len(piece.prompt_ids) == 1
        assert len(piece.prompt_ids) + len(piece.response_ids) <= 4
        text += tokenizer.decode([*piece.prompt_ids, *piece.response_ids])
    assert text == "".join(row["text"] for row in ROWS)
    ends = [piece.stop_reason == "end" for piece in pieces]
    assert sum(ends) == len(ROWS), "the last piece of each document ends it"


def test_with_prompts_all_tokens_but_the_first_are_learned(folder: Path) -> None:
    data = {"kind": "pairs", "files": {"rows.jsonl": 1.0}, "prompts": True}
    _, _, examples = start(folder, adapt_settings(data=data))
    for row, example in zip(ROWS, examples["rows.jsonl"], strict=True):
        assert len(example.prompt_ids) == 1
        assert example.num_tokens == len(row["prompt"] + row["solution"])


@pytest.mark.parametrize("text", ['{"prompt": "a"}', '{"prompt": "a", "solution": 3}'])
def test_a_row_without_text_is_named(folder: Path, text: str) -> None:
    (folder / "rows.jsonl").write_text(text + "\n")
    with pytest.raises(DataError, match="row 1"):
        start(folder, adapt_settings())
