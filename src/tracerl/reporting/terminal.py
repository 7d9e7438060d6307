"""Tables for a terminal and files of a query's result. Model output is hostile: no cell or heading
reaches a terminal before `printable` has seen it."""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tracerl.disk import atomic_file
from tracerl.errors import DataError, printable

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

MAX_TABLE_ROWS = 100
MAX_COLUMNS = 12
_ROWS_AT_ONCE = 1000


class Format(StrEnum):
    """How `tracerl sql` writes a result. A table is for reading and stops at 100 rows; a record is
    a line for each column; the others are complete."""

    table = "table"
    record = "record"
    csv = "csv"
    json = "json"
    parquet = "parquet"


def format_of(out: Path | None) -> Format:
    """The format that a file's suffix stands for; a table for a terminal."""
    if out is None:
        return Format.table
    try:
        return Format(out.suffix.removeprefix("."))
    except ValueError:
        raise DataError(
            "no format", where=str(out), wanted=", ".join(Format), do="name one with --format"
        ) from None


def write_result(result: "pa.Table", chosen: Format, out: Path | None) -> None:
    """Writes a query's result to a file, which is then complete or as it was before, or to the
    terminal.

    Raises DataError if the file cannot be written or a value has no text.
    """
    result = result.rename_columns(distinct_names(result.column_names))
    if out is None:
        _write_text(result, chosen, sys.stdout)
        return
    if out.is_dir():
        raise DataError("the result cannot be written", where=str(out), got="a directory")
    with atomic_file(out, "the result cannot be written") as aside:
        if chosen is Format.parquet:
            _write_parquet(result, aside)
        else:
            with aside.open("w", encoding="utf-8", newline="", errors="backslashreplace") as file:
                _write_text(result, chosen, file)


def _write_parquet(result: "pa.Table", path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.write_table(result, path, compression="zstd")
    except (pa.ArrowException, NotImplementedError) as error:
        raise DataError(
            "the result cannot be written as Parquet",
            got=error,
            do="cast the column to another type, or choose --format csv",
        ) from error


def distinct_names(names: Sequence[str]) -> list[str]:
    """The names of columns, those that occur again with a number behind: a, b, a -> a, b, a_3. No
    name that is made was there before."""
    used = set(names)
    distinct: list[str] = []
    for index, name in enumerate(names):
        number = index + 1
        label = name
        if name in distinct:
            label = f"{name}_{number}"
            while label in used:
                number += 1
                label = f"{name}_{number}"
        used.add(label)
        distinct.append(label)
    return distinct


def _write_text(result: "pa.Table", chosen: Format, file: IO[str]) -> None:
    """Writes rows in one of the formats that are text. What goes to a terminal has its control
    characters escaped; a file or a pipe gets the data as they are."""
    escape = printable if file.isatty() else str
    if chosen is Format.table and len(result.column_names) <= MAX_COLUMNS:
        _print_table(result, file)
    elif chosen in (Format.table, Format.record):
        _print_records(result, file)
    elif chosen is Format.csv:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(escape, result.column_names))
        for row in _rows(result):
            writer.writerow([escape(_cell(value)) for value in row.values()])
    else:
        separator = "["
        for row in _rows(result):
            text = json.dumps(row, ensure_ascii=file.isatty(), default=str)
            file.write(f"{separator}\n{text}")
            separator = ","
        file.write("[]\n" if separator == "[" else "\n]\n")


def _print_table(result: "pa.Table", file: IO[str]) -> None:
    rows = list(_rows(result.slice(0, MAX_TABLE_ROWS)))
    numeric = []
    for name in result.column_names:
        numeric.append(all(isinstance(row[name], int | float) for row in rows))
    table = new_table(result.column_names, numeric)
    for row in rows:
        table.add_row(*map(readable, row.values()))
    console(file).print(table)
    _say_left_out(result.num_rows, file)


def _print_records(result: "pa.Table", file: IO[str]) -> None:
    """A line for each column of each row: for rows that are wider than a terminal."""
    width = max(map(len, result.column_names))
    for number, row in enumerate(_rows(result.slice(0, MAX_TABLE_ROWS)), start=1):
        file.write(f"-- row {number}\n")
        for name, value in row.items():
            text = readable(value).replace("\n", "\\n")
            text = text if len(text) <= 200 else f"{text[:199]}…"
            file.write(f"{printable(name):{width}}  {text}\n")
    _say_left_out(result.num_rows, file)


def _say_left_out(num_rows: int, file: IO[str]) -> None:
    left_out = num_rows - MAX_TABLE_ROWS
    if left_out > 0:
        file.write(f"{left_out} of {num_rows} rows are not shown; --format csv writes all.\n")


def _rows(result: "pa.Table") -> Iterator[dict[str, Any]]:
    """Rows as JSON has them: maps as objects, null where a number is not a number.

    Raises DataError naming the column of a value that Python cannot hold.
    """
    for start in range(0, result.num_rows, _ROWS_AT_ONCE):
        part = result.slice(start, _ROWS_AT_ONCE)
        columns = []
        for field in part.schema:
            try:
                values = part.column(field.name).to_pylist()
                columns.append([_plain(value, field.type) for value in values])
            except Exception as error:  # Arrow has no one error for what it cannot convert
                raise DataError(
                    "a value cannot be written as text",
                    where=f"column {field.name}, type {field.type}",
                    got=error,
                    do=f'cast it: "{field.name}"::VARCHAR',
                ) from error
        for values in zip(*columns, strict=True):
            yield dict(zip(part.column_names, values, strict=True))


def _plain(value: Any, kind: "pa.DataType") -> Any:
    """A value of an Arrow column as JSON has it. A map is an object if its keys are text, else a
    list of pairs."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = [[_plain(k, kind.key_type), _plain(v, kind.item_type)] for k, v in value]
        return dict(pairs) if pa.types.is_string(kind.key_type) else pairs
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind) and isinstance(value, list):
        return [_plain(part, kind.value_type) for part in value]
    if isinstance(value, Decimal):  # DuckDB's sum of whole numbers
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value


def _cell(value: Any) -> str:
    """A value as text; lists and maps are JSON."""
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def readable(value: Any) -> str:
    """A cell for a terminal: numbers with six digits, control characters escaped."""
    return printable(f"{value:.6g}" if isinstance(value, float) else _cell(value))


def new_table(headings: Sequence[str], numeric: Sequence[bool]) -> "Table":
    """An empty table. numeric: which columns are aligned to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading, number in zip(headings, numeric, strict=True):
        table.add_column(printable(heading), justify="right" if number else "left")
    return table


def console(file: IO[str] | None = None) -> "Console":
    """A console that shows text as it is (model output is not markup) and does not squeeze tables
    where there is no terminal."""
    from rich.console import Console

    target = file or sys.stdout
    return Console(
        file=target,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if target.isatty() else 200,
    )
