"""Curves of stages that are still running, read from the state each saves in its scratch folder: a
page that reloads itself."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from tracerl.reporting.pages import template
from tracerl.reporting.report import loss_chart, round_charts


def render_live(scratch: Path, every_seconds: int) -> str:
    """A page with the curves of every stage that has a state below `scratch`; browsers load it
    again after `every_seconds`."""
    running = []
    for path in sorted(scratch.glob("*/state.safetensors")):
        stage, progress = path.parent.name.rpartition("-")[0], _progress(path)
        if progress and progress.get("curve"):
            running.append(
                (
                    stage,
                    f"step {progress['curve'][-1]['step']}",
                    [loss_chart(stage, progress["curve"])],
                )
            )
        elif progress and progress.get("curves", {}).get("train"):
            curves = progress["curves"]
            running.append(
                (
                    stage,
                    f"iteration {progress['iteration']}",
                    round_charts(curves["train"], curves["held_out"]),
                )
            )
    return template("live.html.j2").render(running=running, every_seconds=every_seconds)


def _progress(path: Path) -> dict[str, Any] | None:
    """What a stage saved beside its tensors; None if it has just replaced or removed the file."""
    try:
        with safe_open(path, framework="numpy") as file:
            progress = json.loads((file.metadata() or {}).get("progress", "null"))
            return progress if isinstance(progress, dict) else None
    except (OSError, SafetensorError, ValueError):
        return None
