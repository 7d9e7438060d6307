"""Laws of judging programs: right ones pass whatever the style of the tests, and nothing else does,
survives or breaks the judge."""

import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rewards.verify.hostile import HOSTILE
from tracerl.errors import DataError
from tracerl.rewards.verify.code import (
    CodeTests,
    code_tests,
    extract_program,
    run_tests,
    same_output,
    same_value,
)
from tracerl.rewards.verify.guest import decode, encode
from tracerl.rewards.verify.sandbox import Limits, Sandbox, SandboxError, SandboxPool, check_backend

LIMITS = Limits(
    cpu_seconds=1.0,
    wall_seconds=4.0,
    memory=512 << 20,
    processes=16,
    file_size=1 << 20,
    files=64,
    output=1 << 16,
)
MARK = "tracerl-hostile-mark"

try:
    check_backend("bubblewrap")
    WHY_NOT = ""
except SandboxError as error:
    WHY_NOT = str(error)
needs_bubblewrap = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
def pool():
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    pool = SandboxPool("bubblewrap", LIMITS, 2)
    yield pool
    pool.close()


SQUARE = CodeTests(
    style="call", tests=[{"args": [x], "expected": x * x + 7} for x in (3, 10)], entry_point="f"
)
SQUARE_ASSERTS = CodeTests(
    style="assert", tests=[f"assert f({x}) == {x * x + 7}" for x in (3, 10)], provides=("f",)
)


def test_a_right_program_passes_every_style(pool):
    program = "def f(x):\n    print('noise')\n    return x * x + 7\n"
    assert run_tests(pool, program, SQUARE) == ["passed", "passed"]
    assert run_tests(pool, program, SQUARE_ASSERTS) == ["passed", "passed"]
    script = CodeTests(
        style="stdin", tests=[{"input": "3\n", "output": "16"}, {"input": "10", "output": "107\n"}]
    )
    assert run_tests(pool, "x = int(input())\nprint(x * x + 7)", script) == ["passed", "passed"]
    method = CodeTests(style="call", tests=SQUARE.tests, entry_point="Solution.f")
    assert run_tests(
        pool, "class Solution:\n    def f(self, x):\n        return x * x + 7", method
    ) == ["passed", "passed"]


def test_there_is_a_verdict_on_every_test_even_if_some_kill_the_program(pool):
    program = (
        "import os\ndef f(x):\n    if x == 1: os._exit(0)\n    if x == 2: raise "
        "ValueError\n    if x == 3: return 0\n    return x"
    )
    calls = CodeTests(
        style="call",
        tests=[{"args": [x], "expected": x} for x in range(5)],
        entry_point="f",
        reward="fraction",
    )
    assert run_tests(pool, program, calls) == ["passed", "ended", "error", "failed", "passed"]
    asserts = CodeTests(
        style="assert",
        tests=[f"assert f({x}) == {x}" for x in range(5)],
        provides=("f",),
        reward="fraction",
    )
    assert run_tests(pool, program, asserts) == ["passed", "ended", "error", "failed", "passed"]
    every = CodeTests(style="call", tests=calls.tests, entry_point="f")
    assert run_tests(pool, program, every) == ["passed", "ended", "skipped", "skipped", "skipped"]


def test_output_is_read_up_to_a_clean_end_only(pool):
    echo = CodeTests(style="stdin", tests=[{"input": "a b\n", "output": "a b"}])
    assert run_tests(pool, "import sys\nsys.stdout.write(sys.stdin.read())\nsys.exit()", echo) == [
        "passed"
    ]
    assert run_tests(pool, "print(input())\nraise ValueError", echo) == ["error"]
    assert run_tests(pool, "print(input())\nimport os\nos._exit(3)", echo) == ["error"]
    assert run_tests(pool, "while True: print('x' * 1000)", echo) == ["output"]
    assert run_tests(pool, "print(input() + '!')", echo) == ["failed"]


@needs_bubblewrap
def test_no_hostile_program_passes_survives_or_breaks_the_judge():
    assert len(HOSTILE) >= 40
    pool = SandboxPool("bubblewrap", LIMITS, 4)
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.01)
    port = str(server.getsockname()[1])

    def judged(item):
        name, text = item
        program = text.replace("MARK", MARK).replace("PORT_HOST", "127.0.0.1").replace("PORT", port)
        return name, run_tests(pool, program, SQUARE), run_tests(pool, program, SQUARE_ASSERTS)

    try:
        with ThreadPoolExecutor(4) as threads:
            verdicts = list(threads.map(judged, HOSTILE.items()))
        assert [v for v in verdicts if "passed" in v[1] or "passed" in v[2]] == []
        assert run_tests(pool, "def f(x):\n    return x * x + 7", SQUARE) == ["passed", "passed"], (
            "the service is still up"
        )
        with pytest.raises(TimeoutError):
            server.accept()
    finally:
        pool.close()
        server.close()
    assert guests() == set()
    places = [
        Path(name)
        for name in ("/", "/tmp", "/dev/shm", "/var/tmp", "/usr", "/etc", str(Path.home()))
    ]
    assert [path for place in places if place.is_dir() for path in place.glob(f"*{MARK}*")] == []


