"""What must be true of a data set before the next stage reads it: DuckDB computes, Great
Expectations judges.

`collect_evidence` reduces a data set to three small frames: its columns, one row with the number of
rows that break each rule, and one row of figures per group (task set, round or evaluation).
`check_expectations` holds these to a suite in code. Rules and bounds are errors and stop the
pipeline; drift against the accepted run (reports/baseline.json) is a warning. Great Expectations
never sees a token, because it has no notion of lists.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tracerl.errors import DataError
from tracerl.settings.evaluation import Validation
from tracerl.store.catalog import answer, connect
from tracerl.store.check import Finding, broken_between_rows, check_folder, folders
from tracerl.store.rules import NUM_FIRST, RULES, SET_RULES, SET_WARNINGS
from tracerl.store.schema import DATASETS, MARKS, SCHEMAS

FILES_RULE = "files_are_sound"

# One row per group; the figures that are not null drift against the baseline.
_RESPONSES = """
SELECT {group} AS "group", count(*) AS num_rows, {passed} AS pass_rate,
    avg((stop_reason = 'length')::DOUBLE) AS truncation,
    avg((verdict = 'undecided')::DOUBLE) AS undecided, avg(num_tokens) AS mean_length,
    tokens_per_step(num_tokens, nullif(num_denoising_forwards, 0)) AS tokens_per_step
FROM {dataset} GROUP BY ALL ORDER BY ALL
"""
_GROUP_METRICS = {
    "tasks": """
        SELECT task_set || ' ' || split AS "group", count(*) AS num_rows,
            avg(difficulty) AS mean_difficulty, avg(length(prompt)) AS mean_prompt,
            avg(length(solution)) AS mean_solution
        FROM tasks GROUP BY ALL ORDER BY ALL""",
    # The pass rate of known solutions is not a figure of the model's.
    "traces": _RESPONSES.format(
        dataset="traces",
        group="task_set || if(remasking = 'preferred', ' preferred', ' own')",
        passed="if(any_value(remasking) = 'preferred', NULL, pass_rate(verdict))",
    ),
    "rollouts": _RESPONSES.format(dataset="rollouts", group="stage", passed="pass_rate(verdict)"),
    "evals": _RESPONSES.format(
        dataset="evals", group="stage || ' ' || task_set", passed="pass_rate(verdict)"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Violation:
    """Rows that break a rule."""

    says: str
    """The rule in words."""
    count: int = 0
    """How many rows break it."""
    first: list[str] = field(default_factory=list)
    """Ids of the first of them, or the first problems in words."""
    severity: str = "critical"
    """"critical" stops the pipeline, "warning" does not."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of a data set, for Great Expectations to check."""

    dataset: str
    """Its name."""
    columns: list[str]
    """The stored columns of its view."""
    violations: dict[str, Violation]
    """Rule -> the rows that break it."""
    groups: list[dict[str, Any]]
    """Metrics of each group, with the drift of the one that moved most."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One expectation and whether it holds."""

    name: str
    """What it is about: a rule, or a metric."""
    says: str
    """The expectation in words."""
    severity: str
    """"critical" stops the pipeline, "warning" does not."""
    success: bool
    """Whether it holds."""
    count: int
    """How many rows or groups break it."""
    first: list[str]
    """The first of them."""


def collect_evidence(
    root: Path, dataset: str, vocab_size: int | None, baseline: Mapping[str, Any]
) -> Evidence:
    """What DuckDB says of a data set of the run at `root`. Damaged files are counted, and left out
    of the rest."""
    table = DATASETS[dataset].table
    violations = {
        FILES_RULE: Violation(says="every file is there, whole, unchanged and of a known schema")
    }
    for rule in RULES[table]:
        violations[rule.name] = Violation(says=rule.says)
    for folder in folders(root / "data", dataset):
        for finding in check_folder(folder, table, vocab_size):
            _count(finding, violations)
    # DuckDB has a pool of its own: both at once would double the peak
    pa.default_memory_pool().release_unused()
    connection = connect(root, skip_damaged=True)
    for name, (says, query) in SET_RULES[dataset].items():
        count, first = broken_between_rows(connection, query)
        violations[name] = Violation(says=says, count=count, first=first)
    for name, (says, query) in SET_WARNINGS[dataset].items():
        count, first = broken_between_rows(connection, query)
        violations[name] = Violation(says=says, count=count, first=first, severity="warning")
    groups = answer(connection, _GROUP_METRICS[dataset]).to_pylist()
    described = answer(connection, f"DESCRIBE {dataset}")["column_name"].to_pylist()
    columns = [name for name in described if name not in MARKS]
    for group in groups:
        group["drift"] = _drift(group, baseline.get(group["group"], {}))
    return Evidence(dataset=dataset, columns=columns, violations=violations, groups=groups)


