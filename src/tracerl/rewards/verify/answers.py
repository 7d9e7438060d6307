"""Whether two mathematical answers are equal.

Answers are read into small trees (`reading.py`), which are compared part by part. Plain numbers and
sums of products (`normal_form.py`) are compared here, exactly; what needs algebra is asked of
`algebra.py`, or ends the comparison where there is none (`decide_quickly`). So the quick verdict
and the full one come from the same rules, and differ only in what they can decide.

A verdict is symmetric, with one exception: an equation whose left side is no name (`m + n = 204`)
equals its value only where the value is the known answer. A known equation is a statement of its
own, which its right side alone does not make.
"""

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Protocol

from tracerl.rewards.verify.math import MAX_ANSWER, Equivalence
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
    Quantity,
    Ratio,
    Relation,
    Residue,
    SetOf,
    Words,
)
from tracerl.rewards.verify.normal_form import same_normal_form
from tracerl.rewards.verify.numbers import number
from tracerl.rewards.verify.reading import NAME, read
from tracerl.rewards.verify.spelling import clean
from tracerl.rewards.verify.units import Unit

_MAX_COMPARISONS = 400
_MAX_PLAIN_ITEMS = 20  # of two sets: their product is _MAX_COMPARISONS
_MAX_PLAIN_CHARACTERS = 400
_APPROXIMATION = Fraction(1, 100)  # how far the two sides of `\\approx` may be apart, relatively

# Most answers: no spelling, no reading.
_PLAIN_NUMBER = re.compile(r"-?\d{1,100}(?:\.\d{1,100})?", re.ASCII)
_PLAIN_ITEM = r"-?(?:\d+(?:[./]\d+)?|\\frac\{-?\d+\}\{\d+\})"
_PLAIN_ITEMS = re.compile(
    rf"(?P<open>[(\[]|\\\{{)(?P<items>{_PLAIN_ITEM}(?:, ?{_PLAIN_ITEM})+)(?P<close>[)\]]|\\\}})",
    re.ASCII,
)
_WHOLE = re.compile(r" ?-?\d+", re.ASCII)
_COMMA_DIGIT = re.compile(r",\d", re.ASCII)
_BRACKETS = ("()", "(]", "[)", "[]", r"\{\}")


class NeedsAlgebraError(Exception):
    """The verdict depends on expressions that are no plain numbers."""


class Algebra(Protocol):
    """What only a computer algebra system decides. Each may raise NotReadableError."""

    def same_expression(self, gold: str, answer: str) -> Equivalence: ...

    def same_equation(self, gold: Equation, answer: Equation) -> Equivalence: ...

    def same_relation(self, gold: Relation, answer: Relation) -> Equivalence: ...

    def same_region(self, gold: Node, answer: Node) -> Equivalence: ...


def decide_quickly(gold: str, answer: str) -> Equivalence | None:
    """The verdict where it needs no algebra, else None. Safe on any text, in time that its length
    bounds."""
    try:
        return compare_answers(gold, answer, None)
    except NeedsAlgebraError:
        return None


def compare_answers(gold: str, answer: str, algebra: Algebra | None) -> Equivalence:
    """The verdict on an answer as extracted. With an algebra it may take any amount of time and
    memory; without one NeedsAlgebraError is raised where it would be asked."""
    if max(len(gold), len(answer)) > 4 * MAX_ANSWER:
        return "equal" if gold == answer else "undecided"
    if _PLAIN_NUMBER.fullmatch(gold) and _PLAIN_NUMBER.fullmatch(answer):
        return _verdict(Fraction(gold) == Fraction(answer))
    ours, theirs = clean(gold), clean(answer)
    if ours == theirs:
        return "equal"
    if not theirs:
        return "different"
    if max(len(ours), len(theirs)) > MAX_ANSWER:
        return "undecided"
    items = _same_plain_items(ours, theirs)
    if items is not None:
        return items
    first, second = number(ours), number(theirs)
    if first is not None and second is not None:
        return _verdict(first == second)
    choice = _same_choice(ours, theirs)
    return choice or compare_readings(ours, theirs, algebra)


def compare_readings(gold: str, answer: str, algebra: Algebra | None) -> Equivalence:
    """The verdict on two answers in the spelling of `clean`, read into trees whatever they are: the
    rule from which the shortcuts of `compare_answers` may not depart."""
    ours, theirs = _without_label(gold), _without_label(answer)
    try:
        gold_node = read(ours)
    except NotReadableError:
        return "undecided"
    try:
        answer_node = read(theirs)
    except NotReadableError:
        return "different" if isinstance(gold_node, Words) else "undecided"
    return _Comparison(algebra).same(gold_node, answer_node)


