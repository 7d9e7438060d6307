"""How confident a draw is, by every source, and what guidance does to the logits."""

import numpy as np
import pytest
import torch

from tests.tiny import (
    APPROXIMATE,
    END_IDS,
    MASK_ID,
    PLAIN_SAMPLERS,
    sharp_model,
    tiny_requests,
    tiny_sampler,
)
from tracerl.models.masks import CLEAN, Layout, attention_blocks
from tracerl.models.transformer import predictor_positions
from tracerl.sampling.drawing import draw, guide
from tracerl.sampling.sampler import sample

PROBABILITIES = np.array([0.5, 0.3, 0.15, 0.05])
TEMPERED = PROBABILITIES**2 / (PROBABILITIES**2).sum()  # temperature 0.5
FILTERED = np.array([*TEMPERED[:3], 0.0]) / TEMPERED[:3].sum()  # top_k 3
ENTROPY = float(-(PROBABILITIES * np.log(PROBABILITIES)).sum())


@pytest.mark.parametrize(
    ("confidence", "confidence_of", "wanted"),
    [
        ("raw", "drawn", PROBABILITIES[1]),
        ("raw", "max", PROBABILITIES[0]),
        ("tempered", "drawn", TEMPERED[1]),
        ("tempered", "max", TEMPERED[0]),
        ("filtered", "drawn", FILTERED[1]),
        ("filtered", "max", FILTERED[0]),
        ("margin", "drawn", 0.2),
        ("neg_entropy", "drawn", -ENTROPY),
    ],
)
def test_a_confidence_is_that_of_its_distribution_and_its_token(confidence, confidence_of, wanted):
    settings = tiny_sampler(
        temperature=0.5,
        top_k=3,
        confidence=confidence,
        confidence_of=confidence_of,
        threshold=-1.0 if confidence == "neg_entropy" else 0.5,
    )
    number = torch.tensor(
        [FILTERED[0] + 0.5 * FILTERED[1]], dtype=torch.float64
    )  # the second token's share of [0, 1)
    drawn = draw(torch.from_numpy(np.log(PROBABILITIES))[None], number, settings)
    assert drawn.tokens.tolist() == [1]
    assert float(drawn.confidence) == pytest.approx(wanted, abs=1e-12)
    assert float(drawn.logprobs) == pytest.approx(np.log(TEMPERED[1]), abs=1e-12)
    assert float(drawn.filtered_logprobs) == pytest.approx(np.log(FILTERED[1]), abs=1e-12)


def test_an_impossible_token_adds_nothing_to_the_entropy():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], dtype=torch.float64)
    drawn = draw(
        logits,
        torch.zeros(1, dtype=torch.float64),
        tiny_sampler(confidence="neg_entropy", threshold=-1.0),
    )
    assert float(drawn.confidence) == pytest.approx(-np.log(2))


def test_the_entropy_bound_is_about_entropies_whatever_ranks_the_other_modes():
    logits = torch.from_numpy(np.log(PROBABILITIES))[None]
    drawn = draw(
        logits,
        torch.zeros(1, dtype=torch.float64),
        tiny_sampler(remasking="entropy", confidence="raw"),
    )
    assert float(drawn.confidence) == pytest.approx(-ENTROPY)


@pytest.mark.parametrize(
    ("order_score", "shift_counts"), [("max_logit", True), ("max_logprob", False)]
)
def test_a_log_probability_as_order_score_does_not_see_a_constant_added_to_the_logits(
    order_score, shift_counts
):
    settings = tiny_sampler(
        remasking="plackett_luce", order_score=order_score, order_temperature=0.5
    )
    logits, number = (
        torch.from_numpy(np.log(PROBABILITIES))[None],
        torch.zeros(1, dtype=torch.float64),
    )
    here, shifted = (float(draw(logits + c, number, settings).order_scores) for c in (0.0, 7.0))
    assert here == pytest.approx(2 * np.log(0.5))
    assert shifted - here == pytest.approx(14.0 if shift_counts else 0.0)


