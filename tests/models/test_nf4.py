"""Frozen weights in 4 bits: the levels of the paper, the nearest of them, gradients in the adapters
alone, and a checkpoint that computes what was trained."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.stats import norm
from torch.nn import functional as F

from tests.rounds import CRITIC, round_of
from tests.tiny import sharp_model
from tracerl.errors import CheckpointError, ParamsError
from tracerl.models.checkpoint import (
    load_checkpoint,
    load_for_training,
    policy_hash,
    save_checkpoint,
)
from tracerl.models.lora import LoraExpertLinear, LoraLinear
from tracerl.models.masks import Layout
from tracerl.models.nf4 import BLOCK, LEVELS, PackedWeight, pack, packed_bytes, unpack
from tracerl.models.policy import Policy, merge_adapters
from tracerl.models.tokenizer import character_tokenizer
from tracerl.seeds import generator_for
from tracerl.settings.models import Compute, Lora
from tracerl.settings.training import Optimizer
from tracerl.training.trainer import Trainer

TOKENIZER = character_tokenizer()
LORA = Lora(rank=2, alpha=4.0, dropout=0.0, targets=["v_proj", "down_proj"], quantise="nf4")
IDS = torch.arange(2, 14).reshape(2, 6)
KINDS = LoraLinear | LoraExpertLinear


def compute_in(dtype: str) -> Compute:
    return Compute.model_validate(
        {
            "device": "cpu",
            "dtype": dtype,
            "attention": "auto",
            "checkpoint_layers": False,
            "vectors": "avx2",
        }
    )


def normal(*shape: int) -> torch.Tensor:
    return torch.from_numpy(generator_for(1, "numbers").normal(size=shape)).float()


# Numbers


def test_the_levels_are_the_papers_quantiles():
    """Nine of the upper half and eight of the lower one, which share zero, scaled to 1."""
    end = 0.9677083
    upper = norm.ppf(np.linspace(end, 0.5, 9)[:-1])
    lower = -norm.ppf(np.linspace(end, 0.5, 8)[:-1])
    wanted = np.sort(np.concatenate([lower, [0.0], upper]))
    np.testing.assert_allclose(LEVELS, wanted / wanted.max(), atol=1e-6)


def test_each_number_becomes_the_nearest_level_of_its_block():
    numbers = normal(3 * BLOCK) * torch.tensor([0.01, 1.0, 50.0]).repeat_interleave(BLOCK)
    codes, scales = pack(numbers)
    assert scales.tolist() == numbers.view(3, BLOCK).abs().amax(1).tolist()
    candidates = torch.tensor(LEVELS) * scales.repeat_interleave(BLOCK).unsqueeze(1)
    distances = (candidates - numbers.unsqueeze(1)).abs()
    errors = (unpack(codes, scales) - numbers).abs()
    torch.testing.assert_close(errors, distances.amin(1), rtol=0, atol=1e-5)


def test_levels_zeros_and_an_unfinished_block_come_back_exactly():
    for numbers in (torch.tensor(LEVELS) * 3, torch.zeros(BLOCK), torch.tensor([2.0])):
        assert torch.equal(unpack(*pack(numbers))[: len(numbers)], numbers)


def test_a_number_takes_four_bits_and_a_block_four_bytes_more():
    packed = PackedWeight(normal(4, 96, 64).bfloat16())
    size = packed.codes.nbytes + packed.scales.nbytes
    assert size == packed_bytes(4 * 96 * 64) == 4 * 96 * 64 * 9 // 16
    packed.bfloat16()
    assert packed.scales.dtype == packed.codes.dtype == torch.uint8


def test_a_product_has_the_gradient_of_the_matrix_that_comes_back():
    packed = PackedWeight(normal(5, 8))
    rows = normal(3, 8).requires_grad_()
    other = rows.detach().clone().requires_grad_()
    packed.product(rows).square().sum().backward()
    F.linear(other, packed.matrix(torch.float32)).square().sum().backward()
    assert rows.grad is not None
    assert other.grad is not None
    assert torch.equal(rows.grad, other.grad)


# Models


@pytest.fixture(params=["sdar", "dream", "sdar-moe"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    model = sharp_model(request.param, vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id)
    save_checkpoint(model, TOKENIZER, tmp_path / "base")
    return tmp_path / "base"


def adapted(directory: Path, lora: Lora | None = LORA, dtype: str = "stored") -> Policy:
    return load_for_training(directory, compute_in(dtype), lora, generator_for(1, "lora"))[0]


def draw_changes(model: Policy) -> None:
    """Adapters that are not zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B" in name:
                drawn = generator_for(2, name).normal(0, 0.3, tuple(parameter.shape))
                parameter.copy_(torch.from_numpy(drawn))


