"""What only a computer algebra system decides about answers, with sympy. Never call this on model
text in a process that must live: see `workers.py`.

Equality of expressions must be proven symbolically, difference by a point at which the values
differ. What is neither proven nor refuted is "undecided".
"""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig

from tracerl.rewards.verify.math import Equivalence
from tracerl.rewards.verify.nodes import (
    AllReals,
    Compound,
    Equation,
    Expression,
    Group,
    Node,
    NotReadableError,
    Relation,
    SetOf,
)
from tracerl.rewards.verify.numbers import repeating
from tracerl.rewards.verify.reading import WORD
from tracerl.rewards.verify.spelling import FUNCTIONS, clean, without_thousands

_PARSER = ConversionConfig(lowercase_symbols=False)
_NORMAL = NormalizationConfig(
    basic_latex=True,
    units=False,
    malformed_operators=False,
    nits=False,
    boxed="none",
    equations=False,
)


def same_expression(gold: str, answer: str) -> Equivalence:
    """Two single expressions: equal if proven, different where a value differs."""
    try:
        ours, theirs = parse(gold), parse(answer)
    except NotReadableError:
        return "undecided"
    if ours == theirs:
        return "equal"
    if not (isinstance(ours, sympy.Expr) and isinstance(theirs, sympy.Expr)):
        return "undecided"
    if ours.is_Rational and theirs.is_Rational:
        return "different"
    ours, theirs = _with_real_letters(ours), _with_real_letters(theirs)
    if any(value.has(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan) for value in (ours, theirs)):
        finite = any(value.is_finite for value in (ours, theirs))
        opposite = {ours, theirs} == {sympy.oo, -sympy.oo}
        return "different" if finite or opposite else "undecided"
    if _differs_somewhere(ours, theirs):
        return "different"
    return "equal" if _is_zero(ours - theirs) else "undecided"


def _with_real_letters(value: Any) -> Any:
    """Letters stand for real numbers: then \\sqrt{x^2} is |x|."""
    letters = {symbol: sympy.Symbol(symbol.name, real=True) for symbol in value.free_symbols}
    return value.xreplace(letters).doit()


_PROOFS: tuple[Callable[[Any], Any], ...] = (
    sympy.expand,
    sympy.simplify,
    lambda value: sympy.simplify(sympy.expand_complex(value)),
    sympy.radsimp,
    sympy.nsimplify,
)


def _is_zero(difference: Any) -> bool:
    return any(prove(difference) == 0 for prove in _PROOFS) or bool(difference.equals(0))


def same_equation(gold: Equation, answer: Equation) -> Equivalence:
    """Left minus right equal up to a constant factor."""
    try:
        ours = _left_minus_right(gold)
        theirs = _left_minus_right(answer)
    except NotReadableError:
        return "undecided"
    except TypeError:  # sides that cannot be subtracted
        return "undecided"
    if theirs == 0 or ours == 0:
        return "undecided"
    if ours.free_symbols != theirs.free_symbols or not ours.free_symbols:
        return "different"
    ratio = sympy.simplify(ours / theirs)
    if ratio.is_number and ratio.is_nonzero:
        return "equal"
    return "undecided" if _numerically_constant(ratio) else "different"


def _left_minus_right(node: Equation | Relation) -> Any:
    return parse(node.sides[0]) - parse(node.sides[1])


def same_relation(gold: Relation, answer: Relation) -> Equivalence:
    """Inequalities in one variable by what they hold for; those in several if left minus right is
    the same up to a positive factor."""
    try:
        ours = _region(gold)
        theirs = _region(answer)
    except NotReadableError:
        return _same_sides(gold, answer)
    return _same_sets(ours, theirs)


def same_region(gold: Node, answer: Node) -> Equivalence:
    """Sets of real numbers, however they are written."""
    try:
        return _same_sets(_region(gold), _region(answer))
    except NotReadableError:
        return "undecided"


# A set of real numbers, and the variable that it was written with, "" if none was.
_Region = tuple[Any, str]


def _same_sets(gold: _Region, answer: _Region) -> Equivalence:
    if gold[1] and answer[1] and gold[1] != answer[1]:
        return "different"
    if gold[0] == answer[0]:
        return "equal"
    empty = sympy.SymmetricDifference(gold[0], answer[0]).is_empty
    if empty is None:
        return "undecided"
    return "equal" if empty else "different"


def _region(node: Node) -> _Region:
    """Raises NotReadableError if an end is no real number."""
    match node:
        case AllReals():
            return sympy.S.Reals, ""
        case SetOf():
            return sympy.FiniteSet(*map(_real, node.items)), ""
        case Group() if len(node.items) == 2:
            low, high = map(_real, node.items)
            is_open = (node.brackets[0] == "(", node.brackets[1] == ")")
            return sympy.Interval(low, high, *is_open), node.variable
        case Relation():
            return _solution(node)
        case Compound():
            return _compound(node)
    raise NotReadableError(str(node)[:80])


