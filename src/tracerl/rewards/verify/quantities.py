"""Reading a value with its unit: words, a known abbreviation, a currency, a per cent or degree
sign."""

import re
from fractions import Fraction

from tracerl.rewards.verify.brackets import closes_at_end
from tracerl.rewards.verify.nodes import Node, Quantity
from tracerl.rewards.verify.spelling import FUNCTIONS, without_thousands
from tracerl.rewards.verify.units import (
    DEGREE,
    ORDINAL,
    PERCENT,
    SCALES,
    Unit,
    is_known_unit,
    read_unit,
)

_TEMPERATURE = re.compile(
    r"^(?P<value>.+?)\^(?:\{\s*\\circ\s*\}|\\circ)\s*(?:\\text\{)?\s*(?P<scale>[CFK])\s*\}?$",
    re.DOTALL,
)
_ORDINAL = re.compile(r"^(?P<value>\d+)(?:\^\{?)?(?:\\text\{\s*)?(?:st|nd|rd|th)\s*\}*$", re.ASCII)
_SCALE_WORD = re.compile(
    rf"(?:\\text\{{)?\s*(?P<name>{'|'.join(SCALES)})(?:\s*dollars)?\s*\}}?$", re.IGNORECASE
)
_DEGREE_SIGN = re.compile(
    r"(?:\^(?:\{\s*\\circ\s*\}|\\circ)|\s*\\text\{\s*degrees?\s*\}|\s+degrees?)$", re.IGNORECASE
)
_PER_CENT = re.compile(
    r"(?:%|\s*\\text\{\s*(?:%|percent|per cent)\s*\}|\s+per ?cent)$", re.IGNORECASE
)
_MONEY = re.compile(
    r"^(?P<sign>-?)\s*(?P<symbol>\\\$|£|€|USD|\\text\{USD\})\s*(?P<value>.*\d.*)$", re.DOTALL
)
_CENTS = re.compile(r"^(?P<value>.*\d)\s*(?P<symbol>¢|€|£|\\\$)$")
_TEXT_UNIT = re.compile(
    r"^(?P<value>.*?[^\s\\])\s*(?P<unit>(?:\\text\{[^{}]*\})(?:\^\{?-?\d\}?)?"
    r"(?:(?:/|\\cdot)?\\text\{[^{}]*\}(?:\^\{?-?\d\}?)?)*)$",
    re.DOTALL,
)
_PLAIN_UNIT = re.compile(
    r"^(?P<value>.*?[\d})])(?P<gap>\s?)(?P<unit>(?P<name>[A-Za-z]+)(?:\^\{?[23]\}?)?"
    r"(?:/[A-Za-z]+(?:\^\{?[23]\}?)?)?)$",
    re.DOTALL,
)
_WORD_UNIT = re.compile(r"^(?P<value>-?[\d.,/]+)\s+(?P<unit>[A-Za-z][A-Za-z ]*(?:\^\{?[23]\}?)?)$")
# A sum, or a function of an angle, is not one value before a degree sign.
_IS_SUM_OR_FUNCTION = re.compile(
    r"\\circ|\\(?:sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan)(?![A-Za-z])|(?<=[\w})])[+-]|sin|cos|tan"
)


def read_quantity(text: str, _: int) -> Node | None:
    """A value with its unit: words, a known abbreviation, a currency, a per cent or degree sign."""
    if match := _TEMPERATURE.match(text):
        return _quantity(match["value"], read_unit(f"degrees-{match['scale']}"))
    if match := _DEGREE_SIGN.search(text):
        inside = text[: match.start()].strip()
        return _quantity(inside, DEGREE) if not _is_sum_or_function(inside) else None
    if match := _PER_CENT.search(text):
        return _quantity(text[: match.start()], PERCENT)
    if match := _MONEY.match(text):
        value = match["sign"] + re.sub(r"\\text\{\s*(?:dollars?|USD)\s*\}$", "", match["value"])
        if scale := _SCALE_WORD.search(value):
            unit = read_unit(f"{match['symbol']} {scale['name']}")
            return _quantity(value[: scale.start()], unit)
        return _quantity(value, read_unit(match["symbol"]))
    if match := _CENTS.match(text):
        return _quantity(match["value"], read_unit(match["symbol"]))
    if (match := _TEXT_UNIT.match(text)) and re.search(r"\d|\\pi|\\sqrt|^[a-z]$", match["value"]):
        return _quantity(match["value"], read_unit(match["unit"]))
    match = _PLAIN_UNIT.match(text)
    if match and is_known_unit(match["name"]) and (match["gap"] or len(match["name"]) > 1):
        return _quantity(match["value"], read_unit(match["unit"]))
    match = _WORD_UNIT.match(text)
    if match and match["unit"].lower() not in FUNCTIONS and len(match["unit"]) > 1:
        return _quantity(match["value"], read_unit(match["unit"]))
    return None


def _quantity(value: str, unit: Unit) -> Node | None:
    value = without_thousands(value.strip())
    return Quantity(value=value, unit=unit) if value else None


def _is_sum_or_function(text: str) -> bool:
    if text.startswith("(") and closes_at_end(text):
        return False
    return _IS_SUM_OR_FUNCTION.search(text) is not None


# Units that are written one after another, the larger first.
_COMPOUND_UNIT = re.compile(
    r"days?|hours?|hrs?|h|minutes?|min|seconds?|sec|s|foot|feet|ft|inch(?:es)?|in|yards?|yd"
    r"|pounds?|lbs?|ounces?|oz|dollars?|cents?",
    re.IGNORECASE,
)
_PART = re.compile(r"(?P<value>\d+(?:\.\d+)?)\s*(?:\\text\{\s*)?(?P<unit>[A-Za-z]+)", re.ASCII)
_JOINT = re.compile(r"[\s}.]*(?:\\text\{\s*)?(?:and)?[\s}]*")


def read_ordinal(text: str, _: int) -> Node | None:
    """`7th`, `7^{\\text{th}}`."""
    match = _ORDINAL.match(text)
    return Quantity(value=match["value"], unit=ORDINAL) if match else None


def read_compound(text: str, _: int) -> Node | None:
    """`5 ft 6 in`, `2\\text{ hours and }30\\text{ minutes}`: one quantity, in the last unit."""
    values: list[Fraction] = []
    units: list[Unit] = []
    place = 0
    while place < len(text):
        part = _PART.match(text, place)
        if part is None or not _COMPOUND_UNIT.fullmatch(part["unit"]):
            return None
        values.append(Fraction(part["value"]))
        units.append(read_unit(part["unit"]))
        joint = _JOINT.match(text, part.end())
        place = joint.end() if joint else part.end()
    if len(units) < 2 or len({unit.dimensions for unit in units}) > 1:
        return None
    total = Fraction(0)
    for i, unit in enumerate(units):
        if i and unit.size >= units[i - 1].size:
            return None
        total += values[i] * unit.size / units[-1].size
    return Quantity(value=f"{total.numerator}/{total.denominator}", unit=units[-1])
