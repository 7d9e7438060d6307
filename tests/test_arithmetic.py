"""Laws of plain arithmetic: Python's precedence and nothing else of its syntax."""

from fractions import Fraction

import pytest

from tracerl.arithmetic import Operation, evaluate, numbers_in, parse_arithmetic

VALUES = [
    ("7", 7),
    ("007", 7),
    ("2-3-4", -5),
    ("2-(3-4)", 3),
    ("8/4/2", 1),
    ("1+2*3", 7),
    ("(1+2)*3", 9),
    (" 1 +\n2 ", 3),
    ("1/3", Fraction(1, 3)),
    ("999999*999999", 999999**2),
    ("+".join(["1"] * 100), 100),
    ("(" * 90 + "5" + ")" * 90, 5),
    ("5/(3-3)", None),
    ("0*(1/0)", None),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_an_expression_has_the_value_of_arithmetic(text, value):
    tree = parse_arithmetic(text)
    assert tree is not None
    assert evaluate(tree) == value


NOT_ARITHMETIC = [
    "",
    " ",
    "-3",
    "+3",
    "2**3",
    "7//2",
    "7%2",
    "1.5",
    "1e3",
    "1_000",
    "0x10",
    "1j",
    "x",
    "abs(1)",
    "(1)(2)",
    "()",
    "(1,)",
    "1,2",
    "1 2",
    "1+",
    "(1+2",
    "1+2)",
    "1=1",
    "1 if 1 else 2",
    "1#2",
    "1;2",
    "١+١",  # noqa: RUF001
    "1234567",
    "(" * 199 + "1",
    "1+" * 100 + "1",
    "__import__('os')",
]


@pytest.mark.parametrize("text", NOT_ARITHMETIC)
def test_anything_else_is_refused(text):
    assert parse_arithmetic(text) is None


def test_a_tree_keeps_the_order_of_its_numbers():
    tree = parse_arithmetic("3*(5+7)-3")
    product = Operation(left=3, operator="*", right=Operation(left=5, operator="+", right=7))
    assert tree == Operation(left=product, operator="-", right=3)
    assert numbers_in(tree) == [3, 5, 7, 3]
