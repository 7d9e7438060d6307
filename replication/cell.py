"""One cell of the replication: a stage of the project in a folder of its own (DVC_ROOT), with a
record of what it cost and came from.

The record, reports/records/<stage>.json: forward passes, positions and floating-point operations,
counted while they happened, and hashes of the params and of the data that went in. A cell that was
killed and resumed counts each unit of work once: logs/work holds the cost of every unit, and a unit
that is done again has its cost again.

Example: DVC_ROOT=replication/runs/full/sdar-1 python -m replication.cell rl tracerl sampler
"""

import contextlib
import hashlib
import importlib
import json
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from replication.grid import response_aligned
from stages import context
from tracerl.disk import file_sha256, write_json
from tracerl.settings.params import load_params

COSTS = ("forwards", "tokens", "predicted", "flops")
Show = Callable[[int, int, str], None]


def main(kind: str, name: str, grid: str) -> None:
    """kind: tasks, base, traces, sft, rl or evaluate. name: in its section of the params, - for the
    first three.

    grid: where the blocks of its training begin, sampler or response (grid.py).
    """
    stage = kind if name == "-" else f"{kind}@{name}"
    params_sha256, inputs = provenance(kind, name, grid)
    work = Work(context.ROOT / "logs" / "work" / f"{stage}-{params_sha256[:12]}.jsonl", stage)
    plain = context.progress
    context.progress = lambda stage, unit: work.watching(plain(stage, unit))
    run = importlib.import_module(
        f"stages.{kind}"
    ).main  # this one only: a cell depends on no other stage's code
    try:
        with response_aligned() if grid == "response" else contextlib.nullcontext():
            run(*([] if name == "-" else [name]))
    finally:
        context.progress = plain
    record = {
        "stage": stage,
        "grid": grid,
        "params_sha256": params_sha256,
        "inputs": inputs,
        "budget": work.total(kind in ("sft", "rl")),
    }
    write_json(context.REPORTS / "records" / f"{stage}.json", record)


class Work:
    """What each unit of a stage's work cost, by the number of the unit, kept in a file from one
    process to the next."""

    def __init__(self, path: Path, stage: str) -> None:
        self._path, self._stage = path, stage
        self._costs: dict[int, list[int]] = {}
        self._seen, self._last = [0] * len(COSTS), 0
        if path.is_file():
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the line that a kill cut off
                    unit, self._last, *costs = json.loads(line)
                    self._costs[unit] = costs

    def watching(self, show: Show) -> Show:
        """The progress bar's function, which also notes what was done since it was last called."""

        def counted(done: int, total: int, text: str = "") -> None:
            self.note(done, total, self._counts())
            show(done, total, text)

        return counted

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

    def _counts(self) -> list[int]:
        if self._stage not in context._meters:
            return [0] * len(COSTS)
        meter = asdict(context._meters[self._stage][0])
        return [meter[name] for name in COSTS]


def provenance(kind: str, name: str, grid: str) -> tuple[str, dict[str, str]]:
    """SHA-256 of everything but data and code that this cell depends on, and of each file it reads."""
    params = load_params(context.ROOT / "params.yaml")
    sections: dict[str, Any] = {
        "tasks": lambda: params.tasks,
        "base": lambda: params.base,
        "traces": lambda: params.traces,
        "sft": lambda: params.sft[name],
        "rl": lambda: params.rl[name],
        "evaluate": lambda: params.evaluate[name],
    }
    section = sections[kind]().model_dump()
    common = {
        "seed": params.seed,
        "threads": params.threads,
        "compute": params.compute.model_dump(),
        "grid": grid,
        "torch": version("torch"),
        "truncated_is_wrong": params.truncated_is_wrong,
        "verification": params.verification.model_dump(),
        "evaluation": params.evaluation.model_dump() if kind == "evaluate" else None,
    }
    checkpoint = section.get("init") or section.get("checkpoint")
    folders = [context.CHECKPOINTS / checkpoint] if checkpoint else []
    folders += (
        [context.TRACES if section.get("data") == "traces" else context.TASKS]
        if kind != "tasks"
        else []
    )
    files = [
        file
        for folder in folders
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != ".gitignore"
    ]
    digest = hashlib.sha256(json.dumps([section, common], sort_keys=True).encode()).hexdigest()
    return digest, {str(file.relative_to(context.ROOT)): file_sha256(file) for file in files}


if __name__ == "__main__":
    context.run(main, __doc__, "kind", "name", "grid")
