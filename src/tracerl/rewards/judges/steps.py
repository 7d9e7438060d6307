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
from dataclasses import replace
from fractions import Fraction

from tracerl import puzzles
from tracerl.arithmetic import Tree, apply_operator, evaluate, parse_arithmetic
from tracerl.types import Task

# The digits are bounded so that no number of a response costs anything.
_EQUATION = re.compile(r"(\d{1,6})([-+*/])(\d{1,6})=(-?\d{1,9})", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,9}", re.ASCII)
_SUM = re.compile(r"\d{1,6}(\+\d{1,6})*=", re.ASCII)
_NUMBERS = re.compile(r"\d{1,6}(,\d{1,6})*=-?\d{1,9}", re.ASCII)
_EXPRESSION = re.compile(r"[\d+*()-]+=", re.ASCII)


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
        # Every one of them: each changes what is left.
        true = [check(statement) for statement in statements]
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
        total = _number(statement) if equation is None else equation[1]
        if total is None or not pending:
            return False
        before, term = reached, pending.pop(0)
        reached = total
        return total == before + term and (equation is None or equation[0] == (before, "+", term))

    return check


def _arithmetic(task: Task) -> Checker | None:
    if not _EXPRESSION.fullmatch(task.prompt):
        return None
    problem = parse_arithmetic(task.prompt[:-1])
    if problem is None:
        return None
    tree: Tree = problem

    def check(statement: str) -> bool:
        nonlocal tree
        if statement.startswith("#"):
            value = _number(statement[1:])
            return value is not None and value == evaluate(tree)
        equation = _equation(statement)
        if equation is None:
            return False
        remaining = _solve(tree, *equation)
        if remaining is None:
            return False
        tree = remaining
        return _value(*equation[0]) == equation[1]

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
        return _value(first, operator, second) == value

    return check


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _value(left: int, operator: str, right: int) -> Fraction | None:
    return apply_operator(Fraction(left), operator, Fraction(right))


def _equation(text: str) -> tuple[tuple[int, str, int], int] | None:
    """((3, "*", 5), 15) of `3*5=15`."""
    match = _EQUATION.fullmatch(text)
    return ((int(match[1]), match[2], int(match[3])), int(match[4])) if match else None


def _solve(tree: Tree, operation: tuple[int, str, int], value: int) -> Tree | None:
    """The tree with the first place where this operation stands replaced by a value; None if it
    stands nowhere.

    The operands of + and * may be swapped.
    """
    if isinstance(tree, int):
        return None
    if isinstance(tree.left, int) and isinstance(tree.right, int):
        forms = {(tree.left, tree.operator, tree.right)}
        if tree.operator in "+*":
            forms.add((tree.right, tree.operator, tree.left))
        return value if operation in forms else None
    left = _solve(tree.left, operation, value)
    if left is not None:
        return replace(tree, left=left)
    right = _solve(tree.right, operation, value)
    return None if right is None else replace(tree, right=right)


_CHECKERS: dict[str, Callable[[Task], Checker | None]] = {
    "sums": _sums,
    "arithmetic": _arithmetic,
    "countdown": _countdown,
}
