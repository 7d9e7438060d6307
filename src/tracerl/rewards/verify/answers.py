"""Whether two mathematical answers are equal, with sympy. Never call this on model text in a
process that must live: see `workers.py`.

An answer is read into a small tree first (list, set, interval or tuple, union, matrix, equation,
words, number with unit, expression), and trees are compared part by part; only single expressions
reach the LaTeX parser and sympy. Equality of expressions must be proven symbolically, difference by
a point at which the values differ. What is neither proven nor refuted is "undecided".
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig

from tracerl.rewards.verify.math import MAX_ANSWER, Equivalence, clean, decide_quickly, number

_MAX_DEPTH = 12
_PARSER = ConversionConfig(lowercase_symbols=False)
_NORMAL = NormalizationConfig(
    basic_latex=True,
    units=False,
    malformed_operators=False,
    nits=False,
    boxed="none",
    equations=False,
)

# Units that are compared by size: name -> (dimension, size).
_SIZES: dict[str, dict[str, str | int]] = {
    "length": {
        "m": 1,
        "cm": "0.01",
        "mm": "0.001",
        "km": 1000,
        "meter": 1,
        "centimeter": "0.01",
        "kilometer": 1000,
        "in": "0.0254",
        "inch": "0.0254",
        "inche": "0.0254",
        "ft": "0.3048",
        "feet": "0.3048",
        "foot": "0.3048",
        "yard": "0.9144",
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
    "money": {"dollar": 1, "cent": "0.01", "usd": 1},
    "volume": {"l": 1, "ml": "0.001", "liter": 1, "litre": 1},
}
_UNITS = {
    name: (dimension, Fraction(size))
    for dimension, sizes in _SIZES.items()
    for name, size in sizes.items()
}
_PLAIN_UNIT = re.compile(r"^(.*?[\d})])( ?)([A-Za-z]+)((?:\s*\^\s*\{?[23]\}?)?)$")
_TEXT_UNIT = re.compile(
    r"^(.*?[^\s\\])\s*((?:\\text\s*\{[^{}]*\}|\\text\s+[A-Za-z]+)(?:\s*\^\s*\{?[23]\}?)?(?:\s*/\s*\\text\s*\{[^{}]*\})?)$"
)
_DEGREES = re.compile(
    r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\text\s*\{\s*degrees?\s*\}|degrees?|\\degree)\s*$"
)

_COMMANDS = {
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
_WORD = re.compile(r"(?<![\\A-Za-z])([A-Za-z]{2,})")
_CHOICE = re.compile(r"\(?\s*([A-Ja-j])\s*(?:[).:](?=\s|$).*)?", re.DOTALL)
_ASSIGNED = re.compile(
    r"^\s*([A-Za-z](?:_\{?\w+\}?)?|[A-Za-z]\([A-Za-z]\)|\\(?:theta|alpha|beta|lambda))\s*=(?!=)\s*"
)
_RELATION = re.compile(r"(\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>)")
_MATRIX = re.compile(r"^\\begin\s*\{(p|b|B|)matrix\}(.*)\\end\s*\{\1matrix\}$", re.DOTALL)
_ARRAY = re.compile(
    r"^[(\[]?\s*\\begin\s*\{array\}\s*\{[^{}]*\}(.*)\\end\s*\{array\}\s*[)\]]?$", re.DOTALL
)
_BASE = re.compile(r"^([0-9A-Fa-f]+)\s*_\s*(?:\{\s*(?:\\text\s*\{\s*)?(\d+)(?:\s*\})?\s*\}|(\d))$")
_DECIMAL = re.compile(r"(?<![\w.])(\d+\.\d*|\.\d+)(?![\d.])")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{?\s*(\d+)\s*\}?")
_EXPLOSIVE = re.compile(
    r"\d{4,}\s*!|!\s*\)*\s*!|\^\s*\{?\s*\(?\d+\s*\^|\^\s*\{?\s*\d{4,}|\\binom\s*\{\s*\d{5,}|\\binom\s*\{\s*\d+\s*\^"
)
_SPLIT_WORDS = re.compile(
    r"\s*(?:\\text\s*\{\s*(?:and|or)\s*,?\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|;)\s*"
)


@dataclass(frozen=True)
class Node:
    """kind: list, set, group, union, matrix, equation, base, quantity, words or expression. parts:
    its items, nodes or text.
    mark: brackets of a group, unit of a quantity, shape of a matrix."""

    kind: str
    parts: tuple[Any, ...]
    mark: str = ""


class NotReadableError(ValueError):
    """The text is no answer this module understands."""


def compare_answers(gold: str, given: str) -> Equivalence:
    """The verdict on an answer as extracted. May take any amount of time and memory."""
    quick = decide_quickly(gold, given)
    if quick is not None:
        return quick
    ours, theirs = clean(gold), clean(given)
    if re.fullmatch(r"\(?\s*[A-J]\s*\)?", ours) and (chosen := _CHOICE.fullmatch(theirs)):
        return "equal" if chosen[1].upper() == ours.strip("() ") else "different"
    try:
        known = read(ours)
    except NotReadableError:
        return "undecided"
    try:
        found = read(theirs)
    except NotReadableError:
        return "different" if known.kind == "words" else "undecided"
    return _same(known, found)


def read(text: str, depth: int = 0) -> Node:
    """The tree of a cleaned answer. Raises NotReadableError where brackets do not match or nest too
    deeply."""
    text = clean(text)
    if depth > _MAX_DEPTH or not text or len(text) > MAX_ANSWER:
        raise NotReadableError(text[:80])
    if "\\pm" in text and text.count("\\pm") == 1:
        return Node("list", tuple(read(text.replace("\\pm", sign), depth + 1) for sign in "+-"))
    matrix = _MATRIX.match(text) or _ARRAY.match(text)
    if matrix:
        rows = [
            row.split("&")
            for row in re.split(r"\\\\|\\cr", matrix[matrix.lastindex or 1])
            if row.strip()
        ]
        return Node(
            "matrix",
            tuple(read(cell, depth + 1) for row in rows for cell in row),
            str([len(row) for row in rows]),
        )
    if len(parts := _split_top(_SPLIT_WORDS.sub(" , ", text), ",")) > 1:
        return Node("list", tuple(read(part, depth + 1) for part in parts if part.strip()))
    if len(parts := re.split(r"\\cup(?![A-Za-z])", text)) > 1:
        return Node("union", tuple(read(part, depth + 1) for part in parts))
    member = re.match(r"^[A-Za-z]\s*\\in(?![A-Za-z])\s*(.*)$", text, re.DOTALL)
    if member:
        return read(member[1], depth + 1)
    if (ray := _inequality(text, depth)) is not None:
        return ray
    if text == r"\emptyset" or re.fullmatch(r"\\\{\s*\\\}", text):
        return Node("set", ())
    if text.startswith(r"\{") and text.endswith(r"\}") and _closes_at_end(text):
        return Node("set", tuple(read(part, depth + 1) for part in _split_top(text[2:-2], ",")))
    if (
        text[0] in "(["
        and text[-1] in ")]"
        and _closes_at_end(text)
        and len(parts := _split_top(text[1:-1], ",")) > 1
    ):
        return Node("group", tuple(read(part, depth + 1) for part in parts), text[0] + text[-1])
    return _leaf(text, depth)


def _leaf(text: str, depth: int) -> Node:
    assigned = _ASSIGNED.match(text)
    if assigned and text[assigned.end() :].strip() and "=" not in text[assigned.end() :]:
        return Node("equation", (assigned[1], read(text[assigned.end() :], depth + 1)))
    if text.count("=") == 1 and all(side.strip() for side in text.split("=")):
        left, right = text.split("=")
        return Node("equation", (left.strip(), Node("expression", (right.strip(),))))
    if based := _BASE.match(text):
        return Node("base", (based[1].upper(),), based[2] or based[3])
    if (unit := _quantity(text)) is not None:
        return unit
    # Long words that are no functions are prose, and prose is compared as such, never multiplied
    # out letter by letter.
    bare = re.sub(r"\\text\s*\{[^{}]*\}", " prose ", text)
    long = [
        w
        for w in _WORD.findall(re.sub(r"\\[A-Za-z]+", " ", bare))
        if w.lower() not in _COMMANDS and (len(w) > 3 or w == "prose")
    ]
    if long or (text.isalpha() and len(text) > 1 and text.lower() not in _COMMANDS):
        return Node("words", (_plain_words(text),))
    return Node("expression", (text,))


def _plain_words(text: str) -> str:
    text = re.sub(r"\\text\s*", "", text)
    return " ".join(re.sub(r"[{}$.,:;!'\"`*_]|\\[a-z]+", " ", text).casefold().split())


def _quantity(text: str) -> Node | None:
    """A value with a unit behind it, in words or as a known abbreviation; a per cent sign and
    degrees are units too."""
    if degrees := _DEGREES.search(text):
        return (
            Node("quantity", (Node("expression", (text[: degrees.start()].strip(),)),), "degree")
            if degrees.start()
            else None
        )
    if text.endswith("%"):
        return Node("quantity", (Node("expression", (text.rstrip("\\% "),)),), "percent")
    if (named := _TEXT_UNIT.match(text)) and re.search(r"\d|\\pi|\\sqrt|^[a-z]$", named[1]):
        return Node("quantity", (Node("expression", (named[1].strip(),)),), _unit_name(named[2]))
    plain = _PLAIN_UNIT.match(text)
    if plain and _unit_name(plain[3]) in _UNITS and (plain[2] or len(plain[3]) > 1):
        return Node(
            "quantity", (Node("expression", (plain[1].strip(),)),), _unit_name(plain[3] + plain[4])
        )
    words = re.match(r"^(-?[\d.,/]+)\s+([A-Za-z][A-Za-z ]*)$", text)
    if words and words[2].lower() not in _COMMANDS and len(words[2]) > 1:
        return Node("quantity", (Node("expression", (words[1],)),), _unit_name(words[2]))
    return None


def _unit_name(text: str) -> str:
    name = re.sub(r"\\text|[{}\s.]", "", text).lower()
    name = name.removeprefix("square").strip() + "^2" if name.startswith("square") else name
    stem, _, power = name.partition("^")
    stem = stem.removesuffix("s") if len(stem) > 1 else stem
    return f"{stem}^{power}" if power else stem


def _inequality(text: str, depth: int) -> Node | None:
    """`1 < x \\le 3` as the interval it is. None if the text is no inequality in one variable with
    the variable alone on its side."""
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) not in (3, 5) or not all(parts):
        return None
    variable = re.compile(r"[A-Za-z]|\\theta")
    places = [i for i in range(0, len(parts), 2) if variable.fullmatch(parts[i])]
    if places != ([2] if len(parts) == 5 else places[:1]) or not places:
        return None
    if len(parts) == 3:
        value = parts[2 - places[0]]
        less = (parts[1] in ("<", r"\le")) == (places[0] == 0)
        closed = parts[1].startswith("\\")
        low, high = (r"-\infty", value) if less else (value, r"\infty")
        brackets = ("(" if less or not closed else "[") + (")" if not less or not closed else "]")
    else:
        up = parts[1] in ("<", r"\le")
        if up != (parts[3] in ("<", r"\le")):
            return None
        marks = (parts[1], parts[3]) if up else (parts[3], parts[1])
        low, high = (parts[0], parts[4]) if up else (parts[4], parts[0])
        brackets = ("[" if marks[0].startswith("\\") else "(") + (
            "]" if marks[1].startswith("\\") else ")"
        )
    return Node("group", (read(low, depth + 1), read(high, depth + 1)), brackets)


def _split_top(text: str, separator: str) -> list[str]:
    """Split outside all brackets and braces. Half-open intervals mean that kinds of brackets need
    not match."""
    parts, level, start = [], 0, 0
    for i, char in enumerate(text):
        level += (char in "([{") - (char in ")]}")
        if level < 0:
            raise NotReadableError(text[:80])
        if char == separator and level == 0:
            parts.append(text[start:i])
            start = i + 1
    if level:
        raise NotReadableError(text[:80])
    return [*parts, text[start:]]


def _closes_at_end(text: str) -> bool:
    """Whether the bracket that opens the text closes with its last character."""
    level = 0
    for i, char in enumerate(text):
        level += (char in "([{") - (char in ")]}")
        if level == 0 and i >= (1 if text.startswith("\\") else 0):
            return i == len(text) - 1
    return False


def _same(gold: Node, given: Node) -> Equivalence:
    if gold.kind != given.kind:
        return _same_across(gold, given)
    if gold.kind in ("list", "set", "union"):
        return _same_unordered(gold.parts, given.parts, multiset=gold.kind == "list")
    if gold.kind in ("group", "matrix"):
        if len(gold.parts) != len(given.parts) or gold.mark != given.mark:
            return "different"
        return _all([_same(a, b) for a, b in zip(gold.parts, given.parts, strict=True)])
    if gold.kind == "equation":
        return _same_equation(gold, given)
    if gold.kind == "base":
        return "equal" if gold == given else "different"
    if gold.kind == "quantity":
        return _same_quantity(gold, given)
    if gold.kind == "words":
        return "equal" if gold.parts == given.parts else "different"
    return same_expression(gold.parts[0], given.parts[0])


def _same_across(gold: Node, given: Node) -> Equivalence:
    """Different kinds that may say the same: a list is the set of its items, one item is a list of
    one, `x = 5` says 5, 5 cm says 5."""
    kinds = {gold.kind, given.kind}
    if kinds == {"list", "set"}:
        return _same_unordered(gold.parts, given.parts, multiset=False)
    for one, other, flip in ((gold, given, False), (given, gold, True)):
        if one.kind == "equation" and (other.kind != "words" or one.parts[1].kind == "words"):
            if not re.fullmatch(_ASSIGNED, one.parts[0] + "="):
                return "different"
            return _same(other, one.parts[1]) if flip else _same(one.parts[1], other)
        if one.kind == "quantity" and other.kind == "expression":
            return _same_unit_or_not(one, other, flip)
        if one.kind == "base" and other.kind == "expression":
            value = number(other.parts[0])
            return "undecided" if value is not None and value == _in_base(one) else "different"
        if one.kind == "group" and one.mark == "()" and other.kind == "list" and flip:
            return (
                "undecided"
                if _same_unordered(gold.parts, given.parts, multiset=True) == "equal"
                else "different"
            )
    return (
        "undecided"
        if kinds
        in ({"matrix", "group"}, {"union", "group"}, {"set", "group"}, {"matrix", "expression"})
        else "different"
    )


def _in_base(node: Node) -> int:
    try:
        return int(node.parts[0], int(node.mark))
    except ValueError:
        return -1


def _same_unordered(gold: tuple[Node, ...], given: tuple[Node, ...], multiset: bool) -> Equivalence:
    """Matches items one to one (a list), or each to some of the other side (a set)."""
    if len(gold) * len(given) > 400:
        return "undecided"
    verdicts = [[_same(a, b) for b in given] for a in gold]
    if multiset:
        if len(gold) != len(given):
            return "different"
        free = set(range(len(given)))
        for row in verdicts:
            match = next((j for j in sorted(free) if row[j] == "equal"), None)
            if match is None:
                return "undecided" if any(row[j] == "undecided" for j in free) else "different"
            free.discard(match)
        return "equal"
    columns = list(zip(*verdicts, strict=True)) if verdicts else []
    if bool(gold) != bool(given):
        return "different"
    return _all([_any(line) for line in [*verdicts, *columns]])


def _all(verdicts: Any) -> Equivalence:
    return (
        "different"
        if "different" in verdicts
        else "undecided"
        if "undecided" in verdicts
        else "equal"
    )


def _any(verdicts: Any) -> Equivalence:
    return (
        "equal" if "equal" in verdicts else "undecided" if "undecided" in verdicts else "different"
    )


def _same_quantity(gold: Node, given: Node) -> Equivalence:
    values = gold.parts[0].parts[0], given.parts[0].parts[0]
    if gold.mark == given.mark:
        return same_expression(*values)
    ours, theirs = _size_of(gold.mark), _size_of(given.mark)
    if ours is None or theirs is None or ours[0] != theirs[0]:
        return "different"
    return same_expression(
        *(
            f"({value}) \\cdot \\frac{{{size.numerator}}}{{{size.denominator}}}"
            for value, (_, size) in zip(values, (ours, theirs), strict=True)
        )
    )


def _size_of(unit: str) -> tuple[str, Fraction] | None:
    stem, _, power = unit.partition("^")
    if stem not in _UNITS:
        return None
    dimension, size = _UNITS[stem]
    return dimension + power, size ** int(power or 1)


def _same_unit_or_not(quantity: Node, plain: Node, given_has_unit: bool) -> Equivalence:
    """A unit on one side only: the number decides. Percentages and degrees are also their value."""
    inner, outer = quantity.parts[0].parts[0], plain.parts[0]
    same = same_expression(outer, inner) if given_has_unit else same_expression(inner, outer)
    if same == "equal" or quantity.mark not in ("percent", "degree"):
        return same
    factor = r"\frac{1}{100}" if quantity.mark == "percent" else r"\frac{\pi}{180}"
    return _any([same, same_expression(outer, f"({inner}) \\cdot {factor}")])


def _same_equation(gold: Node, given: Node) -> Equivalence:
    """The same sides, or left minus right equal up to a constant factor. A name on the left must be
    the same name."""
    if gold.parts[0].replace(" ", "") == given.parts[0].replace(" ", ""):
        return _same(gold.parts[1], given.parts[1])
    if gold.parts[1].kind != "expression" or given.parts[1].kind != "expression":
        return "different"
    try:
        ours, theirs = (
            parse(node.parts[0]) - parse(node.parts[1].parts[0]) for node in (gold, given)
        )
    except NotReadableError:
        return "undecided"
    if ours.free_symbols != theirs.free_symbols or theirs == 0:
        return "different" if theirs != 0 else "undecided"
    ratio = sympy.simplify(ours / theirs)
    return (
        "equal"
        if ratio.is_number and ratio.is_nonzero
        else "different"
        if not _numerically_constant(ratio)
        else "undecided"
    )


def same_expression(gold: str, given: str) -> Equivalence:
    """Two single expressions: equal if proven, different where a value differs."""
    quick = decide_quickly(gold, given)
    if quick is not None:
        return quick
    try:
        ours = parse(gold)
    except NotReadableError:
        return "undecided"
    try:
        theirs = parse(given)
    except NotReadableError:
        return "undecided"
    if ours == theirs:
        return "equal"
    if not (isinstance(ours, sympy.Expr) and isinstance(theirs, sympy.Expr)):
        return "undecided"
    if any(value.has(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan) for value in (ours, theirs)):
        return (
            "different"
            if any(value.is_finite for value in (ours, theirs))
            or {ours, theirs} == {sympy.oo, -sympy.oo}
            else "undecided"
        )
    difference = ours - theirs
    if _differs_somewhere(ours, theirs):
        return "different"
    for prove in (
        sympy.expand,
        sympy.simplify,
        lambda e: sympy.simplify(sympy.expand_complex(e)),
        sympy.radsimp,
        sympy.nsimplify,
    ):
        if prove(difference) == 0:
            return "equal"
    return "equal" if difference.equals(0) else "undecided"


def _points(symbols: list[Any]) -> list[dict[Any, Any]]:
    """Fixed rational points, positive and then of both signs, at which two expressions are
    compared."""
    small = [
        sympy.Rational(p, q) for p, q in ((7, 5), (13, 11), (19, 7), (23, 29), (31, 13), (5, 17))
    ]
    signs = ((1, 1), (1, 1), (-1, 1), (-1, -1))
    return [
        {s: small[(i + 2 * k) % 6] * signs[k][i % 2] + k * (k == 1) for i, s in enumerate(symbols)}
        for k in range(len(signs))
    ]


def _differs_somewhere(ours: Any, theirs: Any) -> bool:
    """Whether the values differ at some point where both are finite (and, off the positive axis,
    real)."""
    symbols = sorted(ours.free_symbols | theirs.free_symbols, key=str)
    digits = 40 + 2 * max(len(str(ours)), len(str(theirs)))
    for k, point in enumerate(_points(symbols) if symbols else [{}]):
        a, b = (sympy.N(value.subs(point), digits) for value in (ours, theirs))
        if not (a.is_number and b.is_number) or a.is_finite is not True or b.is_finite is not True:
            continue
        if k >= 2 and not (a.is_real and b.is_real):
            continue
        if abs(a - b) > sympy.Float(10, digits) ** (-digits // 2) * (1 + abs(a)):
            return True
    return False


def _numerically_constant(ratio: Any) -> bool:
    symbols = sorted(ratio.free_symbols, key=str)
    values = [sympy.N(ratio.subs(point), 30) for point in _points(symbols)[:2]]
    return not all(value.is_finite for value in values) or abs(values[0] - values[1]) < sympy.Float(
        "1e-20"
    )


def parse(text: str) -> Any:
    """A sympy expression of one LaTeX (or plain) expression, decimals exact, e and i the constants.
    Raises NotReadableError."""
    text = clean(text).replace("**", "^").replace(r"\%", "").replace("%", "")
    if _EXPLOSIVE.search(text):
        raise NotReadableError("a number too large to be written down")
    if re.search(r"\d\s+\d", re.sub(r"\\frac\s*\d\s*\d|_\s*\d+", "", text)):
        raise NotReadableError("numbers without an operator between them")
    text = _REPEATING.sub(
        _repeated, re.sub(r"\^\s*\{?\s*\\circ\s*\}?", r" \\cdot \\frac{\\pi}{180} ", text)
    )
    if re.search(r"\d\s*/\s*\d+\s*[A-Za-z\\(]", re.sub(r"\\cdot|\\times|\\div|\\pm", "*", text)):
        raise NotReadableError("1/2x may mean two things")
    text = re.sub(r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}", text)
    text = re.sub(r"\\frac\s*([0-9A-Za-z])\s*([0-9A-Za-z])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*([0-9A-Za-z])\s*\{", r"\\frac{\1}{", text)
    text = re.sub(r"\\frac\s*(\{[^{}]*\})\s*([0-9A-Za-z])", r"\\frac\1{\2}", text)
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<![\\A-Za-z])(sqrt)\s*\(([^()]*)\)", r"\\sqrt{\2}", text)
    text = _WORD.sub(
        lambda match: (
            _COMMANDS.get(match[1].lower(), match[1])
            + (" " if match[1].lower() in _COMMANDS else "")
        ),
        text,
    )
    text = _DECIMAL.sub(lambda match: _exact(match[1]), text)
    try:
        value = latex2sympy(text, normalization_config=_NORMAL, conversion_config=_PARSER)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # the generated parser raises bare Exception, and hostile text makes it raise anything
        raise NotReadableError(text[:80]) from error
    if not isinstance(value, sympy.Basic):
        raise NotReadableError(text[:80])
    names = {"i": sympy.I, "e": sympy.E}
    return value.subs(
        {s: names[s.name] for s in value.free_symbols if getattr(s, "name", "") in names}
    ).doit()


def _exact(decimal: str) -> str:
    value = Fraction(decimal)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _repeated(match: re.Match[str]) -> str:
    whole, fixed, period = match[1] or "0", match[2], match[3]
    nines = (10 ** len(period) - 1) * 10 ** len(fixed)
    value = Fraction(int(whole + fixed), 10 ** len(fixed)) + Fraction(int(period), nines)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
