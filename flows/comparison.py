"""A comparison of experiments: what differs, as a table for the UI and as a page with plots that
needs no network."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tracerl.reporting.charts import Series, line_chart

MAX_COLUMNS, MAX_CHARTS = 12, 6

PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px system-ui; margin: 2em; max-width: 75em }} table {{ border-collapse: collapse }}
td, th {{ padding: .3em .8em; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child {{ text-align: left }}
svg {{ width: 32em; margin: 1em 2em 1em 0 }} text {{ font: 10px system-ui; fill: #444 }}
.title {{ font-size: 12px; fill: #000 }} .grid {{ stroke: #e5e5e5 }} .axis {{ stroke: #999 }}
.line {{ fill: none; stroke-width: 1.8 }} .dot {{ fill: #fff }}
.s0 {{ stroke: #1f5fbf }} .s1 {{ stroke: #c2570c }} .s2 {{ stroke: #1a7f4b }}
.s3 {{ stroke: #7a3fb0 }}
</style><h1>{title}</h1><table>{rows}</table>{charts}
"""

# Experiment -> param -> value, and experiment -> metric -> number.
Cells = Mapping[str, Mapping[str, Any]]
Figures = Mapping[str, Mapping[str, float]]


def differing(figures: Figures) -> list[str]:
    """The metrics that are not the same in all experiments, in their order."""
    names = dict.fromkeys(name for row in figures.values() for name in row)
    return [name for name in names if len({row.get(name) for row in figures.values()}) > 1]


def table(cells: Cells, figures: Figures) -> list[list[str]]:
    """A line of headings, then one line for each experiment that has figures: its name, its params,
    the metrics that differ."""
    metrics = differing(figures)[:MAX_COLUMNS]
    lines = [["experiment", *next(iter(cells.values())), *metrics]]
    for cell, row in figures.items():
        numbers = [f"{row[name]:.6g}" if name in row else "" for name in metrics]
        lines.append([cell, *map(json.dumps, cells[cell].values()), *numbers])
    return lines


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """The table as the UI shows it."""
    rule = ["---"] * len(lines[0])
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def page(title: str, cells: Cells, figures: Figures) -> str:
    """The table and a plot of each of the first metrics."""
    rows = [[f"<td>{html.escape(text)}</td>" for text in line] for line in table(cells, figures)]
    charts = [chart(name, cells, figures) for name in differing(figures)[:MAX_CHARTS]]
    return PAGE.format(
        title=html.escape(title),
        rows="".join(f"<tr>{''.join(row)}</tr>" for row in rows),
        charts="".join(charts),
    )


def chart(metric: str, cells: Cells, figures: Figures) -> str:
    """One metric over the first param that has several values, or over their places in the list if
    they are no numbers; a line for each combination of the other params."""
    values = {
        name: list(dict.fromkeys(json.dumps(cell[name]) for cell in cells.values()))
        for name in next(iter(cells.values()))
    }
    over = next((name for name, several in values.items() if len(several) > 1), next(iter(values)))
    lines: dict[str, list[tuple[float, float]]] = {}
    for cell, row in figures.items():
        if metric in row:
            x, rest = (
                cells[cell][over],
                {name: value for name, value in cells[cell].items() if name != over},
            )
            place = (
                float(x) if isinstance(x, int | float) else float(values[over].index(json.dumps(x)))
            )
            label = ", ".join(f"{name.split('.')[-1]} {value}" for name, value in rest.items())
            lines.setdefault(label, []).append((place, row[metric]))
    series = []
    for label, points in lines.items():
        x_values, y_values = zip(*sorted(points), strict=True)
        series.append(Series(label=label, x=x_values, y=y_values))
    return line_chart(metric, series, over)
