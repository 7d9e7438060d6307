"""What every section of the params file is made of.

A choice is a union of sections, told apart by its key `kind` (of a task set: `source`). Each kind
has its own keys and no others; what it does stands in a table keyed by its class
(sampling/orders.py, sampling/caches.py, objectives/methods.py, objectives/supervised.py). Nothing
else knows a kind.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the params tree: strict, frozen, without keys it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


# Names become file names and stage names.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Shares = Annotated[dict[str, Annotated[float, Field(gt=0.0)]], Field(min_length=1)]
Fraction = Field(ge=0.0, le=1.0)
Positive = Field(gt=0)


def is_none(value: object) -> bool:
    """Of a key added later: whether it is left out of what a stage reads, so that runs made before
    it stay the same runs."""
    return value is None


def check_range(name: str, value: tuple[float, float], empty: bool) -> None:
    """Raises ValueError unless `value` is a range inside [0, 1].

    empty: whether its two ends may be equal.
    """
    low, high = value
    if not 0.0 <= low <= high <= 1.0 or (low == high and not empty):
        raise ValueError(f"{name} must be a range inside [0, 1], got {value}")
