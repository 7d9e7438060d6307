"""The folders of a project. Its root is the folder that a stage is started in, where DVC found
dvc.yaml, whatever the environment says."""

from collections.abc import Iterable
from pathlib import Path

ROOT = Path.cwd()
DATA = ROOT / "data"
REPORTS = ROOT / "reports"
LOGS = ROOT / "logs"
PARAMS = DATA / "params"
CODE = DATA / "code"
CHECKPOINTS = DATA / "checkpoints"
ROLLOUTS = DATA / "rollouts"
TASKS = DATA / "tasks"
TRACES = DATA / "traces"
EVALS = DATA / "evals"
SCRATCH = DATA / "scratch"


def task_files(names: Iterable[str]) -> dict[str, Path]:
    """The Parquet file of each task set, by the set's name."""
    return {name: TASKS / f"{name}.parquet" for name in names}


def training_outputs(stage: str) -> dict[str, Path]:
    """Where a training stage publishes: file or folder of its scratch folder -> final place."""
    return {
        "curve.tsv": REPORTS / "curves" / f"{stage}.tsv",
        "metrics.json": REPORTS / "metrics" / f"{stage}.json",
        "checkpoint": CHECKPOINTS / stage,
    }
