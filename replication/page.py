"""The page of the replication: a function of the verdicts and the curves, needing nothing but
itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracerl.reporting.charts import Series, line_chart, percent, plain
from tracerl.reporting.pages import template

Tree = dict[str, Any]

RULE = (
    "Seeds are the units. A comparison pairs both sides problem by problem (iteration by iteration "
    "for fluctuations) and has one difference for each seed, the mean over problems; its "
    "{level:.0%} interval is Student's t over seeds (of a single seed: a bootstrap of {resamples} "
    "draws over problems, and no verdict). A comparison is held if a one-sided t test puts the "
    "difference above the first bound of its row, not held if one puts it below the second, the "
    "smallest effect that counts, and undecided otherwise; Holm's correction over the comparisons "
    "of a claim keeps the claim's error below 1 - {level:.0%}. It is untested if something does "
    "not hold without which it cannot show its claim. The column of seeds needed says how many "
    "would find the smallest effect that counts with a chance of {power:.0%}, at the deviation "
    "between seeds that was measured. Where the budget is to be equal, the floating-point "
    "operations of both sides' last stage may differ by {tolerance:.0%}: if the first side had "
    "more and did not lose, or less and did not win, the comparison is undecided. A claim is held "
    "if all its comparisons are, not held if one is not. Rows marked shown carry no claim."
)


def render(verdicts: Tree, curves: dict[str, list[Tree]], seeds: Sequence[int]) -> str:
    """HTML of what judge.py found."""
    return template("page.html.j2", Path(__file__).parent).render(
        plan=verdicts["plan"],
        seeds=", ".join(map(str, sorted(set(seeds)))),
        num_cells=len(verdicts["cells"]),
        rule=RULE.format(**verdicts["rule"]),
        claims=[
            {
                "id": name,
                **{key: claim[key] for key in ("says", "source", "refuted_if", "verdict")},
                "comparisons": [_row(comparison) for comparison in claim["comparisons"]],
                "charts": [_chart(chart) for chart in curves[name]],
                "figures": _cell_metrics([row for row in verdicts["rows"] if row["claim"] == name]),
            }
            for name, claim in verdicts["claims"].items()
        ],
        cells=[_cell(name, record) for name, record in verdicts["cells"].items()],
    )


def verdict_table(claims: Sequence[Tree]) -> str:
    """The verdicts on some claims as a table of Markdown."""
    rows = [(claim["says"], claim["source"], f"**{claim['verdict']}**") for claim in claims]
    return "\n".join(
        f"| {' | '.join(row)} |" for row in [("claim", "source", "verdict"), ("---",) * 3, *rows]
    )


def _row(comparison: Tree) -> Tree:
    points = comparison["metric"] == "accuracy"

    def text(value: float) -> str:
        return f"{100 * value:+.1f}" if points else f"{value:+.2g}"

    unit = " points" if points else ""
    known = comparison["difference"] is not None
    bounds = f"[{text(comparison['ci_low'])}, {text(comparison['ci_high'])}]" if known else ""
    equal = "equal" if comparison["budget"] == "equal" else "own"
    return {
        "family": comparison["family"],
        "compared": f"{' + '.join(comparison['plus'])} over {' + '.join(comparison['minus'])}",
        "measure": ", ".join(
            filter(
                None,
                (
                    comparison["metric"].replace("_", " "),
                    comparison.get("remasking"),
                    *comparison.get("tasks", []),
                ),
            )
        ),
        "difference": f"{text(comparison['difference'])} {bounds}{unit}" if known else "",
        "by_seed": ", ".join(map(text, comparison["by_seed"].values())),
        "compute": f"{equal}, {comparison['compute']:.2f}"
        if comparison["compute"] is not None
        else f"{equal}, not counted",
        "bounds": f"{text(comparison['above'])} / {text(comparison['refuted_below'])}"
        if "above" in comparison
        else "",
        "seeds_needed": comparison["seeds_needed"] or "",
        "verdict": comparison["verdict"],
        "why": comparison["why"],
    }


def _cell_metrics(rows: Sequence[Tree]) -> list[Tree]:
    """What each cell measured: the mean over seeds, the seeds' own values, and what they had for
    it."""
    groups: dict[tuple[str, str], list[Tree]] = {}
    for row in rows:
        groups.setdefault((row["cell"], row["metric"]), []).append(row)

    def text(metric: str, value: float) -> str:
        return percent(value) if metric.startswith("accuracy") else f"{value:.3g}"

    return [
        {
            "cell": cell,
            "measure": metric.replace("_", " "),
            "mean": text(metric, sum(row["value"] for row in of) / len(of)),
            "by_seed": ", ".join(text(metric, row["value"]) for row in of),
            "forwards": ", ".join(f"{row['budget_forwards']:,}" for row in of),
        }
        for (cell, metric), of in groups.items()
    ]


def _chart(chart: Tree) -> str:
    series = []
    for label, points in chart["lines"].items():
        x, y, low, high = zip(*points, strict=True)
        series.append(Series(label=label, x=x, y=y, low=low, high=high))
    return line_chart(chart["title"], series, "iteration", percent if chart["percent"] else plain)


def _cell(name: str, record: Tree) -> Tree:
    data = record["inputs"].values()
    budget = record["budget"]
    return {
        "name": name,
        "params": record["params_sha256"][:12],
        "data": " ".join(digest[:8] for digest in list(data)[:3])
        + (f" and {len(data) - 3} more" if len(data) > 3 else ""),
        **{key: f"{budget[key]:,}" for key in ("forwards", "tokens")},
        "flops": f"{budget['flops']:.3g}" + ("" if budget["complete"] else ", not counted whole"),
    }
