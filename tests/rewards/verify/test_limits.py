"""Laws of a program's limits: they hold for everything that it starts, together, and none can be
evaded; what ends a program is named."""

import platform
import struct
import time

import pytest

from tracerl.rewards.verify.code import CodeTests, run_tests
from tracerl.rewards.verify.sandbox import (
    GuestEndedError,
    Limits,
    SandboxError,
    SandboxPool,
    Use,
    check_backend,
)
from tracerl.rewards.verify.seccomp import denying_filter

LIMITS = Limits(
    cpu_seconds=1.0,
    wall_seconds=1.0,
    memory=400 << 20,
    processes=16,
    file_size=1 << 20,
    files=64,
    output=1 << 16,
)

try:
    check_backend("bubblewrap")
except SandboxError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="module")
def pool():
    pool = SandboxPool("bubblewrap", LIMITS, 1)
    yield pool
    pool.close()


def call(pool, program, number=1):
    tests = [{"args": [place], "expected": place} for place in range(number)]
    return run_tests(
        pool, program, CodeTests(style="call", tests=tests, entry_point="f", reward="fraction")
    )


def value(pool, program):
    """What `f()` returns in a sandbox of its own."""
    with pool.sandbox({"role": "solution", "program": program}) as sandbox:
        assert sandbox.receive(30.0) == {"loaded": True}
        sandbox.send({"call": "f", "args": []}, 30.0)
        return sandbox.receive(30.0)["value"]


IGNORES = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"


@pytest.mark.parametrize("before", ["", IGNORES])
def test_a_process_that_uses_up_its_cpu_time_is_called_timeout(pool, before):
    loop = before + "while True: pass"
    called = before + "def f(x=0):\n    while True: pass"
    assert call(pool, called) == ["timeout"]
    assert run_tests(pool, called, CodeTests(style="assert", tests=["f()"], provides=("f",))) == [
        "timeout"
    ]
    assert run_tests(pool, loop, CodeTests(style="stdin", tests=[{"input": "", "output": ""}])) == [
        "timeout"
    ]


def test_a_process_that_kills_itself_is_not_called_timeout(pool):
    kill = "import os\nos.kill(os.getpid(), 9)"
    called = "import os\ndef f(x): os.kill(os.getpid(), 9)"
    assert call(pool, called) == ["ended"]
    assert run_tests(pool, kill, CodeTests(style="stdin", tests=[{"input": "", "output": ""}])) == [
        "error"
    ]


CHILDREN = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody is told what they used
def f(x=0):
    while True:
        for _ in range(2):
            if os.fork() == 0:
                start = time.process_time()
                while time.process_time() - start < 0.6: pass
                os._exit(0)
        try: os.wait()
        except ChildProcessError: pass
"""


def test_cpu_time_of_children_counts_though_nobody_waits_for_them(pool):
    use = Use()
    with pool.sandbox({"role": "solution", "program": CHILDREN}, None, use) as sandbox:
        sandbox.receive(30.0)
        sandbox.send({"call": "f", "args": []}, 30.0)
        with pytest.raises(GuestEndedError, match="timeout"):
            sandbox.receive(30.0)
    assert 3.0 < use.cpu_seconds < 4.5


def test_memory_of_all_processes_counts_together(pool):
    program = """
import os, time
def f(x):
    for _ in range(5):
        if os.fork() == 0:
            held = bytearray(150 << 20)
            time.sleep(30)
    time.sleep(30)
"""
    start = time.monotonic()
    assert call(pool, program) == ["ended"]
    assert time.monotonic() - start < 10.0


def test_memory_that_processes_share_counts_once(pool):
    program = """
import os, time
held = bytearray(150 << 20)
def f(x):
    children = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            time.sleep(0.6)
            os._exit(0)
        children.append(child)
    for child in children: os.waitpid(child, 0)
    return x
"""
    assert call(pool, program) == ["passed"]


@pytest.mark.parametrize("style", ["call", "stdin"])
def test_a_whole_program_has_a_limit_below_that_of_its_tests_together(pool, style):
    start = time.monotonic()
    if style == "call":
        program = "import time\ndef f(x):\n    time.sleep(0.7)\n    return x"
        verdicts = call(pool, program, number=20)
    else:
        program = "import time\ntime.sleep(0.7)\nprint(1)"
        tests = CodeTests(
            style="stdin", tests=[{"input": "", "output": "1"}] * 20, reward="fraction"
        )
        verdicts = run_tests(pool, program, tests)
    assert verdicts[0] == "passed"
    assert verdicts[-1] in ("timeout", "skipped")
    assert "timeout" in verdicts
    assert time.monotonic() - start < 12.0


FORBIDDEN = """
import ctypes, ctypes.util, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def code(function, *arguments):
    return errno.errorcode.get(ctypes.get_errno()) if function(*arguments) == -1 else "done"