def _same_plain_items(gold: str, answer: str) -> Equivalence | None:
    """Two tuples, intervals or sets of plain numbers, as reading and comparing them would decide;
    None for anything else."""
    ours, theirs = _plain_items(gold), _plain_items(answer)
    if ours is None or theirs is None:
        return None
    if ours[0] == theirs[0] == r"\{\}":
        return _verdict(set(ours[1]) == set(theirs[1]))
    return None if r"\{\}" in (ours[0], theirs[0]) else _verdict(ours == theirs)


def _plain_items(text: str) -> tuple[str, list[Fraction | int]] | None:
    """The brackets and the values of a tuple, interval or set of at most 20 plain numbers."""
    match = _PLAIN_ITEMS.fullmatch(text) if len(text) <= _MAX_PLAIN_CHARACTERS else None
    if match is None or match["open"] + match["close"] not in _BRACKETS:
        return None
    if ", " in text and _COMMA_DIGIT.search(text):
        return None  # the commas without a space may group thousands
    values: list[Fraction | int] = []
    for item in match["items"].split(","):
        value = int(item) if _WHOLE.fullmatch(item) else number(item)
        if value is None or len(values) == _MAX_PLAIN_ITEMS:
            return None
        values.append(value)
    return match["open"] + match["close"], values


_LETTER = re.compile(
    r"(?:\\text\{)?(?:(?:the|my)?\s*(?:final|correct)?\s*(?:answer|option|choice)\s*(?:is|:)?\s*)?\}?"
    r"(?:\\text\{)?\(?(?P<letter>[A-Ja-j])\)?\}?",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"(?:\\text\{)?\s*\((?P<round>[A-J])\)\s*\}?\s*(?P<rest>.+)"
    r"|(?:\\text\{)?(?P<plain>[A-Ja-j])\s*(?:\)|[.:](?=\s|\}|$))\}?(?P<tail>.*)",
    re.DOTALL,
)


def _same_choice(gold: str, answer: str) -> Equivalence | None:
    """Two letters of a multiple choice, bare or with what they stand for; None if one is no
    letter."""
    ours, theirs = _letter(gold), _letter(answer)
    if ours is None or theirs is None:
        return None
    bare = _LETTER.fullmatch(gold) or _LETTER.fullmatch(answer)
    if not bare and ours == theirs:
        return None  # what they stand for decides
    return "equal" if ours == theirs else "different"


def _letter(text: str) -> str | None:
    if bare := _LETTER.fullmatch(text):
        return bare["letter"].upper()
    if label := _LABEL.fullmatch(text):
        return (label["round"] or label["plain"]).upper()
    return None


def _without_label(text: str) -> str:
    """`42` of `(C) 42`."""
    label = _LABEL.fullmatch(text)
    rest = (label["rest"] or label["tail"]).strip() if label else ""
    return rest if label and label["round"] and rest else text


