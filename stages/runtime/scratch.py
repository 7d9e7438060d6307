"""The scratch folder of a stage, data/scratch/<stage>-<fingerprint>: where it goes on after a
kill."""

import fcntl
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.runtime import debug, paths
from stages.runtime.fingerprint import check_unchanged, take_fingerprint
from stages.runtime.last_good import keep_reports, restore_reports
from stages.runtime.signals import stop_requested
from tracerl import distributed
from tracerl.errors import DataError
from tracerl.training.scratch import Workspace

_locks: dict[Path, int] = {}


def open_workspace(stage: str, inputs: Sequence[Path]) -> Workspace:
    """The scratch workspace of a stage; those that other params, code or inputs left of the same
    stage are removed.

    inputs: files and folders that the stage reads. Raises DataError while another process works on
    the same stage; publishing raises it if params, code or inputs changed meanwhile.
    """
    if debug.options.enabled:
        folder = debug.debug_folder(stage)
        return Workspace(folder, _stopping, lambda _: debug.refuse_to_publish(folder))
    fingerprint = take_fingerprint(stage, inputs)
    folder = paths.SCRATCH / f"{stage}-{fingerprint.name}"
    if not distributed.is_first():
        distributed.barrier()  # until the first rank has cleared and locked the folder
        return Workspace(folder, _stopping)
    for other in paths.SCRATCH.glob(f"{stage}-*"):
        if other != folder and _is_scratch_of(stage, other.name):
            lock_stage(other, stage)
            shutil.rmtree(other)
    folder.mkdir(parents=True, exist_ok=True)
    lock_stage(folder, stage)
    restore_reports(stage)
    distributed.barrier()

    def before_publish(outputs: Mapping[str, Path]) -> None:
        check_unchanged(fingerprint)
        keep_reports(stage, folder, outputs)

    return Workspace(folder, _stopping, before_publish)


def lock_stage(directory: Path, stage: str) -> None:
    """Keeps other processes off a scratch directory until this one ends, however it ends. Raises
    DataError if another process has it."""
    if directory in _locks and os.path.samestat(os.fstat(_locks[directory]), directory.stat()):
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataError(
            "the stage is being run by another process",
            where=str(directory),
            got=stage,
            do="let it finish or stop it, then run the same command again",
        ) from None
    _locks[directory] = descriptor


def _is_scratch_of(stage: str, name: str) -> bool:
    """Not of a stage with a longer name: evaluate@wide-k8 begins as evaluate@wide does."""
    return re.fullmatch(re.escape(stage) + r"-[0-9a-f]{12}(\.tmp)?", name) is not None


def _stopping() -> bool:
    """Whether a signal has asked any rank to stop."""
    return distributed.is_set_on_any_rank(stop_requested())
