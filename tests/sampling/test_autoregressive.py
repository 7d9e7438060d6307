"""Autoregressive baselines: transformers' own classes behind the evaluation interface, row by row
the same whatever their batch."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.tiny import tiny_sampler
from tracerl.errors import CheckpointError, DataError, NonFiniteError
from tracerl.models.baselines import copy_baseline, is_baseline, load_baseline, load_policy
from tracerl.models.checkpoint import load_checkpoint, policy_hash
from tracerl.models.tokenizer import character_tokenizer
from tracerl.rollouts.responses import SampleContext, respond
from tracerl.sampling.autoregressive import sample_autoregressive
from tracerl.sampling.sampler import Request
from tracerl.seeds import key_for
from tracerl.settings.models import Compute
from tracerl.types import Task

CPU = Compute(
    device="cpu", dtype="stored", attention="auto", checkpoint_layers=False, vectors="avx2"
)
DOUBLE = Compute(
    device="cpu", dtype="float64", attention="auto", checkpoint_layers=False, vectors="avx2"
)
KINDS = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}
TOKENIZER = character_tokenizer()


@pytest.fixture(scope="module", params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As published: saved by transformers, with a tokenizer and no mask token."""
    folder = tmp_path_factory.mktemp(request.param)
    config_of, model_of = KINDS[request.param]
    config = config_of(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.5,
    )
    torch.manual_seed(1)
    model: PreTrainedModel = model_of(config)
    model.save_pretrained(folder)
    TOKENIZER.save(folder)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": told["eos_token"]}))
    (folder / "modeling.py").write_text("raise SystemExit('remote code was run')")
    return folder


def requests(lengths: list[int]) -> list[Request]:
    return [
        Request([2 + (7 * i + j) % 90 for j in range(n)], key_for(1, "noise", i))
        for i, n in enumerate(lengths)
    ]


def test_rows_do_not_depend_on_their_batch(directory):
    model, tokenizer = load_baseline(directory, DOUBLE)
    assert not model.training
    asked = requests([3, 9, 1, 6])
    together = sample_autoregressive(
        model, tokenizer.end_ids, asked, tiny_sampler(max_new_tokens=8)
    )
    alone = [
        t
        for r in asked[::-1]
        for t in sample_autoregressive(
            model, tokenizer.end_ids, [r], tiny_sampler(max_new_tokens=8)
        )
    ][::-1]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.response_ids, other.response_ids)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-6)
    assert len({tuple(t.response_ids) for t in together}) == 4


def test_greedy_tokens_and_logprobs_are_those_of_one_forward_pass(directory):
    model, tokenizer = load_baseline(directory, DOUBLE)
    [trajectory] = sample_autoregressive(
        model, tokenizer.end_ids, requests([5]), tiny_sampler(temperature=0.0, max_new_tokens=6)
    )
    ids = np.concatenate([trajectory.prompt_ids, trajectory.response_ids])
    with torch.no_grad():
        logprobs = model(input_ids=torch.from_numpy(ids[None]).long()).logits[0].log_softmax(-1)
    at = np.arange(4, 4 + len(trajectory.response_ids))
    np.testing.assert_array_equal(logprobs[at].argmax(-1).numpy(), trajectory.response_ids)
    np.testing.assert_allclose(
        logprobs[at, trajectory.response_ids].numpy(), trajectory.logprobs, atol=1e-5
    )
    assert trajectory.step_map.tolist() == list(range(1, len(trajectory.response_ids) + 1))
    assert (trajectory.num_forwards, trajectory.block_size) == (len(trajectory.response_ids), 1)


def test_a_row_stops_at_its_first_end_token(directory):
    model, _ = load_baseline(directory, CPU)
    asked = requests([3, 4, 5])
    whole = sample_autoregressive(model, [], asked, tiny_sampler(max_new_tokens=8))
    assert {t.stop_reason for t in whole} == {"length"}
    end = int(whole[0].response_ids[2])
    stopped = sample_autoregressive(model, [end], asked, tiny_sampler(max_new_tokens=8))
    for one, full in zip(stopped, whole, strict=True):
        ids = full.response_ids.tolist()
        wanted = ids[: ids.index(end) + 1] if end in ids else ids
        assert (one.response_ids.tolist(), one.stop_reason) == (
            wanted,
            "end" if end in ids else "length",
        )
        assert one.num_tokens == len(wanted)


