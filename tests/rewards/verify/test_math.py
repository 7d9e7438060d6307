"""Laws of mathematical answers: one extractor with a stated order, exact verdicts, and hostile text
that costs a bounded time."""

import itertools
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.published import published
from tests.rewards.verify.pairs import ADVERSARIAL, KINDS, ONE_WAY, ORDINARY
from tracerl.evaluation.datasets import read_rows
from tracerl.rewards.verify.answers import decide_quickly
from tracerl.rewards.verify.math import extract_answer
from tracerl.rewards.verify.numbers import number
from tracerl.rewards.verify.workers import MathWorkers

CPU_SECONDS = 2.0


@pytest.fixture(scope="module")
def workers():
    pool = MathWorkers(2, CPU_SECONDS)
    yield pool
    pool.close()


def decide(workers, pairs, threads=2):
    """Verdicts on (gold, given) pairs, decided by several threads at once, in the order of the
    pairs."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda pair: workers.equivalent(*pair), pairs))


EXTRACTED = [
    (r"So it is \boxed{5}.", "5"),
    (r"\boxed{4} no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\boxed{7}}", r"\boxed{7}"),
    (r"\boxed{\left\{1,2\right\}}", r"\left\{1,2\right\}"),
    (r"\boxed{ {{a}} }", "{{a}}"),
    (r"\boxed{5} and then \boxed{6", "5"),
    (r"\fbox{3}", "3"),
    (r"\boxed 9 is it", "9"),
    ("\\boxed{5}\n#### 6\nThe answer is 7.", "5"),
    ("She has 3.\n#### 1,234", "1,234"),
    ("#### 5\n#### 6 \nbye", "6"),
    ("The answer is 7.\nOr so.", "7"),
    ("The final answer is: $x=3$. I hope it is correct.", "x=3"),
    ("**Answer:** 12", "12"),
    ("The answer is 3. No, the answer is 4", "4"),
    ("work\n\nso $a$ is $b$\n\n", "b"),
    ("work\n42\n", "42"),
    (r"thus \(x^2\)", "x^2"),
    ("it costs $5", "it costs $5"),
    ("<think>\\boxed{1}</think>\n\\boxed{2}", "2"),
    ("<think>a</think>\\boxed{1}</think>\\boxed{}2", None),
    ("a</think>\\boxed{1}</think>so 2", "so 2"),
    ("<think>hm</think>", "<think>hm</think>"),
    ("<reasoning>\\boxed{1}</reasoning><answer>\\boxed{2}</answer>", "2"),
    ("<answer>\n17\n</answer> trailing", "17"),
    ("", None),
    (" \n ", None),
    (r"\boxed{}", None),
]


@pytest.mark.parametrize(("text", "answer"), EXTRACTED)
def test_the_answer_is_taken_in_the_stated_order(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    "part",
    [
        "\\boxed{",
        "{",
        "}",
        "$",
        "####",
        "answer is ",
        "answer is\n",
        "\\(",
        "\\boxed ",
        "<answer>",
        "</think>",
        "1,",
        "\\text{",
        "%",
    ],
)
def test_a_hostile_text_is_read_in_linear_time(part):
    def seconds(size):
        text = part * (size // len(part))
        start = time.process_time()
        decide_quickly("5", extract_answer(text) or "")
        return time.process_time() - start

    assert seconds(100_000) < 40 * max(seconds(10_000), 0.005)


def test_every_pair_of_the_table_has_its_verdict(workers):
    assert len(ORDINARY) + len(ADVERSARIAL) >= 150
    assert len(ADVERSARIAL) >= 40
    pairs = [*ORDINARY, *ADVERSARIAL, *KINDS]
    found = decide(workers, [pair[:2] for pair in pairs])
    wrong = [
        (gold, given[:60], want, got)
        for (gold, given, want), got in zip(pairs, found, strict=True)
        if want != got
    ]
    assert wrong == []


def test_a_verdict_is_symmetric(workers):
    pairs = [pair for pair in KINDS if pair[:2] not in ONE_WAY] + ORDINARY[::3]
    turned = decide(workers, [(answer, gold) for gold, answer, _ in pairs])
    assert [
        (gold, answer, want, got)
        for (gold, answer, want), got in zip(pairs, turned, strict=True)
        if want != got
    ] == []


def test_a_known_equation_is_more_than_its_value(workers):
    turned = decide(workers, sorted((answer, gold) for gold, answer in ONE_WAY))
    assert turned == ["equal", "equal", "undecided", "undecided"]


def test_equality_is_reflexive_and_a_verdict_does_not_depend_on_order_or_number_of_workers(workers):
    """Cheap pairs of the table, backwards, by one worker."""
    chosen = ORDINARY[::-6]
    one = MathWorkers(1, CPU_SECONDS)
    try:
        alone = decide(one, [pair[:2] for pair in chosen], threads=1)
        assert alone == [pair[2] for pair in chosen]
        assert set(decide(one, [(pair[0], pair[0]) for pair in chosen])) == {"equal"}
    finally:
        one.close()


def test_a_verdict_does_not_depend_on_the_pairs_before_it():
    """One worker decides all of them in one child, but for those that end it."""
    hostile = [("5", "9^{9^9}"), ("5", "\\int_0^1 x^{x^x} dx"), ("5", "-" * 999 + "5")]
    plain = [pair for pair in ORDINARY if decide_quickly(*pair[:2]) is None][:12]
    pool = MathWorkers(1, CPU_SECONDS)
    try:
        for gold, answer, verdict in plain:
            assert pool.equivalent(gold, answer) == verdict
        for turn, (gold, answer, verdict) in enumerate(plain):
            assert pool.equivalent(*hostile[turn % 3]) == "undecided"
            assert pool.equivalent(gold, answer) == verdict
    finally:
        pool.close()


def test_a_killed_worker_is_replaced_and_loses_nothing():
    pool = MathWorkers(1, CPU_SECONDS)
    try:
        assert pool.equivalent(r"\ln 4", r"2\ln 2") == "equal"
        worker = pool._idle.get()
        assert worker is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        pool._idle.put(worker)
        assert pool.equivalent(r"\ln 4", r"2\ln 2") == "equal"
    finally:
        pool.close()


@pytest.mark.parametrize("victim", ["the worker", "the child that decides"])
def test_a_process_killed_while_it_decides_loses_nothing(victim):
    pool = MathWorkers(1, CPU_SECONDS)
    killed: list[int] = []

    def kill_once(pid):
        while not killed:
            for child in children(pid):
                doomed = pid if victim == "the worker" else child
                os.kill(doomed, signal.SIGKILL)
                killed.append(doomed)
                return

    try:
        assert pool.equivalent(r"\ln 4", r"2\ln 2") == "equal"
        worker = pool._idle.get()
        assert worker is not None
        pool._idle.put(worker)
        with ThreadPoolExecutor(1) as threads:
            watching = threads.submit(kill_once, worker.pid)
            while not watching.done():
                assert pool.equivalent(r"\sqrt{5+2\sqrt{6}}", r"\sqrt{2}+\sqrt{3}") == "equal"
        assert len(killed) == 1
    finally:
        pool.close()


def children(pid):
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def test_math500_answers_equal_themselves_and_no_differing_neighbour(workers):
    rows = list(read_rows(published("math500_full.jsonl")))
    golds = [row["answer"] for row in rows]
    assert [extract_answer(row["solution"]) for row in rows] == golds
    assert {decide_quickly(gold, gold) for gold in golds} == {"equal"}
    spaced = [(gold, f" $ {gold} $.") for gold in golds]
    assert set(decide(workers, spaced)) == {"equal"}
    neighbours = [(a, b) for a, b in itertools.pairwise(golds) if a != b][::8]
    verdicts = decide(workers, neighbours)
    assert "equal" not in verdicts
    assert verdicts.count("undecided") <= len(verdicts) // 10


def test_gsm8k_answers_are_extracted_as_numbers():
    rows = list(read_rows(published("gsm8k_test.jsonl")))
    found = [extract_answer(row["answer"]) for row in rows]
    assert len(found) == 1319
    assert all(number(str(answer).replace(",", "")) is not None for answer in found)
    assert [str(answer) for answer in found] == [
        row["answer"].split("####")[1].strip() for row in rows
    ]
