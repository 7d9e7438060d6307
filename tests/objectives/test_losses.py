"""Losses against hand-computed cases of a few tokens."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tracerl.objectives.losses import (
    MAX_LOG_RATIO,
    clipped_objective,
    denominator,
    kl_penalty,
    policy_gain,
    policy_loss,
    response_mean,
    sft_loss,
    token_weights,
    value_loss,
)


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Reductions: two responses, of four and two tokens, in the (block, step) groups 0 0 1 2 | 3 3
GROUP = torch.tensor([0, 0, 1, 2, 3, 3])


@pytest.mark.parametrize(
    ("reduction", "divisor", "weights"),
    [
        # Mean in a group, sum over groups, mean over responses.
        (
            "step",
            2,
            [1 / 4, 1 / 4, 1 / 2, 1 / 2, 1 / 4, 1 / 4],
        ),
        ("token", 6, [1 / 6] * 6),
        ("fixed", 20, [1 / 20] * 6),  # two responses of at most ten tokens
    ],
)
def test_a_reduction_has_one_meaning(reduction, divisor, weights):
    assert denominator(reduction, num_responses=2, num_tokens=6, fixed_length=10) == divisor
    assert token_weights(reduction, GROUP, divisor).tolist() == pytest.approx(weights)


def test_weights_of_groups_are_the_same_when_responses_are_handled_apart():
    parts = [token_weights("step", GROUP[:4], 2), token_weights("step", GROUP[4:] - 3, 2)]
    assert torch.cat(parts).tolist() == token_weights("step", GROUP, 2).tolist()


def test_no_token_has_no_weight():
    for reduction in ("step", "token", "fixed"):
        assert token_weights(reduction, torch.zeros(0, dtype=torch.int64), 3).tolist() == []


def test_sft_loss_is_weighted_cross_entropy():
    assert float(
        sft_loss(doubles(math.log(0.5), math.log(0.25)), doubles(1.0, 0.5))
    ) == pytest.approx(2 * math.log(2))


# The clipped objective: clip at 0.8 from below and at 1.3 from above


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.2, 2.0, 2.4, 2.4),
        (2.0, 2.0, 2.6, 0.0),  # a better token is not pushed beyond 1.3
        (0.5, 2.0, 1.0, 1.0),  # but is pulled back from anywhere below
        (0.5, -2.0, -1.6, 0.0),  # a worse one is not pushed below 0.8
        (2.0, -2.0, -4.0, -4.0),  # but is pulled down from anywhere above
        (2.0, 0.0, 0.0, 0.0),
    ],
)
def test_the_clipped_objective_and_its_slope(ratio, advantage, gain, slope):
    log_ratio = doubles(math.log(ratio)).requires_grad_()
    value = clipped_objective(log_ratio, doubles(advantage), (0.2, 0.3))
    assert value.tolist() == pytest.approx([gain])
    assert float(torch.autograd.grad(value.sum(), log_ratio)[0]) == pytest.approx(slope)


def test_an_overflowing_ratio_is_clamped_to_a_named_constant():
    values = clipped_objective(doubles(1e4, -1e4), doubles(-1.0, 1.0), (0.2, 0.2))
    assert values.tolist() == pytest.approx([-math.exp(MAX_LOG_RATIO), math.exp(-MAX_LOG_RATIO)])


# The penalty


def test_kl_estimators_of_one_token():
    difference = math.log(2)  # the policy finds the token twice as likely as the reference does
    arguments = doubles(math.log(0.5)), doubles(math.log(0.25))
    assert float(kl_penalty("k1", *arguments)) == pytest.approx(difference)
    assert float(kl_penalty("k2", *arguments)) == pytest.approx(difference**2 / 2)
    assert float(kl_penalty("k3", *arguments)) == pytest.approx(0.5 - 1 + difference)


def test_a_response_that_is_far_from_its_reference_is_pulled_back_by_k2_and_by_k1():
    """A hundred nats over a whole response, half a nat per token of two hundred: beyond what an
    exponential can bear."""
    for distance in (-100.0, 100.0):
        for kind, slope in (("k1", 1.0), ("k2", distance)):
            logprobs = doubles(-500.0).requires_grad_()
            penalty = kl_penalty(kind, logprobs, logprobs.detach() - distance).sum()
            assert torch.autograd.grad(penalty, logprobs)[0].tolist() == [slope]


def test_the_exponential_of_k3_is_clamped_to_a_named_constant():
    assert kl_penalty("k3", doubles(-1e4), doubles(0.0)).tolist() == pytest.approx(
        [math.exp(MAX_LOG_RATIO) - 1 - MAX_LOG_RATIO]
    )


distributions = st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3).map(
    lambda w: doubles(*w) / sum(w)
)


@given(policy=distributions, reference=distributions)
@settings(derandomize=True, deadline=None, max_examples=50)
def test_k1_and_k3_are_unbiased_and_k3_is_never_negative(policy, reference):
    divergence = float((policy * (policy / reference).log()).sum())
    for kind in ("k1", "k3"):
        assert float(
            (policy * kl_penalty(kind, policy.log(), reference.log())).sum()
        ) == pytest.approx(divergence, abs=1e-12)
    assert (kl_penalty("k3", policy.log(), reference.log()) >= -1e-15).all()


@given(logits=st.lists(st.floats(-2, 2), min_size=3, max_size=3), reference=distributions)
@settings(derandomize=True, deadline=None, max_examples=50)
def test_as_a_loss_on_its_own_samples_k1_has_no_gradient_and_k2_has_that_of_the_divergence(
    logits, reference
):
    weights = doubles(*logits).requires_grad_()
    policy = weights.log_softmax(0)
    sampled = policy.detach().exp()
    divergence = (policy.exp() * (policy - reference.log())).sum()

    def gradient(loss: torch.Tensor) -> list[float]:
        return torch.autograd.grad(loss, weights, retain_graph=True)[0].tolist()

    assert gradient((sampled * kl_penalty("k1", policy, reference.log())).sum()) == pytest.approx(
        [0.0] * 3, abs=1e-12
    )
    assert gradient((sampled * kl_penalty("k2", policy, reference.log())).sum()) == pytest.approx(
        gradient(divergence), abs=1e-12
    )


# The whole loss

ONE_RESPONSE = torch.zeros(3, dtype=torch.int64)


def test_policy_loss_of_three_tokens():
    """Ratios 1, 2, 1/2; advantages 1, 1, -1; clip 0.2; k2 to a reference that is e times less
    likely; weights 1/2, 1/4, 1/4."""
    old, ratios = doubles(-1.0, -2.0, -3.0), doubles(1.0, 2.0, 0.5)
    logprobs = (old + ratios.log()).requires_grad_()
    weights = doubles(0.5, 0.25, 0.25)
    gain = policy_gain(
        "token", logprobs, old, doubles(1.0, 1.0, -1.0), (0.2, 0.2), ONE_RESPONSE, doubles(1, 1, 1)
    )
    loss = policy_loss(gain, kl_penalty("k2", logprobs, logprobs.detach() - 1.0), weights, 0.1)
    gains = [1.0, 1.2, -0.8]
    assert loss.tolist() == pytest.approx(
        -sum(w * (g - 0.1 * 0.5) for w, g in zip(weights.tolist(), gains, strict=True))
    )
    slopes = [1.0 - 0.1, 0.0 - 0.1, 0.0 - 0.1]  # both clipped tokens feel the penalty only
    gradient = torch.autograd.grad(loss, logprobs)[0]
    assert gradient.tolist() == pytest.approx(
        [-w * s for w, s in zip(weights.tolist(), slopes, strict=True)]
    )


def test_on_the_first_step_the_gradient_is_that_of_the_policy_gradient():
    """With a ratio per token it is A_j, with one per response its mean, and without a ratio A_j
    again."""
    logprobs = doubles(-1.0, -0.5, -2.0).requires_grad_()
    old = logprobs.detach().clone()
    advantages, weights = doubles(1.5, -0.5, 0.25), doubles(0.2, 0.3, 0.5)
    mean = float((weights * advantages).sum()) / 3
    for kl in ("k2", "k3"):
        for ratio, wanted in (
            ("token", weights * advantages),
            ("none", weights * advantages),
            ("sequence", doubles(mean, mean, mean)),
        ):
            gain = policy_gain(
                ratio, logprobs, old, advantages, (0.2, 0.2), ONE_RESPONSE, doubles(1, 1, 1)
            )
            loss = policy_loss(gain, kl_penalty(kl, logprobs, old), weights, 0.7)
            assert torch.autograd.grad(loss, logprobs)[0].tolist() == pytest.approx(
                (-wanted).tolist()
            )


def test_a_sequence_ratio_is_the_weighted_geometric_mean_of_its_responses_own_tokens():
    log_ratio, source, weight = (
        doubles(0.3, -0.1, 0.5),
        torch.tensor([0, 0, 2]),
        doubles(1.0, 3.0, 0.5),
    )
    assert response_mean(log_ratio, source, weight).tolist() == pytest.approx([0.0, 0.0, 0.5])
    gain = policy_gain(
        "sequence", log_ratio, doubles(0, 0, 0), doubles(2.0, 2.0, 1.0), (0.2, 0.2), source, weight
    )
    # The third response's ratio e^0.5 is clipped.
    assert gain.tolist() == pytest.approx([2.0, 2.0, 1.2])


def test_value_loss_takes_the_worse_of_the_plain_and_the_clipped_error():
    """Old value 0, clip 0.2: predictions 0.1 (inside), 1 towards a return of 1 (clipped at 0.2), 1
    away from a return of -1 (plain)."""
    values = doubles(0.1, 1.0, 1.0).requires_grad_()
    loss = value_loss(values, doubles(0, 0, 0), doubles(1.0, 1.0, -1.0), doubles(1, 1, 1), 0.2)
    assert loss.tolist() == pytest.approx(0.5 * (0.9**2 + 0.8**2 + 2**2))
    assert torch.autograd.grad(loss, values)[0].tolist() == pytest.approx([-0.9, 0.0, 2.0])
