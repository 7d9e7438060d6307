"""The replication: the table of claims is complete, its pipeline is the one committed, its rule
decides crafted numbers rightly, one cell runs from end to end, and its page is a function of the
numbers.
"""

import copy
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from dvc.repo import Repo

from replication import judge, plan
from replication.cell import Work
from replication.grid import response_aligned
from replication.page import render, verdict_table
from replication.rule import HELD, NOT_HELD, UNDECIDED, UNTESTED, Rule
from stages.runtime.code import imported_files
from stages.runtime.curves import write_curve
from tests.reporting.synthetic_run import make_rollout, make_tasks
from tests.repository import git
from tests.rounds import METHOD_VALUES
from tests.tiny_run import ROOT, run_stage, tiny_params, write_params
from tracerl.disk import file_sha256, write_json
from tracerl.errors import DataError
from tracerl.models.families import FAMILIES
from tracerl.models.masks import PAD
from tracerl.models.tokenizer import character_tokenizer
from tracerl.objectives import plans, view_rows, views
from tracerl.store.files import rollout_table, write_rollouts
from tracerl.types import Trajectory

TABLE, DEFAULTS = plan.read_table(), plan.default_params()
FULL = plan.worlds(TABLE, "full", DEFAULTS)
RULE = Rule(**TABLE["rule"])
JUDGING = yaml.safe_load((ROOT / "replication" / "dvc.yaml").read_text())["stages"]


# The plan


def test_every_claim_says_what_refutes_it_and_its_cells_are_there_on_three_seeds() -> None:
    assert list(TABLE["claims"]) == [
        "sft",
        "rl",
        "value",
        "enlarge",
        "speed",
        "long",
        "order",
        "grid",
    ]
    assert TABLE["plans"]["full"]["seeds"] == [1, 2, 3]
    for claim in TABLE["claims"].values():
        assert claim["refuted_if"]
        assert claim["tests"]
        for test in claim["tests"]:
            assert test["refuted_below"] >= test["above"]
            mine = [one for one in FULL if one.family == test["family"]]
            assert len(mine) == 3
            assert all(
                judge.is_there(one, cell, test)
                for one in mine
                for cell in [*test["plus"], *test["minus"]]
            )


def test_what_is_shown_and_drawn_is_there_on_the_first_seed_at_least() -> None:
    for claim in TABLE["claims"].values():
        for test in claim["shown"]:
            first = next(one for one in FULL if one.family == test["family"])
            assert all(
                judge.is_there(first, cell, test) for cell in [*test["plus"], *test["minus"]]
            )
        for chart in claim["curves"]:
            first = next(one for one in FULL if one.family == chart["family"])
            assert set(chart["rounds"]) <= set(first.params["rl"])


def test_every_method_is_run_once_and_ablations_on_one_seed() -> None:
    assert {one["method"]["kind"] for one in FULL[0].params["rl"].values()} == set(METHOD_VALUES)
    wd1 = [one.seed for one in FULL if "wd1" in one.params["rl"]]
    assert wd1 == [1]


def test_every_round_is_asked_or_started_from() -> None:
    for one in FULL:
        used = {
            section.get("init") or section.get("checkpoint") for _, name, section in sections(one)
        }
        assert used >= {f"{kind}@{name}" for kind, name, _ in sections(one) if kind != "evaluate"}


def sections(one: plan.World) -> list[tuple[str, str, dict[str, Any]]]:
    return [(kind, name, one.params[kind][name]) for kind, name in plan.rounds_of(one)]


def test_a_look_shortens_what_is_compared_alike() -> None:
    fast = plan.worlds(TABLE, "fast", DEFAULTS)
    for small, whole in zip(fast, FULL[:2], strict=True):
        shares = [
            one["num_steps"] / whole.params["sft"][name]["num_steps"]
            for name, one in small.params["sft"].items()
        ]
        assert max(shares) / min(shares) < 1.01
        shares = [
            one["iterations"] / whole.params["rl"][name]["iterations"]
            for name, one in small.params["rl"].items()
        ]
        assert max(shares) / min(shares) < 1.02


