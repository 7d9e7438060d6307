"""Exact verdicts on expressions that need no computer algebra.

What is read here: sums and products of rational numbers, letters, `\\pi`, `i` and square roots of
whole numbers, with whole powers, divided by what holds no letter and no sum. Each such expression
is a sum of rational multiples of products

    sqrt(n) * i^a * pi^k * letters,    n without square factors, a in {0, 1}.

These products are linearly independent over the rational numbers: the roots are, pi is
transcendental, and letters are any real numbers. So two expressions are equal if and only if their
rational factors are. Everything else is left to `algebra.py`, also what is read in two ways
(`1/2x`, `3\\frac{5}{2}`, `x(3)`) and letters that may name something else (`e`, `d`, `f`).
"""

import math
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from tracerl.rewards.verify.math import Equivalence

_MAX_CHARACTERS = 300
_MAX_TERMS = 100
_MAX_DEPTH = 12
_MAX_POWER = 12
_MAX_BITS = 400  # of a rational factor

_TOKEN = re.compile(
    r"(?P<number>\d{1,12}(?:\.\d{1,12})?(?!\.))|(?P<letter>[abckmnpqrstuvwxyzi])"
    r"|\\(?P<command>pi|cdot|times|frac|sqrt)(?![A-Za-z]) ?|(?P<sign>[-+*/^(){}])",
    re.ASCII,
)
_LETTERS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_WHOLE = re.compile(r"\d{1,6}", re.ASCII)


class _OtherFormError(Exception):
    """The text is no expression of this module's form."""


@dataclass(frozen=True, order=True)
class _Product:
    """sqrt(root) * i^imaginary * the powers of letters and pi, without a rational factor."""

    root: int = 1
    imaginary: int = 0
    powers: tuple[tuple[str, int], ...] = ()
    """(name, exponent other than 0), by name."""


_Sum = dict[_Product, Fraction]
_ONE = _Product()


def same_normal_form(gold: str, answer: str) -> Equivalence | None:
    """The verdict on two expressions in the spelling of `clean`; None if one is of another form."""
    try:
        ours, theirs = _read(gold), _read(answer)
    except _OtherFormError:
        return None
    return "equal" if ours == theirs else "different"


def _read(text: str) -> _Sum:
    """Raises _OtherFormError."""
    if len(text) > _MAX_CHARACTERS or not _may_be_products(text):
        raise _OtherFormError
    tokens: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise _OtherFormError
        tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
        place = match.end()
    reader = _Reader(tokens)
    value = reader.sum(0)
    reader.expect_end()
    return value


def _may_be_products(text: str) -> bool:
    """Whether letters side by side are a product of letters, and no name."""
    for match in _LETTERS.finditer(text):
        if len(match.group()) > 3 or "i" in match.group():
            return False
    return True


