"""A few seconds of what `python -m tests.fuzz` does for longer."""

from pathlib import Path

import pytest

from tests.fuzz import DOORS, fuzz

EXAMPLES = {"cli": 25, "parquet": 25, "sql": 80, "state": 150, "tasks": 100}


@pytest.mark.parametrize("door", DOORS)
def test_a_door_answers_every_input_with_a_result_or_an_error_of_ours(door: str, tmp_path: Path):
    (tmp_path / "door").mkdir()
    assert fuzz(door, EXAMPLES[door], tmp_path / "door") >= EXAMPLES[door] // 2
