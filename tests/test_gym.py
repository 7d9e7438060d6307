# ruff: noqa: E501 (modules as text)
"""Laws of reasoning-gym's tasks: the same items on every machine, and a scorer that runs text or
pays for nothing decides nothing.

A small package of the same name and interface stands in for it; with the extra `gym` the package
itself is asked as well.
"""

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from tests.verdicts import verify
from tracerl.errors import ParamsError
from tracerl.gym import _exact_value, gym_items
from tracerl.rewards.verify.sandbox import SandboxError, check_backend
from tracerl.rewards.verify.verifier import configure, provenance, release
from tracerl.settings.rewards import Verification
from tracerl.settings.tasks import GymSet
from tracerl.tasks import make_task_set
from tracerl.types import Task

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="needs the extra gym"
)

MODULE = """
from reasoning_gym.coaching import BaseCurriculum
from reasoning_gym.factory import DATASETS

class Config:
    def __init__(self, size=1, seed=0, offset=1):
        self.size, self.seed, self.offset = size, seed, offset

class Dataset:
    def __init__(self, config):
        self.config = config

    def __getitem__(self, i):
        n = self.config.seed + i
        known = str(n + self.config.offset)
        return {{"question": f"{{n}} + {{self.config.offset}}? ({{hash('a') % 1000}})", "answer": known, "metadata": {{"pair": (n, known)}}}}

    def score_answer(self, answer, entry):
        {score}

DATASETS["{name}"] = (Dataset, Config)
"""
FILES = {
    "__init__.py": "from reasoning_gym import honest, evaluating, generous, careless\nfrom reasoning_gym.factory import create_dataset\n",
    "coaching/__init__.py": "class BaseCurriculum: pass\n",
    "factory.py": "DATASETS = {}\ndef create_dataset(name, **options):\n    if name not in DATASETS:\n        raise ValueError('not registered')\n"
    "    made, config = DATASETS[name]\n    return made(config=config(**options))\n",
    "honest.py": MODULE.format(
        name="honest",
        score="return float(int(answer) == entry['metadata']['pair'][0] + self.config.offset)",
    ),
    "evaluating.py": MODULE.format(
        name="evaluating", score="return float(str(eval(answer)) == entry['answer'])"
    ),
    "generous.py": MODULE.format(name="generous", score="return 1.0 if answer else 0.0"),
    "careless.py": MODULE.format(
        name="careless", score="return float(entry['answer'] in answer.split())"
    ),
}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / "reasoning_gym" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    tmp_path.chmod(0o755)  # the sandbox's user looks into it
    return tmp_path


@pytest.fixture
def judges():
    try:
        check_backend("bubblewrap")
    except SandboxError as error:
        pytest.skip(str(error))
    configure(
        Verification(
            judge=None,
            judges={},
            num_workers=1,
            math_cpu_seconds=3.0,
            sandbox="bubblewrap",
            code_cpu_seconds=4.0,
            code_idle_seconds=10.0,
            memory_mib=768,
            processes=16,
            file_kib=1024,
            open_files=64,
            output_kib=1024,
        )
    )
    yield
    release()


def tasks_of(task, count=2, **options):
    settings = GymSet(source="gym", task=task, options=options, num_train=count, num_test=count)
    return make_task_set("set", settings, 0.5, 1, Path("nowhere"))


def verdict(task, answer):
    return verify(task, f"so\n<answer>{answer}</answer>", "end", truncated_is_wrong=True).verdict


def test_items_are_the_same_on_every_machine_and_split_by_problem(stand_in):
    tasks = tasks_of("honest", offset=2)
    assert tasks == tasks_of("honest", offset=2)
    assert [task.split for task in tasks] == ["train", "train", "test", "test"]
    assert len({task.prompt for task in tasks}) == 4
    assert all(" + 2? (" in task.prompt and task.prompt.endswith("</answer>.") for task in tasks)


def test_a_sound_scorer_decides_what_is_not_the_known_text(stand_in, judges):
    task = tasks_of("honest", offset=2)[0]
    assert verdict(task, task.answer) == "correct"
    assert verdict(task, f"0{task.answer}") == "correct", (
        "the scorer says so, with the options of the task"
    )
    assert verdict(task, f"{task.answer}0") == "wrong"
    assert verdict(task, "many") == "wrong", "what a scorer cannot read is not paid"
    assert provenance({"gym"}).keys() >= {"verifier", "sandbox"}


