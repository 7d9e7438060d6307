"""Laws of the command line: results are complete in every format, and what is wrong is said in one message with exit status 1."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.reporting.synthetic_run import evaluation_row, make_rollouts, make_tasks
from tracerl.cli import main
from tracerl.reporting.summary import COLUMNS, HEADINGS, markdown_table, read_summary
from tracerl.store.files import rollout_table, write_rollouts, write_tasks
from tracerl.store.workspace import write_json

ROOT = Path(__file__).parents[1]
QUERY = """
SELECT task_id, count(*) AS n, sum(num_steps) AS steps, list(sample_index ORDER BY sample_index) AS l
FROM rollouts GROUP BY ALL ORDER BY ALL
"""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A folder with tasks, rollouts and a result table."""
    root = tmp_path_factory.mktemp("run")
    write_tasks(root / "data" / "tasks" / "mixed.parquet", make_tasks())
    write_rollouts(root / "data" / "rollouts" / "rl@short" / "iter-00001.parquet", rollout_table(make_rollouts("rl@short", 1)))
    rows = [{column: evaluation_row("rl@short", "mixed", mode, 4)[column] for column in COLUMNS} for mode in ("static", "dynamic")]
    write_json(root / "reports" / "metrics" / "summary.json", {"rows": rows})
    return root


def tracerl(*arguments, root=None):
    """Exit status and message of a command run in this process."""
    try:
        main([*arguments, *(["--root", str(root)] if root else [])])
    except SystemExit as end:
        return end.code
    return 0


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_every_format_holds_the_same_rows(kind, run_folder, tmp_path):
    path = tmp_path / f"result.{kind}"
    assert tracerl("sql", QUERY, "--out", str(path), root=run_folder) in (0, None)
    rows = make_rollouts("rl@short", 1)
    steps = {t.task_id: sum(r.trajectory.num_steps for r in rows if r.task == t) for t in make_tasks()}
    expected = [{"task_id": t.task_id, "n": 2, "steps": steps[t.task_id], "l": [0, 1]} for t in make_tasks()]
    if kind == "csv":
        found = [
            {**row, "n": int(row["n"]), "steps": int(row["steps"]), "l": json.loads(row["l"])}
            for row in csv.DictReader(path.read_text().splitlines())
        ]
    else:
        found = json.loads(path.read_text()) if kind == "json" else pq.read_table(path).to_pylist()
    assert found == expected


def test_csv_on_standard_output_is_the_same_as_in_a_file(run_folder, capsys):
    tracerl("sql", QUERY, "--format", "csv", root=run_folder)
    assert len(list(csv.reader(io.StringIO(capsys.readouterr().out)))) == 1 + len(make_tasks())


def test_a_number_that_is_none_is_null_in_json(tmp_path, capsys):
    tracerl("sql", "SELECT 'nan'::DOUBLE AS x, ['inf'::FLOAT] AS y, 1 AS x", "--format", "json", root=tmp_path)
    assert json.loads(capsys.readouterr().out) == [{"x": None, "y": [None], "x_3": 1}]


def test_a_table_says_how_many_rows_it_leaves_out(tmp_path, capsys):
    tracerl("sql", "FROM range(250)", root=tmp_path)
    out = capsys.readouterr().out
    assert " 99 " in out
    assert " 100 " not in out
    assert "150 of 250 rows are not shown" in out


def test_a_table_shows_text_and_obeys_none_of_it(tmp_path, capsys):
    tracerl("sql", "SELECT '[bold]x[/bold] :smile: ' || chr(27) || '[2J' AS text", root=tmp_path)
    assert "[bold]x[/bold] :smile: \\x1b[2J" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sql", "SELEC 1"], "syntax error"),
        (["sql", "SELECT reward FROM rollout"], "rollouts"),
        (["sql", "FROM read_csv('/etc/passwd')"], "disabled by configuration"),
        (["sql", "SELECT 1", "--format", "parquet"], "--out"),
        (["sql", "SELECT 1", "--out", "result.txt"], "--format"),
        (["summary"], "summary.json"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(arguments, message, tmp_path):
    command = [sys.executable, "-c", "from tracerl.cli import main; main()", *arguments, "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": "src", "PATH": ""}, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help_needs_no_heavy_module():
    code = """
import sys
from tracerl.cli import main
try:
    main(["--help"])
finally:
    print(sorted({"torch", "duckdb", "pyarrow", "rich.table"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": "src"}, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_summary_is_the_table_and_the_place_of_the_report(run_folder, capsys):
    tracerl("summary", root=run_folder)
    out = capsys.readouterr().out
    assert [sum(heading in line for heading in HEADINGS) for line in out.splitlines()[:2]] == [0, len(HEADINGS)]
    assert sum("rl@short" in line and "mixed" in line for line in out.splitlines()) == 2
    assert out.splitlines()[-1] == f"Report: {run_folder / 'reports' / 'report.html'}"


def test_the_markdown_summary_has_one_line_per_row(run_folder, capsys):
    tracerl("summary", "--markdown", root=run_folder)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2
    assert {line.count("|") for line in lines} == {len(HEADINGS) + 1}


def test_the_readme_shows_the_committed_summary():
    readme, summary = ROOT / "README.md", ROOT / "reports" / "metrics" / "summary.json"
    if not (readme.is_file() and summary.is_file()):
        pytest.skip("there is no README or no result table yet")
    shown = readme.read_text(encoding="utf-8").split("<!-- summary:begin -->")[1].split("<!-- summary:end -->")[0]
    assert shown.strip() == markdown_table(read_summary(summary)), "put the output of `tracerl summary --markdown` between the markers"
