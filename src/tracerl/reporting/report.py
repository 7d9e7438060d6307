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
    decimals,
    interval_bar,
    line_chart,
    percent,
    plain,
)
from tracerl.reporting.pages import template
from tracerl.reporting.rows import (
    collect_provenance,
    group_chart,
    order_chart,
    validation_results,
    won_lost_charts,
)
from tracerl.reporting.summary import Row, accuracy_text
from tracerl.reporting.trace_viewer import Trace, last_traces
from tracerl.settings.params import Params
from tracerl.settings.rounds import RlRound
from tracerl.settings.sampling import Sampler
from tracerl.store.run_tables import curve_rows

Curve = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Round:
    """An RL round as the report shows it."""

    stage: str
    """Such as "rl@short"."""
    init: str
    """The checkpoint it starts from."""
    block_sizes: str
    """What it samples and trains at, in words."""
    charts: list[str]
    """SVG."""
    traces: list[Trace]
    """Responses of its last iteration."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A training stage and its metrics."""

    name: str
    """Such as "sft@short"."""
    init: str
    """The checkpoint it starts from; for the base the directory of the import, or ""."""
    figures: list[tuple[str, str]]
    """(name, value) as in its metrics file."""


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
    held_out: dict[str, Curve] = {}
    rounds = []
    for stage, settings in _rl_stages(params).items():
        held_out[stage] = read_curve(reports / "curves" / f"{stage}-held-out.tsv")
        charts = [
            *round_charts(curves[stage], held_out[stage]),
            group_chart(connection, stage),
            order_chart(connection, stage),
        ]
        rounds.append(
            Round(
                stage=stage,
                init=settings.init,
                block_sizes=_block_sizes(settings),
                charts=charts,
                traces=last_traces(connection, tokenizer, stage, params.report.num_traces),
            )
        )
    return template("report.html.j2").render(
        seed=params.seed,
        threads=params.threads,
        benchmarks=_rows_by_benchmark(rows),
        modes=mode_descriptions(params),
        accuracy_text=accuracy_text,
        interval_bar=interval_bar,
        changes=_change_charts(held_out),
        losses=_loss_charts(curves, held_out),
        rounds=rounds,
        won_lost=won_lost_charts(connection, params),
        validation=validation_results(reports / "validation"),
        provenance=collect_provenance(root, connection, software),
        stages=_stage_metrics(params, reports / "metrics"),
    )


def mode_descriptions(params: Params) -> list[tuple[str, str]]:
    """Name of each mode of the evaluations, and in words how it draws, in which order it commits
    and how many responses it takes. Where evaluations differ, each way is named."""
    evaluation = params.evaluation
    descriptions = []
    for name, mode in evaluation.modes.items():
        ways = []
        for settings in params.evaluate.values():
            ways.append(_sampler_words(mode.apply(settings.sampler)))
        num_samples = mode.samples(evaluation.num_samples)
        words = [*dict.fromkeys(ways), f"responses to a problem: {num_samples}"]
        if mode.num_samples is None:
            for task_set, count in (evaluation.samples or {}).items():
                words.append(f"to one of {task_set}: {count}")
        descriptions.append((name, "; ".join(words)))
    return descriptions if params.evaluate else []


def _sampler_words(sampler: Sampler) -> str:
    """How a sampler draws tokens and in which order it commits them."""
    if sampler.temperature == 0.0:
        drawn = "greedy (temperature 0)"
    elif sampler.top_k == 1:
        drawn = "greedy (top_k 1)"
    else:
        drawn = f"drawn at temperature {sampler.temperature:g}"
        drawn += f", top_k {sampler.top_k}" if sampler.top_k else ""
        drawn += f", top_p {sampler.top_p:g}" if sampler.top_p < 1.0 else ""
    keys = sampler.order.model_dump()
    words = [f"order {keys.pop('kind')}"]
    for key, value in keys.items():
        words.append(f"{key} {value}")
    order = ", ".join(words)
    if sampler.order.scheduled:
        order += f", tokens per step {sampler.block_size / sampler.steps_per_block:g}"
    return f"{drawn}; {order}"


def read_curve(path: Path) -> Curve:
    """Rows of a tab-separated curve, numbers as floats; a file with only its heading gives none.

    Raises DataError if it is missing or a row is short.
    """
    try:
        return curve_rows(path.read_text("utf-8"), str(path))
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
    parts = []
    for name, part in zip(names, settings.phase_rounds, strict=True):
        sampling = f"{name}samples at block size {part.sampler.block_size}"
        parts.append(f"{sampling}, trains at {part.train_block_size}")
    return ", ".join(parts)


