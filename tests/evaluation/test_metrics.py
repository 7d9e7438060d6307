"""Laws of the numbers: pass@k is the exact chance, and two evaluations are compared problem by
problem."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest

from tests.reporting.synthetic_run import make_rollouts
from tracerl.cli import main
from tracerl.errors import DataError
from tracerl.evaluation.comparison import compare_evaluations
from tracerl.evaluation.metrics import pass_at_k, summarise
from tracerl.store.files import rollout_table, write_rollouts
from tracerl.store.schema import ROLLOUTS


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_all_subsets_that_hold_a_correct_response(n):
    for c in range(n + 1):
        marks = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            subsets = list(combinations(marks, k))
            exact = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(np.array([n]), np.array([c]), k)[0] == pytest.approx(exact, abs=1e-12)


def test_how_programs_ended_is_counted_where_programs_were_judged():
    rollouts = make_rollouts("evaluate@a", 0)[:6]
    plain = summarise(rollout_table(rollouts), 10, 1)
    assert not [name for name in plain if name.startswith("program_")]
    details = [
        "bubblewrap: passed passed",
        "bubblewrap: timeout skipped",
        "bubblewrap: error ended",
        "bubblewrap: error error",
        "bubblewrap: no sandbox did start: error",
        "",
    ]
    table = rollout_table(
        [replace(rollout, detail=detail) for rollout, detail in zip(rollouts, details, strict=True)]
    )
    assert table["detail"].to_pylist() == details
    found = {
        name: value
        for name, value in summarise(table, 10, 1).items()
        if name.startswith("program_")
    }
    assert found == {
        "program_timeout": 0.25,
        "program_error": 0.5,
        "program_output": 0.0,
        "program_ended": 0.25,
    }


def test_responses_that_hold_nothing_but_an_end_token_are_counted():
    """Of five: one empty, one of end tokens only, one cut at its first token, two ordinary."""
    rollouts = make_rollouts("evaluate@a", 0)[:5]
    ends = [(1, "end"), (1, "end"), (1, "length"), (2, "end"), (3, "length")]
    changed = []
    for rollout, (num_tokens, stop_reason) in zip(rollouts, ends, strict=True):
        trajectory = replace(rollout.trajectory, num_tokens=num_tokens, stop_reason=stop_reason)
        changed.append(replace(rollout, trajectory=trajectory))
    assert summarise(rollout_table(changed), 10, 1)["empty_rate"] == 0.4


def evaluations(root, verdicts):
    """Folders a and b whose rows are the synthetic ones with these verdicts, by task."""
    for name, marks in verdicts.items():
        table = rollout_table(make_rollouts("evaluate@" + name, 0)).to_pydict()
        tasks = list(dict.fromkeys(table["task_id"]))
        table["verdict"] = [marks[tasks.index(task)] for task in table["task_id"]]
        write_rollouts(
            root / "data" / "evals" / name / "rows.parquet", pa.table(table, schema=ROLLOUTS)
        )
    return len(tasks)


def test_a_comparison_counts_problems_won_lost_and_tied(tmp_path, capsys):
    marks = {
        "a": ["correct", "wrong", "undecided", "correct"] * 50,
        "b": ["correct", "correct", "wrong", "wrong"] * 50,
    }
    count = evaluations(tmp_path, marks)
    first, second = tmp_path / "data" / "evals" / "a", tmp_path / "data" / "evals" / "b"
    rows = compare_evaluations(first, second, 200, 1)
    assert sum(int(row["num_problems"]) for row in rows) >= count
    for row in rows:
        assert row["won"] + row["lost"] + row["tied"] == row["num_problems"]
        assert row["difference"] == pytest.approx(row["second"] - row["first"])
        assert row["ci_low"] <= row["difference"] <= row["ci_high"]
        assert row["unpaired"] == 0
    back = compare_evaluations(second, first, 200, 1)
    assert [(r["won"], r["lost"], -r["difference"]) for r in back] == [
        (r["lost"], r["won"], r["difference"]) for r in rows
    ]
    assert [r["difference"] for r in compare_evaluations(first, first, 200, 1)] == [0.0] * len(rows)
    with pytest.raises(SystemExit) as end:
        main(["compare", "a", "b", "--root", str(tmp_path)])
    assert end.value.code in (0, None)
    assert "won" in capsys.readouterr().out


def test_a_missing_evaluation_is_named(tmp_path):
    with pytest.raises(DataError, match="nothing"):
        compare_evaluations(tmp_path / "nothing", tmp_path / "nothing", 10, 1)
