"""`tracerl data check` names file, row group and column of whatever is wrong, and nothing else."""

import json

import pyarrow.parquet as pq
import pytest

from tests.store.crafted import BREAKS, VOCAB_SIZE, as_table, sound
from tracerl.store.check import check_folder
from tracerl.store.files import read_rollouts
from tracerl.store.parquet import MANIFEST, seal, write_parquet


@pytest.fixture
def folder(tmp_path):
    """A sealed folder of three files."""
    for i in range(3):
        write_parquet(tmp_path / f"iter-{i:05d}.parquet", as_table("rollouts", sound("rollouts")))
    seal(tmp_path)
    return tmp_path


def findings(folder):
    return [str(finding) for finding in check_folder(folder, "rollouts", VOCAB_SIZE)]


def test_a_sound_folder_has_no_findings(folder):
    assert findings(folder) == []


def test_a_corrupted_byte_is_named_with_row_group_and_column(folder):
    path = folder / "iter-00001.parquet"
    # A map is two leaves.
    column = (
        pq.read_metadata(path)
        .row_group(0)
        .column(pq.read_schema(path).get_field_index("response_ids") + 1)
    )
    assert column.path_in_schema.startswith("response_ids")
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 3] ^= 0xFF
    path.write_bytes(bytes(data))
    found = findings(folder)
    assert len(found) == 2
    assert all(str(path) in text for text in found)
    assert "SHA-256" in found[0]
    assert "row group 0, column response_ids" in found[1]
    assert (
        read_rollouts(folder / "iter-00000.parquet").num_rows
        == read_rollouts(folder / "iter-00002.parquet").num_rows
        == 8
    )


def test_a_missing_file_is_named(folder):
    (folder / "iter-00001.parquet").unlink()
    (found,) = findings(folder)
    assert str(folder / "iter-00001.parquet") in found
    assert "missing" in found


def test_half_written_files_are_named(folder):
    path = folder / "iter-00001.parquet"
    path.write_bytes(path.read_bytes()[:1000])
    (folder / "iter-00003.parquet.tmp").write_bytes(b"PAR1")
    found = findings(folder)
    assert len(found) == 3
    assert [text for text in found if "half-written" in text and "iter-00003.parquet.tmp" in text]
    assert [text for text in found if "1000 bytes now" in text and str(path) in text]
    assert [text for text in found if "damaged" in text and str(path) in text]


def test_a_wrong_schema_version_is_named(folder):
    path = folder / "iter-00002.parquet"
    pq.write_table(
        pq.read_table(path).replace_schema_metadata({"tracerl.schema_version": "99"}), path
    )
    found = findings(folder)
    assert len(found) == 2
    assert "another schema version" in found[1]
    assert str(path) in found[1]


def test_files_that_nobody_listed_are_named(folder):
    (folder / "copy.parquet").write_bytes((folder / "iter-00001.parquet").read_bytes())
    (found,) = findings(folder)
    assert str(folder / "copy.parquet") in found
    (folder / MANIFEST).unlink()
    (found,) = findings(folder)
    assert MANIFEST in found


def test_a_wrong_row_count_is_named(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"]["iter-00000.parquet"]["rows"] = 9
    (folder / MANIFEST).write_text(json.dumps(manifest))
    (found,) = findings(folder)
    assert "8 rows" in found
    assert "9" in found


def test_broken_laws_are_findings(tmp_path):
    rows = sound("rollouts")
    rows[5] = BREAKS["rollouts"]["one_step_per_token"](rows[5])
    write_parquet(tmp_path / "iter.parquet", as_table("rollouts", rows))
    seal(tmp_path)
    assert any(
        "row group 0, column step_map: every token has exactly one step (1 row" in text
        for text in findings(tmp_path)
    )
