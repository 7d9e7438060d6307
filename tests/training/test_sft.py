"""Known solutions lie on the blocks that the sampler will write in, and the model's preferred order
of them is its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import MASK_ID, RULES, sharp_model, tiny_requests, tiny_sampler
from tests.tiny_run import ROOT
from tracerl.models.families import FAMILIES
from tracerl.models.masks import Layout
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.transformer import predictor_positions
from tracerl.objectives.plans import Masking, sampling_blocks, semi_ar_plan
from tracerl.sampling.sampler import sample
from tracerl.seeds import generator_for
from tracerl.settings.params import load_params
from tracerl.settings.training import RandomObjective, SemiArObjective
from tracerl.training.sft import (
    complete_last_block,
    draw_batch,
    micro_batch_loss,
    split_batch,
    task_trajectory,
)
from tracerl.training.traces import order_by_preference
from tracerl.types import Task, Trajectory

TOKENIZER = character_tokenizer()


def known(prompt_length: int, response_length: int) -> Trajectory:
    """A worked solution of so many tokens, its end token included."""
    task = Task(
        task_id="set/1",
        task_set="set",
        kind="text",
        split="train",
        difficulty=1,
        prompt="1" * (prompt_length - len(TOKENIZER.prompt_ids(""))),
        answer="",
        solution="2" * (response_length - 1),
    )
    trajectory = task_trajectory(task, TOKENIZER)
    assert (len(trajectory.prompt_ids), len(trajectory.response_ids)) == (
        prompt_length,
        response_length,
    )
    return trajectory


@given(
    family=st.sampled_from(list(RULES)),
    prompt=st.integers(3, 9),
    response=st.integers(1, 9),
    block_size=st.sampled_from([1, 2, 3, 4, 8]),
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_a_known_solution_ends_where_a_block_of_the_sampler_ends(
    family, prompt, response, block_size
):
    record = FAMILIES[family]
    before = known(prompt, response)
    after = complete_last_block(before, block_size, TOKENIZER, record.attention)
    blocks = sampling_blocks(after, record, block_size)
    # Prompt tokens in the first block that is sampled.
    tail = prompt % block_size if record.attention == "block_causal" else 0
    sizes = np.bincount(blocks - blocks[0])
    assert sizes.tolist() == [block_size - tail] * (tail > 0) + [block_size] * (
        len(sizes) - (tail > 0)
    )
    assert len(after.response_ids) - response < block_size, "no block more than needed"
    assert after.canvas_length == prompt + len(after.response_ids)
    assert (after.response_ids[:response] == before.response_ids).all()
    assert after.num_tokens == len(after.response_ids), "all of the closing run is learned"
    assert (
        complete_last_block(after, block_size, TOKENIZER, record.attention).canvas_length
        == after.canvas_length
    )


@pytest.mark.parametrize("family", RULES)
def test_a_sampler_with_room_for_a_known_solution_has_the_same_canvas(family):
    model = sharp_model(family)
    for prompt in range(3, 8):
        for response in (1, 3, 4, 5):
            filled = complete_last_block(
                known(prompt, response), 4, TOKENIZER, model.family.attention
            )
            (sampled,) = sample(
                model, (), tiny_requests([prompt]), tiny_sampler(max_new_tokens=response)
            )
            assert (sampled.canvas_length, len(sampled.response_ids)) == (
                filled.canvas_length,
                len(filled.response_ids),
            )


@pytest.mark.parametrize(
    "family", [name for name, record in RULES.items() if record.attention == "full"]
)
def test_a_known_solution_has_as_many_semi_autoregressive_slices_as_it_has_blocks(family):
    for prompt in range(3, 8):
        filled = complete_last_block(known(prompt, 6), 4, TOKENIZER, "full")
        plan = semi_ar_plan(
            filled,
            Masking(block_size=4, family=FAMILIES[family], noise=(0.99, 1.0), weighting="uniform"),
            generator_for(1, prompt),
        )
        assert len(plan.states) == 2


# The model's preferred order


def most_certain(
    model: Policy, ids: np.ndarray, masked: np.ndarray, end: int, block_size: int
) -> np.ndarray:
    """Largest probability at every position of a canvas of which the first `end` positions are
    passed."""
    canvas = torch.from_numpy(np.where(masked, MASK_ID, ids)[:end].astype(np.int64))[None]
    positions = torch.arange(end)[None]
    blocks = (
        positions // block_size
        if model.family.attention == "block_causal"
        else torch.zeros_like(positions)
    )
    hidden = model(canvas, Layout(positions, blocks, torch.zeros_like(positions)))
    read = predictor_positions(torch.arange(end), model.family).clamp(min=0)
    confidence: np.ndarray = model.logits(hidden[0, read]).softmax(-1).max(-1).values.numpy()
    return confidence


def by_hand(model: Policy, trajectory: Trajectory, block_size: int, pick: int) -> list[list[int]]:
    """Selections, one after the other, by sampling's own rule: block by block on the canvas, the
    pick most certain positions at a time."""
    ids, prompt = (
        np.concatenate([trajectory.prompt_ids, trajectory.response_ids]),
        len(trajectory.prompt_ids),
    )
    masked = np.arange(len(ids)) >= prompt
    full = model.family.attention == "full"
    selections = []
    start = prompt if full else prompt // block_size * block_size
    while start < len(ids):
        live = [p for p in range(start, start + block_size) if p >= prompt]
        while still := [p for p in live if masked[p]]:
            if model.family.crosses_edges and start in still:
                still = [start]
            confidence = most_certain(
                model, ids, masked, len(ids) if full else start + block_size, block_size
            )
            chosen = sorted(still, key=lambda p: (-confidence[p], p))[:pick]
            masked[chosen] = False
            selections.append(sorted(p - prompt for p in chosen))
        start += block_size
    return selections


@torch.no_grad()
@pytest.mark.parametrize("pick", [1, 2])
@pytest.mark.parametrize("family", RULES)
def test_the_preferred_order_is_that_of_sampling_with_the_known_tokens(family, pick):
    model = sharp_model(family, torch.float64, vocab_size=TOKENIZER.vocab_size)
    rng = generator_for(1, "known")
    batch = []
    for prompt, response in ((3, 6), (4, 8), (6, 5)):
        filled = complete_last_block(known(prompt, response), 4, TOKENIZER, model.family.attention)
        ids = rng.integers(3, TOKENIZER.vocab_size, len(filled.response_ids)).astype(np.int32)
        batch.append(replace(filled, response_ids=ids))
    for trajectory, ordered in zip(
        batch, order_by_preference(model, batch, 4, pick, pick), strict=True
    ):
        selections = by_hand(model, trajectory, 4, pick)
        assert [
            np.flatnonzero(ordered.step_map == step + 1).tolist()
            for step in range(ordered.num_steps)
        ] == selections


@pytest.mark.parametrize("family", RULES)
@pytest.mark.parametrize(
    "objective",
    [
        SemiArObjective(kind="semi_ar", noise=(0.0, 0.1), weighting="uniform"),
        RandomObjective(kind="random", noise=(0.0, 0.1), weighting="uniform"),
    ],
    ids=lambda objective: objective.kind,
)
def test_an_example_in_which_nothing_is_masked_adds_nothing(objective, family):
    """The draw may leave an example whole. With full attention there is then no row to pass."""
    shipped = load_params(ROOT / "params.yaml").sft["short"]
    changes = {
        "objective": objective,
        "block_sizes": {4: 1.0},
        "tasks": {"set": 1.0},
        "batch_size": 8,
    }
    model, examples = sharp_model(family, torch.float64), {"set": [known(4, 5), known(5, 8)]}

    def losses(micro_batch_tokens: int) -> torch.Tensor:
        settings = shipped.model_copy(update={**changes, "micro_batch_tokens": micro_batch_tokens})
        batch = draw_batch(examples, settings, TOKENIZER, model.family, generator_for(1, "", 1))
        parts = split_batch(batch, settings, model.family)
        return torch.stack(
            [micro_batch_loss(model, batch, p, settings, TOKENIZER.mask_id) for p in parts]
        )

    alone, together = losses(1), losses(10_000)
    assert 0 < int((alone == 0).sum()) < len(alone)
    torch.testing.assert_close(alone.sum(), together.sum(), rtol=1e-12, atol=0)
    alone.sum().backward()
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all()
        for parameter in model.parameters()
    )


# Shares and end tokens


def examples_by_length(counts: dict[str, int]) -> dict[str, list[Trajectory]]:
    """A set for each name, whose only example has a prompt of so many tokens."""
    return {name: [known(prompt, 5)] for name, prompt in counts.items()}


def test_sets_and_block_sizes_are_drawn_by_their_shares():
    shipped = load_params(ROOT / "params.yaml").sft["short"]
    settings = shipped.model_copy(
        update={"block_sizes": {2: 1.0, 4: 4.0}, "tasks": {"a": 1.0, "b": 4.0}, "batch_size": 10}
    )
    examples = examples_by_length({"a": 4, "b": 6})
    sizes, prompts = [], []
    for step in range(200):
        rng = generator_for(1, "shares", step)
        batch = draw_batch(examples, settings, TOKENIZER, FAMILIES["sdar"], rng)
        sizes.append(batch.block_size)
        prompts += [len(trajectory.prompt_ids) for trajectory in batch.trajectories]
    assert set(sizes) == {2, 4}
    assert abs(np.mean(np.array(sizes) == 4) - 0.8) < 5 * np.sqrt(0.8 * 0.2 / 200)
    assert set(prompts) == {4, 6}
    assert abs(np.mean(np.array(prompts) == 6) - 0.8) < 5 * np.sqrt(0.8 * 0.2 / 2000)


@pytest.mark.parametrize(("end_tokens", "num_trainable"), [(1, 3), (2, 4), (3, 5), (None, 5)])
def test_so_many_end_tokens_are_learned_the_first_included(end_tokens, num_trainable):
    """A solution of two tokens and its end token, filled with two pad tokens to a block of 8."""
    solution = known(3, 3)
    filled = complete_last_block(solution, 8, TOKENIZER, "block_causal", end_tokens)
    assert len(filled.response_ids) == 5
    assert filled.num_tokens == num_trainable
