"""What can happen to a run of the whole chain: kills of each process, a full disk, a clock that
jumps, a second run.

A disturbance runs the chain once in a project folder and disturbs it at a random moment. All use
the commands of a user: `python -m flows.repro`, `python -m flows.pipeline`, `make serve`.
"""

import errno
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tests.chain import chain_environment
from tests.flows.served import serving

HANG_SECONDS = 900.0
CLOCK = """
import random
import time

def jumping(real=time.time, day=86400.0):
    rng = random.Random(SEED)
    starts, offsets = [real()], [0.0]
    def now():
        if real() - starts[0] > 0.5:
            starts[0], offsets[0] = real(), rng.uniform(-day, day)
        return real() + offsets[0]
    return now

time.time = jumping()
"""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What became of one disturbed run of the chain."""

    struck: bool
    """Whether it was disturbed before it ended."""
    survives: bool
    """Whether it should have ended without an error in spite of the disturbance."""
    status: int
    """Its exit status; negative for a signal."""
    output: str
    """What it printed."""


Disturbance = Callable[[Path, random.Random, float], Attempt]


def environment(folder: Path) -> dict[str, str]:
    """That of a user of a chain who runs its own code."""
    return {
        **chain_environment(folder),
        "PYTHONPATH": f"{folder / 'src'}:{folder}",
        "PREFECT_HOME": str(folder.parent / "prefect"),
        "DO_NOT_TRACK": "1",
    }


@dataclass(frozen=True, kw_only=True)
class Run:
    """A command that was started."""

    process: "subprocess.Popen[bytes]"
    """Its first process."""
    log: Path
    """What it prints. No pipe: what a kill leaves behind would hold it open."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def ended(self) -> bool:
        return self.process.poll() is not None


