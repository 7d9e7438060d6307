"""The one transformer against the stock classes of transformers, and what its layouts promise."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.tiny import RULES, VOCAB_SIZE, sharp_model, tiny_architecture
from tracerl.models.families import FAMILIES
from tracerl.models.masks import CLEAN, PAD, Layout, attention_blocks, block_starts_after, visible
from tracerl.models.policy import Policy, new_model
from tracerl.models.transformer import predictor_positions
from tracerl.seeds import generator_for

LENGTH = 11


def stock(
    model: Policy, kind: type[PreTrainedModel], config: type[Any], **extra: Any
) -> PreTrainedModel:
    """The stock class with the same tensors."""
    arch = model.architecture
    settings = config(
        vocab_size=arch.vocab_size,
        hidden_size=arch.hidden_size,
        intermediate_size=arch.intermediate_size,
        num_hidden_layers=arch.num_layers,
        num_attention_heads=arch.num_heads,
        num_key_value_heads=arch.num_kv_heads,
        rope_parameters={"rope_type": "default", "rope_theta": arch.rope_theta},
        rms_norm_eps=arch.norm_eps,
        tie_word_embeddings=arch.tie_embeddings,
        attn_implementation="sdpa",
        **extra,
    )
    other = kind(settings).eval()
    other.load_state_dict(model.state_dict(), strict=True)
    return other


def token_ids() -> torch.Tensor:
    return torch.from_numpy(generator_for(1, "ids").integers(0, VOCAB_SIZE, (3, LENGTH)))


def layout(blocks: torch.Tensor) -> Layout:
    positions = torch.arange(LENGTH).expand(3, -1)
    return Layout(positions, blocks.expand(3, -1), torch.full((3, LENGTH), CLEAN))


@torch.no_grad()
def assert_logits_agree(model: Policy, other: PreTrainedModel, blocks: torch.Tensor) -> None:
    mask = (blocks[None, :] <= blocks[:, None]).expand(3, 1, -1, -1)
    wanted = other(input_ids=token_ids(), attention_mask=mask, use_cache=False).logits
    assert float(wanted.std()) > 1.0
    torch.testing.assert_close(
        model.logits(model(token_ids(), layout(blocks))), wanted, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("block_size", [1, 4])
def test_sdar_is_qwen3_with_block_causal_attention(block_size, tied):
    model = sharp_model("sdar", head_dim=24, tie_embeddings=tied)
    other = stock(model, Qwen3ForCausalLM, Qwen3Config, head_dim=24)
    assert_logits_agree(
        model, other, attention_blocks(torch.arange(LENGTH), block_size, "block_causal")
    )


@torch.no_grad()
def test_with_blocks_of_one_the_mask_is_the_stock_causal_one():
    model = sharp_model("sdar")
    other = stock(model, Qwen3ForCausalLM, Qwen3Config, head_dim=16)
    wanted = other(input_ids=token_ids(), use_cache=False).logits
    torch.testing.assert_close(
        model.logits(model(token_ids(), layout(torch.arange(LENGTH)))), wanted, rtol=0, atol=1e-4
    )


# Blocks of one token are a causal mask, one block is full attention.
BLOCKS = {"causal": torch.arange(LENGTH), "full": attention_blocks(torch.arange(LENGTH), 4, "full")}


@pytest.mark.parametrize("mask", BLOCKS)
def test_dream_is_qwen2(mask):
    model = sharp_model("dream")
    assert_logits_agree(model, stock(model, Qwen2ForCausalLM, Qwen2Config), BLOCKS[mask])


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("mask", BLOCKS)
def test_llada_is_llama(mask, kv_heads):
    model = sharp_model("llada", num_kv_heads=kv_heads)
    assert_logits_agree(model, stock(model, LlamaForCausalLM, LlamaConfig), BLOCKS[mask])


# Masks and layouts


def test_blocks_are_those_of_absolute_positions():
    assert attention_blocks(torch.arange(10), 4, "block_causal").tolist() == [
        0,
        0,
        0,
        0,
        1,
        1,
        1,
        1,
        2,
        2,
    ]
    assert attention_blocks(torch.arange(10), 4, "full").tolist() == [0] * 10
    assert [block_starts_after(length, 4) for length in (0, 1, 4, 5, 8)] == [0, 4, 4, 8, 8]


def test_who_sees_whom():
    """Two clean blocks of two, one noisy view of the second, another one, and padding."""
    blocks = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1, 0])
    streams = torch.tensor([CLEAN, CLEAN, CLEAN, CLEAN, 1, 1, 2, 2, PAD])
    wanted = [
        "xx.......",
        "xx.......",
        "xxxx.....",
        "xxxx.....",
        "xx..xx...",
        "xx..xx...",
        "xx....xx.",
        "xx....xx.",
        ".........",
    ]
    seen = visible(blocks, streams, blocks, streams)
    assert ["".join("x" if yes else "." for yes in row) for row in seen.tolist()] == wanted


@pytest.mark.parametrize(("left", "right"), [(0, 5), (5, 0), (2, 3)])
@pytest.mark.parametrize("family", RULES)
@torch.no_grad()
def test_padding_on_either_side_is_seen_by_nobody_and_is_a_number(family, left, right):
    """Whatever ids, positions and blocks the padding has."""
    model = sharp_model(family, torch.float64)
    ids, blocks = (
        token_ids()[:1],
        attention_blocks(torch.arange(LENGTH), 4, FAMILIES[family].attention)[None],
    )
    positions = torch.arange(LENGTH)[None]
    plain = model(ids, Layout(positions, blocks, torch.full_like(ids, CLEAN)))

    def padded(tensor: torch.Tensor, fill: int) -> torch.Tensor:
        return torch.cat([torch.full((1, left), fill), tensor, torch.full((1, right), fill)], 1)

    for fill in (0, 2):
        streams = padded(torch.full_like(ids, CLEAN), PAD)
        longer = model(
            padded(ids, 7 + fill), Layout(padded(positions, fill), padded(blocks, fill), streams)
        )
        torch.testing.assert_close(longer[:, left : left + LENGTH], plain, rtol=0, atol=1e-12)
        assert torch.isfinite(longer).all()


@torch.no_grad()
def test_only_distances_between_positions_matter():
    model = sharp_model("sdar", torch.float64)
    blocks = torch.zeros(LENGTH, dtype=torch.int64)
    moved = Layout(layout(blocks).positions + 1000, layout(blocks).blocks, layout(blocks).streams)
    torch.testing.assert_close(
        model(token_ids(), layout(blocks)), model(token_ids(), moved), rtol=0, atol=1e-9
    )


def test_logits_are_shifted_in_one_place():
    positions = torch.arange(4)
    assert predictor_positions(positions, FAMILIES["sdar"]).tolist() == [0, 1, 2, 3]
    assert predictor_positions(positions, FAMILIES["dream"]).tolist() == [0, 0, 1, 2]


# Fresh weights


@pytest.mark.parametrize("family", RULES)
def test_fresh_weights_are_a_function_of_the_seed(family):
    one, same, other = (
        new_model(tiny_architecture(family), generator_for(seed, "weights")) for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.model.embed_tokens.weight, other.model.embed_tokens.weight)
    for name, parameter in one.named_parameters():
        if parameter.dim() == 2:
            scale = 0.02 if "embed" in name or "lm_head" in name else parameter.shape[1] ** -0.5
            np.testing.assert_allclose(float(parameter.detach().std()), scale, rtol=0.15)
        else:
            assert torch.equal(
                parameter,
                torch.zeros_like(parameter)
                if name.endswith("bias")
                else torch.ones_like(parameter),
            )


@pytest.mark.parametrize("family", RULES)
def test_layers_computed_again_give_the_same_gradients(family):
    model = sharp_model(family, torch.float64)
    blocks = attention_blocks(torch.arange(LENGTH), 4, model.family.attention)
    gradients = []
    for again in (False, True):
        model.checkpoint_layers = again
        model.zero_grad()
        model(token_ids(), layout(blocks)).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize(("again", "passes"), [(False, 1), (True, 2)])
def test_the_backward_pass_computes_each_layer_again_only_where_it_is_asked_to(again, passes):
    model = sharp_model("sdar", torch.float64)
    model.checkpoint_layers = again
    counts = [0 for _ in model.model.layers]
    for number, layer in enumerate(model.model.layers):

        def count(module, arguments, number=number):
            counts[number] += 1

        layer.register_forward_pre_hook(count)
    blocks = attention_blocks(torch.arange(LENGTH), 4, model.family.attention)
    model(token_ids(), layout(blocks)).square().sum().backward()
    assert counts == [passes] * len(counts)


def test_tied_embeddings_are_one_parameter():
    model = new_model(tiny_architecture("sdar", tie_embeddings=True), generator_for(1, "weights"))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" not in dict(model.named_parameters())
