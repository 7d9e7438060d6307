"""The command line. Heavy modules are imported inside the commands, so that --help answers at once."""

import csv
import json
import sys
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracerl.errors import DataError, TracerlError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

app = typer.Typer(
    help="Ask a run for its results and its trajectories.", no_args_is_help=True, add_completion=False, rich_markup_mode=None,
    pretty_exceptions_enable=False,
)  # fmt: skip

Root = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run: the one that holds data/ and reports/.")]
_MAX_TABLE_ROWS = 100


class Format(StrEnum):
    """What `tracerl sql` writes. A table is for reading and stops at 100 rows; the others are complete."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. An error of ours ends it with its message and exit status 1, not with a traceback."""
    try:
        app(args=arguments, prog_name="tracerl")
    except TracerlError as error:
        sys.exit(f"error: {error}")


@app.callback()
def _commands() -> None:
    """Keeps subcommands even when there is only one."""


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT statement of DuckDB.")],
    root: Root = Path("."),
    format: Annotated[Format | None, typer.Option(help="By default that of FILE's name, or a table.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there instead of to the terminal.")] = None,
) -> None:
    """Query everything the run wrote: the views tasks, rollouts, traces and evals.

    \b
    Examples:
      tracerl sql "describe rollouts"
      tracerl sql "select stage, iteration, avg(reward) from rollouts group by all order by all"
      tracerl sql "select prompt, answer, text from evals join tasks using (task_id) where verdict = 'wrong' limit 20"
      tracerl sql "from rollouts where stage = 'rl@short' and iteration = 40" --out last.parquet
    """
    from tracerl.store.catalog import answer, connect

    chosen = format or _format_of(out)
    if chosen is Format.parquet and out is None:
        raise DataError("Parquet is not for terminals", do="name a file with --out")
    result = answer(connect(root), query)
    _write(result.rename_columns(_distinct(result.column_names)), chosen, out)


@app.command()
def summary(
    root: Root = Path("."),
    markdown: Annotated[bool, typer.Option("--markdown", help="The table alone, as it stands in the README.")] = False,
) -> None:
    """Print the result table and where the report is.

    \b
    Examples:
      tracerl summary
      tracerl summary --markdown
    """
    from tracerl.reporting.summary import HEADINGS, markdown_table, read_summary, row_cells

    reports = root / "reports"
    rows = read_summary(reports / "metrics" / "summary.json")
    if markdown:
        print(markdown_table(rows))
        return
    table = _new_table(HEADINGS, [index >= 3 for index in range(len(HEADINGS))])
    for row in rows:
        table.add_row(*row_cells(row))
    _console().print(table)
    print(f"Report: {reports / 'report.html'}")


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="An evaluation: its name below evaluate in params.yaml.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one, of the same problems.")],
    root: Root = Path("."),
    resamples: Annotated[int, typer.Option(min=1, help="Of the paired bootstrap.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of the paired bootstrap.")] = 1,
) -> None:
    """Compare two evaluations problem by problem: difference with its interval, problems won and lost by B.

    \b
    Examples:
      tracerl compare sft-short rl-short
      tracerl compare rl-long-k8 wide-k8 --resamples 10000
    """
    from tracerl.evaluation.comparison import compare_evaluations

    rows = compare_evaluations(root / "data" / "evals" / first, root / "data" / "evals" / second, resamples, seed)
    headings = ("benchmark", "remasking", "problems", first, second, "difference (95% interval)", "won", "lost", "tied")
    table = _new_table(headings, [index >= 2 for index in range(len(headings))])
    for row in rows:
        difference = f"{100 * row['difference']:+.1f}% [{100 * row['ci_low']:+.1f}, {100 * row['ci_high']:+.1f}]"
        shares = (f"{100 * row[side]:.1f}%" for side in ("first", "second"))
        table.add_row(str(row["benchmark"]), str(row["remasking"]), str(row["num_problems"]), *shares, difference,
                      *(str(row[name]) for name in ("won", "lost", "tied")))  # fmt: skip
    _console().print(table)
    if unpaired := sum(row["unpaired"] for row in rows):
        print(f"{unpaired} problems are in one of the two only and are left out.")


