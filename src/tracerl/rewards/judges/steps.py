"""The programmatic judge: is a written step of generated arithmetic true.

A step is true if it is one that the problem, with the steps written before it, calls for, and its
value is right. What it builds on is what was written, not what should have been: the steps that
follow from an untrue one are true again, so that an error is charged once, where it was made. A
true statement that the problem does not call for (`1+1=2`) is no step of it.

sums: `11` (or `4+7=11`) is what was reached so far plus the next term. arithmetic: `4*2=8` solves
an operation of what is left whose operands are numbers. countdown: `3*5=15` joins two of the
numbers that are left. `#16` must be the value of what is left (countdown: its answer).
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from tracerl import puzzles
from tracerl.types import Task

# The digits are bounded so that no number of a response costs anything.
_EQUATION = re.compile(r"(\d{1,6})([-+*/])(\d{1,6})=(-?\d{1,9})", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,9}", re.ASCII)
_SUM = re.compile(r"\d{1,6}(\+\d{1,6})*=", re.ASCII)
_NUMBERS = re.compile(r"\d{1,6}(,\d{1,6})*=-?\d{1,9}", re.ASCII)
_TOKEN = re.compile(r"\d{1,6}|[-+*()]", re.ASCII)


class Operation(NamedTuple):
    """Two trees and what joins them."""

    left: "Tree"
    operator: str
    right: "Tree"


# What is left of an arithmetic problem.
Tree = int | Operation
# Whether a statement is true; it is taken as written for those that follow.
Checker = Callable[[str], bool]


def step_scores(task: Task, chunks: Sequence[str]) -> list[float | None]:
    """A score per chunk of a response: 1 if it states something and all of it is true, else -1, 0
    if it is blank; None for other kinds.

    Statements end with `;` or a line break, and `#` begins one. A `;` alone is no step: were it
    neutral, writing it would pay against a step that may be wrong.
    """
    start = _CHECKERS.get(task.kind)
    check = start(task) if start is not None else None
    if check is None:
        return [None] * len(chunks)
    scores: list[float | None] = []
    for chunk in chunks:
        statements = [text.strip() for text in re.split(r"[;\n]|(?=#)", chunk) if text.strip()]
        true = [
            check(statement) for statement in statements
        ]  # every one of them: each changes what is left
        scores.append(0.0 if not chunk.strip() else 1.0 if true and all(true) else -1.0)
    return scores


def _sums(task: Task) -> Checker | None:
    if not _SUM.fullmatch(task.prompt):
        return None
    reached, *pending = (int(term) for term in task.prompt[:-1].split("+"))
    pending = pending or [0]  # the only total of one term is the term

    def check(statement: str) -> bool:
        nonlocal reached
        if statement.startswith("#"):
            return _number(statement[1:]) == reached + sum(pending)
        equation = _equation(statement)
        written = _number(statement) if equation is None else equation[1]
        if written is None or not pending:
            return False
        before, term = reached, pending.pop(0)
        reached = written
        return written == before + term and (equation is None or equation[0] == (before, "+", term))

    return check


def _arithmetic(task: Task) -> Checker | None:
    left = _read(task.prompt.removesuffix("="))
    if left is None:
        return None

    def check(statement: str) -> bool:
        nonlocal left
        if statement.startswith("#"):
            given = _number(statement[1:])
            return given is not None and left is not None and given == _value(left)
        equation = _equation(statement)
        if equation is None or left is None:
            return False
        left, found = _solved(left, *equation)
        return found and _apply(*equation[0]) == equation[1]

    return check


def _countdown(task: Task) -> Checker | None:
    if not _NUMBERS.fullmatch(task.spec):
        return None
    numbers = [int(number) for number in task.spec.partition("=")[0].split(",")]

    def check(statement: str) -> bool:
        if statement.startswith("#"):
            return puzzles.is_countdown_answer(task.spec, statement[1:])
        equation = _equation(statement)
        if equation is None:
            return False
        (first, operator, second), value = equation
        remaining = list(numbers)
        for operand in (first, second):
            if operand not in remaining:
                return False
            remaining.remove(operand)
        numbers[:] = [*remaining, value]
        return _apply(first, operator, second) == value

    return check


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _equation(text: str) -> tuple[tuple[int, str, int], int] | None:
    """((3, "*", 5), 15) of `3*5=15`."""
    match = _EQUATION.fullmatch(text)
    return ((int(match[1]), match[2], int(match[3])), int(match[4])) if match else None


def _apply(left: int, operator: str, right: int) -> Fraction | None:
    """The value of an operation, None for a division by zero."""
    if operator == "/":
        return Fraction(left, right) if right else None
    return Fraction({"+": left + right, "-": left - right, "*": left * right}[operator])


def _read(text: str) -> Tree | None:
    """The tree of a problem's expression, None if it is not one. Operators bind as usual, and from
    the left."""
    tokens = _TOKEN.findall(text)
    tree, place = _chain(tokens, 0, "+-") if "".join(tokens) == text else (None, 0)
    return tree if place == len(tokens) else None


def _chain(tokens: Sequence[str], place: int, operators: str) -> tuple[Tree | None, int]:
    """The sum (operators "+-") or product ("*") that begins at a place, and the place after it."""

    def part(place: int) -> tuple[Tree | None, int]:
        return _chain(tokens, place, "*") if operators == "+-" else _atom(tokens, place)

    tree, place = part(place)
    while tree is not None and place < len(tokens) and tokens[place] in operators:
        operator = tokens[place]
        other, place = part(place + 1)
        tree = None if other is None else Operation(tree, operator, other)
    return tree, place


def _atom(tokens: Sequence[str], place: int) -> tuple[Tree | None, int]:
    if place < len(tokens) and tokens[place].isdigit():
        return int(tokens[place]), place + 1
    if place < len(tokens) and tokens[place] == "(":
        tree, place = _chain(tokens, place + 1, "+-")
        return (tree, place + 1) if place < len(tokens) and tokens[place] == ")" else (None, place)
    return None, place


def _solved(tree: Tree, asked: tuple[int, str, int], value: int) -> tuple[Tree, bool]:
    """The tree with its first operation that is the one asked for replaced by a value, and whether
    there is one.

    The operands of + and * may be turned round.
    """
    if isinstance(tree, int):
        return tree, False
    if isinstance(tree.left, int) and isinstance(tree.right, int):
        ours = {
            tuple(tree),
            (tree.right, tree.operator, tree.left) if tree.operator in "+*" else tuple(tree),
        }
        return (value, True) if asked in ours else (tree, False)
    left, found = _solved(tree.left, asked, value)
    if found:
        return tree._replace(left=left), True
    right, found = _solved(tree.right, asked, value)
    return tree._replace(right=right), found


def _value(tree: Tree) -> int:
    if isinstance(tree, int):
        return tree
    left, right = _value(tree.left), _value(tree.right)
    return {"+": left + right, "-": left - right, "*": left * right}[tree.operator]


_CHECKERS: dict[str, Callable[[Task], Checker | None]] = {
    "sums": _sums,
    "arithmetic": _arithmetic,
    "countdown": _countdown,
}
