"""The plan is the DVC graph's, an override changes what it names and nothing else, and one flow at
a time works in a folder."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.workspace import (
    flow_lock,
    override_params,
    read_plan,
    restore_params,
    wait_for_plain_dvc,
    wait_for_runs,
    write_overrides,
)
from tests.flows.project import NUM_WIDE, make_project
from tests.tiny_run import ROOT
from tracerl.errors import ParamsError, TracerlError

SHIPPED = (ROOT / "params.yaml").read_text()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    make_project(folder)
    return folder


def test_the_plan_is_the_graph_of_dvc(project: Path) -> None:
    plan = read_plan(project)
    wide = [f"wide@{i}" for i in range(NUM_WIDE)]
    assert set(plan) == {"start", "slow", "fragile", "after", "report", *wide}
    assert plan["report"].needs == tuple(sorted(wide))
    assert plan["report"].pages == ("reports/report.html",)
    assert plan["slow"].metrics == ("reports/metrics/slow.json",)
    assert plan["slow"].tags == ("gpu",)
    assert (plan["start"].description, plan["slow"].description) == (
        "The first stage",
        "python slow.py",
    )
    place = list(plan).index
    assert all(place(need) < place(name) for name, stage in plan.items() for need in stage.needs)


def test_a_plan_for_targets_holds_what_they_need(project: Path) -> None:
    assert list(read_plan(project, ["after"])) == ["start", "fragile", "after"]
    assert set(read_plan(project, ["wide", "slow"])) == {
        "start",
        "slow",
        *(f"wide@{i}" for i in range(NUM_WIDE)),
    }
    with pytest.raises(
        ParamsError, match=r"no stage of this name(?s:.*)got: evaluat\n.*after, fragile"
    ):
        read_plan(project, ["after", "evaluat"])
    with pytest.raises(ParamsError, match="did you mean wide@1\\?"):
        read_plan(project, ["wide.1"])


def test_the_real_pipeline_ends_in_the_report() -> None:
    plan = read_plan(ROOT)
    assert list(plan)[-1] == "report"
    assert "rl@long" in plan["evaluate@rl-long"].needs
    assert plan["report"].pages == ("reports/report.html", "reports/traces.html")


def flat(tree: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if isinstance(tree, dict):
        return {
            key: value
            for name, part in tree.items()
            for key, value in flat(part, (*path, str(name))).items()
        }
    return {path: tree}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 7),
        ("base.path", "data/raw/model"),
        ("base.train.block_sizes.4", 0.5),
        ("traces.sampler.max_new_tokens", 40),
        ("evaluate.sft-short.sampler.max_new_tokens", 40),
        ("defaults.rl.group_size", 4),
        ("rl.short.optimizer.lr", 1.5e-4),
        ("rl.wide.sampler.max_new_tokens", 40),
        ("defaults.sampler.order.threshold", 0.5),
        ("rl.long.tasks", {"sums-long": 1}),
    ],
)
def test_an_override_changes_its_key_and_no_other(key: str, value: Any) -> None:
    before = flat(YAML(typ="safe", pure=True).load(SHIPPED))
    after = flat(YAML(typ="safe", pure=True).load(override_params(SHIPPED, {key: value})))
    path = tuple(key.split("."))
    wanted = {name: old for name, old in before.items() if name[: len(path)] != path} | flat(
        value, path
    )
    assert after == wanted


def test_an_override_of_what_is_not_shared_keeps_the_file_as_it_is() -> None:
    before, after = SHIPPED.splitlines(), override_params(SHIPPED, {"seed": 7}).splitlines()
    changed = [
        (old, new) for old, new in zip(before, after, strict=True) if old.split() != new.split()
    ]
    assert ("seed: 1", "seed: 7") in changed
    assert all(old.startswith("seed") or "null" in old for old, _ in changed)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"rl.shrot.groups": 4},
            r"names no key(?s:.*)rl.shrot.groups(?s:.*)got: shrot(?s:.*)wanted: short, long",
        ),
        ({"seed.x": 4}, r"names no key"),
        ({"rl.short.groups": "many"}, r"rl.short.groups: Input should be a valid integer"),
        ({"rl.short.iterations": -1}, r"rl.short.iterations: Input should be greater than"),
    ],
)
def test_a_wrong_override_is_an_error_that_names_it(
    overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParamsError, match=message):
        override_params(SHIPPED, overrides)


def ignore(_: str) -> None:
    """Takes a message."""


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A folder with the shipped params file."""
    (tmp_path / "params.yaml").write_text(SHIPPED)
    return tmp_path


