"""Disturbs a tiny chain at random moments until it is done, and compares it with an undisturbed
run.

    python -m tests.chaos --minutes 30
    python -m tests.chaos --kills 200 --seed 7

A round starts with nothing made. The whole chain is run again and again, as a person would run it,
and each run is disturbed: the stage, DVC, the runner, the flow, Prefect's server or worker are
killed, DVC is killed while it writes dvc.lock, the disk is full, the clock jumps, two runs start at
once. A run that is left alone must end without an error, with the same bytes as the undisturbed
run. The exit status is 1 if one does not.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import yaml

from flows.lockfile import stages_of
from tests.chain import chain_params, make_chain, results
from tests.disturbances import DISTURBANCES, Attempt, end, small_disk, start, wait_for_orphans
from tests.repository import commit
from tests.tiny_run import ROOT

STAGES = ("code", "params", "tasks", "base", "sft")
# How often a kind comes in one pass over all kinds: Prefect's server takes half a minute to start.
WEIGHTS = {
    "stage": 4,
    "dvc": 4,
    "runner": 3,
    "all": 3,
    "dvc.lock": 4,
    "flow": 2,
    "full disk": 2,
    "clock": 2,
    "two runs": 2,
    "server": 1,
    "worker": 1,
}
# The last moment of a disturbance, as a share of an undisturbed run: what ended before stays done,
# so that later stages have their turn.
LATEST = 1 / 6
MAX_RESTARTS = 5
DISK_MEGABYTES = 512


class Chaos:
    """Rounds of disturbances on copies of one project in `place`.

    kills: disturbances by kind. interventions: errors of runs that should have ended well, by the
    kind that came last. differences: rounds that did not end as the undisturbed run, by each of the
    round's kinds. reports: what happened there.
    """

    def __init__(self, place: Path, seed: int, weights: dict[str, int]) -> None:
        self.kills: Counter[str] = Counter()
        self.interventions: Counter[str] = Counter()
        self.differences: Counter[str] = Counter()
        self.reports: list[str] = []
        self.repairs = 0
        self.num_rounds = 0
        self._weights = weights
        self._place = place
        self._rng = random.Random(f"chaos {seed}")
        self._waiting: list[str] = []
        self._source = place / "source" / "project"
        make_small_chain(self._source)
        whole = self._copy("undisturbed")
        started = time.monotonic()
        attempt = end(start(whole), struck=False)
        if attempt.status:
            raise RuntimeError(f"the undisturbed run failed\n{attempt.output}")
        self._seconds = time.monotonic() - started
        self._reference = outcome(whole)

    def round(self, goes_on: Callable[[], bool], max_kills: int) -> None:
        """Disturbs a chain up to `max_kills` times, while `goes_on` and until it is done; then
        leaves it alone and compares."""
        folder = self._copy(f"round-{self.num_rounds}")
        kinds: list[str] = []
        done = False
        while not done and len(kinds) < max_kills and goes_on():
            kind = self._next_kind()
            attempt = DISTURBANCES[kind](folder, self._rng, self._seconds * LATEST)
            if attempt.struck:
                kinds.append(kind)
                self.kills[kind] += 1
            self._note(kind, attempt)
            done = attempt.status == 0
        self._finish(folder, kinds, done)
        self.num_rounds += 1
        wait_for_orphans(folder)
        shutil.rmtree(folder.parent)

    def table(self) -> str:
        """What was done, for the terminal."""
        lines = [f"{'kind':10} {'kills':>6} {'differences':>12} {'interventions':>14}"]
        for kind in self._weights:
            counts = self.kills[kind], self.differences[kind], self.interventions[kind]
            lines.append(f"{kind:10} {counts[0]:6} {counts[1]:12} {counts[2]:14}")
        totals = self.kills.total(), self.differences.total(), self.interventions.total()
        lines.append(f"{'all':10} {totals[0]:6} {totals[1]:12} {totals[2]:14}")
        lines.append(f"{self.num_rounds} rounds; dvc.lock repaired {self.repairs} times")
        return "\n".join([*lines, *self.reports])

    def _next_kind(self) -> str:
        """Kinds in random order, each as often as its weight says."""
        if not self._waiting:
            self._waiting = list(Counter(self._weights).elements())
            self._rng.shuffle(self._waiting)
        return self._waiting.pop()

    def _finish(self, folder: Path, kinds: list[str], done: bool) -> None:
        """Runs the chain undisturbed to its end, unless it is done, and compares."""
        for _ in range(0 if done else MAX_RESTARTS):
            attempt = end(start(folder), struck=False)
            self._note(kinds[-1] if kinds else "none", attempt)
            if attempt.status == 0:
                break
        different = sorted(differing(outcome(folder), self._reference))
        if different:
            self.differences.update(set(kinds))
            self.reports.append(f"round {self.num_rounds} ({kinds}): {', '.join(different)}")

    def _note(self, kind: str, attempt: Attempt) -> None:
        self.repairs += attempt.output.count("dvc.lock was cut off")
        unclear = "Traceback" in attempt.output and kind not in ("server", "worker")
        if unclear or (attempt.status and (attempt.survives or not attempt.struck)):
            self.interventions[kind] += 1
            lines = attempt.output.splitlines()[-40:]
            self.reports.append("\n".join([f"round {self.num_rounds}, {kind}:", *lines]))

    def _copy(self, name: str) -> Path:
        folder = self._place / name / "project"
        shutil.copytree(self._source, folder, symlinks=True)
        return folder


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
    for name in ("prefect.yaml", "pyproject.toml"):  # Prefect's deployments and settings
        shutil.copy(ROOT / name, folder)
    path = folder / "dvc.yaml"
    pipeline = yaml.safe_load(path.read_text())
    for entry in pipeline["stages"].values():
        stage = entry.get("do", entry)
        stage["deps"] = [dep for dep in stage["deps"] if not dep.endswith(".passed")]
    path.write_text(yaml.safe_dump(pipeline, sort_keys=False))
    commit(folder, "chain")


def outcome(folder: Path) -> dict[str, object]:
    """Bytes of everything that was made, and what dvc.lock says of each stage."""
    lock = folder / "dvc.lock"
    stages = (stages_of(lock.read_text()) if lock.is_file() else None) or {}
    return {**results(folder), **{f"dvc.lock: {name}": entry for name, entry in stages.items()}}


def differing(first: dict[str, object], second: dict[str, object]) -> set[str]:
    """Names of parts that only one outcome has, or that are not equal."""
    names = {*first, *second}
    return {name for name in names if first.get(name) != second.get(name)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to go on (30)")
    parser.add_argument("--kills", type=int, help="after how many to end (no limit)")
    parser.add_argument("--per-round", type=int, default=8, help="kills in a round, at most (8)")
    parser.add_argument("--seed", type=int, default=1, help="random seed of moments and kinds (1)")
    parser.add_argument("--kind", choices=sorted(WEIGHTS), action="append", help="default: all")
    options = parser.parse_args()
    weights = {kind: WEIGHTS[kind] for kind in options.kind or WEIGHTS}
    deadline = time.monotonic() + 60 * options.minutes
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as folder,
        small_disk(Path(folder), DISK_MEGABYTES) as is_small,
    ):
        if not is_small:
            print("no full disks: mounting a small one is not allowed here", flush=True)
            weights.pop("full disk", None)
        chaos = Chaos(Path(folder), options.seed, weights)

        def goes_on() -> bool:
            enough = options.kills is not None and chaos.kills.total() >= options.kills
            return not enough and time.monotonic() < deadline

        while goes_on():
            chaos.round(goes_on, options.per_round)
            print(chaos.table(), flush=True)
    sys.exit(1 if chaos.differences or chaos.interventions else 0)


if __name__ == "__main__":
    main()
