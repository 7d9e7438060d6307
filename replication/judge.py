"""Holds every claim of claims.yaml to the cells' numbers:
replication/verdicts/<plan>/replication.json and .html.

A comparison pairs what both sides were asked: problem by problem (the mean over its responses), or
iteration by iteration. Its interval is a bootstrap in two stages: seeds are drawn with replacement,
and inside each drawn seed its problems. Three seeds give such an interval few different draws, and
one gives it none: it then speaks of problems only. Verdicts follow from the interval and the two
bounds of claims.yaml, which were written down before anything ran.

Example: python -m replication.judge full
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replication.plan import HERE, Tree, World, default_params, read_table, worlds
from tracerl.disk import write_json, write_text
from tracerl.errors import DataError, TracerlError
from tracerl.seeds import generator_for
from tracerl.store.files import read_rollouts
from tracerl.store.run_tables import curve_rows

HELD, NOT_HELD, UNDECIDED = "held", "not held", "undecided"
COUNTED = {"tokens_per_step": "num_denoising_forwards", "tokens_per_forward": "num_forwards"}
WINDOW = 5  # iterations over which the trend of a training curve is taken

Values = dict[tuple[str, ...], float]  # a problem (task set, id) or an iteration -> its value
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    resamples: int
    level: float
    tolerance: float


@dataclass(frozen=True)
class Outcome:
    """A comparison and what came of it. differences: by seed. compute: flops of the first side over
    those of the other.

    mean, low, high: None where a cell failed.
    """

    test: Tree
    mean: float | None
    low: float | None
    high: float | None
    differences: dict[int, float]
    compute: float | None
    verdict: str
    why: str = ""


@dataclass
class Results:
    """What the worlds of one family and plan measured, read once."""

    worlds: list[World]
    folder: Path
    _evaluations: dict[Any, pa.Table] = field(default_factory=dict)

    def values(self, one: World, cell: str, test: Tree) -> Values:
        """The metric of a test, by problem or iteration."""
        if test["metric"] == "roughness":
            return roughness(*self.rewards(one, cell.removeprefix("rl-")))
        rows = self.evaluation(one, cell).select(
            [
                "task_set",
                "task_id",
                "remasking",
                "verdict",
                "num_tokens",
                "num_denoising_forwards",
                "num_forwards",
            ]
        )
        found: dict[tuple[str, ...], list[float]] = {}
        for row in rows.to_pylist():
            if row["remasking"] == test["remasking"] and row["task_set"] in test.get(
                "tasks", [row["task_set"]]
            ):
                found.setdefault((row["task_set"], row["task_id"]), []).append(
                    measured(row, test["metric"])
                )
        return {place: sum(values) / len(values) for place, values in found.items()}

    def failed(self, one: World, cell: str, test: Tree) -> bool:
        """Whether a cell of the plan has not come to its end: a round that collapsed, for instance,
        with no group to learn from."""
        needed = {
            self.trained(one, cell),
            *(() if test["metric"] == "roughness" else (f"evaluate@{cell}",)),
        }
        return not all(self._record_file(one, stage).is_file() for stage in needed)

    def evaluation(self, one: World, cell: str) -> pa.Table:
        if (one.name, cell) not in self._evaluations:
            files = self._evaluation_files(one, cell)
            self._evaluations[one.name, cell] = pa.concat_tables(
                [read_rollouts(path) for path in files]
            )
        return self._evaluations[one.name, cell]

    def _evaluation_files(self, one: World, cell: str) -> list[Path]:
        return sorted((self.folder / one.folder / "data" / "evals" / cell).glob("*.parquet"))

    def _curve_file(self, one: World, name: str) -> Path:
        return self.folder / one.folder / "reports" / "curves" / f"{name}.tsv"

    def rewards(self, one: World, name: str) -> tuple[Floats, Floats]:
        """The mean training reward of each iteration of a round, and the variance that it has by
        the draw of problems and responses."""
        means, variances = [], []
        for path in sorted(
            (self.folder / one.folder / "data" / "rollouts" / f"rl@{name}").glob("iter-*.parquet")
        ):
            groups = (
                read_rollouts(path)
                .group_by("task_id")
                .aggregate([("reward", "mean")])["reward_mean"]
                .to_numpy()
            )
            means.append(groups.mean())
            variances.append(groups.var(ddof=1) / len(groups))
        return np.array(means), np.array(variances)

    def curve(self, one: World, name: str) -> list[dict[str, Any]]:
        """Rows of a cell's curve; none of a cell that failed."""
        path = self._curve_file(one, name)
        return curve_rows(path.read_text(), str(path)) if path.is_file() else []

    def _record_file(self, one: World, stage: str) -> Path:
        return self.folder / one.folder / "reports" / "records" / f"{stage}.json"

    def trained(self, one: World, cell: str) -> str:
        """The stage whose checkpoint an evaluation asks, or the round that a cell is."""
        return (
            str(one.params["evaluate"][cell]["checkpoint"])
            if cell in one.params["evaluate"]
            else cell.replace("-", "@", 1)
        )

    def compute(self, one: World, cell: str) -> Tree:
        """What training a cell has cost: its own stage, without those it began from."""
        budget: Tree = json.loads(self._record_file(one, self.trained(one, cell)).read_text())[
            "budget"
        ]
        return budget


