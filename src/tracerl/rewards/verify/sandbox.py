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
import queue
import select
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from tracerl.errors import TracerlError

_FIRST_UID, _NUM_UIDS = 64_100, 1_000
_uids = itertools.count(
    os.getpid() * 37
)  # of all pools here, and apart from those of other ranks: processes are counted by user
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.5  # between two looks at what a program does while nothing comes from it
_MAX_DEPTH = 250  # of a frame's JSON; `encode` nests 50 values deep, each in up to four levels
_TREE = 2  # times the CPU seconds of one process are for all processes of a program together
CPU_LIMIT_STATUS = (
    -signal.SIGXCPU,
    128 + signal.SIGXCPU,
)  # of the process itself, and as bubblewrap passes it on
_GUEST = Path(__file__).with_name("guest.py").read_text(encoding="utf-8")


class SandboxError(TracerlError):
    """There is no sandbox, or it broke: never a statement about the program in it."""


class GuestEndedError(Exception):
    """The program's process ended, said more than it may or did not speak the protocol: `reason` is
    "ended", "timeout" or "output"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Limits:
    """Of one program. Sizes in bytes; cpu_seconds per process (twice that for all of them
    together), output per test.

    wall_seconds: how long a test may go without wanting to compute. A program that is kept from the
    processor by the machine's load is given up to ten times as long, so that only its own CPU time,
    not the load, decides.
    """

    cpu_seconds: float
    wall_seconds: float
    memory: int
    processes: int
    file_size: int
    files: int
    output: int


class Sandbox:
    """One isolated interpreter, used for one program. It starts in the background; `begin` waits
    until it is up.

    packages: folders of installed packages that it sees besides the standard library: none for a
    model's program.
    """

    def __init__(
        self, backend: str, uid: int | None, limits: Limits, packages: tuple[str, ...] = ()
    ) -> None:
        self.backend, self.limits = backend, limits
        self._folder = tempfile.mkdtemp(prefix="tracerl-") if backend == "unconfined" else None
        self._init: int | None = None
        reading, writing = os.pipe()
        inside = backend == "bubblewrap"
        folders = [
            _inner_packages(number) if inside else folder for number, folder in enumerate(packages)
        ]
        guest = [_GUEST + f"\nmain({uid if inside else None}, {folders})"]
        if inside:
            outside = [*_bubblewrap(uid, limits.file_size, packages), "--info-fd", str(writing)]
            command = [*outside, "--", _inner_python(), "-I", "-S", "-c", *guest]
        else:
            command = [_outer_python(), "-I", "-S", "-c", *guest]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd=self._folder or "/",
            start_new_session=True,
            pass_fds=(writing,),
        )
        os.close(writing)
        self._info = reading
        self._to, self._from = (
            cast(IO[bytes], self._process.stdin),
            cast(IO[bytes], self._process.stdout),
        )
        os.set_blocking(self._to.fileno(), False)

    def begin(self, job: dict[str, Any]) -> None:
        """Waits until the interpreter is up, then starts its job; the clock starts here. Raises
        SandboxError if it does not come up."""
        try:
            if self.receive(_START_SECONDS) != {"ready": True}:
                raise GuestEndedError("ended")
            if self.backend == "bubblewrap":
                self._init = os.pidfd_open(json.loads(os.read(self._info, 4096))["child-pid"])
            self.send({**job, "limits": asdict(self.limits)}, _START_SECONDS)
        except (GuestEndedError, ValueError, OSError) as error:
            raise SandboxError("a sandbox did not start", where=self.backend, got=error) from error

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
        try:
            status = self._process.wait(max(0.05, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise GuestEndedError("timeout") from None
        if self._killed_from_outside():
            raise self._how_it_ended()
        return b"".join(parts), status

    def close(self) -> None:
        """Kills everything inside and waits until it is gone. Leaves no file."""
        if self.backend == "bubblewrap" and self._init is None:
            with contextlib.suppress(
                OSError, ValueError
            ):  # it may have died before it said who it is
                ready = select.select([self._info], [], [], 5.0)[0]
                self._init = (
                    os.pidfd_open(json.loads(os.read(self._info, 4096))["child-pid"])
                    if ready
                    else None
                )
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
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _how_it_ended(self) -> Exception:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        if self._killed_from_outside():
            return SandboxError(
                "a sandbox was killed from outside",
                where=self.backend,
                got=f"signal {-self._process.returncode}",
            )
        return GuestEndedError(
            "timeout" if self._process.returncode in CPU_LIMIT_STATUS else "ended"
        )

    def _killed_from_outside(self) -> bool:
        """Whether bubblewrap itself was killed, which nothing inside its namespaces can do."""
        return self.backend == "bubblewrap" and (self._process.returncode or 0) < 0

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
        last = until + 9 * seconds
        while not select.select([self._from], [], [], min(_LOOK_SECONDS, seconds))[0]:
            wants, used = _computing(self._process.pid)
            now = time.monotonic()
            if (
                used > _TREE * self.limits.cpu_seconds + 1
                or now > last
                or (now > until and not wants)
            ):
                raise GuestEndedError("timeout")
            until += seconds if now > until else 0.0
        return os.read(self._from.fileno(), min(size, 1 << 16))


class SandboxPool:
    """Sandboxes that are up before they are needed, each used once.

    One thread starts them all and lives as long as the pool: bubblewrap ends a sandbox with the
    thread that started it.
    """

    def __init__(
        self, backend: str, limits: Limits, num_warm: int, packages: tuple[str, ...] = ()
    ) -> None:
        check_backend(backend)
        self.backend, self.limits, self._num_warm, self._packages = (
            backend,
            limits,
            num_warm,
            packages,
        )
        self._warm: queue.SimpleQueue[Future[Sandbox]] = queue.SimpleQueue()
        self._starter = ThreadPoolExecutor(1, "sandboxes")

    @contextlib.contextmanager
    def sandbox(self, job: dict[str, Any], cpu_seconds: float | None = None) -> Any:
        """A sandbox that has begun its job, closed at the end. One that does not start is replaced
        once before SandboxError is raised."""
        for attempt in range(2):
            one = self._take()
            try:
                one.limits = (
                    one.limits
                    if cpu_seconds is None
                    else replace(one.limits, cpu_seconds=cpu_seconds)
                )
                one.begin(job)
                break
            except SandboxError:
                one.close()
                if attempt:
                    raise
        try:
            yield one
        finally:
            one.close()

    def close(self) -> None:
        """Ends the sandboxes that wait."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._warm.get_nowait().result().close()
        self._starter.shutdown()

    def _take(self) -> Sandbox:
        for _ in range(max(0, self._num_warm + 1 - self._warm.qsize())):
            self._warm.put(self._starter.submit(self._start))
        return self._warm.get().result()

    def _start(self) -> Sandbox:
        uid = _FIRST_UID + next(_uids) % _NUM_UIDS if os.getuid() == 0 else None
        return Sandbox(self.backend, uid, self.limits, self._packages)


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


