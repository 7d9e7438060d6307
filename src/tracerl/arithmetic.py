"""Plain arithmetic as a tree: whole numbers, `+ - * /` and brackets, parsed by Python's own parser
and never evaluated by it.

Python's syntax is wider, so characters are checked first and every node of the syntax tree after:
no signs, no powers, no names, no calls.
"""

import ast
import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 200
MAX_DIGITS = 6  # so that no number costs anything

_TEXT = re.compile(r"[\d\s+\-*/()]+", re.ASCII)
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}", re.ASCII)
_LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)", re.ASCII)
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Two trees joined by one of `+ - * /`."""

    left: "Tree"
    operator: str
    right: "Tree"


Tree = int | Operation


def parse_arithmetic(text: str) -> Tree | None:
    """The tree of an expression of at most 200 characters; None if the text is anything else."""
    if len(text) > MAX_CHARACTERS or not _TEXT.fullmatch(text) or _LONG_NUMBER.search(text):
        return None
    line = _LEADING_ZEROS.sub("", " ".join(text.split()))
    try:
        return _tree(ast.parse(line, mode="eval").body)
    except (SyntaxError, MemoryError):  # MemoryError: more brackets than Python's parser nests
        return None


def _tree(node: ast.expr) -> Tree | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return None
    left, right = _tree(node.left), _tree(node.right)
    if left is None or right is None:
        return None
    return Operation(left=left, operator=_OPERATORS[type(node.op)], right=right)


def apply_operator(left: Fraction, operator: str, right: Fraction) -> Fraction | None:
    """The value of an operation, None for a division by zero."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    return left / right if right else None


def evaluate(tree: Tree) -> Fraction | None:
    """The exact value, None if something in it is divided by zero."""
    if isinstance(tree, int):
        return Fraction(tree)
    left, right = evaluate(tree.left), evaluate(tree.right)
    if left is None or right is None:
        return None
    return apply_operator(left, tree.operator, right)


def numbers_in(tree: Tree) -> list[int]:
    """The numbers of a tree, from left to right."""
    if isinstance(tree, int):
        return [tree]
    return [*numbers_in(tree.left), *numbers_in(tree.right)]
