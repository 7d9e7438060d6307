"""Laws of equations as worked steps: every step is true, the last one is the answer, and what is no
arithmetic is refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracerl.evaluation.equations import (
    Expression,
    Operation,
    parse_infix,
    parse_prefix,
    read_number,
    write_number,
    write_steps,
)

LEAVES = st.integers(0, 99).map(Fraction)


def _operations(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.builds(Operation, symbol=st.sampled_from("+-*"), left=inner, right=inner)


EXPRESSIONS = st.recursive(LEAVES, _operations, max_leaves=6)


def infix(expression: Expression) -> str:
    if isinstance(expression, Fraction):
        return str(expression)
    return f"({infix(expression.left)} {expression.symbol} {infix(expression.right)})"


def prefix(expression: Expression) -> str:
    if isinstance(expression, Fraction):
        return str(expression)
    return f"{expression.symbol} {prefix(expression.left)} {prefix(expression.right)}"


@given(EXPRESSIONS)
def test_both_notations_give_the_expression_that_was_written(expression: Expression) -> None:
    assert parse_infix(infix(expression)) == expression
    assert parse_prefix(prefix(expression)) == expression


@given(EXPRESSIONS)
def test_every_step_is_true_and_the_last_is_the_answer(expression: Expression) -> None:
    value = Fraction(eval(infix(expression)))
    steps, _, answer = write_steps(expression, value).rpartition("#### ")
    assert Fraction(answer) == value
    for step in filter(None, steps.strip().split("; ")):
        left, right = step.split(" = ")
        assert eval(left) == int(right)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("2 + 3 * 4", "3 * 4 = 12; 2 + 12 = 14 #### 14"),
        ("9 - 2 - 3", "9 - 2 = 7; 7 - 3 = 4 #### 4"),
        ("1 / 3", "1 / 3 = 0.3333 #### 0.3333"),
        ("(.5 + 2.50)", "0.5 + 2.5 = 3 #### 3"),
    ],
)
def test_operators_bind_as_in_arithmetic(text: str, steps: str) -> None:
    expression = parse_infix(text)
    assert write_steps(expression, Fraction(str(eval(text)))) == steps


@pytest.mark.parametrize(
    "text", ["", "2 +", "(2", "2)", "2 3", "x + 2", "__import__('os')", "-2", "(" * 9999, "2 ** 3"]
)
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"arithmetic|lacks|closed|characters"):
        parse_infix(text)


@pytest.mark.parametrize("text", ["", "+ 2", "2 3", "+ x 2", "+ 2 3 4", "+ 1/0 2"])
def test_what_is_no_prefix_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"arithmetic|lacks|number|zero"):
        parse_prefix(text)


def test_an_equation_that_gives_another_answer_or_none_is_refused() -> None:
    with pytest.raises(ValueError, match="gives 5, the answer is 6"):
        write_steps(parse_infix("2 + 3"), Fraction(6))
    with pytest.raises(ValueError, match="divides by zero"):
        write_steps(parse_infix("2 / (3 - 3)"), Fraction(6))


@pytest.mark.parametrize(
    ("text", "value"), [("1,000", "1000"), ("2.50", "2.5"), ("3/4", "0.75"), ("-7", "-7")]
)
def test_numbers_are_read_exactly_and_written_short(text: str, value: str) -> None:
    assert write_number(read_number(text)) == value
