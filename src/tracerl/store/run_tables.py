"""The views `checkpoints`, `metrics` and `runs`: what the stages wrote beside their rows, as
tables."""

import functools
import hashlib
import json
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tracerl.errors import DataError, ParamsError
from tracerl.settings.defaults import resolve
from tracerl.settings.params import parse_params
from tracerl.store.run_files import RunFiles

RUN_TABLES = {
    "checkpoints": pa.schema(
        [
            ("checkpoint", pa.string()),
            ("init", pa.string()),
            ("policy_hash", pa.string()),
            ("model_type", pa.string()),
            ("num_layers", pa.int64()),
            ("hidden_size", pa.int64()),
            ("vocab_size", pa.int64()),
        ]
    ),
    # step: the curve's step or iteration, null for a metric of the whole stage.
    "metrics": pa.schema(
        [
            ("stage", pa.string()),
            ("curve", pa.string()),
            ("step", pa.int64()),
            ("name", pa.string()),
            ("value", pa.float64()),
        ]
    ),
    "runs": pa.schema(
        [
            ("stage", pa.string()),
            ("kind", pa.string()),
            ("init", pa.string()),
            ("policy_hash", pa.string()),
            ("seed", pa.int64()),
            ("settings", pa.string()),
        ]
    ),
}


# Metrics files that belong to no single stage.
_OF_SEVERAL = ("summary", "replication", "replication-fast")


def run_tables(run: RunFiles) -> dict[str, pa.Table]:
    """Rows of the three views. Raises DataError naming a file that is damaged; what is not there
    has no rows."""
    params = _params(run)
    named = {}
    for path in run.glob("reports/metrics/**/*.json"):
        named[path.removeprefix("reports/metrics/").removesuffix(".json")] = _json(run, path)
    points: list[dict[str, Any]] = []
    for name, value in named.items():
        if name not in _OF_SEVERAL:
            points += _leaves(_stage_of(name), "", None, value)
    for path in run.glob("reports/curves/*.tsv"):
        points += _curve(run, path)
    runs = list(_runs(params, named))
    inits = {row["stage"]: row["init"] for row in runs}
    rows: dict[str, list[dict[str, Any]]] = {
        "checkpoints": list(_checkpoints(run, named, inits)),
        "metrics": points,
        "runs": runs,
    }
    return {name: _table(rows[name], schema) for name, schema in RUN_TABLES.items()}


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        columns.append(_column([row.get(field.name) for row in rows], field.type))
    return pa.table(columns, schema=schema)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """An array of strings, whole numbers or floats, of which any may be None.

    Made of its buffers: from Python values pyarrow makes one too, but imports pandas for it, which
    would be a third of the time of a query.
    """
    is_there = np.array([value is not None for value in values], dtype=bool)
    validity = np.packbits(is_there, bitorder="little")
    if pa.types.is_string(kind):
        texts = [("" if value is None else value).encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        contents = [pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    else:
        numbers = [0 if value is None else value for value in values]
        contents = [pa.py_buffer(array("q" if pa.types.is_integer(kind) else "d", numbers))]
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(validity), *contents])


def current_stages(run: RunFiles) -> set[str] | None:
    """The stages of params.yaml whose results are still theirs: neither their params nor an input
    has changed since they ran, as far as dvc.lock says. None if there is no params.yaml.

    Raises DataError if one of the two files is damaged.
    """
    params = _params(run)
    if not params:
        return None
    lock = _lock(run)
    current = {row["stage"] for row in _runs(params, {})}
    made_by: dict[str, tuple[str, Any]] = {}  # path -> stage and checksum of an output
    for stage, entry in lock.items():
        for output in entry.get("outs", []):
            made_by[output["path"]] = (stage, output.get("md5"))
    checked = _checked_params(run)
    changed = set()
    for name, entry in lock.items():
        if _params_changed(run, entry, params) or _files_changed(run, entry, checked):
            changed.add(name)
    # Stages stand in the lock in the order in which they first ran, so repeat until nothing moves.
    num_changed = -1
    while num_changed != len(changed):
        num_changed = len(changed)
        for name, entry in lock.items():
            for dependency in entry.get("deps", []):
                stage, checksum = made_by.get(dependency["path"], ("", dependency.get("md5")))
                if stage in changed or checksum != dependency.get("md5"):
                    changed.add(name)
    return current - changed


