"""Great Expectations passes sound data and is seen failing on a crafted file for every expectation
there is."""

import json

import pytest

from tests.store.crafted import BREAKS, VOCAB_SIZE, as_table, sound
from tests.tiny_run import fails, run_stage, tiny_params, write_params
from tracerl.errors import DataError
from tracerl.settings.evaluation import Validation
from tracerl.store.expectations import (
    FILES_RULE,
    Evidence,
    Violation,
    accepted_metrics,
    check_expectations,
    collect_evidence,
    group_metrics,
)
from tracerl.store.parquet import seal, write_parquet
from tracerl.store.rules import RULES, SET_RULES, SET_WARNINGS
from tracerl.store.schema import DATASETS, SCHEMAS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BOUNDS = Validation(pass_rate=(0.1, 0.9), truncation=0.2, undecided=0.1, drift=0.5)
PLACES = {
    "tasks": "tasks",
    "traces": "traces",
    "rollouts": "rollouts/rl@short",
    "evals": "evals/short",
}


def write(root, dataset, rows, tasks=None):
    """A run of one data set and the tasks it belongs to, which are of the split it needs."""
    tasks = tasks or [
        {**row, "split": "test" if dataset == "evals" else "train"} for row in sound("tasks")
    ]
    for name, table_rows in {"tasks": tasks, dataset: rows}.items():
        write_parquet(
            root / "data" / PLACES[name] / "mixed.parquet",
            as_table(DATASETS[name].table, table_rows),
        )
        seal(root / "data" / PLACES[name])
    return root


def rows_of(dataset):
    return sound(DATASETS[dataset].table)


def failed(evidence, bounds=BOUNDS):
    """Names of the expectations that do not hold, with what was found."""
    return {
        outcome.name: outcome
        for outcome in check_expectations(evidence, bounds)
        if not outcome.success
    }


@pytest.mark.parametrize("dataset", DATASETS)
def test_sound_data_pass_and_every_expectation_has_words(dataset, tmp_path):
    outcomes = check_expectations(
        collect_evidence(write(tmp_path, dataset, rows_of(dataset)), dataset, VOCAB_SIZE, {}),
        BOUNDS,
    )
    assert [outcome.name for outcome in outcomes if not outcome.success] == []
    assert all(outcome.says for outcome in outcomes)
    rules = {
        FILES_RULE,
        *(rule.name for rule in RULES[DATASETS[dataset].table]),
        *SET_RULES[dataset],
        *SET_WARNINGS[dataset],
    }
    figures = {"drift"} if dataset == "tasks" else {"pass_rate", "truncation", "undecided", "drift"}
    assert {outcome.name for outcome in outcomes} == {"columns", "rows", *rules, *figures}


@pytest.mark.parametrize("table", RULES)
def test_great_expectations_fails_every_rule_that_rows_break(table, tmp_path):
    """One file in which each row breaks another rule; tests/store/test_rules.py shows them one by
    one."""
    rows = []
    for i, (name, change) in enumerate(BREAKS[table].items()):
        row = sound(table)[0]
        key = "task_id" if table == "tasks" else "rollout_id"
        own = {"prompt": f"{row['prompt']}{i}"} if table == "tasks" else {"sample_index": i}
        rows.append(change({**row, **own, key: f"{row['task_set']}/{i}"}))
        assert name
    dataset = "tasks" if table == "tasks" else "rollouts"
    root = tmp_path
    if dataset == "tasks":
        write_parquet(root / "data" / "tasks" / "mixed.parquet", as_table("tasks", rows))
        seal(root / "data" / "tasks")
    else:
        write(root, dataset, rows)
    found = failed(collect_evidence(root, dataset, VOCAB_SIZE, {}))
    assert set(BREAKS[table]) <= set(found)
    assert all(found[name].count >= 1 and found[name].first for name in BREAKS[table])


CROSS = {
    "ids_are_unique": lambda rows: [rows[0], *rows],
    "responses_are_unique": lambda rows: [{**rows[0], "rollout_id": "another"}, *rows],
    "tasks_are_known": lambda rows: [{**rows[0], "task_id": "mixed/none"}, *rows[1:]],
}


