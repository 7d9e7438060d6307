"""Mathematical answers as small trees: lists, sets, intervals, matrices, equations, inequalities,
quantities, words; what is none of these is an expression, which only algebra reads.

Nothing here computes: reading is string work of bounded cost, safe on any text.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from tracerl.rewards.verify.math import MAX_ANSWER
from tracerl.rewards.verify.spelling import clean, thousands, without_thousands
from tracerl.rewards.verify.units import DEGREE, PERCENT, Unit, is_known_unit, read_unit

_MAX_DEPTH = 12


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

FUNCTIONS = {
    "sqrt": r"\sqrt",
    "pi": r"\pi",
    "sin": r"\sin",
    "cos": r"\cos",
    "tan": r"\tan",
    "log": r"\log",
    "ln": r"\ln",
    "exp": r"\exp",
    "infinity": r"\infty",
    "inf": r"\infty",
    "oo": r"\infty",
}
WORD = re.compile(r"(?<![\\A-Za-z])([A-Za-z]{2,})")
NAME = re.compile(
    r"[A-Za-z]'?(?:_\{?\w+\}?)?|[A-Za-z]'?\([A-Za-z]\)|\\(?:theta|alpha|beta|lambda|mu|sigma)"
)


def read(text: str, depth: int = 0) -> Node:
    """The tree of an answer. Raises NotReadableError where brackets do not match or nest too
    deeply."""
    text = _PHRASE.sub("", clean(text))
    if depth > _MAX_DEPTH or not text or len(text) > MAX_ANSWER:
        raise NotReadableError(text[:80])
    if _DIGITS.fullmatch(text):
        return Expression(text=text)  # what no reader would take
    for reader in _READERS:
        node = reader(text, depth)
        if node is not None:
            return node
    return Expression(text=without_thousands(text))


_DIGITS = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)

# Each reader returns None for a text that is not of its form.

_PHRASE = re.compile(
    r"^(?:\\text\{)?(?:so|thus|hence|therefore)?,?\s*(?:the|our|my)?\s*(?:final|correct)?\s*"
    r"(?:answer|result)\s*(?:is|:|=)\s*:?\}?",
    re.IGNORECASE,
)
_EVERYTHING = {
    r"\mathbb{R}",
    r"all real numbers",
    r"all reals",
    r"all real values",
    r"any real number",
    r"the real numbers",
    r"real numbers",
    r"the set of all real numbers",
}


def _read_constant(text: str, _: int) -> Node | None:
    if text in _EVERYTHING or _plain_words(text) in _EVERYTHING:
        return AllReals()
    return SetOf(items=()) if text in (r"\emptyset", r"\{\}") else None


_ENVIRONMENT = re.compile(
    r"^(?P<factor>[^\\&,=(\[]*(?:\\frac\{[^{}]*\}\{[^{}]*\})?(?:\\cdot)?)"
    r"(?P<open>[(\[]?)\\begin\{(?P<name>[pbB]?(?:small)?matrix|array)\}(?:\{[lcr|]*\})?"
    r"(?P<body>.*)\\end\{(?P=name)\}[)\]]?(?P<transposed>\^\{?(?:T|\\top|\\intercal)\}?)?$",
    re.DOTALL,
)


def _read_matrix(text: str, depth: int) -> Node | None:
    match = _ENVIRONMENT.match(text)
    if match is None or "\\begin" in match["body"]:
        return None
    rows = [row for row in re.split(r"\\\\|\\cr(?![A-Za-z])", match["body"]) if row.strip()]
    cells = [row.replace(r"\hline", "").split("&") for row in rows]
    factor = match["factor"].removesuffix(r"\cdot").strip()
    if factor:
        scale = f"({'-1' if factor == '-' else factor})"
        cells = [[f"{scale}({cell})" for cell in row] for row in cells]
    if match["transposed"]:
        if len({len(row) for row in cells}) > 1:
            raise NotReadableError(text[:80])
        cells = [list(column) for column in zip(*cells, strict=True)]
    return Matrix(rows=tuple(tuple(read(cell, depth + 1) for cell in row) for row in cells))


_BUILDER = re.compile(
    r"^(?P<variable>[A-Za-z])(?:\\in\\mathbb\{R\})?\s*[|:](?P<condition>.+)$", re.DOTALL
)


def _read_set(text: str, depth: int) -> Node | None:
    if not (text.startswith(r"\{") and text.endswith(r"\}") and _closes_at_end(text)):
        return None
    inside = text[2:-2]
    if builder := _BUILDER.match(inside):
        return read(builder["condition"], depth + 1)
    return SetOf(items=_read_all(_split_items(inside, bracketed=True), depth))


_MODULUS = re.compile(
    r"^(?P<value>.+?)\(?(?:\\mod|\\text\{mod\}|\bmod)[\s{(]*(?P<modulus>\d+)[)}]*$"
)
_CONGRUENT = re.compile(r"^[A-Za-z](?:_\{?\w+\}?)?\\equiv(?![A-Za-z])")


def _read_residue(text: str, depth: int) -> Node | None:
    match = _MODULUS.match(text)
    if match is None:
        return None
    value = _CONGRUENT.sub("", match["value"]).strip()
    items = tuple(
        Residue(value=item.strip(), modulus=match["modulus"])
        for item in _split_items(_SEPARATORS.sub(" , ", value), bracketed=False)
    )
    return items[0] if len(items) == 1 else Listing(items=items)


_OR = re.compile(r"\\text\{or\}|\\lor(?![A-Za-z])|(?<![A-Za-z\\])or(?![A-Za-z])")
_AND = re.compile(r"\\text\{and\}|\\land(?![A-Za-z])|(?<![A-Za-z\\])and(?![A-Za-z])")
_SEPARATORS = re.compile(
    r"\s*(?:\\text\{(?:and|or),?\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\lor(?![A-Za-z])"
    r"|\\land(?![A-Za-z])|;)\s*"
)
_OPERATOR = re.compile(r"(\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|<|>)")


def _read_conditions(text: str, depth: int) -> Node | None:
    """Inequalities joined by "or" or "and"."""
    for joint, operator in ((_OR, "union"), (_AND, "intersection")):
        parts = [part.strip(" ,") for part in joint.split(text)]
        if len(parts) > 1 and all(_OPERATOR.search(part) for part in parts):
            return Compound(operator=operator, items=_read_all(parts, depth))
    return None


def _read_items(text: str, depth: int) -> Node | None:
    """A list, with "and", "or" and semicolons as commas; or values assigned to several names."""
    parts = _split_items(_SEPARATORS.sub(" , ", text), bracketed=False)
    if len(parts) < 2:
        if thousands(text) == [(0, len(text))]:
            return Expression(text=without_thousands(text), items=tuple(text.split(",")))
        return None
    items = _read_all(parts, depth)
    if not _OR.search(text) and (assignment := _assignment(items, depth)) is not None:
        return assignment
    return Listing(items=items)


def _assignment(items: tuple[Node, ...], depth: int) -> Assignment | None:
    values: dict[str, Node] = {}
    for item in items:
        if not isinstance(item, Equation) or len(item.sides) != 2:
            return None
        name, value = item.sides
        if not NAME.fullmatch(name) or name in values:
            return None
        values[name] = read(value, depth + 1)
    return _sorted_assignment(values)


def _sorted_assignment(values: dict[str, Node]) -> Assignment:
    names = tuple(sorted(values))
    return Assignment(names=names, values=tuple(values[name] for name in names))


_MAX_SIGNS = 3


def _read_plus_minus(text: str, depth: int) -> Node | None:
    """Every choice of signs; `\\mp` takes the sign that the `\\pm` before it did not take."""
    count = len(re.findall(r"\\pm(?![A-Za-z])", text))
    if not count:
        return None
    if count > _MAX_SIGNS:
        raise NotReadableError(text[:80])
    return Listing(items=_read_all(_both_signs(text), depth))


def _both_signs(text: str) -> list[str]:
    if not re.search(r"\\pm(?![A-Za-z])", text):
        return [text]
    texts: list[str] = []
    for sign, other in ("+-", "-+"):
        first = re.sub(r"\\pm(?![A-Za-z])", f" {sign}", text, count=1)
        texts += _both_signs(re.sub(r"\\mp(?![A-Za-z])", f" {other}", first))
    return list(dict.fromkeys(texts))


_MEMBER = re.compile(r"^[A-Za-z]\\in(?![A-Za-z])(?P<set>.*)$", re.DOTALL)
_SET_OPERATIONS = (
    (r"\cup", "union"),
    (r"\cap", "intersection"),
    (r"\setminus", "difference"),
)


def _read_set_operation(text: str, depth: int) -> Node | None:
    """`A \\cup B`, `A \\setminus B`; the first of the operators that occurs binds least."""
    if member := _MEMBER.match(text):
        return read(member["set"], depth + 1)
    for command, operator in _SET_OPERATIONS:
        parts = _split_top(text, re.compile(re.escape(command) + r"(?![A-Za-z])"))
        if len(parts) > 1:
            return Compound(operator=operator, items=_read_all(parts, depth))
    return None


_EQUALS = re.compile(r"=|\\approx(?![A-Za-z])|\\equiv(?![A-Za-z])")
_NAMES = re.compile(r"\(((?:[A-Za-z],\s*)+[A-Za-z])\)")


def _read_equation(text: str, depth: int) -> Node | None:
    sides = [side.strip() for side in _split_top(text, _EQUALS)]
    if len(sides) < 2 or _OPERATOR.search(text):
        return None
    if not sides[0]:
        sides = sides[1:]
        if len(sides) == 1:
            return read(sides[0], depth + 1)
    if not all(sides):
        raise NotReadableError(text[:80])
    if NAME.fullmatch(sides[-1]) and not NAME.fullmatch(sides[0]):
        sides.reverse()
    if (match := _NAMES.fullmatch(sides[0])) and len(sides) == 2:
        names = [name.strip() for name in match[1].split(",")]
        values = read(sides[1], depth + 1)
        if isinstance(values, Group) and len(values.items) == len(names) == len(set(names)):
            return _sorted_assignment(dict(zip(names, values.items, strict=True)))
    return Equation(sides=tuple(sides), is_exact="\\approx" not in text)


_VARIABLE = re.compile(r"[A-Za-z]|\\theta")


def _read_relation(text: str, depth: int) -> Node | None:
    """An inequality; as an interval where the variable stands alone between or beside values."""
    parts = [part.strip() for part in _split_top(text, _OPERATOR, keep=True)]
    sides, operators = parts[::2], parts[1::2]
    if not operators:
        return None
    if not all(sides):
        raise NotReadableError(text[:80])
    if any(operator in (">", r"\ge") for operator in operators):
        if not all(operator in (">", r"\ge") for operator in operators):
            return Relation(sides=tuple(sides), operators=tuple(operators))
        sides.reverse()
        operators = ["<" if operator == ">" else r"\le" for operator in reversed(operators)]
    interval = _interval(sides, operators, depth)
    return interval or Relation(sides=tuple(sides), operators=tuple(operators))


def _interval(sides: list[str], operators: list[str], depth: int) -> Node | None:
    """The interval of `low < x \\le high`, or of one of its halves."""
    alone = [place for place, side in enumerate(sides) if _VARIABLE.fullmatch(side)]
    if len(alone) != 1 or r"\ne" in operators or len(sides) > 3:
        return None
    place = alone[0]
    if len(sides) == 3 and place != 1:
        return None
    if len(sides) == 2 and re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", sides[1 - place])):
        return None  # two variables
    low, high = r"-\infty", r"\infty"
    opening, closing = "(", ")"
    if place > 0:
        low = sides[place - 1]
        opening = "[" if operators[place - 1] == r"\le" else "("
    if place < len(operators):
        high = sides[place + 1]
        closing = "]" if operators[place] == r"\le" else ")"
    items = _read_all([low, high], depth)
    return Group(items=items, brackets=opening + closing, variable=sides[place])


def _read_group(text: str, depth: int) -> Node | None:
    if text[0] not in "([" or text[-1] not in ")]" or not _closes_at_end(text):
        return None
    parts = _split_items(text[1:-1], bracketed=True)
    if len(parts) < 2:
        return None
    return Group(items=_read_all(parts, depth), brackets=text[0] + text[-1])


_DIGIT_WORDS = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
    "sixteen": 16,
}
_SUBSCRIPT = re.compile(
    r"^\(?(?P<digits>[0-9A-Fa-f]+)\)?(?:_\{?(?:\\text\{?|\()*(?:base)?[\s}]*(?P<base>\d+|[a-z]+)[)}]*"
    r"|\s*\(?(?:\\text\{)?\s*\(?(?:in )?base[\s{}-]*(?P<spoken>\d+|[a-z]+)[)}]*)$"
)


def _read_based(text: str, _: int) -> Node | None:
    match = _SUBSCRIPT.match(text)
    if match is None:
        return None
    name = match["base"] or match["spoken"]
    base = int(name) if name.isdigit() else _DIGIT_WORDS.get(name, 0)
    digits = match["digits"].upper().lstrip("0") or "0"
    if digits.isalpha() and base != 16:
        return None  # a name with an index
    if not 2 <= base <= 36 or any(int(digit, 16) >= base for digit in digits):
        return None
    return Based(digits=digits, base=base)


_CLOCK = re.compile(
    r"^(?P<hours>\d{1,2})(?::(?P<minutes>[0-5]\d)(?::(?P<seconds>[0-5]\d))?)?\s*"
    r"(?:\\text\{)?\s*(?P<half>[ap]\.?\s?m\b)?\.?\s*\}?$",
    re.IGNORECASE,
)
_NAMED_TIMES = {"noon": ("12", "pm"), "midnight": ("12", "am")}


def _read_clock(text: str, _: int) -> Node | None:
    if (named := _NAMED_TIMES.get(_plain_words(text))) is not None:
        return Clock(minutes=Fraction(0), half=named[1])
    match = _CLOCK.match(text)
    if match is None or not (match["minutes"] or match["half"]):
        return None
    hours, half = int(match["hours"]), (match["half"] or "").lower().replace(".", "")
    half = half.replace(" ", "")
    minutes = 60 * hours + int(match["minutes"] or 0) + Fraction(int(match["seconds"] or 0), 60)
    if half:
        if not 1 <= hours <= 12:
            return None
        return Clock(minutes=minutes % 720, half=half)
    if hours > 24:
        return None
    return Clock(minutes=minutes, half="")


def _read_ratio(text: str, depth: int) -> Node | None:
    terms = [term.strip() for term in _split_top(text, re.compile(":"))]
    if len(terms) < 2 or not all(terms):
        return None
    return Ratio(terms=tuple(terms)) if all(re.search(r"\d|\\", term) for term in terms) else None


_TEMPERATURE = re.compile(
    r"^(?P<value>.+?)\^(?:\{\s*\\circ\s*\}|\\circ)\s*(?:\\text\{)?\s*(?P<scale>[CFK])\s*\}?$",
    re.DOTALL,
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


def _read_quantity(text: str, _: int) -> Node | None:
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
    if text.startswith("(") and _closes_at_end(text):
        return False
    return _IS_SUM_OR_FUNCTION.search(text) is not None


_PROSE = re.compile(r"\\text\{[^{}]*\}")
_NONEXISTENT = {"dne", "does not exist", "doesnt exist", "it does not exist"}


def _read_words(text: str, _: int) -> Node | None:
    """Prose is compared as such, never multiplied out letter by letter. Words of more than three
    letters that are no functions are prose."""
    bare = re.sub(r"\\[A-Za-z]+", " ", _PROSE.sub(" prose ", text))
    words = [word for word in WORD.findall(bare) if word.lower() not in FUNCTIONS]
    long = [word for word in words if len(word) > 3]
    sole = text.isalpha() and len(text) > 1 and text.lower() not in FUNCTIONS
    if text == "...":
        return Words(text=text)
    if not long and not sole:
        return None
    plain = _plain_words(text)
    return Words(text="does not exist" if plain in _NONEXISTENT else plain)


def _plain_words(text: str) -> str:
    text = re.sub(r"\\text\s*", "", text)
    return " ".join(re.sub(r"[{}$.,:;!'\"`*_]|\\[a-z]+", " ", text).casefold().split())


_READERS: tuple[Callable[[str, int], Node | None], ...] = (
    _read_constant,
    _read_matrix,
    _read_set,
    _read_residue,
    _read_conditions,
    _read_items,
    _read_plus_minus,
    _read_set_operation,
    _read_equation,
    _read_relation,
    _read_group,
    _read_based,
    _read_clock,
    _read_quantity,
    _read_ratio,
    _read_words,
)


def _read_all(texts: list[str], depth: int) -> tuple[Node, ...]:
    """The items of a list; one with a plus-minus sign is several."""
    items: list[Node] = []
    for text in texts:
        if text.strip():
            for choice in _both_signs(text) if text.count(r"\pm") <= _MAX_SIGNS else [text]:
                items.append(read(choice, depth + 1))
    return tuple(items)


def _split_items(text: str, bracketed: bool) -> list[str]:
    """Split at commas outside all brackets, without those that group thousands.

    Which those are: in a list that has spaces after its commas, the ones without a space. In one
    that has none, inside brackets none; outside, either all of them or none.
    """
    inside = {
        place for start, end in thousands(text) for place in range(start, end) if text[place] == ","
    }
    commas = [match.start() for match in _top_matches(text, re.compile(","))]
    has_spaces = any(text[place + 1 : place + 2] == " " for place in commas)
    if not has_spaces and (bracketed or not all(place in inside for place in commas)):
        inside = set()
    parts, start = [], 0
    for place in commas:
        if place not in inside:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def _split_top(text: str, separator: re.Pattern[str], keep: bool = False) -> list[str]:
    """Split outside all brackets and braces; with `keep` the separators stay between the parts."""
    parts, start = [], 0
    for match in _top_matches(text, separator):
        parts.append(text[start : match.start()])
        if keep:
            parts.append(match.group())
        start = match.end()
    return [*parts, text[start:]]


def _top_matches(text: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Matches outside all brackets. Half-open intervals mean that kinds of brackets need not
    match."""
    levels, level = [], 0
    for char in text:
        level -= char in ")]}"
        if level < 0:
            raise NotReadableError(text[:80])
        levels.append(level)
        level += char in "([{"
    if level:
        raise NotReadableError(text[:80])
    return [match for match in pattern.finditer(text) if levels[match.start()] == 0]


def _closes_at_end(text: str) -> bool:
    """Whether the bracket that opens the text closes with its last character."""
    level = 0
    for place, char in enumerate(text):
        level += (char in "([{") - (char in ")]}")
        if level == 0 and place >= (1 if text.startswith("\\") else 0):
            return place == len(text) - 1
    return False
