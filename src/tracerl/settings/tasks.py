"""Section `tasks`: the sets of problems."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Name, Section

# Generated task sets whose written steps have a rule (rewards/judges/steps.py).
STEP_SOURCES = ("sums", "arithmetic", "countdown")


class TaskSet(Section):
    """A set of problems: generated (`source` names a generator), from reasoning-gym (`source: gym`,
    `task` names one of its tasks, `options` are of its configuration), or read from a file
    (`source: file`): the user's own, or one that `tracerl data add` wrote. `source: open` is a
    user's file of problems without a verifiable answer, which the judge of `verification` decides.
    """

    source: Literal["sums", "arithmetic", "countdown", "sudoku", "gym", "file", "open"]
    difficulty: tuple[int, int] | None = None
    num_train: int = Field(ge=0)
    num_test: int = Field(ge=0)
    path: str | None = None
    task: str | None = None
    options: dict[str, int | float | bool | str | list[int] | list[str]] | None = None

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> Self:
        if self.source == "file" and not self.path:
            raise ValueError(
                "source 'file' needs a path to a .jsonl or .parquet file with columns prompt, answer and optionally solution"
            )
        if self.source == "open" and not self.path:
            raise ValueError(
                "source 'open' needs a path to a .jsonl or .parquet file with the column prompt and optionally rubric and answer"
            )
        if (self.source == "gym") != (self.task is not None):
            raise ValueError(
                "source 'gym' and no other needs task, the name of a reasoning-gym task"
            )
        if self.options is not None and self.source != "gym":
            raise ValueError("only source 'gym' has options, those of its task")
        if self.source not in ("file", "gym", "open") and (
            self.difficulty is None
            or self.difficulty[0] > self.difficulty[1]
            or self.difficulty[0] < 1
        ):
            raise ValueError("a generated set needs difficulty: [lowest, highest], at least 1")
        highest = {"countdown": 4, "sudoku": 12}.get(self.source)
        if (
            highest
            and self.difficulty
            and (
                self.difficulty[1] > highest
                or (self.source == "countdown" and self.difficulty[0] < 2)
            )
        ):
            raise ValueError("difficulty of countdown is 2 to 4 numbers, of sudoku 1 to 12 blanks")
        return self


class Tasks(Section):
    """held_out: the share of all possible problems, by a hash of the problem, that belong to the
    test split."""

    held_out: float = Field(gt=0.0, lt=1.0)
    sets: dict[Name, TaskSet]
