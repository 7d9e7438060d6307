"""Parquet files of tasks and responses: the same back as written, complete or absent, and named
when they are bad."""

import errno
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tiny import END_IDS, sharp_model, tiny_requests, tiny_sampler
from tracerl.disk import parquet_rows
from tracerl.errors import DataError
from tracerl.rollouts.responses import settings_columns
from tracerl.sampling.sampler import sample
from tracerl.store.files import (
    read_rollouts,
    read_tasks,
    read_trajectories,
    rollout_table,
    write_rollouts,
    write_tasks,
)
from tracerl.store.schema import ROLLOUTS, SCHEMA_VERSION, TASKS, VERSION_KEY
from tracerl.types import Rollout, Task

TASK_LIST = [
    Task(
        task_id="sums/1",
        task_set="sums",
        kind="sums",
        split="train",
        difficulty=3,
        prompt="4+7+5=",
        answer="16",
        solution="11;16;#16",
    ),
    Task(
        task_id="mine/2",
        task_set="mine",
        kind="text",
        split="test",
        difficulty=1,
        prompt='What is "π"?\n\u2028',
        answer="π",
        solution="",
    ),
]
MODEL = sharp_model("sdar")


def rollouts(**sampler: Any) -> list[Rollout]:
    settings = tiny_sampler(**sampler)
    trajectories = sample(MODEL, END_IDS, tiny_requests([3, 9, 6, 4]), settings)
    return [
        Rollout(
            rollout_id=f"rl@short/00001/{TASK_LIST[i % 2].task_id}/{i}",
            stage="rl@short",
            iteration=1,
            sample_index=i,
            task=TASK_LIST[i % 2],
            trajectory=trajectory,
            text=f"text {i} π",
            reward=i / 3,
            verdict="correct" if i else "wrong",
            policy_hash="0123456789abcdef",
            seed=2**62,
            settings=settings_columns(settings, MODEL),
            reward_parts={"correct": i / 3, "format": 0.0} if i else {},
        )
        for i, trajectory in enumerate(trajectories)
    ]


# There and back


def test_tasks_come_back_as_they_were_written(tmp_path):
    write_tasks(tmp_path / "new" / "tasks.parquet", TASK_LIST)
    assert read_tasks(tmp_path / "new" / "tasks.parquet") == TASK_LIST
    write_tasks(tmp_path / "none.parquet", [])
    assert read_tasks(tmp_path / "none.parquet") == []


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.8}], ids=str)
def test_trajectories_come_back_bit_for_bit(tmp_path, filters):
    written = rollouts(**filters)
    write_rollouts(tmp_path / "rollouts.parquet", rollout_table(written))
    back = {
        verdict: read_trajectories(tmp_path / "rollouts.parquet", verdict)
        for verdict in ("correct", "wrong", "undecided")
    }
    for rollout in written:
        trajectory = back[rollout.verdict].pop(0)
        for name, value in asdict(rollout.trajectory).items():
            other = getattr(trajectory, name)
            np.testing.assert_array_equal(value, other, err_msg=name)
            assert type(value) is type(other)
            assert getattr(value, "dtype", None) == getattr(other, "dtype", None)
    assert not any(back.values())


def test_log_probabilities_that_are_unknown_come_back_unknown(tmp_path):
    unknown = np.full(12, np.nan, dtype=np.float32)
    first = rollouts()[0]
    trajectory = replace(first.trajectory, logprobs=unknown, filtered_logprobs=unknown)
    write_rollouts(
        tmp_path / "rollouts.parquet", rollout_table([replace(first, trajectory=trajectory)])
    )
    [back] = read_trajectories(tmp_path / "rollouts.parquet", first.verdict)
    assert np.isnan(back.logprobs).all()
    assert np.isnan(back.filtered_logprobs).all()


def test_rows_hold_everything_about_a_response(tmp_path):
    written = rollouts(top_k=3, temperature=0.7, remasking="dynamic", cache="exact")
    write_rollouts(tmp_path / "rollouts.parquet", rollout_table(written))
    table = read_rollouts(tmp_path / "rollouts.parquet")
    assert table.schema.equals(ROLLOUTS)
    row, rollout = table.to_pylist()[2], written[2]
    own = (
        "rollout_id",
        "stage",
        "iteration",
        "sample_index",
        "policy_hash",
        "seed",
        "text",
        "verdict",
        "reward",
    )
    assert [row[name] for name in own] == [getattr(rollout, name) for name in own]
    assert dict(row["reward_parts"]) == rollout.reward_parts
    assert (row["task_id"], row["task_set"]) == ("sums/1", "sums")
    assert (row["remasking"], row["temperature"], row["top_k"], row["cache_mode"]) == (
        "dynamic",
        0.7,
        3,
        "exact",
    )
    assert row["num_steps"] == rollout.trajectory.num_steps == max(row["step_map"])
    assert row["block_size"] == 4


def test_a_drawn_order_comes_back_as_it_was(tmp_path):
    written = rollouts(remasking="plackett_luce", steps_per_block=2)
    write_rollouts(tmp_path / "rollouts.parquet", rollout_table(written))
    row = read_rollouts(tmp_path / "rollouts.parquet").to_pylist()[0]
    assert (row["order_temperature"], row["order_score"], row["schedule"]) == (
        0.5,
        "max_logprob",
        "even",
    )
    wrong = [rollout for rollout in written if rollout.verdict == "wrong"]
    for rollout, back in zip(
        wrong, read_trajectories(tmp_path / "rollouts.parquet", "wrong"), strict=True
    ):
        assert rollout.trajectory.order_in_step is not None
        np.testing.assert_array_equal(rollout.trajectory.order_in_step, back.order_in_step)
        np.testing.assert_array_equal(rollout.trajectory.order_logprobs, back.order_logprobs)
    assert rollout_table(rollouts())["order_in_step"].null_count == len(rollouts())


