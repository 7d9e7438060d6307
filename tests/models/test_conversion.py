"""Laws of converting an autoregressive checkpoint: nothing of it is lost, blocks of one token are
the model it was, and the result is a checkpoint like any other."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.autoregressive import FREE_ID, write_autoregressive
from tests.tiny import tiny_sampler
from tracerl.errors import CheckpointError, ParamsError
from tracerl.models.baselines import load_baseline
from tracerl.models.checkpoint import load_checkpoint, policy_hash, save_checkpoint
from tracerl.models.conversion import NEW_MASK, convert_checkpoint
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.objectives.likelihood import prediction_logits
from tracerl.objectives.plans import PREDICTED, Plan, causal_plan
from tracerl.objectives.views import build_views
from tracerl.sampling.autoregressive import sample_autoregressive
from tracerl.sampling.sampler import Request, sample
from tracerl.settings.models import Compute, TokenIds
from tracerl.settings.training import Adapt
from tracerl.training.sft import solution_trajectory

CPU = Compute(
    device="cpu", dtype="stored", attention="auto", checkpoint_layers=False, vectors="avx2"
)
FREE = TokenIds(mask=FREE_ID, end=None, pad=None)
NONE = TokenIds(mask=None, end=None, pad=None)
PROMPT, SOLUTION = "Seven and two?", "7 + 2 = 9 #### 9"
# Every shape with each attention and shift that a published family has for it.
ALL = [
    ("llama", "block_causal", True, "fast-dllm-v2"),
    ("llama", "full", True, "dream"),
    ("llama", "block_causal", False, "a2d-llama-block"),
    ("llama", "full", False, "a2d-llama"),
    ("qwen2", "block_causal", True, "fast-dllm-v2"),
    ("qwen2", "full", True, "dream"),
    ("qwen2", "block_causal", False, "a2d-qwen2-block"),
    ("qwen2", "full", False, "a2d-qwen2"),
    ("qwen3", "block_causal", False, "a2d-qwen3-block"),
    ("qwen3", "full", False, "a2d-qwen3"),
]


def adapt_settings(attention: str, shift: bool) -> Adapt:
    objective = {
        "kind": "random",
        "noise": [0.0, 1.0],
        "weighting": "uniform",
    }
    optimizer = {
        "lr": 0.001,
        "betas": [0.9, 0.99],
        "weight_decay": 0.0,
        "clip_norm": 1.0,
        "warmup": 0,
        "decay": 0.0,
    }
    data: dict[str, Any] = {
        "attention": attention,
        "shift": shift,
        "data": {"kind": "solutions", "tasks": {"sums": 1.0}, "prompts": True},
        "objective": objective,
        "phases": [{"block_size": 1, "tokens": 100}],
        "batch_size": 4,
        "micro_batch_tokens": 256,
        "max_length": 64,
        "save_every": 1,
        "optimizer": optimizer,
    }
    return Adapt.model_validate_json(json.dumps(data))


def converted(
    folder: Path, attention: str, shift: bool, token_ids: TokenIds = FREE
) -> tuple[Policy, Tokenizer]:
    return convert_checkpoint(folder, adapt_settings(attention, shift), token_ids, CPU)


@pytest.mark.parametrize(("kind", "attention", "shift", "family"), ALL)
def test_the_result_is_of_a_published_family_and_loads_as_any_other(
    tmp_path: Path, kind: str, attention: str, shift: bool, family: str
) -> None:
    write_autoregressive(tmp_path / "origin", kind)
    policy, tokenizer = converted(tmp_path / "origin", attention, shift)
    assert policy.family.name == family
    save_checkpoint(policy, tokenizer, tmp_path / "result")
    loaded, loaded_tokenizer = load_checkpoint(tmp_path / "result")
    assert loaded.family.name == family
    assert policy_hash(loaded) == policy_hash(policy)
    assert loaded_tokenizer.mask_id == tokenizer.mask_id == FREE_ID
    origin = load_file(tmp_path / "origin" / "model.safetensors")
    result = load_file(tmp_path / "result" / "model.safetensors")
    for name, tensor in origin.items():
        others = torch.arange(len(tensor)) != FREE_ID
        is_table = "embed_tokens" in name or "lm_head" in name
        assert (
            torch.equal(result[name][others], tensor[others])
            if is_table
            else torch.equal(result[name], tensor)
        )
    assert all(not result[name].any() for name in result.keys() - origin.keys())


@pytest.mark.parametrize("attention", ["block_causal", "full"])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_blocks_of_one_token_are_the_autoregressive_model(
    tmp_path: Path, kind: str, attention: str
) -> None:
    """Left to right from clean tokens, and for block-causal attention as masked blocks too."""
    model = write_autoregressive(tmp_path, kind)
    policy, tokenizer = converted(tmp_path, attention, True)
    trajectory = solution_trajectory(PROMPT, SOLUTION, tokenizer)
    ids = np.concatenate([trajectory.prompt_ids, trajectory.response_ids]).astype(np.int64)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)[None]).logits[0]
    expected = expected[len(trajectory.prompt_ids) - 1 : -1].clone()
    expected[:, FREE_ID] = float("-inf")
    everything = np.full((1, len(trajectory.response_ids)), PREDICTED, dtype=np.int8)
    masked = Plan(states=everything, weights=np.ones(everything.shape, dtype=np.float32))
    plans = [causal_plan(trajectory)] + [masked] * (attention == "block_causal")
    for plan in plans:
        views = build_views([trajectory], [plan], 1, policy.family, tokenizer.mask_id)
        with torch.no_grad():
            logits = prediction_logits(policy, views)
        assert torch.allclose(logits, expected, atol=1e-4)


def test_greedy_sampling_in_blocks_of_one_writes_what_the_autoregressive_model_writes(
    tmp_path: Path,
) -> None:
    write_autoregressive(tmp_path, "llama")
    policy, tokenizer = converted(tmp_path, "block_causal", True)
    baseline, _ = load_baseline(tmp_path, CPU)
    # Short, so that the baseline never writes what is the mask here.
    settings = tiny_sampler(
        cache="exact", block_size=1, steps_per_block=1, temperature=0.0, max_new_tokens=9
    )
    requests = [Request([40, 41, 42, 43 + i], i) for i in range(4)]
    ours = sample(policy, tokenizer.end_ids, requests, settings)
    theirs = sample_autoregressive(baseline, tokenizer.end_ids, requests, settings)
    assert [t.response_ids.tolist() for t in ours] == [t.response_ids.tolist() for t in theirs]


@pytest.mark.parametrize("tied", [True, False])
def test_a_mask_without_a_free_token_is_a_new_one(tmp_path: Path, tied: bool) -> None:
    """Its embedding is the mean, the vocabulary grows by a row, and the directory says so."""
    model = write_autoregressive(tmp_path / "origin", "llama", tie_word_embeddings=tied)
    policy, tokenizer = converted(tmp_path / "origin", "block_causal", True, NONE)
    table = model.get_parameter("model.embed_tokens.weight").detach()
    assert tokenizer.mask_id == len(table) == policy.architecture.vocab_size - 1
    assert tokenizer.file.id_to_token(tokenizer.mask_id) == NEW_MASK
    embedding = policy.get_parameter("model.embed_tokens.weight").detach()
    assert torch.equal(embedding[:-1], table)
    assert torch.allclose(embedding[-1], table.mean(0), atol=1e-6)
    save_checkpoint(policy, tokenizer, tmp_path / "result")
    loaded, loaded_tokenizer = load_checkpoint(tmp_path / "result")
    assert policy_hash(loaded) == policy_hash(policy)
    assert loaded_tokenizer.mask_id == tokenizer.mask_id
    assert loaded_tokenizer.encode(NEW_MASK) != [tokenizer.mask_id], "text is never the mask"


def test_a_shape_without_a_published_family_is_refused(tmp_path: Path) -> None:
    write_autoregressive(tmp_path, "qwen3")
    with pytest.raises(ParamsError, match="no published family"):
        converted(tmp_path, "block_causal", True)


def test_a_diffusion_checkpoint_is_not_adapted(tmp_path: Path) -> None:
    write_autoregressive(tmp_path / "origin", "llama")
    save_checkpoint(*converted(tmp_path / "origin", "full", True), tmp_path / "result")
    with pytest.raises(CheckpointError, match="only an autoregressive checkpoint"):
        converted(tmp_path / "result", "full", True)
