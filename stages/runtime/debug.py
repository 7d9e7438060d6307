"""A stage run to look at it: `python -m stages.rl short --debug --iterations 2`.

Errors end it with a traceback. It works on a copy of what the stage has saved last, whatever code
saved it, so that an edit does not start it over. It publishes nothing: its numbers are of two
codes.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from stages.runtime import paths


@dataclass(kw_only=True)
class Options:
    """What the command line asked for."""

    enabled: bool = False
    """Whether this process debugs a stage."""
    max_units: int | None = None
    """After how many units of work (iterations, steps, responses) to stop; None for no limit."""


options = Options()


def debug_folder(stage: str) -> Path:
    """The scratch folder of a debug run: a copy of the stage's newest one, if it has one."""
    folder = paths.SCRATCH / f"debug-{stage}"
    shutil.rmtree(folder, ignore_errors=True)
    saved = [path for path in paths.SCRATCH.glob(f"{stage}-*") if path.suffix != ".tmp"]
    if saved:
        newest = max(saved, key=lambda path: path.stat().st_mtime)
        shutil.copytree(newest, folder)
        print(
            f"debug: goes on from a copy of {newest}, saved by other code or this", file=sys.stderr
        )
    else:
        folder.mkdir(parents=True)
        print(f"debug: {stage} has nothing saved and starts at the beginning", file=sys.stderr)
    return folder


def refuse_to_publish(folder: Path) -> NoReturn:
    """Ends a debug run where it would publish."""
    sys.exit(f"debug: the stage came to its end; nothing is published, its work is in {folder}")
