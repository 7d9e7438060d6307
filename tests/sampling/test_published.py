"""Parity with the published samplers of LLaDA, Dream and SDAR on stored runs: ids and the pass that
filled each position, exactly.

Our step map counts a row's own denoising passes. The stored runs number passes the same way except
where the published code makes idle
ones: a pass over a block that is already complete (cached samplers make at least two per block) or
over a row that waits for its batch mates. There the order of passes is compared, and only ours are
counted.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import models as tokenizer_models

from tests.tiny import tiny_sampler
from tracerl.models.checkpoint import load_checkpoint
from tracerl.models.policy import Policy
from tracerl.sampling.orders import choose
from tracerl.sampling.sampler import Request, sample
from tracerl.settings.sampling import Sampler
from tracerl.types import Trajectory

FIXTURES = Path(__file__).parents[1] / "fixtures" / "parity"
RUNS = [
    (family, path.stem)
    for family in ("llada", "dream")
    for k in ("gen", "fast", "rollout")
    for path in sorted((FIXTURES / family).glob(f"{k}_*"))
]
IDLE = {
    ("llada", "fast_prefix_thr0p4"),
    ("llada", "rollout_dynamic_h8"),
    ("dream", "rollout_dynamic_h4_b2"),
}
CONFIDENCE = {
    "entropy": "neg_entropy",
    "neg_entropy": "neg_entropy",
    "topk_margin": "margin",
    "margin_confidence": "margin",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Policy]:
    """The reference weights through the shipped loader; the tokens are named by their ids, since
    only ids are compared."""
    loaded = {}
    for family in ("llada", "dream", "sdar"):
        directory = tmp_path_factory.mktemp(family)
        for name in ("config.json", "model.safetensors"):
            shutil.copy(FIXTURES / family / name, directory)
        (directory / "generation_config.json").write_text('{"eos_token_id": 120}')
        TokenizerFile(
            tokenizer_models.WordLevel({str(i): i for i in range(128)}, unk_token="0")
        ).save(str(directory / "tokenizer.json"))
        loaded[family] = load_checkpoint(directory)[0]
    return loaded


def stored(family: str, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(FIXTURES / family / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    return arrays, json.loads(str(arrays.pop("meta")))["params"]


def settings_of(family: str, params: dict[str, Any]) -> Sampler:
    """The published functions' arguments as settings of the one sampler."""
    length: int = params["gen_length"] if "gen_length" in params else params["max_new_tokens"]
    block_size: int = params.get("block_length", length)
    threshold, horizon = (
        params.get("threshold", params.get("unmask_threshold")),
        params.get("further_horizon"),
    )
    confidence = CONFIDENCE.get(params.get("alg", params.get("target", "")), "raw")
    cached = (
        "prefix"
        if params.get("use_cache") or params.get("dual_cache") is False
        else "dual"
        if params.get("dual_cache")
        else "none"
    )
    return tiny_sampler(
        temperature=0.0,
        block_size=block_size,
        max_new_tokens=length,
        steps_per_block=params["steps"] // (length // block_size),
        schedule="dream" if family == "dream" else "even",
        remasking="static" if threshold is None else "dynamic",
        threshold=(-1.0 if confidence == "neg_entropy" else 0.5)
        if threshold is None
        else threshold,
        confidence=confidence,
        guidance=params.get("cfg_scale", 0.0),
        cache="window" if horizon is not None else params.get("cache", cached),
        horizon=horizon,
        refresh_sees="canvas" if horizon is not None else None,
    )


def choose_as_published_dream(
    confidence: torch.Tensor,
    masked: torch.Tensor,
    step: torch.Tensor,
    settings: Sampler,
    first_place: int,
) -> torch.Tensor:
    """Dream's block samplers commit the first position of a block, and no other, from the full
    pass; then they choose as ours does."""
    first = torch.zeros_like(masked).index_copy(1, torch.tensor([0]), masked[:, :1])
    return torch.where((step == 0).unsqueeze(1), first, choose(confidence, masked, step, settings))


def assert_as_stored(
    trajectory: Trajectory, ids: np.ndarray, passes: np.ndarray, idle: bool
) -> None:
    prompt = len(passes) - len(trajectory.response_ids)
    wanted = passes[prompt:]
    assert trajectory.response_ids.tolist() == ids[prompt:].tolist()
    if idle:
        wanted = np.unique(wanted, return_inverse=True)[1].reshape(-1) + 1
    assert trajectory.step_map.tolist() == wanted.tolist()


@pytest.mark.parametrize(("family", "name"), RUNS)
def test_ids_steps_and_forwards_of_published_generation(models, monkeypatch, family, name):
    assert len(RUNS) == 32
    arrays, params = stored(family, name)
    if family == "dream" and not name.startswith("gen_"):
        monkeypatch.setattr("tracerl.sampling.sampler.choose", choose_as_published_dream)
    settings, idle = settings_of(family, params), (family, name) in IDLE
    real = arrays.get("in_attention_mask", np.ones_like(arrays["in_prompt"]))
    requests = [
        Request(ids[mask > 0].tolist(), 1)
        for ids, mask in zip(arrays["in_prompt"], real, strict=True)
    ]
    trajectories = sample(models[family], (), requests, settings)
    for trajectory, ids, passes in zip(
        trajectories, arrays["out_ids"], arrays["out_unmask_forward"], strict=True
    ):
        assert_as_stored(trajectory, ids, passes, idle)
        assert trajectory.num_denoising_forwards == (
            trajectory.num_steps if idle else int(arrays["out_num_forward"])
        )
        assert trajectory.num_forwards == trajectory.num_denoising_forwards * (
            2 if settings.guidance else 1
        )


@pytest.mark.parametrize("name", ["engine_trace_dynamic", "engine_trace_static"])
@pytest.mark.parametrize("cache", ["none", "exact"])
def test_completions_and_step_maps_of_the_rollout_engine(models, name, cache):
    """The engine cuts a completion at a stop token or at max_tokens; ours keeps the whole last
    block."""
    arrays, params = stored("sdar", name)
    settings = tiny_sampler(
        temperature=0.0,
        block_size=params["block_length"],
        steps_per_block=params["denoising_steps"],
        remasking="dynamic" if params["remasking_strategy"].endswith("dynamic") else "static",
        threshold=params["dynamic_threshold"],
        max_new_tokens=params["max_tokens"],
        cache=cache,
    )
    prompts = [
        row[:length].tolist()
        for row, length in zip(arrays["in_prompt_tokens"], arrays["in_prompt_lens"], strict=True)
    ]
    trajectories = sample(
        models["sdar"],
        [params["eos_id"], *params["stop_ids"]],
        [Request(prompt, 1) for prompt in prompts],
        settings,
    )
    for trajectory, ids, steps, length in zip(
        trajectories,
        arrays["out_completion"],
        arrays["out_step_map"],
        arrays["out_completion_lens"],
        strict=True,
    ):
        assert trajectory.response_ids[:length].tolist() == ids[:length].tolist()
        assert trajectory.step_map[:length].tolist() == steps[:length].tolist()
        assert min(trajectory.num_tokens, params["max_tokens"]) == length