def test_overrides_are_for_one_run(shipped: Path) -> None:
    write_overrides(shipped, {"seed": 7})
    assert "seed: 7" in (shipped / "params.yaml").read_text()
    said: list[str] = []
    restore_params(shipped, said.append)
    assert (shipped / "params.yaml").read_text() == SHIPPED
    restore_params(shipped, said.append)
    assert (shipped / "params.yaml").read_text() == SHIPPED
    assert said == []


def test_what_is_edited_during_a_run_with_overrides_stays(shipped: Path) -> None:
    params = shipped / "params.yaml"
    write_overrides(shipped, {"seed": 7})
    params.write_text(params.read_text().replace("drift: 0.5", "drift: 0.25"))
    said: list[str] = []
    restore_params(shipped, said.append)
    assert params.read_text() == SHIPPED.replace("drift: 0.5", "drift: 0.25")
    assert len(said) == 1
    assert "the edits stay, the overrides go" in said[0]


def test_an_edit_of_an_overridden_key_wins(shipped: Path) -> None:
    params = shipped / "params.yaml"
    write_overrides(shipped, {"seed": 7})
    params.write_text(params.read_text().replace("seed: 7", "seed: 8"))
    restore_params(shipped, ignore)
    assert params.read_text() == SHIPPED.replace("seed: 1", "seed: 8", 1)


def test_a_wrong_override_leaves_the_file_alone(shipped: Path) -> None:
    with pytest.raises(ParamsError):
        write_overrides(shipped, {"seed": -1})
    assert (shipped / "params.yaml").read_text() == SHIPPED
    assert not (shipped / ".dvc").exists()


def test_a_second_flow_in_a_folder_waits_for_the_first(project: Path) -> None:
    order, said = list[str](), list[str]()
    entered = threading.Event()

    def second() -> None:
        with flow_lock(project, "second", said.append):
            order.append("second")

    thread = threading.Thread(target=second)
    with flow_lock(project, "first-run", said.append):
        thread.start()
        entered.wait(1.5)
        order.append("first")
    thread.join(timeout=30)
    assert order == ["first", "second"]
    assert said == [
        f"Waiting: another flow run works in this folder (first-run, process {os.getpid()})"
    ]


def test_a_folder_without_dvc_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TracerlError, match="not a DVC project"), flow_lock(tmp_path, "x", print):
        pass


@pytest.mark.parametrize(
    ("words", "told"), [(["dvc", "repro"], "dvc repro"), (["-m", "stages.rl"], "stages.rl")]
)
def test_a_run_waits_for_what_a_killed_runner_left_behind(
    project: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    """In this folder, and for no other folder."""
    command = [sys.executable, "-c", "import time; time.sleep(1.5)", *words]
    said: list[str] = []
    elsewhere = subprocess.Popen(command, cwd=tmp_path)
    wait_for_runs(project, said.append)
    assert elsewhere.poll() is None
    assert said == []
    orphan = subprocess.Popen(command, cwd=project)
    wait_for_runs(project, said.append)
    assert orphan.wait() == 0
    assert said == [
        f"Waiting: another run is at work in this folder ({told}, process {orphan.pid})"
    ]
    elsewhere.wait()


def test_params_are_not_changed_under_a_running_dvc(project: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(2)"])
    lock = project / ".dvc" / "tmp" / "rwlock"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text(
        json.dumps(
            {"write": {"data/slow.txt": {"pid": program.pid, "cmd": "dvc repro"}}, "read": {}}
        )
    )
    said: list[str] = []
    reaper = threading.Thread(target=program.wait)
    reaper.start()
    wait_for_plain_dvc(project, said.append)
    reaper.join()
    assert program.returncode == 0, "it did not wait"
    assert said == [
        f"Waiting: another DVC process runs stages in this folder (process {program.pid})"
    ]
    lock.unlink()
    wait_for_plain_dvc(project, said.append)
    assert len(said) == 1
