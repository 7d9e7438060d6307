"""The ten questions of docs/sql.md, each answered and held to the answer that plain Python gives;
the macros and views behind them."""

import math
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from tests.reporting.synthetic_run import make_rollouts, make_tasks, small_params, write_run
from tracerl.reporting.rows import unmask_order_shares
from tracerl.store.catalog import MACROS, VIEWS, answer, connect, query
from tracerl.store.files import rollout_table, write_rollouts

DOCS = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
QUESTIONS = {
    int(number): sql for number, sql in re.findall(r"### (\d+)\. .*?```sql\n(.*?)```", DOCS, re.S)
}
# Rounds end at different iterations, and each samples held-out responses on its way: an answer that
# mixes them, or takes one round's last iteration for all, is wrong.
ITERATIONS = {"rl@long": (1, 2, 3), "rl@short": (1, 2)}
STAGES = tuple(ITERATIONS)
ROLLOUTS = [
    rollout
    for stage, iterations in ITERATIONS.items()
    for iteration in iterations
    for rollout in make_rollouts(stage, iteration)
]
LAST = [rollout for rollout in ROLLOUTS if rollout.iteration == ITERATIONS[rollout.stage][-1]]
HELD_OUT = [
    rollout
    for stage, iterations in ITERATIONS.items()
    for iteration in (0, iterations[-1], 9)
    for mode in ("static", "dynamic")
    for rollout in make_rollouts(f"{stage}/held-out-{mode}", iteration)
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run of a round of two iterations and one of three, with held-out responses."""
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, small_params())
    rounds = folder / "data" / "rollouts"
    more = rollout_table(make_rollouts("rl@long", 3))
    write_rollouts(rounds / "rl@long" / "iter-00003.parquet", more)
    for stage in STAGES:
        rows = [rollout for rollout in HELD_OUT if rollout.stage.startswith(stage)]
        write_rollouts(rounds / stage / "held-out.parquet", rollout_table(rows))
    return folder


@pytest.fixture(scope="module")
def connection(root):
    return connect(root)


def by_iteration(value):
    """Rows of stage, iteration and `value` of that iteration's rollouts, in the order of the
    questions."""
    return [
        {
            "stage": stage,
            "iteration": iteration,
            **value([r for r in ROLLOUTS if (r.stage, r.iteration) == (stage, iteration)]),
        }
        for stage in sorted(STAGES)
        for iteration in ITERATIONS[stage]
    ]


def groups_of(rollouts):
    groups = defaultdict(list)
    for rollout in rollouts:
        groups[(rollout.stage, rollout.iteration, rollout.task.task_id)].append(rollout)
    return groups


def passed(rollouts):
    return sum(r.verdict == "correct" for r in rollouts) / len(rollouts)


def tokens(rollouts, forwards):
    return sum(r.trajectory.num_tokens for r in rollouts) / sum(
        getattr(r.trajectory, forwards) for r in rollouts
    )


def question_1():
    return by_iteration(
        lambda rs: {
            "responses": len(rs),
            "reward": sum(r.reward for r in rs) / len(rs),
            "passed": passed(rs),
        }
    )


def question_2():
    rows = []
    for stage in STAGES:
        for task in make_tasks():
            responses = [r for r in LAST if (r.task, r.stage) == (task, stage)]
            rows.append(
                {
                    "stage": stage,
                    "task_id": task.task_id,
                    "prompt": task.prompt,
                    "answer": task.answer,
                    "passed": passed(responses),
                    "responses": len(responses),
                }
            )
    return sorted(rows, key=lambda row: (row["passed"], row["stage"], row["task_id"]))


def question_3():
    return by_iteration(
        lambda rs: {
            "per_step": tokens(rs, "num_denoising_forwards"),
            "per_forward": tokens(rs, "num_forwards"),
        }
    )


def question_4():
    def rates(rollouts):
        counts = [
            (len(g), sum(r.verdict == "correct" for r in g)) for g in groups_of(rollouts).values()
        ]
        return {
            f"pass_at_{k}": sum(1 - math.comb(n - c, k) / math.comb(n, k) for n, c in counts)
            / len(counts)
            for k in (1, 2)
        }

    return by_iteration(rates)


def question_5():
    def shares(rollouts):
        rates = [passed(group) for group in groups_of(rollouts).values()]
        mixed = sum(0 < rate < 1 for rate in rates)
        return {
            "all_wrong": rates.count(0) / len(rates),
            "all_right": rates.count(1) / len(rates),
            "mixed": mixed / len(rates),
        }

    return by_iteration(shares)


def question_6():
    rows = []
    for group in groups_of(LAST).values():
        rewards = np.array([r.reward for r in group])
        spread = rewards.std()
        rows += [
            {
                "rollout_id": r.rollout_id,
                "reward": r.reward,
                "advantage": (r.reward - rewards.mean()) / spread if spread else 0.0,
            }
            for r in group
        ]
    return sorted(rows, key=lambda row: (-abs(row["advantage"]), row["rollout_id"]))[:10]


def question_7():
    counts: Counter[tuple[str, int, int]] = Counter()
    for rollout in LAST:
        trajectory = rollout.trajectory
        positions = len(trajectory.prompt_ids) + np.arange(len(trajectory.step_map))
        for block in np.unique(positions // 4):
            inside = positions // 4 == block
            steps = trajectory.step_map[inside]
            ranks = {step: rank for rank, step in enumerate(sorted(set(steps)), start=1)}
            for position, step in zip(positions[inside], steps, strict=True):
                counts[rollout.stage, int(position % 4), ranks[step]] += 1
    totals: Counter[tuple[str, int]] = Counter()
    for (stage, place, _), count in counts.items():
        totals[stage, place] += count
    return [
        {
            "stage": stage,
            "place": place,
            "step_in_block": step,
            "share": count / totals[stage, place],
        }
        for (stage, place, step), count in sorted(counts.items())
    ]


def question_8():
    means = defaultdict(list)
    for rollout in LAST:
        counted = rollout.trajectory.logprobs[: rollout.trajectory.num_tokens]
        means[rollout.stage, rollout.verdict].append(float(np.mean(counted.astype(np.float64))))
    return [
        {"stage": stage, "verdict": verdict, "mean_logprob": sum(values) / len(values)}
        for (stage, verdict), values in sorted(means.items())
    ]


def question_9():
    rows = []
    for stage in sorted(STAGES):
        shares = [
            float((np.diff(r.trajectory.step_map) < 0).mean()) for r in LAST if r.stage == stage
        ]
        rows.append({"stage": stage, "out_of_order": sum(shares) / len(shares)})
    return rows


def question_10():
    rows = []
    for r in sorted(LAST, key=lambda r: r.rollout_id)[:10]:
        order = np.argsort(r.trajectory.step_map, kind="stable") + 1
        rows.append(
            {
                "rollout_id": r.rollout_id,
                "verdict": r.verdict,
                "whole": r.text,
                "first_places": order[:5].tolist(),
            }
        )
    return rows


ANSWERS = [
    question_1,
    question_2,
    question_3,
    question_4,
    question_5,
    question_6,
    question_7,
    question_8,
    question_9,
    question_10,
]


@pytest.mark.parametrize("number", range(1, 11))
def test_a_documented_question_has_the_answer_of_plain_python(number, connection):
    rows = answer(connection, QUESTIONS[number]).to_pylist()
    expected = ANSWERS[number - 1]()
    assert [list(row) for row in rows] == [list(row) for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        for name, value in wanted.items():
            assert row[name] == (
                pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            ), name


def test_every_view_and_macro_is_documented_and_every_question_numbered():
    assert sorted(QUESTIONS) == list(range(1, 11))
    assert all(f"`{view}`" in DOCS for view in VIEWS)
    assert all(f"`{signature}`" in DOCS for signature in MACROS)


def test_pass_at_k_is_the_unbiased_estimator(connection):
    rows = answer(
        connection,
        "SELECT n, c, k, pass_at_k(n, c, k) AS p FROM range(1, 7) a(n), range(0, 7) b(c), "
        "range(1, 7) d(k) WHERE c <= n",
    )
    for row in rows.to_pylist():
        n, c, k = row["n"], row["c"], row["k"]
        assert row["p"] == (
            None if k > n else pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k))
        )


def test_unmask_order_leaves_out_what_was_never_reached_and_breaks_ties_by_place(connection):
    assert answer(connection, "SELECT unmask_order([2, 1, 2, 0, 1, 3]) AS o").to_pylist() == [
        {"o": [2, 5, 1, 3, 6]}
    ]


def test_one_function_gives_a_relation(root):
    relation = query(
        root, "SELECT count(*) AS n FROM rollouts WHERE stage = $stage", {"stage": "rl@short"}
    )
    assert relation.fetchall() == [(16,)]
    assert relation.df()["n"].tolist() == [16]
    assert relation.to_arrow_table().to_pylist() == [{"n": 16}]


def test_the_report_draws_the_answer_to_question_7(connection):
    rows = answer(connection, QUESTIONS[7]).to_pylist()
    for stage in STAGES:
        shares = [row["share"] for row in rows if row["stage"] == stage]
        assert unmask_order_shares(connection, stage).to_pylist() == [
            {name: row[name] for name in ("place", "step_in_block", "share")}
            for row in rows
            if row["stage"] == stage
        ]
        assert len(shares) > 4


@pytest.mark.parametrize("sql", re.findall(r"```sql\n(.*?)```", DOCS, re.S))
def test_every_documented_query_is_answered_with_rows(sql, connection):
    assert answer(connection, sql).num_rows > 0
    assert sql.strip().endswith(";"), "pasted into the shell, it would wait for the end"


def test_checkpoints_metrics_and_runs_follow_the_files(root, connection):
    runs = answer(connection, "FROM runs").to_pylist()
    params = small_params()
    rounds = [*(f"sft@{name}" for name in params.sft), *(f"rl@{name}" for name in params.rl)]
    assert [row["stage"] for row in runs if row["kind"] in ("sft", "rl")] == rounds
    assert {row["stage"]: row["init"] for row in runs}["rl@short"] == "sft@short"
    assert {row["policy_hash"] for row in runs if row["stage"] == "base"} == {"0123456789abcdef"}
    curve = answer(
        connection,
        "FROM metrics WHERE stage = 'base' AND curve = 'train' AND name = 'loss' ORDER BY step",
    ).to_pylist()
    assert [row["step"] for row in curve] == list(range(25, 801, 25))
    held_out = answer(
        connection,
        "SELECT DISTINCT name FROM metrics WHERE stage = 'rl@short' AND curve = 'held-out'",
    )["name"].to_pylist()
    assert {"static.accuracy", "dynamic.accuracy"} <= set(held_out)
    final = answer(
        connection,
        "SELECT value FROM metrics WHERE stage = 'base' AND step IS NULL AND name = 'loss'",
    ).to_pylist()
    assert final == [{"value": 0.31}]
    assert answer(connection, "FROM checkpoints").num_rows == 0