def measured(row: Tree, metric: str) -> float:
    if metric == "accuracy":
        return float(row["verdict"] == "correct")
    return float(row["num_tokens"]) / max(row[COUNTED[metric]], 1)


def roughness(rewards: Floats, noise: Floats) -> Values:
    """By iteration, the squared distance of the reward from its moving mean, less what `noise`, its
    variance, is expected to make of it.

    What is left is how much the policy itself goes up and down (below zero where chance made the
    curve smoother than that).
    """
    reach, found = WINDOW // 2, Values()
    for i in range(len(rewards)):
        near = slice(max(0, i - reach), i + reach + 1)
        count = len(rewards[near])
        expected = noise[i] * (1 - 2 / count) + noise[near].sum() / count**2
        found[(str(i),)] = float((rewards[i] - rewards[near].mean()) ** 2 - expected)
    return found


def differences(sides: Sequence[Values], signs: Sequence[int]) -> Floats:
    """Per problem that all sides were asked, the signed sum of their values. Raises DataError if
    there is none."""
    shared = sorted(set.intersection(*(set(side) for side in sides)))
    if not shared:
        raise DataError(
            "two cells were not asked one problem in common",
            got=f"{[len(side) for side in sides]} problems",
        )
    return np.array(
        [
            sum(sign * side[place] for side, sign in zip(sides, signs, strict=True))
            for place in shared
        ]
    )


