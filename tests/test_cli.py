"""Laws of the command line: results are complete in every format, and what is wrong is said in one
message with exit status 1."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from tests.reporting.synthetic_run import (
    evaluation_row,
    held_out_curve,
    make_rollouts,
    make_tasks,
    train_curve,
    validation_result,
)
from tests.rounds import SERVER
from tracerl.cli import main
from tracerl.disk import write_json
from tracerl.reporting.seeds import (
    collect_seeds,
    split_seed,
    write_seeds,
)
from tracerl.reporting.summary import COLUMNS, HEADINGS, read_summary
from tracerl.store.files import rollout_table, write_rollouts, write_tasks
from tracerl.store.parquet import seal
from tracerl.store.schema import DATASETS
from tracerl.training.scratch import Workspace

ROOT = Path(__file__).parents[1]
QUERY = """
SELECT task_id, count(*) AS n, sum(num_steps) AS steps,
    list(sample_index ORDER BY sample_index) AS l
FROM rollouts GROUP BY ALL ORDER BY ALL
"""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A folder with tasks, rollouts and a result table."""
    root = tmp_path_factory.mktemp("run")
    write_tasks(root / "data" / "tasks" / "mixed.parquet", make_tasks())
    write_rollouts(
        root / "data" / "rollouts" / "rl@short" / "iter-00001.parquet",
        rollout_table(make_rollouts("rl@short", 1)),
    )
    rows = [
        {column: evaluation_row("rl@short", "mixed", mode, 4)[column] for column in COLUMNS}
        for mode in ("static", "dynamic")
    ]
    write_json(root / "reports" / "metrics" / "summary.json", {"rows": rows})
    return root


@pytest.fixture
def empty_run(tmp_path):
    """A run that has written nothing yet."""
    (tmp_path / "data").mkdir()
    return tmp_path


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
    steps = {
        t.task_id: sum(r.trajectory.num_steps for r in rows if r.task == t) for t in make_tasks()
    }
    expected = [
        {"task_id": t.task_id, "n": 2, "steps": steps[t.task_id], "l": [0, 1]} for t in make_tasks()
    ]
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


def test_a_number_that_is_none_is_null_in_json(empty_run, capsys):
    tracerl(
        "sql",
        "SELECT 'nan'::DOUBLE AS x, ['inf'::FLOAT] AS y, 1 AS x",
        "--format",
        "json",
        root=empty_run,
    )
    assert json.loads(capsys.readouterr().out) == [{"x": None, "y": [None], "x_3": 1}]


def test_a_table_says_how_many_rows_it_leaves_out(empty_run, capsys):
    tracerl("sql", "FROM range(250)", root=empty_run)
    out = capsys.readouterr().out
    assert " 99 " in out
    assert " 100 " not in out
    assert "150 of 250 rows are not shown" in out