def _compound(node: Compound) -> _Region:
    result, variable = _region(node.items[0])
    for item in node.items[1:]:
        other, other_variable = _region(item)
        if variable and other_variable and variable != other_variable:
            raise NotReadableError(str(node)[:80])
        variable = variable or other_variable
        if node.operator == "union":
            result = sympy.Union(result, other)
        elif node.operator == "intersection":
            result = sympy.Intersection(result, other)
        else:
            result = sympy.Complement(result, other)
    return result, variable


def _real(node: Node) -> Any:
    if not isinstance(node, Expression):
        raise NotReadableError(str(node)[:80])
    value = parse(node.text)
    if value.free_symbols or value.is_extended_real is not True:
        raise NotReadableError(node.text[:80])
    return value


_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": sympy.Lt,
    r"\le": sympy.Le,
    ">": sympy.Gt,
    r"\ge": sympy.Ge,
    r"\ne": sympy.Ne,
}


def _solution(relation: Relation) -> _Region:
    """What an inequality in one variable holds for."""
    variable = sympy.Symbol("x", real=True)
    sides = list(map(parse, relation.sides))
    names: set[Any] = set()
    for side in sides:
        names |= side.free_symbols
    if len(names) != 1:
        raise NotReadableError("an inequality in several variables")
    name = names.pop()
    result = sympy.S.Reals
    for i, operator in enumerate(relation.operators):
        left, right = (side.subs(name, variable) for side in sides[i : i + 2])
        if operator == r"\ne":
            solution = sympy.Complement(
                sympy.S.Reals, sympy.solveset(left - right, variable, sympy.S.Reals)
            )
        else:
            condition = _RELATIONS[operator](left, right)
            solution = sympy.solveset(condition, variable, sympy.S.Reals)
        result = sympy.Intersection(result, solution)
    return result, str(name)


def _same_sides(gold: Relation, answer: Relation) -> Equivalence:
    if len(gold.operators) != 1 or len(answer.operators) != 1:
        return "undecided"
    try:
        ours = _left_minus_right(gold)
        theirs = _left_minus_right(answer)
    except NotReadableError:
        return "undecided"
    if ours.free_symbols != theirs.free_symbols:
        return "different"
    if theirs == 0 or ours == 0:
        return "undecided"
    ratio = sympy.simplify(ours / theirs)
    if not ratio.is_number:
        return "undecided" if _numerically_constant(ratio) else "different"
    unordered = r"\ne"
    if gold.operators != answer.operators:
        return "different"
    same = ratio.is_nonzero if gold.operators == (unordered,) else ratio.is_positive
    return "equal" if same else "different"


_COORDINATES = ((7, 5), (13, 11), (19, 7), (23, 29), (31, 13), (5, 17))


def _points(symbols: list[Any]) -> list[dict[Any, Any]]:
    """Fixed rational points, positive and then of both signs, at which two expressions are
    compared."""
    points: list[dict[Any, Any]] = []
    for k, signs in enumerate(((1, 1), (1, 1), (-1, 1), (-1, -1))):
        point = {}
        for i, symbol in enumerate(symbols):
            top, bottom = _COORDINATES[(i + 2 * k) % len(_COORDINATES)]
            point[symbol] = sympy.Rational(top, bottom) * signs[i % 2] + int(k == 1)
        points.append(point)
    return points


