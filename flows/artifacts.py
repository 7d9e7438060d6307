"""What a run shows in the Prefect UI besides its states: metrics against the last commit, progress
of long stages, links to the pages.

A server that does not take an artifact fails no run: the log says which one is missing.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

# tqdm's line: `rl@short:  34%|###   | 17/50 [00:40<01:20,  2.42s/iteration, reward 0.52]`
_PROGRESS = re.compile(
    r"\|\s*(?P<done>\d+)/(?P<total>\d+) \[(?P<spent>[\d:]+)<(?P<eta>[^,]+), "
    r"+(?P<speed>[^,\]]+)(?:, (?P<text>[^\]]*))?\]"
)
_PROGRESS_SECONDS = 5.0


def key(*parts: str) -> str:
    """An artifact's key: small letters, digits and dashes. Artifacts with one key are one history
    in the UI."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")


def publish_metrics(root: Path, stage: str, files: Sequence[str]) -> None:
    """The numbers in a stage's metrics files, with their change against the last commit.

    `dvc metrics diff` says the same; it takes seconds to start, for which every later stage would
    wait.
    """
    rows = [
        {"file": name, **row}
        for name in files
        for row in metric_rows(_json(root / name), metrics_at(root, "HEAD", name))
    ]
    publish_table(f"metrics {stage}", rows, f"Metrics of {stage} against the last commit")


def metric_rows(now: Any, before: Any) -> list[dict[str, Any]]:
    """Rows of a metrics table from the data of a metrics file now and at the last commit; what is
    not a number is left out."""
    old, rows = dict(numbers(before)), []
    for name, value in numbers(now):
        change = value - old[name] if name in old else None
        rows.append(
            {
                "metric": name,
                "now": _short(value),
                "last commit": _short(old.get(name)),
                "change": _short(change, "+"),
            }
        )
    return rows


def _json(path: Path) -> Any:
    return (
        json.loads(path.read_text("utf-8")) if path.is_file() and path.suffix == ".json" else None
    )


def metrics_at(root: Path, revision: str, name: str) -> Any:
    """The data of a metrics file at a git revision; None if there is no such revision, or no such
    file in it."""
    done = subprocess.run(
        ["git", "show", f"{revision}:./{name}"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout) if done.returncode == 0 and name.endswith(".json") else None


def numbers(tree: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """(dotted name, value) of every number below names, as DVC has them: rows of a list have no
    names."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from numbers(value, f"{name}.{key}" if name else str(key))
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield name, tree


def _short(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.6g}"


class Progress:
    """The progress artifact of one stage, made when the first line of a progress bar comes, renewed
    every few seconds."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._artifact: UUID | None = None
        self._renewed = float("-inf")

    def show(self, line: str) -> str:
        """Shows the progress bar in a line if it is time to; returns what else is in the line (a
        bar does not end its line)."""
        match = _PROGRESS.search(line)
        if match is None:
            return line
        rest = line[match.end() :].strip()
        done, total = int(match["done"]), int(match["total"])
        if done < total and time.monotonic() - self._renewed < _PROGRESS_SECONDS:
            return rest
        self._renewed = time.monotonic()
        percent = min(100.0 * done / max(total, 1), 100.0)
        notes = f"{match['text']}, " if match["text"] else ""
        text = f"{self._stage}: {done} of {total}, {notes}ETA {match['eta']} ({match['speed']})"
        if self._artifact is None:
            self._artifact = publish(
                lambda: create_progress_artifact(percent, key("progress", self._stage), text)
            )
        else:
            artifact = self._artifact
            publish(lambda: update_progress_artifact(artifact, percent, text))
        return rest


def publish_links(root: Path, pages: Sequence[str]) -> None:
    """Links to the pages that the stages wrote: through `make serve`, or as files."""
    base = os.environ.get("TRACERL_PAGES_URL", root.as_uri())
    for page in pages:
        if (root / page).is_file():
            publish_link(f"{base}/{page}", page)


def publish_link(address: str, page: str) -> None:
    """One link."""
    publish(
        lambda: create_link_artifact(
            address, link_text=page, key=key(page), description=f"Written by this run: {page}"
        )
    )


def publish_table(name: str, rows: Sequence[Mapping[str, Any]], description: str) -> None:
    """A plain table, if it has rows."""
    if rows:
        publish(
            lambda: create_table_artifact(
                [dict(row) for row in rows], key=key(name), description=description
            )
        )


def publish_markdown(name: str, text: str, description: str) -> None:
    """Text with headings and tables."""
    publish(lambda: create_markdown_artifact(text, key=key(name), description=description))


def publish(create: Callable[[], Any]) -> Any:
    """Creates or updates an artifact; None if the server does not take it, which the log says."""
    try:
        return create()
    except Exception as error:
        get_run_logger().warning("An artifact is missing: %s", error)
        return None