def interval(by_seed: Sequence[Floats], rule: Rule) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over seeds of the mean over problems, seeds drawn
    first and problems inside each."""
    rng = generator_for(0, "replication", *(len(part) for part in by_seed))
    means = np.empty(rule.resamples)
    for i in range(rule.resamples):
        drawn = rng.integers(0, len(by_seed), len(by_seed))
        means[i] = np.mean(
            [by_seed[k][rng.integers(0, len(by_seed[k]), len(by_seed[k]))].mean() for k in drawn]
        )
    tail = 50 * (1 - rule.level)
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


def decide(
    low: float, high: float, test: Tree, compute: float | None, tolerance: float
) -> tuple[str, str]:
    """The verdict on one comparison and, where it is not the interval alone, why."""
    if test["budget"] == "equal":
        if compute is None:
            return UNDECIDED, "what a cell cost was not counted whole"
        # Who had more and lost all the same, or less and won all the same, has lost or won.
        if compute > 1 + tolerance and high >= test["refuted_below"]:
            return UNDECIDED, f"the first side had {compute:.2f} times the compute"
        if compute < 1 - tolerance and low <= test["above"]:
            return UNDECIDED, f"the first side had {compute:.2f} times the compute"
    if low > test["above"]:
        return HELD, ""
    return (NOT_HELD, "") if high < test["refuted_below"] else (UNDECIDED, "")


def overall(verdicts: Sequence[str]) -> str:
    """Of a claim: refuted by one test, held by all of them."""
    if NOT_HELD in verdicts:
        return NOT_HELD
    return HELD if verdicts and set(verdicts) == {HELD} else UNDECIDED


def compare(results: Results, test: Tree, rule: Rule) -> Outcome | None:
    """A test, or a comparison that is shown only (no bounds). None where a cell is not part of the
    plan."""
    cells, signs = (
        [*test["plus"], *test["minus"]],
        [1] * len(test["plus"]) + [-1] * len(test["minus"]),
    )
    there = [one for one in results.worlds if all(is_there(one, cell, test) for cell in cells)]
    if not there:
        return None
    if failed := [
        f"{one.family}-{one.seed}/{cell}"
        for one in there
        for cell in cells
        if results.failed(one, cell, test)
    ]:
        return Outcome(
            test,
            None,
            None,
            None,
            {},
            None,
            UNDECIDED,
            f"{', '.join(failed)} did not come to an end",
        )
    by_seed = {
        one.seed: differences([results.values(one, cell, test) for cell in cells], signs)
        for one in there
    }
    low, high = interval(list(by_seed.values()), rule)
    compute = ratio(results, there, test)
    if "above" not in test:
        verdict, why = "shown", ""
    elif not any(part.any() for part in by_seed.values()):
        verdict, why = UNDECIDED, "both sides did alike on everything they were asked"
    else:
        verdict, why = decide(low, high, test, compute, rule.tolerance)
    means = {seed: float(part.mean()) for seed, part in by_seed.items()}
    return Outcome(
        test, float(np.mean(list(means.values()))), low, high, means, compute, verdict, why
    )


def is_there(one: World, cell: str, test: Tree) -> bool:
    return (
        cell.removeprefix("rl-") in one.params["rl"]
        if test["metric"] == "roughness"
        else cell in one.params["evaluate"]
    )


def ratio(results: Results, there: Sequence[World], test: Tree) -> float | None:
    """Compute of the first cell of the one side over that of the first of the other, over all
    seeds. None if some was not counted."""
    costs = [[results.compute(one, test[side][0]) for one in there] for side in ("plus", "minus")]
    if not all(cost["complete"] for side in costs for cost in side):
        return None
    first, second = (sum(cost["flops"] for cost in side) for side in costs)
    return first / second if second else None


def judge(plan: str, folder: Path, table: Tree, defaults: Tree) -> Tree:
    """The verdicts, with everything they were made of, as reports/metrics/replication.json holds
    them."""
    every, rule = worlds(table, plan, defaults), Rule(**table["rule"])
    results = {
        family: Results([one for one in every if one.family == family], folder)
        for family in table["families"]
    }
    claims, rows = {}, []
    for name, claim in table["claims"].items():
        found = [
            (kind, compare(results[test["family"]], test, rule))
            for kind in ("tests", "shown")
            for test in claim[kind]
        ]
        outcomes = [(kind, outcome) for kind, outcome in found if outcome is not None]
        tested = [outcome.verdict for kind, outcome in outcomes if kind == "tests"]
        missing = sum(kind == "tests" and outcome is None for kind, outcome in found)
        verdict = overall([*tested, *[UNDECIDED] * missing])
        claims[name] = {
            **{key: claim[key] for key in ("says", "source", "refuted_if")},
            "verdict": verdict,
            "comparisons": [described(outcome) for _, outcome in outcomes],
        }
        rows += claim_rows(name, claim, results, rule)
    return {
        "plan": plan,
        "rule": table["rule"],
        "claims": claims,
        "rows": rows,
        "cells": records(every, folder),
    }


def described(outcome: Outcome) -> Tree:
    by_seed = {str(seed): mean for seed, mean in outcome.differences.items()}
    return {
        **outcome.test,
        "difference": outcome.mean,
        "ci_low": outcome.low,
        "ci_high": outcome.high,
        "by_seed": by_seed,
        "compute": outcome.compute,
        "verdict": outcome.verdict,
        "why": outcome.why,
    }


def claim_rows(name: str, claim: Tree, results: dict[str, Results], rule: Rule) -> list[Tree]:
    """Rows claim, cell, seed, metric, value, ci_low, ci_high, budget_forwards of every cell that a
    claim compares."""
    rows, seen = [], set()
    for test in [*claim["tests"], *claim["shown"]]:
        mode = test.get("remasking", "training")
        for one in results[test["family"]].worlds:
            for cell in [*test["plus"], *test["minus"]]:
                key = (one.name, cell, test["metric"], mode, *test.get("tasks", []))
                if (
                    key in seen
                    or not is_there(one, cell, test)
                    or results[test["family"]].failed(one, cell, test)
                ):
                    continue
                seen.add(key)
                values = np.array(list(results[test["family"]].values(one, cell, test).values()))
                low, high = interval([values], rule)
                forwards = results[test["family"]].compute(one, cell)["forwards"]
                what = ", ".join([test["metric"], mode, *test.get("tasks", [])])
                rows.append(
                    {
                        "claim": name,
                        "cell": f"{one.family}/{cell}",
                        "seed": one.seed,
                        "metric": what,
                        "value": float(values.mean()),
                        "ci_low": low,
                        "ci_high": high,
                        "budget_forwards": forwards,
                    }
                )
    return rows


def records(every: Sequence[World], folder: Path) -> Tree:
    """Every cell's record, as the cell wrote it."""
    found = {}
    for one in every:
        for path in sorted((folder / one.folder / "reports" / "records").glob("*.json")):
            found[f"{one.family}-{one.seed}/{path.stem}"] = json.loads(path.read_text())
    return found