def _params_changed(run: RunFiles, entry: dict[str, Any], params: dict[str, Any]) -> bool:
    """Whether params that dvc.lock has for a stage are not those of the file now."""
    for path, values in entry.get("params", {}).items():
        tree = params if path == "params.yaml" else _yaml(run, path)
        for key, value in (values or {}).items():
            now: Any = tree
            for part in key.split("."):
                now = _get(now, part)
            if not _equal(value, now):
                return True
    return False


def _checked_params(run: RunFiles) -> dict[str, Any] | None:
    """params.yaml as the stages see it, every default written out; None if it is wrong, which the
    next run of a stage says."""
    try:
        return parse_params(_yaml(run, "params.yaml"), "params.yaml").model_dump(mode="json")
    except ParamsError:
        return None


def _files_changed(run: RunFiles, entry: dict[str, Any], checked: dict[str, Any] | None) -> bool:
    """Whether the params file or the code list of a stage is not the one it ran with, or
    params.yaml says something else than the params file."""
    for dependency in entry.get("deps", []):
        path = dependency["path"]
        if not path.startswith(("data/params/", "data/code/")):
            continue
        if not run.glob(path):
            return True
        text = run.text(path)
        if hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() != dependency.get("md5"):
            return True
        is_params = path.startswith("data/params/")
        if is_params and checked is not None and not _is_in_params(run, path, checked):
            return True
    return False


def _is_in_params(run: RunFiles, path: str, checked: dict[str, Any]) -> bool:
    """Whether params.yaml says what a stage's params file says."""
    try:
        # Ten times as fast as the pure parser, which decides where it finds a difference.
        if _is_part(YAML(typ="safe").load(run.text(path)), checked):
            return True
    except (YAMLError, ValueError, RecursionError):
        pass
    return _is_part(_yaml(run, path), checked)


def _is_part(part: Any, whole: Any) -> bool:
    """Whether every key of `part` stands in `whole` with the same value."""
    if not isinstance(part, dict):
        return _equal(part, whole)
    if not isinstance(whole, dict):
        return False
    return all(key in whole and _is_part(value, whole[key]) for key, value in part.items())


def _equal(a: Any, b: Any) -> bool:
    """Equality of two values of YAML. The C parser, which reads dvc.lock, takes 1e-05 for text."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, str) and isinstance(b, int | float):
        return _number(a) == b
    return bool(a == b)


def _lock(run: RunFiles) -> dict[str, Any]:
    """Stages of dvc.lock; none if there is no such file."""
    if not run.glob("dvc.lock"):
        return {}
    try:
        lock = YAML(typ="safe").load(run.text("dvc.lock"))  # 100 kB: the C parser, not the pure one
        stages = dict(lock["stages"])
        if not all(isinstance(entry, dict) for entry in stages.values()):
            raise TypeError("a stage is not a mapping")
    except (YAMLError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            "DVC's lock file is damaged",
            where=run.address("dvc.lock"),
            got=error,
            do="put back the last good one: git checkout dvc.lock",
        ) from error
    return stages


def _stage_of(name: str) -> str:
    """The stage whose metrics file this is: evaluate/wide -> evaluate@wide."""
    return name.replace("/", "@")


def _checkpoints(
    run: RunFiles, metrics: dict[str, Any], inits: dict[str, str | None]
) -> Iterator[dict[str, Any]]:
    for path in run.glob("data/checkpoints/*/config.json"):
        config, name = _json(run, path), path.split("/")[2]
        if name.endswith(".tmp"):
            continue
        yield {
            "checkpoint": name,
            "init": inits.get(name),
            "policy_hash": _get(metrics.get(name), "policy_hash"),
            "model_type": config.get("model_type"),
            "num_layers": config.get("num_hidden_layers", config.get("n_layers")),
            "hidden_size": config.get("hidden_size", config.get("d_model")),
            "vocab_size": config.get("vocab_size"),
        }


def _runs(params: dict[str, Any], metrics: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every stage of the params. The kinds whose section is a mapping of names have a row for each
    name."""
    for kind in ("tasks", "base", "traces", "sft", "rl", "evaluate"):
        section = params.get(kind) or {}
        many = kind in ("sft", "rl", "evaluate")
        for name, settings in section.items() if many else [("", section)] if section else []:
            stage = f"{kind}@{name}" if many else kind
            file = _get(metrics, f"{kind}/{name}" if kind == "evaluate" else stage) or {}
            yield {
                "stage": stage,
                "kind": kind,
                "init": _get(settings, "init") or _get(settings, "checkpoint"),
                "policy_hash": file.get("policy_hash") or _get(file.get("settings"), "policy_hash"),
                "seed": params.get("seed"),
                "settings": json.dumps(settings, sort_keys=True, default=str),
            }