def _count(finding: Finding, violations: dict[str, Violation]) -> None:
    """Adds a finding to the violations of its rule."""
    name = finding.broken.rule.name if finding.broken else FILES_RULE
    old = violations[name]
    more = list(finding.broken.first) if finding.broken else [str(finding)]
    count = finding.broken.count if finding.broken else 1
    first = [*old.first, *more][:NUM_FIRST]
    violations[name] = replace(old, count=old.count + count, first=first)


def _drift(group: Mapping[str, Any], accepted: Mapping[str, float]) -> float | None:
    """Largest relative change of a figure against the accepted run; None if that has no such
    group."""
    changes = []
    for name, old in accepted.items():
        if group.get(name) is not None:
            changes.append(abs(group[name] - old) / max(abs(old), 0.01))
    return max(changes, default=None)


def group_metrics(groups: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Figures by group, as reports/baseline.json keeps them."""
    metrics = {}
    for group in groups:
        row = {}
        for name, value in group.items():
            if name not in ("group", "drift") and value is not None:
                row[name] = value
        metrics[group["group"]] = row
    return metrics


def accepted_metrics(directory: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Figures of a run by data set, as the validate stages wrote them.

    Raises DataError if a file is missing or damaged, or if its data set did not pass.
    """
    figures = {}
    for dataset in DATASETS:
        path = directory / f"{dataset}.json"
        result = read_result(path)
        if not result["success"]:
            raise DataError(
                "a run that did not pass cannot be accepted",
                where=str(path),
                got="success: false",
                wanted="success: true",
            )
        figures[dataset] = group_metrics(result["groups"])
    return figures


def read_result(path: Path) -> dict[str, Any]:
    """A result as a validate stage wrote it. Raises DataError if it is missing or damaged."""
    try:
        result = json.loads(path.read_text("utf-8"))
        return {
            "dataset": result["dataset"],
            "success": result["success"],
            "num_rows": result["num_rows"],
            "groups": result["groups"],
            "expectations": result["expectations"],
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "a validation result cannot be read",
            where=str(path),
            got=repr(error),
            do=f"dvc repro validate@{path.stem}",
        ) from error


def check_expectations(evidence: Evidence, bounds: Validation) -> list[Outcome]:
    """The verdict of Great Expectations on each expectation of the data set's suite, in the suite's
    order."""
    import great_expectations as gx
    import pandas as pd
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    context = gx.get_context(
        mode="ephemeral",
        project_config=DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(),
            analytics_enabled=False,
            progress_bars=ProgressBarsConfig(globally=False),
        ),
    )
    counts = {name: violation.count for name, violation in evidence.violations.items()}
    frames = {
        "columns": pd.DataFrame(columns=evidence.columns),
        "rules": pd.DataFrame([counts]),
        "groups": pd.DataFrame(evidence.groups, columns=["group", *_metric_names(evidence)]),
    }
    source, outcomes = context.data_sources.add_pandas(evidence.dataset), []
    for name, frame in frames.items():
        suite = gx.ExpectationSuite(name=name)
        for expectation in _suite(gx.expectations, name, evidence, bounds):
            suite.add_expectation(expectation)
        batch = (
            source.add_dataframe_asset(name)
            .add_batch_definition_whole_dataframe("all")
            .get_batch({"dataframe": frame})
        )
        shown: dict[Any, Any] | Literal["SUMMARY"]
        shown = (
            {"result_format": "COMPLETE", "unexpected_index_column_names": ["group"]}
            if name == "groups"
            else "SUMMARY"
        )
        for result in batch.validate(suite, result_format=shown).results:
            outcomes.append(_outcome(result, evidence))
    return outcomes


