"""Adapters: they start as nothing, are all that is trained and saved, merge into the weights, and
PEFT reads and writes the same files."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.models.test_transformer import stock
from tests.tiny import RULES, sharp_model
from tracerl.errors import CheckpointError, ParamsError
from tracerl.models.checkpoint import (
    load_checkpoint,
    load_for_training,
    policy_hash,
    save_checkpoint,
)
from tracerl.models.lora import LoraExpertLinear, LoraLinear
from tracerl.models.masks import Layout
from tracerl.models.policy import Policy, merge_adapters, seed_dropout
from tracerl.models.tokenizer import character_tokenizer
from tracerl.seeds import generator_for
from tracerl.settings.models import Compute, Lora
from tracerl.settings.training import Optimizer
from tracerl.training.trainer import Trainer

TOKENIZER = character_tokenizer()
CPU = Compute(
    device="cpu", dtype="stored", attention="auto", checkpoint_layers=False, vectors="avx2"
)
LORA = Lora(rank=4, alpha=8.0, dropout=0.0, targets=["q_proj", "v_proj", "o_proj", "down_proj"])
IDS = torch.arange(2, 14).reshape(2, 6)


@pytest.fixture(params=[*RULES, "sdar-moe"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    model = sharp_model(
        request.param, vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id, num_kv_heads=2
    )
    save_checkpoint(model, TOKENIZER, tmp_path / "base")
    return tmp_path / "base"


def adapted(base: Path, lora: Lora | None = LORA, seed: int = 1) -> Policy:
    return load_for_training(base, CPU, lora, generator_for(seed, "lora"))[0]


def trained(base: Path, lora: Lora | None = LORA) -> Policy:
    """Adapters that are not zero."""
    model = adapted(base, lora)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, LoraLinear):
                layer.lora_B.weight.copy_(
                    torch.from_numpy(
                        generator_for(2, "B").normal(0, 0.3, tuple(layer.lora_B.weight.shape))
                    )
                )
    return model


def hidden(model: Policy) -> torch.Tensor:
    positions = torch.arange(6).expand(2, -1)
    zeros = torch.zeros_like(positions)
    out: torch.Tensor = model(
        IDS,
        Layout(positions, positions if model.family.attention == "block_causal" else zeros, zeros),
    )
    return out


@torch.no_grad()
def test_fresh_adapters_change_nothing(base):
    plain, model = load_checkpoint(base)[0], adapted(base)
    assert torch.equal(hidden(model), hidden(plain))
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(names) == 2 * len(LORA.targets) * model.architecture.num_layers
    assert all(".lora_" in name for name in names)
    assert not torch.equal(
        dict(model.named_parameters())[min(names)],
        dict(adapted(base, seed=2).named_parameters())[min(names)],
    )


@torch.no_grad()
def test_merged_adapters_compute_the_same(base, tmp_path):
    model = trained(base)
    wanted = hidden(model)
    assert float((wanted - hidden(load_checkpoint(base)[0])).abs().max()) > 0.5
    merge_adapters(model)
    assert not any(isinstance(layer, LoraLinear) for layer in model.modules())
    torch.testing.assert_close(hidden(model), wanted, rtol=0, atol=1e-4)
    save_checkpoint(model, TOKENIZER, tmp_path / "merged")
    torch.testing.assert_close(
        hidden(load_checkpoint(tmp_path / "merged")[0]), wanted, rtol=0, atol=1e-4
    )


def test_a_saved_adapter_is_small_and_comes_back_with_its_base(base, tmp_path):
    model = trained(base)
    save_checkpoint(model, TOKENIZER, tmp_path / "scratch" / "x", tmp_path / "adapter")
    (tmp_path / "scratch" / "x").rename(tmp_path / "adapter")
    assert not list((tmp_path / "adapter").glob("model*"))
    assert (
        json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())[
            "base_model_name_or_path"
        ]
        == "../base"
    )
    loaded, tokenizer = load_checkpoint(tmp_path / "adapter")
    assert policy_hash(loaded) == policy_hash(model) != policy_hash(load_checkpoint(base)[0])
    assert tokenizer.end_ids == TOKENIZER.end_ids
    save_checkpoint(loaded, tokenizer, tmp_path / "again")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (
            tmp_path / "adapter" / name
        ).read_bytes()
    # A round without adapters of its own merges those it starts from; one with the same kind trains
    # them on.
    assert adapted(tmp_path / "adapter", None).adapters is None
    assert policy_hash(adapted(tmp_path / "adapter", LORA)) == policy_hash(model)
    with pytest.raises(ParamsError, match="not of the kind"):
        adapted(tmp_path / "adapter", LORA.model_copy(update={"rank": 2}))


@torch.no_grad()
def test_an_adapter_follows_its_base_into_another_precision(base, tmp_path):
    save_checkpoint(trained(base), TOKENIZER, tmp_path / "adapter")
    half = Compute(
        device="cpu", dtype="bfloat16", attention="auto", checkpoint_layers=False, vectors="avx2"
    )
    for model in (
        load_checkpoint(tmp_path / "adapter", half)[0],
        load_for_training(tmp_path / "adapter", half, LORA, generator_for(1))[0],
    ):
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    save_checkpoint(
        load_for_training(base, half, LORA, generator_for(1))[0], TOKENIZER, tmp_path / "half"
    )
    assert load_checkpoint(tmp_path / "half")[0].adapters is not None, (
        "the base's hash is that of its stored weights"
    )


def test_only_adapters_are_trained_and_a_resumed_step_is_the_same(base):
    settings = Optimizer(
        lr=0.01, betas=(0.9, 0.99), weight_decay=0.01, clip_norm=1.0, warmup=0, decay=0.0
    )
    lora = LORA.model_copy(update={"dropout": 0.3})
    frozen = {name: p.clone() for name, p in load_checkpoint(base)[0].named_parameters()}

    def after(
        model: Policy, count: int, state: dict[str, torch.Tensor] | None = None
    ) -> Trainer[Policy]:
        trainer = Trainer(model.train(), settings, 4)
        if state is not None:
            trainer.load_state(state)
        for _ in range(count):
            seed_dropout(model, trainer.num_steps)
            trainer.step([model] * 2, lambda part: (hidden(part).square().mean(), {}))
        return trainer

    whole = trained(base, lora)
    after(whole, 4)
    assert all(
        torch.equal(parameter, frozen[name])
        for name, parameter in whole.named_parameters()
        if name in frozen
    )
    state = {name: tensor.clone() for name, tensor in after(trained(base, lora), 2).state().items()}
    assert not any("embed_tokens" in name for name in state)
    resumed = adapted(base, lora, seed=5)
    after(resumed, 2, state)
    assert policy_hash(resumed) == policy_hash(whole)


@torch.no_grad()
def test_dropout_drops_in_training_only_and_what_its_seed_says(base):
    model = trained(base, LORA.model_copy(update={"dropout": 0.5}))
    plain = hidden(model)
    torch.testing.assert_close(plain, hidden(trained(base)), rtol=0, atol=0)
    model.train()
    results = []
    for seed in (1, 1, 2):
        seed_dropout(model, seed)
        results.append(hidden(model))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert not torch.equal(results[0], plain)


# PEFT


def stock_of(model: Policy) -> PreTrainedModel:
    """The stock class with the tensors of a model of random weights, adapters left out."""
    assert model.adapters is None
    if model.family.name == "sdar":
        return stock(model, Qwen3ForCausalLM, Qwen3Config, head_dim=16)
    return stock(model, LlamaForCausalLM, LlamaConfig)


def logits_of(model: Policy, other: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.arange(6).expand(2, -1)
    with torch.no_grad():
        return model.logits(
            model(IDS, Layout(positions, positions, torch.zeros_like(positions)))
        ), other(input_ids=IDS).logits


@torch.no_grad()
def test_dropout_keeps_the_expected_input(base):
    """What is not dropped is divided by the chance of not being dropped."""
    model = trained(base, LORA.model_copy(update={"dropout": 0.5}))
    seed_dropout(model, 1)
    layer = next(layer for layer in model.train().modules() if isinstance(layer, LoraLinear))
    layer.weight.zero_()
    if layer.bias is not None:
        layer.bias.zero_()
    layer.lora_A.weight.copy_(torch.eye(*layer.lora_A.weight.shape))
    layer.lora_B.weight.copy_(torch.eye(*layer.lora_B.weight.shape) / layer.scale)
    rank = LORA.rank
    out = layer(torch.full((4000, layer.in_features), 3.0))[:, :rank]
    assert set(out.unique().tolist()) == {0.0, 6.0}
    assert abs(float(out.mean()) - 3.0) < 0.1


def test_fresh_adapters_are_drawn_in_the_range_of_their_fan_in(base):
    model = adapted(base)
    kinds = LoraLinear | LoraExpertLinear
    layers = [layer for layer in model.modules() if isinstance(layer, kinds)]
    assert any(layer.in_features != layer.out_features for layer in layers)
    for layer in layers:
        largest = float(layer.lora_A.weight.detach().abs().max())
        assert 0.9 * layer.in_features**-0.5 < largest <= layer.in_features**-0.5


@torch.no_grad()
def test_peft_reads_our_adapter(tmp_path):
    base = tmp_path / "base"
    save_checkpoint(
        sharp_model("sdar", vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id),
        TOKENIZER,
        base,
    )
    model = trained(base)
    save_checkpoint(model, TOKENIZER, tmp_path / "adapter")
    other = PeftModel.from_pretrained(stock_of(load_checkpoint(base)[0]), str(tmp_path / "adapter"))
    ours, theirs = logits_of(model, other)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    assert (
        float(
            (ours - logits_of(load_checkpoint(base)[0], stock_of(load_checkpoint(base)[0]))[1])
            .abs()
            .max()
        )
        > 0.5
    )


def test_we_read_an_adapter_that_peft_wrote(tmp_path):
    base = tmp_path / "base"
    save_checkpoint(
        sharp_model("sdar", vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id),
        TOKENIZER,
        base,
    )
    config = LoraConfig(
        r=3, lora_alpha=5, target_modules=["k_proj", "gate_proj"], init_lora_weights=False
    )
    other = get_peft_model(stock_of(load_checkpoint(base)[0]), config)
    other.save_pretrained(str(tmp_path / "adapter"))
    config_file = tmp_path / "adapter" / "adapter_config.json"
    told = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**told, "base_model_name_or_path": "../base"}))
    (tmp_path / "adapter" / "README.md").unlink()
    model, _ = load_checkpoint(tmp_path / "adapter")
    assert model.adapters is not None
    assert model.adapters.settings == Lora(
        rank=3, alpha=5.0, dropout=0.0, targets=["gate_proj", "k_proj"]
    )
    ours, theirs = logits_of(model, other.eval())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_names_of_llada_adapters_are_its_published_ones(tmp_path):
    save_checkpoint(
        sharp_model("llada", vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id),
        TOKENIZER,
        tmp_path / "base",
    )
    save_checkpoint(adapted(tmp_path / "base"), TOKENIZER, tmp_path / "adapter")
    with safe_open(tmp_path / "adapter" / "adapter_model.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert "base_model.model.model.transformer.blocks.1.ff_out.lora_A.weight" in names
    assert "base_model.model.model.transformer.blocks.0.attn_out.lora_B.weight" in names
    targets = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())[
        "target_modules"
    ]
    # "ff_out" alone would be the head as well.
    assert targets == [
        "attn_out",
        "model.transformer.blocks.0.ff_out",
        "model.transformer.blocks.1.ff_out",
        "q_proj",
        "v_proj",
    ]


# What does not fit


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_checkpoint(
        sharp_model("sdar", vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id),
        TOKENIZER,
        tmp_path / "base",
    )
    save_checkpoint(trained(tmp_path / "base"), TOKENIZER, tmp_path / "adapter")
    return tmp_path / "adapter"


def error_of(directory: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(directory)
    return str(raised.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("bias", "all"),
        ("rank_pattern", {"q_proj": 8}),
        ("peft_type", "IA3"),
        ("init_lora_weights", "pissa_niter_4"),
    ],
)
def test_adapters_of_another_kind_are_named(saved, key, value):
    config = json.loads((saved / "adapter_config.json").read_text())
    (saved / "adapter_config.json").write_text(json.dumps({**config, key: value}))
    assert key in error_of(saved)


def test_an_adapter_without_its_base_or_with_another_one_is_named(saved):
    (saved.parent / "base").rename(saved.parent / "moved")
    assert "base_model_name_or_path" in error_of(saved)
    other = sharp_model("sdar", seed=2, vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id)
    save_checkpoint(other, TOKENIZER, saved.parent / "base")
    assert "made for other weights" in error_of(saved)


def test_a_damaged_adapter_is_named(saved):
    config = (saved / "adapter_config.json").read_text()
    (saved / "adapter_config.json").write_text(json.dumps({**json.loads(config), "r": 5}))
    assert "wrong tensor shape" in error_of(saved)
    (saved / "adapter_config.json").write_text(
        json.dumps({k: v for k, v in json.loads(config).items() if k != "r"})
    )
    assert "damaged" in error_of(saved)
    (saved / "adapter_config.json").write_text(config)
    file = saved / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    assert str(file) in error_of(saved)
