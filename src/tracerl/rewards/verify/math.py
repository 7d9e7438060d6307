"""Mathematical answers: which part of a response is its answer, and whether it equals the known
one.

`extract_answer` is the one extractor, for the reward and for every benchmark. In this order, of the
text after the last `</think>` (if anything follows it) and inside the last `<answer>` block (if
there is one; `final.py`):

1. the last complete `\\boxed{...}` (or `\\fbox`), braces nested at will;
2. what follows the last `####` on its line;
3. what follows the last "answer is" or "answer:" on its line;
4. the last line that is not empty: its last `$...$` if it has one, else the whole line.

`compare` decides "equal", "different" or "undecided". `decide_quickly` is that part of it that
costs microseconds whatever the text is: equal spelling, and exact rational numbers. Everything else
needs `answers.compare_answers`, which runs sympy, and sympy on hostile text can take any amount of
time and memory: so it runs in the processes of `workers.py`, where it is killed.

What counts as equal: exact value, not nearness (0.333 is not 1/3). A percentage equals its value
and its number (10% is 0.1 and is 10); a unit on one side only is ignored; units on both sides must
agree. Departure from `math-verify`: its extraction and its comparison are not used, because they
round, drop units and read the first of several expressions; its LaTeX parser is.
"""

import re
from fractions import Fraction
from typing import Literal

from tracerl.rewards.verify.final import final_part, last_boxed

Equivalence = Literal["equal", "different", "undecided"]

MAX_ANSWER = 2000  # characters; a longer answer is compared as text only

_SAYS = re.compile(r"(?:answer|result)[ \t]{0,4}(?:is|:|=)[ \t]{0,4}:?", re.IGNORECASE)

# ruff: noqa: RUF001
_SYMBOLS = {
    "−": "-",
    "–": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "°": r"^\circ ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "±": r"\pm ",
    "²": "^2",
    "³": "^3",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}",
    "∅": r"\emptyset ",
    "£": r"\$",
    "€": r"\$",
    "\u00a0": " ",
    "\u202f": " ",
    "√": r"\sqrt ",
    "θ": r"\theta ",
    "α": r"\alpha ",
    "≠": r"\ne ",
}
_SYMBOL = re.compile("|".join(map(re.escape, _SYMBOLS)))
_SPACING = re.compile(
    r"\\(?:displaystyle|textstyle|limits|left|right|bigl?|bigr?|Bigl?|Bigr?|mathstrut)(?![A-Za-z])|\\[!]"
)
_SPACE = re.compile(r"\\[,;:> ]|\\q?quad(?![A-Za-z])|~|\s+")
_NAMES = re.compile(r"\\(dfrac|tfrac|cfrac|leq|geq|lt|gt|neq|varnothing|ldots|dots)(?![A-Za-z])")
_RENAMED = {
    "dfrac": r"\frac",
    "tfrac": r"\frac",
    "cfrac": r"\frac",
    "leq": r"\le ",
    "geq": r"\ge ",
    "lt": "<",
    "gt": ">",
    "neq": r"\ne ",
    "varnothing": r"\emptyset ",
    "ldots": "...",
    "dots": "...",
}
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:(?:,|\{,\})\d{3})+)(?![\d,]|\.\d*,)")
_FONTS = re.compile(r"\\(?:mathbf|mathit|boldsymbol|textbf|textit|mathsf|mathtt|bm)(?![A-Za-z])\s*")
_WORDS = re.compile(r"\\(?:text|mbox|textrm|mathrm|textnormal|operatorname\*?|rm)(?![A-Za-z])\s*")

_NUMBER = re.compile(
    r"(?P<sign>[+-]?)\s*(?:(?P<decimal>\d+(?:\.\d*)?|\.\d+)(?:e(?P<exponent>[+-]?\d{1,3})|\s*\\(?:times|cdot)\s*10\s*\^\s*\{?(?P<power>[+-]?\d{1,3})\}?)?"
    r"|(?:(?P<whole>\d+)\s*)?\\frac\s*\{\s*(?P<top>[+-]?\d+)\s*\}\s*\{\s*(?P<bottom>\d+)\s*\}"
    r"|(?:(?P<part>\d+)\s+)?(?P<over>\d+)\s*/\s*(?P<under>\d+))",
    re.IGNORECASE | re.ASCII,
)
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:(\d)|\{([^{}]*)\})\s*(?:(\d)|\{([^{}]*)\})")
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*\\?(?:%|percent)\s*\}|percent)\s*", re.IGNORECASE)


def extract_answer(text: str) -> str | None:
    """The answer a response gives, or None if it is empty. Linear in the length of the text."""
    text, _ = final_part(text)
    if (boxed := last_boxed(text)) is not None:
        return boxed.strip() or None
    if "####" in text:
        return text.rpartition("####")[2].partition("\n")[0].strip() or None
    for said in reversed([match.end() for match in _SAYS.finditer(text)]):
        if rest := text[said:].partition("\n")[0].strip("*_ \t\r"):
            return _math_of(rest).strip("*_ ").removesuffix(".").strip() or None
        break
    lines = [line for line in text.splitlines() if line.strip()]
    return (
        (_math_of(lines[-1]).strip().strip("*_ ").removesuffix(".").strip() or None)
        if lines
        else None
    )


