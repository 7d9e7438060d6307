"""Writes the result table reports/metrics/summary.json, the report reports/report.html and the
trace viewer reports/traces.html.

Example: python -m stages.report
"""

import duckdb

from stages.runtime import entry, paths
from stages.runtime.code import check_code
from stages.runtime.fingerprint import check_unchanged, take_fingerprint
from stages.runtime.machine import library_versions
from stages.runtime.params import read_params
from tracerl.disk import write_json, write_text
from tracerl.models.tokenizer import load_tokenizer
from tracerl.reporting.report import render_report
from tracerl.reporting.summary import summary_rows
from tracerl.reporting.trace_viewer import Response, render_viewer, select_responses
from tracerl.store.catalog import answer, connect


def main() -> None:
    params = read_params("report")
    check_code("report")
    fingerprint = take_fingerprint("report", [paths.PARAMS, paths.CODE])
    software = {
        "vectors": params.compute.vectors,
        "threads": str(params.threads),
        **library_versions(),
    }
    rows = summary_rows(paths.REPORTS / "metrics" / "evaluate", params.evaluate)
    tokenizer = load_tokenizer(paths.CHECKPOINTS / "base", None)
    connection = connect(paths.ROOT)
    page = render_report(params, rows, paths.ROOT, connection, tokenizer, software)
    responses = [
        one
        for name in params.rl
        for one in _before_and_after(connection, name, params.report.num_played)
    ]
    viewer = render_viewer(
        responses,
        tokenizer,
        "Held-out responses of each round: before it, and after its last iteration",
    )
    check_unchanged(fingerprint)
    write_json(paths.REPORTS / "metrics" / "summary.json", {"rows": rows})
    write_text(paths.REPORTS / "report.html", page)
    write_text(paths.REPORTS / "traces.html", viewer)


def _before_and_after(
    connection: duckdb.DuckDBPyConnection, name: str, count: int
) -> list[Response]:
    """Held-out responses of a round's last measurement, each beside that of iteration 0; none if
    the round stored none."""
    held_out = f"starts_with(stage, 'rl@{name}/held-out')"
    last = f"{held_out} AND iteration = (SELECT max(iteration) FROM rollouts WHERE {held_out})"
    if not answer(connection, f"SELECT 1 FROM rollouts WHERE {held_out} LIMIT 1").num_rows:
        return []
    return select_responses(connection, last, f"{held_out} AND iteration = 0", count)


if __name__ == "__main__":
    entry.run(main, __doc__)
