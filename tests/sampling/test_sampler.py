"""What the sampler commits, when it stops, what it counts, and how often it draws what."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import (
    END_IDS,
    MASK_ID,
    PLAIN_SAMPLERS,
    RULES,
    SAMPLERS,
    VOCAB_SIZE,
    chi_square_z,
    concatenated,
    sharp_model,
    tiny_requests,
    tiny_sampler,
)
from tracerl.errors import DataError
from tracerl.models.families import FAMILIES
from tracerl.models.masks import Layout, block_starts_after, first_live_start
from tracerl.models.policy import Policy
from tracerl.models.transformer import CacheWindow
from tracerl.sampling.drawing import draw
from tracerl.sampling.orders import choose, static_schedule
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import key_for, uniforms
from tracerl.types import Trajectory

MODELS = {family: sharp_model(family) for family in RULES}
REMASKING = ["static", "dynamic", "sequential"]


@dataclass
class Watched:
    """A model whose forward passes are written down: position -> id of the rows it was shown (of
    one row, when one request runs)."""

    model: Policy
    passes: list[dict[int, int]] = field(default_factory=list)

    def __enter__(self) -> "Watched":
        self.handle = self.model.register_forward_pre_hook(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self.handle.remove()

    def _note(
        self, model: torch.nn.Module, arguments: tuple[torch.Tensor, Layout, CacheWindow | None]
    ) -> None:
        ids, layout = arguments[0][0], arguments[1]
        self.passes.append(dict(zip(layout.positions[0].tolist(), ids.tolist(), strict=True)))


def held_before(trajectory: Trajectory, step: int, position: int) -> int:
    """What the canvas holds at `position` before denoising step `step`."""
    if position < len(trajectory.prompt_ids):
        return int(trajectory.prompt_ids[position])
    token = position - len(trajectory.prompt_ids)
    known = token < len(trajectory.step_map) and trajectory.step_map[token] < step
    return int(trajectory.response_ids[token]) if known else MASK_ID


# Commits


@pytest.mark.parametrize("remasking", REMASKING)
@pytest.mark.parametrize(("family", "cache"), PLAIN_SAMPLERS)
def test_committed_tokens_are_never_overwritten(family, cache, remasking):
    """At its n-th denoising pass the model is shown the prompt, the tokens of the n - 1 steps
    before, and masks: nothing else, ever."""
    for request in tiny_requests([6, 9]):
        with Watched(MODELS[family]) as watched:
            [trajectory] = sample(
                watched.model, END_IDS, [request], tiny_sampler(remasking=remasking, cache=cache)
            )
        step = 0
        prefill = (
            [{p: request.prompt_ids[p] for p in range(len(request.prompt_ids) // 4 * 4)}]
            if cache == "exact"
            else []
        )
        assert watched.passes[: len(prefill)] == prefill
        for shown in watched.passes[len(prefill) :]:
            responding = [
                p - len(trajectory.prompt_ids)
                for p in shown
                if len(trajectory.prompt_ids) <= p < trajectory.canvas_length
            ]
            masked = [
                token
                for token in responding
                if token >= len(trajectory.step_map) or trajectory.step_map[token] > step
            ]
            if masked:  # otherwise it is the pass that writes a finished block to the cache
                step += 1
            assert shown == {
                position: held_before(trajectory, step if masked else step + 1, position)
                for position in shown
            }
        assert step == trajectory.num_steps


@pytest.mark.parametrize("remasking", ["static", "sequential"])
@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
def test_a_schedule_finishes_every_block_in_its_number_of_steps(block_size, remasking):
    for steps in range(1, block_size + 1):
        settings_ = tiny_sampler(
            block_size=block_size, steps_per_block=steps, remasking=remasking, cache="exact"
        )
        requests = tiny_requests(range(1, block_size + 1))
        for trajectory in sample(MODELS["sdar"], (), requests, settings_):
            assert (trajectory.step_map > 0).all()
            blocks = (
                len(trajectory.prompt_ids) + np.arange(len(trajectory.step_map))
            ) // block_size
            schedule = static_schedule(block_size, steps)
            last = 0
            for block in np.unique(blocks):
                mine = trajectory.step_map[blocks == block]
                wanted, missing = [], len(mine)
                for count in schedule:  # a block that a prompt tail shortens ends early
                    wanted += [min(count, missing)] if missing else []
                    missing -= min(count, missing)
                assert missing == 0
                assert [int((mine == last + 1 + i).sum()) for i in range(len(wanted))] == wanted
                last += len(wanted)
                if remasking == "sequential":
                    assert (np.diff(mine) >= 0).all()
            assert trajectory.num_steps == last == trajectory.num_denoising_forwards


@given(block_size=st.integers(1, 64), data=st.data())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_a_schedule_spreads_a_block_evenly(block_size, data):
    steps = data.draw(st.integers(1, block_size))
    schedule = static_schedule(block_size, steps)
    assert (len(schedule), sum(schedule)) == (steps, block_size)
    assert max(schedule) - min(schedule) <= 1
    assert sorted(schedule, reverse=True) == schedule


confidences = st.sampled_from(
    [0.0, 0.1, 0.4, 0.5, 0.5000001, 0.9, 1.0]
)  # few values, so that ties happen


@given(
    rows=st.lists(
        st.lists(st.tuples(confidences, st.booleans()), min_size=4, max_size=4),
        min_size=1,
        max_size=3,
    )
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_dynamic_commits_exactly_what_exceeds_the_threshold_or_else_the_single_best(rows):
    confidence = torch.tensor([[c for c, _ in row] for row in rows], dtype=torch.float64)
    masked = torch.tensor([[m for _, m in row] for row in rows])
    commit = choose(
        confidence,
        masked,
        torch.zeros(len(rows), dtype=torch.int64),
        tiny_sampler(remasking="dynamic", threshold=0.5),
    )
    for row, chosen in zip(rows, commit.tolist(), strict=True):
        above = {i for i, (c, m) in enumerate(row) if m and c > 0.5}
        best = [i for i, (c, m) in enumerate(row) if m and c == max(c for c, m in row if m)][:1]
        assert {i for i, yes in enumerate(chosen) if yes} == (above or set(best))


@given(
    row=st.lists(st.tuples(confidences, st.booleans()), min_size=5, max_size=5),
    step=st.integers(0, 6),
    steps=st.integers(1, 5),
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_static_commits_the_most_confident_of_its_schedule_with_ties_by_position(row, step, steps):
    settings_ = tiny_sampler(block_size=5, steps_per_block=steps)
    confidence, masked = torch.tensor([[c for c, _ in row]]), torch.tensor([[m for _, m in row]])
    [commit] = choose(confidence, masked, torch.tensor([step]), settings_).tolist()
    count = static_schedule(5, steps)[min(step, steps - 1)]
    ranked = sorted((i for i in range(5) if row[i][1]), key=lambda i: (-row[i][0], i))
    assert [i for i, yes in enumerate(commit) if yes] == sorted(ranked[:count])


def test_sequential_ignores_confidence():
    settings_ = tiny_sampler(steps_per_block=2, remasking="sequential")
    commit = choose(
        torch.tensor([[0.1, 0.2, 0.3, 0.9]]),
        torch.tensor([[False, True, True, True]]),
        torch.tensor([0]),
        settings_,
    )
    assert commit.tolist() == [[False, True, True, False]]


@pytest.mark.parametrize("confidence", ["raw", "tempered"])
@pytest.mark.parametrize(("family", "cache"), SAMPLERS)
def test_a_dynamic_step_of_several_tokens_holds_only_confident_ones(family, cache, confidence):
    """At temperature 1 a recorded log-probability is the confidence, raw or tempered."""
    settings_ = tiny_sampler(remasking="dynamic", threshold=0.4, confidence=confidence, cache=cache)
    together = 0
    for trajectory in sample(
        MODELS[family], END_IDS, tiny_requests([3, 5, 6, 9, 12] * 4), settings_
    ):
        counts = Counter(trajectory.step_map.tolist())
        several = np.array([counts[step] > 1 for step in trajectory.step_map])
        assert (np.exp(trajectory.logprobs[several]) > 0.4).all()
        together += int(several.sum())
    assert together > 0


def test_the_confidence_source_decides_the_order():
    logits = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)
    raw, tempered = (
        draw(
            logits,
            torch.tensor([0.0], dtype=torch.float64),
            tiny_sampler(temperature=0.5, confidence=source),
        )
        for source in ("raw", "tempered")
    )
    assert raw.tokens.tolist() == tempered.tokens.tolist() == [0]
    assert float(raw.confidence) == pytest.approx(np.exp(2) / (np.exp(2) + 2))
    assert float(tempered.confidence) == pytest.approx(np.exp(4) / (np.exp(4) + 2))
    assert (
        float(raw.logprobs)
        == float(tempered.logprobs)
        == pytest.approx(np.log(np.exp(4) / (np.exp(4) + 2)))
    )


# The end of a response


@pytest.mark.parametrize(("family", "cache"), SAMPLERS)
def test_a_block_with_an_end_token_is_finished_and_then_the_row_stops(family, cache):
    trajectories = sample(
        MODELS[family],
        END_IDS,
        tiny_requests([3, 5, 6, 9, 12, 2, 7] * 3),
        tiny_sampler(cache=cache),
    )
    assert {trajectory.stop_reason for trajectory in trajectories} == {"end", "length"}
    for trajectory in trajectories:
        ends = np.flatnonzero(np.isin(trajectory.response_ids, END_IDS))
        start = first_live_start(len(trajectory.prompt_ids), 4, FAMILIES[family].attention)
        total = len(trajectory.prompt_ids) + len(trajectory.response_ids) - start
        assert total % 4 == 0
        assert (trajectory.step_map > 0).all()
        assert trajectory.stop_reason == ("end" if len(ends) else "length")
        if len(ends):
            assert trajectory.num_tokens == ends[0] + 1
            assert (len(trajectory.prompt_ids) - start + ends[0]) // 4 == total // 4 - 1, (
                "the row stops with the block of its first end token"
            )
        else:
            assert trajectory.num_tokens == len(trajectory.response_ids)
            assert total == block_starts_after(len(trajectory.prompt_ids) + 12 - start, 4)


@pytest.mark.parametrize(("family", "cache"), SAMPLERS)
def test_end_tokens_of_the_prompt_do_not_end_the_response(family, cache):
    [request] = tiny_requests([6])
    [endless] = sample(MODELS[family], (), [request], tiny_sampler(cache=cache))
    ends = sorted({*request.prompt_ids[4:]} - {*endless.response_ids.tolist()})
    assert ends, (
        "an end token lies in the prompt's part of the first block, and nowhere in the response"
    )
    [trajectory] = sample(MODELS[family], ends, [request], tiny_sampler(cache=cache))
    assert trajectory.response_ids.tolist() == endless.response_ids.tolist()
    assert trajectory.stop_reason == "length"


def test_a_response_is_never_shorter_than_its_limit_unless_it_ends():
    for limit in range(1, 10):
        trajectories = sample(
            MODELS["sdar"], (), tiny_requests([1, 2, 3, 4, 5]), tiny_sampler(max_new_tokens=limit)
        )
        assert all(limit <= len(trajectory.response_ids) < limit + 4 for trajectory in trajectories)


# Counting


@pytest.mark.parametrize("remasking", REMASKING)
@pytest.mark.parametrize(("family", "cache"), PLAIN_SAMPLERS)
def test_forwards_are_counted_as_they_happen(family, cache, remasking):
    for request in tiny_requests([1, 3, 4, 6, 8, 9]):
        with Watched(MODELS[family]) as watched:
            [trajectory] = sample(
                watched.model, END_IDS, [request], tiny_sampler(remasking=remasking, cache=cache)
            )
        first = first_live_start(len(request.prompt_ids), 4, FAMILIES[family].attention)
        blocks = (len(request.prompt_ids) + len(trajectory.response_ids) - first) // 4
        assert (
            trajectory.num_denoising_forwards
            == trajectory.num_steps
            == len(set(trajectory.step_map.tolist()))
        )
        assert trajectory.num_forwards == trajectory.num_steps + (
            blocks - 1 + (first > 0) if cache == "exact" else 0
        )
        assert len(watched.passes) == trajectory.num_forwards


@pytest.mark.parametrize("bad", [[], [VOCAB_SIZE], [-1]])
def test_a_prompt_that_cannot_be_sampled_from_is_named(bad):
    with pytest.raises(DataError, match="request 1"):
        sample(MODELS["sdar"], END_IDS, [tiny_requests([3])[0], Request(bad, 1)], tiny_sampler())


def test_nothing_requested_gives_nothing():
    assert sample(MODELS["sdar"], END_IDS, [], tiny_sampler()) == []


def test_progress_is_told_every_row_once():
    told: list[int] = []
    sample(
        MODELS["sdar"],
        END_IDS,
        tiny_requests([3, 9, 6, 1, 12]),
        tiny_sampler(max_rows=2),
        told.append,
    )
    assert sum(told) == 5


def test_log_probabilities_under_filters_are_recorded_beside_those_before():
    settings_ = tiny_sampler(top_k=3, temperature=0.7)
    trajectories = sample(MODELS["sdar"], END_IDS, tiny_requests([3, 9, 6]), settings_)
    before, after = (
        concatenated([getattr(t, name) for t in trajectories])
        for name in ("logprobs", "filtered_logprobs")
    )
    assert (after > before).all()
    unfiltered = sample(
        MODELS["sdar"], END_IDS, tiny_requests([3, 9, 6]), tiny_sampler(temperature=0.7)
    )
    for trajectory in unfiltered:
        assert trajectory.logprobs.tolist() == trajectory.filtered_logprobs.tolist()


# Frequencies

LOGITS = [2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 1.5, -9.0]
NUM_DRAWS = 40_000


def exact_probabilities(temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Softmax of LOGITS at temperature, the top_k largest, then the fewest whose sum reaches top_p,
    renormalised."""
    weights = np.exp(np.array(LOGITS) / temperature)
    order = np.argsort(-weights, kind="stable")
    if top_k:
        weights[order[top_k:]] = 0.0
    share = weights / weights.sum()
    kept, total = [], 0.0
    for token in order:
        if total >= top_p:
            break
        kept.append(token)
        total += share[token]
    out = np.zeros(len(LOGITS))
    out[kept] = share[kept] / share[kept].sum()
    return out


