"""Laws of the catalog: views mirror the files that are there, and a query can neither leave the
data folder nor change it."""

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from tests.reporting.synthetic_run import (
    make_rollouts,
    make_tasks,
    small_params,
    write_run,
)
from tracerl.errors import DataError
from tracerl.store.catalog import answer, connect, find_damaged_files
from tracerl.store.files import rollout_table, write_rollouts, write_tasks
from tracerl.store.parquet import seal
from tracerl.store.schema import DATASETS, MARKS, ROLLOUTS, TASKS, view_columns

PLACES = {
    "tasks": "tasks/mixed.parquet",
    "rollouts": "rollouts/rl@short/iter-00001.parquet",
    "traces": "traces/mixed.parquet",
    "evals": "evals/short/mixed-static-000000.parquet",
}


def fill(root: Path, view: str) -> Path:
    """Writes one file of a view through the shipped writers."""
    path = root / "data" / PLACES[view]
    if view == "tasks":
        write_tasks(path, make_tasks())
    else:
        write_rollouts(path, rollout_table(make_rollouts("rl@short", 1)))
    return path


@pytest.mark.parametrize("view", DATASETS)
def test_a_view_without_files_is_empty_and_has_its_columns(view, tmp_path):
    (tmp_path / "none" / "data").mkdir(parents=True)
    empty = answer(connect(tmp_path / "none"), f"FROM {view}")
    fill(tmp_path, view)
    full = answer(connect(tmp_path), f"FROM {view}")
    assert empty.num_rows == 0
    assert full.num_rows > 0
    assert empty.schema.names == full.schema.names == view_columns(view)
    stored = (TASKS if view == "tasks" else ROLLOUTS).names
    assert view_columns(view) == [*stored, *(() if view == "tasks" else MARKS)]
    described = [
        answer(connect(root), f"DESCRIBE {view}").column("column_type")
        for root in (tmp_path, tmp_path / "none")
    ]
    assert described[0] == described[1]


def test_views_return_what_the_stages_wrote(tmp_path):
    for view in DATASETS:
        fill(tmp_path, view)
    query = (
        "SELECT prompt, text, verdict, response_ids FROM rollouts JOIN tasks USING (task_id) "
        "WHERE sample_index = $index ORDER BY task_id"
    )
    rows = answer(connect(tmp_path), query, {"index": 0}).to_pylist()
    expected = [r for r in make_rollouts("rl@short", 1) if r.sample_index == 0]
    assert [(row["prompt"], row["text"], row["verdict"]) for row in rows] == [
        (r.task.prompt, r.text, r.verdict) for r in expected
    ]
    assert [row["response_ids"] for row in rows] == [
        r.trajectory.response_ids.tolist() for r in expected
    ]


def test_outputs_that_are_still_being_published_are_not_seen(tmp_path):
    path = fill(tmp_path, "rollouts")
    path.parent.rename(path.parent.with_name("rl@short.tmp"))
    assert answer(connect(tmp_path), "FROM rollouts").num_rows == 0


@pytest.mark.parametrize("view", DATASETS)
def test_a_torn_file_is_named(view, tmp_path):
    path = fill(tmp_path, view)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged") as error:
        connect(tmp_path)
    assert str(path) in str(error.value)


def test_a_file_of_another_schema_version_is_named(tmp_path):
    path = fill(tmp_path, "rollouts")
    pq.write_table(
        pq.read_table(path).replace_schema_metadata({"tracerl.schema_version": "0"}), path
    )
    with pytest.raises(DataError, match="another schema version") as error:
        connect(tmp_path)
    assert str(path) in str(error.value)


def test_every_bad_file_is_named_and_the_others_can_still_be_asked(tmp_path):
    good = fill(tmp_path, "rollouts")
    torn, newer = good.with_name("iter-00002.parquet"), good.with_name("iter-00003.parquet")
    torn.write_bytes(good.read_bytes()[:500])
    pq.write_table(
        pq.read_table(good).replace_schema_metadata({"tracerl.schema_version": "99"}), newer
    )
    fill(tmp_path, "evals")
    seal((tmp_path / "data" / PLACES["evals"]).parent)
    (tmp_path / "data" / PLACES["evals"]).unlink()
    with pytest.raises(DataError) as error:
        connect(tmp_path)
    for part in (str(torn), str(newer), f"{PLACES['evals']} is missing"):
        assert part in str(error.value)
    assert len(find_damaged_files(tmp_path)) == 3
    assert answer(
        connect(tmp_path, skip_damaged=True), "SELECT count(*) AS n FROM rollouts"
    ).to_pylist() == [{"n": 8}]


