"""Runs commands under guards: whole output into a file, each line to a callback, and all of them
stopped at once.

The state is this module's: Prefect pickles a served flow with the globals of its own module, and a
lock does not survive that.
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

GUARD = Path(__file__).with_name("guard.py")
_LINE_END = re.compile(rb"\r\n|[\r\n]")  # a progress bar ends its lines with a carriage return
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

_guards: set[subprocess.Popen[bytes]] = set()
_stopping = threading.Event()


def run(command: Sequence[str], folder: Path, log: Path, on_line: Callable[[str], None]) -> int:
    """Exit status of a command in `folder`. Its output is appended to `log`, from which the lines
    are read: the death of this process takes neither the log nor the reader of the command's output
    away, so that a stage can still save its work."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output, log.open("rb") as reader:
        reader.seek(0, os.SEEK_END)
        guard = subprocess.Popen(
            [sys.executable, str(GUARD), *command],
            cwd=folder,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _guards.add(guard)
        try:
            if _stopping.is_set():
                _close(guard)
            for line in _lines(reader, guard):
                on_line(line)
        finally:
            _close(guard)
            guard.wait()
            _guards.discard(guard)
    return guard.returncode


def stop_all() -> None:
    """Stops every running command, all at once, and whatever is started later."""
    _stopping.set()
    for guard in list(_guards):
        _close(guard)


def reset_stop() -> None:
    """Allows commands again after stop_all: a new run in the same process."""
    _stopping.clear()


def stopping() -> bool:
    """Whether stop_all has been called."""
    return _stopping.is_set()


def dvc(*arguments: str) -> list[str]:
    """The DVC of this environment. It waits for other DVC processes; without that it gives up after
    three seconds."""
    return [sys.executable, "-m", "dvc", "--wait-for-lock", *arguments]


def environment() -> dict[str, str]:
    """That of a DVC process."""
    # `python` in dvc.yaml must be this one, and its lines must come when they are printed.
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
    }


def _close(guard: subprocess.Popen[bytes]) -> None:
    assert guard.stdin is not None
    guard.stdin.close()


def _lines(reader: BinaryIO, guard: subprocess.Popen[bytes]) -> Iterator[str]:
    """Lines as they are written, without colours and empty ones, until the guard has ended."""
    rest = b""
    while True:
        ended = guard.poll() is not None
        *whole, rest = _LINE_END.split(rest + reader.read())
        if ended:
            whole.append(rest)
        for line in whole:
            if text := _COLOUR.sub("", line.decode("utf-8", "replace")).strip():
                yield text
        if ended:
            return
        time.sleep(0.1)