class _Reader:
    """Recursive descent over tokens, each (kind, text)."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._place = 0

    def sum(self, depth: int) -> _Sum:
        if depth > _MAX_DEPTH:
            raise _OtherFormError
        total: _Sum = {}
        sign = self._take_sign() or 1
        while True:
            for product, factor in self._term(depth).items():
                total[product] = total.get(product, Fraction(0)) + sign * factor
            next_sign = self._take_sign()
            if next_sign is None:
                return _without_zeros(total)
            sign = next_sign

    def expect_end(self) -> None:
        self._expect("end", "")

    def _term(self, depth: int) -> _Sum:
        value = self._power(depth, is_first=True)
        while True:
            kind, text = self._tokens[self._place]
            if (kind, text) == ("sign", "/"):
                return _multiply(value, self._inverse_of_number())
            explicit = text in ("*", "cdot", "times")
            if explicit:
                self._place += 1
            elif kind in ("end", "number") or text in ("+", "-", ")", "}"):
                if kind == "number":
                    raise _OtherFormError  # `x2`
                return value
            value = _multiply(value, self._power(depth, is_first=explicit))

    def _inverse_of_number(self) -> _Sum:
        """`/2`, after which the term ends: `1/2x` may mean two things."""
        self._place += 1
        divisor = self._number()
        if self._tokens[self._place][1] not in ("", "+", "-", ")", "}") or not divisor:
            raise _OtherFormError
        return {_ONE: 1 / divisor}

    def _power(self, depth: int, is_first: bool) -> _Sum:
        """A factor with its exponent. is_first: no factor stands right before it, so that it may be
        a number, or a fraction that is no part of a mixed number."""
        kind, text = self._tokens[self._place]
        if not is_first and (kind == "number" or (text == "frac" and self._follows_number())):
            raise _OtherFormError
        base = self._factor(depth)
        if self._tokens[self._place] != ("sign", "^"):
            return base
        self._place += 1
        is_braced = self._tokens[self._place] == ("sign", "{")
        self._place += is_braced
        exponent = self._tokens[self._place][1]
        if not _WHOLE.fullmatch(exponent) or not 1 <= int(exponent) <= _MAX_POWER:
            raise _OtherFormError
        if not is_braced and len(exponent) > 1:
            raise _OtherFormError
        self._place += 1
        if is_braced:
            self._expect("sign", "}")
        if self._tokens[self._place] == ("sign", "^"):
            raise _OtherFormError
        return _raise(base, int(exponent))

    def _follows_number(self) -> bool:
        return self._place > 0 and self._tokens[self._place - 1][0] == "number"

    def _factor(self, depth: int) -> _Sum:
        kind, text = self._tokens[self._place]
        if kind == "number":
            return {_ONE: self._number()}
        self._place += 1
        if kind == "letter" and self._tokens[self._place] == ("sign", "("):
            raise _OtherFormError  # `x(3)` may be a function's value
        if text == "i":
            return {_Product(imaginary=1): Fraction(1)}
        if kind == "letter" or text == "pi":
            return {_Product(powers=((text, 1),)): Fraction(1)}
        if text == "(":
            value = self.sum(depth + 1)
            self._expect("sign", ")")
            return value
        if text == "sqrt":
            return self._root()
        if text == "frac":
            top = self._argument(depth)
            return _multiply(top, _inverse(self._argument(depth)))
        raise _OtherFormError

    def _number(self) -> Fraction:
        """A decimal before a bracket would be a repeating one."""
        kind, text = self._tokens[self._place]
        following = self._tokens[self._place + 1][1] if kind == "number" else ""
        if kind != "number" or ("." in text and following == "("):
            raise _OtherFormError
        self._place += 1
        return Fraction(text)

    def _root(self) -> _Sum:
        """`{12}` or a digit after `\\sqrt`."""
        is_braced = self._tokens[self._place] == ("sign", "{")
        self._place += is_braced
        text = self._tokens[self._place][1]
        if not _WHOLE.fullmatch(text) or (len(text) > 1 and not is_braced):
            raise _OtherFormError
        self._place += 1
        if is_braced:
            self._expect("sign", "}")
        outside, root = _split_square(int(text))
        return _without_zeros({_Product(root=root): Fraction(outside)})

    def _argument(self, depth: int) -> _Sum:
        """`{...}` after `\\frac`."""
        self._expect("sign", "{")
        value = self.sum(depth + 1)
        self._expect("sign", "}")
        return value

    def _take_sign(self) -> int | None:
        text = self._tokens[self._place][1]
        if text not in ("+", "-"):
            return None
        self._place += 1
        return 1 if text == "+" else -1

    def _expect(self, kind: str, text: str) -> None:
        if self._tokens[self._place] != (kind, text):
            raise _OtherFormError
        self._place += 1


def _multiply(first: _Sum, second: _Sum) -> _Sum:
    if len(first) * len(second) > _MAX_TERMS:
        raise _OtherFormError
    total: _Sum = {}
    for one, one_factor in first.items():
        for other, other_factor in second.items():
            product, factor = _multiply_products(one, other)
            value = total.get(product, Fraction(0)) + factor * one_factor * other_factor
            if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
                raise _OtherFormError
            total[product] = value
    return _without_zeros(total)


def _multiply_products(one: _Product, other: _Product) -> tuple[_Product, int]:
    """The product, and the whole factor that it leaves."""
    common = math.gcd(one.root, other.root)
    imaginary = one.imaginary + other.imaginary
    powers = Counter(dict(one.powers))
    for name, exponent in other.powers:
        powers[name] += exponent
    product = _Product(
        root=one.root * other.root // common**2,
        imaginary=imaginary % 2,
        powers=tuple(sorted(item for item in powers.items() if item[1])),
    )
    return product, -common if imaginary == 2 else common


def _raise(base: _Sum, exponent: int) -> _Sum:
    value = base
    for _ in range(exponent - 1):
        value = _multiply(value, base)
    return value


def _inverse(value: _Sum) -> _Sum:
    """Of one product without letters: `1/(3\\sqrt{2}\\pi)` is `\\sqrt{2}/(6\\pi)`."""
    if len(value) != 1:
        raise _OtherFormError
    ((product, factor),) = value.items()
    if product.imaginary or any(name != "pi" for name, _ in product.powers):
        raise _OtherFormError
    powers = tuple((name, -exponent) for name, exponent in product.powers)
    return {_Product(root=product.root, powers=powers): 1 / (factor * product.root)}


def _split_square(number: int) -> tuple[int, int]:
    """(a, b) with number = a^2 * b, b without square factors; (0, 1) for 0."""
    if number == 0:
        return 0, 1
    outside = 1
    divisor = 2
    while divisor * divisor <= number:
        while number % (divisor * divisor) == 0:
            number //= divisor * divisor
            outside *= divisor
        divisor += 1
    return outside, number


def _without_zeros(value: _Sum) -> _Sum:
    return {product: factor for product, factor in value.items() if factor}
