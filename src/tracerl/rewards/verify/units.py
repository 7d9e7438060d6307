"""Units of measurement: what a written unit measures, and how large it is."""

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

# Dimension -> names -> size in one base unit. A name may be written in the plural.
_SIZES: dict[str, dict[str, str | int]] = {
    "length": {
        "m": 1,
        "cm": "0.01",
        "mm": "0.001",
        "km": 1000,
        "meter": 1,
        "metre": 1,
        "centimeter": "0.01",
        "centimetre": "0.01",
        "millimeter": "0.001",
        "kilometer": 1000,
        "kilometre": 1000,
        "in": "0.0254",
        "inch": "0.0254",
        "inche": "0.0254",
        "ft": "0.3048",
        "feet": "0.3048",
        "foot": "0.3048",
        "yd": "0.9144",
        "yard": "0.9144",
        "mi": "1609.344",
        "mile": "1609.344",
    },
    "mass": {
        "kg": 1,
        "g": "0.001",
        "mg": "0.000001",
        "gram": "0.001",
        "kilogram": 1,
        "pound": "0.45359237",
        "lb": "0.45359237",
        "ounce": "0.028349523125",
        "oz": "0.028349523125",
    },
    "time": {
        "s": 1,
        "sec": 1,
        "second": 1,
        "min": 60,
        "minute": 60,
        "h": 3600,
        "hr": 3600,
        "hour": 3600,
        "day": 86400,
        "week": 604800,
    },
    "dollars": {"dollar": 1, "cent": "0.01", "usd": 1, "¢": "0.01"},
    "euros": {"euro": 1, "eur": 1, "€": 1},
    "pounds sterling": {"gbp": 1, "£": 1, "pence": "0.01"},
    "volume": {"l": 1, "ml": "0.001", "liter": 1, "litre": 1, "milliliter": "0.001"},
    "degrees": {"degree": 1, "deg": 1},
    "radians": {"radian": 1, "rad": 1},
    "per cent": {"percent": 1, "%": 1},
}
_KNOWN = {
    name: (dimension, Fraction(size))
    for dimension, sizes in _SIZES.items()
    for name, size in sizes.items()
}
_SPEEDS = {"mph": "mile/hour", "kph": "km/hour", "kmh": "km/hour"}
SCALES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_WORD_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_FACTOR = re.compile(r"([*/]?)([^\s*/^]+)(?:\^(-?\d))?")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What is counted, and how much of it a unit is."""

    dimensions: tuple[tuple[str, int], ...]
    """(dimension, power), sorted; a unit that is not known is a dimension of its own."""
    size: Fraction
    """In base units of its dimensions (metres, kilograms, seconds, dollars, degrees)."""
    scale: int = 1
    """What number words in it multiply the value by (`million dollars`: 1,000,000); in `size`."""

    @property
    def is_percentage(self) -> bool:
        return self.dimensions == (("per cent", 1),)

    @property
    def is_angle_in_degrees(self) -> bool:
        return self.dimensions == (("degrees", 1),)

    @property
    def is_angle_in_radians(self) -> bool:
        return self.dimensions == (("radians", 1),)


PERCENT = Unit(dimensions=(("per cent", 1),), size=Fraction(1))
ORDINAL = Unit(dimensions=(("ordinal", 1),), size=Fraction(1))
DEGREE = Unit(dimensions=(("degrees", 1),), size=Fraction(1))


def read_unit(text: str) -> Unit:
    """The unit that is written as LaTeX or in words: `\\text{cm}^2`, `square feet`, `m/s^{2}`,
    `miles per hour`."""
    line = re.sub(r"\\text(?![A-Za-z])|\\cdot|\\,|\\\$", _space, text).casefold()
    line = re.sub(r"[{}().]", " ", line).replace(" per ", "/")
    line = re.sub(r"\s*([*/^])\s*", r"\1", line).strip()
    for name, long in _SPEEDS.items():
        line = re.sub(rf"\b{name}\b", long, line)
    dimensions = Counter[str]()
    size = Fraction(1)
    scale = 1
    word_power = 1
    for operator, name, power in _FACTOR.findall(line):
        if name in _WORD_POWERS:
            word_power = _WORD_POWERS[name]
            continue
        if not operator and name in SCALES:
            scale *= SCALES[name]
            continue
        exponent = int(power or word_power) * (-1 if operator == "/" else 1)
        word_power = 1
        dimension, factor = _known(name)
        dimensions[dimension] += exponent
        size *= factor**exponent
    return Unit(
        dimensions=tuple(sorted((name, power) for name, power in dimensions.items() if power)),
        size=size * scale,
        scale=scale,
    )


def is_known_unit(name: str) -> bool:
    """Whether a plain word is the name of a unit with a size."""
    word = name.casefold()
    return word in _SPEEDS or word in _KNOWN or word.removesuffix("s") in _KNOWN


def _space(match: re.Match[str]) -> str:
    return {"\\cdot": "*", "\\$": " dollar "}.get(match.group(), " ")


def _known(name: str) -> tuple[str, Fraction]:
    singular = name.removesuffix("s") if len(name) > 1 else name
    return _KNOWN.get(name) or _KNOWN.get(singular) or (singular, Fraction(1))