def _differs_somewhere(ours: Any, theirs: Any) -> bool:
    """Whether the values differ at some point where both are finite (and, off the positive axis,
    real)."""
    symbols = sorted(ours.free_symbols | theirs.free_symbols, key=str)
    digits = 40 + 2 * max(len(str(ours)), len(str(theirs)))
    for k, point in enumerate(_points(symbols) if symbols else [{}]):
        a = sympy.N(ours.subs(point), digits)
        b = sympy.N(theirs.subs(point), digits)
        if not (a.is_number and b.is_number) or a.is_finite is not True or b.is_finite is not True:
            continue
        if k >= 2 and not (a.is_real and b.is_real):
            continue
        if abs(a - b) > sympy.Float(10, digits) ** (-digits // 2) * (1 + abs(a)):
            return True
    return False


def _numerically_constant(ratio: Any) -> bool:
    symbols = sorted(ratio.free_symbols, key=str)
    first, second = _points(symbols)[:2]
    a = sympy.N(ratio.subs(first), 30)
    b = sympy.N(ratio.subs(second), 30)
    if not (a.is_finite and b.is_finite):
        return True
    return bool(abs(a - b) < sympy.Float("1e-20"))


_EXPLOSIVE = re.compile(
    r"\d{4,}\s*!|!\s*\)*\s*!|\^\s*\{?\s*\(?\d+\s*\^|\^\s*\{?\s*\d{4,}"
    r"|\\binom\s*\{\s*\d{5,}|\\binom\s*\{\s*\d+\s*\^"
)
_DECIMAL = re.compile(r"(?<![\w.])(\d+\.\d*|\.\d+)(?![\d.])")
_SCIENTIFIC = re.compile(r"(?<![\w.}])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,3})(?![\w.])", re.ASCII)
_REPEATING_START = re.compile(r"\d*\.\d*(?=\\overline|\\dot|\(\d+\))")
_ANGLE = re.compile(
    r"(\d+(?:\.\d+)?|\\frac\{[^{}]*\}\{[^{}]*\}|\([^()]*\)|\\[a-z]+|[A-Za-z])\^(?:\{\s*\\circ\s*\}|\\circ)"
)
_MIXED = re.compile(r"(?<![\w.}^])(\d+)\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}")
_MIXED_SLASH = re.compile(r"(?<![\w.}^])(\d+) (\d+)/(\d+)(?![\w.])", re.ASCII)
_COMBINATION = re.compile(
    r"(?:\{\})?(?:_\{?(\d+)\}?|\^\{?(\d+)\}?)\\?(?:text\{)?C\}?_\{?(\d+)\}?|(?<![\w)])C\((\d+),\s*(\d+)\)"
)


_CONSTANTS = {"i": sympy.I, "e": sympy.E}


def parse(text: str) -> Any:
    """A sympy expression of one LaTeX (or plain) expression, decimals exact, e and i the constants.
    Raises NotReadableError."""
    text = without_thousands(clean(text)).replace("**", "^").replace("%", "")
    if _EXPLOSIVE.search(text):
        raise NotReadableError("a number too large to be written down")
    text = _MIXED_SLASH.sub(_read_mixed, text)
    if re.search(r"\d\s+\d", re.sub(r"\\frac\s*\d\s*\d|_\s*\d+", "", text)):
        raise NotReadableError("numbers without an operator between them")
    text = _SCIENTIFIC.sub(_power_of_ten, text)
    text = _with_braces(_without_repeating(text))
    if re.search(
        r"[\w)}]\s*/\s*\d+\s*[A-Za-z\\(]", re.sub(r"\\cdot|\\times|\\div|\\pm", "*", text)
    ):
        raise NotReadableError("1/2x may mean two things")
    text = _ANGLE.sub(r"(\1\\cdot\\frac{\\pi}{180})", text)
    text = re.sub(r"\\log_\{?e\}?(?![A-Za-z])", r"\\ln ", text)
    text = _COMBINATION.sub(_binomial, _MIXED.sub(_read_mixed, text))
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<![\\A-Za-z])(sqrt)\s*\(([^()]*)\)", r"\\sqrt{\2}", text)
    text = WORD.sub(_command, text)
    if re.search(r"/\s*\d*[A-Za-z]\s*[A-Za-z(]", text):
        raise NotReadableError("a/bc may mean two things")
    text = _DECIMAL.sub(lambda match: _exact(Fraction(match[1])), text)
    try:
        value = latex2sympy(text, normalization_config=_NORMAL, conversion_config=_PARSER)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # the generated parser raises bare Exception, and more
        raise NotReadableError(text[:80]) from error
    if not isinstance(value, sympy.Basic):
        raise NotReadableError(text[:80])
    for symbol in value.free_symbols:
        constant = _CONSTANTS.get(getattr(symbol, "name", ""))
        if constant is not None:
            value = value.subs(symbol, constant)
    return value.doit()


def _with_braces(text: str) -> str:
    """`\\sqrt{2}` for `\\sqrt2`, `\\frac{1}{2}` for `\\frac12`; the same for binomials."""
    text = re.sub(r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}", text)
    for name in ("frac", "binom"):
        text = re.sub(rf"\\{name}\s*([0-9A-Za-z])\s*([0-9A-Za-z])", rf"\\{name}{{\1}}{{\2}}", text)
        text = re.sub(rf"\\{name}\s*([0-9A-Za-z])\s*\{{", rf"\\{name}{{\1}}{{", text)
        text = re.sub(rf"\\{name}\s*(\{{[^{{}}]*\}})\s*([0-9A-Za-z])", rf"\\{name}\1{{\2}}", text)
    return text


def _without_repeating(text: str) -> str:
    """Repeating decimals as the fractions they are."""
    parts, start = [], 0
    for match in _REPEATING_START.finditer(text):
        decimal = repeating(text[match.start() :]) if match.start() >= start else None
        if decimal is not None:
            parts += [text[start : match.start()], _exact(decimal[0])]
            start = match.start() + decimal[1]
    return "".join([*parts, text[start:]])


def _power_of_ten(match: re.Match[str]) -> str:
    return _exact(Fraction(match[1]) * Fraction(10) ** int(match[2]))


def _read_mixed(match: re.Match[str]) -> str:
    whole, top, bottom = map(int, match.groups())
    if not bottom or top >= bottom:
        raise NotReadableError("a whole number before an improper fraction")
    return _exact(whole + Fraction(top, bottom))


def _binomial(match: re.Match[str]) -> str:
    top, bottom = [part for part in match.groups() if part is not None]
    return rf"\binom{{{top}}}{{{bottom}}}"


def _command(match: re.Match[str]) -> str:
    command = FUNCTIONS.get(match[1].lower())
    return match[1] if command is None else f"{command} "


def _exact(value: Fraction) -> str:
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
