"""A few seconds of what `python -m tests.fuzz` does for longer, and what it found before."""

from pathlib import Path

import pytest

from tests.doors import DOORS
from tests.fuzz import fuzz, replay

COUNTS = {
    "chat": 5,
    "checkpoint": 60,
    "cli": 30,
    "data add": 10,
    "judge": 5,
    "params": 60,
    "parquet": 25,
    "sql": 80,
    "state": 150,
    "tasks": 100,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_door_answers_every_input_with_a_result_or_an_error_of_ours(door: str, tmp_path: Path):
    (tmp_path / "door").mkdir()
    assert fuzz(door, COUNTS[door], tmp_path / "door") >= COUNTS[door] // 2


@pytest.mark.parametrize("door", DOORS)
def test_what_a_door_failed_on_before_is_answered(door: str, tmp_path: Path):
    (tmp_path / "door").mkdir()
    replay(door, tmp_path / "door")