@pytest.mark.parametrize("dataset", ["traces", "rollouts", "evals"])
def test_great_expectations_fails_every_rule_between_responses(dataset, tmp_path):
    for name, change in CROSS.items():
        found = failed(
            collect_evidence(
                write(tmp_path / name, dataset, change(rows_of(dataset))), dataset, VOCAB_SIZE, {}
            )
        )
        assert name in found
        assert found[name].count == 1
    other = [{**row, "split": "train" if dataset == "evals" else "test"} for row in sound("tasks")]
    found = failed(
        collect_evidence(
            write(tmp_path / "split", dataset, rows_of(dataset), other), dataset, VOCAB_SIZE, {}
        )
    )
    assert found["splits_are_kept"].count == len(rows_of(dataset))


def held_out_rows(correct):
    """Four held-out problems asked once at each iteration. correct: iteration -> how many of them
    are answered correctly."""
    rows = []
    for iteration, number in correct.items():
        for i in range(4):
            verdict = "correct" if i < number else "wrong"
            row = {**rows_of("rollouts")[0], "stage": "rl@short/held-out-static"}
            paid = float(verdict == "correct")
            row |= {"iteration": iteration, "task_id": f"mixed/{i}", "verdict": verdict}
            row |= {"reward": paid, "reward_parts": {"correct": paid}, "sample_index": 0}
            rows.append({**row, "rollout_id": f"{iteration}/{i}"})
    return rows


@pytest.mark.parametrize(
    ("correct", "declines"),
    [
        ({0: 3, 5: 4, 10: 1}, True),  # 0.75 with a half-width of 0.42, then 0.25
        ({0: 3, 5: 0, 10: 2}, False),
        ({0: 4, 10: 3}, True),  # all correct: an interval without width
        ({0: 1, 10: 4}, False),
        ({0: 2}, False),
    ],
)
def test_a_round_that_ends_below_its_start_is_warned_of(correct, declines, tmp_path):
    evidence = collect_evidence(
        write(tmp_path, "rollouts", held_out_rows(correct)), "rollouts", VOCAB_SIZE, {}
    )
    found = evidence.violations["rounds_end_no_lower"]
    assert found.first == (["rl@short/held-out-static"] if declines else [])
    outcomes = {one.name: one for one in check_expectations(evidence, BOUNDS)}
    outcome = outcomes["rounds_end_no_lower"]
    assert (outcome.success, outcome.severity) == (not declines, "warning")


def test_great_expectations_fails_every_rule_between_tasks(tmp_path):
    first, *others = sound("tasks")
    crafted = {
        "ids_are_unique": [first, first, *others],
        "splits_do_not_overlap": [
            first,
            {**first, "task_id": "mixed/test", "split": "test", "prompt": " 4 + 7 + 5 ="},
            *others,
        ],
        "answers_agree": [first, {**first, "task_id": "mixed/again", "answer": "17"}, *others],
    }
    assert set(crafted) == set(SET_RULES["tasks"])
    for name, rows in crafted.items():
        write_parquet(tmp_path / name / "data" / "tasks" / "mixed.parquet", as_table("tasks", rows))
        seal(tmp_path / name / "data" / "tasks")
        assert name in failed(collect_evidence(tmp_path / name, "tasks", None, {}))


def evidence(dataset="rollouts", columns=None, **figures):
    """Evidence of sound rows with some figures changed."""
    group = {
        "group": "rl@short",
        "num_rows": 8,
        "pass_rate": 0.5,
        "truncation": 0.0,
        "undecided": 0.0,
        "mean_length": 9.0,
        "drift": None,
    }
    names = columns or SCHEMAS["rollouts"].names
    return Evidence(
        dataset=dataset,
        columns=names,
        violations={FILES_RULE: Violation(says="files")},
        groups=[{**group, **figures}],
    )


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("pass_rate", 0.05),
        ("pass_rate", 0.95),
        ("truncation", 0.3),
        ("undecided", 0.2),
        ("drift", 0.6),
    ],
)
def test_great_expectations_fails_figures_out_of_bounds_and_names_the_group(figure, value):
    found = failed(evidence(**{figure: value}))
    assert list(found) == [figure]
    assert found[figure].first == [f"{value}, rl@short"] or found[figure].first == [
        f"rl@short, {value}"
    ]
    assert found[figure].severity == ("warning" if figure == "drift" else "critical")


