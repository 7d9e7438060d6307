"""Programs as answers: which part of a response is the program, and how many of a task's tests it
passes.

The process that holds the program never holds a test or an expected value. It gets inputs, and what
comes back is data that this trusted side compares by type and value (`call`), or text (`stdin`), or
that goes on to a second sandbox, the examiner, in which the benchmark's own test program runs
against references to the solution's objects (`assert`). So an early exit, a patched builtin, an
object that equals everything or a search for the tests earns nothing: there is nothing to find, and
a result that was not computed from the input does not fit the next one.

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
_MAX_DEPTH = 60  # of a value; `encode` nests 50 deep
_UNORDERED = ("set", "frozenset", "dict", "Counter", "defaultdict", "OrderedDict")
_MAX_DEATHS = 3  # of the solution, after which further tests count as failed without being tried


@dataclass(frozen=True, kw_only=True)
class CodeTests:
    """What a code task's `spec` holds, as JSON."""

    style: Literal["assert", "call", "stdin"]
    """How the tests reach the program: test programs, calls of a function, or standard input."""
    tests: list[Any]
    """"assert": programs that raise or not; "call": {"args", "expected"} as `encode` writes them;
    "stdin": {"input", "output"}."""
    provides: tuple[str, ...] = ()
    """Names that the solution defines for assert tests."""
    entry_point: str = ""
    """What call tests call, "Class.method" for a method."""
    setup: str = ""
    """What runs before each assert test, in the examiner."""
    prefix: str = ""
    """What a response may leave out (a signature that it completes)."""
    reward: Literal["all", "fraction"] = "all"
    """Pays 1 if every test passes, or the share of tests passed."""
    tolerance: float | None = None
    """Of floats, relative and absolute; None for exact."""
    cpu_seconds: float | None = None
    """Of each process, in place of `Limits.cpu_seconds`."""


def code_tests(spec: str) -> CodeTests:
    """Reads a task's spec. Raises DataError if it is not one."""
    try:
        fields = json.loads(spec)
        tests = CodeTests(**{**fields, "provides": tuple(fields.get("provides", ()))})
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
    blocks = _find_blocks(text)
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
    deaths = 0
    broken = False
    use = Use()
    while len(verdicts) < len(tests.tests):
        if deaths == _MAX_DEATHS:
            return [*verdicts, *["skipped"] * (len(tests.tests) - len(verdicts))]
        if use.is_over(pool.limits):
            return [*verdicts, *["timeout"] * (len(tests.tests) - len(verdicts))]
        try:
            following = runner(pool, program, tests, tests.tests[len(verdicts) :], use)
        except SandboxError:
            if broken:
                raise
            broken = True
            continue
        verdicts += following
        deaths += following[-1] in ("ended", "timeout", "output")
        if tests.reward == "all" and any(verdict != "passed" for verdict in verdicts):
            return [*verdicts, *["skipped"] * (len(tests.tests) - len(verdicts))]
    return verdicts


def _asserts(
    pool: SandboxPool, program: str, tests: CodeTests, remaining: list[Any], use: Use
) -> list[str]:
    """Verdicts up to and including the first test in which the solution dies or takes too long."""
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
            return _examine(solution, examiner, wall)


def _examine(solution: Sandbox, examiner: Examiner, wall: float) -> list[str]:
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
    """Verdicts up to and including the first call in which the solution dies or takes too long."""
    verdicts: list[str] = []
    wall = pool.limits.wall_seconds
    job = {"role": "solution", "program": program}
    with pool.sandbox(job, tests.cpu_seconds, use) as solution:
        if (problem := _load(solution)) is not None:
            return [problem] * len(remaining)
        request = {"call": tests.entry_point, "new": "." in tests.entry_point}
        for test in remaining:
            try:
                solution.send({**request, "args": test["args"]}, wall)
                reply = solution.receive(wall)
            except GuestEndedError as error:
                return [*verdicts, error.reason]
            if not isinstance(reply, dict) or set(reply) != {"value"}:
                verdicts.append("error")
            elif same_value(test["expected"], reply["value"], tests.tolerance):
                verdicts.append("passed")
            else:
                verdicts.append("failed")
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
    text = output.decode("utf-8", "replace")
    return ["passed" if same_output(test["output"], text, tests.tolerance) else "failed"]


def _load(solution: Sandbox) -> str | None:
    """What went wrong while the program was loaded, None if nothing did."""
    try:
        reply = solution.receive(solution.limits.wall_seconds)
        return None if reply == {"loaded": True} else "error"
    except GuestEndedError as error:
        return error.reason


def same_value(expected: Any, answer: Any, tolerance: float | None, depth: int = 0) -> bool:
    """Whether two encoded values are equal in type and value.

    A list and a tuple are alike (JSON has no tuples); a whole number may stand for a float, never a
    bool for a number; NaN equals nothing. Sets and dicts are compared by their sorted encodings, so
    that hostile keys cannot make hashing slow.
    """
    if depth > _MAX_DEPTH:
        return False
    numbers = _number(expected), _number(answer)
    if numbers != (None, None):
        return None not in numbers and _same_number(*numbers, tolerance)  # type: ignore[arg-type]
    sequences = _items(expected), _items(answer)
    if sequences != (None, None):
        return _same_items(*sequences, tolerance, depth + 1)
    if not (isinstance(expected, dict) and isinstance(answer, dict)):
        return type(expected) is type(answer) and expected == answer
    if list(expected) != list(answer) or len(expected) != 1:
        return False
    (tag,) = expected
    if tag in _UNORDERED and isinstance(answer[tag], list):
        pairs = _sort_items(expected[tag]), _sort_items(answer[tag])
        return _same_items(*pairs, tolerance, depth + 1)
    return tag not in ("handle", "callback") and bool(expected[tag] == answer[tag])


def _same_items(
    expected: list[Any] | None, answer: list[Any] | None, tolerance: float | None, depth: int
) -> bool:
    if expected is None or answer is None or len(expected) != len(answer):
        return False
    pairs = zip(expected, answer, strict=True)
    return all(same_value(first, second, tolerance, depth) for first, second in pairs)


def _sort_items(items: list[Any]) -> list[Any]:
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


def _same_number(expected: int | float, answer: int | float, tolerance: float | None) -> bool:
    if isinstance(expected, int) and isinstance(answer, float) and tolerance is None:
        return False
    if expected == answer:
        return True
    if tolerance is None or (isinstance(expected, int) and isinstance(answer, int)):
        return False
    try:
        return math.isclose(expected, answer, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:
        return False


def same_output(expected: str, output: str, tolerance: float | None) -> bool:
    """Lines must agree after trailing space is stripped, and trailing empty lines; with a
    tolerance, word by word, numbers within it."""
    lines = _lines(expected), _lines(output)
    if lines[0] == lines[1]:
        return True
    if tolerance is None or len(lines[0]) != len(lines[1]):
        return False
    pairs = zip(*lines, strict=True)
    return all(_same_words(first.split(), second.split(), tolerance) for first, second in pairs)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _same_words(expected: list[str], words: list[str], tolerance: float) -> bool:
    if len(expected) != len(words):
        return False
    pairs = zip(expected, words, strict=True)
    return all(first == second or _close_words(first, second, tolerance) for first, second in pairs)


def _close_words(expected: str, word: str, tolerance: float) -> bool:
    plain = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
    if not (plain.fullmatch(expected) and plain.fullmatch(word)):
        return False
    return math.isclose(float(expected), float(word), rel_tol=tolerance, abs_tol=tolerance)


def _find_blocks(text: str) -> list[str]:
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
