"""A chain whose processes are killed at random moments ends as if it had never been disturbed: a
short run of `python -m tests.chaos`."""

import time
from pathlib import Path

import pytest

from tests.chaos import Chaos

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

KINDS = {"stage": 1, "dvc": 1, "all": 1, "dvc.lock": 1}
NUM_KILLS = 4
SECONDS = 60.0


def test_a_chain_killed_at_random_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, 1, KINDS)
    deadline = time.monotonic() + SECONDS
    # On a busy machine the first kill may take longer than all of them should.
    chaos.round(lambda: time.monotonic() < deadline or not chaos.kills, NUM_KILLS)
    assert not chaos.reports, chaos.table()
    assert chaos.kills.total() > 0
