"""Laws of the private channel: whatever a program sends ends as a verdict, and none is paid."""

import json
from pathlib import Path

import pytest

from tests.rewards.verify.frames import fuzzing_program, replying_program
from tracerl.rewards.verify import verifier
from tracerl.rewards.verify.code import CodeTests, run_tests
from tracerl.rewards.verify.sandbox import Limits, SandboxError, SandboxPool, check_backend
from tracerl.settings.params import load_params
from tracerl.types import Task

ROOT = Path(__file__).parents[3]
LIMITS = Limits(
    cpu_seconds=2.0,
    wall_seconds=0.5,
    memory=512 << 20,
    processes=16,
    file_size=1 << 20,
    files=64,
    output=1 << 18,
)
NUM_FRAMES = 25
RECORD = [{"dict": [["name", "a"], ["n", 1]]}]

try:
    check_backend("bubblewrap")
except SandboxError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="module")
def pool():
    pool = SandboxPool("bubblewrap", LIMITS, 2)
    yield pool
    pool.close()


def calls(expected, number):
    tests = [{"args": [place], "expected": expected} for place in range(number)]
    return CodeTests(style="call", tests=tests, entry_point="f", reward="fraction")


def asserts(number):
    tests = [f"assert f({place}) == {place + 1000}" for place in range(number)]
    return CodeTests(style="assert", tests=tests, provides=("f",), reward="fraction")


DEEP = "b'[' * 980 + b']' * 980"


@pytest.mark.parametrize(
    "payload",
    [
        'b\'{"value": [{"dict": [["name", \' + ' + DEEP + " + b'], [\"n\", 1]]}]}'",
        "b'{\"value\": ' + " + DEEP + " + b'}'",
        'b\'{"value": [{"dict": \' + ' + DEEP + " + b'}]}'",
        'b\'{"value": [{"dict": [["name", {}], ["n", 1]]}]}\'',
        'b\'{"value": [{"dict": [3, 4]}]}\'',
        "b'{\"value\": 1' + b'0' * 100000 + b'}'",
    ],
)
def test_a_value_that_cannot_be_compared_is_a_verdict(pool, payload):
    program = replying_program(payload)
    assert "passed" not in run_tests(pool, program, calls(RECORD, 1))
    assert "passed" not in run_tests(pool, program, asserts(1))


@pytest.mark.parametrize("seed", range(8))
def test_random_frames_end_as_verdicts_and_none_is_paid(pool, seed):
    program = fuzzing_program(str(seed))
    for tests in (calls(RECORD, NUM_FRAMES), asserts(NUM_FRAMES)):
        verdicts = run_tests(pool, program, tests)
        assert len(verdicts) == NUM_FRAMES
        assert "passed" not in verdicts


def by_request(describing, other):
    """An expression for `replying_program`: one payload for the request that asks what the names
    are, another for all others."""
    return f"({describing!r}).encode() if b'describe' in question else ({other!r}).encode()"


@pytest.mark.parametrize("test", ["check(f)", "compare(f)", "loop(f)"])
@pytest.mark.parametrize(
    ("described", "reply"),
    [
        (
            '{"f": {"handle": 0}, "check": {"handle": 0}, "loop": {"handle": 0}, "compare": '
            '{"handle": 0}}',
            '{"value": null}',
        ),
        ('{"f": {"handle": 0}, "all": {"handle": 0}}', '{"value": true}'),
        ('{"f": {"handle": 0}, "expected": {"value": [[1]]}}', '{"value": [[1]]}'),
        ('{"f": {"handle": 0}}', '{"value": [], "changes": {"1": []}}'),
        ('{"f": {"handle": 0}}', '{"value": null, "changes": {"0": [16], "1": [4]}}'),
        ('{"f": {"handle": 0}}', '{"value": {"callback": 0}}'),
        ('{"f": {"handle": 0}}', '{"value": {"builtin": "all"}}'),
        ('{"f": {"handle": 0, "bases": ["f", "AssertionError"]}}', '{"value": 1}'),
        ('{"f": {"handle": 0}}', '{"error": "x", "bases": ["StopIteration"]}'),
        ('{"f": {"handle": 0}}', '{"abandoned": true}'),
        ('{"f": {"handle": 0}}', '{"done": true}'),
        ('{"f": {"handle": 0}}', '{"test": 0, "verdict": "passed"}'),
        ('{"f": {"handle": 0}}', '{"ended": 0}'),
    ],
)
def test_a_reply_changes_nothing_of_the_tests_but_what_it_was_asked_for(
    pool, described, reply, test
):
    program = replying_program(by_request('{"described": ' + described + "}", reply))
    setup = """
expected = [4, 25]
def check(candidate):
    assert candidate([5, 2]) == expected
def compare(candidate):
    given = [5, 2]
    assert candidate(given) == [x * x for x in sorted(given)]
def loop(candidate):
    assert all(a == b for a, b in zip(map(candidate, [[2], [3]]), [[4], [9]]))
"""
    tests = CodeTests(style="assert", tests=[test], provides=("f",), setup=setup)
    assert run_tests(pool, program, tests) != ["passed"]
    assert run_tests(pool, "def f(x): return [y * y for y in sorted(x)]", tests) == ["passed"]


def test_an_exception_over_a_response_leaves_the_rest_of_the_batch_judged(monkeypatch):
    def raising(task, response):
        if response == "bad":
            raise RecursionError("too deep")
        return verifier.Verdict(verdict="correct", parts={"correct": 1.0})

    monkeypatch.setitem(verifier._VERIFIERS, "sums", raising)
    task = Task(
        task_id="a/1",
        task_set="a",
        kind="sums",
        split="test",
        difficulty=1,
        prompt="1+1",
        answer="2",
        solution="",
    )
    verdicts = verifier.verify_all(
        [(task, response, "end") for response in ("good", "bad", "good")], True
    )
    assert [verdict.verdict for verdict in verdicts] == ["correct", "undecided", "correct"]
    assert verdicts[1].reward == 0.0
    assert "RecursionError: too deep" in verdicts[1].detail


def test_the_frame_that_ended_the_judge_is_a_wrong_answer_of_its_response():
    spec = {"style": "call", "tests": [{"args": [0], "expected": RECORD}], "entry_point": "f"}
    task = Task(
        task_id="a/1",
        task_set="a",
        kind="code",
        split="test",
        difficulty=1,
        prompt="write f",
        answer="",
        solution="",
        spec=json.dumps(spec),
    )
    payload = 'b\'{"value": [{"dict": [["name", \' + ' + DEEP + " + b'], [\"n\", 1]]}]}'"
    right = "def f(x):\n    return [{'name': 'a', 'n': 1}]"
    verifier.configure(load_params(ROOT / "params.yaml").verification)
    judged = [(task, replying_program(payload), "end"), (task, right, "end")]
    assert [verdict.verdict for verdict in verifier.verify_all(judged, True)] == [
        "wrong",
        "correct",
    ]
    verifier.release()
