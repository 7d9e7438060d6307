"""The integrity check behind `tracerl data check`: what is stored is what was written, and obeys
the store's laws.

Each problem is a finding that names file, row group and column as far as they are known; one
finding never hides another, and files without one are untouched by those that have some.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from tracerl.disk import file_sha256
from tracerl.errors import DataError
from tracerl.store.catalog import answer, connect
from tracerl.store.parquet import MANIFEST, open_parquet, read_manifest
from tracerl.store.rules import NUM_FIRST, SET_RULES, Broken, broken_rules
from tracerl.store.schema import DATASETS

_THREADS = 2


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem of one file or folder."""

    path: Path
    """The file or folder."""
    problem: str
    """What is wrong with it, in words."""
    broken: Broken | None = None
    """The rule, if it is a rule that rows break."""

    def __str__(self) -> str:
        return self.problem if str(self.path) in self.problem else f"{self.path}: {self.problem}"


def folders(data: Path, dataset: str) -> list[Path]:
    """The folders of a data set below `data` that hold files or a manifest. Folders still being
    published are left out."""
    published = []
    for folder in sorted(data.glob(DATASETS[dataset].folder)):
        if not folder.is_dir() or folder.suffix == ".tmp":
            continue
        if (folder / MANIFEST).exists() or any(folder.glob("*.parquet")):
            published.append(folder)
    return published


def check_run(root: Path) -> Iterator[Finding]:
    """Findings of every data set of the run at `root`, then of the rules between rows over the
    files that are sound."""
    data, vocab_size = root / "data", vocabulary_size(root)
    for dataset, (_, table, _, _) in DATASETS.items():
        for folder in folders(data, dataset):
            yield from check_folder(folder, table, vocab_size)
    connection = connect(root, skip_damaged=True)
    for dataset, rules in SET_RULES.items():
        for says, query in rules.values():
            count, first = broken_between_rows(connection, query)
            if count:
                yield Finding(
                    path=data / dataset,
                    problem=f"{dataset}: {says} ({count} rows, first {', '.join(first)})",
                )


def broken_between_rows(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[int, list[str]]:
    """How many rows a query of SET_RULES finds, and the first of their ids."""
    found = answer(
        connection,
        f"SELECT count(*) AS n, list(id ORDER BY id)[:{NUM_FIRST}] AS first FROM ({query})",
    ).to_pylist()[0]
    return found["n"], found["first"] or []


def vocabulary_size(root: Path) -> int | None:
    """Vocabulary of the run's checkpoints, or None if there is none yet. Raises DataError if the
    configuration is damaged."""
    path = root / "data" / "checkpoints" / "base" / "config.json"
    if not path.is_file():
        return None
    try:
        return int(json.loads(path.read_text("utf-8"))["vocab_size"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            "a checkpoint's configuration is damaged", where=str(path), got=repr(error)
        ) from error


def check_folder(folder: Path, table: str, vocab_size: int | None) -> Iterator[Finding]:
    """Findings of one folder: files missing, added or changed since it was sealed, damage, and
    broken laws."""
    try:
        manifest = read_manifest(folder)
    except DataError as error:
        yield Finding(path=folder / MANIFEST, problem=str(error))
        manifest = None
    else:
        if manifest is None:
            yield Finding(
                path=folder,
                problem=(
                    f"there is no {MANIFEST}: a file that was lost or changed would not be "
                    "noticed (run its stage again)"
                ),
            )
    there = sorted(folder.glob("*.parquet"))
    for name in sorted((manifest or {}).keys() - {path.name for path in there}):
        yield Finding(
            path=folder / name,
            problem=(
                f"the file is missing; {MANIFEST} lists it with "
                f"{(manifest or {})[name]['rows']} rows"
            ),
        )
    for path in sorted(folder.glob("*.parquet.tmp")):
        yield Finding(path=path, problem="a half-written file; its stage was killed (run it again)")
    for path in there:
        if manifest is not None and path.name not in manifest:
            yield Finding(path=path, problem=f"the file is not in {MANIFEST}")
    with ThreadPoolExecutor(_THREADS) as pool:
        for found in pool.map(
            lambda path: list(
                _check_file(path, table, vocab_size, (manifest or {}).get(path.name))
            ),
            there,
        ):
            yield from found


def _check_file(
    path: Path, table: str, vocab_size: int | None, entry: dict[str, object] | None
) -> Iterator[Finding]:
    if entry is not None and file_sha256(path) != entry["sha256"]:
        size = path.stat().st_size
        yield Finding(
            path=path,
            problem=(
                f"the SHA-256 is not that of {MANIFEST}: {size} bytes now, {entry['bytes']} bytes "
                "when it was written"
            ),
        )
    try:
        file, _ = open_parquet(path, table)
        if entry is not None and file.metadata.num_rows != entry["rows"]:
            yield Finding(
                path=path,
                problem=f"{file.metadata.num_rows} rows; {MANIFEST} lists {entry['rows']}",
            )
        for broken in broken_rules(path, table, vocab_size):
            yield Finding(path=path, problem=str(broken), broken=broken)
    except DataError as error:
        yield Finding(path=path, problem=str(error))
    except pa.ArrowException as error:
        yield Finding(path=path, problem=f"a Parquet file is damaged: {error}")