def test_the_committed_pipelines_are_the_ones_the_table_asks_for(tmp_path: Path) -> None:
    plan.write(tmp_path)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("dvc.yaml")}
    kept = {
        path.relative_to(ROOT / "replication"): path.read_text()
        for path in (ROOT / "replication").rglob("dvc.yaml")
    }
    assert len(made) == 1 + 8
    assert kept == made, "run python -m replication.plan"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git keeps of replication/, after `python -m replication.plan`, beside code that Python
    has compiled."""
    top = tmp_path_factory.mktemp("copied")
    git(top, "init", "--quiet")
    folder = top / "replication"
    for name in (".dvc/config", ".dvcignore", ".gitignore"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "replication" / name, folder / name)
    for name in (".src", ".stages"):
        shutil.copyfile(ROOT / "replication" / name, folder / name, follow_symlinks=False)
    models = top / "src" / "tracerl" / "models"
    (models / "__pycache__").mkdir(parents=True)
    (models / "order.py").write_text("")
    (models / "__pycache__" / "order.cpython-311.pyc").write_bytes(b"compiled")
    plan.write(folder)
    return folder


def test_dvc_finds_every_cell(copied: Path) -> None:
    """It looks at nothing that git ignores."""
    every = [one for name in TABLE["plans"] for one in plan.worlds(TABLE, name, DEFAULTS)]
    found = [stage.addressing for stage in Repo(str(copied)).index.stages]
    assert len(found) == len(set(found)) == 2 + sum(5 + len(plan.rounds_of(one)) for one in every)


def test_what_python_compiles_is_no_part_of_what_a_cell_depends_on(copied: Path) -> None:
    stage = next(
        one
        for one in Repo(str(copied)).index.stages
        if one.addressing.endswith("sdar-1/dvc.yaml:code")
    )
    library = next(dep for dep in stage.deps if str(dep).endswith("tracerl"))
    library.save()
    assert library.meta.nfiles == 1


@pytest.mark.parametrize("kind", plan.KINDS)
def test_a_cell_depends_on_all_the_code_it_runs(kind: str) -> None:
    entry = plan.pipeline(FULL[0])["stages"][kind]
    deps = set(entry.get("do", entry)["deps"])
    assert f"data/code/{kind}.txt" in deps
    assert {"../../../cell.py", "../../../grid.py"} <= deps
    assert len([dep for dep in deps if dep.startswith("data/params/")]) == 1


@pytest.mark.parametrize("name", TABLE["plans"])
def test_the_judging_depends_on_all_the_code_it_runs(name: str) -> None:
    deps = JUDGING[f"judge-{name}"]["deps"]
    files = {
        path
        for file in ("judge.py", "page.py", "plan.py")
        for path in imported_files(ROOT / "replication" / file)
    }
    names = {
        f".{path.relative_to(ROOT)}"
        for path in files
        if path.name != "__init__.py" and path.is_relative_to(ROOT / "src")
    }
    assert len(names) > 5
    assert [
        path for path in names if not any(path == dep or path.startswith(f"{dep}/") for dep in deps)
    ] == []
    assert {"claims.yaml", "judge.py", "page.py", "page.html.j2", "plan.py"} <= set(deps)


def test_the_full_plan_fits_into_four_hours_of_two_cores() -> None:
    assert sum(plan.estimate_seconds(TABLE, one) for one in FULL) / 2 < 4 * 3600
    look = [plan.estimate_seconds(TABLE, one) for one in plan.worlds(TABLE, "fast", DEFAULTS)]
    assert max(sum(look) / 2, *look) < 20 * 60


# The rule

BOUNDS = {"above": 0.0, "refuted_below": 0.01, "budget": "equal"}


@pytest.mark.parametrize(
    ("difference", "compute", "verdict"),
    [
        (0.05, 1.0, HELD),
        (-0.05, 1.0, NOT_HELD),
        (0.005, 1.0, HELD),  # small, but there
        (0.05, 1.2, UNDECIDED),  # its favourite had more
        (-0.05, 1.2, NOT_HELD),  # it had more and lost
        (0.05, 0.7, HELD),  # it had less and won
        (-0.05, 0.7, UNDECIDED),  # it had less and lost
        (0.05, None, UNDECIDED),
    ],
)
def test_a_verdict_follows_from_the_seeds_and_the_budget(
    difference: float, compute: float | None, verdict: str
) -> None:
    comparison = judge.Comparison(
        test=BOUNDS,
        differences={1: difference, 2: difference + 1e-4, 3: difference - 1e-4},
        interval=(0.0, 0.0),
        compute=compute,
    )
    (judged,) = judge.judge_comparisons([comparison], RULE)
    assert judged.verdict == verdict
    assert bool(judged.why) == (verdict == UNDECIDED)
    of_its_own = replace(comparison, test={**BOUNDS, "budget": "own"})
    (judged,) = judge.judge_comparisons([of_its_own], RULE)
    assert judged.verdict == (HELD if difference > 0 else NOT_HELD)


def test_a_failed_cell_and_a_missing_precondition_are_said() -> None:
    comparison = judge.Comparison(
        test=BOUNDS, differences={1: 0.05, 2: 0.05}, interval=(0.0, 0.0), compute=1.0
    )
    failed, missing, fine = judge.judge_comparisons(
        [
            replace(comparison, differences={}, failure="a cell failed"),
            replace(comparison, missing="an arm does not learn"),
            comparison,
        ],
        RULE,
    )
    assert (failed.verdict, failed.why) == (UNDECIDED, "a cell failed")
    assert (missing.verdict, missing.why) == (UNTESTED, "an arm does not learn")
    assert (fine.verdict, fine.why) == (HELD, "")


def test_one_seed_has_an_interval_over_its_problems() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=400)
    low, high = judge.problem_interval(noise, RULE)
    assert high - low == pytest.approx(2 * 1.96 * noise.std() / 20, rel=0.1)
    assert judge.problem_interval(noise, RULE) == (low, high)
    assert judge.problem_interval(np.full(50, 0.25), RULE) == (0.25, 0.25)


def test_differences_pair_problems_that_all_sides_were_asked() -> None:
    ours: judge.Values
    theirs: judge.Values
    ours, theirs = (
        {("a", "1"): 1.0, ("a", "2"): 0.0},
        {("a", "2"): 1.0, ("a", "1"): 1.0, ("a", "3"): 0.0},
    )
    assert judge.differences([ours, theirs], [1, -1]).tolist() == [0.0, -1.0]
    with pytest.raises(DataError, match="not asked one problem in common"):
        judge.differences([ours, {}], [1, -1])


def test_roughness_is_what_the_trend_and_the_draw_of_problems_leave() -> None:
    exact = np.zeros(10)
    ramp = list(judge.roughness(np.arange(10.0), exact).values())
    assert ramp[2:-2] == [0.0] * 6
    assert judge.roughness(np.array([0.0, 0.0, 5.0, 0.0, 0.0]), exact[:5])[("2",)] == 16.0
    rng, still, moving = np.random.default_rng(1), [], []
    # A policy that stands still has no roughness, however few problems are drawn.
    noise = rng.uniform(0.5, 1.5, size=12)
    for _ in range(4000):
        drawn = rng.normal(scale=noise**0.5)
        still.append(np.mean(list(judge.roughness(drawn, noise).values())))
        moving.append(np.mean(list(judge.roughness(drawn + np.arange(12) % 2, noise).values())))
    assert np.mean(still) == pytest.approx(0.0, abs=4 * np.std(still) / 4000**0.5)
    wanted = np.mean(list(judge.roughness(np.arange(12.0) % 2, np.zeros(12)).values()))
    assert np.mean(moving) == pytest.approx(wanted, abs=4 * np.std(moving) / 4000**0.5)


# The grid


def trajectory(prompt: int, response: int) -> Trajectory:
    ids = np.arange(3, 3 + prompt + response, dtype=np.int32)
    nothing = np.zeros(response, dtype=np.float32)
    steps = np.arange(1, response + 1, dtype=np.int32)
    return Trajectory(
        prompt_ids=ids[:prompt],
        response_ids=ids[prompt:],
        step_map=steps,
        logprobs=nothing,
        filtered_logprobs=nothing,
        num_tokens=response,
        block_size=4,
        canvas_length=prompt + response,
        stop_reason="end",
    )


@pytest.mark.parametrize("prompt", [3, 5, 8])
def test_the_response_grid_counts_blocks_from_the_response_and_goes_with_its_cell(
    prompt: int,
) -> None:
    one, family = trajectory(prompt, 8), FAMILIES["sdar"]
    plain = (
        plans.trace_plan(one, 4, family, 1),
        view_rows.num_layout_tokens(one, plans.trace_plan(one, 4, family, 1), 4, family),
    )
    with response_aligned():
        shifted = plans.trace_plan(one, 4, family, 1)
        laid = views.build_views([one], [shifted], 4, family, mask_id=0)
    assert len(shifted.states) == 4  # two blocks of four steps, side by side
    seen = laid.layout.streams[0] != PAD
    clean = seen & (laid.layout.streams[0] == 0)
    wanted = np.floor((np.arange(prompt + 8) - prompt) / 4)
    assert (
        laid.layout.blocks[0][clean] - laid.layout.blocks[0][clean][prompt]
    ).tolist() == wanted.tolist()
    assert laid.input_ids[0][clean].tolist() == [*one.prompt_ids, *one.response_ids]
    assert sorted(laid.targets.tolist()) == one.response_ids.tolist()
    assert int((~seen).sum()) == -prompt % 4
    after = plans.trace_plan(one, 4, family, 1)
    assert (after.states == plain[0].states).all()
    assert view_rows.num_layout_tokens(one, after, 4, family) == plain[1]
    if prompt % 4 == 0:
        assert (shifted.states == plain[0].states).all()


# A cell


def test_a_killed_cell_counts_every_unit_once(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "work.jsonl"
    first = Work(path)
    for done in (1, 2, 3):
        first.note(done, 4, [done * 10, 0, 0, done * 100])
    path.write_text(path.read_text() + "[4, 4, 1")  # a kill in the middle of a line
    again = Work(path)
    again.note(3, 4, [10, 0, 0, 100])  # saved after unit 2: the third is done again
    assert again.total(numbered=True)["complete"] is False
    again.note(4, 4, [20, 0, 0, 200])
    assert again.total(numbered=True) == {
        "forwards": 40,
        "tokens": 0,
        "predicted": 0,
        "flops": 400,
        "complete": True,
    }
    again.note(2, 4, [20, 0, 0, 200])  # read from what is saved: it keeps its cost
    assert again.total(numbered=True)["forwards"] == 40
    # Killed before it published: nothing is left to do.
    assert Work(path).total(numbered=True) == again.total(numbered=True)


@pytest.fixture(scope="module")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    params = tiny_params()
    params["base"]["train"].update(num_steps=4)
    params["evaluation"].update(num_problems=4, modes={"static": {"order": {"kind": "static"}}})
    params["evaluate"] = {
        "base": {**params["evaluate"]["sft-short"], "checkpoint": "base", "tasks": ["sums-short"]}
    }
    write_params(folder, params)
    for cell in (("tasks", "-"), ("base", "-"), ("evaluate", "base")):
        run_stage(folder, "replication.cell", *cell, "sampler")
    return folder


def test_a_tiny_cell_leaves_its_outputs_and_a_record_of_what_went_in(tiny_world: Path) -> None:
    base, asked = (
        json.loads((tiny_world / "reports" / "records" / f"{name}.json").read_text())
        for name in ("base", "evaluate@base")
    )
    assert base["budget"]["complete"] is True
    assert base["budget"]["forwards"] >= 4
    assert base["budget"]["flops"] > 0
    assert asked["budget"]["forwards"] > 0
    weights = "data/checkpoints/base/model.safetensors"
    assert asked["inputs"][weights] == file_sha256(tiny_world / weights)
    assert re.fullmatch("[0-9a-f]{64}", asked["params_sha256"])
    assert asked["params_sha256"] != base["params_sha256"]
    assert list((tiny_world / "data" / "evals" / "base").glob("*.parquet"))


# The verdicts


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Three seeds in which `good` solves every problem and `bad` none, at 1 and 2 times the
    compute, and one claim for each verdict."""
    folder = tmp_path_factory.mktemp("judged")
    table = copy.deepcopy(TABLE)
    table["rule"]["resamples"] = 100
    table["plans"] = {"full": {**TABLE["plans"]["full"], "ablations": True}}
    cell = {"like": "rl.short", "changes": {"init": "base"}}
    table["families"] = {
        "sdar": {
            **TABLE["families"]["sdar"],
            "sft": {},
            "rl": {"good": cell, "bad": cell, "rare": {**cell, "one_seed": True}, "lost": cell},
        }
    }
    better = {
        "family": "sdar",
        "plus": ["rl-good"],
        "minus": ["rl-bad"],
        "metric": "accuracy",
        "remasking": "dynamic",
        **BOUNDS,
    }
    worse = {**better, "plus": ["rl-bad"], "minus": ["rl-good"], "budget": "own"}
    same = {**better, "plus": ["rl-bad"], "minus": ["rl-bad"]}
    lost = {**better, "plus": ["rl-lost"]}
    needs = {"plus": ["rl-bad"], "minus": ["rl-good"], "above": 0.0}
    elsewhere = {**better, "tasks": ["mixed"], "budget": "own"}
    rough = {**better, "metric": "roughness", "budget": "own", "refuted_below": 0.0}
    shown = {
        "family": "sdar",
        "plus": ["rl-rare"],
        "minus": ["rl-bad"],
        "metric": "tokens_per_step",
        "remasking": "dynamic",
        "budget": "own",
    }
    drawn = [
        {"family": "sdar", "remasking": "dynamic", "rounds": ["good", "bad"]},
        {"family": "sdar", "reward": True, "rounds": ["rare"]},
    ]
    says = {
        "says": "one <b> is better",
        "source": "here",
        "refuted_if": "never",
        "shown": [],
        "curves": [],
    }
    table["claims"] = {
        "yes": {**says, "tests": [better], "shown": [shown], "curves": drawn},
        "no": {**says, "tests": [better, worse]},
        "open": {**says, "tests": [better, rough, same, lost], "shown": [elsewhere]},
        "idle": {**says, "tests": [{**better, "needs": [needs]}]},
    }
    tokenizer = character_tokenizer()
    for one in plan.worlds(table, "full", DEFAULTS):
        root = folder / one.folder
        for name in one.params["rl"].keys() - {"lost"}:
            rows = [
                make_rollout(
                    task,
                    0,
                    f"evaluate@rl-{name}/dynamic",
                    0,
                    task.solution if name == "good" else "#",
                    tokenizer,
                )
                for task in make_tasks()
            ]
            write_rollouts(
                root / "data" / "evals" / f"rl-{name}" / "sums.parquet", rollout_table(rows)
            )
            for i in range(1, 8):
                write_rollouts(
                    root / "data" / "rollouts" / f"rl@{name}" / f"iter-{i:05d}.parquet",
                    rollout_table(rows),
                )
            write_curve(
                root / "reports" / "curves" / f"rl@{name}.tsv",
                [{"iteration": i, "reward": 0.1 * one.seed} for i in range(1, 8)],
            )
            points = [
                {
                    "iteration": i,
                    "remasking": "dynamic",
                    "accuracy": i / 10,
                    "ci_low": 0.0,
                    "ci_high": 1.0,
                }
                for i in (0, 7)
            ]
            write_curve(root / "reports" / "curves" / f"rl@{name}-held-out.tsv", points)
            budget = {
                "forwards": 7,
                "tokens": 70,
                "predicted": 7,
                "flops": 100 if name == "good" else 200,
                "complete": True,
            }
            record = {
                "stage": f"rl@{name}",
                "grid": "sampler",
                "params_sha256": "ab" * 32,
                "inputs": {"x": "cd" * 32},
                "budget": budget,
            }
            for stage in (f"rl@{name}", f"evaluate@rl-{name}"):
                write_json(
                    root / "reports" / "records" / f"{stage}.json", {**record, "stage": stage}
                )
    verdicts = judge.judge("full", folder, table, DEFAULTS)
    return verdicts, render(verdicts, judge.curves("full", folder, table, DEFAULTS), [1, 2, 3])


