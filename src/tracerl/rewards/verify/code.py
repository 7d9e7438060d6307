"""Programs as answers: which part of a response is the program, and how many of a task's tests it
passes.

The process that holds the program never holds a test or an expected value. It gets inputs, and what
comes back is data that this trusted side compares by type and value (`call`), or text (`stdin`), or
that goes on to a second sandbox in which the benchmark's own test program runs against a proxy of
the solution (`assert`). So an early exit, a patched builtin, an object that equals everything or a
look around earns nothing: there is nothing to find, and a result that was not computed from the
input does not fit the next one.

A test is "passed", "failed", or "error", "timeout", "output", "ended" (what the program did wrong).
If the sandbox itself broke there is no verdict at all, which `verify` calls undecided.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tracerl.errors import DataError
from tracerl.rewards.verify.final import final_part
from tracerl.rewards.verify.sandbox import (
    CPU_LIMIT_STATUS,
    Examiner,
    GuestEndedError,
    Sandbox,
    SandboxError,
    SandboxPool,
    Use,
)

_MAX_PROGRAM = 200_000
_MAX_CALLS = 100_000
_MAX_DEATHS = 3  # of the solution, after which further tests count as failed without being tried


@dataclass(frozen=True)
class CodeTests:
    """What a code task's `spec` holds, as JSON.

    style: "assert" (tests are programs that raise or not), "call" (tests are {"args", "expected"}),
    "stdin" ({"input", "output"}).
    provides: names the solution defines for assert tests. entry_point: what call tests call,
    "Class.method" for a method.
    setup: what runs before each assert test, in the tests' sandbox. prefix: what a response may
    leave out (a completed signature).
    reward: "all" pays 1 if every test passes, "fraction" the share of tests passed. tolerance: of
    floats, null for exact.
    """

    style: Literal["assert", "call", "stdin"]
    tests: list[Any]
    provides: tuple[str, ...] = ()
    entry_point: str = ""
    setup: str = ""
    prefix: str = ""
    reward: Literal["all", "fraction"] = "all"
    tolerance: float | None = None
    cpu_seconds: float | None = None


def code_tests(spec: str) -> CodeTests:
    """Reads a task's spec. Raises DataError if it is not one."""
    try:
        tests = CodeTests(
            **{**(data := json.loads(spec)), "provides": tuple(data.get("provides", ()))}
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            "a code task's spec cannot be read", got=spec[:200], wanted="JSON with style and tests"
        ) from error
    if (
        tests.style not in ("assert", "call", "stdin")
        or not tests.tests
        or tests.reward not in ("all", "fraction")
    ):
        raise DataError(
            "a code task's spec is wrong",
            got=spec[:200],
            wanted="a known style, a known reward and at least one test",
        )
    return tests


def extract_program(response: str, prefix: str, entry_point: str) -> str:
    """The last fenced block of the response's final part, else all of it; after `prefix` if it does
    not define the entry point itself, or, where there is none, does not begin with the prefix."""
    text = final_part(response)[0].strip("\n")
    blocks = _fenced(text)
    program = blocks[-1] if blocks else text
    if entry_point:
        name = re.escape(entry_point.split(".")[0])
        pattern = rf"^(?:async\s+)?(?:def|class)\s+{name}\b"
        defines = re.search(pattern, program, re.MULTILINE) is not None
    else:
        defines = program.startswith(prefix.strip())
    return program if defines or not prefix else prefix + program


def run_tests(pool: SandboxPool, program: str, tests: CodeTests) -> list[str]:
    """A verdict per test, in their order. With reward "all" what follows the first failure is not
    tried ("skipped").

    Tests during which a sandbox breaks are run once more. Raises SandboxError if one breaks again.
    """
    if len(program) > _MAX_PROGRAM or "\x00" in program:
        return ["error"] * len(tests.tests)
    runner: Callable[[SandboxPool, str, CodeTests, list[Any], Use], list[str]] = {
        "assert": _asserts,
        "call": _calls,
        "stdin": _scripts,
    }[tests.style]
    verdicts: list[str] = []
    deaths, broken, use = 0, False, Use()
    while len(verdicts) < len(tests.tests):
        if deaths == _MAX_DEATHS:
            return [*verdicts, *["skipped"] * (len(tests.tests) - len(verdicts))]
        if use.is_over(pool.limits):
            return [*verdicts, *["timeout"] * (len(tests.tests) - len(verdicts))]
        try:
            done = runner(pool, program, tests, tests.tests[len(verdicts) :], use)
        except SandboxError:
            if broken:
                raise
            broken = True
            continue
        verdicts += done
        deaths += done[-1] in ("ended", "timeout", "output")
        if tests.reward == "all" and any(verdict != "passed" for verdict in verdicts):
            return [*verdicts, *["skipped"] * (len(tests.tests) - len(verdicts))]
    return verdicts


