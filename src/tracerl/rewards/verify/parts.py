"""Parts of a reward beyond correctness: format and length, and what d1 (arXiv 2504.12216, appendix)
pays. A round's params weigh them.

Every part is a score of a response's text between 0 and 1 (`xml_count` may fall below), so that a
weight says what it is worth: d1's rewards are `correct: 2.0` with, on GSM8K, `xml_count: 0.5,
soft_format: 0.5, strict_format: 0.5, integer_answer: 0.5`; on MATH, `boxed_format: 1.0`; on
countdown, `correct: 1.0` and `right_numbers: 0.1`; on sudoku, `filled_blanks: 1.0` alone.

`judge` is the score of the whole response by verification.judge, whatever decides `correct`.

Departures from d1's code: `right_numbers` is paid only where the answer is not correct, as d1's
text says; numbers are read by a parser, not by Python's own `eval`; `filled_blanks` pays nothing
for a grid that changes a clue; an `integer_answer` is what `extract_answer` gives, without a sign
for grouping.
"""

import re
from collections.abc import Callable, Mapping

from tracerl import puzzles
from tracerl.rewards.verify.code import code_tests
from tracerl.rewards.verify.final import short_answer
from tracerl.rewards.verify.math import extract_answer
from tracerl.rewards.verify.numbers import number
from tracerl.rewards.verify.spelling import clean
from tracerl.rewards.verify.verifier import Verdict
from tracerl.settings.rewards import RewardPart
from tracerl.types import Task

_STRICT = re.compile(
    r"<reasoning>\n[^<]*(?:<(?!/reasoning>)[^<]*)*\n</reasoning>\n<answer>\n[^<]*\n</answer>\n?"
)
_SOFT = re.compile(
    r"\s*<reasoning>[^<]*(?:<(?!/reasoning>)[^<]*)*</reasoning>\s*<answer>[^<]*</answer>"
)


def reward_parts(
    weights: Mapping[RewardPart, float],
    task: Task,
    text: str,
    verdict: Verdict,
    num_tokens: int,
    max_new_tokens: int,
    judged: float | None = None,
) -> dict[str, float]:
    """The weighted parts of one response's reward; their sum is the reward. An undecided response
    is paid for no part.

    judged: the judge's score from -1 to 1 for the part "judge", which pays it as 0 to 1.
    """
    if verdict.verdict == "undecided":
        return dict.fromkeys(weights, 0.0)
    parts: dict[str, float] = {}
    for name, weight in weights.items():
        if name == "correct":
            score = verdict.parts["correct"]
        elif name == "brevity":
            score = verdict.parts["correct"] * (1.0 - num_tokens / max_new_tokens)
        elif name == "judge":
            score = ((judged or 0.0) + 1.0) / 2.0
        else:
            score = (
                _PARTS[name](task, text)
                if not (name == "right_numbers" and verdict.verdict == "correct")
                else 0.0
            )
        parts[name] = weight * score
    return parts


def is_graded(weights: Mapping[RewardPart, float], task: Task) -> bool:
    """Whether a task's rewards under these weights may lie between nothing and everything: then its
    group has no pass rate."""
    fractional = task.kind == "open" or (
        task.kind == "code" and code_tests(task.spec).reward == "fraction"
    )
    return fractional or set(weights) != {"correct"}


def _boxed_format(task: Task, text: str) -> float:
    """d1's MATH format: answer tags with a box inside 1, without 0.75; a box alone 0.5, neither
    0.25."""
    inside = (
        text.rpartition("<answer>")[2].partition("</answer>")[0]
        if "<answer>" in text and "</answer>" in text
        else None
    )
    if inside is not None:
        return 1.0 if "\\boxed" in inside else 0.75
    return 0.5 if "\\boxed" in text else 0.25


def _xml_count(task: Task, text: str) -> float:
    """d1's tag count, twice: a quarter for each of the four tags that stands exactly once, less
    0.002 per character after the end."""
    score = sum(
        0.25
        for tag in ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>")
        if text.count(tag) == 1
    )
    if text.count("\n</answer>") == 1:
        score -= 0.002 * len(text.rpartition("\n</answer>")[2].strip())
    return max(score, -1.0)


def _soft_format(task: Task, text: str) -> float:
    return float(_SOFT.match(text) is not None)


def _strict_format(task: Task, text: str) -> float:
    return float(_STRICT.fullmatch(text) is not None)


def _integer_answer(task: Task, text: str) -> float:
    value = number(clean(extract_answer(text) or ""))
    return float(value is not None and value.denominator == 1)


def _right_numbers(task: Task, text: str) -> float:
    return float(
        task.kind == "countdown" and puzzles.uses_right_numbers(task.spec, short_answer(text))
    )


def _filled_blanks(task: Task, text: str) -> float:
    return (
        puzzles.filled_blanks(task.spec, task.answer, short_answer(text))
        if task.kind == "sudoku"
        else 0.0
    )


_PARTS: dict[str, Callable[[Task, str], float]] = {
    "boxed_format": _boxed_format,
    "xml_count": _xml_count,
    "soft_format": _soft_format,
    "strict_format": _strict_format,
    "integer_answer": _integer_answer,
    "right_numbers": _right_numbers,
    "filled_blanks": _filled_blanks,
}