def curves(plan: str, folder: Path, table: Tree, defaults: Tree) -> dict[str, list[Tree]]:
    """By claim, what its charts show: a title and lines of (x, mean over seeds, lowest,
    highest)."""
    every = worlds(table, plan, defaults)
    drawn: dict[str, list[Tree]] = {}
    for name, claim in table["claims"].items():
        drawn[name] = []
        for chart in claim["curves"]:
            results = Results([one for one in every if one.family == chart["family"]], folder)
            lines = {
                cell: points for cell in chart["rounds"] if (points := line(results, cell, chart))
            }
            what = (
                "training reward"
                if chart.get("reward")
                else f"held-out accuracy, {chart['remasking']}"
            )
            drawn[name].append(
                {
                    "title": f"{chart['family']}: {what}",
                    "lines": lines,
                    "percent": not chart.get("reward"),
                }
            )
    return drawn


def line(results: Results, cell: str, chart: Tree) -> list[tuple[float, float, float, float]]:
    """(iteration, mean over seeds, low, high) of a round's curve. The band is the range over seeds;
    of one seed, the curve's interval."""
    found: dict[float, list[Tree]] = {}
    for one in results.worlds:
        if cell not in one.params["rl"]:
            continue
        for row in results.curve(
            one, f"rl@{cell}" if chart.get("reward") else f"rl@{cell}-held-out"
        ):
            if chart.get("reward") or row["remasking"] == chart["remasking"]:
                found.setdefault(row["iteration"], []).append(row)
    column = "reward" if chart.get("reward") else "accuracy"
    points = []
    for x, rows in sorted(found.items()):
        values = [row[column] for row in rows]
        alone = len(rows) == 1
        low, high = (
            (rows[0].get("ci_low", values[0]), rows[0].get("ci_high", values[0]))
            if alone
            else (min(values), max(values))
        )
        points.append((float(x), float(np.mean(values)), low, high))
    return points


def main() -> None:
    from replication.page import render

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", help="full or fast")
    plan = parser.parse_args().plan
    table, defaults = read_table(), default_params()
    try:
        verdicts = judge(plan, HERE, table, defaults)
        page = render(
            verdicts,
            curves(plan, HERE, table, defaults),
            [one.seed for one in worlds(table, plan, defaults)],
        )
    except TracerlError as error:
        sys.exit(f"error: {error}")
    target = HERE / "verdicts" / plan
    write_json(target / "replication.json", verdicts)
    write_text(target / "replication.html", page)


if __name__ == "__main__":
    main()
