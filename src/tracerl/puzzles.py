"""Puzzles judged by their rules, not against a stored answer: countdown and 4 x 4 sudoku.
Generators with worked solutions, and the rules.

countdown: `3,5,7=22`, each given number to be used exactly once, with + - * / and brackets. Its
solution is worked one operation at a time on what is left, `3*5=15;15+7=22;#3*5+7`; every value on
the way is a whole number from 0 to 99. Difficulty is how many numbers there are (3, 4).

sudoku: sixteen digits, 0 for a blank, rows joined: `1030040000100000=`. Its solution fills one
blank at a time, always one whose row, column and box leave a single digit, `r1c2=2;...;#1234...`,
so that each step follows from the board so far. Difficulty is the number of blanks. Puzzles with
several valid grids accept each of them.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from tracerl.arithmetic import evaluate, numbers_in, parse_arithmetic

_SIGNS = {"×": "*", "÷": "/", "−": "-"}  # noqa: RUF001
_SIGN = re.compile("|".join(_SIGNS))
_LARGEST = 99


# Countdown


def countdown(difficulty: int, rng: np.random.Generator) -> tuple[str, str, str, str]:
    """(prompt, answer, solution, spec) of a random solvable problem with `difficulty` numbers."""
    while True:
        numbers = [int(n) for n in rng.integers(1, 20, size=difficulty)]
        result = _work_out(numbers, rng)
        if result is not None:
            value, expression, steps = result
            spec = f"{','.join(map(str, numbers))}={value}"
            return (
                spec + "?",
                expression,
                "".join(f"{step};" for step in steps) + f"#{expression}",
                spec,
            )


def _work_out(numbers: list[int], rng: np.random.Generator) -> tuple[int, str, list[str]] | None:
    """Joins two random numbers at a time by a random operator that keeps to whole numbers from 0 to
    99; None if none does."""
    # Value, text, how tightly the text binds.
    terms: list[tuple[int, str, int]] = [(n, str(n), 3) for n in numbers]
    steps: list[str] = []
    while len(terms) > 1:
        i, j = (int(k) for k in rng.permutation(len(terms))[:2])
        (a, first, tight), (b, second, close) = terms[i], terms[j]
        values = {"+": a + b, "-": a - b, "*": a * b}
        if b and a % b == 0:
            values["/"] = a // b
        allowed = [name for name, value in values.items() if 0 <= value <= _LARGEST]
        if not allowed:
            return None
        name = allowed[int(rng.integers(len(allowed)))]
        binds = 1 if name in "+-" else 2
        first = f"({first})" if tight < binds else first
        second = f"({second})" if close < binds or (close == binds and name in "-/") else second
        steps.append(f"{a}{name}{b}={values[name]}")
        terms = [item for k, item in enumerate(terms) if k not in (i, j)] + [
            (values[name], f"{first}{name}{second}", binds)
        ]
    return terms[0][0], terms[0][1], steps


def is_countdown_answer(spec: str, text: str) -> bool:
    """Whether an expression uses exactly the numbers of `spec` ("3,5,7=22") and has its value. A
    stated "= 22" at the end may stand."""
    numbers, target = _countdown_spec(spec)
    expression, equals, stated = text.partition("=")
    if equals and stated.strip() != str(target):
        return False
    arithmetic = read_expression(expression)
    return (
        arithmetic is not None
        and sorted(arithmetic[0]) == sorted(numbers)
        and arithmetic[1] == target
    )


def uses_right_numbers(spec: str, text: str) -> bool:
    """Whether an expression uses exactly the numbers of `spec`, whatever its value."""
    arithmetic = read_expression(text.partition("=")[0])
    return arithmetic is not None and sorted(arithmetic[0]) == sorted(_countdown_spec(spec)[0])


def _countdown_spec(spec: str) -> tuple[list[int], int]:
    numbers, _, target = spec.partition("=")
    return [int(number) for number in numbers.split(",")], int(target)


def read_expression(text: str) -> tuple[list[int], Fraction | None] | None:
    """(numbers used, exact value or None if it divides by zero) of plain arithmetic; None if the
    text is anything else."""
    tree = parse_arithmetic(_SIGN.sub(lambda match: _SIGNS[match.group()], text))
    return None if tree is None else (numbers_in(tree), evaluate(tree))


# Sudoku, 4 x 4

_ROWS = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
_BOXES = ((0, 1, 4, 5), (2, 3, 6, 7), (8, 9, 12, 13), (10, 11, 14, 15))
_UNITS = (*_ROWS, *zip(*_ROWS, strict=True), *_BOXES)


def _peers(cell: int) -> set[int]:
    """The other cells of its row, column and box."""
    peers: set[int] = set()
    for unit in _UNITS:
        if cell in unit:
            peers.update(unit)
    return peers - {cell}


_PEERS = tuple(map(_peers, range(16)))


def sudoku(difficulty: int, rng: np.random.Generator) -> tuple[str, str, str, str]:
    """(prompt, answer, solution, spec) of a random 4 x 4 sudoku with `difficulty` blanks, solved by
    single candidates alone."""
    while True:
        grid = _random_grid(rng)
        clues = list(grid)
        for cell in rng.permutation(16)[:difficulty]:
            clues[int(cell)] = 0
        steps = _singles(clues)
        if steps is not None:
            spec, answer = "".join(map(str, clues)), "".join(map(str, grid))
            lines = "".join(f"r{cell // 4 + 1}c{cell % 4 + 1}={grid[cell]};" for cell in steps)
            return spec + "=", answer, f"{lines}#{answer}", spec


def _random_grid(rng: np.random.Generator) -> list[int]:
    grids = _every_grid()
    return list(grids[int(rng.integers(len(grids)))])


@functools.cache
def _every_grid() -> tuple[tuple[int, ...], ...]:
    return tuple(_all_grids())


def _all_grids() -> Iterator[tuple[int, ...]]:
    """Every valid grid, in order: there are 288."""
    board = [0] * 16

    def fill(cell: int) -> Iterator[tuple[int, ...]]:
        if cell == 16:
            yield tuple(board)
            return
        for digit in range(1, 5):
            if all(board[peer] != digit for peer in _PEERS[cell]):
                board[cell] = digit
                yield from fill(cell + 1)
                board[cell] = 0

    return fill(0)


def _singles(clues: Sequence[int]) -> list[int] | None:
    """The blanks in an order in which each has a single candidate; None if there is no such
    order."""
    board, order = list(clues), []
    while 0 in board:
        for cell in range(16):
            candidates = {1, 2, 3, 4} - {board[peer] for peer in _PEERS[cell]}
            if board[cell] == 0 and len(candidates) == 1:
                board[cell] = candidates.pop()
                order.append(cell)
                break
        else:
            return None
    return order


def read_grid(text: str) -> str | None:
    """The sixteen digits of an answer, whatever stands between them (spaces, bars, newlines); None
    if it holds another number of digits."""
    if len(text) > 400 or re.search(r"[A-Za-z]", text):
        return None
    digits = re.findall(r"[0-9]", text, re.ASCII)
    return "".join(digits) if len(digits) == 16 else None


def is_sudoku_answer(spec: str, text: str) -> bool:
    """Whether the grid keeps the clues and holds 1 to 4 once in every row, column and box."""
    grid = read_grid(text)
    if grid is None or not _keeps_clues(spec, grid):
        return False
    return all(sorted(map(grid.__getitem__, unit)) == list("1234") for unit in _UNITS)


def _keeps_clues(spec: str, grid: str) -> bool:
    return all(clue in ("0", digit) for clue, digit in zip(spec, grid, strict=True))


def filled_blanks(spec: str, answer: str, text: str) -> float:
    """The share of blanks filled as in the stored grid (d1's sudoku reward); 0 if the answer is no
    grid.

    A grid that breaks a clue gets 0 too: d1 does not check that, and pays for boards that are no
    solution of the puzzle.
    """
    grid = read_grid(text)
    blanks = [i for i, clue in enumerate(spec) if clue == "0"]
    if grid is None or not blanks or not _keeps_clues(spec, grid):
        return 0.0
    return sum(grid[i] == answer[i] for i in blanks) / len(blanks)
