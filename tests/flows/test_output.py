"""What is read from a DVC process's lines: outcome, trouble, locks and progress; and that the UI is
not flooded with them."""

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.exceptions import FailedRun

from flows import artifacts, output
from flows.output import Output, hide_failed_runs
from tests.tiny_run import environment


@pytest.fixture
def seen(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def reader() -> Output:
    return Output("rl@short", Path("logs/rl@short.log"), logging.getLogger("test"))


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        (
            [
                "Running stage 'rl@short':",
                "> python -m stages.rl short",
                "Updating lock file 'dvc.lock'",
            ],
            "Ran",
        ),
        (["Stage 'rl@short' is cached - skipping run, checking out outputs"], "Restored"),
        (
            ["Stage 'rl@short' didn't change, skipping", "Data and pipelines are up to date."],
            "Cached",
        ),
        (["Running stage 'rl@short':", "Stage 'rl@short' didn't change, skipping"], "Ran"),
        (["Something new"], "Unknown"),
    ],
)
def test_the_outcome_is_what_dvc_says_first(lines: list[str], outcome: str) -> None:
    read = reader()
    for line in lines:
        read(line)
    assert read.outcome == outcome
    assert outcome in output.MEANING


def test_a_lock_is_what_dvc_says_before_the_stage_starts_and_nothing_a_stage_prints() -> None:
    busy = "ERROR: failed to reproduce 'rl@short': '/p/data/x' is busy, it is being blocked by:"
    read = reader()
    read(busy)
    assert read.locked
    read = reader()
    read("Running stage 'rl@short':")
    read(busy)
    assert not read.locked


def test_the_trouble_is_the_stages_own_error_rather_than_dvcs() -> None:
    read = reader()
    for line in (
        "Running stage 'x':",
        "ERROR: something",
        "error: the disk is full",
        "ERROR: failed to reproduce 'x'",
    ):
        read(line)
    assert read.trouble == "error: the disk is full"


def test_the_ui_gets_the_first_lines_then_a_few_a_second_and_every_loud_one(
    seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: now))
    read, burst, rate = reader(), int(Output.BURST), int(Output.LINES_PER_SECOND)
    for i in range(1000):
        read(f"line {i}")
    assert seen() == [f"line {i}" for i in range(burst)]
    now = 1.0
    for i in range(10):
        read(f"later {i}")
    assert seen()[burst:] == [
        f"({1000 - burst} lines are in logs/rl@short.log only)",
        *(f"later {i}" for i in range(rate)),
    ]
    read("WARNING: look here")
    read("To track the changes with git, run:")
    assert seen()[burst + 1 + rate :] == [
        f"({10 - rate} lines are in logs/rl@short.log only)",
        "WARNING: look here",
    ]


def test_every_line_of_an_error_has_the_level_of_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    read = reader()
    for i in range(1000):
        read(f"line {i}")
    caplog.clear()
    lines = ["error: too few groups", "where: rl@short", "got: 0", "wanted: 1", "what to do: wait"]
    for line in lines:
        read(line)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == lines


@pytest.mark.parametrize("name", ["prefect.flow_runs", "prefect.engine"])
def test_the_traceback_of_a_failed_flow_is_hidden_and_no_other_one(name: str) -> None:
    hide_failed_runs()
    logger = logging.getLogger(name)

    def is_logged(error: Exception) -> bool:
        trouble = (type(error), error, None)
        return bool(logger.filter(logger.makeRecord(name, logging.ERROR, "", 1, "x", (), trouble)))

    assert not is_logged(FailedRun("Failed: fragile"))
    assert is_logged(ValueError("a bug"))


class Shown:
    """Stands for Prefect's artifacts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[tuple[float, str]] = []
        monkeypatch.setattr(
            artifacts,
            "create_progress_artifact",
            lambda percent, key, text: self.shown.append((percent, text)),
        )


def test_the_progress_bar_of_a_real_stage_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """stages/runtime/progress.py writes it and flows/artifacts.py reads it; nothing else ties
    the two."""
    stage = (
        "from stages.runtime.progress import progress; show = progress('rl@short', "
        "'iteration'); show(17, 50, ''); show(50, 50, 'reward 1')"
    )
    done = subprocess.run(
        [sys.executable, "-c", stage],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    shown = Shown(monkeypatch)
    progress = artifacts.Progress("rl@short")
    lines = [line for line in done.stderr.replace("\r", "\n").splitlines() if "50/50" in line]
    assert lines
    assert progress.show(lines[-1] + "and more") == "and more"
    ((percent, text),) = shown.shown
    assert percent == 100.0
    assert text.startswith("rl@short: 50 of 50, reward 1, ETA 00:00 (")


def test_a_bar_in_mid_course_gives_share_reward_and_eta(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch)
    line = "rl@short:  34%|###4      | 17/50 [00:40<01:20,  2.42s/iteration, reward 0.52]"
    assert artifacts.Progress("rl@short").show(line) == ""
    assert shown.shown == [(34.0, "rl@short: 17 of 50, reward 0.52, ETA 01:20 (2.42s/iteration)")]


def test_a_line_without_a_bar_stays_a_line() -> None:
    assert artifacts.Progress("x").show("5/5 [done]") == "5/5 [done]"


def test_metrics_are_numbers_below_names_with_their_change() -> None:
    rows = artifacts.metric_rows(
        {"a": {"b": 2, "flag": True, "hash": "x"}, "rows": [{"c": 1}], "new": 0.5},
        {"a": {"b": 1.5}},
    )
    assert rows == [
        {"metric": "a.b", "now": "2", "last commit": "1.5", "change": "+0.5"},
        {"metric": "new", "now": "0.5", "last commit": "", "change": ""},
    ]
