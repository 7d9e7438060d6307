"""Holds one data set to its suite of expectations: reports/validation/<dataset>.json and .html,
and, if it passes, <dataset>.passed.

Later stages depend on the last of these, which names the checksums of the data that passed: nothing
reads a data set that did not. What fails is named with counts and first rows, and stops the
pipeline. Drift against reports/baseline.json is a warning.

Example: python -m stages.validate rollouts
"""

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from stages.runtime import entry, paths
from stages.runtime.code import check_code
from stages.runtime.fingerprint import check_unchanged, take_fingerprint
from stages.runtime.params import read_params
from tracerl.disk import file_sha256, write_json, write_text
from tracerl.errors import DataError
from tracerl.reporting.validation_page import render_validation
from tracerl.store.check import folders, vocabulary_size
from tracerl.store.expectations import check_expectations, collect_evidence
from tracerl.store.parquet import MANIFEST
from tracerl.store.schema import DATASETS


def main(dataset: str) -> None:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    if dataset not in DATASETS:
        raise DataError("no data set of this name", got=dataset, wanted=", ".join(DATASETS))
    params = read_params("validate")
    check_code("validate")
    fingerprint = take_fingerprint("validate", [])
    target = paths.REPORTS / "validation"
    evidence = collect_evidence(
        paths.ROOT, dataset, vocabulary_size(paths.ROOT), _baseline().get(dataset, {})
    )
    outcomes = check_expectations(evidence, params.validation)
    if dataset == "traces" and not (params.traces.preferred or params.traces.rollouts):
        # A run without SFT collects none.
        outcomes = [outcome for outcome in outcomes if outcome.name != "rows"]
    failed = [
        outcome for outcome in outcomes if not outcome.success and outcome.severity == "critical"
    ]
    result = {
        "dataset": dataset,
        "success": not failed,
        "num_rows": sum(group["num_rows"] for group in evidence.groups),
        "groups": evidence.groups,
        "expectations": [asdict(outcome) for outcome in outcomes],
    }
    write_json(target / f"{dataset}.json", result)
    write_text(target / f"{dataset}.html", render_validation(result))
    passed = target / f"{dataset}.passed"
    passed.unlink(missing_ok=True)
    for outcome in outcomes:
        if not outcome.success:
            print(
                f"{outcome.severity}: {dataset}: not true: {outcome.says}; {outcome.count} do "
                "not, first "
                f"{', '.join(outcome.first)}",
                file=sys.stderr,
            )
    if failed:
        names = ", ".join(outcome.name for outcome in failed)
        raise DataError(
            "a data set does not hold what it must",
            where=f"data/{dataset}",
            got=names,
            wanted="no critical failure",
            do=(
                f"look at {target / dataset}.html; correct the data, or the bounds under "
                "validation in params.yaml"
            ),
        )
    check_unchanged(fingerprint)
    write_text(passed, _checksums(dataset))


def _checksums(dataset: str) -> str:
    """SHA-256 of each folder's manifest, which holds those of its files."""
    lines = []
    for folder in folders(paths.DATA, dataset):
        lines.append(f"{file_sha256(folder / MANIFEST)}  {folder.relative_to(paths.ROOT)}\n")
    return "".join(lines)


def _baseline() -> dict[str, Any]:
    """Figures of the accepted run. Raises DataError if the file is damaged."""
    path = paths.REPORTS / "baseline.json"
    try:
        figures: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return figures
    except ValueError as error:
        raise DataError(
            "the accepted run's figures are damaged",
            where=str(path),
            got=error,
            do="write them again with `tracerl data accept`",
        ) from error


if __name__ == "__main__":
    entry.run(main, __doc__, "dataset")
