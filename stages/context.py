"""What every stage script needs: its params section, a scratch workspace named by a fingerprint, a progress bar, and a clean failure.

Stages are started by DVC in the project's root. They know the params file, the folders and the terminal; the library knows none of these.
"""

import argparse
import errno
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from tracerl.config import Params, load_params
from tracerl.errors import DataError, ParamsError, TracerlError
from tracerl.store.workspace import Workspace, write_text
from tracerl.types import Task

Section = TypeVar("Section")

CODE = Path(__file__).resolve().parents[1]
ROOT = Path(os.environ.get("DVC_ROOT", ".")).resolve()
DATA, REPORTS = ROOT / "data", ROOT / "reports"
CHECKPOINTS, ROLLOUTS, TASKS, TRACES, EVALS = (DATA / n for n in ("checkpoints", "rollouts", "tasks", "traces", "evals"))
SCRATCH = DATA / "scratch"


def load() -> Params:
    """The params file of this workspace, with torch set to its thread count."""
    params = load_params(ROOT / "params.yaml")
    torch.set_num_threads(params.threads)
    return params


def held_out(tasks: Sequence[Task], where: str) -> list[Task]:
    """The test split. Raises DataError if it is empty."""
    test = [task for task in tasks if task.split == "test"]
    if not test:
        raise DataError("a task set has no held-out problem", where=where, got=f"{len(tasks)} tasks", wanted="a test split",
                        do="raise num_test of the set, or give its file more prompts")  # fmt: skip
    return test


def section(sections: Mapping[str, Section], kind: str, name: str) -> Section:
    """The params section of one stage of a kind."""
    if name not in sections:
        raise ParamsError(f"no {kind} of this name", where="params.yaml", got=name, wanted=", ".join(sections))
    return sections[name]


def training_outputs(stage: str) -> dict[str, Path]:
    """Where checkpoint, curve and metrics of a training stage are published."""
    return {
        "curve.tsv": REPORTS / "curves" / f"{stage}.tsv",
        "metrics.json": REPORTS / "metrics" / f"{stage}.json",
        "checkpoint": CHECKPOINTS / stage,
    }


def write_curve(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of one kind as tab-separated values, for DVC plots and the report."""
    lines = ["\t".join(rows[0])] + ["\t".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in row.values()) for row in rows]
    write_text(path, "\n".join(lines) + "\n")


def workspace(stage: str, params: Params, section: Any, inputs: Sequence[Path]) -> Workspace:
    """The scratch workspace of a stage; other fingerprints' leftovers of the same stage are removed."""
    name = f"{stage}-{_fingerprint(params, section if isinstance(section, tuple) else (section,), inputs)}"
    for other in SCRATCH.glob(f"{stage}-*"):
        if other.name != name and re.fullmatch(re.escape(stage) + r"-[0-9a-f]{12}(\.tmp)?", other.name):
            shutil.rmtree(other)
    return Workspace(SCRATCH / name)


def progress(stage: str, unit: str) -> Callable[[int, int, str], None]:
    """A progress bar with ETA, from now on: a live line on a terminal, a line every ten seconds elsewhere."""
    live = sys.stderr.isatty()
    bar = tqdm(desc=stage, unit=unit, mininterval=0.5 if live else 10, dynamic_ncols=live)

    def show(done: int, total: int, text: str = "") -> None:
        if bar.total is None:
            bar.total, bar.initial, bar.n = total, done - 1, done - 1  # a resumed stage starts where it was
        bar.set_postfix_str(text, refresh=False)
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return show


def run(main: Callable[..., None], description: str, *argument: str) -> None:
    """Runs a stage with its one positional argument, if it has one; an error of ours ends it with its message, not a traceback."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in argument:
        parser.add_argument(name)
    try:
        main(**vars(parser.parse_args()))
    except TracerlError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.exit(f"error: the disk is full\n  where: {error.filename or DATA}\n  what to do: free space and run the same command again")


def _fingerprint(params: Params, sections: Sequence[Any], inputs: Sequence[Path]) -> str:
    """Of everything a stage's result depends on: its params, seed, threads, torch's version, its inputs' bytes and the library's code."""
    judging = params.verification.model_dump(exclude={"num_workers"})
    common = [params.seed, params.threads, params.truncated_is_wrong, judging, torch.__version__]
    digest = hashlib.sha256(json.dumps([[part.model_dump() for part in sections], *common]).encode())
    for folder in (CODE / "src", CODE / "stages", *inputs):
        pattern = "*.py" if folder.parent == CODE else "*"
        for file in [folder] if folder.is_file() else sorted(folder.rglob(pattern)):
            if file.is_file():
                with file.open("rb") as stream:
                    digest.update(f"{file.relative_to(folder.parent)} {hashlib.file_digest(stream, 'sha256').hexdigest()}".encode())
    return digest.hexdigest()[:12]