def _leaves(stage: str, name: str, step: int | None, value: Any) -> Iterator[dict[str, Any]]:
    """Numbers of a metrics file, named by their path: held_out.static.accuracy.after."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(stage, f"{name}.{key}" if name else str(key), step, part)
    elif isinstance(value, int | float):
        yield {"stage": stage, "curve": None, "step": step, "name": name, "value": float(value)}


def _curve(run: RunFiles, path: str) -> Iterator[dict[str, Any]]:
    """A row for each number of a curve; words of a row (the remasking mode) are part of the
    name."""
    stage, _, held_out = path.rsplit("/", 1)[1].removesuffix(".tsv").partition("-held-out")
    curve = "held-out" if held_out or path.endswith("-held-out.tsv") else "train"
    for row in curve_rows(run.text(path), path):
        words = [value for value in row.values() if isinstance(value, str)]
        step = row.get("iteration", row.get("step"))
        for name, value in row.items():
            if not isinstance(value, str) and name not in ("iteration", "step"):
                label = ".".join([*words, name])
                yield {
                    "stage": stage,
                    "curve": curve,
                    "step": None if step is None else int(step),
                    "name": label,
                    "value": value,
                }


def curve_rows(text: str, where: str) -> list[dict[str, Any]]:
    """Rows of a tab-separated curve, numbers as floats; a heading alone has none. Raises DataError
    if a row is shorter or longer."""
    heading, *lines = [line.split("\t") for line in text.splitlines()] or [[]]
    for cells in lines:
        if len(cells) != len(heading):
            raise DataError(
                "a curve cannot be read",
                where=where,
                got=f"{len(cells)} cells",
                wanted=f"{len(heading)}",
                do="run the stage that wrote it again",
            )
    rows = []
    for cells in lines:
        rows.append({name: _number(cell) for name, cell in zip(heading, cells, strict=True)})
    return rows


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _params(run: RunFiles) -> dict[str, Any]:
    """params.yaml with its defaults written out, unchecked; empty if there is none."""
    if not run.glob("params.yaml"):
        return {}
    params = resolve(_yaml(run, "params.yaml"))
    return params if isinstance(params, dict) else {}


def _yaml(run: RunFiles, path: str) -> dict[str, Any]:
    """A YAML file's mapping, empty if it holds something else."""
    try:
        values = _parse(run.text(path))
    except (YAMLError, ValueError, RecursionError) as error:
        raise DataError("a YAML file of the run cannot be read", where=path, got=error) from error
    return values if isinstance(values, dict) else {}


@functools.lru_cache(maxsize=4)
def _parse(text: str) -> Any:
    """The data of a YAML file, which nobody may change: params.yaml is read for several answers."""
    return YAML(typ="safe", pure=True).load(text)


def _json(run: RunFiles, path: str) -> Any:
    try:
        return json.loads(run.text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(
            "a JSON file is damaged", where=path, got=error, do="run the stage that wrote it again"
        ) from error


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
