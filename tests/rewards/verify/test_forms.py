"""Metamorphic laws of mathematical verdicts: every writing that the rules make of an answer equals
it, in every layout; no writing of another answer does."""

import functools
import random
from fractions import Fraction

import pytest

from tests.published import published
from tests.rewards.verify.forms import FORMS, different_renderings, equal_renderings
from tests.rewards.verify.writings import layouts, neighbours, number_writings
from tracerl.evaluation.datasets import read_rows
from tracerl.rewards.verify import algebra
from tracerl.rewards.verify.answers import compare_answers, decide_quickly
from tracerl.rewards.verify.numbers import number
from tracerl.rewards.verify.spelling import clean

# A value does not say which equation it ends, nor does a number say which of two moduli it has.
ONE_WAY = {"equations_that_end_in_the_answer"}


def decide(gold, answer):
    """The verdict; pairs that need algebra are decided once per spelling."""
    quick = decide_quickly(gold, answer)
    return quick or decide_slowly(clean(gold), clean(answer))


@functools.cache
def decide_slowly(gold, answer):
    return compare_answers(gold, answer, algebra)


def test_there_are_forty_forms_with_ten_renderings_each():
    assert len(FORMS) >= 40
    for name, form in FORMS.items():
        assert len(equal_renderings(form())) >= 10, name
        assert len(different_renderings(form())) >= 10, name


@pytest.mark.parametrize("name", FORMS)
def test_every_rendering_equals_its_answer(name):
    form = FORMS[name]()
    pairs = [(form.gold, text) for text in equal_renderings(form)]
    if name not in ONE_WAY:
        pairs += [(text, gold) for gold, text in pairs]
    wrong = {pair: verdict for pair in pairs if (verdict := decide(*pair)) != "equal"}
    assert wrong == {}


@pytest.mark.parametrize("name", FORMS)
def test_no_rendering_of_another_answer_equals_it(name):
    form = FORMS[name]()
    pairs = [(form.gold, text) for text in different_renderings(form)]
    pairs += [(text, gold) for gold, text in pairs]
    assert [pair for pair in pairs if decide(*pair) == "equal"] == []


def test_a_spelling_is_spelt_like_itself():
    texts = [text for form in FORMS.values() for text in equal_renderings(form())]
    assert [text for text in texts if clean(clean(text)) != clean(text)] == []


def random_number(rng):
    kind = rng.choice(["whole", "decimal", "fraction"])
    if kind == "whole":
        return Fraction(rng.randint(-2000, 2000))
    if kind == "decimal":
        return Fraction(rng.randint(-99999, 99999), 10 ** rng.randint(1, 4))
    return Fraction(rng.randint(-40, 40), rng.randint(1, 40))


def test_the_quick_verdict_on_numbers_is_the_one_of_algebra():
    """On 4,000 pairs of numbers the quick verdict is the truth; on a sample of them algebra, asked
    for the same, agrees."""
    rng = random.Random("numbers")
    for place in range(4000):
        value = random_number(rng)
        other = rng.choice([value, -value, value + 1, value * 10, value + Fraction(1, 7)])
        gold, answer = (rng.choice(number_writings(v)) for v in (value, other))
        truth = "equal" if value == other else "different"
        assert decide_quickly(gold, answer) == truth, (gold, answer)
        if place % 40 == 0:
            assert algebra.same_expression(gold, answer) == truth, (gold, answer)


def test_golds_of_math500_equal_their_renderings_and_none_of_twenty_neighbours():
    """Every eighth; all of them: benchmarks/verifiers.py --only golds."""
    golds = sorted({row["answer"] for row in read_rows(published("math500_full.jsonl"))})[::8]
    for gold in golds:
        value = number(clean(gold))
        texts = layouts(gold) + ([] if value is None else number_writings(value))
        assert {decide(gold, text) for text in texts} == {"equal"}, gold
        assert "equal" not in {decide(gold, text) for text in neighbours(gold, 20)}, gold


def test_integers_of_aime_equal_their_renderings_and_no_neighbour():
    for gold in range(0, 1000, 7):
        texts = number_writings(Fraction(gold)) + layouts(str(gold)) + [f"{gold:03}"]
        assert {decide_quickly(str(gold), text) for text in texts} == {"equal"}
        wrong = {decide_quickly(str(gold), text) for text in neighbours(str(gold), 20)}
        assert wrong == {"different"}
