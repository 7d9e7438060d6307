"""Writes the result table reports/metrics/summary.json and the report reports/report.html from what the other stages wrote.

Example: python -m stages.report
"""

from stages import context
from tracerl.models.tokenizer import load_tokenizer
from tracerl.reporting.report import render_report
from tracerl.reporting.summary import summary_rows
from tracerl.store.catalog import connect
from tracerl.store.workspace import write_json, write_text


def main() -> None:
    params = context.load()
    rows = summary_rows(context.REPORTS / "metrics" / "evaluate", params.evaluate)
    tokenizer = load_tokenizer(context.CHECKPOINTS / "base", None)
    page = render_report(params, rows, context.REPORTS, connect(context.ROOT), tokenizer)
    write_json(context.REPORTS / "metrics" / "summary.json", {"rows": rows})
    write_text(context.REPORTS / "report.html", page)


if __name__ == "__main__":
    context.run(main, __doc__)