# Classifier-free guidance


def test_guidance_moves_away_from_the_unconditional_logits():
    logits, unconditional = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0])
    assert guide(logits, unconditional, 0.5).tolist() == [0.0, 2.5]
    assert guide(logits, unconditional, 0.0).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("family", "cache"), PLAIN_SAMPLERS)
@torch.no_grad()
def test_a_guide_response_replays_from_two_passes(family, cache):
    """Before each step, one pass over the canvas and one over the canvas without its prompt,
    through the cache or not."""
    model, settings = (
        sharp_model(family, torch.float64),
        tiny_sampler(temperature=0.7, guidance=0.5, cache=cache),
    )
    for trajectory in sample(model, END_IDS, tiny_requests([5, 8, 3]), settings):
        prompt, length = len(trajectory.prompt_ids), trajectory.canvas_length
        for step in range(1, trajectory.num_steps + 1):
            [token] = np.flatnonzero(trajectory.step_map == step)
            canvas = torch.full((2, length), MASK_ID)
            canvas[0, :prompt] = torch.from_numpy(trajectory.prompt_ids)
            known = np.flatnonzero(trajectory.step_map < step)
            canvas[:, prompt + known] = torch.from_numpy(trajectory.response_ids[known]).long()
            positions = torch.arange(length).expand(2, -1)
            blocks = attention_blocks(positions, 4, model.family.attention)
            hidden = model(canvas, Layout(positions, blocks, torch.zeros_like(blocks) + CLEAN))
            logits, unconditional = model.logits(
                hidden[:, predictor_positions(torch.tensor(prompt + token), model.family)]
            )
            logits = model.mask_logits_(guide(logits, unconditional, 0.5))
            logprobs = (logits / 0.7).log_softmax(-1)
            assert trajectory.logprobs[token] == pytest.approx(
                float(logprobs[trajectory.response_ids[token]]), abs=1e-5
            )
        assert trajectory.num_denoising_forwards == trajectory.num_steps
        first, total = prompt // 4, (prompt + len(trajectory.response_ids)) // 4
        commits = total - first - 1 + (first > 0) if cache == "exact" else 0
        assert trajectory.num_forwards == 2 * (trajectory.num_steps + commits)


@pytest.mark.parametrize("mode", ["prefix", "dual"])
def test_each_world_of_guidance_has_its_own_keys(mode):
    model, requests = sharp_model("dream", torch.float64), tiny_requests([5, 8, 3])
    without, refreshed = (
        sample(model, END_IDS, requests, tiny_sampler(guidance=0.5, **changes))
        for changes in ({}, {"refresh_every": 1, **APPROXIMATE[mode]})
    )
    for one, other in zip(without, refreshed, strict=True):
        assert one.response_ids.tolist() == other.response_ids.tolist()
        assert one.step_map.tolist() == other.step_map.tolist()


@pytest.mark.parametrize(
    ("filters", "probabilities"),
    [
        ({"top_p": 0.6}, [0.625, 0.375, 0.0]),  # the token that reaches the bound stays
        ({"top_p": 0.4}, [1.0, 0.0, 0.0]),
        ({"top_p": 0.9}, [0.5, 0.3, 0.2]),
        ({"top_k": 2}, [0.625, 0.375, 0.0]),
        ({"top_k": 1}, [1.0, 0.0, 0.0]),
    ],
)
def test_filters_keep_the_most_likely_tokens_up_to_their_bound(filters, probabilities):
    logits = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    settings = tiny_sampler(**filters)
    found = {}
    for number in torch.linspace(0.0, 0.999, 50, dtype=torch.float64):
        drawn = draw(logits, number.view(1), settings)
        found[int(drawn.tokens[0])] = float(drawn.filtered_logprobs[0].exp())
    expected = {token: share for token, share in enumerate(probabilities) if share}
    assert found == pytest.approx(expected)
