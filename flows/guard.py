"""Runs one command and takes its whole process tree down with it.

    python flows/guard.py COMMAND ARGUMENT ...

Whoever starts a guard holds a pipe to its stdin. When the pipe closes, because its holder wants it
or because its holder has died, or when a signal comes, every process below the guard gets SIGINT,
which lets a stage save its work, then SIGTERM, then SIGKILL. A process that left its group or lost
its parent is found all the same. What the command leaves behind when it ends by itself is ended
too.

The exit status is the command's. Standard library and psutil only: it starts in a tenth of a
second.
"""

import contextlib
import ctypes
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

# Signal, and how long the tree may take to obey it, in seconds. Prefect kills a cancelled flow 30 s
# after it asked.
ASK = ((signal.SIGINT, 8.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0))
_PR_SET_CHILD_SUBREAPER = 36


def main(command: Sequence[str]) -> int:
    # Orphans below become our children instead of init's, so that none is lost sight of.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while child.poll() is None and not asked:
        if select.select([sys.stdin], [], [], 0.1)[0] and not sys.stdin.buffer.read(1):
            break
    end_tree(ASK if child.poll() is None else ASK[1:])
    return child.wait()


def end_tree(ask: Sequence[tuple[signal.Signals, float]]) -> None:
    """Sends each signal to every living process below this one, the next signal if some do not end
    in time."""
    for number, seconds in ask:
        deadline = time.monotonic() + seconds
        told: set[psutil.Process] = set()
        while (left := living()) and time.monotonic() < deadline:
            for process in left - told:  # also what was born meanwhile
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            told |= left
            time.sleep(0.05)
        if not left:
            return


def living() -> set[psutil.Process]:
    """Every process below this one that has not ended. Ended ones are not reaped: the command's
    exit status would be lost."""
    alive = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.add(process)
    return alive


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
