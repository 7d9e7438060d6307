"""Parity with the published training code on stored arrays: views exactly, log-probabilities to
1e-4, losses, returns, advantages to 1e-5.

What does not bind, and why: the block grid of the SDAR trainer starts at the response, so a prompt
is padded in front to whole blocks here and logits are compared for the prompt that fills its
blocks; it counts `post_num` pads in every slice anew; LLaDA's trainer lets everyone see the left
padding, so its logits are compared for the prompt without any; all three pad to a common width with
tokens that are seen.
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

from tracerl.models.checkpoint import load_checkpoint
from tracerl.models.families import FAMILIES
from tracerl.models.policy import Policy
from tracerl.models.value import ValueModel
from tracerl.objectives.advantages import (
    group_advantages,
    keeps_group,
    outcome_rewards,
    returns_and_advantages,
)
from tracerl.objectives.likelihood import token_logprobs
from tracerl.objectives.losses import (
    denominator,
    kl_penalty,
    policy_gain,
    policy_loss,
    sft_loss,
    token_weights,
    value_loss,
)
from tracerl.objectives.plans import (
    PREDICTED,
    VISIBLE,
    Masking,
    Plan,
    causal_plan,
    coupled_plan,
    random_plan,
    semi_ar_plan,
    trace_plan,
)
from tracerl.objectives.views import build_views
from tracerl.training.critic import read_values
from tracerl.types import Trajectory

FIXTURES = Path(__file__).parent / "fixtures" / "parity"
CASES = {path.stem for path in (FIXTURES / "rl").glob("*.npz")}
Arrays = dict[str, np.ndarray]


def case(name: str) -> tuple[Arrays, dict[str, Any]]:
    with np.load(FIXTURES / "rl" / f"{name}.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    return arrays, json.loads(str(arrays.pop("meta")))["params"]


def names(*prefixes: str) -> list[str]:
    return sorted(name for name in CASES if name.startswith(prefixes))


def model_of(family: str, directory: Path) -> Policy:
    for path in (FIXTURES / family).glob("*"):
        if path.suffix in (".json", ".safetensors"):
            shutil.copy(path, directory)
    tokenizer = TokenizerFile(
        tokenizer_models.WordLevel({str(i): i for i in range(128)}, unk_token="0")
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    if not (directory / "generation_config.json").exists():
        (directory / "generation_config.json").write_text('{"eos_token_id": 121}')
    return load_checkpoint(directory)[0]


def family_of(name: str) -> str:
    return next(family for family in FAMILIES if family in name)


def sequence(
    arrays: Arrays,
    params: dict[str, Any],
    index: int,
    steps: np.ndarray | None,
    padded_prompt: bool,
) -> Trajectory:
    """One stored sequence with its right padding; padded_prompt: with its left padding, and more of
    it up to whole blocks."""
    ids, width, block = (
        arrays["out_input_ids"][index],
        int(arrays["out_start_pos"]),
        params["block_size"],
    )
    length = int(arrays["in_prompt_lens"][index])
    prompt = (
        np.concatenate([np.full(-width % block, ids[0]), ids[:width]])
        if padded_prompt
        else ids[width - length : width]
    )
    response = ids[width:]
    extra = len(response) if params["post_num"] is None else params["post_num"]
    count = min(len(response), int(arrays["in_response_lens"][index]) + extra)
    if steps is not None:  # tokens that were cut off keep their place in the order
        response = np.pad(response, (0, len(steps) - len(response)))
    nothing = np.zeros(len(response), dtype=np.float32)
    return Trajectory(
        prompt_ids=prompt.astype(np.int32),
        response_ids=response.astype(np.int32),
        step_map=nothing.astype(np.int32) if steps is None else steps.astype(np.int32),
        logprobs=nothing,
        filtered_logprobs=nothing,
        num_tokens=count,
        block_size=block,
        canvas_length=len(prompt) + len(response),
        stop_reason="end",
    )


def step_map(arrays: Arrays, index: int) -> np.ndarray | None:
    """Stored steps of a response and its padding; of the whole response where it was cut to fewer
    tokens than it has steps."""
    steps = arrays.get("out_step_map_padded", arrays.get("in_step_map"))
    return (
        None if steps is None else np.where(steps[index] < 0, steps[index].max() + 1, steps[index])
    )


def stored_rows(
    arrays: Arrays, index: int, trajectory: Trajectory
) -> tuple[np.ndarray, np.ndarray]:
    """(masked, scored) of the stored rows of a sequence, bool [rows, R]; what is scored among the
    padding once per slice is left out."""
    mine, width = arrays["out_row_seq"] == index, int(arrays["out_start_pos"])
    masked, scored = arrays["out_noisy_is_mask"][mine], arrays["out_p_mask"][mine][:, width:].copy()
    masked = masked[:, -scored.shape[1] :]
    scored[:, trajectory.num_tokens :] = False
    kept = scored.any(1)
    return masked[kept], scored[kept]


def assert_rows(plan: Plan, masked: np.ndarray, scored: np.ndarray) -> None:
    np.testing.assert_array_equal(plan.states != VISIBLE, masked)
    np.testing.assert_array_equal(plan.states == PREDICTED, scored)


@pytest.mark.parametrize(
    "name", [*names("sdar_tracerl", "llada_tracerl", "dream_tracerl"), "sft_sdar_trace_s2"]
)
def test_views_of_a_trace(name):
    arrays, params = case(name)
    for index in range(len(arrays["in_prompt_lens"])):
        trajectory = sequence(arrays, params, index, step_map(arrays, index), padded_prompt=True)
        plan = trace_plan(
            trajectory, params["block_size"], FAMILIES[family_of(name)], params["shrink"]
        )
        masked, scored = stored_rows(arrays, index, trajectory)
        assert_rows(
            Plan(states=plan.states[:, : masked.shape[1]], weights=plan.weights), masked, scored
        )


class Drawn(np.random.Generator):
    """Gives the stored mask back where noise is drawn: levels of one half, and numbers below them
    where a token was masked."""

    def __init__(self, masked: np.ndarray) -> None:
        super().__init__(np.random.PCG64(1))
        self.masked = masked

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return np.full(size, 0.5)

    def random(self, size: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return np.where(self.masked, 0.25, 0.75)


NOISY = [
    *names(*(f"{family}_random" for family in FAMILIES)),
    *names("sft_llada_random", "sft_dream_random", "sft_sdar_semi"),
]


@pytest.mark.parametrize("name", NOISY)
def test_views_of_stored_noise(name):
    arrays, params = case(name)
    for index in range(len(arrays["in_prompt_lens"])):
        trajectory = sequence(arrays, params, index, None, padded_prompt=True)
        for masked, scored in zip(*stored_rows(arrays, index, trajectory), strict=True):
            plan = random_plan(
                trajectory,
                Masking(
                    block_size=params["block_size"],
                    family=FAMILIES[family_of(name)],
                    noise=(0.1, 0.9),
                    weighting="uniform",
                ),
                Drawn(masked),
            )
            assert_rows(plan, masked[None], scored[None])


@pytest.mark.parametrize("name", names("sdar_coupled", "llada_coupled", "dream_coupled"))
def test_every_stored_copy_comes_with_the_complement_that_ours_has(name):
    arrays, params = case(name)
    for index in range(len(arrays["in_prompt_lens"])):
        trajectory = sequence(arrays, params, index, None, padded_prompt=True)
        masked, scored = stored_rows(arrays, index, trajectory)
        found = {row.tobytes() for row in scored}
        for row, wanted in zip(masked, scored, strict=True):
            plan = coupled_plan(
                trajectory,
                Masking(
                    block_size=params["block_size"],
                    family=FAMILIES[family_of(name)],
                    noise=(0.1, 0.9),
                    weighting="uniform",
                ),
                Drawn(row),
            )
            np.testing.assert_array_equal(plan.states[0] == PREDICTED, wanted)
            complement = plan.states[1] == PREDICTED
            assert complement.tobytes() in found or not complement.any()


@pytest.mark.parametrize("name", names("sft_llada_semi", "sft_dream_semi"))
def test_semi_autoregressive_views_of_full_attention(name):
    arrays, params = case(name)
    for index in range(len(arrays["in_prompt_lens"])):
        trajectory = sequence(arrays, params, index, None, padded_prompt=True)
        masked, scored = stored_rows(arrays, index, trajectory)
        plan = semi_ar_plan(
            trajectory,
            Masking(
                block_size=params["block_size"],
                family=FAMILIES[family_of(name)],
                noise=(0.1, 0.9),
                weighting="uniform",
            ),
            Drawn(np.atleast_1d(scored.any(0))),
        )
        np.testing.assert_array_equal(plan.states == PREDICTED, scored)
        real = int(arrays["in_response_lens"][index])
        np.testing.assert_array_equal((plan.states != VISIBLE)[:, :real], masked[:, :real])


def test_next_token_views():
    arrays, params = case("sft_dream_ar")
    for index in range(len(arrays["in_prompt_lens"])):
        trajectory = sequence(arrays, params, index, None, padded_prompt=False)
        masked, scored = stored_rows(arrays, index, trajectory)
        assert not masked.any()
        np.testing.assert_array_equal(causal_plan(trajectory).states == PREDICTED, scored)
        views = build_views([trajectory], [causal_plan(trajectory)], 4, FAMILIES["dream"], 124)
        assert views.input_ids[0].tolist() == [*trajectory.prompt_ids, *trajectory.response_ids]
        assert (views.column == len(trajectory.prompt_ids) + views.token - 1).all()
        assert torch.equal(views.layout.mask()[0], torch.ones_like(views.layout.mask()[0]).tril())


@pytest.mark.parametrize(
    ("family", "name"),
    [("sdar", "sdar_tracerl_s1"), ("llada", "llada_tracerl_s1"), ("dream", "dream_tracerl_s1")],
)
@torch.no_grad()
def test_logprobs_of_a_trace(family, name, tmp_path):
    arrays, params = case(name)
    model, compared = model_of(family, tmp_path), 0
    for index in range(len(arrays["in_prompt_lens"])):
        width, length = int(arrays["out_start_pos"]), int(arrays["in_prompt_lens"][index])
        if family != "dream" and length != width:
            continue
        trajectory = sequence(arrays, params, index, step_map(arrays, index), padded_prompt=False)
        plan = trace_plan(trajectory, params["block_size"], model.family, params["shrink"])
        views = build_views(
            [trajectory], [plan], params["block_size"], model.family, params["mask_id"]
        )
        scored = arrays["out_p_mask"][arrays["out_row_seq"] == index][:, width:]
        # Dream's begin at the second token.
        stored = arrays["out_logp_tok"][arrays["out_row_seq"] == index][:, -scored.shape[1] :]
        theirs = (stored * scored).sum(0)[views.token]
        # Their last block is cut.
        whole = (
            views.token < len(trajectory.response_ids) // 4 * 4
            if family == "sdar"
            else views.token >= 0
        )
        ours = token_logprobs(model, views, temperature=1.0)
        np.testing.assert_allclose(ours[whole].numpy(), theirs[whole.numpy()], atol=1e-4, rtol=0)
        compared += int(whole.sum())
    assert compared >= 12


# Losses


def scored_logprobs(
    family: str, arrays: Arrays, logits: torch.Tensor, start: int
) -> tuple[torch.Tensor, np.ndarray]:
    """Log-probabilities of the scored tokens of the stored logits, flat, and the [rows, L] table of
    which they are."""
    labels, mask = torch.from_numpy(arrays["in_labels"]).long(), arrays["in_p_mask"].copy()
    if family.startswith("sdar"):  # the prompt's rows and those of the noisy copy
        logits = torch.cat(
            [logits[:, :start], logits[:, start + (logits.shape[1] - start) // 2 :]], 1
        )
    if family == "dream":
        logits, labels, mask = logits[:, :-1], labels[:, 1:], mask[:, 1:]
    logprobs = logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return logprobs[torch.from_numpy(mask)], mask


def flat_weights(mask: np.ndarray, reduction: str, length: int) -> torch.Tensor:
    row = torch.from_numpy(np.nonzero(mask)[0])
    return token_weights(reduction, row, denominator(reduction, len(mask), int(mask.sum()), length))


@pytest.mark.parametrize("name", names("policy_loss"))
def test_policy_loss_and_its_gradient(name):
    """SDAR's trainer divides by the padded length (`fixed`); the others take row means (`response`)
    but sum the KL over tokens."""
    arrays, params = case(name)
    family, start = params["family"], params["start_pos"]
    logits = torch.from_numpy(arrays["in_logits"]).requires_grad_()
    logprobs, mask = scored_logprobs(family, arrays, logits, start)
    old = torch.from_numpy(arrays["in_logp_old"][mask])
    row = torch.from_numpy(np.nonzero(mask)[0])
    advantages = torch.from_numpy(arrays["in_adv"])
    advantages = (
        advantages[row]
        if advantages.dim() == 1
        else advantages[:, -mask.shape[1] :][torch.from_numpy(mask)]
    )
    fixed = family.startswith("sdar")
    weights = flat_weights(
        mask, "fixed" if fixed else "response", arrays["in_labels"].shape[1] - start
    )
    gain = policy_gain(
        "token",
        logprobs,
        old,
        advantages,
        (params["eps"], params["eps"]),
        row,
        torch.ones_like(weights),
    )
    policy = policy_loss(gain, torch.zeros_like(gain), weights, 0.0)
    assert policy.item() == pytest.approx(float(arrays["out_policy_loss"]), abs=1e-5)
    kl_weights = weights if fixed else torch.full_like(weights, 1 / len(mask))
    for kind in ("k1", "k3"):
        penalty = kl_penalty(kind, logprobs, old)
        divergence = (kl_weights * penalty).sum()
        assert params["beta"] * divergence.item() == pytest.approx(
            float(arrays[f"out_kl_{kind}"]), abs=1e-5
        )
        total = (
            policy_loss(gain, penalty, weights, params["beta"])
            if fixed
            else policy + params["beta"] * divergence
        )
        assert total.item() == pytest.approx(float(arrays[f"out_total_{kind}"]), abs=1e-5)
    gradient = torch.autograd.grad(total, logits)[0]
    np.testing.assert_allclose(gradient.numpy(), arrays["out_grad_logits_k3"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["sdar", "llada", "dream"])
def test_sft_loss_and_its_gradient(family):
    arrays, params = case(f"sft_loss_{family}")
    logits = torch.from_numpy(arrays["in_logits"]).requires_grad_()
    logprobs, mask = scored_logprobs(family, arrays, logits, params["start_pos"])
    reduction = "fixed" if family == "sdar" else "response"
    loss = sft_loss(
        logprobs, flat_weights(mask, reduction, arrays["in_labels"].shape[1] - params["start_pos"])
    )
    assert loss.item() == pytest.approx(float(arrays["out_loss"]), abs=1e-5)
    np.testing.assert_allclose(
        torch.autograd.grad(loss, logits)[0].numpy(), arrays["out_grad_logits"], atol=1e-5, rtol=0
    )


def test_value_loss_and_its_gradient():
    arrays, params = case("value_loss")
    start, mask = params["start_pos"], arrays["in_p_mask"]
    values = torch.from_numpy(arrays["in_values"]).requires_grad_()
    noisy = torch.cat([values[:, :start], values[:, start + (values.shape[1] - start) // 2 :]], 1)[
        torch.from_numpy(mask)
    ]
    old, returns = (torch.from_numpy(arrays[key][mask]) for key in ("in_old_values", "in_return"))
    loss = value_loss(
        noisy, old, returns, flat_weights(mask, "fixed", mask.shape[1] - start), params["eps"]
    )
    assert loss.item() == pytest.approx(float(arrays["out_loss"]), abs=1e-5)
    np.testing.assert_allclose(
        torch.autograd.grad(loss, values)[0].numpy(), arrays["out_grad_values"], atol=1e-5, rtol=0
    )


# Rewards, values, returns, advantages


def test_standardised_rewards_and_the_group_filter():
    arrays, _ = case("reward_standardize")
    for correct, reward, kept in zip(
        arrays["in_correct"], arrays["out_reward"], arrays["out_group_kept"], strict=True
    ):
        np.testing.assert_allclose(
            group_advantages("group", correct.astype(np.float64)), reward, atol=1e-5
        )
        assert keeps_group(correct.astype(np.float64), (0.2, 0.8), graded=False) == kept


def steps_of(trajectory: Trajectory, params: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Trainable tokens in the order of the views, and the step of each in the order of (block,
    group), as the critic counts them."""
    plan = trace_plan(trajectory, params["block_size"], FAMILIES["sdar"], params["shrink"])
    views = build_views(
        [trajectory], [plan], params["block_size"], FAMILIES["sdar"], params["mask_id"]
    )
    return views.token.numpy(), np.unique(views.group.numpy(), return_inverse=True)[1].reshape(-1)


