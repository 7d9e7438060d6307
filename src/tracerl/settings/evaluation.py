"""Sections `evaluation`, `evaluate`, `held_out`, `validation` and `report`."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Fraction, Positive, Section, check_range
from tracerl.settings.sampling import Remasking, Sampler


class HeldOut(Section):
    """Held-out accuracy during a round: `num_problems` per task set at iteration 0 and every
    `every` iterations, in each mode.

    tasks: task sets whose test splits are asked, null for the round's own (a published training set
    has no test split).
    """

    tasks: Annotated[list[str], Field(min_length=1)] | None
    every: int = Positive
    num_problems: int = Positive
    bootstrap: int = Positive
    remasking: Annotated[list[Remasking], Field(min_length=1)]


class Evaluation(Section):
    """A checkpoint on task sets' test splits, once per remasking mode of `evaluation` (which
    replaces the sampler's own)."""

    checkpoint: str
    tasks: Annotated[list[str], Field(min_length=1)]
    sampler: Sampler


class EvaluationDefaults(Section):
    """What all evaluations share: problems per task set, responses per problem, problems per saved
    batch, bootstrap resamples."""

    num_problems: int = Positive
    num_samples: int = Positive
    batch_size: int = Positive
    remasking: Annotated[list[Remasking], Field(min_length=1)]
    bootstrap: int = Positive


class Validation(Section):
    """What the validate stages demand beyond the store's rules; see store/expectations.py.

    pass_rate: range of every round's, evaluation's and task set's share of correct responses.
    truncation, undecided: largest shares.
    drift: largest relative change of a figure against reports/baseline.json before it is warned of.
    """

    pass_rate: tuple[float, float]
    truncation: float = Fraction
    undecided: float = Fraction
    drift: float = Field(gt=0.0)

    @model_validator(mode="after")
    def _pass_rate_is_a_range(self) -> Self:
        check_range("pass_rate", self.pass_rate, empty=True)
        return self


class Report(Section):
    """num_traces: responses shown per round in the order in which they were unmasked. num_played:
    per round, in reports/traces.html."""

    num_traces: int = Field(ge=0)
    num_played: int = Field(ge=0)
