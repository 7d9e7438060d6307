"""Figures of the report that come from the response rows by SQL: unmasking order, pass rates of
groups, problems won and lost."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tracerl.disk import file_sha256
from tracerl.reporting.charts import heat_map, histogram, won_lost_chart
from tracerl.settings.evaluation import Evaluation
from tracerl.settings.params import Params
from tracerl.store.catalog import answer
from tracerl.store.expectations import read_result
from tracerl.store.parquet import MANIFEST

_NUM_BINS = 10

PARAMS_COPY = "data/params/params.yaml"  # the file as the run read it; people may edit the other

# Of each place in a block, the shares of the steps in the block at which it is committed, over a
# stage's last iteration.
_ORDER = """
WITH tokens AS (
    SELECT hash(rollout_id) AS response, block_size, unnest(step_map) AS step,
        num_prompt_tokens + generate_subscripts(step_map, 1) - 1 AS position
    FROM rollouts
    WHERE stage = $stage
        AND iteration = (SELECT max(iteration) FROM rollouts WHERE stage = $stage)
), ranked AS (
    SELECT position % block_size AS place,
        dense_rank() OVER (
            PARTITION BY response, position // block_size ORDER BY step
        ) AS step_in_block
    FROM tokens WHERE step > 0
)
SELECT place, step_in_block, count(*) / sum(count(*)) OVER (PARTITION BY place) AS share
FROM ranked GROUP BY place, step_in_block ORDER BY ALL
"""
# Groups of the first and the last fifth of a stage's iterations, by pass rate.
_GROUPS = """
WITH groups AS (
    SELECT iteration, pass_rate(verdict) AS passed
    FROM rollouts WHERE stage = $stage GROUP BY iteration, task_id
), ends AS (
    SELECT max(iteration) AS last, ceil(max(iteration) / 5) AS fifth FROM groups
), fifths AS (
    SELECT if(iteration <= fifth, 'first fifth', 'last fifth') AS part,
        round(passed * $bins)::INTEGER AS bin
    FROM groups, ends WHERE iteration <= fifth OR iteration > last - fifth
)
SELECT part, bin, count(*) / sum(count(*)) OVER (PARTITION BY part) AS share
FROM fifths GROUP BY part, bin ORDER BY ALL
"""
_WON_LOST = """
WITH rates AS (
    SELECT stage, task_set, task_id, pass_rate(verdict) AS passed
    FROM evals WHERE stage IN ($before, $after) GROUP BY ALL
)
SELECT a.task_set,
    count(*) FILTER (WHERE b.passed > a.passed) AS won,
    count(*) FILTER (WHERE b.passed < a.passed) AS lost
FROM rates a JOIN rates b USING (task_id)
WHERE a.stage = $before AND b.stage = $after GROUP BY ALL ORDER BY ALL
"""


def unmask_order_shares(connection: duckdb.DuckDBPyConnection, stage: str) -> pa.Table:
    """Of each `place` in a block, the `share` of its tokens that each `step_in_block` commits, over
    the last iteration of a round."""
    return answer(connection, _ORDER, {"stage": stage})


def order_chart(connection: duckdb.DuckDBPyConnection, stage: str) -> str:
    """Place in the block against step in the block, of a round's last iteration."""
    shares: dict[tuple[int, int], float] = {}
    for row in unmask_order_shares(connection, stage).to_pylist():
        shares[row["place"], row["step_in_block"]] = row["share"]
    num_places = 0
    num_steps = 0
    for place, step in shares:
        num_places = max(num_places, place + 1)
        num_steps = max(num_steps, step)
    cells = [[0.0] * num_steps for _ in range(num_places)]
    for (place, step), share in shares.items():
        cells[place][step - 1] = share
    return heat_map(
        "Which step unmasks which place of a block, %",
        cells,
        "step in the block",
        "place in the block",
    )


def group_chart(connection: duckdb.DuckDBPyConnection, stage: str) -> str:
    """Pass rates of a round's groups, early and late."""
    rows = answer(connection, _GROUPS, {"stage": stage, "bins": _NUM_BINS}).to_pylist()
    series: dict[str, list[float]] = {}  # the query orders the first fifth before the last
    for row in rows:
        shares = series.setdefault(row["part"], [0.0] * (_NUM_BINS + 1))
        shares[row["bin"]] = row["share"]
    return histogram(
        "Pass rates of groups",
        [f"{100 * i // _NUM_BINS}" for i in range(_NUM_BINS + 1)],
        list(series.items()),
        "share of correct responses, %",
    )


