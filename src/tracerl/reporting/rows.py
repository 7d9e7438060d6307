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
    num_places = max((place for place, _ in shares), default=-1) + 1
    num_steps = max((step for _, step in shares), default=0)
    cells = []
    for place in range(num_places):
        cells.append([shares.get((place, step), 0.0) for step in range(1, num_steps + 1)])
    return heat_map(
        "Which step unmasks which place of a block, %",
        cells,
        "step in the block",
        "place in the block",
    )


def group_chart(connection: duckdb.DuckDBPyConnection, stage: str) -> str:
    """Pass rates of a round's groups, early and late."""
    rows = answer(connection, _GROUPS, {"stage": stage, "bins": _NUM_BINS}).to_pylist()
    shares = {(row["part"], row["bin"]): row["share"] for row in rows}
    parts = [
        part for part in ("first fifth", "last fifth") if any(key[0] == part for key in shares)
    ]
    series = [(part, [shares.get((part, i), 0.0) for i in range(_NUM_BINS + 1)]) for part in parts]
    return histogram(
        "Pass rates of groups",
        [f"{100 * i // _NUM_BINS}" for i in range(_NUM_BINS + 1)],
        series,
        "share of correct responses, %",
    )


def won_lost_charts(connection: duckdb.DuckDBPyConnection, params: Params) -> list[str]:
    """Problems won and lost by each evaluated checkpoint against its nearest evaluated ancestor
    with the same problems and block size."""
    charts = []
    for before, after in _comparisons(params):
        a, b = params.evaluate[before], params.evaluate[after]
        rows = []
        for mode in params.evaluation.modes:
            values = {"before": f"evaluate@{before}/{mode}", "after": f"evaluate@{after}/{mode}"}
            rows += [
                (f"{r['task_set']} · {mode}", r["won"], r["lost"])
                for r in answer(connection, _WON_LOST, values).to_pylist()
            ]
        if rows:
            charts.append(
                won_lost_chart(
                    f"{a.checkpoint} → {b.checkpoint}, block size {b.sampler.block_size}", rows
                )
            )
    return charts


def _comparisons(params: Params) -> list[tuple[str, str]]:
    """(before, after) names of evaluations."""
    inits, pairs = params.parents, []
    for name, one in params.evaluate.items():
        ancestor = inits.get(one.checkpoint)
        while ancestor is not None:
            found = [
                other
                for other, two in params.evaluate.items()
                if two.checkpoint == ancestor
                and two.tasks == one.tasks
                and two.sampler.block_size == one.sampler.block_size
            ]
            if found:
                pairs.append((found[0], name))
                break
            ancestor = inits.get(ancestor)
    return pairs


@dataclass(frozen=True)
class Provenance:
    """What made the report. code_hash: of the lists of all stages' code. software: (name, version
    or setting) of what computed it, which the promise of equal bits names. data: (folder, SHA-256
    of its manifest). checkpoints: (name, policy hash). params: the whole file."""

    code_hash: str
    software: list[tuple[str, str]]
    params: str
    params_hash: str
    data: list[tuple[str, str]]
    checkpoints: list[tuple[str, str]]


def provenance(
    root: Path, connection: duckdb.DuckDBPyConnection, software: Mapping[str, str]
) -> Provenance:
    """Hashes of everything the numbers depend on, from the files themselves."""
    text = (root / PARAMS_COPY).read_text()
    manifests = sorted((root / "data").glob(f"**/{MANIFEST}"))
    data = [
        (str(m.parent.relative_to(root)), file_sha256(m))
        for m in manifests
        if "scratch" not in m.parts
    ]
    hashes = answer(
        connection,
        "SELECT stage, policy_hash FROM runs WHERE kind IN ('base', 'sft', 'rl') AND policy_hash "
        "IS NOT NULL",
    ).to_pylist()
    checkpoints = [(row["stage"], row["policy_hash"]) for row in hashes]
    lists = sorted((root / "data" / "code").glob("*.txt"))
    code = "".join(f"{path.name} {file_sha256(path)}\n" for path in lists)
    return Provenance(
        code_hash=hashlib.sha256(code.encode()).hexdigest(),
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
        failed = [one for one in result["expectations"] if not one["success"]]
        shown = {name: result[name] for name in ("dataset", "success", "num_rows")}
        results.append({**shown, "count": len(result["expectations"]), "failed": failed})
    return results
