"""How long the stages and the command line take to start: seconds of each to the end of `--help`,
median of three.

    python -m benchmarks.startup

Nearly all of it is imports: torch for the stages that compute, and nothing that large for the
others and the command line. `ours_s` are wall seconds, `busy_s` those of processors, which count on
a machine that is busy. Rows go to reports/metrics/benchmarks.json.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.rows import alone, merge_rows

STAGES = (
    "code",
    "params",
    "tasks",
    "base",
    "traces",
    "sft",
    "rl",
    "evaluate",
    "validate",
    "report",
)


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of `python ARGUMENTS --help`; ends the program if it fails."""
    wall, before = time.perf_counter(), os.times()
    done = subprocess.run(
        [sys.executable, *arguments, "--help"], capture_output=True, text=True, check=False
    )
    after = os.times()
    if done.returncode or "usage" not in done.stdout.lower():
        sys.exit(f"error: {' '.join(arguments)} --help failed\n{done.stdout}{done.stderr}")
    busy = (
        after.children_user - before.children_user + after.children_system - before.children_system
    )
    return time.perf_counter() - wall, busy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each is started; the median counts (3)"
    )
    rounds = parser.parse_args().rounds
    os.chdir(Path(__file__).resolve().parents[1])
    commands = {"tracerl": ["-c", "from tracerl.cli import main; main()"]} | {
        f"stages.{s}": ["-m", f"stages.{s}"] for s in STAGES
    }
    for name, command in commands.items():
        wall, busy = (
            median(column)
            for column in zip(*(seconds(command) for _ in range(rounds)), strict=True)
        )
        merge_rows([alone(f"startup/{name}", wall, busy_s=round(busy, 2))])


if __name__ == "__main__":
    main()
