"""SQL never answers from the wrong files: other folders, other runs, changed files, results of
other params and unfinished stages are an error or a mark."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from stages.runtime.params import write_stage_params
from tests.reporting.synthetic_run import make_rollouts, make_tasks, small_params
from tracerl.errors import DataError
from tracerl.store.catalog import answer, connect, query
from tracerl.store.check import check_run
from tracerl.store.files import rollout_table, write_rollouts, write_tasks
from tracerl.store.parquet import MANIFEST, seal


def write_round(root: Path, iterations: tuple[int, ...] = (1,), stage: str = "rl@short") -> Path:
    """A sealed folder of rollouts, 8 rows a file."""
    folder = root / "data" / "rollouts" / stage
    for iteration in iterations:
        rows = rollout_table(make_rollouts(stage, iteration))
        write_rollouts(folder / f"iter-{iteration:05d}.parquet", rows)
    seal(folder)
    return folder


def count(root: Path, condition: str = "true", **options: bool) -> int:
    rows = answer(
        connect(root, **options), f"SELECT count(*) AS n FROM rollouts WHERE {condition}"
    ).to_pylist()
    return int(rows[0]["n"])


# Where a run lies


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?", "run[!a]", "a{b,c}", "it's", "run 1%"])
def test_a_folder_whose_name_looks_like_a_pattern_is_read_and_no_other(name, tmp_path):
    for other in ("run1", "runs", "runb", "ab", "ac"):
        write_round(tmp_path / other, (1, 2, 3))
    write_round(tmp_path / name)
    assert count(tmp_path / name) == 8
    assert [str(finding) for finding in check_run(tmp_path / name) if "rollouts" in str(finding)]
    for other in ("run1", "runs", "ab"):
        with pytest.raises(DataError, match="cannot be answered"):
            answer(
                connect(tmp_path / name),
                f"FROM read_parquet('{tmp_path / other}/data/rollouts/*/*.parquet')",
            )


@pytest.mark.parametrize("root", ["none", "empty"])
def test_a_folder_that_holds_no_run_is_an_error_and_stays_as_it_is(root, tmp_path):
    (tmp_path / "empty").mkdir()
    for ask in (connect, lambda folder: list(check_run(folder))):
        with pytest.raises(DataError, match="there is no run here") as error:
            ask(tmp_path / root)
        assert str(tmp_path / root) in str(error.value)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize("address", ["http://localhost:1/run", "nosuch://a/b"])
def test_an_address_that_cannot_be_a_run_is_an_error(address):
    with pytest.raises(DataError):
        connect(address)


# What its manifests say


def test_a_file_that_was_replaced_by_another_sound_one_is_named(tmp_path):
    folder = write_round(tmp_path, (1, 2))
    first, second = sorted(folder.glob("*.parquet"))
    pq.write_table(pq.read_table(first).slice(1), first)
    with pytest.raises(DataError, match="not the one that its stage wrote") as error:
        connect(tmp_path)
    assert str(first) in str(error.value)
    assert str(second) not in str(error.value)
    assert count(tmp_path, skip_damaged=True) == 8


def test_fewer_rows_than_the_manifest_says_are_an_error_even_at_the_same_size(tmp_path):
    folder = write_round(tmp_path)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"]["iter-00001.parquet"]["rows"] = 9
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="got: rows 8"):
        connect(tmp_path)


def test_a_file_that_no_manifest_lists_is_named(tmp_path):
    folder = write_round(tmp_path)
    (folder / "copy.parquet").write_bytes((folder / "iter-00001.parquet").read_bytes())
    with pytest.raises(DataError, match=r"copy\.parquet is not in its folder's"):
        connect(tmp_path)


def test_a_flipped_bit_is_found_by_checksum_on_demand(tmp_path):
    folder = write_round(tmp_path)
    path = folder / "iter-00001.parquet"
    column = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 2] ^= 1
    path.write_bytes(bytes(content))
    connect(tmp_path)
    with pytest.raises(DataError, match="sha256"):
        connect(tmp_path, verify=True)


@pytest.mark.parametrize("text", ["", "[]", '{"files": {"a": 1}}', '{"files": []}', "\xff"])
def test_a_damaged_manifest_is_named(text, tmp_path):
    folder = write_round(tmp_path)
    (folder / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="a manifest is damaged"):
        connect(tmp_path)


# What the rows are of


def test_rollouts_of_a_round_that_has_not_ended_are_seen_and_marked(tmp_path):
    write_round(tmp_path, stage="rl@long")
    scratch = tmp_path / "data" / "scratch" / "rl@short-0123456789ab" / "rollouts"
    write_rollouts(scratch / "iter-00001.parquet", rollout_table(make_rollouts("rl@short", 1)))
    assert count(tmp_path) == 8
    assert count(tmp_path, "unfinished") == 0
    rows = query(tmp_path, "SELECT stage, unfinished FROM rollouts GROUP BY ALL ORDER BY ALL")
    assert rows.fetchall() == [("rl@long", False), ("rl@short", True)]


def test_held_out_responses_are_marked(tmp_path):
    write_round(tmp_path)
    folder = tmp_path / "data" / "rollouts" / "rl@long"
    rows = rollout_table(make_rollouts("rl@long/held-out-static", 1))
    write_rollouts(folder / "held-out.parquet", rows)
    evals = tmp_path / "data" / "evals" / "short" / "rows.parquet"
    write_rollouts(evals, rollout_table(make_rollouts("evaluate@short/static", 0)))
    connection = connect(tmp_path)
    for view, expected in (("rollouts", [False, True]), ("evals", [True]), ("traces", [])):
        marks = answer(connection, f"SELECT DISTINCT held_out FROM {view} ORDER BY ALL")
        assert marks["held_out"].to_pylist() == expected


PARAMS: dict[str, Any] = {
    "seed": 1,
    "base": {"lr": 1e-05},
    "sft": {"a": {"init": "base"}},
    "rl": {"b": {"init": "sft@a", "clip": [0.2, 0.2]}},
}


def lock_entry(key: str, inputs: dict[str, str], outputs: dict[str, str]) -> dict[str, Any]:
    values = PARAMS
    for part in key.split("."):
        values = values[part]
    return {
        "cmd": "python",
        "deps": [{"path": path, "md5": md5} for path, md5 in inputs.items()],
        "params": {"params.yaml": {"seed": 1, key: values}},
        "outs": [{"path": path, "md5": md5} for path, md5 in outputs.items()],
    }


@pytest.mark.parametrize(
    ("change", "outdated"),
    [
        ({}, ["rl@gone"]),
        ({"seed": 2}, ["rl@b", "rl@gone"]),
        ({"rl": {"b": {"init": "sft@a", "clip": [0.2, 0.3]}}}, ["rl@b", "rl@gone"]),
        ({"base": {"lr": 2e-05}}, ["rl@b", "rl@gone"]),
        ({"unrelated": 1}, ["rl@gone"]),
    ],
)
def test_results_of_other_params_are_marked_and_so_is_what_was_made_of_them(
    change, outdated, tmp_path
):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({**PARAMS, **change}))
    weights = {"data/checkpoints/base": "1"}
    tuned = {"data/checkpoints/sft@a": "2"}
    lock = {
        "rl@b": lock_entry("rl.b", tuned, {"data/rollouts/rl@b": "3"}),
        "base": lock_entry("base", {}, weights),
        "sft@a": lock_entry("sft.a", weights, tuned),
    }
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": lock}))
    for stage in ("rl@b", "rl@gone"):
        write_round(tmp_path, stage=stage)
    found = answer(connect(tmp_path), "SELECT DISTINCT stage FROM rollouts WHERE outdated")
    assert sorted(found["stage"].to_pylist()) == outdated


@pytest.mark.parametrize(
    ("key", "value", "outdated"),
    [
        (None, None, []),
        ("threads", 7, ["rl@long", "rl@short"]),
        ("rl.long.groups", 7, ["rl@long"]),
        ("launch.ranks", 2, []),
        ("evaluation.num_problems", 7, []),
    ],
)
def test_a_round_is_outdated_once_params_that_it_reads_have_changed(key, value, outdated, tmp_path):
    tree = small_params().model_dump(mode="json")
    source = tmp_path / "params.yaml"
    source.write_text(yaml.safe_dump(tree))
    write_stage_params(source, tmp_path / "data" / "params")
    stages = {}
    for stage in ("rl@short", "rl@long"):
        write_round(tmp_path, stage=stage)
        path = f"data/params/{stage}.yaml"
        digest = hashlib.md5((tmp_path / path).read_bytes()).hexdigest()
        stages[stage] = {"cmd": "python", "deps": [{"path": path, "md5": digest}]}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))
    if key is not None:
        *parents, last = key.split(".")
        section = tree
        for parent in parents:
            section = section[parent]
        section[last] = value
        source.write_text(yaml.safe_dump(tree))
    found = answer(connect(tmp_path), "SELECT DISTINCT stage FROM rollouts WHERE outdated")
    assert sorted(found["stage"].to_pylist()) == outdated
    # Once the params of the stages are written again, the lock still has what the rounds ran with.
    write_stage_params(source, tmp_path / "data" / "params")
    found = answer(connect(tmp_path), "SELECT DISTINCT stage FROM rollouts WHERE outdated")
    assert sorted(found["stage"].to_pylist()) == outdated


def test_without_params_it_is_not_known_whether_results_are_outdated(tmp_path):
    write_round(tmp_path)
    assert count(tmp_path, "outdated IS NULL") == 8


@pytest.mark.parametrize("lock", ["", "stages: [", "[]", "stages: {a: 1}"])
def test_a_damaged_lock_file_is_named_with_the_way_out(lock, tmp_path):
    write_tasks(tmp_path / "data" / "tasks" / "mixed.parquet", make_tasks())
    (tmp_path / "params.yaml").write_text("seed: 1\n")
    (tmp_path / "dvc.lock").write_text(lock)
    with pytest.raises(DataError, match=r"git checkout dvc\.lock"):
        connect(tmp_path)
