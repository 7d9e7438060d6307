"""Mathematical answers as small trees: what `reading.py` makes of a text, and `answers.py`
compares."""

from dataclasses import dataclass
from fractions import Fraction

from tracerl.rewards.verify.units import Unit


class NotReadableError(ValueError):
    """The text is no answer that is understood here."""


@dataclass(frozen=True, kw_only=True)
class Expression:
    """`\\frac{x}{2}`: what only algebra reads, or a plain number."""

    text: str
    items: tuple[str, ...] = ()
    """Of `120,360`, whose commas may also separate items: the items."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """`\\text{Evelyn}`."""

    text: str
    """In lower case, without punctuation."""
    letters: str = ""
    """Of a word of two or three letters, which may be a product: as it is written."""


NO_SOLUTION = "no solution"


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """`5\\text{ cm}^2`, `\\$5`, `10\\%`, `60^\\circ`."""

    value: str
    unit: Unit


@dataclass(frozen=True, kw_only=True)
class Based:
    """`2516_8`: a whole number written in a base."""

    digits: str
    base: int

    @property
    def value(self) -> int:
        return int(self.digits, self.base)


@dataclass(frozen=True, kw_only=True)
class Residue:
    """`3 \\pmod 7`."""

    value: str
    modulus: str


@dataclass(frozen=True, kw_only=True)
class Clock:
    """`2:30 p.m.`"""

    minutes: Fraction
    """Since midnight, or since noon where `half` is "pm"."""
    half: str
    """"am", "pm", or "" where it is not said."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """`1:2:3`."""

    terms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """`1, 2` in any order; items that are equal count as often as they are written."""

    items: tuple["Node", ...]


@dataclass(frozen=True, kw_only=True)
class SetOf:
    """`\\{1, 2\\}`."""

    items: tuple["Node", ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """`(1, 2]`: a tuple, a vector or an interval."""

    items: tuple["Node", ...]
    brackets: str
    """The opening and the closing one; angle brackets are spelt "()"."""
    variable: str = ""
    """Of an interval that was written as an inequality: what lies in it."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Rows of cells."""

    rows: tuple[tuple["Node", ...], ...]


@dataclass(frozen=True, kw_only=True)
class Equation:
    """`m + n = 204`: at least two sides."""

    sides: tuple[str, ...]
    is_exact: bool
    """False where one of the signs is `\\approx`."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """`x = 1, y = 2`, also written `(x, y) = (1, 2)`."""

    names: tuple[str, ...]
    """Sorted, no two the same."""
    values: tuple["Node", ...]


@dataclass(frozen=True, kw_only=True)
class Relation:
    """`a < b \\le c`, `x \\ne 1`."""

    sides: tuple[str, ...]
    operators: tuple[str, ...]
    """One between two sides: `<`, `\\le` or `\\ne`; `>` and `\\ge` are turned round."""


@dataclass(frozen=True, kw_only=True)
class Compound:
    """Sets or conditions joined by one operator."""

    operator: str
    """"union", "intersection" or "difference"."""
    items: tuple["Node", ...]


@dataclass(frozen=True, kw_only=True)
class AllReals:
    """`\\mathbb{R}`."""


Node = (
    Expression
    | Words
    | Quantity
    | Based
    | Residue
    | Clock
    | Ratio
    | Listing
    | SetOf
    | Group
    | Matrix
    | Equation
    | Assignment
    | Relation
    | Compound
    | AllReals
)
