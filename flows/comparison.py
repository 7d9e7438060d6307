"""A comparison of experiments: what differs, as a table for the UI and as a page with charts that
needs no network."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracerl.reporting.charts import Series, line_chart
from tracerl.reporting.pages import template

MAX_COLUMNS, MAX_CHARTS = 12, 6

# Experiment -> param -> value, and experiment -> metric -> number.
Cells = Mapping[str, Mapping[str, Any]]
Metrics = Mapping[str, Mapping[str, float]]


def varying_metrics(metrics: Metrics) -> list[str]:
    """The metrics that are not the same in all experiments, in their order."""
    names = dict.fromkeys(name for row in metrics.values() for name in row)
    return [name for name in names if len({row.get(name) for row in metrics.values()}) > 1]


def table(cells: Cells, metrics: Metrics) -> list[list[str]]:
    """A line of headings, then one line for each experiment that has metrics: its name, its params,
    the metrics that differ."""
    names = varying_metrics(metrics)[:MAX_COLUMNS]
    lines = [["experiment", *next(iter(cells.values())), *names]]
    for cell, row in metrics.items():
        numbers = [f"{row[name]:.6g}" if name in row else "" for name in names]
        lines.append([cell, *map(json.dumps, cells[cell].values()), *numbers])
    return lines


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """The table as the UI shows it."""
    rule = ["---"] * len(lines[0])
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def page(title: str, cells: Cells, metrics: Metrics) -> str:
    """HTML of the table and a chart of each of the first metrics."""
    names = varying_metrics(metrics)[:MAX_CHARTS]
    return template("comparison.html.j2", Path(__file__).parent).render(
        title=title,
        lines=table(cells, metrics),
        charts=[chart(name, cells, metrics) for name in names],
    )


def chart(metric: str, cells: Cells, metrics: Metrics) -> str:
    """One metric over the first param that has several values; a line for each combination of the
    other params. Values that are no numbers are drawn at their places in the list."""
    values = {}
    for name in next(iter(cells.values())):
        values[name] = list(dict.fromkeys(json.dumps(cell[name]) for cell in cells.values()))
    over = next((name for name, several in values.items() if len(several) > 1), next(iter(values)))
    lines: dict[str, list[tuple[float, float]]] = {}
    for cell, row in metrics.items():
        if metric not in row:
            continue
        x = cells[cell][over]
        if not isinstance(x, int | float):
            x = values[over].index(json.dumps(x))
        others = [
            f"{name.split('.')[-1]} {value}" for name, value in cells[cell].items() if name != over
        ]
        lines.setdefault(", ".join(others), []).append((float(x), row[metric]))
    series = []
    for label, points in lines.items():
        x_values, y_values = zip(*sorted(points), strict=True)
        series.append(Series(label=label, x=x_values, y=y_values))
    return line_chart(metric, series, over)
