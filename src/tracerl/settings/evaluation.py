"""Sections `evaluation`, `evaluate`, `held_out`, `validation` and `report`."""

from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from tracerl.settings.base import Fraction, Name, Positive, Section, check_range, is_none
from tracerl.settings.sampling import Mode, Sampler

Modes = Annotated[dict[Name, Mode], Field(min_length=1)]


def samplers_of(modes: dict[str, Mode], sampler: Sampler, place: str) -> dict[str, Sampler]:
    """The sampler of every mode. Raises ValueError naming the mode that does not fit."""
    samplers = {}
    for name, mode in modes.items():
        try:
            samplers[name] = mode.apply(sampler)
        except ValidationError as error:
            raise ValueError(f"{place}.{name} does not fit the sampler: {explain(error)}") from None
    return samplers


def explain(error: ValidationError) -> str:
    """The problems of an error in one line."""
    problems = []
    for problem in error.errors():
        path = ".".join(map(str, problem["loc"]))
        problems.append(f"{path} {problem['msg']}".strip())
    return "; ".join(problems)


class HeldOut(Section):
    """Held-out accuracy during a round: at iteration 0 and every `every` iterations."""

    tasks: Annotated[list[str], Field(min_length=1)] | None
    """Task sets whose test splits are asked; null for the round's own (a published training set has
    no test split)."""
    every: int = Positive
    """Iterations between two measurements."""
    num_problems: int = Positive
    """Problems of each task set."""
    num_samples: int = Positive
    """Responses per problem."""
    bootstrap: int = Positive
    """Bootstrap resamples of the accuracy's interval."""
    modes: Modes
    """Ways to sample by name: what differs from the round's sampler."""


class Evaluation(Section):
    """A checkpoint on task sets' test splits, in every mode of `evaluation`."""

    checkpoint: str
    """Stage that made the checkpoint: base, sft@NAME or rl@NAME; of an adapted base also
    base/origin, the autoregressive checkpoint that it was."""
    tasks: Annotated[list[str], Field(min_length=1)]
    """Task sets."""
    sampler: Sampler
    """How responses are sampled; a mode says what differs."""


class EvaluationDefaults(Section):
    """What all evaluations share."""

    num_problems: int = Positive
    """Problems per task set."""
    num_samples: int = Positive
    """Responses per problem."""
    samples: dict[str, Annotated[int, Field(gt=0)]] | None = Field(default=None, exclude_if=is_none)
    """Task set -> responses per problem, where they are not num_samples. A mode that says its own
    num_samples has those for every set. Null for num_samples everywhere."""
    batch_size: int = Positive
    """Problems per saved batch."""
    bootstrap: int = Positive
    """Bootstrap resamples of the accuracy's interval."""
    modes: Modes
    """Ways to sample by name: what differs from the evaluation's sampler."""

    def samples_of(self, task_set: str, mode: str) -> int:
        """Responses per problem of a task set in a mode: the mode's own number, else the task
        set's, else that of the section."""
        of_set = (self.samples or {}).get(task_set, self.num_samples)
        return self.modes[mode].samples(of_set)


class Report(Section):
    """What the report shows of each round."""

    num_traces: int = Field(ge=0)
    """Responses shown in the order in which they were unmasked."""
    num_played: int = Field(ge=0)
    """Responses in reports/traces.html."""


class Validation(Section):
    """What the validate stages demand beyond the store's rules; store/expectations.py."""

    pass_rate: tuple[float, float]
    """Range of every round's, evaluation's and task set's share of correct responses."""
    truncation: float = Fraction
    """Largest share of responses cut at the length limit."""
    undecided: float = Fraction
    """Largest share of undecided responses."""
    drift: float = Field(gt=0.0)
    """Largest relative change of a metric against reports/baseline.json without a warning."""

    @model_validator(mode="after")
    def _pass_rate_is_a_range(self) -> Self:
        check_range("pass_rate", self.pass_rate, empty=True)
        return self
