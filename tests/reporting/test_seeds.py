"""The range over seeds is that of this run's accuracies, or none is shown."""

import json
from pathlib import Path

import pytest

from tracerl.errors import DataError
from tracerl.reporting.seeds import (
    SeedResults,
    collect_seeds,
    read_seeds,
    seed_column,
    split_seed,
    write_seeds,
)
from tracerl.reporting.summary import Row

PARAMS = "seed: 1\nrl:\n  short: {iterations: 8}\n"


def table(*accuracies: float) -> list[Row]:
    """Rows of a result table, one for each accuracy."""
    rows: list[Row] = []
    for index, accuracy in enumerate(accuracies):
        rows.append(
            {
                "checkpoint": "rl@short",
                "benchmark": f"sums-{index}",
                "remasking": "static",
                "block_size": 4,
                "accuracy": accuracy,
            }
        )
    return rows


def three_seeds() -> SeedResults:
    """Two rows of three runs."""
    tables = {1: table(0.5, 0.25), 3: table(0.625, 0.25), 2: table(0.375, 0.25)}
    return collect_seeds(split_seed(PARAMS)[1], tables)


def test_each_row_has_the_range_over_its_seeds() -> None:
    column = seed_column(three_seeds(), PARAMS, table(0.5, 0.25))
    assert column.heading == "seeds 1, 2, 3"
    assert column.cells == ("37.5 to 62.5%", "25.0 to 25.0%")


def test_the_range_belongs_to_any_of_its_runs() -> None:
    column = seed_column(three_seeds(), PARAMS.replace("seed: 1", "seed: 3"), table(0.625, 0.25))
    assert column.cells == ("37.5 to 62.5%", "25.0 to 25.0%")


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "seeds.json"
    assert read_seeds(path) is None
    write_seeds(path, three_seeds())
    assert read_seeds(path) == three_seeds()


@pytest.mark.parametrize("text", ["", "{}", '{"params_sha256": "0", "rows": [{}]}'])
def test_a_damaged_file_is_an_error_that_names_the_command(tmp_path: Path, text: str) -> None:
    path = tmp_path / "seeds.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"seeds\.json(.|\n)*python -m flows\.seeds 2 3"):
        read_seeds(path)


def test_the_digest_is_of_all_values_but_the_seed() -> None:
    digest = split_seed(PARAMS)[1]
    assert split_seed("# a comment\nrl: {short: {iterations: 8}}\nseed: 7") == (7, digest)
    assert split_seed(PARAMS.replace("8", "9"))[1] != digest
    with pytest.raises(DataError, match="has no seed"):
        split_seed("rl: {}")


@pytest.mark.parametrize(
    ("params", "rows", "got"),
    [
        (PARAMS.replace("8", "9"), table(0.5, 0.25), "other params"),
        (PARAMS, table(0.5, 0.26), "sums-1 static 4: 0.25 with seed 1"),
        (PARAMS, table(0.5, 0.25, 0.1), "sums-2 static 4: None with seed 1"),
        (PARAMS.replace("seed: 1", "seed: 4"), table(0.5, 0.25), "None with seed 4"),
    ],
)
def test_results_of_another_run_are_refused(params: str, rows: list[Row], got: str) -> None:
    with pytest.raises(DataError, match="of another run") as caught:
        seed_column(three_seeds(), params, rows)
    assert got in str(caught.value)


def test_runs_with_different_tables_are_not_put_together() -> None:
    with pytest.raises(DataError, match="different result tables") as caught:
        collect_seeds("0", {1: table(0.5, 0.25), 2: table(0.5)})
    assert "sums-1" in str(caught.value)


def test_the_file_has_a_row_per_result_with_its_accuracy_by_seed(tmp_path: Path) -> None:
    write_seeds(tmp_path / "seeds.json", three_seeds())
    rows = json.loads((tmp_path / "seeds.json").read_text())["rows"]
    assert [row["accuracy"] for row in rows] == [
        {"1": 0.5, "2": 0.375, "3": 0.625},
        {"1": 0.25, "2": 0.25, "3": 0.25},
    ]
