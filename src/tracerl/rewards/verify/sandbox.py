"""Processes for programs that nobody trusts.

`bubblewrap` (the default): a process tree of its own, with no network, a read-only view of the
system's libraries and of Python's standard library, an empty environment, two small file systems in
memory, a user id of its own where we are root, and limits on CPU time, address space, processes,
file size and open files that are set after the interpreter has started. When it is closed the first
process of its PID namespace is killed, which ends every other one, and the kernel's report of that
is awaited.

`unconfined`: the same limits in an ordinary process group, started only when it is asked for by
name. It protects from accidents, not from
attacks: a program can read the user's files, use the network, and leave processes behind by
starting a session of its own. Results name it.

Nothing falls back from one to the other: where bubblewrap does not work `check_backend` says so and
stops.
"""

import contextlib
import functools
import itertools
import json
import os
import platform
import queue
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import IO, Any, cast

from tracerl.errors import TracerlError
from tracerl.rewards.verify.control_groups import ControlGroup, parent_of_groups
from tracerl.rewards.verify.isolation import (
    bubblewrap_command,
    guest_code,
    inner_packages,
    inner_python,
    outer_python,
)
from tracerl.rewards.verify.processes import Process, processes
from tracerl.rewards.verify.seccomp import denying_filter

_FIRST_UID, _NUM_UIDS = 64_100, 1_000
_uids = itertools.count(
    os.getpid() * 37
)  # of all pools here, and apart from those of other ranks: processes are counted by user
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.2  # between two looks at what a program's processes use
_PATIENCE = 10  # seconds of the clock that a second of CPU time may take on a busy machine
_PROGRAM_CPU, _PROGRAM_IDLE = 30, 6  # times a test's limits are for a whole program
_MAX_DEPTH = 250  # of a frame's JSON; `encode` nests 50 values deep, each in up to four levels
_TREE = 2  # times the CPU seconds of one process are for all processes of a program together
CPU_LIMIT_STATUS = (
    -signal.SIGXCPU,
    128 + signal.SIGXCPU,
)  # of the process itself, and as bubblewrap passes it on
# Gives the kernel's word for a process whose system calls are filtered: 2.
_TRIAL = """
def f():
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith("Seccomp:"))
"""
_START = """
# What runs inside a sandbox comes as its first input.
import marshal, posix
def read(size):
    text = b""
    while len(text) < size:
        text += posix.read(0, size - len(text)) or posix._exit(0)
    return text
exec(marshal.loads(read(int.from_bytes(read(4), "little"))))
main({uid}, {packages})
"""


class SandboxError(TracerlError):
    """There is no sandbox, or it broke: never a statement about the program in it."""


class GuestEndedError(Exception):
    """The program's process ended, said more than it may or did not speak the protocol: `reason` is
    "ended", "timeout" or "output"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one program."""

    cpu_seconds: float
    """Of a process, over all its tests where they share one sandbox. All processes of a sandbox
    together: twice that, and a second. The whole program, over all its sandboxes: 30 times that."""
    wall_seconds: float
    """How long a test may go without wanting to compute; a whole program: 6 times that. A program
    that is kept from the processor by the machine's load is given up to ten times as long, so that
    only its own CPU time, not the load, decides."""
    memory: int
    """Bytes: address space of a process, and resident memory of all processes together."""
    processes: int
    """Processes and threads at once."""
    file_size: int
    """Bytes of a file; each of the two writable folders, in memory, holds 16 times that."""
    files: int
    """Open files of a process."""
    output: int
    """Bytes of what a test says: a frame, or a script's standard output."""


_TRIAL_LIMITS = Limits(
    cpu_seconds=5.0,
    wall_seconds=30.0,
    memory=2**29,
    processes=16,
    file_size=2**20,
    files=64,
    output=2**16,
)
_WHAT_TO_DO = (
    "install bubblewrap (Debian, Ubuntu: apt install bubblewrap) and allow user namespaces, or set "
    "verification.sandbox to 'unconfined'"
)


