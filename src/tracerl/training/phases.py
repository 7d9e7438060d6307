"""Which phase of a round an iteration belongs to: a curriculum inside one run.

Alternating kinds of tasks, a block size that grows after so many iterations, a difficulty that
rises once the model is good enough: each is a list of phases with a few keys of the round changed
(settings/rounds.py: Phase). The phase of the next iteration is a function of the rows of the
training curve. A saved state holds those rows anyway, so that a killed round goes on where it was.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tracerl.settings.rounds import Phase


def next_phase(phases: Sequence[Phase], rows: Sequence[Mapping[str, Any]]) -> Phase:
    """The phase of the iteration that follows `rows`, the training curve from the round's first
    iteration on, each with its `accuracy`.

    Phases follow each other in their order, the first one after the last.
    """
    index = 0
    accuracies: list[float] = []  # of the phase that runs
    for row in rows:
        accuracies.append(row["accuracy"])
        if _is_over(phases[index], accuracies):
            index = (index + 1) % len(phases)
            accuracies = []
    return phases[index]


def _is_over(phase: Phase, accuracies: Sequence[float]) -> bool:
    """Whether a phase ends with its last iteration. accuracies: of all its iterations so far."""
    if phase.iterations is not None and len(accuracies) >= phase.iterations:
        return True
    threshold = phase.until
    return (
        threshold is not None
        and len(accuracies) >= threshold.over
        and sum(accuracies[-threshold.over :]) / threshold.over >= threshold.accuracy
    )
