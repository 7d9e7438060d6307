"""Parity with the published code of the families beside SDAR, LLaDA and Dream, on stored inputs and
outputs: logits to rounding, ids and steps exactly. tests/fixtures/parity/README.md says what the
arrays hold."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import models as tokenizer_models

from tests.tiny import cached_pass, tiny_sampler
from tracerl.models.baselines import is_baseline
from tracerl.models.checkpoint import load_checkpoint, save_checkpoint
from tracerl.models.masks import CLEAN, PAD, Layout
from tracerl.models.mlp import Router, Routing
from tracerl.models.policy import Policy
from tracerl.models.transformer import KeyValueCache, predictor_positions
from tracerl.objectives.losses import sft_loss
from tracerl.sampling.sampler import Request, sample
from tracerl.settings.sampling import Sampler

FIXTURES = Path(__file__).parent / "fixtures" / "parity"
# Folder -> ids of mask and pad.
FOLDERS = {
    "llada2": (123, 120),
    "sdar_moe": (126, 120),
    "llada_moe": (125, 121),
    "llada_moe_variant": (125, 121),
    "a2d_qwen3": (126, 120),
    "a2d_qwen2": (126, 120),
    "a2d_llama": (126, 120),
    "stable_diffcoder": (5, 1),
    "fast_dllm_v2": (125, 120),
}
BY_ATTENTION = ("a2d_qwen3", "a2d_qwen2", "a2d_llama")


def family_for(folder: str, kind: str) -> str:
    """The family that the params would name for a case."""
    name = folder.removesuffix("_variant").replace("_", "-")
    is_full = kind in ("a2d_full_logits", "a2d_mdlm_generate")
    return name if folder not in BY_ATTENTION or is_full else f"{name}-block"


def reference(folder: str, directory: Path) -> Path:
    """The reference weights as a checkpoint directory; tokens are named by their ids."""
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        if (FIXTURES / folder / file).is_file():
            shutil.copy(FIXTURES / folder / file, directory)
    words = tokenizer_models.WordLevel({str(i): i for i in range(128)}, unk_token="0")
    TokenizerFile(words).save(str(directory / "tokenizer.json"))
    mask, pad = FOLDERS[folder]
    names = {"mask_token": str(mask), "pad_token": str(pad), "eos_token": "122"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Policy]:
    """Every folder's weights through the shipped loader, by folder and family. As in the published
    code the mask has a probability (a small one)."""
    loaded = {}
    for folder in FOLDERS:
        directory = reference(folder, tmp_path_factory.mktemp(folder))
        names = {family_for(folder, kind) for kind in ("a2d_full_logits", "sdar_block_logits")}
        for name in names:
            model = load_checkpoint(directory, family=name)[0]
            model.lm_head.forbid([])
            loaded[f"{folder} {name}"] = model
    return loaded


def case(folder: str, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and meta of a stored case."""
    with np.load(FIXTURES / folder / f"{name}.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    return arrays, json.loads(str(arrays.pop("meta")))


def cases(pattern: str) -> list[tuple[str, str]]:
    found = []
    for folder in FOLDERS:
        for path in sorted((FIXTURES / folder).glob(pattern)):
            found.append((folder, path.stem))
    return found


def model_for(models: dict[str, Policy], folder: str, kind: str) -> Policy:
    return models[f"{folder} {family_for(folder, kind)}"]


@contextmanager
def routings_of(model: Policy) -> Iterator[list[Routing]]:
    """What the routers of a model say of each pass, layer by layer."""
    routings: list[Routing] = []
    handles = []
    for module in model.modules():
        if isinstance(module, Router):
            hook = module.register_forward_hook(lambda _, __, out: routings.append(out))
            handles.append(hook)
    yield routings
    for handle in handles:
        handle.remove()


def assert_routing(
    routings: list[Routing], arrays: dict[str, np.ndarray], real: np.ndarray
) -> None:
    """Experts exactly, weights to 1e-6, at real tokens."""
    assert len(routings) == len(arrays.get("out_router_experts", ()))
    for layer, routing in enumerate(routings):
        experts = arrays["out_router_experts"][layer].reshape(real.size, -1)[real.ravel()]
        weights = arrays["out_router_weights"][layer].reshape(real.size, -1)[real.ravel()]
        np.testing.assert_array_equal(routing.experts.numpy()[real.ravel()], experts)
        np.testing.assert_allclose(routing.weights.numpy()[real.ravel()], weights, atol=1e-6)
        assert routing.margins.min() > 1e-6


def assert_logits(logits: torch.Tensor, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(logits.numpy(), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("folder", "name"), cases("logits_*.npz"))
@torch.no_grad()
def test_logits(models, folder, name):
    arrays, meta = case(folder, name)
    model = model_for(models, folder, meta["kind"])
    ids = torch.from_numpy(arrays["in_input_ids"]).long()
    real = torch.from_numpy(arrays.get("in_attention_mask", np.ones_like(ids.numpy()))).bool()
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    blocks = torch.zeros_like(ids)
    if model.family.attention == "block_causal":
        blocks = positions // meta["params"]["block_length"]
    with routings_of(model) as routings:
        logits = model.logits(model(ids, Layout(positions, blocks, torch.where(real, CLEAN, PAD))))
    assert_logits(logits[real], arrays["out_logits"][real.numpy()])
    assert_routing(routings, arrays, real.numpy())
    if "out_shifted_argmax" in arrays:
        at = predictor_positions(torch.arange(ids.shape[1]), model.family)
        np.testing.assert_array_equal(
            logits[:, at].argmax(-1).numpy(), arrays["out_shifted_argmax"]
        )


@pytest.mark.parametrize(
    ("folder", "name"), [pair for pair in cases("logits_block_*.npz") if "short" not in pair[1]]
)
@torch.no_grad()
def test_logits_through_the_cache(models, folder, name):
    arrays, meta = case(folder, name)
    model = model_for(models, folder, meta["kind"])
    ids = torch.from_numpy(arrays["in_input_ids"]).long()
    size = meta["params"]["block_length"]
    cache = KeyValueCache(model, len(ids), ids.shape[1])
    parts = []
    start = 0
    for end in range(size * meta["params"]["prefill_blocks"], ids.shape[1] + 1, size):
        layout, window = cached_pass(cache, len(ids), start, end, size)
        parts.append(model.logits(model(ids[:, start:end], layout, window)))
        start = end
    assert_logits(torch.cat(parts, 1), arrays["out_logits"])


@pytest.mark.parametrize(("folder", "name"), cases("train_layout_*.npz"))
@torch.no_grad()
def test_logits_and_loss_of_the_noisy_half_of_the_training_layout(models, folder, name):
    arrays, meta = case(folder, name)
    model = model_for(models, folder, meta["kind"])
    ids, positions = (
        torch.from_numpy(arrays[key]).long()
        for key in ("out_concat_input_ids", "out_concat_position_ids")
    )
    positions = positions.expand_as(ids)
    half = ids.shape[1] // 2
    streams = torch.tensor([1, CLEAN]).repeat_interleave(half).expand_as(ids)
    size = meta["params"]["block_size"]
    with routings_of(model) as routings:
        logits = model.logits(model(ids, Layout(positions, positions // size, streams)))
    assert_routing(routings, arrays, np.ones(ids.shape, dtype=bool))
    wanted = arrays["out_logits"]
    assert_logits(logits[:, : wanted.shape[1]], wanted)
    at = predictor_positions(torch.arange(half), model.family)
    labels = torch.from_numpy(arrays.get("out_labels", arrays["in_labels"])).long()
    rows, columns = (labels >= 0).nonzero(as_tuple=True)
    targets = labels[rows, columns]
    logprobs = logits[rows, at[columns]].log_softmax(-1)[range(len(targets)), targets]
    weights = torch.full_like(logprobs, 1 / len(targets))
    assert float(sft_loss(logprobs, weights)) == pytest.approx(float(arrays["out_loss"]), abs=1e-5)


REMASKING = {
    "": "static",
    "low_confidence_static": "static",
    "low_confidence_dynamic": "dynamic",
    "sequential": "sequential",
}


def settings_of(kind: str, params: dict[str, Any], prompt: int) -> Sampler:
    """A published sampler's arguments as settings of ours."""
    size = params.get("block_length") or params["block_size"]
    length = params.get("gen_length") or params["max_new_tokens"]
    order: dict[str, Any] = {"remasking": REMASKING[params.get("remasking_strategy", "")]}
    steps = params.get("denoising_steps") or -(-params.get("steps", 0) * size // length)
    if kind == "fast_dllm_v2_generate":
        length += prompt // size * size - prompt  # it counts whole blocks
        order = {"remasking": "sub_blocks", "sub_block_size": params["small_block_size"]}
    if kind == "stable_diffcoder_generate" and params["threshold"] is not None:
        order = {"remasking": "dynamic"}
    if kind == "llada2_generate":  # its steps are those of a block
        steps = params["steps"]
        order = {"remasking": "dynamic" if params["threshold"] < 1 else "static"}
    if order["remasking"] in ("dynamic", "sub_blocks"):
        steps = size
        order["threshold"] = params.get("threshold") or params["confidence_threshold"]
    return tiny_sampler(
        block_size=size,
        steps_per_block=min(steps, size),
        schedule="rounded" if kind.startswith("a2d_") else "even",
        temperature=0.0,
        max_new_tokens=length,
        cache="exact",
        **order,
    )


@pytest.mark.parametrize(("folder", "name"), cases("gen_*.npz"))
def test_ids_steps_and_confidences_of_generation(models, folder, name):
    arrays, meta = case(folder, name)
    params = meta["params"]
    model = model_for(models, folder, meta["kind"])
    stop_ids = list(params.get("stop_ids", []))
    if params.get("eos_id") is not None:
        stop_ids.append(params["eos_id"])
    if model.family.attention == "full":
        stop_ids = []  # the canvas is filled whatever it holds
    for row, prompt_ids in enumerate(arrays["in_prompt"]):
        prompt = prompt_ids[prompt_ids >= 0].tolist()
        settings = settings_of(meta["kind"], params, len(prompt))
        [trajectory] = sample(model, stop_ids, [Request(prompt, 1)], settings)
        reached = end = len(prompt) + len(trajectory.response_ids)
        if trajectory.stop_reason == "end":
            reached = len(prompt) + trajectory.num_tokens  # after an end token codes differ
        response = slice(len(prompt), reached)
        count = reached - len(prompt)
        ids = arrays["out_ids"][row][response]
        assert trajectory.response_ids[:count].tolist() == ids.tolist()
        steps = arrays["out_unmask_step"][row]
        assert trajectory.step_map[:count].tolist() == (steps[response] + 1).tolist()
        # Fast-dLLM v2 returns the next block's first token as well.
        num_more = int(meta["kind"] == "fast_dllm_v2_generate")
        assert (steps[end + num_more :] == -2).all()
        if "out_confidence" in arrays:
            np.testing.assert_allclose(
                np.exp(trajectory.logprobs[:count]), arrays["out_confidence"][response], atol=1e-4
            )


@pytest.mark.parametrize("cache", ["none", "exact"])
@pytest.mark.parametrize("name", [name for _, name in cases("edit_*.npz")])
def test_ids_and_first_and_last_steps_of_editing(models, name, cache):
    arrays, meta = case("llada2", name)
    params = meta["params"]
    model = model_for(models, "llada2", meta["kind"])
    prompt = arrays["in_prompt"][0].tolist()
    edit = {"threshold": params["editing_threshold"], "max_post_steps": params["max_post_steps"]}
    settings = tiny_sampler(
        remasking="dynamic",
        block_size=params["block_length"],
        steps_per_block=params["block_length"],
        temperature=0.0,
        max_new_tokens=params["gen_length"],
        edit=edit,
        cache=cache,
    )
    order = {"threshold": params["threshold"], "at_least": params["num_to_transfer"]}
    settings = settings.model_copy(update={"order": settings.order.model_copy(update=order)})
    [trajectory] = sample(model, [], [Request(prompt, 1)], settings)
    response = slice(len(prompt), None)
    assert trajectory.response_ids.tolist() == arrays["out_ids"][0][response].tolist()
    first = arrays["out_unmask_step"][0][response] + 1
    assert trajectory.step_map.tolist() == first.tolist()
    last = arrays["out_last_edit_step"][0][response]
    assert trajectory.edit_map is not None
    assert trajectory.edit_map.tolist() == np.where(last < 0, 0, last + 1).tolist()
    assert trajectory.num_denoising_forwards == len(arrays["out_update_block"])
    assert (last >= 0).any()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_published_directory_comes_back_and_remembers_its_attention(folder, tmp_path):
    """Tensors bit for bit, the config with at most one more key."""
    source = reference(folder, tmp_path)
    name = family_for(folder, "sdar_block_logits")
    model, tokenizer = load_checkpoint(source, family=name)
    save_checkpoint(model, tokenizer, tmp_path / "again")
    again, _ = load_checkpoint(tmp_path / "again")
    assert again.family.name == name
    one, other = model.state_dict(), again.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    saved.pop("tracerl_attention", None)
    assert saved == json.loads((source / "config.json").read_text())


def test_an_instruct_revision_with_a_plain_architecture_is_a_diffusion_model(tmp_path):
    source = reference("stable_diffcoder", tmp_path)
    shutil.copy(FIXTURES / "stable_diffcoder" / "config_instruct.json", source / "config.json")
    assert not is_baseline(source)
    assert load_checkpoint(source)[0].family.name == "stable-diffcoder"
