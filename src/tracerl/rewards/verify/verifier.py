"""The one verifier per task kind: trace filter, RL reward and benchmark all call `verify_all`.

Generated arithmetic (`sums`, `arithmetic`): the response must be steps followed by `#` and the
answer as a plain whole number, nothing after it. The steps themselves are not judged: what is paid
is the answer. User files (`text`): what follows the last `#`, or else the last non-empty line, must
equal the answer after stripping spaces. `math`: see `math.py`. `code`: see `code.py`. `countdown`
and `sudoku`: the rules of `puzzles.py`. `gym`: a reasoning-gym answer as exact text, or as its
scorer says in the sandbox (`gym.py` says when). `open`: the score of a judge (`questions.py`) from
-1 to 1, paid as 0 to 1; more than 0 is correct.

`math`, `code` and `gym` need processes, and `open` a judge: `configure` says how many, under which
limits and which, once per process, like torch's thread count.
"""

import atexit
import contextlib
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from threading import Lock

from tracerl import puzzles
from tracerl.errors import ParamsError, TracerlError
from tracerl.rewards.judges.questions import Answer, Judge, Question
from tracerl.rewards.verify.code import code_tests, extract_program, run_tests
from tracerl.rewards.verify.final import gym_answer, short_answer
from tracerl.rewards.verify.math import extract_answer
from tracerl.rewards.verify.sandbox import Limits, SandboxError, SandboxPool, check_backend
from tracerl.rewards.verify.scorer import pays, visible_packages
from tracerl.rewards.verify.workers import MathWorkers
from tracerl.settings.rewards import Verification
from tracerl.types import Task

# Raised whenever a verdict on some response may change; stored with every evaluation.
VERSION = 4

