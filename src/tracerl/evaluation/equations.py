"""The equation of a word problem, as its published file has it, written out as worked steps.

Values are exact fractions; a step shows at most four decimals. Nothing is evaluated as code.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?|\.\d+)|([-+*/()]))")
_PRIORITY = {"+": 1, "-": 1, "*": 2, "/": 2}
_DECIMALS = 4
_LONGEST = 200  # characters of an equation


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Two values and what is done with them."""

    symbol: str
    """One of + - * /."""
    left: "Expression"
    right: "Expression"


Expression = Operation | Fraction


def parse_infix(text: str) -> Expression:
    """The expression of a text such as `( 8.0 - 2 ) * 3`. Raises ValueError for any other text."""
    tokens = _tokens(text)
    expression, end = _parse_sum(tokens, 0, 1)
    if end != len(tokens):
        raise ValueError(f"no arithmetic: {text[:80]!r}")
    return expression


def parse_prefix(text: str) -> Expression:
    """The expression of a text such as `* - 8.0 2 3`. Raises ValueError for any other text."""
    stack: list[Expression] = []
    for token in reversed(text.split()):
        if token not in _PRIORITY:
            stack.append(read_number(token))
            continue
        if len(stack) < 2:
            raise ValueError(f"an operator lacks a value: {text[:80]!r}")
        left = stack.pop()
        stack.append(Operation(symbol=token, left=left, right=stack.pop()))
    if len(stack) != 1:
        raise ValueError(f"no arithmetic: {text[:80]!r}")
    return stack[0]


def write_steps(expression: Expression, answer: Fraction) -> str:
    """One operation a step, innermost first: `8 - 2 = 6; 6 * 3 = 18 #### 18`.

    Raises ValueError if the expression does not give the answer (to a thousandth of it), or divides
    by zero.
    """
    steps: list[str] = []
    value = _evaluate(expression, steps)
    if abs(value - answer) > abs(answer) / 1000:
        raise ValueError(
            f"the equation gives {write_number(value)}, the answer is {write_number(answer)}"
        )
    return f"{'; '.join(steps)} #### {write_number(answer)}".strip()


def read_number(text: str) -> Fraction:
    """The value of a number such as `1,000`, `2.50` or `3/4`. Raises ValueError."""
    plain = text.strip().replace(",", "")
    if not re.fullmatch(r"[-+]?\d{1,30}(\.\d{0,30})?(/\d{1,30})?|[-+]?\.\d{1,30}", plain):
        raise ValueError(f"no number: {text[:80]!r}")
    above, _, below = plain.partition("/")
    if below and not int(below):
        raise ValueError(f"a division by zero: {text[:80]!r}")
    return Fraction(above) / Fraction(below or 1)


def write_number(value: Fraction) -> str:
    """The value with at most four decimals and no closing zeros."""
    digits = f"{float(round(value, _DECIMALS)):.{_DECIMALS}f}"
    if value.denominator == 1:
        return str(value.numerator)
    return digits.rstrip("0").rstrip(".")


def _evaluate(expression: Expression, steps: list[str]) -> Fraction:
    """The value; its operations are added to `steps`."""
    if isinstance(expression, Fraction):
        return expression
    left = _evaluate(expression.left, steps)
    right = _evaluate(expression.right, steps)
    value = _apply(expression.symbol, left, right)
    parts = [write_number(left), expression.symbol, write_number(right), "=", write_number(value)]
    steps.append(" ".join(parts))
    return value


def _apply(symbol: str, left: Fraction, right: Fraction) -> Fraction:
    if symbol == "+":
        return left + right
    if symbol == "-":
        return left - right
    if symbol == "*":
        return left * right
    if not right:
        raise ValueError("the equation divides by zero")
    return left / right


def _tokens(text: str) -> list[str]:
    if len(text) > _LONGEST:
        raise ValueError(f"an equation of {len(text)} characters")
    tokens = []
    end = 0
    text = text.rstrip()
    while end < len(text):
        match = _TOKEN.match(text, end)
        if match is None:
            raise ValueError(f"no arithmetic: {text[:80]!r}")
        tokens.append(match[1] or match[2])
        end = match.end()
    return tokens


def _parse_sum(tokens: Sequence[str], start: int, priority: int) -> tuple[Expression, int]:
    """The expression from `start` on whose operators have at least this priority, and its end."""
    left, end = _parse_value(tokens, start)
    while end < len(tokens) and _PRIORITY.get(tokens[end], 0) >= priority:
        symbol = tokens[end]
        right, end = _parse_sum(tokens, end + 1, _PRIORITY[symbol] + 1)
        left = Operation(symbol=symbol, left=left, right=right)
    return left, end


def _parse_value(tokens: Sequence[str], start: int) -> tuple[Expression, int]:
    """The number or the bracket at `start`, and where it ends."""
    token = tokens[start] if start < len(tokens) else ""
    if token == "(":
        inner, end = _parse_sum(tokens, start + 1, 1)
        if end >= len(tokens) or tokens[end] != ")":
            raise ValueError("a bracket is not closed")
        return inner, end + 1
    if not token or token in "+-*/)":
        raise ValueError("an operator lacks a value")
    return Fraction(token), start + 1