def won_lost_charts(connection: duckdb.DuckDBPyConnection, params: Params) -> list[str]:
    """Problems won and lost by each evaluated checkpoint against its nearest evaluated ancestor
    with the same problems and block size."""
    charts = []
    for before, after in _comparisons(params):
        rows = []
        for mode in params.evaluation.modes:
            values = {"before": f"evaluate@{before}/{mode}", "after": f"evaluate@{after}/{mode}"}
            for row in answer(connection, _WON_LOST, values).to_pylist():
                rows.append((f"{row['task_set']} · {mode}", row["won"], row["lost"]))
        if rows:
            evaluation = params.evaluate[after]
            checkpoints = f"{params.evaluate[before].checkpoint} → {evaluation.checkpoint}"
            title = f"{checkpoints}, block size {evaluation.sampler.block_size}"
            charts.append(won_lost_chart(title, rows))
    return charts


def _comparisons(params: Params) -> list[tuple[str, str]]:
    """(before, after) names of evaluations."""
    pairs = []
    for name, evaluation in params.evaluate.items():
        ancestor = params.parents.get(evaluation.checkpoint)
        while ancestor is not None:
            counterpart = _counterpart(params, evaluation, ancestor)
            if counterpart is not None:
                pairs.append((counterpart, name))
                break
            ancestor = params.parents.get(ancestor)
    return pairs


def _counterpart(params: Params, evaluation: Evaluation, checkpoint: str) -> str | None:
    """The first evaluation of a checkpoint on the same problems at the same block size."""
    for name, other in params.evaluate.items():
        if (
            other.checkpoint == checkpoint
            and other.tasks == evaluation.tasks
            and other.sampler.block_size == evaluation.sampler.block_size
        ):
            return name
    return None


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What made the report."""

    code_hash: str
    """SHA-256 of the lists of all stages' code."""
    software: list[tuple[str, str]]
    """(name, version or setting) of what computed it, which the promise of equal bits names."""
    params: str
    """The whole params file."""
    params_hash: str
    """Its SHA-256."""
    data: list[tuple[str, str]]
    """(folder, SHA-256 of its manifest)."""
    checkpoints: list[tuple[str, str]]
    """(stage, policy hash)."""


def collect_provenance(
    root: Path, connection: duckdb.DuckDBPyConnection, software: Mapping[str, str]
) -> Provenance:
    """Hashes of everything the numbers depend on, from the files themselves."""
    text = (root / PARAMS_COPY).read_text("utf-8")
    data = []
    for manifest in sorted((root / "data").glob(f"**/{MANIFEST}")):
        if "scratch" not in manifest.parts:
            data.append((str(manifest.parent.relative_to(root)), file_sha256(manifest)))
    hashes = answer(
        connection,
        "SELECT stage, policy_hash FROM runs WHERE kind IN ('base', 'sft', 'rl') AND policy_hash "
        "IS NOT NULL",
    ).to_pylist()
    checkpoints = [(row["stage"], row["policy_hash"]) for row in hashes]
    code = hashlib.sha256()
    for path in sorted((root / "data" / "code").glob("*.txt")):
        code.update(f"{path.name} {file_sha256(path)}\n".encode())
    return Provenance(
        code_hash=code.hexdigest(),
        software=list(software.items()),
        params=text,
        params_hash=file_sha256(root / PARAMS_COPY),
        data=data,
        checkpoints=checkpoints,
    )


def validation_results(directory: Path) -> list[dict[str, Any]]:
    """Of each validated data set: its name, whether it passed, its number of rows and expectations,
    and those that did not hold."""
    results = []
    for result in map(read_result, sorted(directory.glob("*.json"))):
        expectations = result["expectations"]
        results.append(
            {
                "dataset": result["dataset"],
                "success": result["success"],
                "num_rows": result["num_rows"],
                "count": len(expectations),
                "failed": [outcome for outcome in expectations if not outcome["success"]],
            }
        )
    return results