class _Comparison:
    """Verdicts on pairs of trees."""

    def __init__(self, algebra: Algebra | None) -> None:
        self._algebra = algebra

    def same(self, gold: Node, answer: Node) -> Equivalence:
        match gold, answer:
            case Equation(), Equation():
                return self._same_equation(gold, answer)
            case Equation(), _:
                return self._same_as_equation(gold, answer, is_gold=True)
            case _, Equation():
                return self._same_as_equation(answer, gold, is_gold=False)
            case ((Expression() | Quantity() | Residue() | Clock() | Ratio() | Based()), _):
                return self._same_single(gold, answer)
            case Words(), Words():
                return _same_words(gold, answer)
        return self._same_many(gold, answer)

    def _same_single(self, gold: Node, answer: Node) -> Equivalence:
        """Of which the known one is a single value."""
        match gold, answer:
            case Expression(), Expression():
                return self._same_text(gold.text, answer.text)
            case Quantity(), Quantity():
                return self._same_quantity(gold, answer)
            case Residue(), Residue():
                return self._same_residue(gold, answer)
            case Clock(), Clock():
                return _same_clock(gold, answer)
            case Ratio(), Ratio():
                return self._same_ratio(gold.terms, answer.terms)
            case Based(), Based():
                return _same_based(gold, answer)
        return self._same_many(gold, answer)

    def _same_many(self, gold: Node, answer: Node) -> Equivalence:  # noqa: C901 (a case a kind)
        """Of which the known one has parts, or the two are of different kinds."""
        match gold, answer:
            case Listing(), Listing():
                return self._same_multiset(gold.items, answer.items)
            case ((SetOf() | Listing()), (SetOf() | Listing())):
                return self._same_set(gold.items, answer.items)
            case Group(), Group():
                return self._same_group(gold, answer)
            case Matrix(), Matrix():
                return self._same_matrix(gold, answer)
            case Assignment(), Assignment():
                same = self._all_same(gold.values, answer.values)
                return same if gold.names == answer.names else "different"
            case Relation(), Relation():
                return self._same_relation(gold, answer)
        if _is_region(gold) and _is_region(answer):
            return self._same_region(gold, answer)
        for first, second in ((gold, answer), (answer, gold)):
            verdict = self._same_across(first, second)
            if verdict is not None:
                return verdict
        may_be_computed = Expression | Group
        for first, second in ((gold, answer), (answer, gold)):
            if isinstance(first, Matrix | Ratio) and isinstance(second, may_be_computed):
                return "different" if _is_other_number(first, second) else "undecided"
        return "different"

    def _same_across(  # noqa: C901 (a case for each pair of kinds)
        self, first: Node, second: Node
    ) -> Equivalence | None:
        """Different kinds that may mean the same, in this order; None for all others."""
        match first, second:
            case SetOf(), Expression() | Quantity() | Group() | Matrix() if len(first.items) == 1:
                return self.same(first.items[0], second)
            case Expression(), Listing() | SetOf() if first.items:
                items = list(map(read, first.items))
                return self._same_multiset(items, second.items)
            case Words(), Expression() if first.letters and _has_letters(second.text):
                return self._same_text(first.letters, second.text)
            case SetOf(items=()), Words():
                return "undecided" if second.text == NO_SOLUTION else "different"
            case Quantity(), Expression():
                return self._same_with_unit(first, second)
            case Residue(), Expression():
                return self._same_with_modulus(first, second)
            case Based(), Expression():
                value = number(second.text)
                return "undecided" if value == first.value else "different"
            case Group(brackets="()"), Assignment():
                return self._all_same(first.items, second.values)
            case Group(brackets="()"), Matrix() if all(len(row) == 1 for row in second.rows):
                return self._all_same(first.items, [row[0] for row in second.rows])
            case Group(brackets="()"), Listing():
                same = self._all_same(first.items, second.items)
                return "undecided" if same == "equal" else same
            case Assignment(), Listing():
                same = self._same_multiset(first.values, second.items)
                return "undecided" if same == "equal" else same
            case Clock(half=""), Ratio():
                hours, minutes = divmod(first.minutes, 60)
                return self._same_ratio((str(hours), str(minutes)), second.terms)
        return None

    def _same_text(self, gold: str, answer: str) -> Equivalence:
        """Two expressions; plain numbers are compared without algebra."""
        if gold == answer or (
            gold.replace(" ", "") == answer.replace(" ", "")
            and not (re.search(r"\d \d", gold + "|" + answer))
        ):
            return "equal"
        ours, theirs = number(gold), number(answer)
        if ours is not None and theirs is not None:
            return _verdict(ours == theirs)
        verdict = same_normal_form(gold, answer)
        return verdict or self._require_algebra().same_expression(gold, answer)

    def _require_algebra(self) -> Algebra:
        if self._algebra is None:
            raise NeedsAlgebraError
        return self._algebra

    # Values with something beside them

    def _same_quantity(self, gold: Quantity, answer: Quantity) -> Equivalence:
        angles = {gold.unit.dimensions, answer.unit.dimensions}
        if gold.unit.is_angle_in_degrees and answer.unit.is_angle_in_radians:
            return self._same_text(_in_radians(gold.value), answer.value)
        if gold.unit.is_angle_in_radians and answer.unit.is_angle_in_degrees:
            return self._same_text(gold.value, _in_radians(answer.value))
        if len(angles) > 1:
            return "different"
        if gold.unit.size == answer.unit.size:
            return self._same_text(gold.value, answer.value)
        return self._same_text(
            _in_base_units(gold.value, gold.unit), _in_base_units(answer.value, answer.unit)
        )

    def _same_with_unit(self, quantity: Quantity, plain: Expression) -> Equivalence:
        """A unit on one side only: the number decides. A percentage is also its value, an angle in
        degrees also its size in radians."""
        same = self._same_text(quantity.value, plain.text)
        if quantity.unit.scale > 1:
            scaled = self._same_text(f"({quantity.value})\\cdot{quantity.unit.scale}", plain.text)
            # A plain 5 does not say whether "5 million" was asked for in millions.
            return "undecided" if same == "equal" else scaled
        if quantity.unit.is_percentage:
            value, percent = number(plain.text), number(quantity.value)
            if same == "equal" and value is not None and percent is not None and 0 < abs(value) < 1:
                return "undecided"  # 0.5 does not say what "0.5%" means
            return _any_of([same, self._same_text(_hundredth(quantity.value), plain.text)])
        exact = number(quantity.value) is not None and number(plain.text) is not None
        # An exact number of degrees is an irrational number of radians (but for 0).
        if quantity.unit.is_angle_in_degrees and same == "different" and not exact:
            return self._same_text(_in_radians(quantity.value), plain.text)
        return same

    def _same_residue(self, gold: Residue, answer: Residue) -> Equivalence:
        if number(gold.modulus) != number(answer.modulus):
            return "different"
        same = self._same_text(gold.value, answer.value)
        congruent = _congruent(gold.value, answer.value, gold.modulus)
        return same if congruent is None else _verdict(congruent)

    def _same_with_modulus(self, residue: Residue, plain: Expression) -> Equivalence:
        """A modulus on one side only: the number decides, but a congruent one is not refused."""
        same = self._same_text(residue.value, plain.text)
        congruent = _congruent(residue.value, plain.text, residue.modulus)
        return "undecided" if same == "different" and congruent else same

    def _same_ratio(self, gold: Sequence[str], answer: Sequence[str]) -> Equivalence:
        """Proportional terms."""
        if len(gold) != len(answer):
            return "different"
        ours = list(map(number, gold))
        theirs = list(map(number, answer))
        if None in ours or None in theirs:
            return _all_of(
                self._same_text(f"({gold[0]})({b})", f"({answer[0]})({a})")
                for a, b in zip(gold[1:], answer[1:], strict=True)
            )
        factors = [a * theirs[0] == b * ours[0] for a, b in zip(ours, theirs, strict=True)]  # type: ignore[operator]
        return _verdict(all(factors))

    # Equations, inequalities, regions

    def _same_as_equation(self, equation: Equation, other: Node, is_gold: bool) -> Equivalence:
        """An equation against a value: whether it is what the equation says."""
        left = equation.sides[0]
        values = equation.sides[1:]
        if not equation.is_exact:
            return self._same_as_approximation(equation, other, is_gold)
        if _is_name(left):
            pass
        elif _has_letters(left):
            if is_gold or not _is_compound_name(left):
                return "undecided" if _is_value(other) else "different"
        else:
            values = equation.sides
        # Sides without letters must agree with each other, the last one is the value.
        value_sides = [side for side in values[:-1] if not _has_letters(side)] + [values[-1]]
        verdicts = []
        for side in value_sides:
            node = read(side)
            verdicts.append(self.same(node, other) if is_gold else self.same(other, node))
        return _all_of(verdicts)

    def _same_as_approximation(self, equation: Equation, other: Node, is_gold: bool) -> Equivalence:
        """`\\sqrt{2} \\approx 1.41`: either side, if they are near each other."""
        sides = [side for side in equation.sides if not _is_name(side)]
        if len(sides) > 2:
            return "undecided"
        verdicts = []
        for side in sides:
            node = read(side)
            verdicts.append(self.same(node, other) if is_gold else self.same(other, node))
        if len(sides) == 2 and "equal" in verdicts:
            first, second = (number(side) for side in sides)
            if first is not None and second is not None:
                near = abs(first - second) <= _APPROXIMATION * max(abs(first), abs(second))
                return _verdict(near)
        return _any_of(verdicts)

    def _same_equation(self, gold: Equation, answer: Equation) -> Equivalence:
        if gold.is_exact != answer.is_exact:
            return "undecided"
        if _tight(gold.sides[0]) == _tight(answer.sides[0]) and not _is_number(gold.sides[0]):
            return self.same(read(gold.sides[-1]), read(answer.sides[-1]))
        if len(gold.sides) > 2 or len(answer.sides) > 2:
            return "undecided"
        if len({*_tight_sides(gold), *_tight_sides(answer)}) == 2:
            return "equal"  # the sides swapped
        pairs = (gold.sides, answer.sides)
        if all(NAME.fullmatch(name) and _is_number(value) for name, value in pairs):
            return "different"
        return self._require_algebra().same_equation(gold, answer)

    def _same_relation(self, gold: Relation, answer: Relation) -> Equivalence:
        if (
            len(gold.operators) == 1
            and len(answer.operators) == 1
            and _tight_sides(gold) == _tight_sides(answer)
        ):
            return _verdict(gold.operators == answer.operators)
        return self._require_algebra().same_relation(gold, answer)

    def _same_region(self, gold: Node, answer: Node) -> Equivalence:
        """Sets of real numbers: part by part, else by algebra."""
        if gold == answer:
            return "equal"
        if (
            isinstance(gold, Compound)
            and isinstance(answer, Compound)
            and gold.operator == answer.operator == "union"
            and len(gold.items) == len(answer.items)
            and not any(isinstance(item, Relation) for item in (*gold.items, *answer.items))
            and self._same_multiset(gold.items, answer.items) == "equal"
        ):
            return "equal"
        for first, second in ((gold, answer), (answer, gold)):
            if isinstance(first, SetOf) and isinstance(second, Group):
                same = self._same_set_as_interval(first, second)
                if same is not None:
                    return same
        return self._require_algebra().same_region(gold, answer)

    def _same_set_as_interval(self, finite: SetOf, interval: Group) -> Equivalence | None:
        """A set of plain numbers and an interval between two, which is empty or infinite unless it
        is `[3, 3]`; None for any other."""
        values: list[Fraction] = []
        for item in (*interval.items, *finite.items):
            value = number(item.text) if isinstance(item, Expression) else None
            if value is None:
                return None
            values.append(value)
        low, high, *members = values
        is_point = low == high and interval.brackets == "[]"
        elements = {low} if is_point else set()
        return _verdict(low >= high and set(members) == elements)

    # Several parts

    def _same_group(self, gold: Group, answer: Group) -> Equivalence:
        if len(gold.items) != len(answer.items) or gold.brackets != answer.brackets:
            return "different"
        if gold.variable and answer.variable and gold.variable != answer.variable:
            return "different"
        return self._all_same(gold.items, answer.items)

    def _same_matrix(self, gold: Matrix, answer: Matrix) -> Equivalence:
        if list(map(len, gold.rows)) != list(map(len, answer.rows)):
            return "different"
        return _all_of(map(self._all_same, gold.rows, answer.rows))

    def _all_same(self, gold: Sequence[Node], answer: Sequence[Node]) -> Equivalence:
        if len(gold) != len(answer):
            return "different"
        return _all_of(map(self.same, gold, answer))

    def _same_multiset(self, gold: Sequence[Node], answer: Sequence[Node]) -> Equivalence:
        """Matches items one to one."""
        if len(gold) != len(answer):
            return "different"
        if len(gold) * len(answer) > _MAX_COMPARISONS:
            return "undecided"
        free = dict(enumerate(answer))
        for item in gold:
            verdicts: set[Equivalence] = set()
            for place, other in free.items():
                same = self.same(item, other)
                verdicts.add(same)
                if same == "equal":
                    del free[place]
                    break
            else:
                return "undecided" if "undecided" in verdicts else "different"
        return "equal"

    def _same_set(self, gold: Sequence[Node], answer: Sequence[Node]) -> Equivalence:
        """Matches each item to some item of the other side."""
        if bool(gold) != bool(answer):
            return "different"
        if len(gold) * len(answer) > _MAX_COMPARISONS:
            return "undecided"
        rows: list[list[Equivalence]] = []
        for item in gold:
            rows.append([self.same(item, other) for other in answer])
        columns = zip(*rows, strict=True)
        return _all_of(map(_any_of, [*rows, *columns]))


