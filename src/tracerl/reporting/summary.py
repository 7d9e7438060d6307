"""The result table, reports/metrics/summary.json, and the one way its numbers are written in
README, terminal and report."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracerl.errors import DataError

Row = Mapping[str, Any]

COLUMNS = (
    "checkpoint",
    "benchmark",
    "remasking",
    "block_size",
    "num_problems",
    "accuracy",
    "ci_low",
    "ci_high",
    "tokens_per_step",
    "tokens_per_forward",
    "mean_length",
    "truncation_rate",
)
_ACCURACY = "accuracy (95% interval)"
HEADINGS = (
    "checkpoint",
    "benchmark",
    "remasking",
    "block size",
    "problems",
    _ACCURACY,
    "tokens/step",
    "tokens/forward",
    "mean length",
    "truncated",
)
NUM_NAMES = 3
"""How many of the columns, the first ones, hold names; the others hold numbers."""


@dataclass(frozen=True, kw_only=True)
class SeedColumn:
    """A column of the result table: the range of each row's accuracy over several seeds."""

    heading: str
    """Such as "seeds 1, 2, 3"."""
    cells: tuple[str, ...]
    """A range per row, such as "46.0 to 51.2%"."""


def summary_rows(directory: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """Rows of the result table from the files `directory`/<name>.json of the evaluate stages, in
    the order of `names`.

    Raises DataError if a file is missing or damaged or its rows lack a column.
    """
    rows = []
    for name in names:
        path = directory / f"{name}.json"
        for row in _read_rows(path, do=f"run the stage evaluate@{name} again"):
            rows.append({column: row[column] for column in COLUMNS})
    return rows


def read_summary(path: Path) -> list[dict[str, Any]]:
    """Rows of a summary.json. Raises DataError if it is missing or damaged."""
    return _read_rows(path, do="make it with the report stage: dvc repro report")


def table_lines(rows: Sequence[Row], seeds: SeedColumn | None) -> list[list[str]]:
    """The result table as text, headings first; the range over seeds, if there is one, beside the
    accuracy."""
    lines = [list(HEADINGS), *map(_cells, rows)]
    if seeds is not None:
        place = HEADINGS.index(_ACCURACY) + 1
        for line, cell in zip(lines, (seeds.heading, *seeds.cells), strict=True):
            line.insert(place, cell)
    return lines


def _cells(row: Row) -> list[str]:
    """A row as text, one entry per heading. Shares are per cent; lengths and rates are tokens."""
    return [
        str(row["checkpoint"]),
        str(row["benchmark"]),
        str(row["remasking"]),
        str(row["block_size"]),
        str(row["num_problems"]),
        accuracy_text(row),
        f"{row['tokens_per_step']:.2f}",
        f"{row['tokens_per_forward']:.2f}",
        f"{row['mean_length']:.1f}",
        f"{100 * row['truncation_rate']:.1f}%",
    ]


def accuracy_text(row: Row) -> str:
    """Accuracy with its interval, such as "81.3% [77.9, 84.6]"."""
    low, high = 100 * row["ci_low"], 100 * row["ci_high"]
    return f"{100 * row['accuracy']:.1f}% [{low:.1f}, {high:.1f}]"


def markdown_table(rows: Sequence[Row], seeds: SeedColumn | None) -> str:
    """The result table as Markdown, names to the left and numbers to the right."""
    headings, *lines = table_lines(rows, seeds)
    ruler = ["---"] * NUM_NAMES + ["---:"] * (len(headings) - NUM_NAMES)
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, ruler, *lines))


def _read_rows(path: Path, do: str) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["rows"]
        missing: set[str] = set()
        for row in rows:
            missing |= set(COLUMNS) - row.keys()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "a file of results cannot be read",
            where=str(path),
            got=repr(error),
            wanted='{"rows": [...]}',
            do=do,
        ) from error
    if missing:
        raise DataError(
            "a file of results lacks columns",
            where=str(path),
            got=sorted(missing),
            wanted=", ".join(COLUMNS),
            do=do,
        )
    return rows
