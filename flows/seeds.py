"""The chain with further seeds, for the range of accuracies that `tracerl summary` and the README
show beside a result.

    python -m flows.seeds 2 3 --max-parallel 2

Runs the chain once for each seed as a DVC experiment (flows/experiments.py: at the checked-out
commit, in a clone of its own, going on where it was stopped), then writes reports/seeds.json from
their result tables and from the one that is committed here. Commit that file.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.artifacts import metrics_at
from flows.experiments import cell_name, experiments, git, ref
from flows.serve import temporary_server
from tracerl.errors import DataError, TracerlError
from tracerl.reporting.seeds import collect_seeds, split_seed, write_seeds

NAME = "seeds"
SUMMARY = "reports/metrics/summary.json"


def write_results(root: Path, seeds: Sequence[int], baseline: str) -> Path:
    """Writes reports/seeds.json from the run committed at `baseline` and its experiments.

    Raises DataError if one of them has no result table.
    """
    params = git(root, "show", f"{baseline}:./params.yaml")
    committed_seed, digest = split_seed(params)
    revisions = {committed_seed: baseline}
    for seed in seeds:
        revisions.setdefault(seed, ref(baseline, cell_name(NAME, {"seed": seed}, [])))
    tables = {}
    for seed, revision in revisions.items():
        tables[seed] = _rows(root, seed, revision)
    path = root / "reports" / "seeds.json"
    write_seeds(path, collect_seeds(digest, tables))
    return path


def _rows(root: Path, seed: int, revision: str) -> list[dict[str, Any]]:
    summary = metrics_at(root, revision, SUMMARY)
    if summary is None:
        raise DataError(
            "a run has no result table in git",
            where=f"{revision}: {SUMMARY}",
            got=f"seed {seed}",
            do="run the chain to its end and commit reports/metrics",
        )
    rows: list[dict[str, Any]] = summary["rows"]
    return rows


def main() -> None:
    """Runs what is missing and writes the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", type=int, nargs="+", help="seeds to run beside the metrics_at one")
    parser.add_argument(
        "--max-parallel", type=int, default=1, metavar="N", help="seeds at the same time (1)"
    )
    arguments = parser.parse_args()
    root = Path.cwd()
    try:
        baseline = git(root, "rev-parse", "HEAD").strip()
        with temporary_server():
            state = experiments(
                {"seed": arguments.seeds},
                name=NAME,
                max_parallel=arguments.max_parallel,
                return_state=True,
            )
        if not state.is_completed():
            sys.exit(f"{state.name}: {state.message}")
        print(f"Written: {write_results(root, arguments.seeds, baseline)}")
    except TracerlError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