@dataclass(kw_only=True)
class Use:
    """What one program has used so far, in all its sandboxes."""

    cpu_seconds: float = 0.0
    waiting_seconds: float = 0.0
    """How long the trusted side waited for it."""

    def is_over(self, limits: Limits) -> bool:
        """Whether the program as a whole has had its time."""
        idle_seconds = self.waiting_seconds - _PATIENCE * self.cpu_seconds
        return (
            self.cpu_seconds > _PROGRAM_CPU * limits.cpu_seconds
            or idle_seconds > _PROGRAM_IDLE * limits.wall_seconds
        )


class Sandbox:
    """One isolated interpreter, used for one program. It starts in the background; `begin` waits
    until it is up.

    packages: folders of installed packages that it sees besides the standard library: none for a
    model's program.
    """

    def __init__(
        self, backend: str, uid: int | None, limits: Limits, packages: tuple[str, ...] = ()
    ) -> None:
        self.backend = backend
        self.limits = limits
        self._folder = tempfile.mkdtemp(prefix="tracerl-") if backend == "unconfined" else None
        self._init: int | None = None
        reading, writing = os.pipe()
        fds = [writing]
        if backend == "bubblewrap":
            fds.append(_filter_file())
            command = _isolated_command(uid, limits.file_size, packages, fds)
        else:
            command = _plain_command(packages)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd=self._folder or "/",
            start_new_session=True,
            pass_fds=fds,
        )
        for fd in fds:
            os.close(fd)
        self._info = reading
        self._group: ControlGroup | None = None
        self._to = cast(IO[bytes], self._process.stdin)
        self._from = cast(IO[bytes], self._process.stdout)
        with contextlib.suppress(OSError):  # `begin` says what became of it
            os.write(self._to.fileno(), guest_code())  # fits in a pipe
        os.set_blocking(self._to.fileno(), False)
        self.use = Use()
        self._last_look = time.monotonic()
        self._cpu_before = 0.0  # of what does not count: an examiner's earlier jobs
        self._cpu_counted = 0.0  # of this sandbox, in `use`
        self._cpu_of: dict[tuple[int, str], float] = {}  # by process

    def begin(self, job: dict[str, Any]) -> None:
        """Waits until the interpreter is up, then starts its job; the clock starts here. Raises
        SandboxError if it does not come up."""
        try:
            if self.receive(_START_SECONDS) != {"ready": True}:
                raise GuestEndedError("ended")
            if self.backend == "bubblewrap":
                self._init = self._first_process()
                self._group = self._limited_group()
            self.send({**job, "limits": asdict(self.limits)}, _START_SECONDS)
        except (GuestEndedError, ValueError, OSError) as error:
            raise SandboxError("a sandbox did not start", where=self.backend, got=error) from error

    def _first_process(self) -> int:
        """A handle on the first process of the namespace, whose end ends all others."""
        return os.pidfd_open(json.loads(os.read(self._info, 4096))["child-pid"])

    def _limited_group(self) -> ControlGroup | None:
        """A control group that holds what is inside from now on, None where there can be none. No
        program runs yet."""
        parent = parent_of_groups()
        if parent is None:
            return None
        group = ControlGroup(parent, self.limits.memory, self.limits.processes + 1)
        for process in processes(self._process.pid):
            if process.pid != self._process.pid:  # bubblewrap stays outside, to report the end
                group.add(process.pid)
        return group

    def send(self, message: Any, seconds: float) -> None:
        """One frame. Raises GuestEndedError if the guest does not take it in time."""
        data = json.dumps(message).encode()
        self.send_raw(data, seconds)

    def send_raw(self, payload: bytes, seconds: float) -> None:
        """A frame's bytes as they were received from another guest."""
        data = memoryview(struct.pack("<I", len(payload)) + payload)
        until = time.monotonic() + seconds
        while data:
            try:
                data = data[os.write(self._to.fileno(), data) :]
            except BlockingIOError:
                if not select.select([], [self._to], [], max(0.0, until - time.monotonic()))[1]:
                    raise GuestEndedError("timeout") from None
            except OSError:
                raise self._how_it_ended() from None

    def receive(self, seconds: float) -> Any:
        """One frame as data, nested at most `_MAX_DEPTH` deep. Raises GuestEndedError if none comes
        in time, or none that is JSON of the allowed size and depth."""
        payload = self.receive_raw(seconds)
        try:
            data = json.loads(payload)
        except (ValueError, RecursionError):
            raise GuestEndedError("ended") from None
        if _is_deeper_than(data, _MAX_DEPTH):
            raise GuestEndedError("ended")
        return data

    def receive_raw(self, seconds: float) -> bytes:
        """One frame's bytes, at most `limits.output` of them."""
        until = time.monotonic() + seconds
        (size,) = struct.unpack("<I", self._exactly(4, until))
        if size > self.limits.output:
            raise GuestEndedError("output")
        return self._exactly(size, until)

    def output(self, seconds: float) -> tuple[bytes, int]:
        """Standard output of a script up to its end, and its exit status."""
        until, parts, size = time.monotonic() + seconds, [], 0
        while part := self._some(1 << 16, until):
            parts.append(part)
            size += len(part)
            if size > self.limits.output:
                raise GuestEndedError("output")
        if not self._ends_within(max(0.05, until - time.monotonic())):
            raise GuestEndedError("timeout")
        status = self._process.wait()
        if self._was_killed_from_outside():
            raise self._how_it_ended()
        return b"".join(parts), CPU_LIMIT_STATUS[0] if self._ran_out_of_time() else status

    def forget_use(self) -> None:
        """Counts CPU time and waiting from here."""
        self.use = Use()
        self._cpu_of.clear()
        self._cpu_before = self._cpu_seconds_told(processes(self._process.pid))
        self._cpu_counted = 0.0

    def close(self) -> None:
        """Kills everything inside and waits until it is gone. Leaves no file."""
        if self.backend == "bubblewrap" and self._init is None:
            with contextlib.suppress(OSError, ValueError):  # it may not have said who it is
                if select.select([self._info], [], [], 5.0)[0]:
                    self._init = self._first_process()
        if self._init is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            select.select([self._init], [], [], 10.0)
            os.close(self._init)
            self._init = None
        elif self.backend == "unconfined":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._to, self._from):
            with contextlib.suppress(OSError):
                pipe.close()
        os.close(self._info)
        if self._group is not None:
            self._group.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _how_it_ended(self) -> Exception:
        if self._ends_within(1.0):
            self._process.wait()
        if self._was_killed_from_outside():
            return SandboxError(
                "a sandbox was killed from outside",
                where=self.backend,
                got=f"signal {-self._process.returncode}",
            )
        return GuestEndedError("timeout" if self._ran_out_of_time() else "ended")

    def _was_killed_from_outside(self) -> bool:
        """Whether bubblewrap itself was killed, which nothing inside its namespaces can do."""
        return self.backend == "bubblewrap" and (self._process.returncode or 0) < 0

    def _ran_out_of_time(self) -> bool:
        """Whether the program's process, which has ended, was ended for its use of CPU time."""
        killed = self._process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        return self._process.returncode in CPU_LIMIT_STATUS or (
            killed and self._cpu_counted >= self.limits.cpu_seconds
        )

    def _ends_within(self, seconds: float) -> bool:
        """Waits for the end of the process; measures what it used before it is gone."""
        until, pause = time.monotonic() + seconds, 0.0005
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while self._process.returncode is None:
            if os.waitid(os.P_PID, self._process.pid, how) is not None:
                self._measure()
                return True
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return True

    def _exactly(self, size: int, until: float) -> bytes:
        parts = []
        while size:
            part = self._some(size, until)
            if not part:
                raise self._how_it_ended()
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _some(self, size: int, until: float) -> bytes:
        seconds = max(0.0, until - time.monotonic())
        last = until + (_PATIENCE - 1) * seconds
        start = time.monotonic()
        while True:
            ready = select.select([self._from], [], [], min(_LOOK_SECONDS, seconds))[0]
            now = time.monotonic()
            self.use.waiting_seconds += now - start
            start = now
            if ready and now - self._last_look < _LOOK_SECONDS:
                break
            wants_to_compute = self._look()
            if ready:
                break
            if now > last or (now > until and not wants_to_compute):
                raise GuestEndedError("timeout")
            if now > until:
                until += seconds
        return os.read(self._from.fileno(), min(size, 1 << 16))

    def _look(self) -> bool:
        """Whether any process inside wants to compute. Raises GuestEndedError if all of them
        together have used more than they may."""
        self._last_look = time.monotonic()
        running = self._measure()
        if self._cpu_counted > _TREE * self.limits.cpu_seconds + 1 or self.use.is_over(self.limits):
            raise GuestEndedError("timeout")
        if (
            sum(process.memory for process in running) > self.limits.memory
            # Memory that processes share counts once; that is slow to ask.
            and sum(process.own_memory() for process in running) > self.limits.memory
        ):
            raise GuestEndedError("ended")
        return any(process.state == "R" for process in running)

    def _measure(self) -> list[Process]:
        """The processes inside; adds their CPU time to what the program has used.

        A process that has ended counts by what its parent was told, or else, if the parent wants to
        be told nothing, by what was seen of it last.
        """
        running = processes(self._process.pid)
        for process in running:
            self._cpu_of[process.pid, process.start] = process.cpu_seconds
        total = self._cpu_seconds_told(running) - self._cpu_before
        cpu_seconds = max(total, sum(self._cpu_of.values()), self._cpu_counted)
        self.use.cpu_seconds += cpu_seconds - self._cpu_counted
        self._cpu_counted = cpu_seconds
        return running

    def _cpu_seconds_told(self, running: list[Process]) -> float:
        """By the control group, or by the processes that are there and their ended children."""
        if self._group is not None:
            return self._group.cpu_seconds
        return sum(process.total_seconds for process in running)


