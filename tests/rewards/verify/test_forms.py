"""Metamorphic laws of mathematical verdicts: every writing that the rules make of an answer equals
it, in every layout; no writing of another answer does."""

import functools
from fractions import Fraction

import pytest
import sympy

from tests.published import published
from tests.rewards.verify.forms import FORMS, different_renderings, equal_renderings
from tests.rewards.verify.writings import (
    expression_fragments,
    expression_pairs,
    layouts,
    list_pairs,
    neighbours,
    number_pairs,
    number_writings,
)
from tracerl.evaluation.datasets import read_rows
from tracerl.rewards.verify import algebra
from tracerl.rewards.verify.answers import (
    NeedsAlgebraError,
    compare_answers,
    compare_readings,
    decide_quickly,
)
from tracerl.rewards.verify.normal_form import same_normal_form
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


def test_the_quick_verdict_on_numbers_is_whether_they_are_equal():
    for gold, answer, are_equal in number_pairs("numbers", 4000):
        truth = "equal" if are_equal else "different"
        assert decide_quickly(gold, answer) == truth, (gold, answer)


def test_the_quick_value_of_a_number_is_the_one_algebra_reads():
    """So that algebra would say the same of each of the pairs of these writings."""
    texts = {text for gold, answer, _ in number_pairs("values", 250) for text in (gold, answer)}
    values = {text: (number(clean(text)), algebra.parse(text)) for text in texts}
    assert len(values) > 400
    for text, (quick, slow) in values.items():
        assert quick == Fraction(int(slow.p), int(slow.q)), text


def test_the_quick_verdict_on_lists_of_numbers_is_the_one_of_reading_them():
    verdicts = set()
    for gold, answer in list_pairs("lists", 3000):
        quick = decide_quickly(gold, answer)
        try:
            slow = compare_readings(clean(gold), clean(answer), None)
        except NeedsAlgebraError:
            slow = None
        assert quick == slow, (gold, answer)
        verdicts.add(quick)
    assert {"equal", "different"} <= verdicts


def test_the_quick_verdict_on_sums_of_products_is_the_one_of_algebra():
    """A few; thousands: benchmarks/verifiers.py --only quick."""
    verdicts = []
    for gold, answer in expression_pairs("sums of products", 60):
        quick = same_normal_form(clean(gold), clean(answer))
        if quick is not None:
            assert quick == algebra.same_expression(clean(gold), clean(answer)), (gold, answer)
            verdicts.append(quick)
    assert min(verdicts.count("equal"), verdicts.count("different")) > 20


def test_a_sum_of_products_is_read_as_algebra_reads_it():
    """Texts of random pieces, most of them no expression: what algebra makes of those that are
    read, multiplied out and written by sympy, is equal to them."""
    num_equal = 0
    for text in map(clean, expression_fragments("pieces", 1500)):
        if same_normal_form(text, text) is None:
            continue
        written = sympy.latex(sympy.expand(algebra.parse(text)))
        written = written.replace(" + ", "+").replace(" - ", "-").replace(" ", r"\cdot ")
        verdict = same_normal_form(text, clean(written))
        assert verdict != "different", (text, written)
        num_equal += verdict == "equal"
    assert num_equal > 80


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        (r"3\sqrt{13}", r"\sqrt{117}", "equal"),
        (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", "equal"),
        (r"(1+2i)^2", r"-3+4i", "equal"),
        (r"\frac{3}{\pi}\cdot\pi^2", r"3\pi", "equal"),
        (r"\sqrt{0}x", "0", "equal"),
        (r"x^2-1", r"(x-1)(x+1)", "equal"),
        (r"3\sqrt{13}", r"5\sqrt{13}", "different"),
        ("xy", "yx", "equal"),
        # of another form, or read in two ways
        ("2x", "1/2x", None),
        ("2x", r"3\frac{1}{2}x", None),
        ("2x", "x2", None),
        ("2x", "x(2)", None),
        ("2x", "2^3^2", None),
        ("2x", "x^10", None),
        ("2x", r"\frac{1}{x}", None),
        ("2x", "pi", None),
        ("2x", "0.3(3)", None),
        ("2x", "(x+1)^{13}", None),
        ("2x", "(" * 200 + "x" + ")" * 200, None),
        ("2x", "(x+y+z+1)^9", None),
        ("2x", r"\frac{1}{0}", None),
        ("2x", r"\frac{x}{\sqrt{2}-\sqrt{2}}", None),
    ],
)
def test_a_sum_of_products_is_decided_and_nothing_else_is(gold, answer, verdict):
    assert same_normal_form(gold, answer) == verdict


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