data = typer.Typer(help="Published benchmarks and training sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data, name="data")


@data.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A published set; `tracerl data list` names them.")],
    source: Annotated[str, typer.Option("--from", metavar="PATH", help="Its file or directory, or `hub` to fetch it with datasets.")],
    root: Root = Path("."),
) -> None:
    """Import a published file as tasks: validated, without what it shares with other sets, with hash and licence recorded.

    \b
    Examples:
      tracerl data add math500 --from ~/Downloads/math500.jsonl
      tracerl data add livecodebench-v2 --from lcb/
    """
    from tracerl.evaluation.importing import add_data, import_lines

    print("\n".join(import_lines(add_data(name, source, root))))


@data.command("list")
def list_sets() -> None:
    """List the published sets that can be imported."""
    from tracerl.evaluation.benchmarks import BENCHMARKS

    table = _new_table(("name", "split", "tasks", "licence", "source"), [False, False, True, False, False])
    for item in BENCHMARKS.values():
        table.add_row(item.name, item.split, str(item.rows or ""), item.licence, item.source)
    _console().print(table)


def _format_of(out: Path | None) -> Format:
    if out is None:
        return Format.table
    try:
        return Format(out.suffix.removeprefix("."))
    except ValueError:
        raise DataError("no format", where=str(out), wanted=", ".join(Format), do="name one with --format") from None


def _write(result: "pa.Table", chosen: Format, out: Path | None) -> None:
    """Writes a query's result in the chosen format, to a file or to the terminal."""
    if out is None:
        _write_text(result, chosen, sys.stdout)
        return
    try:
        if chosen is Format.parquet:
            import pyarrow.parquet as pq

            pq.write_table(result, out, compression="zstd")
        else:
            with out.open("w", encoding="utf-8", newline="") as file:
                _write_text(result, chosen, file)
    except OSError as error:
        raise DataError("the result cannot be written", where=str(out), got=error) from error


def _write_text(result: "pa.Table", chosen: Format, file: Any) -> None:
    if chosen is Format.table:
        rows = _rows(result.slice(0, _MAX_TABLE_ROWS))
        table = _new_table(result.column_names, [all(isinstance(row[name], int | float) for row in rows) for name in result.column_names])
        for row in rows:
            table.add_row(*(_readable(value) for value in row.values()))
        _console(file).print(table)
        if result.num_rows > _MAX_TABLE_ROWS:
            print(f"{result.num_rows - _MAX_TABLE_ROWS} of {result.num_rows} rows are not shown; --format csv writes all.", file=file)
    elif chosen is Format.csv:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(result.column_names)
        writer.writerows([_cell(value) for value in row.values()] for row in _rows(result))
    else:
        json.dump(_rows(result), file, ensure_ascii=False, indent=1, default=str)
        file.write("\n")


def _rows(result: "pa.Table") -> list[dict[str, Any]]:
    """Rows as JSON has them: maps as objects, and null where a number is not a number."""
    return [{name: _plain(value) for name, value in row.items()} for row in result.to_pylist(maps_as_pydicts="strict")]


def _distinct(names: Sequence[str]) -> list[str]:
    """A query may give two columns one name; the later ones get a number."""
    return [name if name not in names[:i] else f"{name}_{i + 1}" for i, name in enumerate(names)]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, Decimal):  # what DuckDB gives for a sum of whole numbers
        return int(value) if value == value.to_integral_value() else float(value)
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value


def _cell(value: Any) -> str:
    """A value as text; lists and maps are JSON."""
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)


def _readable(value: Any) -> str:
    """A cell for a terminal: short numbers, and nothing of a model's output that a terminal would obey."""
    text = f"{value:.6g}" if isinstance(value, float) else _cell(value)
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _new_table(headings: Sequence[str], numbers: Sequence[bool]) -> "Table":
    """A rich table; `numbers` says which columns are set to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading, number in zip(headings, numbers, strict=True):
        table.add_column(heading, justify="right" if number else "left")
    return table


def _console(file: Any = None) -> "Console":
    """A console that shows text as it is (model output is not markup) and does not squeeze tables where there is no terminal."""
    from rich.console import Console

    target = file or sys.stdout
    return Console(file=target, markup=False, highlight=False, emoji=False, width=None if target.isatty() else 200)
