"""The replication's rule errs as often as it says, and its verdicts follow from seeds alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.rule import (
    HELD,
    NOT_HELD,
    UNDECIDED,
    UNTESTED,
    Evidence,
    Rule,
    adjust_holm,
    judge_claim,
    judge_tests,
    p_value,
    power,
    seed_interval,
    seeds_for_power,
)

RULE = Rule(level=0.95, power=0.8, tolerance=0.1, resamples=100)


def evidence(*differences: float, has_preconditions: bool = True) -> Evidence:
    return Evidence(
        differences=differences,
        above=0.0,
        refuted_below=0.01,
        has_preconditions=has_preconditions,
    )


def test_an_interval_is_students_over_seeds() -> None:
    # 0.04 +- 4.3027 * 0.02 / sqrt(3): the table's value for two degrees of freedom.
    low, high = seed_interval([0.02, 0.04, 0.06], 0.95)
    assert (low, high) == pytest.approx((0.04 - 0.049683, 0.04 + 0.049683), abs=1e-6)
    assert seed_interval([0.3], 0.95) == (float("-inf"), float("inf"))
    assert seed_interval([0.25, 0.25], 0.95) == (0.25, 0.25)


def test_a_p_value_says_how_far_above_its_bound_a_mean_is() -> None:
    # t = 0.04 / (0.02 / sqrt(3)) = sqrt(12); with two degrees of freedom the tail of t is
    # 1/2 - t / (2 sqrt(t^2 + 2)).
    assert p_value([0.02, 0.04, 0.06], 0.0) == pytest.approx(0.5 - 12**0.5 / (2 * 14**0.5))
    assert p_value([0.02, 0.04, 0.06], 0.04) == 0.5
    assert p_value([5.0], 0.0) == 1.0
    assert p_value([0.02, 0.02], 0.0) == 0.0
    assert p_value([0.0, 0.0], 0.0) == 1.0


def test_holm_multiplies_the_smallest_by_all_and_never_steps_down() -> None:
    assert adjust_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjust_holm([0.5, 0.9]) == [1.0, 1.0]
    assert adjust_holm([]) == []


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm_rejects_what_its_steps_say(p_values: list[float]) -> None:
    rejected = 0
    for rank, p in enumerate(sorted(p_values)):
        if (len(p_values) - rank) * p > 0.05:
            break
        rejected += 1
    assert sum(p <= 0.05 for p in adjust_holm(p_values)) == rejected


def test_a_verdict_needs_seeds_that_agree_or_many_of_them() -> None:
    assert judge_tests([evidence(0.03, 0.031, 0.032)], RULE) == [HELD]
    assert judge_tests([evidence(-0.03, -0.031, -0.032)], RULE) == [NOT_HELD]
    # The bootstrap over three seeds called this one held: [0.007, 0.075].
    assert judge_tests([evidence(0.0433, 0.0717, 0.01)], RULE) == [UNDECIDED]
    assert judge_tests([evidence(0.5)], RULE) == [UNDECIDED]
    assert judge_tests([evidence(0.03, 0.031, 0.032, has_preconditions=False)], RULE) == [UNTESTED]


def test_more_tests_of_a_claim_ask_more_of_each() -> None:
    # p = 0.0099: enough for one or two tests at 2.5% in a direction, not for three.
    close = evidence(0.03, 0.04, 0.052)
    nothing = evidence(-0.1, 0.1, 0.02)
    assert judge_tests([close], RULE) == [HELD]
    assert judge_tests([close, nothing], RULE) == [HELD, UNDECIDED]
    assert judge_tests([close, nothing, nothing], RULE)[0] == UNDECIDED


def test_a_claim_falls_with_one_test_and_holds_with_all() -> None:
    assert judge_claim([HELD, HELD]) == HELD
    assert judge_claim([HELD, UNDECIDED]) == UNDECIDED
    assert judge_claim([HELD, UNTESTED]) == UNTESTED
    assert judge_claim([HELD, UNTESTED, NOT_HELD]) == NOT_HELD
    assert judge_claim([]) == UNDECIDED


@pytest.mark.parametrize("deviation", [0.006, 0.03, 0.06])
@pytest.mark.parametrize("num_tests", [1, 3, 5])
def test_a_claim_errs_no_oftener_than_its_level(deviation: float, num_tests: int) -> None:
    """True differences at one bound or the other: a claim with a wrong verdict on any test, of 3
    seeds with the noise of 1,200 problems in each, in at most 6 of 100 experiments."""
    rng = np.random.default_rng(7)
    wrong = 0
    experiments = 2000
    for _ in range(experiments):
        noise = rng.normal(0, (deviation**2 + 0.5 / 1200) ** 0.5, (num_tests, 3))
        nothing = judge_tests([evidence(*row) for row in noise], RULE)
        counts = judge_tests([evidence(*row) for row in noise + 0.01], RULE)
        wrong += HELD in nothing
        wrong += NOT_HELD in counts
    assert wrong / experiments <= 0.06


def test_power_is_what_experiments_find() -> None:
    rng = np.random.default_rng(3)
    effect, deviation, seeds = 0.05, 0.03, 5
    found = 0
    for _ in range(4000):
        differences = rng.normal(effect, deviation, seeds)
        found += p_value(list(differences), 0.0) <= RULE.error / 2
    assert power(seeds, effect, deviation, 2, RULE) == pytest.approx(found / 4000, abs=0.025)
    assert power(1, effect, deviation, 2, RULE) == 0.0


def test_the_number_of_seeds_is_the_smallest_with_that_power() -> None:
    # The audit's figures for one two-sided test at a seed deviation of 3 points.
    assert seeds_for_power(0.02, 0.03, 1, RULE) == 20
    seeds = seeds_for_power(0.01, 0.03, 1, RULE)
    assert power(seeds, 0.01, 0.03, 1, RULE) >= 0.8 > power(seeds - 1, 0.01, 0.03, 1, RULE)