@pytest.mark.parametrize(
    "filters",
    [
        {"temperature": 1.0},
        {"temperature": 0.7},
        {"temperature": 2.0},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.0, "top_p": 0.2},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
        {"temperature": 1.5, "top_k": 99, "top_p": 0.99},
    ],
    ids=str,
)
def test_tokens_are_drawn_with_their_exact_probabilities(filters: dict[str, Any]):
    settings_ = tiny_sampler(**filters)
    numbers = uniforms(
        torch.tensor(key_for(1, "frequencies", *map(str, filters.items()))), torch.arange(NUM_DRAWS)
    )
    drawn = draw(torch.tensor(LOGITS).expand(NUM_DRAWS, -1), numbers, settings_)
    wanted = exact_probabilities(settings_.temperature, settings_.top_k, settings_.top_p)
    counts = np.bincount(drawn.tokens.numpy(), minlength=len(LOGITS))
    possible = wanted > 0
    assert counts[~possible].sum() == 0
    if possible.sum() > 1:
        assert chi_square_z(counts[possible], NUM_DRAWS * wanted[possible]) < 3.5
    tempered = np.exp(np.array(LOGITS) / settings_.temperature)
    np.testing.assert_allclose(
        drawn.logprobs.exp().numpy(), (tempered / tempered.sum())[drawn.tokens], rtol=1e-5
    )
    np.testing.assert_allclose(
        drawn.filtered_logprobs.exp().numpy(), wanted[drawn.tokens], rtol=1e-5
    )


