"""What every training loop is told about the run it belongs to."""

from collections.abc import Callable
from dataclasses import dataclass

from tracerl.settings.models import Launch
from tracerl.training.scratch import Workspace


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The run that a training loop belongs to."""

    seed: int
    """The run's random seed."""
    stage: str
    """Name of the stage ("rl@short"); every random stream is named by it."""
    workspace: Workspace
    """Scratch directory in which the loop saves its state and from which it resumes."""
    on_progress: Callable[[int, int, str], None]
    """Called with (units done, units in all, a few words) after every unit of work."""
    launch: Launch | None = None
    """How weights and optimizer states are sharded over ranks; None for not at all."""
