"""Holds every claim of claims.yaml to the cells' numbers:
replication/verdicts/<plan>/replication.json and .html.

A comparison pairs what both sides were asked: problem by problem (the mean over its responses), or
iteration by iteration, which gives one difference for each seed. rule.py turns the differences of
all tests of a claim into verdicts, by the bounds of claims.yaml, which were written down before
anything ran. A comparison on one seed has an interval over problems and no verdict.

Example: python -m replication.judge full
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replication.plan import HERE, Tree, World, default_params, read_table, worlds
from replication.rule import (
    HELD,
    NOT_HELD,
    UNDECIDED,
    Evidence,
    Rule,
    Verdict,
    judge_claim,
    judge_tests,
    p_value,
    seed_interval,
    seeds_for_power,
)
from tracerl.disk import write_json, write_text
from tracerl.errors import DataError, TracerlError
from tracerl.seeds import generator_for
from tracerl.store.files import read_rollouts
from tracerl.store.run_tables import curve_rows

FORWARD_COUNTS = {"tokens_per_step": "num_denoising_forwards", "tokens_per_forward": "num_forwards"}
WINDOW = 5  # iterations over which the trend of a training curve is taken

Values = dict[tuple[str, ...], float]  # a problem (task set, id) or an iteration -> its value
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a comparison of claims.yaml measured, and its verdict."""

    test: Tree
    """Its row of claims.yaml."""
    differences: dict[int, float]
    """By seed, the mean over problems or iterations; empty where a cell failed."""
    interval: tuple[float, float] | None
    """Of the mean over seeds; of a single seed, over its problems. None where a cell failed."""
    compute: float | None
    """Floating-point operations of the first side over those of the other; None if not counted."""
    failure: str = ""
    """Why it cannot be judged: a cell that failed, or sides that are one."""
    missing: str = ""
    """The precondition that does not hold; "" if all do."""
    verdict: Verdict | None = None
    """None of a comparison that no claim hangs on."""
    why: str = ""
    """Why the verdict is not what the differences alone would say."""