def decide_quickly(gold: str, given: str) -> Equivalence | None:
    """The verdict where it costs nothing, else None: the same spelling, and two exact numbers, with
    or without a per cent sign."""
    if max(len(gold), len(given)) > 4 * MAX_ANSWER:
        return "equal" if gold == given else "undecided"
    ours, theirs = clean(gold), clean(given)
    if ours == theirs or ours.replace(" ", "") == theirs.replace(" ", ""):
        return "equal"
    if not theirs:
        return "different"
    if len(theirs) > MAX_ANSWER or len(ours) > MAX_ANSWER:
        return "undecided"
    a, b = percentage(ours), percentage(theirs)
    if a is None or b is None:
        return None
    return same_number(*a, *b)


def same_number(
    gold: Fraction, gold_percent: bool, given: Fraction, given_percent: bool
) -> Equivalence:
    """Two numbers, each possibly a percentage. A proportion (a plain gold between 0 and 1) does not
    say what "0.5%" against 0.5 means."""
    if gold_percent == given_percent:
        return "equal" if gold == given else "different"
    if given_percent and gold == given and 0 < abs(gold) < 1:
        return "undecided"
    percent, plain = (gold, given) if gold_percent else (given, gold)
    return "equal" if plain in (percent, percent / 100) else "different"


def percentage(text: str) -> tuple[Fraction, bool] | None:
    """An exact number and whether it is a percentage, of cleaned text; None for anything else."""
    signs = list(_PERCENT.finditer(text))
    if signs and signs[-1].end() == len(text):
        value = number(text[: signs[-1].start()])
        return None if value is None else (value, True)
    value = number(text)
    return None if value is None else (value, False)


def number(text: str) -> Fraction | None:
    """The exact value of a plain number: whole, decimal, scientific, fraction or mixed number; of
    at most 400 digits."""
    text = text.strip()
    if len(text) > 400:
        return None
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    match = _NUMBER.fullmatch(_SHORT_FRACTION.sub(_with_braces, text))
    if match is None:
        return None
    part = match.groupdict()
    if part["decimal"] is not None:
        value = Fraction(part["decimal"]) * Fraction(10) ** int(
            part["exponent"] or part["power"] or 0
        )
    else:
        top, bottom = (
            (part["top"], part["bottom"])
            if part["top"] is not None
            else (part["over"], part["under"])
        )
        if int(bottom) == 0:
            return None
        value = Fraction(int(top), int(bottom)) + int(part["whole"] or part["part"] or 0)
    return -value if part["sign"] == "-" else value


def clean(text: str) -> str:
    """One spelling for what LaTeX and Unicode write in several ways: no spacing, sizes, fonts,
    dollar signs or thousands separators."""
    text = _SYMBOL.sub(lambda match: _SYMBOLS[match.group()], text)
    text = (
        text.replace(r"\$", "")
        .replace("$", "")
        .replace(r"\(", "")
        .replace(r"\)", "")
        .replace(r"\[", "")
        .replace(r"\]", "")
    )
    text = (
        text.replace(r"\lbrace", r"\{")
        .replace(r"\rbrace", r"\}")
        .replace(r"\lbrack", "[")
        .replace(r"\rbrack", "]")
    )
    text = _NAMES.sub(lambda match: _RENAMED[match.group(1)], _SPACING.sub("", text))
    text = (
        _SPACE.sub(" ", _WORDS.sub(r"\\text ", _FONTS.sub("", text)))
        .replace(r"\text {", r"\text{")
        .strip()
    )
    text = text.removesuffix(".").removesuffix(",").strip() if not text.endswith("..") else text
    if text[:1] not in tuple("([{\\") or text.startswith(r"\text"):
        text = _THOUSANDS.sub(
            lambda match: match.group(1) + re.sub(r"[^\d]", "", match.group(2)), text
        )
    while (inner := _sole_group(text)) is not None:
        text = inner.strip()
    return text


def _sole_group(text: str) -> str | None:
    """The inside of braces or a \\text that hold everything; None if there are none."""
    for opening in (r"\text{", r"\boxed{", "{"):
        if (
            text.startswith(opening)
            and text.endswith("}")
            and "{" not in text[len(opening) :]
            and "}" not in text[:-1]
        ):
            return text[len(opening) : -1]
    return None


def _with_braces(match: re.Match[str]) -> str:
    top, bottom = (
        next(part for part in match.group(*pair) if part is not None) for pair in ((1, 2), (3, 4))
    )
    return f"\\frac{{{top}}}{{{bottom}}}"


def _math_of(line: str) -> str:
    """The last `$...$` or `\\(...\\)` of a line, else the line."""
    parts = re.split(r"\$+", line)
    inside = [part for part in parts[1:-1:2] if part.strip()]
    close = line.rfind(r"\)")
    start = line.rfind(r"\(", 0, max(close, 0))
    if inside:
        return inside[-1]
    return line[start + 2 : close] if 0 <= start < close else line
