"""The verifiers, on what models really write and on what they would write to be paid for
nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verdicts import verify
from tracerl.rewards.verify.final import short_answer
from tracerl.rewards.verify.verifier import Verdict
from tracerl.types import TASK_KINDS, Task


def task(kind: str, answer: str) -> Task:
    return Task(
        task_id="set/1",
        task_set="set",
        kind=kind,
        split="test",
        difficulty=1,
        prompt="prompt",
        answer=answer,
        solution="",
    )


def is_correct(kind: str, answer: str, response: str) -> bool:
    verdict = verify(task(kind, answer), response, "end", truncated_is_wrong=True)
    assert verdict.verdict in ("correct", "wrong")
    assert verdict.reward == float(verdict.verdict == "correct") == sum(verdict.parts.values())
    return verdict.verdict == "correct"


NUMBERS = [
    ("16", "11;16;#16", True),
    ("16", "#16", True),
    ("16", "4+7=11;11+5=16;#16", True),
    ("16", "wrong steps are not judged;#16", True),
    ("16", "11\n16\n#16", True),
    ("0", "5-5=0;#0", True),
    ("-3", "2-5=-3;#-3", True),
    # another number
    ("16", "11;16;#17", False),
    ("16", "#1", False),
    ("16", "#116", False),
    ("16", "#160", False),
    ("16", "#-16", False),
    # no answer
    ("16", "", False),
    ("16", "16", False),
    ("16", "#", False),
    ("16", "11;16;", False),
    # several answers
    ("16", "#16#16", False),
    ("16", "#15#16", False),
    ("16", "#16;#17", False),
    ("16", "#15;#16", False),
    ("16", "##16", False),
    # something after the answer
    ("16", "#16 ", False),
    ("16", "#16\n", False),
    ("16", "#16.", False),
    ("16", "#16.0", False),
    ("16", "#16;", False),
    ("16", "#16\x00", False),
    ("16", "#16=16", False),
    # other ways to write it
    ("16", "# 16", False),
    ("16", "#+16", False),
    ("16", "#016", False),
    ("16", "#0x10", False),
    ("16", "#1_6", False),
    ("16", "#1e1", False),
    ("16", "#8+8", False),
    ("16", "#１６", False),  # noqa: RUF001 (full-width digits)
    ("16", "#١٦", False),  # Arabic-Indic digits
    ("16", "＃16", False),  # noqa: RUF001 (a full-width number sign)
    ("0", "#-0", False),
    ("0", "#00", False),
    ("-3", "#−3", False),  # noqa: RUF001 (a minus sign)
]


@pytest.mark.parametrize("kind", ["sums", "arithmetic"])
@pytest.mark.parametrize(("answer", "response", "correct"), NUMBERS)
def test_a_number_is_the_whole_rest_after_the_only_sign(kind, answer, response, correct):
    assert is_correct(kind, answer, response) is correct


@given(
    steps=st.text(st.characters(exclude_characters="#"), max_size=20),
    number=st.integers(-999, 999),
    other=st.integers(-999, 999),
)
@settings(derandomize=True, deadline=None)
def test_a_number_is_right_after_any_steps_and_any_other_number_is_wrong(steps, number, other):
    assert is_correct("sums", str(number), f"{steps}#{number}")
    assert is_correct("sums", str(number), f"{steps}#{other}") is (number == other)


@given(response=st.text(max_size=30))
@settings(derandomize=True, deadline=None)
def test_no_text_at_all_is_an_error(response):
    for kind in ("sums", "arithmetic", "text"):
        is_correct(kind, "16", response)


@pytest.mark.parametrize(
    "response",
    ["#" * 300_000, "9" * 300_000, "#" + "9" * 300_000, "\n" * 300_000 + "#", "16;" * 100_000],
)
def test_a_huge_response_is_judged_at_once(response):
    for kind in ("sums", "text"):
        assert not is_correct(kind, "16", response)


TEXTS = [
    ("Paris", "Paris", True),
    ("Paris", "It is in France.\n#Paris", True),
    ("Paris", "It is in France.\n# Paris ", True),
    ("Paris", "It is in France.\nParis\n\n", True),
    ("1/2", "half\n#1/2", True),
    ("New York", "#New York", True),
    ("Paris", "", False),
    ("Paris", "#", False),
    ("Paris", "paris", False),
    ("Paris", "Paris\nLondon", False),
    ("Paris", "#Paris\n#London", False),
    ("Paris", "#London\nParis", False),
    ("Paris", "#Paris#", False),
    ("Paris", "Paris or London", False),
    ("Paris", "Paris\x00", False),
]


@pytest.mark.parametrize(("answer", "response", "correct"), TEXTS)
def test_a_text_is_what_follows_the_last_sign_or_the_last_line(answer, response, correct):
    assert is_correct("text", answer, response) is correct


@pytest.mark.parametrize(("kind", "response"), [("sums", "11;#16"), ("text", "#16")])
def test_a_response_cut_at_the_limit_is_wrong_if_the_option_says_so(kind, response):
    assert verify(task(kind, "16"), response, "length", truncated_is_wrong=True) == Verdict(
        verdict="wrong", parts={"correct": 0.0}
    )
    assert verify(task(kind, "16"), response, "length", truncated_is_wrong=False) == Verdict(
        verdict="correct", parts={"correct": 1.0}
    )
    assert verify(task(kind, "16"), response, "end", truncated_is_wrong=True) == Verdict(
        verdict="correct", parts={"correct": 1.0}
    )
    assert verify(task(kind, "17"), response, "end", truncated_is_wrong=False) == Verdict(
        verdict="wrong", parts={"correct": 0.0}
    )


def test_an_undecided_response_is_never_paid():
    assert Verdict(verdict="undecided", parts={}).reward == 0.0


FINAL = [
    ("so\n3*5+7", "3*5+7"),
    ("3*5;#3*5+7", "3*5+7"),
    ("<think>#1</think>\n3*5+7", "3*5+7"),
    ("<think>hm</think>\n", "<think>hm</think>"),
    ("<answer>\n1 2\n3 4\n</answer> bye", "1 2\n3 4"),
    ("<answer>1</answer> no <answer>2", "2"),
    ("<answer>so \\boxed{3*5+7} it is</answer>", "3*5+7"),
    ("\\boxed{3*5+7} and {more}", "3*5+7"),
    ("\\boxed{1} or \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
    ("", ""),
]


@pytest.mark.parametrize(("response", "answer"), FINAL)
def test_a_short_answer_is_taken_in_the_stated_order(response, answer):
    assert short_answer(response) == answer


@pytest.mark.parametrize("part", ["<answer>", "</think>", "\\boxed{", "#", "\n", "{", "}"])
def test_a_hostile_text_gives_an_answer_at_once(part):
    short_answer(part * 50_000)


def test_every_kind_of_task_has_a_verifier():
    """An unknown kind is a KeyError, which the verdict names. Not asked here: "open", which needs a
    judge, and "code", which needs tests."""
    for kind in TASK_KINDS:
        if kind not in ("open", "code"):
            assert "KeyError" not in verify(task(kind, "1"), "", "end", True).detail
    assert "KeyError" in verify(task("chess", "1"), "", "end", True).detail
