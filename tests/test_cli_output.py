"""What the command line writes: no control character of a model reaches a terminal, a result file
is complete or untouched, and no value or output makes a traceback."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracerl.cli import main
from tracerl.errors import DataError, printable
from tracerl.reporting import terminal
from tracerl.reporting.terminal import Format, distinct_names, write_result

ROOT = Path(__file__).parents[1]
HOSTILE = "\x1b]0;owned\x07\x9b31m\u202e"
# `chr(27)` and its like build the same text inside a query.
HOSTILE_SQL = "chr(27) || ']0;owned' || chr(7) || chr(155) || '31m' || chr(8238)"


@pytest.fixture
def run_folder(tmp_path):
    (tmp_path / "run" / "data").mkdir(parents=True)
    return tmp_path / "run"


def tracerl(*arguments):
    """Exit status or message of a command run in this process."""
    try:
        main([*map(str, arguments)])
    except SystemExit as end:
        return end.code
    return 0


def separate(*arguments, **options):
    """The same in a process of its own, whose streams can be closed or full."""
    command = [sys.executable, "-c", "from tracerl.cli import main; main()", *map(str, arguments)]
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "", **options.pop("env", {})}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, env=environment, text=True, check=False, timeout=60, **streams)


# Terminals


class Terminal(io.StringIO):
    def isatty(self):
        return True


def is_harmless(text):
    return all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize("kind", [DataError])
def test_every_part_of_an_error_is_escaped(kind):
    error = kind(HOSTILE, where=HOSTILE, got=HOSTILE, wanted=HOSTILE, do=HOSTILE)
    assert is_harmless(str(error))
    assert str(error).count("\\x1b]0;owned\\x07\\x9b31m\\u202e") == 5


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT error({HOSTILE_SQL})",
        f"SELECT cast({HOSTILE_SQL} AS INTEGER)",
        f"SELECT {HOSTILE}",
        f'FROM "{HOSTILE}"',
    ],
)
def test_a_query_that_fails_over_hostile_text_tells_it_escaped(query, run_folder):
    message = str(tracerl("sql", query, "--root", run_folder))
    assert message.startswith("error: ")
    assert is_harmless(message)
    assert "owned" in message


@pytest.mark.parametrize("chosen", ["table", "record", "csv", "json"])
def test_headings_and_cells_reach_a_terminal_escaped(chosen, run_folder, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    query = (
        f"PIVOT (SELECT {HOSTILE_SQL} AS text, {HOSTILE_SQL} AS cell) ON text USING any_value(cell)"
    )
    assert tracerl("sql", query, "--format", chosen, "--root", run_folder) in (0, None)
    written = re.sub("\x1b\\[[01]m", "", screen.getvalue())  # bold headings are ours
    assert is_harmless(written)
    assert written.count("owned") == 2


def test_files_and_pipes_get_the_text_as_it_is(run_folder, tmp_path):
    out = tmp_path / "r.json"
    tracerl("sql", f"SELECT {HOSTILE_SQL} AS t", "--out", out, "--root", run_folder)
    assert json.loads(out.read_text()) == [{"t": HOSTILE}]


def test_printable_text_is_left_alone():
    assert printable("a π\n語") == "a π\n語"


# Names and values


@pytest.mark.parametrize(
    ("names", "distinct"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a_2"], ["a", "a_3", "a_2"]),
        (["x", "y", "x"], ["x", "y", "x_3"]),
        (["a", "a", "a", "a_2", "a_3"], ["a", "a_4", "a_5", "a_2", "a_3"]),
    ],
)
def test_columns_of_one_name_get_names_that_no_column_has(names, distinct):
    assert distinct_names(names) == distinct


@pytest.mark.parametrize("chosen", ["json", "csv", "parquet"])
def test_no_column_of_a_query_is_lost(chosen, run_folder, tmp_path):
    out = tmp_path / f"r.{chosen}"
    tracerl("sql", "SELECT 1 a, 2 a, 3 AS a_2", "--out", out, "--root", run_folder)
    if chosen == "parquet":
        rows = pq.read_table(out).to_pylist()
    elif chosen == "json":
        rows = json.loads(out.read_text())
    else:
        heading, line = out.read_text().splitlines()
        rows = [dict(zip(heading.split(","), map(int, line.split(",")), strict=True))]
    assert rows == [{"a": 1, "a_3": 2, "a_2": 3}]


VALUES = {
    "map{'a': 1}": {"a": 1},
    "map{[1]: 2}": [[[1], 2]],
    "[map{1: {'k': map{'x': NULL}}}]": [[[1, {"k": {"x": None}}]]],
    "1e400::DOUBLE": None,
    "sum(1)": 1,
    "'a'::BLOB": "b'a'",
    "NULL": None,
}


@pytest.mark.parametrize("expression", VALUES)
def test_every_kind_of_value_has_a_text(expression, run_folder, capsys):
    query = f"SELECT {expression} AS v"
    if "1e400" in expression:
        query = "SELECT 'inf'::DOUBLE AS v"
    assert tracerl("sql", query, "--format", "json", "--root", run_folder) in (0, None)
    assert json.loads(capsys.readouterr().out) == [{"v": VALUES[expression]}]


def test_a_wide_row_is_shown_as_a_record(run_folder, capsys):
    assert tracerl("sql", "FROM rollouts LIMIT 1", "--root", run_folder) in (0, None)
    columns = ", ".join(f"{i} AS column_{i}" for i in range(50))
    assert tracerl("sql", f"SELECT {columns}", "--root", run_folder) in (0, None)
    lines = capsys.readouterr().out.splitlines()
    assert "-- row 1" in lines
    assert [line.split() for line in lines if line.startswith("column_49")] == [["column_49", "49"]]


# Files


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_a_result_that_is_stopped_half_way_leaves_the_old_file(suffix, tmp_path, monkeypatch):
    out = tmp_path / f"r.{suffix}"
    out.write_text("old")

    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal, "_write_parquet", stopped)
    monkeypatch.setattr(terminal, "_rows", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_result(pa.table({"a": [1]}), Format(suffix), out)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(out.name, "old")]


def test_an_interrupt_is_noticed_while_many_rows_are_written(tmp_path):
    """Rows become text a thousand at a time, not all before the first is written."""

    class Interrupted(io.StringIO):
        def write(self, text):
            if self.tell() > 1000:
                raise KeyboardInterrupt
            return super().write(text)

    target = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        terminal._write_text(pa.table({"a": range(10**6)}), Format.csv, target)
    assert 1000 < target.tell() < 2000


@pytest.mark.parametrize("place", ["folder.csv", "missing/r.csv", "file/r.csv"])
def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left(place, run_folder, tmp_path):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    message = tracerl("sql", "SELECT 1 AS a", "--out", tmp_path / place, "--root", run_folder)
    if place == "missing/r.csv":
        assert (tmp_path / place).read_text() == "a\n1\n"
    else:
        assert "cannot be written" in str(message)
        assert str(tmp_path / place) in str(message)
    assert not list(tmp_path.rglob("*.tmp"))


# Outputs that are closed, full or not UTF-8


def test_an_output_that_is_not_utf_8_shows_escapes(run_folder):
    ended = separate(
        "sql", "SELECT 'π' AS t", "--root", run_folder, env={"PYTHONIOENCODING": "ascii"}
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\\u03c0" in ended.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("chosen", ["table", "csv", "json"])
def test_a_full_output_is_an_error_in_words(chosen, run_folder):
    with open("/dev/full", "w") as full:
        ended = separate(
            "sql", "FROM range(90)", "--format", chosen, "--root", run_folder, stdout=full
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert "No space left" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_closed_output_is_no_traceback(run_folder):
    command = (
        f"'{sys.executable}' -c 'from tracerl.cli import main; main()' sql 'SELECT 1' "
        f"--root '{run_folder}' >&-"
    )
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert "Traceback" not in ended.stderr
