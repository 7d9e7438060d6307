"""What the curves of an RL round say in the end: how much it sampled, and how it answered held-out
problems before and after."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tracerl.settings.rounds import RlRound


def round_metrics(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    settings: RlRound,
    num_dropped: Mapping[str, int],
) -> dict[str, Any]:
    """The metrics of a round.

    curves: of `train_rl`. num_dropped: tasks of each set whose prompt was too long.
    """
    metrics: dict[str, Any] = {"iterations": settings.iterations}
    if settings.phases is not None:
        metrics["phases"] = Counter(row["phase"] for row in curves["train"])
    num_groups = sum(row["sampled_groups"] for row in curves["train"])
    metrics["responses"] = num_groups * settings.group_size
    metrics["dropped_prompt_too_long"] = num_dropped
    metrics["held_out"] = _before_and_after(curves["held_out"], settings.iterations)
    metrics["ended_below_start"] = sorted(held_out_declines(curves["held_out"]))
    return metrics


def _before_and_after(rows: Sequence[Mapping[str, Any]], iterations: int) -> dict[str, Any]:
    """By remasking mode, held-out metrics at the start and after the last iteration."""
    first = {}
    last = {}
    for row in rows:
        if row["iteration"] == 0:
            first[row["remasking"]] = row
        if row["iteration"] == iterations:
            last[row["remasking"]] = row
    pairs: dict[str, Any] = {}
    for mode in last:
        pairs[mode] = {}
        for name in ("accuracy", "tokens_per_step", "empty_rate"):
            pairs[mode][name] = {"before": first[mode][name], "after": last[mode][name]}
    return pairs


def held_out_declines(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The remasking modes in which a round ended below where it began, beyond the 95% interval of
    its start, each with a few words on it. rows: the curve `held_out`."""
    declines = {}
    for last in rows:
        if last["iteration"] != rows[-1]["iteration"]:
            continue
        mode = last["remasking"]
        first = next(row for row in rows if row["remasking"] == mode)
        if last["accuracy"] < first["ci_low"]:
            declines[mode] = (
                f"held-out accuracy fell from {first['accuracy']:.3f} "
                f"(95% interval from {first['ci_low']:.3f}) to {last['accuracy']:.3f}; "
                f"{last['empty_rate']:.0%} of the responses are empty"
            )
    return declines