def hidden(model: Policy) -> torch.Tensor:
    positions = torch.arange(6).expand(2, -1)
    zeros = torch.zeros_like(positions)
    out: torch.Tensor = model(IDS, Layout(positions, zeros, zeros))
    return out


@torch.no_grad()
def test_a_model_in_four_bits_is_near_the_stored_one_and_its_weights_are_gone(base):
    model = adapted(base)
    layers = [layer for layer in model.modules() if isinstance(layer, KINDS)]
    assert layers
    assert {layer.weight for layer in layers} == {None}
    wanted = hidden(load_checkpoint(base)[0])
    error = (hidden(model) - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert 0.01 < float(error) < 0.5


@torch.no_grad()
@pytest.mark.parametrize("dtype", ["stored", "bfloat16"])
def test_a_saved_adapter_comes_back_on_a_base_in_four_bits(base, dtype, tmp_path):
    model = adapted(base, dtype=dtype)
    draw_changes(model)
    save_checkpoint(model, TOKENIZER, tmp_path / "adapter")
    loaded = load_checkpoint(tmp_path / "adapter", compute_in(dtype))[0]
    assert policy_hash(loaded) == policy_hash(model)
    assert torch.equal(hidden(loaded), hidden(model))
    trained_on = adapted(tmp_path / "adapter", dtype=dtype)
    assert policy_hash(trained_on) == policy_hash(model)
    with pytest.raises(ParamsError, match="not of the kind"):
        adapted(tmp_path / "adapter", LORA.model_copy(update={"quantise": None}))


@torch.no_grad()
def test_merged_weights_compute_what_was_trained(base, tmp_path):
    model = adapted(base)
    draw_changes(model)
    wanted = hidden(model)
    merge_adapters(model)
    assert not [name for name in model.state_dict() if "packed" in name or ".lora_" in name]
    torch.testing.assert_close(hidden(model), wanted, rtol=0, atol=1e-4)
    save_checkpoint(model, TOKENIZER, tmp_path / "merged")
    loaded = load_checkpoint(tmp_path / "merged")[0]
    torch.testing.assert_close(hidden(loaded), wanted, rtol=0, atol=1e-4)


def test_only_adapters_are_trained_and_a_resumed_step_is_the_same(base):
    settings = Optimizer(
        lr=0.01, betas=(0.9, 0.99), weight_decay=0.01, clip_norm=1.0, warmup=0, decay=0.0
    )

    def steps(count: int, state: dict[str, torch.Tensor] | None = None) -> Trainer[Policy]:
        model = adapted(base)
        trainer = Trainer(model.train(), settings, 4)
        if state is not None:
            trainer.load_state(state)
        for _ in range(count):
            trainer.step([model] * 2, lambda part: (hidden(part).square().mean(), {}))
        return trainer

    whole = steps(4).model
    before = adapted(base).state_dict()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, before[name]) is (".lora_" not in name)
    state = {name: tensor.clone() for name, tensor in steps(2).state().items()}
    assert policy_hash(steps(2, state).model) == policy_hash(whole)


def test_a_round_with_a_value_model_keeps_its_weights_as_stored():
    with pytest.raises(ValidationError, match=r"lora\.quantise"):
        round_of("tracerl", value=CRITIC, advantages="gae", lora=LORA.model_dump())


def test_another_way_to_keep_the_base_is_refused(base, tmp_path):
    save_checkpoint(adapted(base), TOKENIZER, tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text())
    assert config["tracerl_quantise"] == "nf4"
    path.write_text(json.dumps({**config, "tracerl_quantise": "fp4"}))
    with pytest.raises(CheckpointError, match="fp4"):
        load_checkpoint(tmp_path / "adapter")
