"""The same run with several seeds: reports/seeds.json, and the range of accuracies beside a
result."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tracerl.disk import write_json
from tracerl.errors import DataError
from tracerl.reporting.summary import Row, SeedColumn

_KEY = ("checkpoint", "benchmark", "remasking", "block_size")
_COMMAND = "python -m flows.seeds 2 3"


@dataclass(frozen=True, kw_only=True)
class SeedResults:
    """Accuracies of runs that differ in their seed only."""

    params_sha256: str
    """Digest of their params without the seed."""
    accuracies: Mapping[tuple[str, ...], Mapping[int, float]]
    """Row of the result table (checkpoint, benchmark, remasking, block size) -> seed ->
    accuracy, 0 to 1."""


def split_seed(text: str) -> tuple[int, str]:
    """The seed of a params file, and the SHA-256 of its other values; comments and layout do not
    count.

    Raises DataError if it cannot be read or has no seed.
    """
    try:
        params = dict(YAML(typ="safe", pure=True).load(text))
        seed = int(params.pop("seed"))
    except (YAMLError, TypeError, ValueError, KeyError) as error:
        raise DataError(
            "a params file has no seed", got=repr(error), wanted="YAML with the key seed"
        ) from error
    values = json.dumps(params, sort_keys=True, default=str)
    return seed, hashlib.sha256(values.encode()).hexdigest()


def collect_seeds(params_sha256: str, tables: Mapping[int, Sequence[Row]]) -> SeedResults:
    """The accuracies of several runs by row. tables: seed -> rows of its summary.json.

    Raises DataError if the runs have not the same rows.
    """
    accuracies: dict[tuple[str, ...], dict[int, float]] = {}
    for seed, rows in tables.items():
        for row in rows:
            accuracies.setdefault(_key(row), {})[seed] = row["accuracy"]
    for key, by_seed in accuracies.items():
        if len(by_seed) != len(tables):
            raise DataError(
                "the runs of several seeds have different result tables",
                where=" ".join(key),
                got=f"seeds {_join(by_seed)}",
                wanted=f"seeds {_join(tables)}",
                do="run all of them from one commit",
            )
    return SeedResults(params_sha256=params_sha256, accuracies=accuracies)


def write_seeds(path: Path, results: SeedResults) -> None:
    """Writes reports/seeds.json."""
    rows = []
    for key, by_seed in results.accuracies.items():
        row: dict[str, Any] = dict(zip(_KEY, key, strict=True))
        row["accuracy"] = {str(seed): by_seed[seed] for seed in sorted(by_seed)}
        rows.append(row)
    write_json(path, {"params_sha256": results.params_sha256, "rows": rows})


def read_seeds(path: Path) -> SeedResults | None:
    """None if no such file was made. Raises DataError if it is damaged."""
    if not path.is_file():
        return None
    accuracies = {}
    try:
        data = json.loads(path.read_text("utf-8"))
        digest = str(data["params_sha256"])
        for row in data["rows"]:
            accuracies[_key(row)] = {
                int(seed): float(value) for seed, value in row["accuracy"].items()
            }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            "the results of several seeds cannot be read",
            where=str(path),
            got=repr(error),
            do=f"make the file again: {_COMMAND}",
        ) from error
    return SeedResults(params_sha256=digest, accuracies=accuracies)


def seed_column(results: SeedResults, params: str, rows: Sequence[Row]) -> SeedColumn:
    """The ranges beside a result table. params: text of the run's params file.

    Raises DataError if the results are not of this run: of other params, other rows, or with
    other accuracies under the run's own seed.
    """
    seed, digest = split_seed(params)
    if digest != results.params_sha256:
        raise _other_run("other params")
    cells = []
    seeds: dict[int, None] = {}
    for row in rows:
        by_seed = results.accuracies.get(_key(row), {})
        if by_seed.get(seed) != row["accuracy"]:
            raise _other_run(f"{' '.join(_key(row))}: {by_seed.get(seed)} with seed {seed}")
        values = by_seed.values()
        cells.append(f"{100 * min(values):.1f} to {100 * max(values):.1f}%")
        seeds |= dict.fromkeys(by_seed)
    return SeedColumn(heading=f"seeds {_join(seeds)}", cells=tuple(cells))


def _other_run(got: str) -> DataError:
    return DataError(
        "reports/seeds.json is of another run",
        got=got,
        wanted="this run's params and accuracies",
        do=f"make the file again: {_COMMAND}",
    )


def _key(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in _KEY)


def _join(seeds: Mapping[int, Any]) -> str:
    return ", ".join(map(str, sorted(seeds)))