def start(folder: Path, module: str = "flows.repro", **extra: str) -> Run:
    """Starts a command of a user; `extra` are variables of its environment."""
    descriptor, log = tempfile.mkstemp(suffix=".log", dir=folder.parent)
    with os.fdopen(descriptor, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=folder,
            env={**environment(folder), **extra},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Run(process=process, log=Path(log))


def end(run: Run, struck: bool, survives: bool = False) -> Attempt:
    """Waits for a run. One that hangs is ended, with the status of a timeout."""
    try:
        status = run.process.wait(timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        kill_all(tree(run.pid))
        return Attempt(struck=struck, survives=True, status=124, output="it hung")
    output = run.log.read_text(errors="replace")
    return Attempt(struck=struck, survives=survives, status=status, output=output)


def kill_process(
    victims: str, folder: Path, rng: random.Random, seconds: float, module: str = "flows.repro"
) -> Attempt:
    """Kills the stage, DVC, the command itself or all of them at a moment of the first `seconds`
    after DVC has started."""
    run = start(folder, module)
    wait_while_running(run, lambda: bool(of_kind(run.pid, "dvc")))
    wait_for_moment(run, rng, seconds)
    return end(run, kill_all(of_kind(run.pid, victims)))


def kill_lock_writer(folder: Path, rng: random.Random, seconds: float) -> Attempt:
    """Kills DVC in the middle of the first or second rewriting of dvc.lock, which empties the file
    first."""
    del seconds
    run = start(folder)
    lock = folder / "dvc.lock"
    num_writes = rng.randint(1, 2)
    size = 0
    while not run.ended():
        before = size
        size = lock.stat().st_size if lock.is_file() else 0
        num_writes -= size < before
        if num_writes == 0:
            return end(run, kill_all(of_kind(run.pid, "dvc")))
        time.sleep(0.0005)
    return end(run, False)


def kill_served(victims: str, folder: Path, rng: random.Random, seconds: float) -> Attempt:
    """Kills Prefect's server or worker below `make serve`, with a run under way. `make serve` must
    end by itself then and leave no process behind."""
    with serving(folder, environment(folder)) as served:
        served.start()
        pid = served.process.pid
        deadline = time.monotonic() + HANG_SECONDS
        while not of_kind(pid, "dvc") and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(rng.uniform(0.0, seconds))
        struck = kill_all(of_kind(pid, victims))
        try:
            status = served.process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            return Attempt(struck=struck, survives=True, status=124, output="`make serve` went on")
        # It says what happened; that it ends with an error is right.
        return Attempt(struck=struck, survives=False, status=status, output=served.log.read_text())


def fill_disk(folder: Path, rng: random.Random, seconds: float) -> Attempt:
    """Fills the disk to its last byte at a random moment, until the run has ended. The folder must
    lie on a small disk of its own."""
    run = start(folder)
    wait_for_moment(run, rng, seconds)
    ballast = folder.parent / "ballast"
    struck = not run.ended()
    try:
        fill(ballast)
        return end(run, struck)
    finally:
        ballast.unlink(missing_ok=True)


def fill(path: Path) -> None:
    """Writes a file until the disk takes no more."""
    chunk = bytes(2**20)
    with path.open("wb", buffering=0) as file:
        while chunk:
            try:
                file.write(chunk)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                chunk = chunk[: len(chunk) // 2]


def jump_clock(folder: Path, rng: random.Random, seconds: float) -> Attempt:
    """A run whose `time.time` jumps up to a day forwards and back, twice a second, on files whose
    times lie up to a day off."""
    del seconds
    for path in sorted((folder / "data").rglob("*")):
        moment = time.time() + rng.uniform(-86400.0, 86400.0)
        os.utime(path, (moment, moment), follow_symlinks=False)
    patch = folder.parent / "clock"
    patch.mkdir(exist_ok=True)
    (patch / "sitecustomize.py").write_text(CLOCK.replace("SEED", str(rng.randrange(2**31))))
    modules = f"{patch}:{environment(folder)['PYTHONPATH']}"
    return end(start(folder, PYTHONPATH=modules), True, survives=True)


def run_twice(folder: Path, rng: random.Random, seconds: float) -> Attempt:
    """Two runs at once, of which one is killed with everything below it; the other must go on to
    the end."""
    pair = [start(folder), start(folder)]
    rng.shuffle(pair)
    doomed, other = pair
    wait_for_moment(doomed, rng, seconds)
    struck = kill_all(of_kind(doomed.pid, "all"))
    doomed.process.wait()
    return end(other, struck, survives=True)


DISTURBANCES: dict[str, Disturbance] = {
    "stage": partial(kill_process, "stage"),
    "dvc": partial(kill_process, "dvc"),
    "runner": partial(kill_process, "runner"),
    "all": partial(kill_process, "all"),
    "dvc.lock": kill_lock_writer,
    "flow": partial(kill_process, "runner", module="flows.pipeline"),
    "server": partial(kill_served, "server"),
    "worker": partial(kill_served, "worker"),
    "full disk": fill_disk,
    "clock": jump_clock,
    "two runs": run_twice,
}


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[bool]:
    """Mounts a disk in memory on a folder; False where this user may not."""
    options = f"size={megabytes}m"
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
    try:
        mounted = not subprocess.run(mount, capture_output=True, check=False).returncode
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def wait_for_moment(run: Run, rng: random.Random, seconds: float) -> None:
    """Waits for up to `seconds` while the run goes on."""
    deadline = time.monotonic() + rng.uniform(0.0, seconds)
    wait_while_running(run, lambda: time.monotonic() >= deadline)


def wait_while_running(run: Run, ready: Callable[[], bool]) -> None:
    while not run.ended() and not ready():
        time.sleep(0.01)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def of_kind(pid: int, kind: str) -> list[psutil.Process]:
    """The processes of a run that a kind of kill hits; `pid` is the run's first process."""
    found = []
    for process in tree(pid):
        words = command_line(process)
        if words and (process.pid == pid if kind == "runner" else is_kind(words, kind)):
            found.append(process)
    return found


def is_kind(words: Sequence[str], kind: str) -> bool:
    """Whether a command line is that of a stage, of DVC, of Prefect's server or worker."""
    guard = any(word.endswith("guard.py") for word in words)
    if kind == "all":
        return True
    if kind == "stage":
        return any(word.startswith("stages.") for word in words)
    if kind == "dvc":
        return "dvc" in words and not guard
    if kind == "server":
        return not guard and any("prefect" in word for word in words) and "worker" not in words
    return not guard and "prefect" in words and kind in words


def command_line(process: psutil.Process) -> list[str]:
    """Words of a command; none if it has ended."""
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        pass
    return []


def kill_all(processes: Sequence[psutil.Process]) -> bool:
    """Kills processes; whether one was still there."""
    struck = False
    for process in processes:
        try:
            process.kill()
            struck = True
        except psutil.NoSuchProcess:
            continue
    return struck


def wait_for_orphans(folder: Path) -> None:
    """Returns when nothing works in the folder any more but a server without a run, which is
    ended."""
    while left := [process for process in psutil.process_iter() if works_in(process, folder)]:
        servers = [each for each in left if "prefect" in " ".join(command_line(each))]
        kill_all(servers)
        time.sleep(0.1)


def works_in(process: psutil.Process, folder: Path) -> bool:
    """Whether a process runs in a folder."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