_IN_PROCESSES = ("math", "code", "gym")
_NUMBER_ANSWER = re.compile(r"[^#]*#(0|-?[1-9][0-9]*)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was decided on one response, and what is paid for it."""

    verdict: str
    """"correct", "wrong" or "undecided" (never paid)."""
    parts: dict[str, float]
    """Named parts of the reward; it is their sum."""
    detail: str = ""
    """Why, where there is more to say; for code the sandbox and the verdict on each test."""

    @property
    def reward(self) -> float:
        return sum(self.parts.values())


def verify_all(
    responses: Sequence[tuple[Task, str, str]], truncated_is_wrong: bool
) -> list[Verdict]:
    """Verdicts on (task, response, stop reason), in their order; several at once where they need
    processes or a judge.

    truncated_is_wrong: a response that ended at the length limit is wrong, whatever it holds.
    """
    is_truncated = [truncated_is_wrong and reason == "length" for _, _, reason in responses]
    to_judge = [
        place
        for place, (task, _, _) in enumerate(responses)
        if task.kind == "open" and not is_truncated[place]
    ]
    scores = _open([responses[place][:2] for place in to_judge])
    open_verdicts = dict(zip(to_judge, scores, strict=True))

    def decide(place: int) -> Verdict:
        task, response, _ = responses[place]
        if is_truncated[place]:
            return _verdict(False)
        return open_verdicts[place] if place in open_verdicts else _verify(task, response)

    if _workers is None or all(task.kind not in _IN_PROCESSES for task, _, _ in responses):
        return [decide(place) for place in range(len(responses))]
    with ThreadPoolExecutor(_workers.settings.num_workers) as threads:
        return list(threads.map(decide, range(len(responses))))


def _verify(task: Task, response: str) -> Verdict:
    """The verdict on one response. Whatever goes wrong over it costs this verdict alone; only an
    error of ours that says what to do (TracerlError) ends the batch."""
    try:
        return _VERIFIERS[task.kind](task, response)
    except TracerlError:
        raise
    except Exception as error:
        detail = f"judging failed: {type(error).__name__}: {error}"
        return Verdict(verdict="undecided", parts={"correct": 0.0}, detail=detail[:200])


def judge_answers(responses: Sequence[tuple[Task, str]]) -> list[Answer]:
    """The configured judge's answers on whole responses: scores from -1 to 1, None with a reason
    where it is undecided."""
    return (
        list(
            _require_workers().judge(
                [Question(task=task, chunks=(text,)) for task, text in responses]
            )
        )
        if responses
        else []
    )


def configure(settings: Verification, judge: Callable[[], Judge] | None = None) -> None:
    """Says how many worker processes decide, and under which limits. They start when first needed
    and end with this process, or with `release`.

    judge: makes the judge of `settings.judge`, when it is first needed.
    """
    global _workers
    if _workers is not None and _workers.settings != settings:
        release()
    _workers = _workers or _Workers(settings)
    _workers.make_judge = judge


def release() -> None:
    """Ends the worker processes; `configure` must be called before mathematics or code is judged
    again."""
    global _workers
    if _workers is not None:
        _workers.close()
    _workers = None


atexit.register(release)


def provenance(kinds: set[str], judges: Sequence[str] = ()) -> dict[str, str | int]:
    """What verdicts on these kinds depend on besides task and response: the verifier's version, the
    packages that decide, the sandbox where programs run, the judge where open tasks are, and those
    of `judges` by name."""
    facts: dict[str, str | int] = {"verifier": VERSION}
    for name in [
        *(("sympy", "latex2sympy2_extended") if "math" in kinds else ()),
        *(("reasoning_gym",) if "gym" in kinds else ()),
    ]:
        with contextlib.suppress(
            PackageNotFoundError
        ):  # exact text of reasoning-gym's tasks is judged without it
            facts[name] = version(name)
    if judges or "open" in kinds:
        settings = _require_workers().settings
        for name in dict.fromkeys([*judges, *([str(settings.judge)] if "open" in kinds else [])]):
            facts[f"judge {name}"] = (settings.judges or {})[name].model_dump_json(
                exclude_none=True
            )
    if kinds & {"code", "gym"}:
        try:
            facts["sandbox"] = check_backend(_require_workers().settings.sandbox)
        except SandboxError:
            if "code" in kinds:
                raise
            facts["sandbox"] = "none"  # nor does exact text need one
    return facts


class _Workers:
    """The processes behind `math` and `code`, and the judge behind `open`."""

    def __init__(self, settings: Verification) -> None:
        self.settings = settings
        self.make_judge: Callable[[], Judge] | None = None
        self._judge: Judge | None = None
        self.math = MathWorkers(settings.num_workers, settings.math_cpu_seconds)
        self._lock = Lock()
        self._pools: dict[tuple[str, ...], SandboxPool] = {}

    def pool(self, packages: tuple[str, ...] = ()) -> SandboxPool:
        """The sandboxes that see these packages."""
        settings = self.settings
        limits = Limits(
            cpu_seconds=settings.code_cpu_seconds,
            wall_seconds=settings.code_idle_seconds,
            memory=settings.memory_mib << 20,
            processes=settings.processes,
            file_size=settings.file_kib << 10,
            files=settings.open_files,
            output=settings.output_kib << 10,
        )
        with self._lock:
            if packages not in self._pools:
                self._pools[packages] = SandboxPool(
                    settings.sandbox, limits, settings.num_workers, packages
                )
            return self._pools[packages]

    @property
    def judge(self) -> Judge:
        if self._judge is None:
            if self.make_judge is None:
                raise ParamsError(
                    "there is no judge",
                    wanted="the name of one of verification.judges in verification.judge",
                )
            self._judge = self.make_judge()
        return self._judge

    def close(self) -> None:
        self.math.close()
        for pool in self._pools.values():
            pool.close()


_workers: _Workers | None = None


def _require_workers() -> _Workers:
    if _workers is None:
        raise ParamsError(
            "math, code and open tasks cannot be judged yet",
            wanted="a call of tracerl.rewards.verify.verifier.configure(params.verification)",
        )
    return _workers


def _verdict(correct: bool) -> Verdict:
    return Verdict(verdict="correct" if correct else "wrong", parts={"correct": float(correct)})


def _number(task: Task, response: str) -> Verdict:
    match = _NUMBER_ANSWER.fullmatch(response)
    return _verdict(match is not None and match.group(1) == task.answer)


def _text(task: Task, response: str) -> Verdict:
    lines = [line for line in response.splitlines() if line.strip()]
    answer = response.rpartition("#")[2] if "#" in response else (lines[-1] if lines else "")
    return _verdict(answer.strip() == task.answer.strip())


def _math(task: Task, response: str) -> Verdict:
    answer = extract_answer(response)
    if answer is None:
        return _verdict(False)
    same = _require_workers().math.equivalent(task.answer, answer)
    if same == "undecided":
        return Verdict(verdict="undecided", parts={"correct": 0.0})
    return _verdict(same == "equal")


def _code(task: Task, response: str) -> Verdict:
    """The share of tests passed is a part of its own name only where the task asks for it;
    "correct" always means all of them."""
    tests = code_tests(task.spec)
    program = extract_program(
        response, tests.prefix, tests.entry_point or (tests.provides[0] if tests.provides else "")
    )
    pool = _require_workers().pool()
    try:
        verdicts = run_tests(pool, program, tests)
    except SandboxError as error:
        return Verdict(
            verdict="undecided", parts={"correct": 0.0}, detail=f"{pool.backend}: {error}"
        )
    num_passed = sum(verdict == "passed" for verdict in verdicts)
    every = num_passed == len(verdicts)
    reward = num_passed / len(verdicts) if tests.reward == "fraction" else float(every)
    return Verdict(
        verdict="correct" if every else "wrong",
        parts={"correct": reward},
        detail=f"{pool.backend}: {' '.join(verdicts)}",
    )


def _countdown(task: Task, response: str) -> Verdict:
    return _verdict(puzzles.is_countdown_answer(task.spec, short_answer(response)))


def _sudoku(task: Task, response: str) -> Verdict:
    return _verdict(puzzles.is_sudoku_answer(task.spec, short_answer(response)))


def _gym(task: Task, response: str) -> Verdict:
    spec = json.loads(task.spec) if task.spec else {}
    answers = spec.get("answers") or [task.answer]
    answer = gym_answer(response, answers[0])
    if answers[0] and answer.split() in [text.split() for text in answers]:
        return _verdict(True)
    if "module" not in spec:
        return _verdict(False)
    pool = _require_workers().pool(visible_packages())
    try:
        is_paid = pays(pool, spec, answer)
    except SandboxError as error:
        return Verdict(
            verdict="undecided", parts={"correct": 0.0}, detail=f"{pool.backend}: {error}"
        )
    return (
        Verdict(
            verdict="undecided",
            parts={"correct": 0.0},
            detail=f"{pool.backend}: the scorer did not end",
        )
        if is_paid is None
        else _verdict(is_paid)
    )


def _open(responses: Sequence[tuple[Task, str]]) -> list[Verdict]:
    """Verdicts by the judge: paid is its score, from -1 to 1, as 0 to 1."""
    verdicts = []
    for answer in judge_answers(responses):
        if answer.score is None:
            verdicts.append(
                Verdict(
                    verdict="undecided", parts={"correct": 0.0}, detail=f"judge: {answer.reason}"
                )
            )
        else:
            verdicts.append(
                Verdict(
                    verdict="correct" if answer.score > 0 else "wrong",
                    parts={"correct": (answer.score + 1) / 2},
                )
            )
    return verdicts


_VERIFIERS: dict[str, Callable[[Task, str], Verdict]] = {
    "sums": _number,
    "arithmetic": _number,
    "text": _text,
    "math": _math,
    "code": _code,
    "countdown": _countdown,
    "sudoku": _sudoku,
    "gym": _gym,
}
