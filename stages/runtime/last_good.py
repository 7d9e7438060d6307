"""Curves and metrics of the last run of a stage, which stay until the stage publishes again.

DVC deletes a stage's outputs before it runs. A round that runs, failed or was stopped would then
have no curve to look at. So each stage keeps a copy of its small reports when it publishes, and
puts back what DVC has deleted when it starts. The copies lie in DVC's own temporary folder, which
neither DVC nor git looks at.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from stages.runtime import paths

_DVC = paths.ROOT / ".dvc"
_COPIES = _DVC / "tmp" / "last-good"


def keep_reports(stage: str, source: Path, outputs: Mapping[str, Path]) -> None:
    """Copies the reports among what a stage publishes: names of files in `source` -> their places.
    Does nothing outside a DVC project."""
    if not _DVC.is_dir():
        return
    copies = _COPIES / stage
    shutil.rmtree(copies, ignore_errors=True)
    for name, place in outputs.items():
        if place.is_relative_to(paths.REPORTS):
            copy = copies / place.relative_to(paths.REPORTS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, copy)


def restore_reports(stage: str) -> None:
    """Puts back the reports of a stage that are not there; they keep the time of their making."""
    copies = _COPIES / stage
    for copy in sorted(copies.rglob("*")):
        place = paths.REPORTS / copy.relative_to(copies)
        if copy.is_file() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            aside = place.with_name(place.name + ".tmp")
            shutil.copy2(copy, aside)
            os.replace(aside, place)
