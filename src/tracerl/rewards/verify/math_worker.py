"""The process that decides pairs of mathematical answers: `python -c "from
tracerl.rewards.verify.math_worker import main; main()"`.

It imports sympy once, then forks a child that decides pairs one after another, each with sympy's
caches cleared and under a CPU-time limit of its own, which the load of the machine does not move. A
pair over which a used child fails or dies is decided again by a fresh one, so that no verdict
depends on what was decided before. One child for many pairs, because a fork costs seven times what
a pair does: the child copies every page that it touches. Requests and replies are lines of JSON.
"""

import gc
import json
import os
import resource
import select
import signal
import sys
from typing import NoReturn

from sympy.core.cache import clear_cache
from sympy.core.random import seed

from tracerl.rewards.verify import algebra
from tracerl.rewards.verify.answers import compare_answers

_MEMORY = 2**31
_PAIRS_PER_CHILD = 200  # bounds what a child's memory may grow by
_WARM_UP = (
    (r"\frac{1}{2}x+\sqrt{2}", r"\sqrt{2}+\frac{x}{2}"),
    (r"(x+1)^2", "x^2+2x+1"),
    (r"\sin^2 x+\cos^2 x", r"\log_2 2"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\{1,2\}"),
    ("y=2x+1", "2y=4x+2"),
    (r"5\text{ cm}", r"[1,\infty)\cup(2,3)"),
)


def main() -> None:
    """Serves until its standard input closes."""
    sys.setrecursionlimit(3000)
    for pair in _WARM_UP:
        compare_answers(*pair, algebra)
    gc.freeze()  # keeps the children from copying what they only read
    children = _Children()
    for line in sys.stdin:
        gold, answer, cpu_seconds = json.loads(line)
        sys.stdout.write(json.dumps(children.decide(gold, answer, cpu_seconds)) + "\n")
        sys.stdout.flush()


class _Children:
    """One child at a time."""

    def __init__(self) -> None:
        self._child: _Child | None = None

    def decide(self, gold: str, answer: str, cpu_seconds: float) -> str:
        """The verdict; "undecided" if a fresh child fails or dies over it. One that somebody killed
        is replaced."""
        for _ in range(3):
            child = self._child or _Child()
            is_fresh = child.num_pairs == 0
            self._child = None
            verdict = child.decide(gold, answer, cpu_seconds)
            if verdict and child.num_pairs < _PAIRS_PER_CHILD:
                self._child = child
                return verdict
            was_killed = child.end()
            if verdict or (is_fresh and not was_killed):
                return verdict or "undecided"
        return "undecided"


class _Child:
    """A fork of this process that decides pairs."""

    def __init__(self) -> None:
        reading, self._requests = os.pipe()
        self._replies, writing = os.pipe()
        self.num_pairs = 0
        self._was_stuck = False
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._requests)
            os.close(self._replies)
            _serve(reading, writing)
        os.close(reading)
        os.close(writing)

    def decide(self, gold: str, answer: str, cpu_seconds: float) -> str:
        """What the child says, "" if it fails or dies."""
        self.num_pairs += 1
        request = json.dumps([gold, answer, cpu_seconds]) + "\n"
        try:
            os.write(self._requests, request.encode())
        except OSError:
            return ""
        # A child that neither computes nor ends is stuck in the system, not in mathematics; the
        # wall clock is only for that.
        ready, _, _ = select.select([self._replies], [], [], 60 * cpu_seconds + 60)
        self._was_stuck = not ready
        return os.read(self._replies, 64).decode().strip() if ready else ""

    def end(self) -> bool:
        """Ends the child; whether somebody else had killed it."""
        if self._was_stuck:
            os.kill(self._pid, signal.SIGKILL)
        os.close(self._requests)
        os.close(self._replies)
        _, status = os.waitpid(self._pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return killed and not self._was_stuck


def _serve(reading: int, writing: int) -> NoReturn:
    """In the child: decides until the requests end or a pair fails, and leaves without running
    anybody's clean-up."""
    try:
        for standard in (0, 1):  # they are the worker's
            os.dup2(os.open(os.devnull, os.O_RDWR), standard)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with os.fdopen(reading) as requests:
            for line in requests:
                os.write(writing, f"{_limited(*json.loads(line))}\n".encode())
    except BaseException:  # recursion, memory, or whatever else hostile text provoked
        os._exit(1)
    os._exit(0)


def _limited(gold: str, answer: str, cpu_seconds: float) -> str:
    """The verdict, from the same state for every pair. The timer kills this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = int(usage.ru_utime + usage.ru_stime + cpu_seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    clear_cache()
    seed(0)
    verdict = compare_answers(gold, answer, algebra)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return verdict