def test_verdicts_come_from_the_numbers(judged: tuple[dict[str, Any], str]) -> None:
    verdicts = judged[0]
    assert {name: claim["verdict"] for name, claim in verdicts["claims"].items()} == {
        "yes": "held",
        "no": "not held",
        "open": "undecided",
        "idle": "untested",
    }
    (idle,) = verdicts["claims"]["idle"]["comparisons"]
    assert idle["why"] == "rl-bad is not above rl-good"
    first, shown = verdicts["claims"]["yes"]["comparisons"]
    assert (first["difference"], first["ci_low"], first["ci_high"], first["compute"]) == (
        1.0,
        1.0,
        1.0,
        0.5,
    )
    assert first["by_seed"] == {"1": 1.0, "2": 1.0, "3": 1.0}
    assert (shown["verdict"], list(shown["by_seed"])) == ("shown", ["1"])
    open_ones = verdicts["claims"]["open"]["comparisons"]
    assert [one["verdict"] for one in open_ones] == [
        "held",
        "undecided",
        "undecided",
        "undecided",
        "shown",
    ]
    assert open_ones[2]["why"] == "both sides did alike on everything they were asked"
    assert (
        open_ones[3]["why"]
        == "sdar-1/rl-lost, sdar-2/rl-lost, sdar-3/rl-lost did not come to an end"
    )


