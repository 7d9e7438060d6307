"""The page of one data set's validation: every expectation with what was found, and the figures by
group. A function of the result only."""

from collections.abc import Mapping
from typing import Any

from tracerl.reporting.charts import plain
from tracerl.reporting.pages import template

_SHARES = ("pass_rate", "truncation", "undecided", "drift")


def render_validation(result: Mapping[str, Any]) -> str:
    """HTML of a result as reports/validation/<dataset>.json holds it."""
    names = [name for name in (result["groups"][0] if result["groups"] else {}) if name != "group"]
    groups = []
    for group in result["groups"]:
        groups.append((group["group"], [_text(name, group[name]) for name in names]))
    num_failed = 0
    num_warnings = 0
    for outcome in result["expectations"]:
        if not outcome["success"]:
            if outcome["severity"] == "critical":
                num_failed += 1
            else:
                num_warnings += 1
    return template("validation.html.j2").render(
        dataset=result["dataset"],
        success=result["success"],
        num_rows=result["num_rows"],
        expectations=sorted(result["expectations"], key=_gravity),
        num_failed=num_failed,
        num_warnings=num_warnings,
        names=names,
        groups=groups,
    )


def _gravity(outcome: Mapping[str, Any]) -> tuple[bool, bool]:
    """Sort key: what failed first, what is critical before warnings."""
    return outcome["success"], outcome["severity"] != "critical"


def _text(name: str, value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{100 * value:.1f}%" if name in _SHARES else plain(value)