def _computing(pid: int) -> tuple[bool, float]:
    """Whether a process or a descendant is running or waits for a processor, and the CPU seconds of
    all of them, the dead included."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        children = [
            child
            for path in Path(f"/proc/{pid}/task").glob("*/children")
            for child in path.read_text().split()
        ]
        below = [_computing(int(child)) for child in children]
    except (OSError, ValueError):
        return False, 0.0
    used = sum(map(int, facts[11:15])) / os.sysconf("SC_CLK_TCK")
    return facts[0] == "R" or any(wants for wants, _ in below), used + sum(
        seconds for _, seconds in below
    )


@functools.cache
def check_backend(backend: str) -> str:
    """Name and version of a backend that works here. Raises SandboxError with the reason if it does
    not."""
    if backend == "unconfined":
        return "unconfined (no isolation)"
    program = shutil.which("bwrap")
    do = "install bubblewrap (Debian, Ubuntu: apt install bubblewrap) and allow user namespaces, or set verification.sandbox to 'unconfined'"
    if program is None:
        raise SandboxError(
            "model code cannot be run: there is no sandbox",
            got="no program named bwrap",
            wanted="bubblewrap",
            do=do,
        )
    version = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False
    ).stdout.strip()
    limits = Limits(5.0, 30.0, 2**29, 16, 2**20, 64, 2**16)
    uid = _FIRST_UID if os.getuid() == 0 else None
    trial = Sandbox("bubblewrap", uid, limits)
    try:
        trial.begin({"role": "solution", "program": "def f():\n    return 1\n"})
        trial.receive(30.0)
        trial.send({"call": "f", "args": []}, 30.0)
        answer = trial.receive(30.0)
    except (SandboxError, GuestEndedError) as error:
        done = subprocess.run(
            [*_bubblewrap(uid, 2**20, ()), "--", _inner_python(), "-I", "-S", "-c", ""],
            capture_output=True,
            text=True,
            env={},
            check=False,
        )
        raise SandboxError(
            "model code cannot be run: bubblewrap does not work here",
            got=done.stderr.strip() or error,
            do=do,
        ) from error
    finally:
        trial.close()
    if answer != {"value": 1}:
        raise SandboxError(
            "model code cannot be run: the sandbox gives wrong results",
            got=answer,
            wanted={"value": 1},
            do=do,
        )
    return version


def _outer_python() -> str:
    return str(
        Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    )


def _inner_python() -> str:
    return f"/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def _inner_packages(number: int) -> str:
    return f"/packages/{number}"


@functools.cache
def _bubblewrap(uid: int | None, file_size: int, packages: tuple[str, ...]) -> list[str]:
    """The command line up to the program: what is visible inside, and what is not shared with the
    outside."""
    prefix = Path(sys.base_prefix)
    command = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--hostname",
        "sandbox",
    ]
    command += [] if uid is not None else ["--unshare-user"]
    command += [
        "--dir",
        "/usr",
    ]  # parents that are made on the way would be closed to the sandbox's own user
    for name in ("/lib", "/lib64", "/usr/lib", "/usr/lib64"):
        path = Path(name)
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            command += ["--ro-bind", name, name]
    command += [
        "--dir",
        "/python",
        "--ro-bind",
        str(prefix / "bin"),
        "/python/bin",
        "--ro-bind",
        str(prefix / "lib"),
        "/python/lib",
    ]
    # Installed packages are hidden: benchmark data with solutions may be among them.
    for folder in {
        sysconfig.get_path(scheme, vars={"base": str(prefix), "platbase": str(prefix)})
        for scheme in ("purelib", "platlib")
    }:
        installed = Path(folder)
        if installed.is_dir() and installed.is_relative_to(prefix):
            command += ["--tmpfs", str(Path("/python") / installed.relative_to(prefix))]
    if Path("/usr/lib/python3/dist-packages").is_dir():
        command += ["--tmpfs", "/usr/lib/python3/dist-packages"]
    command += ["--dir", "/packages"] if packages else []
    for number, folder in enumerate(packages):
        command += ["--ro-bind", folder, _inner_packages(number)]
    for name in ("/tmp", "/dev/shm"):
        command += ["--dev", "/dev"] if name == "/dev/shm" else []
        command += ["--perms", "1777", "--size", str(16 * file_size), "--tmpfs", name]
    return [*command, "--proc", "/proc", "--remount-ro", "/", "--chdir", "/tmp"]
