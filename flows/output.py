"""What a DVC process prints, read line by line: what happened, what went wrong, and which lines the
UI shows."""

import logging
import re
import time
from pathlib import Path
from typing import Any

from prefect.exceptions import FailedRun

from flows import artifacts, process
from flows.workspace import WaitNotifier

Logger = logging.Logger | logging.LoggerAdapter[Any]

# What DVC says it did with a stage, and the name of the state that says so in the UI. The first
# that occurs counts: a stage that ran and then lost a lock while it was recorded is unchanged when
# DVC is asked again, but it ran.
OUTCOMES = {
    "Running stage '": "Ran",
    "is cached - skipping run": "Restored",
    "didn't change, skipping": "Cached",
}
MEANING = {
    "Ran": "Ran to its end",
    "Restored": "Restored from DVC's run cache",
    "Cached": "Nothing changed",
    "Unknown": "DVC ended without an error, in words this flow does not know",
}
LOCKED = re.compile(r"^ERROR: .*is busy, it is being blocked by|^ERROR: .*Unable to acquire lock")
NOISE = re.compile(
    r"To track the changes with git|^git add |Use `dvc push`|To enable auto staging"
    r"|^dvc config core.autostage|: 0\w+ \[00:00, \?\w+/s\]$"
)
# The first line of an error, and those of ours that follow it.
ERROR = re.compile(r"ERROR|error:|Traceback|(where|got|wanted|what to do): ")
LOUD = re.compile(r"^(WARNING|stopped:)|Running stage '|skipping|SIG(INT|TERM):")


class _FailedRuns(logging.Filter):
    """Drops what Prefect logs of a flow that returned a failed state: a traceback of its own code,
    after the state and the stage's error have been logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], FailedRun))


_FAILED_RUNS = _FailedRuns()


def hide_failed_runs() -> None:
    """Keeps tracebacks of failed runs out of the logs of this process; other tracebacks stay."""
    for name in ("prefect.flow_runs", "prefect.engine"):
        logging.getLogger(name).addFilter(_FAILED_RUNS)


def run_unlocked(command: list[str], root: Path, log: Path, output: "Output") -> int:
    """Runs DVC, again and again while another DVC process has this stage's files: `--wait-for-lock`
    covers its other locks only."""
    waits = WaitNotifier(output.say)
    while True:
        code = process.run(command, root, log, output)
        if not code or not output.locked or process.stopping():
            return code
        output.locked = False
        waits.wait("another DVC process works on files of this stage")


class Output:
    """Reads a stage's lines: what happened, what went wrong, and which lines the UI shows (each is
    a row of its database)."""

    LINES_PER_SECOND = 3.0
    BURST = 30.0

    def __init__(self, stage: str, log: Path, logger: Logger) -> None:
        self.outcome = "Unknown"
        self.trouble = ""
        self.locked = False
        self._log, self._logger = log, logger
        self._progress = artifacts.Progress(stage)
        self._allowance, self._seen, self._hidden = self.BURST, time.monotonic(), 0

    def __call__(self, line: str) -> None:
        line = self._progress.show(line)
        if not line or NOISE.search(line):
            return
        if self.outcome == "Unknown":
            self.outcome = next(
                (name for words, name in OUTCOMES.items() if words in line), "Unknown"
            )
        # Only what DVC says before it starts the stage: a stage prints what it wants.
        self.locked |= self.outcome == "Unknown" and LOCKED.search(line) is not None
        if re.match(r"error: |stopped: |\w*Error: ", line) or (
            not self.trouble and line.startswith("ERROR: ")
        ):
            self.trouble = line
        self.say(line)

    def say(self, line: str) -> None:
        """Shows a line, unless there were too many lately."""
        now = time.monotonic()
        self._allowance = min(
            self.BURST, self._allowance + (now - self._seen) * self.LINES_PER_SECOND
        )
        self._seen = now
        is_error = ERROR.match(line) is not None
        if self._allowance < 1 and not is_error and not LOUD.search(line):
            self._hidden += 1
            return
        if self._hidden:
            self._logger.info("(%d lines are in %s only)", self._hidden, self._log)
        self._allowance, self._hidden = self._allowance - 1, 0
        level = logging.INFO
        if is_error:
            level = logging.ERROR
        elif line.startswith("WARNING"):
            level = logging.WARNING
        self._logger.log(level, "%s", line)
