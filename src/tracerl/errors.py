"""The project's one error tree.

Every message says what went wrong, where, what was got, what was wanted and what to do about it, in
that order; parts that do not apply are left out. Messages quote files and model output, which are
hostile: control characters in them are escaped here, for every place that prints an error.
"""


def printable(text: str) -> str:
    """The text with everything escaped that a terminal would act on (control characters, bidi
    marks, lone surrogates). Line breaks stay."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


class TracerlError(Exception):
    """Base of every error this package raises on purpose."""

    def __init__(
        self, what: str, *, where: str = "", got: object = None, wanted: object = None, do: str = ""
    ) -> None:
        parts = [what]
        parts += [f"where: {where}"] if where else []
        parts += [f"got: {got}"] if got is not None else []
        parts += [f"wanted: {wanted}"] if wanted is not None else []
        parts += [f"what to do: {do}"] if do else []
        super().__init__(printable("\n  ".join(parts)))


class ParamsError(TracerlError):
    """The params file does not say what a run needs."""


class DataError(TracerlError):
    """A task set, trajectory file or other input does not hold what its schema says."""


class CheckpointError(TracerlError):
    """A checkpoint directory cannot be read or does not fit its architecture."""


class TrainingError(TracerlError):
    """Training cannot go on: non-finite numbers, or nothing to learn from."""


class NonFiniteError(TracerlError):
    """A model computed NaN or infinity where tokens are decided."""
