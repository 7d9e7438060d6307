"""Two evaluations on the same problems: paired, because the difference between two checkpoints is
far less noisy than either accuracy."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracerl.errors import DataError
from tracerl.evaluation.metrics import bootstrap_interval
from tracerl.store.files import read_rollouts

Scores = dict[tuple[str, str], dict[str, float]]


def compare_evaluations(
    first: Path, second: Path, num_resamples: int, seed: int
) -> list[dict[str, Any]]:
    """One row per benchmark and mode that both folders (data/evals/NAME) hold.

    difference: mean over problems of the second's score less the first's, with its 95% paired
    bootstrap interval; a problem's score is the share of its responses that are correct. won, lost,
    tied: problems on which the second scores higher, lower, equal. unpaired: problems only one side
    has, left out.

    Raises DataError if a folder holds no responses, or the two share no problem.
    """
    ours, theirs = _scores(first), _scores(second)
    rows: list[dict[str, Any]] = []
    for place in [place for place in ours if place in theirs]:
        shared = sorted(ours[place].keys() & theirs[place].keys())
        if not shared:
            continue
        a = np.array([ours[place][task] for task in shared])
        b = np.array([theirs[place][task] for task in shared])
        rows.append(
            {
                "benchmark": place[0],
                "remasking": place[1],
                "num_problems": len(shared),
                "unpaired": len(ours[place].keys() ^ theirs[place].keys()),
                "first": float(a.mean()),
                "second": float(b.mean()),
                **_difference(b - a, num_resamples, seed),
            }
        )
    if not rows:
        raise DataError(
            "the two evaluations share no problem",
            got=f"{sorted(ours)} and {sorted(theirs)}",
            wanted="evaluations of the same task sets, in the same modes",
        )
    return rows


def _difference(
    differences: npt.NDArray[np.float64], num_resamples: int, seed: int
) -> dict[str, float | int]:
    low, high = bootstrap_interval(differences, num_resamples, seed)
    signs = {"won": differences > 0, "lost": differences < 0, "tied": differences == 0}
    return {
        "difference": float(differences.mean()),
        "ci_low": low,
        "ci_high": high,
        **{name: int(which.sum()) for name, which in signs.items()},
    }


def _scores(folder: Path) -> Scores:
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise DataError(
            "there is no evaluation of this name",
            where=str(folder),
            do="run it: dvc repro evaluate@NAME",
        )
    table = pa.concat_tables(
        [read_rollouts(path).select(["task_set", "task_id", "stage", "verdict"]) for path in files]
    )
    found: dict[tuple[str, str], dict[str, list[bool]]] = {}
    for row in table.to_pylist():
        mode = row["stage"].partition("/")[2]  # evaluate@NAME/MODE
        found.setdefault((row["task_set"], mode), {}).setdefault(row["task_id"], []).append(
            row["verdict"] == "correct"
        )
    rates = {}
    for place, tasks in found.items():
        rates[place] = {task: sum(marks) / len(marks) for task, marks in tasks.items()}
    return rates
