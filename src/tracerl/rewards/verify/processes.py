"""What a program's processes use, as the kernel shows it in /proc."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process as the kernel shows it."""

    pid: int
    start: str
    """When it started, in the kernel's ticks; with `pid` unlike any other process."""
    state: str
    """One letter: R runs or waits for a processor."""
    cpu_seconds: float
    """Of itself."""
    total_seconds: float
    """Of itself and of those of its children that it has waited for."""
    memory: int
    """Resident bytes, shared ones included."""

    def own_memory(self) -> int:
        """Resident bytes, shared ones divided among those who share them."""
        try:
            text = Path(f"/proc/{self.pid}/smaps_rollup").read_text("utf-8")
        except OSError:
            return self.memory
        sizes = [line.split()[1] for line in text.splitlines() if line.startswith("Pss:")]
        return int(sizes[0]) << 10 if sizes else self.memory


def processes(pid: int) -> list[Process]:
    """A process and its descendants, as far as they are there."""
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    running: list[Process] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        try:
            facts = Path(f"/proc/{current}/stat").read_text("utf-8").rpartition(") ")[2].split()
            for path in Path(f"/proc/{current}/task").glob("*/children"):
                waiting += map(int, path.read_text("utf-8").split())
        except (OSError, ValueError):
            continue
        times = [int(ticks) / tick for ticks in facts[11:15]]
        memory = int(facts[21]) * page
        process = Process(
            pid=current,
            start=facts[19],
            state=facts[0],
            cpu_seconds=times[0] + times[1],
            total_seconds=sum(times),
            memory=memory,
        )
        running.append(process)
    return running