def _same_words(gold: Words, answer: Words) -> Equivalence:
    if gold.text == answer.text:
        return "equal"
    if gold.letters and sorted(gold.letters) == sorted(answer.letters):
        return "undecided"  # `xy` and `yx` may be products
    return "different"


def _same_clock(gold: Clock, answer: Clock) -> Equivalence:
    if gold.half and answer.half:
        return _verdict(gold == answer)
    ours, theirs = gold.minutes % 720, answer.minutes % 720
    if ours != theirs:
        return "different"
    if gold.half == answer.half:
        # 2:30 may be the one or the other; from 13:00 on a time is of 24 hours.
        return "equal" if gold.minutes == answer.minutes else "undecided"
    with_half, without_half = (gold, answer) if gold.half else (answer, gold)
    if without_half.minutes >= 780 and with_half.half == "am":
        return "different"
    return "equal"


def _same_based(gold: Based, answer: Based) -> Equivalence:
    """In one base the digits decide. In two the value may be right and the base not the wanted
    one."""
    if gold.base == answer.base:
        return _verdict(gold.digits == answer.digits)
    return "undecided" if gold.value == answer.value else "different"


def _congruent(first: str, second: str, modulus: str) -> bool | None:
    """Whether two whole numbers are congruent; None if one is no whole number."""
    values: list[int] = []
    for text in (first, second, modulus):
        value = number(text)
        if value is None or value.denominator != 1:
            return None
        values.append(value.numerator)
    return (values[0] - values[1]) % values[2] == 0 if values[2] else None


