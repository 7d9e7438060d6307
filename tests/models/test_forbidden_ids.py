"""The mask, and ids that decode to nothing, have no probability: for the sampler, the scorer and
the preferred order alike."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import (
    END_IDS,
    MASK_ID,
    SAMPLERS,
    VOCAB_SIZE,
    sharp_model,
    tiny_requests,
    tiny_sampler,
)
from tracerl.models.checkpoint import load_checkpoint, save_checkpoint
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import character_tokenizer
from tracerl.objectives.likelihood import prediction_logits, token_logprobs
from tracerl.objectives.plans import PREDICTED, Plan
from tracerl.objectives.views import Views, build_views
from tracerl.sampling.sampler import sample

TOKENIZER = character_tokenizer()
WITHOUT_TOKEN = (30, 31)


def model_of(family: str) -> Policy:
    """A model that likes the mask and two ids without a token best of all."""
    model = sharp_model(family)
    model.lm_head.forbid([MASK_ID, *WITHOUT_TOKEN])
    with torch.no_grad():
        for i in (MASK_ID, *WITHOUT_TOKEN):
            model.lm_head.weight[i] = model.lm_head.weight[3] * 1.5
    return model


def views_of(model: Policy) -> Views:
    trajectories = sample(model, END_IDS, tiny_requests([5, 4]), tiny_sampler())
    plans = []
    for trajectory in trajectories:
        states = torch.full((1, len(trajectory.response_ids)), PREDICTED, dtype=torch.int8)
        plans.append(Plan(states=states.numpy(), weights=states.float().numpy()))
    return build_views(trajectories, plans, 4, model.family, MASK_ID)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(("family", "cache"), SAMPLERS)
def test_the_sampler_draws_neither_the_mask_nor_an_id_without_a_token(family, cache, temperature):
    settings = tiny_sampler(cache=cache, temperature=temperature)
    requests = tiny_requests([3, 5, 6, 8] * 8)
    tokens: set[int] = set()
    for trajectory in sample(model_of(family), END_IDS, requests, settings):
        tokens |= set(trajectory.response_ids.tolist())
    assert tokens.isdisjoint({MASK_ID, *WITHOUT_TOKEN})
    assert len(tokens) > 5


@pytest.mark.parametrize(
    "changes",
    [
        {"guidance": 1.0},
        {"top_k": 30},
        {"top_p": 0.99},
        {"remasking": "entropy", "entropy_bound": 1.0},
        {"remasking": "plackett_luce", "order_score": "max_logit"},
        {"confidence": "margin"},
        {"confidence": "neg_entropy", "threshold": -0.5},
    ],
    ids=str,
)
def test_no_setting_brings_them_back(changes: dict[str, Any]):
    requests = tiny_requests([3, 5, 6, 8] * 4)
    for trajectory in sample(model_of("llada"), END_IDS, requests, tiny_sampler(**changes)):
        assert not {MASK_ID, *WITHOUT_TOKEN} & set(trajectory.response_ids.tolist())


@pytest.mark.parametrize("family", ["sdar", "llada", "dream"])
def test_the_scorer_gives_all_probability_to_the_other_ids(family):
    model = model_of(family)
    views = views_of(model)
    total = torch.zeros(len(views.targets), dtype=torch.float64)
    for i in range(VOCAB_SIZE):
        views.targets.fill_(i)
        logprobs = token_logprobs(model, views, temperature=0.7).detach()
        if i in (MASK_ID, *WITHOUT_TOKEN):
            assert torch.isneginf(logprobs).all()
        total += logprobs.double().exp()
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-5)
    logits = prediction_logits(model, views)
    assert torch.isneginf(logits[:, [MASK_ID, *WITHOUT_TOKEN]]).all()


def test_they_get_no_gradient_and_the_others_a_finite_one():
    model = model_of("sdar")
    token_logprobs(model, views_of(model), temperature=1.0).sum().backward()
    gradient = model.lm_head.weight.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert not gradient[[MASK_ID, *WITHOUT_TOKEN]].any()
    assert gradient[3].any()


@pytest.mark.parametrize("family", ["sdar", "llada", "dream"])
def test_a_directory_with_more_embeddings_than_tokens_forbids_those(family, tmp_path: Path):
    size = TOKENIZER.vocab_size
    model = sharp_model(family, vocab_size=size + 20, mask_id=TOKENIZER.mask_id)
    save_checkpoint(model, TOKENIZER, tmp_path)
    loaded, _ = load_checkpoint(tmp_path)
    assert loaded.lm_head.forbidden.tolist() == [TOKENIZER.mask_id, *range(size, size + 20)]
    assert "lm_head.forbidden" not in loaded.state_dict()


def test_a_gap_in_the_vocabulary_is_forbidden(tmp_path: Path):
    size = TOKENIZER.vocab_size
    model = sharp_model("sdar", vocab_size=size + 4, mask_id=TOKENIZER.mask_id)
    save_checkpoint(model, TOKENIZER, tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["vocab"]["\u00d7"] = size + 2
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    forbidden = load_checkpoint(tmp_path)[0].lm_head.forbidden.tolist()
    assert forbidden == [TOKENIZER.mask_id, size, size + 1, size + 3]


def test_published_logits_are_of_all_ids():
    """What is compared with the published models has nothing masked."""
    model = model_of("sdar")
    hidden = torch.ones(1, model.architecture.hidden_size)
    assert model.logits(hidden).isfinite().all()