def _asserts(
    pool: SandboxPool, program: str, tests: CodeTests, remaining: list[Any], use: Use
) -> list[str]:
    """Verdicts up to and including the first test in which the solution dies or runs out of time."""
    wall = pool.limits.wall_seconds
    job = {"role": "solution", "program": program}
    with pool.sandbox(job, tests.cpu_seconds, use) as solution:
        if (problem := _load(solution)) is not None:
            return [problem] * len(remaining)
        examination = {
            "tests": remaining,
            "setup": tests.setup,
            "provides": list(tests.provides),
            "stop_at_failure": tests.reward == "all",
        }
        with pool.examiner() as examiner:
            examiner.send(examination, wall)
            return _examined(solution, examiner, wall)


def _examined(solution: Sandbox, examiner: Examiner, wall: float) -> list[str]:
    """Carries requests and replies between the two until the examiner has a verdict on every test,
    or one of them ends."""
    verdicts: list[str] = []
    for _ in range(_MAX_CALLS):
        try:
            message = examiner.receive(wall)
        except GuestEndedError as error:  # over a value of the solution that it cannot digest
            return [*verdicts, error.reason]
        if "done" in message:
            examiner.wait_until_idle(wall)
            return verdicts or ["ended"]
        if "ended" in message:
            return [*verdicts, "timeout" if message["ended"] in CPU_LIMIT_STATUS else "ended"]
        if "test" in message:
            verdicts.append(message["verdict"].partition(":")[0])
            continue
        try:
            solution.send(message, wall)
            examiner.send_raw(solution.receive_raw(wall), wall)
        except GuestEndedError as error:
            examiner.abandon(wall)
            return [*verdicts, error.reason]
    return [*verdicts, "timeout"]


def _calls(
    pool: SandboxPool, program: str, tests: CodeTests, remaining: list[Any], use: Use
) -> list[str]:
    """Verdicts up to and including the first call in which the solution dies or runs out of time."""
    verdicts: list[str] = []
    wall = pool.limits.wall_seconds
    job = {"role": "solution", "program": program}
    with pool.sandbox(job, tests.cpu_seconds, use) as solution:
        if (problem := _load(solution)) is not None:
            return [problem] * len(remaining)
        for test in remaining:
            try:
                solution.send(
                    {
                        "call": tests.entry_point,
                        "new": "." in tests.entry_point,
                        "args": test["args"],
                    },
                    wall,
                )
                reply = solution.receive(wall)
            except GuestEndedError as error:
                return [*verdicts, error.reason]
            if not isinstance(reply, dict) or set(reply) != {"value"}:
                verdicts.append("error")
            else:
                verdicts.append(
                    "passed"
                    if same_value(test["expected"], reply["value"], tests.tolerance)
                    else "failed"
                )
            if tests.reward == "all" and verdicts[-1] != "passed":
                return verdicts
    return verdicts


def _scripts(
    pool: SandboxPool, program: str, tests: CodeTests, remaining: list[Any], use: Use
) -> list[str]:
    """The verdict on the first remaining test: every one has a sandbox of its own."""
    test = remaining[0]
    try:
        job = {"role": "script", "program": program, "stdin": test["input"]}
        with pool.sandbox(job, tests.cpu_seconds, use) as script:
            output, status = script.output(pool.limits.wall_seconds)
    except GuestEndedError as error:
        return [error.reason]
    if status != 0:
        return ["timeout" if status in CPU_LIMIT_STATUS else "error"]
    return [
        "passed"
        if same_output(test["output"], output.decode("utf-8", "replace"), tests.tolerance)
        else "failed"
    ]


def _load(solution: Sandbox) -> str | None:
    try:
        return (
            None if solution.receive(solution.limits.wall_seconds) == {"loaded": True} else "error"
        )
    except GuestEndedError as error:
        return error.reason