def test_great_expectations_fails_other_columns_no_rows_and_bad_files(tmp_path):
    assert list(failed(evidence(columns=SCHEMAS["rollouts"].names[1:]))) == ["columns"]
    empty = Evidence(
        dataset="rollouts", columns=SCHEMAS["rollouts"].names, violations={}, groups=[]
    )
    assert list(failed(empty)) == ["rows"]
    root = write(tmp_path, "rollouts", rows_of("rollouts"))
    path = root / "data" / PLACES["rollouts"] / "mixed.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    found = failed(collect_evidence(root, "rollouts", VOCAB_SIZE, {}))
    assert str(path) in found[FILES_RULE].first[0]


def test_drift_is_the_largest_relative_change_against_the_accepted_run(tmp_path):
    root = write(tmp_path, "rollouts", rows_of("rollouts"))
    (group,) = collect_evidence(root, "rollouts", VOCAB_SIZE, {}).groups
    assert group["drift"] is None
    baseline = group_metrics([{**group, "mean_length": 2 * group["mean_length"]}])
    (again,) = collect_evidence(root, "rollouts", VOCAB_SIZE, baseline).groups
    assert again["drift"] == pytest.approx(0.5)
    assert set(baseline["rl@short"]) == set(group) - {"group", "drift"}


# The stage


@pytest.fixture(scope="module")
def tasks_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_params(folder, tiny_params())
    run_stage(folder, "tasks")
    return folder


def test_the_stage_opens_the_gate_for_sound_data_and_shuts_it_for_others_naming_rule_count_and_rows(
    tasks_folder,
):
    target = tasks_folder / "reports" / "validation"
    run_stage(tasks_folder, "validate", "tasks")
    first = {path.name: path.read_bytes() for path in target.iterdir()}
    assert sorted(first) == ["tasks.html", "tasks.json", "tasks.passed"]
    assert json.loads(first["tasks.json"])["success"] is True
    for path in (tasks_folder / "data" / "tasks").iterdir():
        path.unlink()
    rows = sound("tasks")
    rows[1] = {**rows[0], "task_id": "mixed/leak", "split": "test"}
    write_parquet(tasks_folder / "data" / "tasks" / "mixed.parquet", as_table("tasks", rows))
    seal(tasks_folder / "data" / "tasks")
    output = fails(tasks_folder, "validate", "tasks")
    assert (
        "critical: tasks: not true: no test problem is also a train problem, whatever its "
        "capitals and "
        "spaces; 1 do not, first mixed/leak" in output
    )
    assert not (target / "tasks.passed").exists()
    assert json.loads((target / "tasks.json").read_text())["success"] is False
    assert "mixed/leak" in (target / "tasks.html").read_text()
    with pytest.raises(DataError, match="did not pass"):
        accepted_metrics(target)


def test_a_data_set_that_does_not_exist_is_told(tasks_folder):
    assert "no data set of this name" in fails(tasks_folder, "validate", "task")


def test_a_run_that_asks_for_no_traces_passes_without_any_and_no_other_does(tmp_path):
    """Most profiles train by RL from a published checkpoint and collect none."""
    params = tiny_params()
    params["sft"] = {}
    params["rl"] = {"short": {**params["rl"]["short"], "init": "base"}}
    params["evaluate"] = {}
    seal(tmp_path / "data" / "traces")
    asked = params["traces"]
    params["traces"] = {**asked, "preferred": {}, "rollouts": {}}
    write_params(tmp_path, params)
    run_stage(tmp_path, "validate", "traces")
    assert (tmp_path / "reports" / "validation" / "traces.passed").is_file()
    write_params(tmp_path, {**params, "traces": asked})
    assert "there are rows" in fails(tmp_path, "validate", "traces")