def test_rows_hold_every_cell_seed_and_metric_with_its_budget(
    judged: tuple[dict[str, Any], str],
) -> None:
    rows = judged[0]["rows"]
    assert set(rows[0]) == {
        "claim",
        "cell",
        "seed",
        "metric",
        "value",
        "ci_low",
        "ci_high",
        "budget_forwards",
    }
    good = [row for row in rows if row["claim"] == "yes" and row["cell"] == "sdar/rl-good"]
    assert [(row["seed"], row["metric"], row["value"], row["budget_forwards"]) for row in good] == [
        (seed, "accuracy, dynamic", 1.0, 7) for seed in (1, 2, 3)
    ]
    assert len(judged[0]["cells"]) == 14
    assert all(
        record["params_sha256"] and record["inputs"] for record in judged[0]["cells"].values()
    )


def test_the_page_says_the_verdicts_and_needs_nothing_but_itself(
    judged: tuple[dict[str, Any], str],
) -> None:
    page = judged[1]
    assert [
        re.sub("<.*?>", "", cell)
        for cell in re.findall(
            r'<td class="name (?:held|not-held|undecided|untested)">(.*?)</td>', page
        )
    ] == [
        "held",
        "not held",
        "undecided",
        "untested",
    ]
    assert "one &lt;b&gt; is better" in page
    assert page.count('<svg class="chart"') == 2
    assert page.count("<polygon") == 3
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)
    assert "<script" not in page


def test_the_readme_says_the_verdicts_of_the_committed_run() -> None:
    shown = (
        (ROOT / "README.md")
        .read_text()
        .split("<!-- replication:begin -->")[1]
        .split("<!-- replication:end -->")[0]
    )
    found = json.loads((ROOT / "reports" / "metrics" / "replication.json").read_text())["claims"]
    assert shown.strip() == verdict_table([found[name] for name in TABLE["claims"]]), (
        "put what `make replicate` says between the markers"
    )