@pytest.mark.parametrize("name", names("value_gae", "value_model"))
def test_returns_and_advantages(name):
    arrays, params = case(name)
    for index in range(len(arrays["in_prompt_lens"])):
        trajectory = sequence(arrays, params, index, step_map(arrays, index), padded_prompt=True)
        token, steps = steps_of(trajectory, params)
        paid = arrays["out_token_reward"][index].astype(np.float64)
        if not params.get("vector_reward"):
            np.testing.assert_allclose(
                outcome_rewards(float(arrays["in_reward"][index]), steps), paid[token], atol=1e-6
            )
        values = arrays["out_old_values_tok"][index].astype(np.float64)[token]
        returns, advantages = returns_and_advantages(
            paid[token], values, steps, params["gamma"], params["lam"]
        )
        for ours, key in ((returns, "return"), (advantages, "adv")):
            np.testing.assert_allclose(ours, arrays[f"out_{key}_paper"][index][token], atol=1e-5)
            np.testing.assert_allclose(ours, arrays[f"out_{key}_code"][index][token], atol=1e-5)


@torch.no_grad()
def test_values_of_a_value_model(tmp_path):
    arrays, params = case("value_model_g0p9_l0p95")
    model = ValueModel(model_of("sdar", tmp_path)).eval()
    model.value_head.weight.copy_(torch.from_numpy(arrays["in_value_head_weight"]))
    index = int(np.flatnonzero(arrays["in_prompt_lens"] == int(arrays["out_start_pos"]))[0])
    trajectory = sequence(arrays, params, index, step_map(arrays, index), padded_prompt=False)
    plan = trace_plan(trajectory, params["block_size"], FAMILIES["sdar"], params["shrink"])
    views = build_views(
        [trajectory], [plan], params["block_size"], FAMILIES["sdar"], params["mask_id"]
    )
    whole = views.token < len(trajectory.response_ids) // 4 * 4
    assert int(whole.sum()) == 12
    theirs = arrays["out_old_values_tok"][index][views.token.numpy()]
    np.testing.assert_allclose(
        read_values(model, views)[whole].numpy(), theirs[whole.numpy()], atol=1e-4
    )


def test_every_stored_case_is_used():
    used = {
        *(
            f"{family}_{method}"
            for family in FAMILIES
            for method in ("tracerl", "random", "coupled")
        )
    }
    used |= {"sft_", "policy_loss", "value_loss", "value_gae", "value_model", "reward_standardize"}
    assert len(CASES) == 45
    assert not [name for name in CASES if not name.startswith(tuple(used))]