def tried(make):
    try:
        make()
        return "done"
    except OSError as error:
        return errno.errorcode.get(error.errno)
def f():
    return {
        "shared memory": code(libc.shmget, 0, 900 << 20, 0o1600),
        "semaphores": code(libc.semget, 0, 1, 0o1600),
        "messages": code(libc.msgget, 0, 0o1600),
        "user namespace": code(libc.unshare, 0x10000000),
        "mount namespace": code(libc.unshare, 0x00020000),
        "mount": code(libc.mount, b"none", b"/tmp", b"tmpfs", 0, None),
        "trace": code(libc.ptrace, 0, 0, 0, 0),
        "file in memory": tried(lambda: os.memfd_create("a")),
        "vsock": tried(lambda: socket.socket(40, socket.SOCK_STREAM)),
        "netlink": tried(lambda: socket.socket(16, socket.SOCK_RAW)),
        "packet": tried(lambda: socket.socket(17, socket.SOCK_RAW)),
        "unix": tried(lambda: socket.socketpair()),
        "internet": tried(lambda: socket.socket(socket.AF_INET)),
        "internet 6": tried(lambda: socket.socket(socket.AF_INET6)),
    }
"""


def test_what_evades_limits_cannot_be_made_and_ordinary_sockets_can(pool):
    tried = dict(value(pool, FORBIDDEN)["dict"])
    sockets = {name: tried.pop(name) for name in ("vsock", "netlink", "packet")}
    allowed = {name: tried.pop(name) for name in ("unix", "internet", "internet 6")}
    assert set(tried.values()) == {"EPERM"}, tried
    assert set(sockets.values()) == {"EAFNOSUPPORT"}, sockets
    assert set(allowed.values()) == {"done"}


def test_the_two_writable_folders_are_private_and_small(pool):
    program = """
import os
def fill(folder):
    written = 0
    try:
        for place in range(100):
            with open(f"{folder}/{place}", "wb") as file: file.write(bytes(1 << 20))
            written += 1
    except OSError: pass
    return written
def f():
    places = [entry for entry in os.listdir("/") if os.access("/" + entry, os.W_OK)]
    return [places, fill("/tmp"), fill("/dev/shm"), os.listdir("/tmp") == []]
"""
    places, in_tmp, in_memory, _ = value(pool, program)
    assert places == ["tmp"]
    assert in_tmp <= 16
    assert in_memory <= 16


def result_of(text, number, argument=0, architecture=0xC000003E):
    """What a filter says to one system call: the upper half of its return value, and the lower."""
    data = struct.pack("<IIQQ", number, architecture, 0, argument)
    accumulator, place = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("<HBBI", text, 8 * place)
        place += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif code == 0x06:
            return value >> 16, value & 0xFFFF
        else:
            holds = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[code]
            place += if_true if holds else if_false


ALLOWED, ERROR, KILLED = 0x7FFF, 0x0005, 0x8000
ARM = 0xC00000B7


@pytest.mark.parametrize(
    ("machine", "architecture", "read", "unshare", "clone", "socket"),
    [("x86_64", 0xC000003E, 0, 272, 56, 41), ("aarch64", ARM, 63, 97, 220, 198)],
)
def test_the_filter_decides_by_call_and_first_argument(
    machine, architecture, read, unshare, clone, socket
):
    text = denying_filter(machine)

    def decided(number, argument=0):
        return result_of(text, number, argument, architecture)

    assert decided(read) == (ALLOWED, 0)
    assert decided(unshare) == (ERROR, 1)
    assert decided(clone, 17) == (ALLOWED, 0)
    assert decided(clone, 0x10000000 | 17) == (ERROR, 1)
    assert decided(435) == (ERROR, 38)
    assert [decided(socket, family)[0] == ALLOWED for family in (1, 2, 10, 16, 40)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert result_of(text, read, 0, 0x40000003) == (KILLED, 0)


def test_calls_of_a_second_table_are_refused():
    assert result_of(denying_filter("x86_64"), 0x40000000 + 272) == (ERROR, 38)


def test_there_is_a_filter_for_this_machine_and_none_is_guessed():
    assert denying_filter() == denying_filter(platform.machine())
    assert denying_filter("sparc") is None