@dataclass(kw_only=True)
class Results:
    """What the worlds of one family and plan measured, read once."""

    worlds: list[World]
    """The worlds of one family."""
    folder: Path
    """The folder that holds runs/."""
    _evaluations: dict[Any, pa.Table] = field(default_factory=dict)
    """(world, cell) -> responses, as they are read."""

    def values(self, world: World, cell: str, test: Tree) -> Values:
        """The metric of a test, by problem or iteration."""
        if test["metric"] == "roughness":
            return roughness(*self.rewards(world, cell.removeprefix("rl-")))
        rows = self.evaluation(world, cell).select(
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
        samples: dict[tuple[str, ...], list[float]] = {}
        for row in rows.to_pylist():
            if row["remasking"] != test["remasking"]:
                continue
            if row["task_set"] not in test.get("tasks", [row["task_set"]]):
                continue
            problem = (row["task_set"], row["task_id"])
            samples.setdefault(problem, []).append(metric_of(row, test["metric"]))
        return {problem: sum(values) / len(values) for problem, values in samples.items()}

    def has_failed(self, world: World, cell: str, test: Tree) -> bool:
        """Whether a cell of the plan has not come to its end: a round that collapsed, for instance,
        with no group to learn from."""
        stages = [self.training_stage(world, cell)]
        if test["metric"] != "roughness":
            stages.append(f"evaluate@{cell}")
        return not all(self._record_file(world, stage).is_file() for stage in stages)

    def evaluation(self, world: World, cell: str) -> pa.Table:
        """All responses of an evaluation."""
        if (world.name, cell) not in self._evaluations:
            files = self._evaluation_files(world, cell)
            self._evaluations[world.name, cell] = pa.concat_tables(
                [read_rollouts(path) for path in files]
            )
        return self._evaluations[world.name, cell]

    def _evaluation_files(self, world: World, cell: str) -> list[Path]:
        return sorted((self.folder / world.folder / "data" / "evals" / cell).glob("*.parquet"))

    def _curve_file(self, world: World, name: str) -> Path:
        return self.folder / world.folder / "reports" / "curves" / f"{name}.tsv"

    def rewards(self, world: World, name: str) -> tuple[Floats, Floats]:
        """The mean training reward of each iteration of a round, and the variance that it has by
        the draw of problems and responses."""
        means = []
        variances = []
        folder = self.folder / world.folder / "data" / "rollouts" / f"rl@{name}"
        for path in sorted(folder.glob("iter-*.parquet")):
            table = read_rollouts(path).group_by("task_id").aggregate([("reward", "mean")])
            groups = table["reward_mean"].to_numpy()
            means.append(groups.mean())
            variances.append(groups.var(ddof=1) / len(groups))
        return np.array(means), np.array(variances)

    def curve(self, world: World, name: str) -> list[dict[str, Any]]:
        """Rows of a cell's curve; none of a cell that failed."""
        path = self._curve_file(world, name)
        return curve_rows(path.read_text(), str(path)) if path.is_file() else []

    def _record_file(self, world: World, stage: str) -> Path:
        return self.folder / world.folder / "reports" / "records" / f"{stage}.json"

    def training_stage(self, world: World, cell: str) -> str:
        """The stage whose checkpoint an evaluation samples, or the round that a cell is."""
        if cell in world.params["evaluate"]:
            return str(world.params["evaluate"][cell]["checkpoint"])
        return cell.replace("-", "@", 1)

    def compute(self, world: World, cell: str) -> Tree:
        """What training a cell has cost: its own stage, without those it began from."""
        path = self._record_file(world, self.training_stage(world, cell))
        budget: Tree = json.loads(path.read_text())["budget"]
        return budget


def metric_of(row: Tree, metric: str) -> float:
    """A metric of one response."""
    if metric == "accuracy":
        return float(row["verdict"] == "correct")
    return float(row["num_tokens"]) / max(row[FORWARD_COUNTS[metric]], 1)


def roughness(rewards: Floats, noise: Floats) -> Values:
    """By iteration, the squared distance of the reward from its moving mean, less what `noise`, its
    variance, is expected to make of it.

    What is left is how much the policy itself goes up and down (below zero where chance made the
    curve smoother than that).
    """
    reach = WINDOW // 2
    values = Values()
    for i in range(len(rewards)):
        near = slice(max(0, i - reach), i + reach + 1)
        count = len(rewards[near])
        expected = noise[i] * (1 - 2 / count) + noise[near].sum() / count**2
        values[(str(i),)] = float((rewards[i] - rewards[near].mean()) ** 2 - expected)
    return values


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


def problem_interval(values: Floats, rule: Rule) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over the problems of one seed."""
    rng = generator_for(0, "replication", len(values))
    means = np.empty(rule.resamples)
    for i in range(rule.resamples):
        means[i] = values[rng.integers(0, len(values), len(values))].mean()
    tail = 50 * (1 - rule.level)
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


def compare(results: Results, test: Tree, rule: Rule) -> Comparison | None:
    """What a comparison measured. None where a cell is not part of the plan."""
    cells = [*test["plus"], *test["minus"]]
    signs = [1] * len(test["plus"]) + [-1] * len(test["minus"])
    there = [
        world for world in results.worlds if all(is_there(world, cell, test) for cell in cells)
    ]
    if not there:
        return None
    failures = []
    for world in there:
        for cell in cells:
            if results.has_failed(world, cell, test):
                failures.append(f"{world.family}-{world.seed}/{cell}")
    if failures:
        failure = f"{', '.join(failures)} did not come to an end"
        return Comparison(test=test, differences={}, interval=None, compute=None, failure=failure)
    by_seed = {
        world.seed: differences([results.values(world, cell, test) for cell in cells], signs)
        for world in there
    }
    means = {seed: float(values.mean()) for seed, values in by_seed.items()}
    if len(by_seed) == 1:
        interval = problem_interval(next(iter(by_seed.values())), rule)
    else:
        interval = seed_interval(list(means.values()), rule.level)
    alike = not any(values.any() for values in by_seed.values())
    return Comparison(
        test=test,
        differences=means,
        interval=interval,
        compute=ratio(results, there, test),
        failure="both sides did alike on everything they were asked" if alike else "",
        missing=missing_precondition(results, test, rule),
    )


def missing_precondition(results: Results, test: Tree, rule: Rule) -> str:
    """The first of a test's `needs` that its seeds do not show, at the rule's error; "" if none."""
    for need in test.get("needs", []):
        shown = compare(results, {**test, "needs": [], "budget": "own", **need}, rule)
        values = list(shown.differences.values()) if shown is not None else []
        if not values or p_value(values, need["above"]) > rule.error:
            return f"{' + '.join(need['plus'])} is not above {' + '.join(need['minus'])}"
    return ""


def judge_comparisons(tests: Sequence[Comparison], rule: Rule) -> list[Comparison]:
    """The tests of one claim with their verdicts."""
    evidence = [
        Evidence(
            differences=list(each.differences.values()),
            above=each.test["above"],
            refuted_below=each.test["refuted_below"],
            has_preconditions=not each.missing,
        )
        for each in tests
    ]
    judged = []
    for each, verdict in zip(tests, judge_tests(evidence, rule), strict=True):
        if each.failure:
            judged.append(replace(each, verdict=UNDECIDED, why=each.failure))
            continue
        why = weigh_compute(verdict, each, rule) or each.missing
        judged.append(replace(each, verdict=verdict if why == each.missing else UNDECIDED, why=why))
    return judged


def weigh_compute(verdict: Verdict, comparison: Comparison, rule: Rule) -> str:
    """Why unequal compute takes a verdict away from a comparison at equal budget; "" if it stands.
    Who had more and lost all the same, or less and won all the same, has lost or won."""
    if comparison.test["budget"] != "equal" or verdict not in (HELD, NOT_HELD):
        return ""
    compute = comparison.compute
    if compute is None:
        return "what a cell cost was not counted whole"
    with_more = compute > 1 + rule.tolerance and verdict == HELD
    with_less = compute < 1 - rule.tolerance and verdict == NOT_HELD
    return f"the first side had {compute:.2f} times the compute" if with_more or with_less else ""


def is_there(world: World, cell: str, test: Tree) -> bool:
    """Whether a world has the cell that a test compares."""
    if test["metric"] == "roughness":
        return cell.removeprefix("rl-") in world.params["rl"]
    return cell in world.params["evaluate"]


def ratio(results: Results, there: Sequence[World], test: Tree) -> float | None:
    """Compute of the first cell of the one side over that of the first of the other, over all
    seeds. None if some was not counted."""
    costs = [
        [results.compute(world, test[side][0]) for world in there] for side in ("plus", "minus")
    ]
    if not all(cost["complete"] for side in costs for cost in side):
        return None
    first, second = (sum(cost["flops"] for cost in side) for side in costs)
    return first / second if second else None


def judge(plan: str, folder: Path, table: Tree, defaults: Tree) -> Tree:
    """The verdicts, with everything they were made of, as reports/metrics/replication.json holds
    them."""
    all_worlds = worlds(table, plan, defaults)
    rule = Rule(**table["rule"])
    results = {}
    for family in table["families"]:
        of_family = [world for world in all_worlds if world.family == family]
        results[family] = Results(worlds=of_family, folder=folder)
    claims = {}
    rows = []
    for name, claim in table["claims"].items():
        claims[name] = {
            **{key: claim[key] for key in ("says", "source", "refuted_if")},
            **compare_claim(claim, results, rule),
        }
        rows += claim_rows(name, claim, results, rule)
    return {
        "plan": plan,
        "rule": table["rule"],
        "claims": claims,
        "rows": rows,
        "cells": records(all_worlds, folder),
    }


def compare_claim(claim: Tree, results: dict[str, Results], rule: Rule) -> Tree:
    """The verdict on a claim, and its comparisons. A test whose cells are not part of the plan
    leaves the claim undecided."""
    tests = [compare(results[test["family"]], test, rule) for test in claim["tests"]]
    judged = judge_comparisons([test for test in tests if test is not None], rule)
    shown = [compare(results[test["family"]], test, rule) for test in claim["shown"]]
    verdicts = [each.verdict or UNDECIDED for each in judged] + [UNDECIDED] * tests.count(None)
    return {
        "verdict": judge_claim(verdicts),
        "comparisons": [
            describe(each, len(tests), rule) for each in [*judged, *shown] if each is not None
        ],
    }


def describe(comparison: Comparison, num_tests: int, rule: Rule) -> Tree:
    """A comparison as replication.json holds it."""
    low, high = comparison.interval or (None, None)
    values = list(comparison.differences.values())
    return {
        **comparison.test,
        "difference": float(np.mean(values)) if values else None,
        "ci_low": low,
        "ci_high": high,
        "by_seed": {str(seed): value for seed, value in comparison.differences.items()},
        "seeds_needed": seeds_needed(comparison, num_tests, rule),
        "compute": comparison.compute,
        "verdict": comparison.verdict or "shown",
        "why": comparison.why,
    }


def seeds_needed(comparison: Comparison, num_tests: int, rule: Rule) -> int | None:
    """Seeds with which the smallest effect that counts would be found as often as the rule asks, at
    the deviation between seeds that was measured. None of a comparison without a verdict, or whose
    bounds leave no room for an effect."""
    values = list(comparison.differences.values())
    test = comparison.test
    if "above" not in test or test["refuted_below"] <= test["above"] or len(values) < 2:
        return None
    deviation = float(np.std(values, ddof=1))
    effect = test["refuted_below"] - test["above"]
    return seeds_for_power(effect, deviation, num_tests, rule) if deviation else len(values)


def claim_rows(name: str, claim: Tree, results: dict[str, Results], rule: Rule) -> list[Tree]:
    """Rows claim, cell, seed, metric, value, ci_low, ci_high, budget_forwards of every cell that a
    claim compares."""
    rows = []
    keys = set()
    for test in [*claim["tests"], *claim["shown"]]:
        mode = test.get("remasking", "training")
        for world in results[test["family"]].worlds:
            for cell in [*test["plus"], *test["minus"]]:
                key = (world.name, cell, test["metric"], mode, *test.get("tasks", []))
                if key in keys or not is_there(world, cell, test):
                    continue
                of_family = results[test["family"]]
                if of_family.has_failed(world, cell, test):
                    continue
                keys.add(key)
                values = np.array(list(of_family.values(world, cell, test).values()))
                low, high = problem_interval(values, rule)
                row = {
                    "claim": name,
                    "cell": f"{world.family}/{cell}",
                    "seed": world.seed,
                    "metric": ", ".join([test["metric"], mode, *test.get("tasks", [])]),
                    "value": float(values.mean()),
                    "ci_low": low,
                    "ci_high": high,
                    "budget_forwards": of_family.compute(world, cell)["forwards"],
                }
                rows.append(row)
    return rows


def records(all_worlds: Sequence[World], folder: Path) -> Tree:
    """Every cell's record, as the cell wrote it."""
    cells = {}
    for world in all_worlds:
        for path in sorted((folder / world.folder / "reports" / "records").glob("*.json")):
            cells[f"{world.family}-{world.seed}/{path.stem}"] = json.loads(path.read_text())
    return cells


def curves(plan: str, folder: Path, table: Tree, defaults: Tree) -> dict[str, list[Tree]]:
    """By claim, what its charts show: a title and lines of (x, mean over seeds, lowest,
    highest)."""
    all_worlds = worlds(table, plan, defaults)
    charts: dict[str, list[Tree]] = {}
    for name, claim in table["claims"].items():
        charts[name] = []
        for chart in claim["curves"]:
            of_family = [world for world in all_worlds if world.family == chart["family"]]
            results = Results(worlds=of_family, folder=folder)
            lines = {}
            for cell in chart["rounds"]:
                points = line(results, cell, chart)
                if points:
                    lines[cell] = points
            what = f"held-out accuracy, {chart.get('remasking')}"
            if chart.get("reward"):
                what = "training reward"
            charts[name].append(
                {
                    "title": f"{chart['family']}: {what}",
                    "lines": lines,
                    "percent": not chart.get("reward"),
                }
            )
    return charts


def line(results: Results, cell: str, chart: Tree) -> list[tuple[float, float, float, float]]:
    """(iteration, mean over seeds, low, high) of a round's curve. The band is the range over seeds;
    of one seed, the curve's interval."""
    is_training = chart.get("reward")
    by_iteration: dict[float, list[Tree]] = {}
    for world in results.worlds:
        if cell not in world.params["rl"]:
            continue
        name = f"rl@{cell}" if is_training else f"rl@{cell}-held-out"
        for row in results.curve(world, name):
            if is_training or row["remasking"] == chart["remasking"]:
                by_iteration.setdefault(row["iteration"], []).append(row)
    column = "reward" if is_training else "accuracy"
    points = []
    for x, rows in sorted(by_iteration.items()):
        values = [row[column] for row in rows]
        low = min(values)
        high = max(values)
        if len(rows) == 1:
            low = rows[0].get("ci_low", low)
            high = rows[0].get("ci_high", high)
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
            [world.seed for world in worlds(table, plan, defaults)],
        )
    except TracerlError as error:
        sys.exit(f"error: {error}")
    target = HERE / "verdicts" / plan
    write_json(target / "replication.json", verdicts)
    write_text(target / "replication.html", page)


if __name__ == "__main__":
    main()