def test_a_table_shows_text_and_obeys_none_of_it(empty_run, capsys):
    tracerl("sql", "SELECT '[bold]x[/bold] :smile: ' || chr(27) || '[2J' AS text", root=empty_run)
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
def test_what_is_wrong_is_said_without_a_traceback(arguments, message, empty_run):
    command = [
        sys.executable,
        "-c",
        "from tracerl.cli import main; main()",
        *arguments,
        "--root",
        str(empty_run),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": "src", "PATH": ""},
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_judge_is_asked_about_each_step_or_about_the_whole(tmp_path, capsys):
    data = yaml.safe_load((ROOT / "params.yaml").read_text())
    data["verification"]["judges"] = {"steps": {"kind": "steps"}, "gone": {**SERVER, "retries": 0}}
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump(data))
    asked = ["--params", str(params), "--prompt", "4+7+5=", "--response", "11;17;#17"]
    assert tracerl("judge", "steps", "--kind", "sums", "--separator", ";", *asked) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if len(line) == 2] == [
        ["11;", "+1.00"],
        ["17;", "-1.00"],
        ["#17", "+1.00"],
    ]
    assert tracerl("judge", "gone", *asked) == 0
    assert ["11;17;#17", "ConnectError"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    assert "wanted: gone, steps" in tracerl("judge", "oracle", *asked)


def test_help_needs_no_heavy_module():
    code = """
import sys
from tracerl.cli import main
try:
    main(["--help"])
finally:
    print(sorted({"torch", "duckdb", "pyarrow", "rich.table"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": "src"},
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_summary_is_the_table_and_the_place_of_the_report(run_folder, capsys):
    tracerl("summary", root=run_folder)
    out = capsys.readouterr().out
    assert [sum(heading in line for heading in HEADINGS) for line in out.splitlines()[:2]] == [
        0,
        len(HEADINGS),
    ]
    assert sum("rl@short" in line and "mixed" in line for line in out.splitlines()) == 2
    assert out.splitlines()[-2:] == [
        f"Report: {run_folder / 'reports' / 'report.html'}",
        "There is no committed run to compare with.",
    ]


def test_the_markdown_summary_has_one_line_per_row(run_folder, capsys):
    tracerl("summary", "--markdown", root=run_folder)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2
    assert {line.count("|") for line in lines} == {len(HEADINGS) + 1}


def test_the_summary_has_the_range_over_seeds_of_this_run_and_of_no_other(
    run_folder, tmp_path, capsys
):
    shutil.copytree(run_folder / "reports", tmp_path / "reports")
    (tmp_path / "params.yaml").write_text("seed: 1")
    rows = read_summary(tmp_path / "reports" / "metrics" / "summary.json")
    better = [{**row, "accuracy": 1.0} for row in rows]
    results = collect_seeds(split_seed("seed: 1")[1], {1: rows, 2: better})
    write_seeds(tmp_path / "reports" / "seeds.json", results)
    low = f"{100 * rows[0]['accuracy']:.1f}"
    tracerl("summary", root=tmp_path)
    assert f"{low} to 100.0%" in capsys.readouterr().out
    tracerl("summary", "--markdown", root=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert " | seeds 1, 2 | " in lines[0]
    assert f"] | {low} to 100.0% | " in lines[2]
    (tmp_path / "params.yaml").write_text("seed: 1\nthreads: 2")
    tracerl("summary", "--markdown", root=tmp_path)
    written = capsys.readouterr()
    assert "seeds" not in written.out
    assert "reports/seeds.json is of another run" in written.err


def test_the_readme_shows_the_committed_summary(capsys):
    readme, summary = ROOT / "README.md", ROOT / "reports" / "metrics" / "summary.json"
    if not (readme.is_file() and summary.is_file()):
        pytest.skip("there is no README or no result table yet")
    text = readme.read_text(encoding="utf-8")
    shown = text.split("<!-- summary:begin -->")[1].split("<!-- summary:end -->")[0]
    tracerl("summary", "--markdown", root=ROOT)
    assert shown.strip() == capsys.readouterr().out.strip(), (
        "put the output of `tracerl summary --markdown` between the markers"
    )


# What is stored, checked and watched


@pytest.fixture
def whole_run(tmp_path):
    """A sealed run with a base checkpoint, of which one file can be spoiled."""
    write_tasks(tmp_path / "data" / "tasks" / "mixed.parquet", make_tasks())
    path = tmp_path / "data" / "rollouts" / "rl@short" / "iter-00001.parquet"
    write_rollouts(path, rollout_table(make_rollouts("rl@short", 1)))
    for folder in (tmp_path / "data" / "tasks", path.parent):
        seal(folder)
    (tmp_path / "data" / "checkpoints" / "base").mkdir(parents=True)
    (tmp_path / "data" / "checkpoints" / "base" / "config.json").write_text('{"vocab_size": 98}')
    return tmp_path


def test_data_check_is_content_with_a_sound_run_and_names_what_is_wrong(whole_run, capsys):
    assert tracerl("data", "check", root=whole_run) in (0, None)
    assert "sound" in capsys.readouterr().out
    path = whole_run / "data" / "rollouts" / "rl@short" / "iter-00001.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    assert "2 findings" in str(tracerl("data", "check", root=whole_run))
    assert str(path) in capsys.readouterr().out


def test_data_check_sees_ids_that_occur_twice_and_tasks_that_do_not_exist(whole_run, capsys):
    other = whole_run / "data" / "rollouts" / "rl@long"
    write_rollouts(other / "iter-00001.parquet", rollout_table(make_rollouts("rl@short", 1)))
    seal(other)
    write_tasks(whole_run / "data" / "new" / "mixed.parquet", make_tasks()[1:])
    (whole_run / "data" / "tasks" / "mixed.parquet").write_bytes(
        (whole_run / "data" / "new" / "mixed.parquet").read_bytes()
    )
    (whole_run / "data" / "tasks" / "manifest.json").unlink()
    seal(whole_run / "data" / "tasks")
    tracerl("data", "check", root=whole_run)
    out = capsys.readouterr().out
    assert "no two rows have one id (8 rows, first rl@short/00001/mixed/0/0" in out
    assert "every response belongs to a task of the task sets (4 rows" in out


def test_damaged_files_are_left_out_of_a_query_only_when_asked_for(whole_run, capsys):
    path = whole_run / "data" / "rollouts" / "rl@short" / "iter-00001.parquet"
    path.write_bytes(b"PAR1")
    assert str(path) in str(tracerl("sql", "FROM rollouts", root=whole_run))
    assert tracerl(
        "sql",
        "SELECT count(*) AS n FROM rollouts",
        "--skip-damaged",
        "--format",
        "csv",
        root=whole_run,
    ) in (0, None)
    shown = capsys.readouterr()
    assert shown.out == "n\n0\n"
    assert f"left out: a Parquet file is damaged or missing\n  where: {path}" in shown.err


def test_a_damaged_page_is_left_out_too_though_the_file_opens(whole_run, capsys):
    """Its header, which DuckDB refuses to read only once the page is asked for."""
    path = whole_run / "data" / "rollouts" / "rl@short" / "iter-00001.parquet"
    column = pq.read_metadata(path).row_group(0).column(0)
    place = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    content[place : place + 8] = b"\xff" * 8
    path.write_bytes(bytes(content))
    query = "SELECT count(DISTINCT rollout_id) AS n FROM rollouts"
    assert "cannot be answered" in str(tracerl("sql", query, root=whole_run))
    capsys.readouterr()
    ended = tracerl("sql", query, "--skip-damaged", "--format", "csv", root=whole_run)
    shown = capsys.readouterr()
    assert ended in (0, None)
    assert shown.out == "n\n0\n"
    assert f"where: {path}" in shown.err


def test_running_stages_are_drawn_from_their_saved_state(tmp_path):
    curve = [{"step": step, "loss": 1 / step} for step in range(1, 9)]
    space = Workspace(tmp_path / "data" / "scratch" / "sft@short-0123456789ab")
    space.save({"weight": torch.zeros(1)}, {"curve": curve})
    rounds = {"train": train_curve("rl@long", 6), "held_out": held_out_curve(6, 2)}
    Workspace(tmp_path / "data" / "scratch" / "rl@long-0123456789ab").save(
        {"weight": torch.zeros(1)}, {"curves": rounds, "iteration": 6}
    )
    assert tracerl("watch", "--once", root=tmp_path) in (0, None)
    page = (tmp_path / "data" / "scratch" / "watch.html").read_text()
    assert page.count("<figure>") == 1 + 8
    assert "iteration 6" in page
    assert "step 8" in page


def test_a_folder_without_a_run_is_not_watched_and_stays_empty(tmp_path):
    assert "there is no run here" in str(tracerl("watch", "--once", root=tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("query", ["-- one number\nSELECT 1 AS n", "SELECT 1 AS n -- one number"])
def test_a_comment_is_part_of_the_query(query, empty_run, capsys):
    assert tracerl("sql", query, "--format", "csv", root=empty_run) in (0, None)
    assert capsys.readouterr().out == "n\n1\n"


def test_an_accepted_run_is_what_later_runs_are_compared_with(tmp_path, capsys):
    for dataset in DATASETS:
        result = {**validation_result("rollouts"), "dataset": dataset}
        write_json(tmp_path / "reports" / "validation" / f"{dataset}.json", result)
    assert tracerl("data", "accept", root=tmp_path) in (0, None)
    baseline = json.loads((tmp_path / "reports" / "baseline.json").read_text())
    assert baseline["evals"]["rl@long"] == {
        "num_rows": 3200,
        "pass_rate": 0.61,
        "truncation": 0.002,
    }