def test_filtered_log_probabilities_are_stored_only_where_they_differ():
    for sampler, stored in (({}, False), ({"top_k": 3}, True), ({"top_p": 0.8}, True)):
        assert all(
            (value is not None) is stored
            for value in rollout_table(rollouts(**sampler))["filtered_logprobs"].to_pylist()
        )


# Complete or absent, and equal


def test_equal_rows_give_equal_bytes(tmp_path):
    for name in ("one", "two"):
        write_rollouts(tmp_path / name, rollout_table(rollouts()))
        write_tasks(tmp_path / f"{name}-tasks", TASK_LIST)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert (tmp_path / "one-tasks").read_bytes() == (tmp_path / "two-tasks").read_bytes()
    write_rollouts(tmp_path / "two", rollout_table(rollouts()[::-1]))
    assert (tmp_path / "one").read_bytes() != (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr
)
def test_a_failed_write_leaves_the_file_before_it_and_nothing_else(tmp_path, monkeypatch, failure):
    path = tmp_path / "rollouts.parquet"
    write_rollouts(path, rollout_table(rollouts()[:1]))
    before = path.read_bytes()

    def fails(table: pa.Table, where: Path, **options: Any) -> None:
        where.write_bytes(b"PAR1 half a file")
        raise failure

    monkeypatch.setattr(pq, "write_table", fails)
    with pytest.raises(
        type(failure) if isinstance(failure, KeyboardInterrupt) else (OSError, DataError)
    ):
        write_rollouts(path, rollout_table(rollouts()))
    assert [p.name for p in tmp_path.iterdir()] == ["rollouts.parquet"]
    assert path.read_bytes() == before


def test_a_full_disk_is_an_error_of_ours_that_names_the_file(tmp_path, monkeypatch):
    def fails(table: pa.Table, where: Path, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", fails)
    with pytest.raises(DataError, match=r"rollouts\.parquet"):
        write_rollouts(tmp_path / "rollouts.parquet", rollout_table(rollouts()))


# What does not fit


def error_of(path: Path) -> str:
    with pytest.raises(DataError) as raised:
        read_rollouts(path)
    return str(raised.value)


def test_a_truncated_file_is_named(tmp_path):
    path = tmp_path / "rollouts.parquet"
    write_rollouts(path, rollout_table(rollouts()))
    data = path.read_bytes()
    for length in (0, 3, 4, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        assert str(path) in error_of(path)
        with pytest.raises(DataError, match=str(path)):
            read_trajectories(path, "correct")
        with pytest.raises(DataError, match=str(path)):
            read_tasks(path)


def test_a_name_of_a_column_that_is_not_utf_8_is_damage(tmp_path):
    path = tmp_path / "rollouts.parquet"
    write_rollouts(path, rollout_table(rollouts()))
    path.write_bytes(path.read_bytes().replace(b"prompt_ids", b"\x80rompt_ids"))
    assert str(path) in error_of(path)
    with pytest.raises(DataError, match="cannot be read"):
        list(parquet_rows(path))


def test_damage_inside_a_file_is_named(tmp_path):
    path = tmp_path / "rollouts.parquet"
    write_rollouts(path, rollout_table(rollouts()))
    data = bytearray(path.read_bytes())
    data[4:40] = bytes(36)  # the first page's header
    path.write_bytes(bytes(data))
    assert str(path) in error_of(path)


def test_a_missing_file_is_named(tmp_path):
    assert str(tmp_path / "nowhere.parquet") in error_of(tmp_path / "nowhere.parquet")


@pytest.mark.parametrize("version", [str(SCHEMA_VERSION + 1).encode(), None])
def test_another_schema_version_is_named_with_both(tmp_path, version):
    path = tmp_path / "rollouts.parquet"
    table = rollout_table(rollouts()).replace_schema_metadata(
        {VERSION_KEY: version} if version else None
    )
    pq.write_table(table, path)
    text = error_of(path)
    assert str(path) in text
    assert f"got: {version!r}" in text or version is None
    assert f"wanted: {SCHEMA_VERSION}" in text


def test_missing_columns_are_named(tmp_path):
    path = tmp_path / "rollouts.parquet"
    pq.write_table(rollout_table(rollouts()).drop_columns(["step_map", "seed"]), path)
    text = error_of(path)
    assert str(path) in text
    assert "step_map" in text
    assert "seed" in text
    write_tasks(path, TASK_LIST)
    assert "rollout_id" in error_of(path)


def test_a_row_without_what_it_must_have_is_refused_when_it_is_written():
    with pytest.raises((pa.ArrowInvalid, ValueError, TypeError, DataError)):
        rollout_table([replace(rollouts()[0], iteration="first")])  # type: ignore[arg-type]
    assert all(
        not ROLLOUTS.field(name).nullable
        for name in ("rollout_id", "task_id", "response_ids", "step_map", "logprobs", "reward")
    )
    assert not any(field.nullable for field in TASKS)
