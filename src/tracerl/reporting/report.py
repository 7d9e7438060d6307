"""The report: one HTML file with the result table, the rounds before and after, the training curves
and a few trajectories.

It needs nothing but itself: no script, no font, no picture and no address (its links lead to pages
beside it), and its content security policy holds browsers to that. It is a function of what the
stages wrote and of the code, without times or machine names, so that writing it twice gives the
same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb

from tracerl.errors import DataError
from tracerl.models.tokenizer import Tokenizer
from tracerl.reporting.charts import (
    Change,
    Format,
    Series,
    change_chart,
    fixed,
    interval_bar,
    line_chart,
    percent,
    plain,
)
from tracerl.reporting.pages import template
from tracerl.reporting.rows import (
    group_chart,
    order_chart,
    provenance,
    validation_results,
    won_lost_charts,
)
from tracerl.reporting.summary import Row, accuracy_text
from tracerl.reporting.trace_viewer import Trace, last_traces
from tracerl.settings.params import Params
from tracerl.settings.rounds import RlRound
from tracerl.store.run_tables import curve_rows

Curve = list[dict[str, Any]]


@dataclass(frozen=True)
class Round:
    """An RL round as the report shows it. charts: SVG. block_sizes: what it samples and trains at,
    in words."""

    stage: str
    init: str
    block_sizes: str
    charts: list[str]
    traces: list[Trace]


@dataclass(frozen=True)
class Stage:
    """A training stage and its figures, (name, value) as in its metrics file."""

    name: str
    init: str
    figures: list[tuple[str, str]]


def render_report(
    params: Params,
    rows: Sequence[Row],
    root: Path,
    connection: duckdb.DuckDBPyConnection,
    tokenizer: Tokenizer,
    software: Mapping[str, str],
) -> str:
    """The report as HTML, from the result table's `rows`, the curves and metrics below
    `root`/reports, and the rollouts.

    Raises DataError naming the file if a stage's curve or metrics are missing or damaged.
    """
    reports = root / "reports"
    curves = {stage: read_curve(reports / "curves" / f"{stage}.tsv") for stage in _stages(params)}
    held_out = {
        stage: read_curve(reports / "curves" / f"{stage}-held-out.tsv")
        for stage in _rl_stages(params)
    }
    return template("report.html.j2").render(
        seed=params.seed,
        threads=params.threads,
        benchmarks=[
            (name, list(group))
            for name, group in groupby(
                sorted(rows, key=_benchmark_order(rows)), key=lambda r: r["benchmark"]
            )
        ],
        accuracy_text=accuracy_text,
        interval_bar=interval_bar,
        changes=_change_charts(held_out),
        losses=[
            loss_chart(stage, curves[stage])
            for stage in curves
            if stage not in held_out and curves[stage]
        ],
        rounds=[
            Round(
                stage=stage,
                init=settings.init,
                block_sizes=_block_sizes(settings),
                charts=[
                    *round_charts(curves[stage], held_out[stage]),
                    group_chart(connection, stage),
                    order_chart(connection, stage),
                ],
                traces=last_traces(connection, tokenizer, stage, params.report.num_traces),
            )
            for stage, settings in _rl_stages(params).items()
        ],
        won_lost=won_lost_charts(connection, params),
        validation=validation_results(reports / "validation"),
        provenance=provenance(root, connection, software),
        stages=[
            Stage(name, init, _figures(reports / "metrics" / f"{name}.json"))
            for name, init in _stages(params).items()
        ],
    )


def read_curve(path: Path) -> Curve:
    """Rows of a tab-separated curve, numbers as floats; a file with only its heading gives none.

    Raises DataError if it is missing or a row is short.
    """
    try:
        return curve_rows(path.read_text(), str(path))
    except (OSError, ValueError) as error:
        raise DataError(
            "a curve cannot be read",
            where=str(path),
            got=error,
            do="run the stage that wrote it again",
        ) from error


def _stages(params: Params) -> dict[str, str]:
    """What each training stage starts from; for the base, the directory of the import or ""."""
    return {"base": params.base.path or "", **params.parents}


def _rl_stages(params: Params) -> dict[str, RlRound]:
    return {f"rl@{name}": settings for name, settings in params.rl.items()}


def _block_sizes(settings: RlRound) -> str:
    """What a round samples and trains at, phase by phase."""
    names = [f"in phase {phase.name} " for phase in settings.phases or ()] or [""]
    return ", ".join(
        f"{name}samples at block size {part.sampler.block_size}, trains at {part.train_block_size}"
        for name, part in zip(names, settings.phase_rounds, strict=True)
    )


def _benchmark_order(rows: Sequence[Row]) -> Any:
    """Sort key that puts a benchmark's rows together, benchmarks in order of appearance."""
    order = list(dict.fromkeys(row["benchmark"] for row in rows))
    return lambda row: order.index(row["benchmark"])


