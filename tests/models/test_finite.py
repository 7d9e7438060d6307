"""The first logits that are not finite are an error that names request, step and origin, and what
has finite numbers costs no more transfers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import END_IDS, SAMPLERS, sharp_model, tiny_requests, tiny_sampler
from tracerl.errors import NonFiniteError
from tracerl.evaluation.generate import GenerateRun, Prompt, generate
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import character_tokenizer
from tracerl.sampling.sampler import sample
from tracerl.training.traces import order_by_preference

TOKENIZER = character_tokenizer()
NAME = "model.layers.1.self_attn.q_proj.weight"


def broken_weight(model: Policy) -> Policy:
    with torch.no_grad():
        model.get_parameter(NAME)[0, 0] = float("nan")
    return model


def overflowing(model: Policy) -> Policy:
    """Finite weights whose activations overflow in the second layer."""
    with torch.no_grad():
        model.get_parameter("model.layers.1.mlp.down_proj.weight").mul_(1e38)
        model.get_parameter("model.layers.1.mlp.up_proj.weight").mul_(1e38)
    return model


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(("family", "cache"), SAMPLERS)
def test_weights_that_are_not_finite_are_named_by_the_sampler(family, cache, temperature):
    settings = tiny_sampler(cache=cache, temperature=temperature)
    model = broken_weight(sharp_model(family))
    with pytest.raises(NonFiniteError, match=r"request \d, step 1") as raised:
        sample(model, END_IDS, tiny_requests([5, 3, 6]), settings)
    assert NAME in str(raised.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"remasking": "dynamic", "threshold": 0.9},
        {"remasking": "sequential"},
        {"remasking": "entropy", "entropy_bound": 0.3},
        {"top_k": 3},
        {"top_p": 0.5},
        {"guidance": 1.0},
        {"confidence": "margin"},
    ],
    ids=str,
)
def test_every_way_of_choosing_sees_them(changes: dict[str, Any]):
    settings = tiny_sampler(**changes)
    with pytest.raises(NonFiniteError):
        sample(broken_weight(sharp_model("llada")), END_IDS, tiny_requests([5, 3, 6]), settings)


def test_activations_that_overflow_are_named_with_their_layer():
    with pytest.raises(NonFiniteError, match=r"layer 1, in torch\.float32"):
        sample(overflowing(sharp_model("sdar")), END_IDS, tiny_requests([5, 3]), tiny_sampler())


def test_numbers_that_break_later_name_the_step():
    """One token whose embedding is not finite is seen when it has been committed."""
    model = sharp_model("sdar")
    settings = tiny_sampler(temperature=0.0)
    [trajectory] = sample(model, END_IDS, tiny_requests([5]), settings)
    first = int(trajectory.response_ids[np.argmin(trajectory.step_map)])
    with torch.no_grad():
        model.model.embed_tokens.weight[first] = float("inf")
    with pytest.raises(NonFiniteError, match=r"request 0, step 2"):
        sample(model, END_IDS, tiny_requests([5]), settings)


@pytest.mark.parametrize("family", ["sdar", "llada"])
def test_the_preferred_order_is_not_made_of_them(family):
    good = sharp_model(family)
    trajectories = sample(good, END_IDS, tiny_requests([5, 3]), tiny_sampler())
    with pytest.raises(NonFiniteError, match=r"response 0 .* selection 1") as raised:
        order_by_preference(broken_weight(good), trajectories, 4, 1, 1)
    assert NAME in str(raised.value)


def test_generate_writes_nothing(tmp_path: Path):
    model = sharp_model("sdar", vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id)
    ids = tuple(TOKENIZER.encode("1+2="))
    with pytest.raises(NonFiniteError):
        generate(
            broken_weight(model),
            TOKENIZER,
            GenerateRun(
                prompts=[Prompt(text="1+2=", ids=ids)],
                settings=tiny_sampler(),
                num_samples=1,
                seed=1,
                policy_hash="aa",
                out=tmp_path / "out.parquet",
                part_size=4,
            ),
            on_done=lambda number: None,
        )
    assert not (tmp_path / "out.parquet").exists()