class Examiner(Sandbox):
    """A sandbox that runs benchmarks' test programs, one after the other.

    It holds no model's program; what reaches it of one is data. It is used again only after it has
    said that everything of the last job is gone.
    """

    def __init__(self, backend: str, uid: int | None, limits: Limits) -> None:
        super().__init__(backend, uid, limits)
        self.is_idle = False

    def wait_until_idle(self, seconds: float) -> None:
        """Waits for the end of the fork that ran the tests, and of what it left."""
        with contextlib.suppress(GuestEndedError):
            self.is_idle = self.backend == "bubblewrap" and self.receive(seconds) == {"ended": 0}

    def abandon(self, seconds: float) -> None:
        """Ends tests that wait for a reply of a solution that is gone."""
        with contextlib.suppress(GuestEndedError):
            self.send({"abandoned": True}, seconds)
            self.wait_until_idle(seconds)


class SandboxPool:
    """Sandboxes that are up before they are needed, each used once.

    One thread starts them all and lives as long as the pool: bubblewrap ends a sandbox with the
    thread that started it.
    """

    def __init__(
        self, backend: str, limits: Limits, num_warm: int, packages: tuple[str, ...] = ()
    ) -> None:
        check_backend(backend)
        self.backend = backend
        self.limits = limits
        self._num_warm = num_warm
        self._packages = packages
        self._warm: queue.SimpleQueue[Future[Sandbox]] = queue.SimpleQueue()
        self._examiners: queue.SimpleQueue[Examiner] = queue.SimpleQueue()
        self._starter = ThreadPoolExecutor(1, "sandboxes")

    @contextlib.contextmanager
    def sandbox(
        self, job: dict[str, Any], cpu_seconds: float | None = None, use: Use | None = None
    ) -> Iterator[Sandbox]:
        """A sandbox that has begun its job, closed at the end. One that does not start is replaced
        once before SandboxError is raised.

        use: what the program has used in other sandboxes, to which this one's is added.
        """
        for attempt in range(2):
            sandbox = self._take()
            try:
                if cpu_seconds is not None:
                    sandbox.limits = replace(sandbox.limits, cpu_seconds=cpu_seconds)
                sandbox.begin(job)
                sandbox.use = use or Use()
                break
            except SandboxError:
                sandbox.close()
                if attempt:
                    raise
        try:
            yield sandbox
        finally:
            sandbox.close()

    @contextlib.contextmanager
    def examiner(self) -> Iterator[Examiner]:
        """A sandbox for a benchmark's tests: one that has done with its last job, or a new one."""
        try:
            examiner = self._examiners.get_nowait()
        except queue.Empty:
            examiner = self._starter.submit(self._start_examiner).result()
        examiner.is_idle = False
        examiner.forget_use()
        try:
            yield examiner
        finally:
            if examiner.is_idle:
                self._examiners.put(examiner)
            else:
                examiner.close()

    def close(self) -> None:
        """Ends the sandboxes that wait."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._examiners.get_nowait().close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._warm.get_nowait().result().close()
        self._starter.shutdown()

    def _take(self) -> Sandbox:
        for _ in range(max(0, self._num_warm + 1 - self._warm.qsize())):
            self._warm.put(self._starter.submit(self._start))
        return self._warm.get().result()

    def _start(self) -> Sandbox:
        return Sandbox(self.backend, _next_uid(), self.limits, self._packages)

    def _start_examiner(self) -> Examiner:
        for attempt in range(2):
            examiner = Examiner(self.backend, _next_uid(), self.limits)
            try:
                examiner.begin({"role": "examiner", "isolated": self.backend == "bubblewrap"})
                break
            except SandboxError:
                examiner.close()
                if attempt:
                    raise
        return examiner


def _next_uid() -> int | None:
    """A user id that no other sandbox of this process has, None where we are not root."""
    return _FIRST_UID + next(_uids) % _NUM_UIDS if os.getuid() == 0 else None


def _is_deeper_than(data: Any, depth: int) -> bool:
    """Whether JSON data is nested deeper than this, found without recursion."""
    level = [data]
    for _ in range(depth):
        below: list[Any] = []
        for item in level:
            if isinstance(item, list):
                below.extend(item)
            elif isinstance(item, dict):
                below.extend(item.values())
        if not below:
            return False
        level = below
    return True


def _isolated_command(
    uid: int | None, file_size: int, packages: tuple[str, ...], fds: list[int]
) -> list[str]:
    """fds: where bubblewrap writes who it started, and where it reads its filter of system
    calls."""
    start = _START.format(uid=uid, packages=list(map(inner_packages, range(len(packages)))))
    command = [*bubblewrap_command(uid, file_size, packages), "--info-fd", str(fds[0])]
    command += ["--seccomp", str(fds[1])]
    return [*command, "--", inner_python(), "-I", "-S", "-c", start]


def _plain_command(packages: tuple[str, ...]) -> list[str]:
    start = _START.format(uid=None, packages=list(packages))
    return [outer_python(), "-I", "-S", "-c", start]


def _filter_file() -> int:
    """A descriptor from which bubblewrap reads the filter of system calls."""
    text = denying_filter()
    if text is None:
        raise SandboxError(
            "model code cannot be run: no filter of system calls for this machine",
            got=platform.machine(),
            wanted="x86_64 or aarch64",
            do="set verification.sandbox to 'unconfined' if you trust the programs",
        )
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    return reading


@functools.cache
def check_backend(backend: str) -> str:
    """Name and version of a backend that works here, and whether control groups are in force.
    Raises SandboxError with the reason if it does not work."""
    if backend == "unconfined":
        return "unconfined (no isolation)"
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError(
            "model code cannot be run: there is no sandbox",
            got="no program named bwrap",
            wanted="bubblewrap",
            do=_WHAT_TO_DO,
        )
    answer = _trial_answer()
    if answer != {"value": "2"}:
        raise SandboxError(
            "model code cannot be run: system calls are not filtered in the sandbox",
            got=answer,
            wanted={"value": "2"},
            do=_WHAT_TO_DO,
        )
    version = _output_of([program, "--version"]).stdout.strip()
    return version if parent_of_groups() is None else f"{version}, control groups"


def _trial_answer() -> Any:
    """What a sandbox replies to the trial program. Raises SandboxError with bubblewrap's own words
    if none works here."""
    uid = _FIRST_UID if os.getuid() == 0 else None
    trial = Sandbox("bubblewrap", uid, _TRIAL_LIMITS)
    try:
        trial.begin({"role": "solution", "program": _TRIAL})
        trial.receive(30.0)
        trial.send({"call": "f", "args": []}, 30.0)
        return trial.receive(30.0)
    except (SandboxError, GuestEndedError) as error:
        command = bubblewrap_command(uid, _TRIAL_LIMITS.file_size, ())
        words = _output_of([*command, "--", inner_python(), "-I", "-S", "-c", ""]).stderr.strip()
        raise SandboxError(
            "model code cannot be run: bubblewrap does not work here",
            got=words or error,
            do=_WHAT_TO_DO,
        ) from error
    finally:
        trial.close()


def _output_of(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env={}, check=False)
