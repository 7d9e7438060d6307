"""Mixtures of experts: a token goes through the experts its router names, whatever its companions,
and the figures count them."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from tests.tiny import sharp_model, tiny_architecture, tiny_experts
from tracerl.errors import CheckpointError, ParamsError
from tracerl.models.checkpoint import load_checkpoint, save_checkpoint
from tracerl.models.cost import layer_flops
from tracerl.models.families import FAMILIES
from tracerl.models.lora import Adapters, adapt_layers, draw_adapters, merge_layers
from tracerl.models.masks import CLEAN, PAD, Layout
from tracerl.models.mlp import MixtureOfExperts, grouped_linear
from tracerl.models.policy import Policy, empty_model
from tracerl.models.routing import watch_routing
from tracerl.models.tokenizer import character_tokenizer
from tracerl.seeds import generator_for
from tracerl.settings.models import Lora

MIXTURES = [name for name, family in FAMILIES.items() if family.dense_key]
TOKENIZER = character_tokenizer()


def mixture_of(family: str) -> tuple[Policy, MixtureOfExperts]:
    model = sharp_model(family, torch.float64)
    mlp = model.model.layers[1].mlp
    assert isinstance(mlp, MixtureOfExperts)
    return model, mlp


@pytest.mark.parametrize("family", MIXTURES)
@torch.no_grad()
def test_the_output_is_the_weighted_sum_of_the_chosen_experts(family):
    _, mlp = mixture_of(family)
    x = torch.from_numpy(generator_for(1, "x").standard_normal((2, 5, 32)))
    routing = mlp.router(x.view(-1, 32))
    wanted = torch.zeros(10, 32, dtype=torch.float64)
    for t, token in enumerate(x.view(-1, 32)):
        for expert, weight in zip(routing.experts[t], routing.weights[t], strict=True):
            gate, up, down = (
                getattr(mlp.experts, f"{name}_proj").weight[expert]
                for name in ("gate", "up", "down")
            )
            wanted[t] += weight * (down @ (F.silu(gate @ token) * (up @ token)))
    if mlp.shared_experts is not None:
        wanted += mlp.shared_experts(x.view(-1, 32))
    torch.testing.assert_close(mlp(x).view(-1, 32), wanted, rtol=1e-12, atol=1e-12)


def test_gradients_of_a_grouped_product_are_those_of_each_expert():
    generator = generator_for(1, "grouped")
    weight = torch.from_numpy(generator.standard_normal((4, 3, 5))).requires_grad_()
    rows = torch.from_numpy(generator.standard_normal((6, 5))).requires_grad_()
    ends = torch.tensor([2, 2, 5, 6], dtype=torch.int32)
    out = grouped_linear(rows, weight, ends)
    owner = torch.tensor([0, 0, 2, 2, 2, 3])
    wanted = torch.einsum("noi,ni->no", weight[owner], rows)
    torch.testing.assert_close(out, wanted)
    for one, other in zip(
        torch.autograd.grad(out.square().sum(), [weight, rows]),
        torch.autograd.grad(wanted.square().sum(), [weight, rows]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("family", MIXTURES)
@torch.no_grad()
def test_figures_count_real_tokens_of_every_sparse_layer(family):
    model, mlp = mixture_of(family)
    num_sparse = sum(isinstance(layer.mlp, MixtureOfExperts) for layer in model.model.layers)
    ids = torch.arange(2, 14).reshape(2, 6)
    positions = torch.arange(6).expand_as(ids)
    streams = torch.full_like(ids, CLEAN)
    streams[1, 4:] = PAD
    with watch_routing(model) as figures:
        model(ids, Layout(positions, torch.zeros_like(ids), streams))
    assert len(figures.loads) == num_sparse
    assert {int(load.sum()) for load in figures.loads.values()} == {10 * 3}
    assert figures.num_choices == 10 * num_sparse
    row = figures.row()
    assert 1.0 <= row["expert_load"] <= 8 / 3
    assert row["router_ties"] == 0.0
    mlp.router.weight.zero_()
    with watch_routing(model) as figures:
        model(ids, Layout(positions, torch.zeros_like(ids), streams))
    has_bias = FAMILIES[family].expert_bias
    assert figures.num_ties == (0 if has_bias else 10), "equal scores are ties"
    model(ids, Layout(positions, torch.zeros_like(ids), streams))
    assert figures.num_choices == 10 * num_sparse, "nothing is counted after the block"


def test_a_model_without_experts_has_no_figures():
    model = sharp_model("sdar")
    ids = torch.arange(2, 8)[None]
    with watch_routing(model) as figures:
        model(ids, Layout(torch.arange(6)[None], torch.zeros_like(ids), torch.zeros_like(ids)))
    assert figures.row() == {}


@pytest.mark.parametrize("family", MIXTURES)
def test_no_gradient_reaches_the_expert_bias_and_the_router_is_trained(family):
    model, mlp = mixture_of(family)
    ids = torch.arange(2, 14).reshape(2, 6)
    layout = Layout(torch.arange(6).expand_as(ids), torch.zeros_like(ids), torch.zeros_like(ids))
    model(ids, layout).square().sum().backward()
    gradient = mlp.router.weight.grad
    assert gradient is not None
    assert float(gradient.abs().max()) > 0
    assert not [name for name, _ in model.named_parameters() if "expert_bias" in name]


@pytest.mark.parametrize("family", MIXTURES)
@torch.no_grad()
def test_merged_adapters_of_experts_compute_what_the_adapters_did(family, tmp_path):
    model, _ = mixture_of(family)
    lora = Lora(rank=2, alpha=4.0, dropout=0.0, targets=["gate_proj", "down_proj"])
    adapt_layers(model, Adapters(settings=lora, base=tmp_path, base_hash=""))
    draw_adapters(model, generator_for(1, "lora"))
    for name, parameter in model.named_parameters():
        if ".lora_B" in name:
            parameter.copy_(torch.from_numpy(generator_for(2, name).normal(size=parameter.shape)))
    ids = torch.arange(2, 14).reshape(2, 6)
    layout = Layout(torch.arange(6).expand_as(ids), torch.zeros_like(ids), torch.zeros_like(ids))
    before = model(ids, layout)
    merge_layers(model)
    assert not [name for name, _ in model.named_parameters() if ".lora_" in name]
    torch.testing.assert_close(model(ids, layout), before, rtol=1e-10, atol=1e-10)


def test_a_target_that_no_layer_has_is_an_error(tmp_path):
    model = sharp_model("llada2")
    lora = Lora(rank=2, alpha=4.0, dropout=0.0, targets=["q_proj", "gate_proj"])
    with pytest.raises(ParamsError, match="q_proj") as raised:
        adapt_layers(model, Adapters(settings=lora, base=tmp_path, base_hash=""))
    assert "qkv_proj" in str(raised.value)


@pytest.mark.parametrize("family", MIXTURES)
def test_every_expert_is_a_tensor_of_its_own_in_the_file(family, tmp_path):
    model = sharp_model(family, vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id)
    save_checkpoint(model, TOKENIZER, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    stored = [name for name in tensors if "layers.1.mlp.experts." in name]
    assert len(stored) == 8 * 3
    ours = model.state_dict()["model.layers.1.mlp.experts.up_proj.weight"]
    assert torch.equal(tensors["model.layers.1.mlp.experts.5.up_proj.weight"], ours[5])
    config = json.loads((tmp_path / "config.json").read_text())
    assert load_checkpoint(tmp_path)[0].architecture == model.architecture
    for key, value in {"num_experts": 0, "num_experts_per_tok": 9, "num_hidden_layers": 1}.items():
        (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
        with pytest.raises(CheckpointError):
            load_checkpoint(tmp_path)


def test_the_cost_of_a_token_is_that_of_the_experts_it_goes_through():
    """2 x hidden x (heads, dense MLP of layer 0, three experts and a shared one of layer 1, and the
    router)."""
    arch = tiny_architecture("llada2")
    heads = 2 * 2 * (2 + 1) * 16
    assert layer_flops(arch) == 2 * 32 * (heads + 3 * 48 + 3 * (3 * 16 + 16) + 8)
    weights = sum(p.numel() for p in empty_model(arch).model.layers.parameters())
    assert weights > 3 * 32 * 16 * tiny_experts("llada2").num_experts
