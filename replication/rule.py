"""The rule that turns differences between two sides of a comparison into a verdict.

Seeds are the units: a comparison has one difference for each seed, and problems inside a seed only
make that difference less noisy. A difference of means over seeds is tested with Student's t, in
both directions: that it is above the bound of the claim, and that it is below the smallest effect
that counts. Holm's correction covers all tests of one claim, so that a claim errs as often as its
level says, however many tests it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special, stats

Verdict = Literal["held", "not held", "undecided", "untested"]
HELD: Verdict = "held"
NOT_HELD: Verdict = "not held"
UNDECIDED: Verdict = "undecided"
UNTESTED: Verdict = "untested"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What claims.yaml says about intervals, errors and budgets."""

    level: float
    """Coverage of an interval; 1 - level is the error of a claim, half of it in each direction."""
    power: float
    """Share of experiments that should find the smallest effect that counts."""
    tolerance: float
    """By which share the compute of two sides with `budget: equal` may differ."""
    resamples: int
    """Resamples of the bootstrap over problems that the rows of single cells show."""

    @property
    def error(self) -> float:
        """The error in one direction."""
        return (1 - self.level) / 2


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one comparison has measured, and the two bounds that it is held to."""

    differences: Sequence[float]
    """One difference for each seed, in the unit of the metric."""
    above: float
    """The comparison is held if the difference is above this."""
    refuted_below: float
    """It is not held if the difference is below this: the smallest effect that counts."""
    has_preconditions: bool = True
    """Whether everything holds without which the comparison cannot show its claim."""


def seed_interval(differences: Sequence[float], level: float) -> tuple[float, float]:
    """Student's t interval of the mean over seeds; without end for a single seed."""
    mean = float(np.mean(differences))
    if len(differences) < 2:
        return float("-inf"), float("inf")
    error = float(np.std(differences, ddof=1)) / len(differences) ** 0.5
    reach = float(stats.t.ppf((1 + level) / 2, len(differences) - 1)) * error
    return mean - reach, mean + reach


def p_value(differences: Sequence[float], bound: float) -> float:
    """How often a mean difference of `bound` would give differences this far above it or farther
    (one-sided t test); 1 for a single seed, which has no deviation to measure."""
    if len(differences) < 2:
        return 1.0
    distance = float(np.mean(differences)) - bound
    error = float(np.std(differences, ddof=1)) / len(differences) ** 0.5
    if error == 0:  # every seed gives the same difference, to the last bit
        return 0.0 if distance > 0 else 1.0
    return float(special.stdtr(len(differences) - 1, -distance / error))


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: comparing each result with the error of the family keeps the
    chance of one false rejection, or more, below that error (Holm 1979)."""
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def judge_tests(tests: Sequence[Evidence], rule: Rule) -> list[Verdict]:
    """The verdict on each test of one claim. A test without its preconditions is untested; it still
    counts in Holm's correction, because the claim was written down with it."""
    held = adjust_holm([p_value(test.differences, test.above) for test in tests])
    refuted = adjust_holm(
        [
            p_value([-difference for difference in test.differences], -test.refuted_below)
            for test in tests
        ]
    )
    verdicts: list[Verdict] = []
    for test, p_held, p_refuted in zip(tests, held, refuted, strict=True):
        if not test.has_preconditions:
            verdicts.append(UNTESTED)
        elif p_held <= rule.error:
            verdicts.append(HELD)
        elif p_refuted <= rule.error:
            verdicts.append(NOT_HELD)
        else:
            verdicts.append(UNDECIDED)
    return verdicts


def judge_claim(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim is not held if one test refutes it, and held if all its tests are."""
    if NOT_HELD in verdicts:
        return NOT_HELD
    if UNTESTED in verdicts:
        return UNTESTED
    return HELD if verdicts and set(verdicts) == {HELD} else UNDECIDED


def power(seeds: int, effect: float, deviation: float, tests: int, rule: Rule) -> float:
    """The chance that one of `tests` tests with `seeds` seeds finds a difference that is `effect`
    above its bound, if differences between seeds have the standard deviation `deviation`; at Holm's
    strictest step, so that it is a lower bound."""
    if seeds < 2:
        return 0.0
    critical = stats.t.ppf(1 - rule.error / tests, seeds - 1)
    return float(stats.nct.sf(critical, seeds - 1, effect / deviation * seeds**0.5))


def seeds_for_power(effect: float, deviation: float, tests: int, rule: Rule) -> int:
    """The smallest number of seeds with the power that the rule asks for."""
    seeds = 2
    while power(seeds, effect, deviation, tests, rule) < rule.power:
        seeds += 1
    return seeds