def _modes(held_out: Curve) -> dict[str, Curve]:
    """Rows of a held-out curve by remasking mode."""
    return {
        mode: [row for row in held_out if row["remasking"] == mode]
        for mode in dict.fromkeys(row["remasking"] for row in held_out)
    }


def _change_charts(held_out: dict[str, Curve]) -> list[str]:
    """Accuracy, tokens per step and length of the first and the last held-out measurement of every
    round."""
    pairs = [
        (f"{stage} · {mode}", rows[0], rows[-1])
        for stage, curve in held_out.items()
        for mode, rows in _modes(curve).items()
    ]
    if not pairs:
        return []
    accuracy = [
        Change(
            label,
            a["accuracy"],
            b["accuracy"],
            (a["ci_low"], a["ci_high"]),
            (b["ci_low"], b["ci_high"]),
        )
        for label, a, b in pairs
    ]
    tokens, lengths = (
        [Change(label, a[name], b[name]) for label, a, b in pairs]
        for name in ("tokens_per_step", "mean_length")
    )
    return [
        change_chart("Held-out accuracy", accuracy, percent),
        change_chart("Held-out tokens per denoising step", tokens, fixed(2)),
        change_chart("Held-out mean length in tokens", lengths, fixed(1)),
    ]


def loss_chart(stage: str, curve: Curve) -> str:
    return line_chart(f"{stage}: loss", [_series("loss", curve, "step", "loss")], "step")


def round_charts(train: Curve, held_out: Curve) -> list[str]:
    """The charts of one round, over its iterations."""
    modes, judged = _modes(held_out), bool(train) and "chunk_score" in train[0]

    def of_train(title: str, text: Format, **columns: str) -> str:
        return line_chart(
            title,
            [_series(label, train, "iteration", column) for label, column in columns.items()],
            "iteration",
            text,
        )

    def of_modes(column: str, low: str = "", high: str = "") -> list[Series]:
        return [_series(mode, rows, "iteration", column, low, high) for mode, rows in modes.items()]

    return [
        line_chart(
            "Held-out accuracy, 95% intervals",
            of_modes("accuracy", "ci_low", "ci_high"),
            "iteration",
            percent,
        ),
        line_chart(
            "Held-out tokens per denoising step", of_modes("tokens_per_step"), "iteration", fixed(2)
        ),
        of_train("Reward of training responses", plain, mean="reward"),
        of_train("Tokens per denoising step in training", fixed(2), mean="tokens_per_step"),
        of_train("KL to the iteration's first policy", plain, mean="kl"),
        of_train("Length of training responses in tokens", fixed(1), mean="mean_length"),
        of_train("Training responses cut at the length limit", percent, share="truncation_rate"),
        of_train("Groups of responses", plain, kept="kept_groups", sampled="sampled_groups"),
        *(
            [
                of_train(
                    "Judge's score of the steps of training responses", fixed(2), mean="chunk_score"
                )
            ]
            if judged
            else []
        ),
    ]


def _series(label: str, rows: Curve, x: str, y: str, low: str = "", high: str = "") -> Series:
    """Columns of a curve as a series, with a band if `low` and `high` are named."""
    column = {name: [row[name] for row in rows] for name in (x, y, low, high) if name}
    return Series(label, column[x], column[y], column.get(low, ()), column.get(high, ()))


def _figures(path: Path) -> list[tuple[str, str]]:
    """Names and values of a metrics file that are single values, or single values by name."""
    try:
        metrics: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(
            "a metrics file cannot be read",
            where=str(path),
            got=error,
            do="run the stage that wrote it again",
        ) from error
    figures = []
    for name, value in metrics.items():
        if not isinstance(value, dict):
            figures.append((name, _value_text(value)))
        elif not any(isinstance(part, dict) for part in value.values()):
            figures.append(
                (name, ", ".join(f"{key} {_value_text(part)}" for key, part in value.items()))
            )
    return figures


def _value_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else plain(value)
