"""Brings this folder's DVC project up to date, independent stages side by side: `make repro`.

python -m flows.repro                      everything
python -m flows.repro evaluate --force     these stages or groups of stages, and what they need
python -m flows.repro --jobs 1             one stage at a time, as `dvc repro`

What is fresh, and how a stage is run, stays DVC's: each stage that is not fresh is a `dvc repro
--single-item`. Every stage computes what it computes alone, so that the results are those of `dvc
repro`. dvc.lock survives a kill.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from types import FrameType

from flows import process
from flows.workspace import Stage, is_target, read_plan, restore_params, single_run
from tracerl.errors import TracerlError

_POLL_SECONDS = 0.02
# Exists where the NVIDIA driver has found a GPU; torch, which knows better, takes seconds to ask.
_GPU = Path("/dev/nvidia0")


class Runner:
    """Runs the stages of a plan through DVC, `num_jobs` at a time.

    forced: stages to run even if they are fresh.
    """

    def __init__(
        self, root: Path, plan: Mapping[str, Stage], forced: Sequence[str], num_jobs: int
    ) -> None:
        self._root = root
        self._plan = plan
        self._forced = forced
        self._num_jobs = num_jobs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, float] = {}
        self._runs: set[str] = set()  # what was handed to DVC: it may have changed
        self._status = 0

    def run(self) -> int:
        """The exit status of the first DVC that failed, or 0. After a failure or a signal no stage
        is started, and those that run are waited for."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        order = TopologicalSorter({name: stage.needs for name, stage in self._plan.items()})
        order.prepare()
        place = {name: i for i, name in enumerate(self._plan)}
        ready: list[str] = []
        while order.is_active():
            ready = sorted([*ready, *order.get_ready()], key=place.__getitem__)
            if ready and not self._status and self._is_fresh(ready[0]):
                order.done(ready.pop(0))
            elif ready and not self._status and len(self._running) < self._num_jobs:
                self._start(ready.pop(0))
            elif self._running:
                order.done(self._wait())
            else:
                break
        if not self._runs:
            say("Every stage is up to date.")
        return self._status

    def _is_fresh(self, name: str) -> bool:
        """Whether DVC need not be asked to run a stage. Where something that it needs was run, DVC
        looks at it again."""
        if name in self._forced:
            return False
        if not self._runs.intersection(self._plan[name].needs):
            return self._plan[name].is_fresh
        return read_plan(self._root, [name])[name].is_fresh

    def _start(self, name: str) -> None:
        force = ["--force"] if name in self._forced else []
        command = process.dvc("repro", "--quiet", "--single-item", *force, name)
        say(f"{name}: started")
        self._starts[name] = time.monotonic()
        self._runs.add(name)
        self._running[name] = subprocess.Popen(command, cwd=self._root, env=self._environment())

    def _environment(self) -> dict[str, str]:
        """On a terminal, a stage that starts beside another has its progress bar a line below."""
        position = {"TQDM_POSITION": "1"} if self._running and sys.stderr.isatty() else {}
        return {**process.environment(), **position}

    def _wait(self) -> str:
        """The next stage that ends."""
        while True:
            for name, dvc in self._running.items():
                code = dvc.poll()
                if code is not None:
                    del self._running[name]
                    seconds = time.monotonic() - self._starts[name]
                    say(f"{name}: {'failed' if code else 'done'} after {seconds:.0f} s")
                    self._status = self._status or (code if code >= 0 else 128 - code)
                    return name
            time.sleep(_POLL_SECONDS)

    def _stop(self, number: int, _: FrameType | None) -> None:
        """Ctrl-C reaches the stages by the terminal, SIGTERM through this process; both let them
        save their work."""
        self._status = self._status or 128 + number
        if number == signal.SIGTERM:
            for dvc in self._running.values():
                dvc.send_signal(number)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def default_jobs() -> int:
    """Two, if there are two cores; one on a GPU, whose memory two stages would share."""
    return 1 if _GPU.exists() else min(2, os.cpu_count() or 1)


def main(arguments: Sequence[str]) -> int:
    """Exit status of the run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", help="stages or groups of stages; all by default")
    parser.add_argument(
        "-f", "--force", action="store_true", help="run the targets even if nothing changed"
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        default=default_jobs(),
        metavar="N",
        help="independent stages at the same time (2; 1 where there is a GPU or one core)",
    )
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs: at least one stage runs at a time")
    root = Path.cwd()
    try:
        with single_run(root, "flows.repro", say):
            restore_params(root, say)
            plan = read_plan(root, options.targets)
            forced = [name for name in plan if options.force and is_target(name, options.targets)]
            return Runner(root, plan, forced, options.jobs).run()
    except TracerlError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
