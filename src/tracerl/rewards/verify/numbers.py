"""Exact values of plain numbers, without algebra: whole, decimal, repeating and scientific numbers,
fractions and mixed numbers."""

import re
from fractions import Fraction

from tracerl.rewards.verify.spelling import without_thousands

_MAX_CHARACTERS = 400

_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_POWER_OF_TEN = re.compile(
    rf"(?P<digits>{_DECIMAL})(?:[eE](?P<e>[+-]?\d{{1,3}})"
    r"|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*(?P<braced>[+-]?\d{1,3})\s*\}|(?P<bare>\d)))",
    re.ASCII,
)
_FRACTION = re.compile(
    rf"\\frac\s*\{{(?P<top>[+-]?{_DECIMAL})\}}\s*\{{(?P<bottom>[+-]?{_DECIMAL})\}}", re.ASCII
)
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:(\d)|\{([^{}]*)\})\s*(?:(\d)|\{([^{}]*)\})", re.ASCII)
_SLASH = re.compile(r"(?P<top>\d+)\s*/\s*(?P<bottom>\d+)", re.ASCII)
_MIXED = re.compile(
    r"(?P<whole>\d+)(?:\s*\\frac\s*\{(?P<top>\d+)\}\s*\{(?P<bottom>\d+)\}"
    r"|\s+(?P<over>\d+)\s*/\s*(?P<under>\d+))",
    re.ASCII,
)
_PLAIN = re.compile(_DECIMAL, re.ASCII)
_REPEATING = re.compile(
    r"(?P<whole>\d*)\.(?P<fixed>\d*)(?:\\overline\s*(?:\{\s*(?P<bar>\d+)\s*\}|(?P<digit>\d))"
    r"|\((?P<round>\d+)\)"
    r"|\\dot\s*\{?(?P<first>\d)\}?(?:(?P<middle>\d*)\\dot\s*\{?(?P<last>\d)\}?)?)",
    re.ASCII,
)


def number(text: str) -> Fraction | None:
    """The exact value of a plain number in the spelling of `clean`, None for anything else.

    A mixed number is a whole number before a proper fraction: `3\\frac{1}{2}` is 3.5, and
    `3\\frac{5}{2}` is not read, for it could be a product. Numbers of more than 400 characters are
    not read either.
    """
    text = text.strip()
    if len(text) > _MAX_CHARACTERS:
        return None
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
        if "," in text:
            return None  # `(1,234)` is a point
    sign = -1 if text.startswith("-") else 1
    text = without_thousands(text.removeprefix("-" if sign < 0 else "+").lstrip())
    if "\\frac" in text:
        text = _SHORT_FRACTION.sub(_with_braces, text)
    value = _read_unsigned(text)
    return None if value is None else sign * value


def repeating(text: str) -> tuple[Fraction, int] | None:
    """The value of a repeating decimal at the start of the text and where it ends:
    `0.1\\overline{6}`, `0.1(6)`, `0.\\dot{1}4285\\dot{7}`. None if there is none."""
    match = _REPEATING.match(text)
    if match is None:
        return None
    period = match["bar"] or match["digit"] or match["round"]
    if period is None:
        period = match["first"] + (match["middle"] or "") + (match["last"] or "")
    whole, fixed = match["whole"] or "0", match["fixed"]
    shift = Fraction(10) ** len(fixed)
    value = Fraction(int(whole + fixed)) / shift
    return value + Fraction(int(period), 10 ** len(period) - 1) / shift, match.end()


def _read_unsigned(text: str) -> Fraction | None:
    if _PLAIN.fullmatch(text):
        return _decimal(text)
    if "/" in text or "\\frac" in text:
        return _read_fraction(text)
    if match := _POWER_OF_TEN.fullmatch(text):
        exponent = int(match["e"] or match["braced"] or match["bare"])
        return Fraction(match["digits"]) * Fraction(10) ** exponent
    decimal = repeating(text)
    return decimal[0] if decimal is not None and decimal[1] == len(text) else None


def _read_fraction(text: str) -> Fraction | None:
    if match := _FRACTION.fullmatch(text) or _SLASH.fullmatch(text):
        return _ratio(match["top"], match["bottom"])
    if match := _MIXED.fullmatch(text):
        part = _ratio(match["top"] or match["over"], match["bottom"] or match["under"])
        return None if part is None or part >= 1 else int(match["whole"]) + part
    return None


def _decimal(digits: str) -> Fraction:
    return Fraction(int(digits)) if digits.isdecimal() else Fraction(digits)


def _ratio(top: str, bottom: str) -> Fraction | None:
    if top.isdecimal() and bottom.isdecimal():
        return Fraction(int(top), int(bottom)) if int(bottom) else None
    divisor = Fraction(bottom)
    return Fraction(top) / divisor if divisor else None


def _with_braces(match: re.Match[str]) -> str:
    top, bottom = (
        next(part for part in match.group(*pair) if part is not None) for pair in ((1, 2), (3, 4))
    )
    return f"\\frac{{{top.strip()}}}{{{bottom.strip()}}}"
