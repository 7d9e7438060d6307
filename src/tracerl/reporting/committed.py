"""Whether a run equals the committed one, bit for bit: the outputs in dvc.lock against those of the
last commit."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tracerl.disk import json_object


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The outputs of a run beside those of the committed one."""

    num_outputs: int
    """Outputs of the committed run."""
    different: tuple[str, ...]
    """Paths of outputs with other bytes, and of those that only one of the two runs has."""


def compare_with_commit(root: Path) -> Comparison | None:
    """None if there is no run here, or none in the last commit, or no git."""
    lock = root / "dvc.lock"
    if not lock.is_file():
        return None
    now = _outputs(lock.read_text("utf-8", errors="replace"))
    before = _outputs(_committed_lock(root))
    if not now or not before:
        return None
    paths = sorted({*now, *before})
    return Comparison(
        num_outputs=len(before),
        different=tuple(path for path in paths if now.get(path) != before.get(path)),
    )


def describe(comparison: Comparison | None) -> str:
    """A sentence for the terminal."""
    if comparison is None:
        return "There is no committed run to compare with."
    if not comparison.different:
        return (
            "This run equals the committed one bit for bit"
            f" ({comparison.num_outputs} outputs, by the checksums in dvc.lock)."
        )
    num = len(comparison.different)
    names = ", ".join(comparison.different[:5]) + (", ..." if num > 5 else "")
    return f"This run differs from the committed one in {num} outputs: {names}"


def _outputs(text: str) -> dict[str, str]:
    """Checksum of each output in a lock file; empty if it is none.

    Without those of the stages `code` and `params`, which differ whenever a file was edited.
    """
    try:
        data: Any = YAML(typ="safe").load(text)
    except YAMLError:
        return {}
    stages: Mapping[str, Any] = {}
    if isinstance(data, dict) and isinstance(data.get("stages"), dict):
        stages = data["stages"]
    outputs = {}
    for name, entry in stages.items():
        if name in ("code", "params"):
            continue
        for out in json_object(entry, name).get("outs", []):
            outputs[out["path"]] = out["md5"]
    return outputs


def _committed_lock(root: Path) -> str:
    """dvc.lock of the last commit; "" if there is none."""
    command = ["git", "show", "HEAD:./dvc.lock"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""
