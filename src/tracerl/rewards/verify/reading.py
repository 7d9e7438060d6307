"""Reading a mathematical answer into a tree: lists, sets, intervals, matrices, equations,
inequalities, quantities, words; what is none of these is an expression, which only algebra reads.

Nothing here computes: reading is string work of bounded cost, safe on any text.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from tracerl.rewards.verify.brackets import closes_at_end, split_items, split_top
from tracerl.rewards.verify.math import MAX_ANSWER
from tracerl.rewards.verify.nodes import (
    NO_SOLUTION,
    AllReals,
    Assignment,
    Based,
    Clock,
    Compound,
    Equation,
    Expression,
    Group,
    Listing,
    Matrix,
    Node,
    NotReadableError,
    Ratio,
    Relation,
    Residue,
    SetOf,
    Words,
)
from tracerl.rewards.verify.quantities import read_compound, read_ordinal, read_quantity
from tracerl.rewards.verify.spelling import FUNCTIONS, clean, thousands, without_thousands

_MAX_DEPTH = 12


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
        for row in cells:
            row[:] = [f"{scale}({cell})" for cell in row]
    if match["transposed"]:
        if len({len(row) for row in cells}) > 1:
            raise NotReadableError(text[:80])
        cells = [list(column) for column in zip(*cells, strict=True)]
    parts: list[tuple[Node, ...]] = []
    for row in cells:
        parts.append(tuple(read(cell, depth + 1) for cell in row))
    return Matrix(rows=tuple(parts))


_BUILDER = re.compile(
    r"^(?P<variable>[A-Za-z])(?:\\in\\mathbb\{R\})?\s*[|:](?P<condition>.+)$", re.DOTALL
)


def _read_set(text: str, depth: int) -> Node | None:
    if not (text.startswith(r"\{") and text.endswith(r"\}") and closes_at_end(text)):
        return None
    inside = text[2:-2]
    if builder := _BUILDER.match(inside):
        return read(builder["condition"], depth + 1)
    return SetOf(items=_read_all(split_items(inside, bracketed=True), depth))


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
        for item in split_items(_SEPARATORS.sub(" , ", value), bracketed=False)
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
    parts = split_items(_SEPARATORS.sub(" , ", text), bracketed=False)
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
        parts = split_top(text, re.compile(re.escape(command) + r"(?![A-Za-z])"))
        if len(parts) > 1:
            return Compound(operator=operator, items=_read_all(parts, depth))
    return None


_EQUALS = re.compile(r"=|\\approx(?![A-Za-z])|\\equiv(?![A-Za-z])")
_NAMES = re.compile(r"\(((?:[A-Za-z],\s*)+[A-Za-z])\)")


def _read_equation(text: str, depth: int) -> Node | None:
    sides = [side.strip() for side in split_top(text, _EQUALS)]
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
    parts = [part.strip() for part in split_top(text, _OPERATOR, keep=True)]
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
    places = [place for place, side in enumerate(sides) if _VARIABLE.fullmatch(side)]
    if len(places) != 1 or r"\ne" in operators or len(sides) > 3:
        return None
    place = places[0]
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
    if text[0] not in "([" or text[-1] not in ")]" or not closes_at_end(text):
        return None
    parts = split_items(text[1:-1], bracketed=True)
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
    if (time := _NAMED_TIMES.get(_plain_words(text))) is not None:
        return Clock(minutes=Fraction(0), half=time[1])
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
    terms = [term.strip() for term in split_top(text, re.compile(":"))]
    if len(terms) < 2 or not all(terms):
        return None
    return Ratio(terms=tuple(terms)) if all(re.search(r"\d|\\", term) for term in terms) else None


_PROSE = re.compile(r"\\text\{[^{}]*\}")
_SYNONYMS = {
    **dict.fromkeys(
        ("dne", "does not exist", "doesnt exist", "it does not exist"), "does not exist"
    ),
    **dict.fromkeys(
        ("no solutions", "there is no solution", "there are no solutions"), NO_SOLUTION
    ),
}
_MAX_LETTERS = 3


def _read_words(text: str, _: int) -> Node | None:
    """Prose is compared as such, never multiplied out letter by letter. Words of more than three
    letters that are no functions are prose."""
    if r"\begin" in text:
        raise NotReadableError(text[:80])  # an environment that no reader knows
    bare = re.sub(r"\\[A-Za-z]+", " ", _PROSE.sub(" prose ", text))
    words = [word for word in WORD.findall(bare) if word.lower() not in FUNCTIONS]
    long = [word for word in words if len(word) > 3]
    sole = text.isalpha() and len(text) > 1 and text.lower() not in FUNCTIONS
    if text == "...":
        return Words(text=text)
    if not long and not sole:
        return None
    plain = _plain_words(text)
    letters = text if sole and text.isascii() and len(text) <= _MAX_LETTERS else ""
    return Words(text=_SYNONYMS.get(plain, plain), letters=letters)


def _plain_words(text: str) -> str:
    text = re.sub(r"\\text\s*", "", text)
    return " ".join(re.sub(r"[{}$.,:;!'\"`*_]|\\[a-z]+", " ", text).casefold().split())


_READERS: tuple[Callable[[str, int], Node | None], ...] = (
    _read_constant,
    _read_matrix,
    _read_set,
    _read_residue,
    _read_conditions,
    read_compound,
    _read_items,
    _read_plus_minus,
    _read_set_operation,
    _read_equation,
    _read_relation,
    _read_group,
    _read_based,
    _read_clock,
    read_ordinal,
    read_quantity,
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