def _is_other_number(node: Matrix | Ratio, value: Node) -> bool:
    """Whether a plain number is neither a matrix of one cell nor the quotient of a ratio."""
    plain = number(value.text) if isinstance(value, Expression) else None
    if plain is None:
        return False
    if isinstance(node, Matrix):
        return sum(map(len, node.rows)) > 1
    terms = list(map(number, node.terms))
    if len(terms) != 2 or terms[0] is None or terms[1] is None:
        return False
    return terms[0] != plain * terms[1]


def _is_region(node: Node) -> bool:
    """Whether a node can be a set of real numbers, and is not a set or a tuple only."""
    if isinstance(node, Group):
        return len(node.items) == 2
    return isinstance(node, Compound | Relation | AllReals | SetOf)


def _is_value(node: Node) -> bool:
    return isinstance(node, Expression | Quantity)


def _is_number(text: str) -> bool:
    return number(clean(text)) is not None


_NAMES_OF_VALUES = re.compile(
    r"\\angle.*|m\\angle.*|\\measuredangle.*|\\text\{[^{}]*\}|[A-Za-z]'?\([^()]*\)|[A-Za-z]{3,}"
)


def _is_name(text: str) -> bool:
    """Whether the left side of an equation names what the right side is."""
    return bool(NAME.fullmatch(text) or _NAMES_OF_VALUES.fullmatch(text))