def guests():
    """Ids of the sandboxed processes that are alive on this machine and descend from this process,
    or that hold the mark."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status, command = (entry / "status").read_text(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if MARK.encode() in command or (
                b"What runs inside a sandbox" in command
                and "State:\tZ" not in status
                and is_ours(entry)
            ):
                found.add(int(entry.name))
    return found


def is_ours(entry):
    """Whether a process descends from this one."""
    pid = int(entry.name)
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
            return False
    return False


def test_a_sandbox_ends_with_everything_in_it(pool):
    program = (
        "import os, time\ndef f(x):\n    for _ in range(3):\n        if os.fork() == 0:\n   "
        "         os.setsid()\n            time.sleep(1000)\n    return os.getuid()"
    )
    with pool.sandbox({"role": "solution", "program": program}) as one:
        one.receive(30)
        one.send({"call": "f", "args": [0]}, 30)
        uid = one.receive(30)["value"]
        outer = one._process.pid
        assert len(descendants(outer)) >= 5
        inside = descendants(outer)
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in inside) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [pid for pid in inside if Path(f"/proc/{pid}").exists()] == []
    assert uid != 0 or os.getuid() != 0, "root does not run model code"


def test_many_processes_have_no_more_time_than_two(pool):
    """Each of eight would have a second of its own, and ten times the four seconds of the wall
    clock are given while they compute."""
    program = "import os\ndef f(x):\n    for _ in range(3): os.fork()\n    while True: pass"
    start = time.monotonic()
    assert run_tests(pool, program, SQUARE) == ["timeout", "skipped"]
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("style", ["call", "assert", "stdin"])
def test_a_sandbox_killed_from_outside_is_used_again_and_never_makes_a_verdict(
    pool, monkeypatch, style
):
    """As the kernel does when memory is short: bubblewrap itself dies while the program of a right
    solution is asked."""
    tests = {
        "call": SQUARE,
        "assert": SQUARE_ASSERTS,
        "stdin": CodeTests(style="stdin", tests=[{"input": "3\n", "output": "16"}]),
    }[style]
    program = (
        "x = int(input())\nprint(x * x + 7)"
        if style == "stdin"
        else "def f(x):\n    return x * x + 7"
    )
    program = f"import time\ntime.sleep(0.7)\n{program}"  # so that none answers before it is killed
    asked = Sandbox._some
    kills: list[int] = []

    def killed(self, size, until):
        if kills and self.asked:
            kills.pop()
            self.asked = False
            self._process.kill()
        return asked(self, size, until)

    def begun(self, job, begin=Sandbox.begin):
        begin(self, job)
        self.asked = job["role"] != "tests"

    monkeypatch.setattr(Sandbox, "_some", killed)
    monkeypatch.setattr(Sandbox, "begin", begun)
    monkeypatch.setattr(Sandbox, "asked", False, raising=False)
    kills[:] = [1]
    assert set(run_tests(pool, program, tests)) == {"passed"}
    assert kills == []
    kills[:] = [1, 2]
    with pytest.raises(SandboxError, match="killed from outside"):
        run_tests(pool, program, tests)


def descendants(pid):
    try:
        children = [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []
    return children + [below for child in children for below in descendants(child)]


def test_without_a_sandbox_nothing_runs_unless_it_is_asked_for_by_name(monkeypatch):
    check_backend.cache_clear()
    monkeypatch.setattr("tracerl.rewards.verify.sandbox.shutil.which", lambda name: None)
    try:
        with pytest.raises(SandboxError, match="unconfined"):
            SandboxPool("bubblewrap", LIMITS, 0)
    finally:
        check_backend.cache_clear()


def test_the_weaker_backend_judges_alike_and_says_its_name():
    assert "no isolation" in check_backend("unconfined")
    pool = SandboxPool("unconfined", LIMITS, 0)
    try:
        assert run_tests(pool, "def f(x):\n    return x * x + 7", SQUARE) == ["passed", "passed"]
        assert run_tests(pool, "def f(x):\n    return 0", SQUARE) == ["failed", "skipped"]
        assert run_tests(
            pool,
            "print(int(input()) + 1)",
            CodeTests(style="stdin", tests=[{"input": "1\n", "output": "2"}]),
        ) == ["passed"]
    finally:
        pool.close()


VALUES = [
    None,
    True,
    0,
    -5,
    2**60,
    2**200,
    0.1,
    -0.0,
    float("inf"),
    "a\u2028\x00é",
    b"\xff",
    (1, (2,)),
    [1, [2]],
    {1, 2},
    frozenset({1}),
    {"a": [1], 2: (3,)},
    1 + 2j,
    range(3),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_survives_the_journey_with_its_type(value):
    sent = json.loads(json.dumps(encode(value)))
    back = decode(sent)
    assert (type(back), back) == (type(value), value)
    assert same_value(sent, sent, None) is (value is not range)


@pytest.mark.parametrize(
    ("expected", "given", "tolerance", "same"),
    [
        (1, 1, None, True),
        (1, True, None, False),
        (True, 1, None, False),
        (1, 1.0, None, False),
        (1.0, 1, None, True),
        (1.0, 1.0 + 1e-12, None, False),
        (1.0, 1.0 + 1e-12, 1e-9, True),
        (1.0, 1.1, 1e-9, False),
        (float("nan"), float("nan"), 1e-9, False),
        ([1, 2], (1, 2), None, True),
        ([1, 2], [2, 1], None, False),
        ([1], [1, 1], None, False),
        ({1, 2}, {2, 1}, None, True),
        ({1, 2}, [1, 2], None, False),
        ("1", 1, None, False),
        ({"a": 1.0}, {"a": 1.0 + 1e-12}, 1e-9, True),
        ({"a": 1}, {"b": 1}, None, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, None, True),
        (None, 0, None, False),
        (None, False, None, False),
        (0, -0.0, None, False),
        ("a", b"a", None, False),
        (2**70, 2**70, None, True),
        (2**70, 2**70 + 1, 1e-9, False),
    ],
)
def test_values_are_compared_by_type_and_value(expected, given, tolerance, same):
    assert same_value(encode(expected), encode(given), tolerance) is same


@pytest.mark.parametrize(
    "reply",
    [
        {"handle": 0},
        {"set": 3},
        {"set": [1]},
        {"int": "zz"},
        {"float": 5},
        {},
        {"a": 1, "b": 2},
        [[]] * 3,
        "x",
        {"tuple": None},
    ],
)
def test_a_forged_value_is_never_equal_nor_an_error(reply):
    for expected in (1, 1.0, [1], {2}, {"a": 1}, (1,), None, True, "y"):
        assert same_value(encode(expected), reply, 1e-9) is False


@pytest.mark.parametrize(
    ("expected", "given", "tolerance", "same"),
    [
        ("1 2\n", "1 2", None, True),
        ("1\n2\n", "1 \n2\n\n", None, True),
        ("1\n2", "1 2", None, False),
        ("0.5", "0.50", None, False),
        ("0.5", "0.50", 1e-9, True),
        ("YES", "yes", None, False),
        ("1", "", None, False),
        ("1", "1\n1", None, False),
        ("a 0.1", "a 0.1000001", 1e-3, True),
        ("nan", "inf", 1e-3, False),
    ],
)
def test_outputs_are_compared_line_by_line(expected, given, tolerance, same):
    assert same_output(expected, given, tolerance) is same


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("def f(): pass", "def f(): pass"),
        ("Text\n```python\ndef f(): pass\n```\nmore", "def f(): pass\n"),
        ("```\nold\n```\nno:\n```py\ndef f(): 1\n```", "def f(): 1\n"),
        ("```python\ndef f(): pass", "def f(): pass"),
        ("<think>```python\nbad\n```</think>\n```python\ndef f(): 2\n```", "def f(): 2\n"),
        ("<answer>def f(): 3</answer>", "def f(): 3"),
        ("    return 1\n", "PREFIX    return 1"),
    ],
)
def test_the_program_is_the_last_block_or_the_whole_response(response, program):
    assert extract_program(response, "PREFIX", "f") == program


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "[]",
        "{}",
        '{"style": "magic", "tests": [1]}',
        '{"style": "call", "tests": []}',
        '{"style": "call", "tests": [1], "x": 1}',
    ],
)
def test_a_wrong_spec_is_named(spec):
    with pytest.raises(DataError):
        code_tests(spec)
