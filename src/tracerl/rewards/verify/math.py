"""Mathematical answers: which part of a response is its answer.

`extract_answer` is the one extractor, for the reward and for every benchmark. In this order, of the
text after the last `</think>` (if anything follows it) and inside the last `<answer>` block (if
there is one; `final.py`):

1. the last complete `\\boxed{...}` (or `\\fbox`), braces nested at will;
2. what follows the last `####` on its line;
3. what follows the last "answer is" or "answer:" on its line;
4. the last line that is not empty: its last `$...$` if it has one, else the whole line.

Whether it equals the known answer is decided by `answers.py`, and where that needs algebra in the
processes of `workers.py`: sympy on hostile text can take any amount of time and memory, so it runs
where it can be killed.

What counts as equal: exact value, not nearness (0.333 is not 1/3). A percentage equals its value
and its number (10% is 0.1 and is 10); a unit on one side only is ignored; units on both sides must
agree. Departure from `math-verify`: its extraction and its comparison are not used, because they
round, drop units and read the first of several expressions; its LaTeX parser is.
"""

import re
from typing import Literal

from tracerl.rewards.verify.final import final_part, last_boxed

Equivalence = Literal["equal", "different", "undecided"]

MAX_ANSWER = 2000  # characters; a longer answer is compared as text only

_SAYS = re.compile(r"(?:answer|result)[ \t]{0,4}(?:is|:|=)[ \t]{0,4}:?", re.IGNORECASE)


def extract_answer(text: str) -> str | None:
    """The answer a response gives, or None if it is empty. Linear in the length of the text."""
    text, _ = final_part(text)
    if (boxed := last_boxed(text)) is not None:
        return boxed.strip() or None
    if "####" in text:
        return text.rpartition("####")[2].partition("\n")[0].strip() or None
    for end in reversed([match.end() for match in _SAYS.finditer(text)]):
        if rest := text[end:].partition("\n")[0].strip("*_ \t\r"):
            return _math_of(rest).strip("*_ ").removesuffix(".").strip() or None
        break
    lines = [line for line in text.splitlines() if line.strip()]
    return (
        (_math_of(lines[-1]).strip().strip("*_ ").removesuffix(".").strip() or None)
        if lines
        else None
    )


def _math_of(line: str) -> str:
    """The last `$...$` or `\\(...\\)` of a line, else the line."""
    parts = re.split(r"\$+", line)
    inside = [part for part in parts[1:-1:2] if part.strip()]
    close = line.rfind(r"\)")
    start = line.rfind(r"\(", 0, max(close, 0))
    if inside:
        return inside[-1]
    return line[start + 2 : close] if 0 <= start < close else line
