"""The params that one stage reads. `python -m stages.params` writes them, resolved and checked, as
data/params/<stage>.yaml; the stage depends on that file and reads nothing else of the params.

What changes no result (number of processes, of ranks and their hosts) is in data/params/run.yaml,
on which no stage depends. data/params/params.yaml is a copy of the whole file, for the report.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from stages.runtime import paths
from tracerl.disk import write_text
from tracerl.errors import DataError, ParamsError
from tracerl.settings.params import Params, load_params

RUN = "run"
_COMPUTED = ("seed", "threads", "compute")
_JUDGED = (*_COMPUTED, "truncated_is_wrong", "verification")
# Sections that each kind of stage reads; a kind with several stages reads its own round of them.
SECTIONS = {
    "tasks": ("seed", "tasks"),
    "base": (*_COMPUTED, "base"),
    "traces": (*_JUDGED, "traces"),
    "sft": (*_COMPUTED, "sft"),
    "rl": (*_JUDGED, "rl"),
    "evaluate": (*_JUDGED, "evaluation", "evaluate"),
    "validate": ("traces", "validation"),
    "report": (
        "seed",
        "threads",
        "compute",
        "base",
        "sft",
        "rl",
        "evaluation",
        "evaluate",
        "report",
    ),
}
ROUNDS = ("sft", "rl", "evaluate")


def stage_names(params: Params) -> list[str]:
    """Every stage that reads params, in the order of the pipeline; `validate` stands for all data
    sets."""
    names = []
    for kind in SECTIONS:
        if kind in ROUNDS:
            names += [f"{kind}@{name}" for name in getattr(params, kind)]
        else:
            names.append(kind)
    return names


def stage_params(tree: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """The part of the params (as plain data, resolved) that a stage reads: only what can change its
    result."""
    kind, _, name = stage.partition("@")
    part: dict[str, Any] = {section: tree[section] for section in SECTIONS[kind]}
    if name:
        part[kind] = {name: tree[kind][name]}
    if "verification" in part:
        judging = dict(tree["verification"])
        del judging["num_workers"]
        part["verification"] = judging
    return part


def run_params(params: Params) -> dict[str, Any]:
    """What says how stages run and changes no result."""
    return {
        "launch": params.launch.model_dump(mode="json"),
        "num_workers": params.verification.num_workers,
    }


def write_stage_params(source: Path, folder: Path) -> None:
    """Writes <stage>.yaml for every stage, run.yaml and the file itself into a folder. Raises
    ParamsError if the params file is wrong."""
    params = load_params(source)
    tree = params.model_dump(mode="json")
    for stage in stage_names(params):
        _write(folder / f"{stage}.yaml", stage_params(tree, stage))
    _write(folder / f"{RUN}.yaml", run_params(params))
    write_text(folder / "params.yaml", source.read_text("utf-8"))


def read_params(stage: str) -> Params:
    """Params with the sections that a stage reads and no others: reading any other one raises
    AttributeError. Raises ParamsError, DataError."""
    kind, _, name = stage.partition("@")
    path = paths.PARAMS / f"{stage}.yaml"
    if kind in ROUNDS and not path.is_file() and paths.PARAMS.is_dir():
        names = [each.stem.partition("@")[2] for each in sorted(paths.PARAMS.glob(f"{kind}@*"))]
        raise ParamsError(
            f"no {kind} of this name", where="params.yaml", got=name, wanted=", ".join(names)
        )
    data = _read(path)
    run = _read(paths.PARAMS / f"{RUN}.yaml")
    data["launch"] = run["launch"]
    if "verification" in data:
        data["verification"]["num_workers"] = run["num_workers"]
    return _parse(data, path)


def _parse(data: Mapping[str, Any], path: Path) -> Params:
    sections = {}
    try:
        for section, value in data.items():
            adapter: TypeAdapter[Any] = TypeAdapter(
                Params.model_fields[section].rebuild_annotation()
            )
            sections[section] = adapter.validate_json(json.dumps(value))
    except (KeyError, ValidationError) as error:
        raise DataError(
            "the params of a stage are not what this code reads",
            where=str(path),
            got=error,
            do="run `dvc repro params`, or `python -m stages.params`",
        ) from error
    return Params.model_construct(**sections)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
        if not isinstance(data, dict):
            raise ValueError("no names and values")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(
            "the params of a stage cannot be read",
            where=str(path),
            got=error,
            do="run `dvc repro params`, or `python -m stages.params`",
        ) from error
    return data


def _write(path: Path, data: Mapping[str, Any]) -> None:
    write_text(path, yaml.safe_dump(dict(data), sort_keys=False))