def _rows_by_benchmark(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """A benchmark's rows together, benchmarks in order of appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["benchmark"], []).append(row)
    return list(groups.items())


def _stage_metrics(params: Params, directory: Path) -> list[Stage]:
    stages = []
    for name, init in _stages(params).items():
        stages.append(Stage(name=name, init=init, figures=_metrics(directory / f"{name}.json")))
    return stages


def _modes(held_out: Curve) -> dict[str, Curve]:
    """Rows of a held-out curve by remasking mode."""
    modes: dict[str, Curve] = {}
    for row in held_out:
        modes.setdefault(row["remasking"], []).append(row)
    return modes


def _change_charts(held_out: dict[str, Curve]) -> list[str]:
    """Accuracy, tokens per step and length of the first and the last held-out measurement of every
    round."""
    accuracy = []
    tokens = []
    lengths = []
    for stage, curve in held_out.items():
        for mode, rows in _modes(curve).items():
            label = f"{stage} · {mode}"
            first = rows[0]
            last = rows[-1]
            accuracy.append(
                Change(
                    label=label,
                    before=first["accuracy"],
                    after=last["accuracy"],
                    before_interval=(first["ci_low"], first["ci_high"]),
                    after_interval=(last["ci_low"], last["ci_high"]),
                )
            )
            tokens.append(_change(label, "tokens_per_step", first, last))
            lengths.append(_change(label, "mean_length", first, last))
    if not accuracy:
        return []
    return [
        change_chart("Held-out accuracy", accuracy, percent),
        change_chart("Held-out tokens per denoising step", tokens, decimals(2)),
        change_chart("Held-out mean length in tokens", lengths, decimals(1)),
    ]


def _change(label: str, metric: str, first: Row, last: Row) -> Change:
    return Change(label=label, before=first[metric], after=last[metric])


def _loss_charts(curves: Mapping[str, Curve], held_out: Mapping[str, Curve]) -> list[str]:
    """The loss of each stage that is no RL round; a base that was imported has none."""
    charts = []
    for stage, curve in curves.items():
        if curve and stage not in held_out:
            charts.append(loss_chart(stage, curve))
    return charts


def loss_chart(stage: str, curve: Curve) -> str:
    """The loss over the steps of supervised training."""
    return line_chart(f"{stage}: loss", [_series("loss", curve, "step", "loss")], "step")


def round_charts(train: Curve, held_out: Curve) -> list[str]:
    """The charts of one round, over its iterations."""
    accuracy = []
    tokens = []
    for mode, rows in _modes(held_out).items():
        accuracy.append(_series(mode, rows, "iteration", "accuracy", "ci_low", "ci_high"))
        tokens.append(_series(mode, rows, "iteration", "tokens_per_step"))

    def train_chart(title: str, text: Format, **columns: str) -> str:
        lines = []
        for label, column in columns.items():
            lines.append(_series(label, train, "iteration", column))
        return line_chart(title, lines, "iteration", text)

    charts = [
        line_chart("Held-out accuracy, 95% intervals", accuracy, "iteration", percent),
        line_chart("Held-out tokens per denoising step", tokens, "iteration", decimals(2)),
        train_chart("Reward of training responses", plain, mean="reward"),
        train_chart("Tokens per denoising step in training", decimals(2), mean="tokens_per_step"),
        train_chart("KL to the iteration's first policy", plain, mean="kl"),
        train_chart("Length of training responses in tokens", decimals(1), mean="mean_length"),
        train_chart("Training responses cut at the length limit", percent, share="truncation_rate"),
        train_chart("Groups of responses", plain, kept="kept_groups", sampled="sampled_groups"),
    ]
    if train and "chunk_score" in train[0]:
        title = "Judge's score of the steps of training responses"
        charts.append(train_chart(title, decimals(2), mean="chunk_score"))
    return charts


def _series(label: str, rows: Curve, x: str, y: str, low: str = "", high: str = "") -> Series:
    """Columns of a curve as a series, with a band if `low` and `high` are named."""
    return Series(
        label=label,
        x=_column(rows, x),
        y=_column(rows, y),
        low=_column(rows, low) if low else (),
        high=_column(rows, high) if high else (),
    )


def _column(rows: Curve, name: str) -> list[float]:
    return [row[name] for row in rows]


def _metrics(path: Path) -> list[tuple[str, str]]:
    """Names and values of a metrics file that are single values, or single values by name."""
    try:
        metrics: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            "a metrics file cannot be read",
            where=str(path),
            got=error,
            do="run the stage that wrote it again",
        ) from error
    entries = []
    for name, value in metrics.items():
        if not isinstance(value, dict):
            entries.append((name, _value_text(value)))
        elif dict not in map(type, value.values()):
            parts = [f"{key} {_value_text(part)}" for key, part in value.items()]
            entries.append((name, ", ".join(parts)))
    return entries


def _value_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else plain(value)
