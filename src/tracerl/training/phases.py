"""Which phase of a round an iteration belongs to: a curriculum inside one run.

Alternating kinds of tasks, a block size that grows after so many iterations, a difficulty that
rises once the model is good enough: all are a list of phases, each with a few keys of the round
changed (config.Phase). Nothing is remembered but the rows of the training curve, which a saved
state holds anyway: the phase of the next iteration is a function of them, so that a killed round
goes on where it was.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tracerl.settings.rounds import Phase


def next_phase(phases: Sequence[Phase], rows: Sequence[Mapping[str, Any]]) -> Phase:
    """The phase of the iteration that follows `rows`, the training curve from the round's first
    iteration on, each with its `accuracy`.

    Phases follow each other in their order, the first one after the last.
    """
    index, accuracies = 0, list[float]()
    for row in rows:
        accuracies.append(row["accuracy"])
        if _is_over(phases[index], accuracies):
            index, accuracies = (index + 1) % len(phases), []
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