def test_baselines_answer_tasks_as_every_model_does(directory):
    model, tokenizer = load_policy(directory, CPU)
    task = Task(
        task_id="sums/1",
        task_set="sums",
        kind="sums",
        split="test",
        difficulty=2,
        prompt="1+2=",
        answer="3",
        solution="#3",
    )
    context = SampleContext(
        stage="evaluate@x",
        iteration=0,
        policy_hash=policy_hash(model),
        seed=1,
        truncated_is_wrong=True,
    )
    rollouts = respond(model, tokenizer, [task], 2, tiny_sampler(max_new_tokens=4), context)
    assert [r.rollout_id for r in rollouts] == [
        "evaluate@x/00000/sums/1/0",
        "evaluate@x/00000/sums/1/1",
    ]
    assert {r.settings["cache_mode"] for r in rollouts} == {"exact"}
    assert {r.verdict for r in rollouts} <= {"wrong", "correct"}
    with pytest.raises(DataError, match="guidance"):
        respond(model, tokenizer, [task], 1, tiny_sampler(guidance=1.0), context)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_without_a_token_are_never_drawn(directory, temperature):
    """A model with logits for twice as many ids as there are tokens, those beyond the likeliest."""
    model, tokenizer = load_baseline(directory, CPU)
    size = tokenizer.vocab_size
    model.resize_token_embeddings(2 * size, mean_resizing=False)
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.weight[size:] = 3 * head.weight[:size]
    settings = tiny_sampler(temperature=temperature, max_new_tokens=12)
    free = sample_autoregressive(model, (), requests([3, 5, 7]), settings)
    assert max(int(t.response_ids.max()) for t in free) >= size
    task = Task(
        task_id="sums/1",
        task_set="sums",
        kind="text",
        split="test",
        difficulty=1,
        prompt="1+2=",
        answer="3",
        solution="",
    )
    context = SampleContext(stage="x", iteration=0, policy_hash="", seed=1, truncated_is_wrong=True)
    rollouts = respond(model, tokenizer, [task], 4, settings, context)
    ids = np.concatenate([rollout.trajectory.response_ids for rollout in rollouts])
    assert ids.max() < size
    assert all(np.isfinite(rollout.trajectory.logprobs).all() for rollout in rollouts)


def test_an_imported_baseline_is_the_same_without_its_code(directory, tmp_path):
    copy_baseline(directory, tmp_path / "copy")
    assert not list((tmp_path / "copy").glob("*.py"))
    assert is_baseline(tmp_path / "copy")
    assert policy_hash(load_policy(tmp_path / "copy", CPU)[0]) == policy_hash(
        load_policy(directory, CPU)[0]
    )


def test_what_does_not_fit_is_told(directory, tmp_path):
    with pytest.raises(CheckpointError, match="evaluated only"):
        load_checkpoint(directory)
    copy_baseline(directory, tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    save_file(
        {k: v for k, v in tensors.items() if "model.norm" not in k},
        weights,
        metadata={"format": "pt"},
    )
    with pytest.raises(CheckpointError, match=r"model\.norm"):
        load_policy(tmp_path, CPU)
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"cannot be read|damaged"):
        load_policy(tmp_path, CPU)
    weights.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError):
        load_policy(tmp_path, CPU)


def test_numbers_that_are_not_finite_are_an_error_in_the_directory_and_while_sampling(
    directory, tmp_path
):
    copy_baseline(directory, tmp_path)
    name = "model.layers.1.self_attn.q_proj.weight"
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name][0, 0] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=name):
        load_baseline(tmp_path, CPU)
    model, tokenizer = load_baseline(directory, CPU)
    with torch.no_grad():
        model.get_parameter(name)[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match="token 1") as raised:
        sample_autoregressive(model, tokenizer.end_ids, requests([3, 5]), tiny_sampler())
    assert name in str(raised.value)


def test_a_baseline_with_a_mask_token_is_a_diffusion_model_that_is_not_supported(
    directory, tmp_path
):
    copy_baseline(directory, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "mask_token": "<mask>"}))
    with pytest.raises(CheckpointError, match="mask token"):
        load_policy(tmp_path, CPU)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    kept = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**kept, "quantization_config": {"bits": 4}}))
    with pytest.raises(CheckpointError, match="bits"):
        load_policy(tmp_path, CPU)