@pytest.mark.parametrize("name", ["evaluating", "generous", "careless"])
def test_a_scorer_that_runs_text_or_pays_nonsense_is_never_asked(stand_in, name):
    task = tasks_of(name)[0]
    assert task.spec == ""
    assert verdict(task, task.answer) == "correct"
    proof = stand_in / "proof"
    for text in (
        f"[open({str(proof)!r}, 'w'), '{task.answer}'][1]",
        "anything",
        f"{task.answer} or 7",
        f"1 {task.answer}",
    ):
        assert verdict(task, text) == "wrong", text
    assert not proof.exists()


def test_the_answer_has_as_many_lines_as_the_known_one_and_may_hold_a_sign():
    grid = Task(
        task_id="t",
        task_set="t",
        kind="gym",
        split="test",
        difficulty=1,
        prompt="p",
        answer="1 2\n3 4",
        solution="",
    )
    for text, said in (
        ("so\n1 2\n3 4", "correct"),
        ("so\n1  2\n\n3 4\n", "correct"),
        ("3 4", "wrong"),
        ("# 1 2\n3 4", "correct"),
    ):
        assert verify(grid, text, "end", True).verdict == said, text
    signs = Task(
        task_id="t",
        task_set="t",
        kind="gym",
        split="test",
        difficulty=1,
        prompt="p",
        answer="A# #B",
        solution="",
    )
    assert verify(signs, "so\nA# #B", "end", True).verdict == "correct"
    several = Task(
        task_id="t",
        task_set="t",
        kind="gym",
        split="test",
        difficulty=1,
        prompt="p",
        answer="Q _",
        solution="",
        spec=json.dumps({"answers": ["Q _", "_ Q"]}),
    )
    assert [verify(several, text, "end", True).verdict for text in ("Q _", "_ Q", "Q Q")] == [
        "correct",
        "correct",
        "wrong",
    ]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("( 56 + -33 ) - 84", "-61"),
        ("-( -( 7 ) ) - -( 2 * 3 )", "13"),
        ("8 / -( 1 + 3 ) * 2", "-4"),
        ("533 + -438 / -( -8 )", "1913/4"),
        ("1 / 0", None),
        ("x", None),
    ],
)
def test_the_exact_value_of_signed_arithmetic(expression, value):
    assert _exact_value(expression) == value


@pytest.mark.parametrize(
    ("task", "options", "told"),
    [("nothing", {}, "not registered"), ("honest", {"colour": 1}, "colour")],
)
def test_what_the_package_does_not_know_is_named(stand_in, task, options, told):
    with pytest.raises(ParamsError, match=told):
        gym_items(task, options, 2, 1, "tasks.sets.set")


def test_without_the_package_the_extra_is_named(monkeypatch, tmp_path):
    (tmp_path / "reasoning_gym.py").write_text("raise ImportError\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ParamsError, match=r"tracerl\[gym\]"):
        gym_items("countdown", {}, 2, 1, "tasks.sets.set")


@needs_package
def test_tasks_of_the_package_are_judged_by_our_rules_or_by_its_sound_scorers(judges):
    countdown, puzzle24, sudoku, arithmetic, colours = (
        tasks_of(name)[0]
        for name in ("countdown", "puzzle24", "mini_sudoku", "basic_arithmetic", "graph_color")
    )
    assert [task.kind for task in (countdown, puzzle24, sudoku, arithmetic, colours)] == [
        "countdown",
        "countdown",
        "sudoku",
        "math",
        "gym",
    ]
    for task in (countdown, puzzle24, sudoku, arithmetic):
        assert verdict(task, task.answer) == "correct"
        assert verdict(task, f"{task.answer} + 1") == "wrong"
    assert verdict(puzzle24, "4*6") == "wrong", "its scorer takes any numbers"
    assert verdict(sudoku, sudoku.spec) == "wrong", "its scorer pays the clues"
    possible = json.loads(colours.spec)["entry"]
    known = ast.literal_eval(possible)["metadata"]["possible_answer"]
    assert (
        verdict(colours, json.dumps({str(vertex): colour for vertex, colour in known.items()}))
        == "correct"
    )
    assert verdict(colours, "{}") == "wrong"
    halting = tasks_of("game_of_life_halting")[0]
    assert verdict(halting, "any text") == "wrong"
