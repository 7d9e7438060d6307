"""What every section of the params file is made of: strict, frozen, complete."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the params tree."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


# Names become file names and stage names.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


Shares = Annotated[dict[str, Annotated[float, Field(gt=0.0)]], Field(min_length=1)]


Fraction = Field(ge=0.0, le=1.0)


Positive = Field(gt=0)


def check_range(name: str, value: tuple[float, float], empty: bool) -> None:
    """Raises ValueError unless `value` is a range inside [0, 1]. empty: whether its two ends may be
    one."""
    low, high = value
    if not 0.0 <= low <= high <= 1.0 or (low == high and not empty):
        raise ValueError(f"{name} must be a range inside [0, 1], got {value}")
