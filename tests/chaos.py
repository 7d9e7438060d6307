"""Kills a tiny chain at random moments until it is done, and compares it with an undisturbed run.

    python -m tests.chaos --minutes 30

A round starts with nothing made. `python -m flows.repro` runs again and again, as a person would
run it, and each time something is killed: the stage, DVC, the runner, all of them, or DVC while it
writes dvc.lock. A run that is left alone must end without an error, with the same bytes as the
undisturbed run. The exit status is 1 if one does not.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import yaml

from flows.lockfile import stages_of
from tests.chain import chain_environment, chain_params, make_chain, results
from tests.repository import commit

STAGES = ("code", "params", "tasks", "base", "sft")
KINDS = ("stage", "dvc", "runner", "all", "dvc.lock")
MAX_REFUSALS = 20
_NEXT_TRY_SECONDS = 2.0


class Chaos:
    """Rounds of kills on copies of one project.

    kills: by what was killed. refusals: runs that ended by themselves with an error (a stage that
    an orphan still runs). differences: rounds that did not end as the undisturbed run.
    """

    def __init__(self, place: Path, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self.refusals = 0
        self.repairs = 0
        self.rounds = 0
        self.differences: list[str] = []
        self._place = place
        self._rng = random.Random(f"chaos {seed}")
        self._source = place / "source" / "project"
        make_small_chain(self._source)
        whole = self._copy("undisturbed")
        started = time.monotonic()
        process = start(whole)
        output = process.communicate()[0]
        if process.returncode:
            raise RuntimeError(f"the undisturbed run failed\n{output}")
        self._seconds = time.monotonic() - started
        self._wanted = outcome(whole)

    def round(self, goes_on: Callable[[], bool], max_kills: int) -> None:
        """Kills a run of the whole chain up to `max_kills` times, while `goes_on`; then leaves it
        alone."""
        folder = self._copy(f"round-{self.rounds}")
        done = False
        num_kills = 0
        while not done and num_kills < max_kills and goes_on():
            kind = self._rng.choice(KINDS)
            process = start(folder)
            if self._kill(process, folder, kind):
                self.kills[kind] += 1
                num_kills += 1
            self._count_output(process.communicate()[0])
            wait_for_orphans(folder)
            done = process.returncode == 0
        self._finish(folder)
        self.rounds += 1
        shutil.rmtree(folder.parent)

    def table(self) -> str:
        """What was done, for the terminal."""
        lines = [f"{kind:10} {self.kills[kind]:5} kills" for kind in KINDS]
        lines += [
            f"{'all kinds':10} {self.kills.total():5} kills in {self.rounds} rounds",
            f"dvc.lock repaired: {self.repairs}; runs that asked to be started again:"
            f" {self.refusals}",
            f"rounds that ended otherwise than the undisturbed run: {len(self.differences)}",
            *self.differences,
        ]
        return "\n".join(lines)

    def _finish(self, folder: Path) -> None:
        for _ in range(MAX_REFUSALS):
            process = start(folder)
            output = process.communicate()[0]
            self._count_output(output)
            if process.returncode == 0:
                break
            self.refusals += 1
            time.sleep(_NEXT_TRY_SECONDS)
        else:
            self.differences.append(f"round {self.rounds}: never ended\n{output}")
            return
        got = outcome(folder)
        if got != self._wanted:
            parts = sorted(
                part for part in {**got, **self._wanted} if got.get(part) != self._wanted.get(part)
            )
            self.differences.append(f"round {self.rounds}: {', '.join(parts)}")

    def _kill(self, process: "subprocess.Popen[str]", folder: Path, kind: str) -> bool:
        """Whether something was killed before the run had ended."""
        if kind == "dvc.lock":
            return kill_while_writing(process, folder / "dvc.lock", self._rng.randint(1, 2))
        deadline = time.monotonic() + self._rng.uniform(0.0, self._seconds / 3)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        victims = [victim for victim in tree(process.pid) if matches(victim, process.pid, kind)]
        for victim in victims:
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                continue
        return bool(victims)

    def _copy(self, name: str) -> Path:
        folder = self._place / name / "project"
        shutil.copytree(self._source, folder, symlinks=True)
        return folder

    def _count_output(self, output: str) -> None:
        self.repairs += output.count("dvc.lock was cut off")


def make_small_chain(folder: Path) -> None:
    """Tasks, base and one round of SFT, without the validations, which take seconds to start."""
    params = chain_params()
    params["base"]["train"].update(num_steps=20)
    objective = params["base"]["train"]["objective"]
    round_ = {**params["sft"]["short"], "data": "tasks", "objective": objective, "num_steps": 20}
    params["sft"] = {"short": round_}
    params["rl"] = {}
    params["evaluate"] = {}
    make_chain(folder, params, STAGES)
    path = folder / "dvc.yaml"
    pipeline = yaml.safe_load(path.read_text())
    for entry in pipeline["stages"].values():
        stage = entry.get("do", entry)
        stage["deps"] = [dep for dep in stage["deps"] if not dep.endswith(".passed")]
    path.write_text(yaml.safe_dump(pipeline, sort_keys=False))
    commit(folder, "chain")


def start(folder: Path) -> "subprocess.Popen[str]":
    """`make repro`, but for the installing."""
    env = chain_environment(folder)
    env["PYTHONPATH"] = f"{folder / 'src'}:{folder}"
    return subprocess.Popen(
        [sys.executable, "-m", "flows.repro"],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def outcome(folder: Path) -> dict[str, object]:
    """Bytes of everything that was made, and what dvc.lock says of each stage."""
    stages = stages_of((folder / "dvc.lock").read_text()) or {}
    return {**results(folder), **{f"dvc.lock: {name}": entry for name, entry in stages.items()}}


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def matches(process: psutil.Process, runner: int, kind: str) -> bool:
    """Whether a process is what a kind of kill hits."""
    try:
        words = process.cmdline()
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
    except psutil.NoSuchProcess:
        return False
    if kind == "all":
        return True
    if kind == "runner":
        return process.pid == runner
    if kind == "stage":
        return any(word.startswith("stages.") for word in words)
    return "dvc" in words and process.pid != runner


def kill_while_writing(process: "subprocess.Popen[str]", lock: Path, num_writes: int) -> bool:
    """Kills DVC in the middle of its `num_writes`-th rewriting of dvc.lock, which empties the file
    first; False if the run ended before that."""
    dvc: list[psutil.Process] = []
    while process.poll() is None and not dvc:
        dvc = [each for each in tree(process.pid) if matches(each, process.pid, "dvc")]
    size = 0
    while process.poll() is None:
        before = size
        size = lock.stat().st_size if lock.is_file() else 0
        num_writes -= size < before
        if num_writes == 0:
            dvc[0].kill()
            return True
        time.sleep(0.0005)
    return False


def wait_for_orphans(folder: Path) -> None:
    """Returns when no stage works in the folder any more."""
    while any(works_in(process, folder) for process in psutil.process_iter()):
        time.sleep(0.1)


def works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to go on (30)")
    parser.add_argument("--kills", type=int, default=10, help="kills in a round, at most (10)")
    parser.add_argument("--seed", type=int, default=1, help="random seed of moments and kinds (1)")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="chaos-") as place:
        chaos = Chaos(Path(place), options.seed)
        while time.monotonic() < deadline:
            chaos.round(lambda: time.monotonic() < deadline, options.kills)
            print(chaos.table(), flush=True)
    sys.exit(1 if chaos.differences else 0)


if __name__ == "__main__":
    main()
