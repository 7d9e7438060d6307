"""Section `tasks`: the sets of problems. tasks.py makes them."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Name, Section


class _TaskSet(Section):
    """What all sources have."""

    needs_judge: ClassVar[bool] = False
    """Whether its problems have no verifiable answer, so that a judge decides them."""
    has_step_rules: ClassVar[bool] = False
    """Whether judges of kind "steps" can score its written steps (rewards/judges/steps.py)."""

    num_train: int = Field(ge=0)
    """Problems of the train split."""
    num_test: int = Field(ge=0)
    """Problems of the test split."""


class _Generated(_TaskSet):
    """Problems from a generator of tasks.py or puzzles.py."""

    least: ClassVar[int] = 1
    most: ClassVar[int | None] = None

    difficulty: tuple[int, int]
    """[lowest, highest] difficulty, both included; the source says what it counts."""

    @model_validator(mode="after")
    def _difficulty_exists(self) -> Self:
        low, high = self.difficulty
        if not self.least <= low <= high or (self.most is not None and high > self.most):
            limit = "" if self.most is None else f" and at most {self.most}"
            raise ValueError(
                f"difficulty must be [lowest, highest], at least {self.least}{limit}, "
                f"got {list(self.difficulty)}"
            )
        return self


class SumsSet(_Generated):
    """Sums of digits, `4+7+5=`. Difficulty: number of terms."""

    has_step_rules = True

    source: Literal["sums"]
    """Name of the generator."""


class ArithmeticSet(_Generated):
    """Expressions with +, - and *, `(1+3)*2-5=`. Difficulty: number of operators."""

    has_step_rules = True

    source: Literal["arithmetic"]
    """Name of the generator."""


class CountdownSet(_Generated):
    """Reach a target with given numbers. Difficulty: number of numbers."""

    has_step_rules = True
    least = 2
    most = 4

    source: Literal["countdown"]
    """Name of the generator."""


class SudokuSet(_Generated):
    """4x4 sudoku. Difficulty: number of blanks."""

    most = 12

    source: Literal["sudoku"]
    """Name of the generator."""


class GymSet(_TaskSet):
    """Problems of reasoning-gym (extra `gym`)."""

    source: Literal["gym"]
    """Name of the source."""
    task: str
    """Name of a reasoning-gym task."""
    options: dict[str, int | float | bool | str | list[int] | list[str]]
    """Options of that task's configuration, {} for its own."""


class FileSet(_TaskSet):
    """Problems of a user's file, or of one that `tracerl data add` wrote."""

    source: Literal["file"]
    """Name of the source."""
    path: str = Field(min_length=1)
    """A .jsonl or .parquet file with columns prompt, answer and optionally solution, difficulty."""


class OpenSet(_TaskSet):
    """A user's problems without a verifiable answer; the judge of `verification` decides them."""

    needs_judge = True

    source: Literal["open"]
    """Name of the source."""
    path: str = Field(min_length=1)
    """A .jsonl or .parquet file with column prompt and optionally rubric, answer, solution."""


GeneratedSet = SumsSet | ArithmeticSet | CountdownSet | SudokuSet
TaskSet = Annotated[GeneratedSet | GymSet | FileSet | OpenSet, Field(discriminator="source")]


class Tasks(Section):
    """All task sets of a run."""

    held_out: float = Field(gt=0.0, lt=1.0)
    """Share of all possible problems that belong to the test split, by a hash of the problem."""
    sets: dict[Name, TaskSet]
    """Task sets by name."""
