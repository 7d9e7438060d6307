"""The process that decides pairs of mathematical answers: `python -c "from
tracerl.rewards.verify.math_worker import main; main()"`.

It imports sympy once, then forks for every pair: each child starts from the same state, so that no
verdict depends on what was decided before, and dies of its own CPU-time limit, which the load of
the machine does not move. Requests and replies are lines of JSON.
"""

import gc
import json
import os
import resource
import select
import signal
import sys

from sympy.core.random import seed

from tracerl.rewards.verify import algebra
from tracerl.rewards.verify.answers import compare_answers

_MEMORY = 2**31
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
    for line in sys.stdin:
        gold, given, cpu_seconds = json.loads(line)
        sys.stdout.write(json.dumps(_decide(gold, given, cpu_seconds)) + "\n")
        sys.stdout.flush()


def _decide(gold: str, given: str, cpu_seconds: float) -> str:
    """The verdict; a child that dies of its limits or hangs leaves "undecided". One that somebody
    killed is replaced once."""
    text, killed = _asked(gold, given, cpu_seconds)
    if killed:
        text, _ = _asked(gold, given, cpu_seconds)
    return text or "undecided"


def _asked(gold: str, given: str, cpu_seconds: float) -> tuple[str, bool]:
    """What a child says, "" if it dies, and whether it was killed by somebody else."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _limited(gold, given, cpu_seconds, writing)
    os.close(writing)
    # A child that neither computes nor ends is stuck in the system, not in mathematics; the wall
    # clock is only for that.
    ready, _, _ = select.select([reading], [], [], 60 * cpu_seconds + 60)
    text = os.read(reading, 64).decode() if ready else ""
    os.close(reading)
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return text, bool(ready) and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _limited(gold: str, given: str, cpu_seconds: float, writing: int) -> None:
    """In the child: decide under limits, report, and leave without running anybody's clean-up."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        whole = int(cpu_seconds) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        seed(0)
        verdict = compare_answers(gold, given, algebra)
    except BaseException:
        verdict = "undecided"  # recursion, memory, or whatever else hostile text provoked
    os.write(writing, verdict.encode())
    os._exit(0)
