"""Folders of Parquet files: sealed once all writers are done, never written into again, and
readable in later versions of the schema."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.store.crafted import as_table, sound
from tests.tiny_run import ROOT, environment
from tracerl.errors import DataError
from tracerl.store import schema
from tracerl.store.files import read_rollouts, read_tasks, read_trajectories
from tracerl.store.parquet import MANIFEST, open_parquet, read_manifest, seal, write_parquet
from tracerl.store.schema import LIST_ENCODINGS, MIGRATIONS, ROLLOUTS, SCHEMA_VERSION, SCHEMAS

OLD = Path(__file__).parents[1] / "fixtures" / "store"


def test_several_writers_fill_one_folder_and_one_seals_it(tmp_path):
    code = """
import sys
from pathlib import Path
from tests.store.crafted import as_table, sound
from tracerl.store.parquet import write_parquet
for i in range(3):
    path = Path(sys.argv[1]) / f"iter-{i:05d}-rank-{sys.argv[2]}.parquet"
    write_parquet(path, as_table("rollouts", sound("rollouts")))
"""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), str(rank)],
            cwd=ROOT,
            env=environment(),
        )
        for rank in range(2)
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    seal(tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert sorted(manifest) == [
        f"iter-{i:05d}-rank-{rank}.parquet" for i in range(3) for rank in range(2)
    ]
    assert {entry["rows"] for entry in manifest.values()} == {8}
    assert len({entry["sha256"] for entry in manifest.values()}) == 1
    assert not list(tmp_path.glob("*.tmp"))


def test_a_sealed_folder_is_not_written_into(tmp_path):
    write_parquet(tmp_path / "one.parquet", as_table("tasks", sound("tasks")))
    seal(tmp_path)
    with pytest.raises(DataError, match="sealed"):
        write_parquet(tmp_path / "two.parquet", as_table("tasks", sound("tasks")))
    assert [path.name for path in tmp_path.glob("*.parquet*")] == ["one.parquet"]


def test_a_damaged_file_is_not_sealed(tmp_path):
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"torn\.parquet"):
        seal(tmp_path)
    assert read_manifest(tmp_path) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"files": {"a": {"rows": 1}}}'])
def test_a_damaged_manifest_is_named(text, tmp_path):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(DataError, match="manifest"):
        read_manifest(tmp_path)


def test_lists_have_the_encodings_that_were_measured(tmp_path):
    rows = [
        {
            **row,
            "filtered_logprobs": row["logprobs"],
            "order_in_step": row["step_map"],
            "order_logprobs": row["logprobs"],
        }
        for row in sound("rollouts")
    ]
    write_parquet(tmp_path / "rows.parquet", as_table("rollouts", rows))
    group = pq.read_metadata(tmp_path / "rows.parquet").row_group(0)
    found = {
        group.column(i).path_in_schema.split(".")[0]: group.column(i).encodings
        for i in range(group.num_columns)
    }
    assert all(encoding in found[name] for name, encoding in LIST_ENCODINGS.items())
    assert "RLE_DICTIONARY" in found["response_ids"]


# Versions


def test_a_flipped_byte_is_an_error_or_changes_nothing(tmp_path):
    path = tmp_path / "rollouts.parquet"
    rows = as_table("rollouts", sound("rollouts"))
    write_parquet(path, rows)
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    errors = 0
    for place in range(4, len(content) - length - 8, 5):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert read_rollouts(path) == rows, place
        except DataError:
            errors += 1
    assert errors > 100


def test_a_file_of_the_next_version_is_refused(tmp_path):
    path = tmp_path / "rollouts.parquet"
    rows = as_table("rollouts", sound("rollouts"))
    next_version = {schema.VERSION_KEY: str(SCHEMA_VERSION + 1).encode()}
    pq.write_table(rows.replace_schema_metadata(next_version), path)
    with pytest.raises(DataError, match="another schema version"):
        open_parquet(path, "rollouts")


def test_every_older_version_has_a_fixture_and_a_migration():
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA_VERSION))
    assert sorted(int(folder.name[1:]) for folder in OLD.iterdir()) == list(
        range(1, SCHEMA_VERSION)
    )


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_rows_of_an_older_version_are_read_with_the_columns_of_this_one(version):
    path = OLD / f"v{version}" / "rollouts.parquet"
    assert open_parquet(path, "rollouts")[1] == version
    stored, rows = pq.read_table(path), read_rollouts(path)
    assert rows.schema.equals(ROLLOUTS)
    assert all(rows[name].to_pylist() == stored[name].to_pylist() for name in stored.column_names)
    assert rows["num_prompt_tokens"].to_pylist() == [
        len(ids) for ids in stored["prompt_ids"].to_pylist()
    ]
    assert len(read_trajectories(path, "correct")) == stored["verdict"].to_pylist().count("correct")
    assert [task.task_id for task in read_tasks(OLD / f"v{version}" / "tasks.parquet")] == [
        "sums/1",
        "mine/2",
    ]


def test_a_new_column_needs_a_version_and_an_expression_for_old_rows(tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    write_parquet(path, as_table("rollouts", sound("rollouts")))
    wider = ROLLOUTS.append(pa.field("num_blocks", pa.int32(), nullable=False))
    monkeypatch.setitem(SCHEMAS, "rollouts", wider)
    with pytest.raises(DataError, match="num_blocks"):
        read_rollouts(path)
    monkeypatch.setitem(
        MIGRATIONS,
        SCHEMA_VERSION,
        {"rollouts": {"num_blocks": "ceil(len(response_ids) / block_size)"}},
    )
    monkeypatch.setattr(schema, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    monkeypatch.setattr("tracerl.store.parquet.SCHEMA_VERSION", SCHEMA_VERSION + 1)
    assert read_rollouts(path)["num_blocks"].to_pylist() == [
        -(-len(row["response_ids"]) // 4) for row in sound("rollouts")
    ]


def test_a_manifest_has_the_bytes_of_its_content_only(tmp_path):
    for name in ("a", "b"):
        write_parquet(tmp_path / name / "one.parquet", as_table("tasks", sound("tasks")))
        seal(tmp_path / name)
    assert (tmp_path / "a" / MANIFEST).read_bytes() == (tmp_path / "b" / MANIFEST).read_bytes()
    assert json.loads((tmp_path / "a" / MANIFEST).read_text())["schema_version"] == SCHEMA_VERSION
