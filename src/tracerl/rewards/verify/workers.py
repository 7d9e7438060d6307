"""Processes that judge for us and may die: a client of `math_worker`, as many at once as there are
workers.

Law: the verdict on a pair depends on the pair and the CPU-time limit alone, not on load, order or
number of workers. A worker that dies is replaced and its pair decided again; a pair that kills two
workers is "undecided", never "different".
"""

import contextlib
import json
import queue
import subprocess
import sys
from typing import IO, cast

from tracerl.rewards.verify.answers import decide_quickly
from tracerl.rewards.verify.math import Equivalence

_COMMAND = "from tracerl.rewards.verify.math_worker import main; main()"


class MathWorkers:
    """`num_workers` processes, started when first needed. Safe to call from several threads."""

    def __init__(self, num_workers: int, cpu_seconds: float) -> None:
        self.cpu_seconds = cpu_seconds
        self._idle: queue.SimpleQueue[subprocess.Popen[str] | None] = queue.SimpleQueue()
        self._num_workers = num_workers
        for _ in range(num_workers):
            self._idle.put(None)

    def equivalent(self, gold: str, text: str) -> Equivalence:
        """Whether `given` (an extracted answer) equals `gold`."""
        quick = decide_quickly(gold, text)
        if quick is not None:
            return quick
        worker = self._idle.get()
        try:
            for _ in range(2):
                if worker is not None and worker.poll() is not None:
                    _end(worker)
                    worker = None
                worker = worker or _start()
                try:
                    return _ask(worker, gold, text, self.cpu_seconds)
                except (OSError, ValueError):
                    _end(worker)
                    worker = None
            return "undecided"
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Ends the processes; waits for pairs that are being decided."""
        for _ in range(self._num_workers):
            worker = self._idle.get()
            if worker is not None:
                _end(worker)
        for _ in range(self._num_workers):
            self._idle.put(None)


def _start() -> subprocess.Popen[str]:
    # The fixed hash seed fixes the order of sympy's sets, hence every verdict near a limit.
    environment = {"PYTHONHASHSEED": "0", "PYTHONPATH": ":".join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    )


def _ask(worker: subprocess.Popen[str], gold: str, text: str, cpu_seconds: float) -> Equivalence:
    asking, answering = cast(IO[str], worker.stdin), cast(IO[str], worker.stdout)
    asking.write(json.dumps([gold, text, cpu_seconds]) + "\n")
    asking.flush()
    return cast(Equivalence, json.loads(answering.readline()))


def _end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was never written to a dead worker
                pipe.close()
