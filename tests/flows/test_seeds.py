"""reports/seeds.json comes from result tables that are committed."""

from pathlib import Path

import pytest

from flows.experiments import cell_name, ref
from flows.seeds import write_results
from tests.repository import commit, git
from tracerl.disk import write_json
from tracerl.errors import DataError
from tracerl.reporting.seeds import read_seeds


def commit_run(folder: Path, seed: int, accuracy: float) -> str:
    """Commits params and a result table of one row; the commit's name."""
    (folder / "params.yaml").write_text(f"seed: {seed}\nrl: {{}}\n")
    row = {"checkpoint": "rl@short", "benchmark": "sums", "remasking": "static", "block_size": 4}
    summary = folder / "reports" / "metrics" / "summary.json"
    write_json(summary, {"rows": [{**row, "accuracy": accuracy}]})
    commit(folder, f"seed {seed}")
    return git(folder, "rev-parse", "HEAD").strip()


def test_the_file_holds_the_committed_run_and_its_experiments(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    baseline = commit_run(tmp_path, 1, 0.5)
    for seed, accuracy in ((2, 0.25), (3, 0.75)):
        experiment = commit_run(tmp_path, seed, accuracy)
        git(
            tmp_path,
            "update-ref",
            ref(baseline, cell_name("seeds", {"seed": seed}, [])),
            experiment,
        )
        git(tmp_path, "reset", "--quiet", "--hard", baseline)
    results = read_seeds(write_results(tmp_path, [2, 3], baseline))
    assert results is not None
    assert results.accuracies == {("rl@short", "sums", "static", "4"): {1: 0.5, 2: 0.25, 3: 0.75}}


def test_a_seed_that_has_not_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    baseline = commit_run(tmp_path, 1, 0.5)
    with pytest.raises(DataError, match="seed 2"):
        write_results(tmp_path, [2], baseline)
    assert not (tmp_path / "reports" / "seeds.json").exists()