def _letters(text: str) -> set[str]:
    bare = re.sub(r"\\[A-Za-z]+", " ", text)
    return set(re.findall(r"[A-Za-z]", bare)) | set(re.findall(r"\\(?:theta|alpha|beta)", text))


def _has_letters(text: str) -> bool:
    return bool(_letters(text) - {"e", "i"})


def _is_compound_name(text: str) -> bool:
    """Whether a side holds several names (`m + n`): one alone would be determined by the equation
    to another value than the right side's (`2x = 5`)."""
    return len(_letters(text)) > 1


def _tight(text: str) -> str:
    return text.replace(" ", "")


def _tight_sides(node: Equation | Relation) -> list[str]:
    return list(map(_tight, node.sides))


def _in_radians(value: str) -> str:
    return rf"({value})\cdot\frac{{\pi}}{{180}}"


def _hundredth(value: str) -> str:
    exact = number(value)
    return rf"({value})\cdot\frac{{1}}{{100}}" if exact is None else _fraction(exact / 100)


def _in_base_units(value: str, unit: Unit) -> str:
    exact = number(value)
    if exact is None:
        return rf"({value})\cdot{_fraction(unit.size)}"
    return _fraction(exact * unit.size)


def _fraction(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _verdict(equal: bool) -> Equivalence:
    return "equal" if equal else "different"


def _all_of(verdicts: Iterable[Equivalence]) -> Equivalence:
    """Equal if all are, different if one is."""
    worst: Equivalence = "equal"
    for verdict in verdicts:
        if verdict == "different":
            return "different"
        if verdict == "undecided":
            worst = "undecided"
    return worst


def _any_of(verdicts: Iterable[Equivalence]) -> Equivalence:
    """Equal if one is, different if all are."""
    best: Equivalence = "different"
    for verdict in verdicts:
        if verdict == "equal":
            return "equal"
        if verdict == "undecided":
            best = "undecided"
    return best
