"""One cell of the replication: a stage of the project in the folder of its world, with a record of
what it cost and came from.

The record, reports/records/<stage>.json: forward passes, positions and floating-point operations,
counted while they happened, and hashes of the params and of the data that went in. A cell that was
killed and resumed counts each unit of work once: logs/work holds the cost of every unit, and a unit
that is done again has its cost again.

Example, in replication/runs/full/sdar-1:
    PYTHONPATH=../../../.. python -m replication.cell rl tracerl sampler
"""

import contextlib
import hashlib
import importlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from replication.grid import response_aligned
from stages.runtime import entry, meters, paths
from stages.runtime.params import read_params
from stages.runtime.progress import add_observer
from tracerl.disk import file_sha256, write_json

COSTS = ("forwards", "tokens", "predicted", "flops")


def main(kind: str, name: str, grid: str) -> None:
    """kind: tasks, base, traces, sft, rl or evaluate. name: in its section of the params, - for the
    first three.

    grid: where the blocks of its training begin, sampler or response (grid.py).
    """
    stage = kind if name == "-" else f"{kind}@{name}"
    params_sha256, inputs = provenance(kind, name, grid)
    work = Work(paths.LOGS / "work" / f"{stage}-{params_sha256[:12]}.jsonl")
    add_observer(work.observe)
    run = importlib.import_module(
        f"stages.{kind}"
    ).main  # this one only: a cell depends on no other stage's code
    with response_aligned() if grid == "response" else contextlib.nullcontext():
        run(*([] if name == "-" else [name]))
    record = {
        "stage": stage,
        "grid": grid,
        "params_sha256": params_sha256,
        "inputs": inputs,
        "budget": work.total(kind in ("sft", "rl")),
    }
    write_json(paths.REPORTS / "records" / f"{stage}.json", record)


class Work:
    """What each unit of a stage's work cost, by the number of the unit, kept in a file from one
    process to the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._costs: dict[int, list[int]] = {}
        self._seen, self._last = [0] * len(COSTS), 0
        if path.is_file():
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the line that a kill cut off
                    unit, self._last, *costs = json.loads(line)
                    self._costs[unit] = costs

    def observe(self, stage: str, done: int, total: int) -> None:
        """Notes what this process has counted since it was last called; a progress observer."""
        counts = meters.counts(stage)
        self.note(done, total, [counts.get(name, 0) for name in COSTS])

    def note(self, done: int, total: int, counts: list[int]) -> None:
        """counts: of this process so far. A unit that cost nothing was read from what is saved: it
        keeps its old cost."""
        cost, self._seen, self._last = (
            [now - before for now, before in zip(counts, self._seen, strict=True)],
            counts,
            total,
        )
        if any(cost) or done not in self._costs:
            self._costs[done] = cost
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open(
                "a"
            ) as file:  # a kill may have cut the last line off: an empty one does no harm
                file.write("\n" + json.dumps([done, total, *cost]))

    def total(self, numbered: bool) -> dict[str, int | bool]:
        """The sum. complete: whether every unit was counted, which can be said where units are
        numbered from 1 without gaps."""
        sums = [sum(cost[i] for cost in self._costs.values()) for i in range(len(COSTS))]
        complete = not numbered or set(self._costs) == set(range(1, self._last + 1))
        return {**dict(zip(COSTS, sums, strict=True)), "complete": complete}


def provenance(kind: str, name: str, grid: str) -> tuple[str, dict[str, str]]:
    """SHA-256 of everything but data and code that this cell depends on, and of each file it
    reads."""
    stage = kind if name == "-" else f"{kind}@{name}"
    params = read_params(stage)
    section: Any = getattr(params, kind)
    if name != "-":
        section = section[name]
    settings = section.model_dump()
    text = (paths.PARAMS / f"{stage}.yaml").read_text()
    parts = json.dumps([text, grid, version("torch")])
    digest = hashlib.sha256(parts.encode()).hexdigest()
    folders = [] if kind == "tasks" else [paths.TASKS]
    if settings.get("data") == "traces":
        folders = [paths.TRACES]
    checkpoint = settings.get("init") or settings.get("checkpoint")
    if checkpoint:
        folders.insert(0, paths.CHECKPOINTS / checkpoint)
    files = {}
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.name != ".gitignore":
                files[str(file.relative_to(paths.ROOT))] = file_sha256(file)
    return digest, files


if __name__ == "__main__":
    entry.run(main, __doc__, "kind", "name", "grid")