def test_files_of_older_versions_are_seen_beside_new_ones_with_all_columns(tmp_path):
    path = fill(tmp_path, "rollouts")
    old = Path(__file__).parents[1] / "fixtures" / "store" / "v1" / "rollouts.parquet"
    (path.parent / "old.parquet").write_bytes(old.read_bytes())
    table = answer(connect(tmp_path), "FROM rollouts")
    assert table.column_names == [*ROLLOUTS.names, *MARKS]
    assert table.num_rows == 8 + pq.read_metadata(old).num_rows
    assert answer(
        connect(tmp_path),
        "SELECT count(*) AS n FROM rollouts WHERE num_prompt_tokens <> len(prompt_ids)",
    ).to_pylist() == [{"n": 0}]


@pytest.mark.parametrize("path", ["secret.csv", "data/../secret.csv", "/etc/passwd"])
def test_a_path_outside_the_data_folder_is_refused(path, tmp_path):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    fill(tmp_path, "tasks")
    connection = connect(tmp_path)
    with pytest.raises(DataError, match="cannot be answered"):
        answer(connection, f"FROM read_csv('{tmp_path / path}')")


def test_the_lock_holds_for_whoever_has_the_connection(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(duckdb.Error, match="locked"):
        connect(tmp_path).execute("SET enable_external_access = true")


@pytest.mark.parametrize(
    "statement",
    [
        "COPY tasks TO '{data}/copy.parquet'",
        "ATTACH '{data}/more.duckdb'",
        "SET enable_external_access = true",
        "SELECT 1; DROP TABLE evals",
        "",
    ],
)
def test_a_statement_that_is_not_one_query_is_refused(statement, tmp_path):
    path = fill(tmp_path, "tasks")
    connection = connect(tmp_path)
    with pytest.raises(DataError, match="not a query"):
        answer(connection, statement.format(data=tmp_path / "data"))
    assert [file for file in (tmp_path / "data").rglob("*") if file.is_file()] == [path]


def test_a_wrong_query_is_explained(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError, match="rewards"):
        answer(connect(tmp_path), "SELECT rewards FROM rollouts")


def test_a_point_of_a_held_out_curve_is_told_from_one_of_training(tmp_path):
    curves = tmp_path / "reports" / "curves"
    curves.mkdir(parents=True)
    (curves / "rl@short.tsv").write_text("iteration\treward\n3\t0.5\n")
    (curves / "rl@short-held-out.tsv").write_text("iteration\tmode\taccuracy\n3\tstatic\t0.25\n")
    rows = answer(connect(tmp_path), "FROM metrics ORDER BY curve").to_pylist()
    assert [(r["stage"], r["curve"], r["step"], r["name"], r["value"]) for r in rows] == [
        ("rl@short", "held-out", 3, "static.accuracy", 0.25),
        ("rl@short", "train", 3, "reward", 0.5),
    ]


def test_a_query_imports_no_pandas(tmp_path):
    """It would be a third of the time of a query; pyarrow imports it on its own."""
    write_run(tmp_path, small_params())
    program = (
        "import sys; from tracerl.store.catalog import answer, connect; "
        "print(answer(connect(sys.argv[1]), 'FROM metrics').num_rows, 'pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    num_rows, with_pandas = done.stdout.split()
    assert int(num_rows) > 0
    assert with_pandas == "False"


def test_run_tables_keep_what_is_missing_and_every_letter(tmp_path):
    """Their columns are made of buffers by hand."""
    metrics = {"räte": 1, "bad": None, "part": {"x": 2.5, "\N{SNOWMAN}": -1}}
    path = tmp_path / "reports" / "metrics" / "base.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(metrics))
    rows = answer(connect(tmp_path), "SELECT stage, curve, step, name, value FROM metrics")
    assert rows.to_pylist() == [
        {"stage": "base", "curve": None, "step": None, "name": name, "value": value}
        for name, value in (("räte", 1.0), ("part.x", 2.5), ("part.\N{SNOWMAN}", -1.0))
    ]
