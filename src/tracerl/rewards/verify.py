"""The one verifier per task kind: trace filter, RL reward and benchmark all call `verify`.

Generated arithmetic (`sums`, `arithmetic`): the response must be steps followed by `#` and the answer as a plain whole number, nothing
after it. The steps themselves are not judged: what is paid is the answer. User files (`text`): what follows the last `#`, or else the
last non-empty line, must equal the answer after stripping spaces.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tracerl.types import Task

_NUMBER_ANSWER = re.compile(r"[^#]*#(0|-?[1-9][0-9]*)", re.ASCII)


@dataclass(frozen=True)
class Verdict:
    """verdict: "correct", "wrong" or "undecided" (never paid). parts: named reward parts; their sum is the reward."""

    verdict: str
    parts: dict[str, float]

    @property
    def reward(self) -> float:
        return sum(self.parts.values())


def verify(task: Task, response: str, stop_reason: str, truncated_is_wrong: bool) -> Verdict:
    """Judges a response's text. A response cut at the length limit is wrong if the option says so, whatever it holds."""
    cut = truncated_is_wrong and stop_reason == "length"
    correct = not cut and _VERIFIERS[task.kind](task.answer, response)
    return Verdict("correct" if correct else "wrong", {"correct": float(correct)})


def _number(answer: str, response: str) -> bool:
    match = _NUMBER_ANSWER.fullmatch(response)
    return match is not None and match.group(1) == answer


def _text(answer: str, response: str) -> bool:
    lines = [line for line in response.splitlines() if line.strip()]
    given = response.rpartition("#")[2] if "#" in response else (lines[-1] if lines else "")
    return given.strip() == answer.strip()


_VERIFIERS: dict[str, Callable[[str, str], bool]] = {"sums": _number, "arithmetic": _number, "text": _text}
