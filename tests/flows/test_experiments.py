"""A grid is every combination once, named by everything that makes it another one, and its
comparison shows what differs."""

import subprocess
from typing import Any

from flows.comparison import markdown, page, table, varying_metrics
from flows.experiments import cell_name, combinations

GRID: dict[str, list[Any]] = {"rl.short.optimizer.lr": [1e-4, 2e-4], "seed": [1, 2]}
CELLS = {cell_name("grid", values, []): values for values in combinations(GRID)}
METRICS = {
    cell: {
        "rl-short accuracy": values["seed"] / 8 + values["rl.short.optimizer.lr"],
        "rl-short problems": 600.0,
    }
    for cell, values in CELLS.items()
}


def test_a_grid_is_every_combination_once_in_its_order() -> None:
    assert [tuple(values.values()) for values in combinations(GRID)] == [
        (1e-4, 1),
        (1e-4, 2),
        (2e-4, 1),
        (2e-4, 2),
    ]
    assert len(CELLS) == 4


def test_a_name_is_fit_for_git_and_differs_where_the_experiment_does() -> None:
    assert next(iter(CELLS)).startswith("grid-lr-0.0001-seed-1-")
    strange = cell_name(
        "grid", {"rl.short.tasks": {"sums-long": 1, "x y": [1, "~^:?*"]}, "a" * 99: "b..c.lock"}, []
    )
    assert (
        subprocess.run(["git", "check-ref-format", f"refs/exps/{strange}"], check=False).returncode
        == 0
    )
    assert (
        len(
            {
                cell_name("grid", {"seed": seed}, targets)
                for seed in (1, "1", 2)
                for targets in ([], ["report"])
            }
        )
        == 6
    )


def test_the_table_holds_the_params_and_what_differs() -> None:
    assert varying_metrics(METRICS) == ["rl-short accuracy"]
    lines = table(CELLS, METRICS)
    assert lines[0] == ["experiment", "rl.short.optimizer.lr", "seed", "rl-short accuracy"]
    assert [line[1:] for line in lines[1:]] == [
        ["0.0001", "1", "0.1251"],
        ["0.0001", "2", "0.2501"],
        ["0.0002", "1", "0.1252"],
        ["0.0002", "2", "0.2502"],
    ]
    assert markdown(lines).splitlines()[1] == "| --- | --- | --- | --- |"


def test_the_page_has_a_line_for_each_value_of_the_other_params_and_needs_no_network() -> None:
    text = page("<grid>", CELLS, METRICS)
    assert text.count("<polyline") == 2
    assert "seed 1" in text
    assert "seed 2" in text
    assert "&lt;grid&gt;" in text
    assert "http" not in text.replace("http-equiv", "")
    assert "src=" not in text


def test_experiments_that_are_not_there_yet_are_left_out() -> None:
    first = next(iter(CELLS))
    assert len(table(CELLS, {first: METRICS[first]})) == 2
