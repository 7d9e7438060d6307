"""Fuzzing of the doors through which strangers' input comes in (tests/doors.py).

The suite tries a few inputs of each door. More, for as long as it finds something:

    python -m tests.fuzz --count 10000 --door sql

The smallest input that fails is kept in tests/fixtures/fuzz/<door>.txt, which the suite tries too.
"""

import argparse
import ast
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings

from tests.doors import DOORS, ROOT, Hang

CORPUS = ROOT / "tests" / "fixtures" / "fuzz"


def fuzz(name: str, count: int, folder: Path) -> int:
    """Tries so many inputs of a door, the same ones each time; returns how many it tried. Fails
    with the smallest input that does what none may, and keeps it in the corpus."""
    strategy, check = DOORS[name](folder)
    num_inputs = 0
    failure: Any = None

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def attempt(value: Any) -> None:
        nonlocal num_inputs, failure
        num_inputs += 1
        failure = value
        check(value)

    try:
        attempt()
    except BaseException:
        keep(name, failure)
        raise
    return num_inputs


def keep(name: str, value: Any) -> None:
    """Appends an input to the corpus of a door."""
    path = CORPUS / f"{name}.txt"
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="ascii") as file:
        file.write(ascii(value) + "\n")


def replay(name: str, folder: Path) -> int:
    """Tries the inputs of a door that failed once; returns how many there are."""
    path = CORPUS / f"{name}.txt"
    if not path.is_file():
        return 0
    _, check = DOORS[name](folder)
    values = [ast.literal_eval(line) for line in path.read_text("ascii").splitlines()]
    for value in values:
        check(value)
    return len(values)


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=1000, help="inputs of each door (1000)")
    parser.add_argument("--door", choices=sorted(DOORS), action="append", help="default: all")
    arguments = parser.parse_args()
    failed = False
    for name in arguments.door or sorted(DOORS):
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "door").mkdir()
            try:
                num_inputs = fuzz(name, arguments.count, Path(folder) / "door")
                told = f"{num_inputs} inputs, none wrong"
            except (Exception, Hang) as error:
                failed = True
                told = f"an input is wrong: {error}"
        print(f"{name}: {told} ({time.monotonic() - start:.0f} s)", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    run()
