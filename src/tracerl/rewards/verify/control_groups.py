"""Control groups (Linux cgroup v2): the kernel counts and limits what all processes of a program
use together, also those that live too short to be seen in /proc.

They can be used where this process may make groups beside its own or below it, and the memory and
pids controllers are handed down there: as root of a machine, or under systemd with delegation; not
in most containers.
"""

import contextlib
import errno
import functools
import os
import tempfile
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_CONTROLLERS = {"memory", "pids"}
_END_SECONDS = 2.0  # in which the kernel lets go of processes that were killed


class ControlGroup:
    """A group with limits of its own, empty until processes are added. Raises OSError if the kernel
    refuses it.

    memory: bytes, with files in memory. processes: processes and threads at once.
    """

    def __init__(self, parent: Path, memory: int, processes: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tracerl-", dir=parent))
        try:
            self._write("memory.max", memory)
            self._write("pids.max", processes)
        except OSError:
            self.close()
            raise
        with contextlib.suppress(OSError):  # a kernel without swap has no such file
            self._write("memory.swap.max", 0)

    def add(self, pid: int) -> None:
        """Moves a process here; what it starts from then on is here too."""
        self._write("cgroup.procs", pid)

    @property
    def cpu_seconds(self) -> float:
        """Of all processes that have ever been here, from then on."""
        lines = (self._folder / "cpu.stat").read_text("utf-8").splitlines()
        counts = dict(line.split() for line in lines)
        return int(counts["usage_usec"]) / 1e6

    def close(self) -> None:
        """Removes the group, once its processes are gone."""
        until = time.monotonic() + _END_SECONDS
        while True:
            try:
                self._folder.rmdir()
                return
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > until:
                    return
                time.sleep(0.005)

    def _write(self, name: str, value: int) -> None:
        (self._folder / name).write_text(str(value), "utf-8")


@functools.cache
def parent_of_groups(root: Path = _ROOT, own: Path = _OWN) -> Path | None:
    """The folder in which groups for programs can be made, None where that cannot be done.

    root: where the hierarchy is mounted; own: the file that names this process's group.
    """
    try:
        lines = own.read_text("utf-8").splitlines()
    except OSError:
        return None
    names = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    if not names:
        return None
    group = root / names[0]
    for folder in (group, group.parent) if names[0] else (group,):
        if _can_hold_groups(folder):
            return folder
    return None


def accounting() -> str:
    """How the use of a program's processes is counted here, in words."""
    parent = parent_of_groups()
    if parent is None:
        return "/proc, every 0.2 s: no control groups can be made here"
    return f"control groups below {parent}"


def _can_hold_groups(folder: Path) -> bool:
    try:
        controllers = (folder / "cgroup.subtree_control").read_text("utf-8").split()
        # A process is moved by whoever may write to the group that both places have in common.
        if not set(controllers) >= _CONTROLLERS or not os.access(folder / "cgroup.procs", os.W_OK):
            return False
        ControlGroup(folder, 1 << 30, 16).close()
    except OSError:
        return False
    return True
