"""Brings a plan of the replication up to date, a few worlds at the same time, judges it, and puts
its pages into reports/.

    python -m replication.run            all claims on three seeds; some hours on two cores
    python -m replication.run --fast     one seed, smaller and shorter; some minutes

Each world (a family with a seed) is a pipeline with one `dvc repro` of its own; DVC decides what is
fresh, so that a second run does nothing. The first Ctrl-C lets every running stage save the unit of
work it is in; whatever ends it, the same command goes on from what is saved. Output of the stages
goes to replication/runs/<plan>/<world>/logs/dvc.log.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from flows import process
from flows.lockfile import safe_lock
from replication import plan as plans
from replication.page import verdict_table
from replication.plan import HERE, ROOT, World

QUIET = 30.0  # seconds between two lines of progress of one world


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fast", action="store_true", help="the plan `fast` instead of `full`")
    parser.add_argument(
        "--jobs",
        type=int,
        default=2,
        metavar="N",
        help="worlds at the same time, one core each (2)",
    )
    options = parser.parse_args()
    plan = "fast" if options.fast else "full"
    # As Ctrl-C, which a shell's background processes ignore.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plans.write()
    print("\n".join(plans.estimate(plan, options.jobs)), flush=True)
    started = time.monotonic()
    failed = run_worlds(plan, options.jobs, started)
    # By itself: a cell that failed would be tried again, and what it decides is undecided until it
    # ends.
    if run(
        ["repro", "--single-item", f"judge-{plan}"],
        HERE,
        HERE / "runs" / plan / "judge.log",
        say("judge", started),
    ):
        sys.exit(f"failed: the judging; see {HERE / 'runs' / plan / 'judge.log'}")
    for path in publish(plan):
        print(path.relative_to(ROOT))
    verdicts = json.loads((HERE / "verdicts" / plan / "replication.json").read_text())["claims"]
    print(verdict_table([verdicts[name] for name in plans.read_table()["claims"]]))
    if failed:
        logs = ", ".join(f"replication/runs/{plan}/{name}/logs/dvc.log" for name in failed)
        sys.exit(
            f"some cells failed, and what hangs on them is undecided: {logs}; the same command "
            "tries them again"
        )


def run_worlds(plan: str, jobs: int, started: float) -> list[str]:
    """Runs every world, the longest first; the names of those that failed."""
    table, defaults = plans.read_table(), plans.default_params()
    all_worlds = sorted(
        plans.worlds(table, plan, defaults), key=lambda world: -plans.estimate_seconds(table, world)
    )
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run_world, world, started): world for world in all_worlds}
        try:
            for future in as_completed(futures):
                if future.result():
                    failed.append(f"{futures[future].family}-{futures[future].seed}")
        except KeyboardInterrupt:
            process.stop_all()
            pool.shutdown(cancel_futures=True)
            sys.exit("stopped; the same command goes on from what is saved")
    return failed


def run_world(world: World, started: float) -> int:
    """Exit status of a world's `dvc repro`. A cell that fails stops what needs it and nothing
    else."""
    folder = HERE / world.folder
    show = say(world.name, started)
    with safe_lock(folder, show):
        return run(["repro", "--keep-going"], folder, folder / "logs" / "dvc.log", show)


def run(arguments: list[str], folder: Path, log: Path, on_line: Callable[[str], None]) -> int:
    """Exit status of a DVC command in a folder. It ends with this process, however that ends."""
    return process.run(process.dvc(*arguments), folder, log, on_line)


def say(name: str, started: float) -> Callable[[str], None]:
    """Shows what a world is at: its stages, what goes wrong, and now and then a line of
    progress."""
    last = 0.0

    def show(line: str) -> None:
        nonlocal last
        now = time.monotonic()
        loud = (
            line.startswith(
                ("Running stage", "ERROR", "error:", "stopped:", "Traceback", "dvc.lock")
            )
            or "changed, skipping" in line
        )
        if loud or ("%|" in line and now - last > QUIET):
            last = now
            print(f"{(now - started) / 60:6.1f} min  {name:14} {line.strip()}", flush=True)

    return show


def publish(plan: str) -> list[Path]:
    """Copies a plan's verdicts to where the project's reports are. Those of `fast` do not replace
    those of `full`."""
    suffix = "" if plan == "full" else f"-{plan}"
    source = HERE / "verdicts" / plan
    pairs = {
        "replication.html": ROOT / "reports" / f"replication{suffix}.html",
        "replication.json": ROOT / "reports" / "metrics" / f"replication{suffix}.json",
    }
    for name, target in pairs.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target)
    return list(pairs.values())


if __name__ == "__main__":
    main()