def test_the_sampler_draws_the_first_token_with_the_models_probabilities():
    """End to end: shift, logits, noise by (key, step, position) and inversion, against the softmax
    of one forward pass."""
    model, count = MODELS["sdar"], 4000
    requests = [Request([5, 6, 7], key_for(1, "first token", i)) for i in range(count)]
    settings_ = tiny_sampler(max_new_tokens=1, max_rows=count)
    tokens = concatenated([t.response_ids for t in sample(model, END_IDS, requests, settings_)])
    canvas = torch.tensor([[5, 6, 7, MASK_ID]])
    with torch.no_grad():
        zeros = torch.zeros_like(canvas)
        hidden = model(canvas, Layout(torch.arange(4)[None], zeros, zeros))[0, 3]
        wanted = model.mask_logits_(model.logits(hidden)).softmax(-1).double().numpy()
    counts = np.bincount(tokens.numpy(), minlength=VOCAB_SIZE)
    rare = wanted * count < 5
    pooled = [np.append(values[~rare], values[rare].sum()) for values in (counts, wanted * count)]
    assert chi_square_z(*pooled) < 3.5


@pytest.mark.parametrize(("family", "cache"), PLAIN_SAMPLERS)
def test_no_uniform_number_decides_twice(family, cache, monkeypatch):
    asked: list[tuple[int, int]] = []

    def noted(keys: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
        asked.extend(zip(keys.tolist(), counters.tolist(), strict=True))
        return uniforms(keys, counters)

    monkeypatch.setattr("tracerl.sampling.sampler.uniforms", noted)
    sample(
        MODELS[family],
        (),
        tiny_requests([3, 9, 6]),
        tiny_sampler(block_size=8, steps_per_block=8, cache=cache, max_rows=2),
    )
    # One position fewer at every step of a block; on the grid the first block holds what the prompt
    # leaves of it.
    assert len(asked) == (
        (15 + 36) + (28 + 36) + (3 + 36 + 36)
        if FAMILIES[family].attention == "block_causal"
        else 3 * (36 + 36)
    )
    assert len(set(asked)) == len(asked)


def test_temperature_zero_takes_the_most_likely_token():
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(50, 9)))
    drawn = draw(
        logits,
        torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
        tiny_sampler(temperature=0.0),
    )
    assert drawn.tokens.tolist() == logits.argmax(-1).tolist()
    assert drawn.logprobs.tolist() == logits.log_softmax(-1).max(-1).values.tolist()


@pytest.mark.parametrize(("family", "cache"), SAMPLERS)
def test_at_temperature_zero_the_noise_does_not_matter(family, cache):
    [request] = tiny_requests([6])
    settings_ = tiny_sampler(temperature=0.0, cache=cache)
    one, other = (
        sample(MODELS[family], END_IDS, [Request(request.prompt_ids, key)], settings_)[0]
        for key in (1, 2)
    )
    assert one.response_ids.tolist() == other.response_ids.tolist()
    assert one.step_map.tolist() == other.step_map.tolist()


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_the_extreme_uniform_numbers_draw_a_possible_token(number):
    logits = torch.tensor([[-torch.inf, 1.0, 2.0, -torch.inf], [0.0, -50.0, -60.0, -70.0]])
    drawn = draw(logits, torch.full((2,), number, dtype=torch.float64), tiny_sampler())
    assert torch.isfinite(drawn.logprobs).all()
    assert drawn.tokens.tolist() == ([1, 0] if number == 0.0 else [2, drawn.tokens[1].item()])