def same_value(expected: Any, given: Any, tolerance: float | None, depth: int = 0) -> bool:
    """Whether two encoded values are equal in type and value.

    A list and a tuple are alike (JSON has no tuples); a whole number may stand for a float, never a
    bool for a number; NaN equals nothing. Sets and dicts are compared by their sorted encodings, so
    that hostile keys cannot make hashing slow.
    """
    if depth > 60:
        return False
    ours, theirs = _number(expected), _number(given)
    if ours is not None or theirs is not None:
        return ours is not None and theirs is not None and _same_number(ours, theirs, tolerance)
    first, second = _items(expected), _items(given)
    if first is not None or second is not None:
        return (
            first is not None
            and second is not None
            and len(first) == len(second)
            and all(
                same_value(a, b, tolerance, depth + 1) for a, b in zip(first, second, strict=True)
            )
        )
    if isinstance(expected, dict) and isinstance(given, dict) and len(expected) == len(given) == 1:
        (tag, inner), (other, found) = *expected.items(), *given.items()
        if (
            tag == other
            and tag in ("set", "frozenset", "dict", "Counter", "defaultdict", "OrderedDict")
            and isinstance(found, list)
        ):
            if len(inner) != len(found):
                return False
            return all(
                same_value(a, b, tolerance, depth + 1)
                for a, b in zip(_ordered(inner), _ordered(found), strict=True)
            )
        return tag == other and tag not in ("handle", "callback") and inner == found
    return type(expected) is type(given) and expected == given


def _ordered(items: list[Any]) -> list[Any]:
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _items(data: Any) -> list[Any] | None:
    """The items of a list or tuple."""
    if isinstance(data, list):
        return data
    if isinstance(data, dict) and list(data) == ["tuple"] and isinstance(data["tuple"], list):
        return data["tuple"]
    return None


def _number(data: Any) -> int | float | None:
    if isinstance(data, bool):
        return None
    if isinstance(data, int):
        return data
    try:
        if isinstance(data, dict) and list(data) == ["int"]:
            return int(data["int"], 16)
        if isinstance(data, dict) and list(data) == ["float"]:
            return float.fromhex(data["float"])
    except (ValueError, TypeError, OverflowError):
        return None
    return None


def _same_number(expected: int | float, given: int | float, tolerance: float | None) -> bool:
    if isinstance(expected, int) and isinstance(given, float) and tolerance is None:
        return False
    if expected == given:
        return True
    if tolerance is None or (isinstance(expected, int) and isinstance(given, int)):
        return False
    try:
        return math.isclose(expected, given, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:
        return False


def same_output(expected: str, given: str, tolerance: float | None) -> bool:
    """Lines must agree after trailing space is stripped, and trailing empty lines; with a
    tolerance, word by word, numbers within it."""
    ours, theirs = (
        [line.rstrip() for line in text.rstrip().splitlines()] for text in (expected, given)
    )
    if ours == theirs:
        return True
    if tolerance is None or len(ours) != len(theirs):
        return False
    return all(
        _same_words(a.split(), b.split(), tolerance) for a, b in zip(ours, theirs, strict=True)
    )


def _same_words(expected: list[str], given: list[str], tolerance: float) -> bool:
    return len(expected) == len(given) and all(
        a == b or _close_words(a, b, tolerance) for a, b in zip(expected, given, strict=True)
    )


def _close_words(expected: str, given: str, tolerance: float) -> bool:
    plain = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
    if not (plain.fullmatch(expected) and plain.fullmatch(given)):
        return False
    return math.isclose(float(expected), float(given), rel_tol=tolerance, abs_tol=tolerance)


def _fenced(text: str) -> list[str]:
    """The inside of complete fenced blocks, in one pass over the lines; a block that never closes
    reaches to the end."""
    blocks: list[str] = []
    inside: list[str] | None = None
    fence = ""
    for line in text.split("\n"):
        stripped = line.strip()
        if inside is None and stripped[:3] in ("```", "~~~"):
            inside, fence = [], stripped[:3]
        elif inside is not None and stripped.startswith(fence) and not stripped.strip(fence[0]):
            blocks.append("\n".join(inside) + "\n")
            inside = None
        elif inside is not None:
            inside.append(line)
    return [*blocks, "\n".join(inside)] if inside else blocks