def _metric_names(evidence: Evidence) -> list[str]:
    """Metrics of the groups; those that have bounds are there even if there is no group."""
    names = dict.fromkeys(evidence.groups[0] if evidence.groups else ())
    names.pop("group", None)
    names |= dict.fromkeys(("num_rows", "drift"))
    if evidence.dataset != "tasks":
        names |= dict.fromkeys(("pass_rate", "truncation", "undecided"))
    return list(names)


def _suite(gxe: Any, frame: str, evidence: Evidence, bounds: Validation) -> list[Any]:
    """The expectations of one frame. meta: what an outcome is called and says."""
    if frame == "columns":
        wanted = SCHEMAS[DATASETS[evidence.dataset].table].names
        says = "the columns are those of the schema, in its order"
        return [
            gxe.ExpectTableColumnsToMatchOrderedList(
                column_list=wanted, meta={"name": "columns", "says": says}
            )
        ]
    if frame == "rules":
        expectations = []
        for name, violation in evidence.violations.items():
            expectations.append(_between(gxe, name, violation.says, 0, 0, violation.severity))
        return expectations
    return _group_suite(gxe, evidence.dataset, bounds)


def _between(
    gxe: Any,
    column: str,
    says: str,
    low: float | None,
    high: float | None,
    severity: str = "critical",
) -> Any:
    """The expectation that a column's values lie in an interval, ends included."""
    return gxe.ExpectColumnValuesToBeBetween(
        column=column,
        min_value=low,
        max_value=high,
        severity=severity,
        meta={"name": column, "says": says},
    )


def _group_suite(gxe: Any, dataset: str, bounds: Validation) -> list[Any]:
    """The expectations of the metrics by group."""
    has_rows = gxe.ExpectTableRowCountToBeBetween(
        min_value=1, meta={"name": "rows", "says": "there are rows"}
    )
    says = f"no figure moved by more than {bounds.drift:.0%} against the accepted run"
    drift = _between(gxe, "drift", says, None, bounds.drift, "warning")
    if dataset == "tasks":
        return [has_rows, drift]
    low, high = bounds.pass_rate
    rates = f"pass rates lie between {low:.1%} and {high:.1%}"
    cut = f"at most {bounds.truncation:.1%} of the responses are cut"
    undecided = f"at most {bounds.undecided:.1%} of the verdicts are undecided"
    return [
        has_rows,
        _between(gxe, "pass_rate", rates, low, high),
        _between(gxe, "truncation", cut, 0.0, bounds.truncation),
        _between(gxe, "undecided", undecided, 0.0, bounds.undecided),
        drift,
    ]


def _outcome(result: Any, evidence: Evidence) -> Outcome:
    """One result of Great Expectations in our words. Raises DataError if it could not be evaluated:
    that is not a pass."""
    config = result.expectation_config
    name, severity = config.meta["name"], str(getattr(config.severity, "value", config.severity))
    if any(info.get("raised_exception") for info in _exceptions(result.exception_info)):
        raise DataError(
            "an expectation could not be evaluated",
            where=f"{evidence.dataset}: {name}",
            got=result.exception_info,
        )
    if name in evidence.violations:
        violation = evidence.violations[name]
        return Outcome(
            name=name,
            says=violation.says,
            severity=severity,
            success=bool(result.success),
            count=violation.count,
            first=violation.first,
        )
    rows = [] if result.success else result.result.get("unexpected_index_list") or []
    first = [", ".join(map(str, row.values())) for row in rows]
    if not result.success and not first:
        first = [str(result.result.get("observed_value"))]
    return Outcome(
        name=name,
        says=config.meta["says"],
        severity=severity,
        success=bool(result.success),
        count=0 if result.success else max(len(rows), 1),
        first=first[:NUM_FIRST],
    )


def _exceptions(info: Any) -> list[dict[str, Any]]:
    """Great Expectations gives one record of an exception, or several by metric."""
    return (
        [info]
        if "raised_exception" in info
        else [part for part in info.values() if isinstance(part, dict)]
    )
