"""The flows on a real Prefect server with a real worker, over a small pipeline, read back through
the API and seen in a browser.

One server for all tests, one history: the tests run in their order, each from where the one before
it left the project.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.chromium import Page, browser
from tests.flows.project import NUM_WIDE, command, make_project, slow_processes, slow_value
from tests.flows.served import Served, serving, wait_for
from tests.repository import commit, git

pytestmark = pytest.mark.timeout(1800)

STAGES = {"start", "slow", "fragile", "after", "report", *(f"wide@{i}" for i in range(NUM_WIDE))}
WIDE = [f"wide@{i}" for i in range(NUM_WIDE)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served") / "project"
    folder.mkdir()
    make_project(folder)
    with serving(folder) as running:
        yield running


@pytest.fixture(scope="module")
def first_run(served: Served) -> str:
    """The first run of everything, with all twelve independent stages at once; then everything it
    made is committed."""
    run, state = served.finished(max_parallel=16)
    assert state["type"] == "COMPLETED", [state, served.messages(run)]
    commit(served.folder, "ran")
    return run


def dvc(served: Served, *arguments: str) -> str:
    done = command(served.folder, "dvc", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lock(served: Served) -> Any:
    return yaml.safe_load((served.folder / "dvc.lock").read_text())


def test_every_stage_is_a_task_that_says_it_ran(served: Served, first_run: str) -> None:
    outcomes = served.outcomes(first_run)
    assert outcomes == dict.fromkeys(STAGES, "Ran")
    assert served.state(first_run)["message"] == f"{len(STAGES)} Ran"


def test_twelve_stages_at_once_lose_nothing_to_locks(served: Served, first_run: str) -> None:
    tasks = served.tasks(first_run)
    starts, ends = (
        [tasks[name]["start_time"] for name in WIDE],
        [tasks[name]["end_time"] for name in WIDE],
    )
    assert max(starts) < min(ends), "they did not run at the same time"
    assert set(lock(served)["stages"]) == set(tasks)
    assert "up to date" in dvc(served, "status")


def test_tasks_wait_for_what_their_stages_need(served: Served, first_run: str) -> None:
    tasks = served.tasks(first_run)
    names = {task["id"]: name for name, task in tasks.items()}
    needs = {
        name: {names[parent["id"]] for parent in task["task_inputs"].get("wait_for", [])}
        for name, task in tasks.items()
    }
    assert needs["start"] == needs["slow"] == set()
    assert needs["wide@3"] == needs["fragile"] == {"start"}
    assert needs["after"] == {"fragile"}
    assert needs["report"] == set(WIDE)


def test_a_stages_output_is_in_its_log_the_whole_of_it_in_a_file(
    served: Served, first_run: str
) -> None:
    messages = [message for message in served.messages(first_run) if "start says" in message]
    (folder,) = (served.folder / "logs").iterdir()
    written = (folder / "start.log").read_text()
    assert [f"start says {i}\n" in written for i in range(200)] == [True] * 200
    assert "start says 0" in messages
    assert 10 < len(messages) < 100, "the UI gets the beginning, not every line"


def test_artifacts_show_metrics_progress_and_pages(served: Served, first_run: str) -> None:
    artifacts = served.artifacts(first_run)
    assert {
        "metrics-start",
        "metrics-slow",
        "metrics-wide-0",
        "progress-slow",
        "stages",
        "reports-report-html",
    } <= set(artifacts)
    assert artifacts["progress-slow"]["data"] == 100.0
    assert "slow: 2 of 2, reward" in artifacts["progress-slow"]["description"]
    link = f"http://127.0.0.1:{served.port + 1}/reports/report.html"
    assert link in artifacts["reports-report-html"]["data"]
    table = json.loads(artifacts["metrics-slow"]["data"])
    assert table == [
        {
            "file": "reports/metrics/slow.json",
            "metric": "value",
            "now": str(slow_value(2)),
            "last commit": "",
            "change": "",
        }
    ]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures of pages go. SCREENSHOTS=docs/images python -m pytest
    tests/flows/test_served.py makes those of the docs anew."""
    return Path(os.environ.get("SCREENSHOTS", tmp_path))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path) as tab:
        yield tab


def test_the_run_page_shows_bars_dependencies_and_artifacts(
    served: Served, first_run: str, page: Page, pictures: Path
) -> None:
    page.open(f"{served.ui}/runs/flow-run/{first_run}", 1500, 1100)
    page.wait_for_words(
        "Task Runs", "Artifacts", f"{len(STAGES)} Task runs", "Completed", "start says 0"
    )
    # The graph is painted on a canvas: a bar for each stage in the green of what has completed, and
    # grey lines between them.
    wait_for(lambda: page.painted(33, 161, 78) > 5000, "the bars of the stages", 90)
    page.screenshot(pictures / "run.png")
    nodes = dict(served.get(f"/flow_runs/{first_run}/graph-v2")["nodes"])
    (report,) = [node for node in nodes.values() if node["label"] == "report"]
    assert {nodes[parent["id"]]["label"] for parent in report["parents"]} == set(WIDE)
    page.click("Artifacts")
    page.wait_for_words("metrics-slow", "reports-report-html", "progress-slow")
    page.screenshot(pictures / "artifacts.png")
    assert troubles(page) == []


def test_the_deployment_page_shows_the_schedule(served: Served, page: Page, pictures: Path) -> None:
    page.open(f"{served.ui}/deployments/deployment/{served.deployment('full')['id']}", 1500, 1100)
    page.wait_for_words(
        "Schedules",
        "At 08:00 PM",
        "Friday",
        "Next Run",
        "auto-scheduled",
        "flows/pipeline.py:pipeline",
    )
    page.screenshot(pictures / "deployment.png")
    page.click("Parameters")
    page.wait_for_words("targets", "overrides", "max_parallel", "retries")
    assert troubles(page) == []


def test_the_pages_server_gives_reports_and_nothing_else(served: Served, first_run: str) -> None:
    base = f"http://127.0.0.1:{served.port + 1}"
    assert httpx.get(f"{base}/reports/report.html").text == "<h1>The report</h1>"
    for path in (
        "/params.yaml",
        "/reports/../params.yaml",
        "/reports/%2e%2e/params.yaml",
        "/.prefect/prefect.db",
        "/",
    ):
        assert httpx.get(f"{base}{path}").status_code == 404, path


def troubles(page: Page) -> list[str]:
    """Errors of the console. Prefect's server has no icons to give, which is nobody's fault
    here."""
    errors = [error for error in page.errors if not error.startswith("warning: ")]
    return [error for error in errors if "/favicon.ico" not in error and "/ico/" not in error]


def test_a_failure_names_the_stage_keeps_its_metrics_and_spares_the_rest(
    served: Served, first_run: str
) -> None:
    (served.folder / "data" / "raw" / "break").touch()
    before = (served.folder / "params.yaml").read_text()
    run, state = served.finished(targets=["after"], overrides={"seed": 2}, retries=1)
    assert (served.folder / "params.yaml").read_text() == before, "a run has its own params"
    (served.folder / "data" / "raw" / "break").unlink()
    assert state["type"] == "FAILED"
    assert "Failed: fragile" in state["message"]
    outcomes = served.outcomes(run)
    assert outcomes == {"start": "Ran", "fragile": "Failed", "after": "NotReady"}
    task = served.tasks(run)["fragile"]
    assert task["run_count"] == 1, "an error that the stage explains would come again"
    assert "fragile found something to break on" in task["state"]["message"]
    (row,) = json.loads(served.artifacts(run)["metrics-fragile"]["data"])
    assert row == {
        "file": "reports/metrics/fragile.json",
        "metric": "score.seed",
        "now": "2",
        "last commit": "1",
        "change": "+1",
    }
    assert not [text for text in served.messages(run) if "Traceback" in text or "NoneType" in text]
    assert json.loads(served.artifacts(run)["overrides"]["data"]) == [
        {"param": "seed", "value": "2"}
    ]
    assert (served.folder / "params.yaml").read_text().startswith("# The params of the test\n")
    assert {entry["state"] for entry in json.loads(served.artifacts(run)["stages"]["data"])} == {
        "Ran",
        "Failed",
        "NotReady",
    }


@pytest.mark.slow
def test_a_schedule_added_as_in_the_ui_fires_and_what_ran_before_is_restored(
    served: Served, first_run: str
) -> None:
    deployment = served.deployment("full")
    assert [schedule["schedule"]["cron"] for schedule in deployment["schedules"]] == ["0 20 * * 5"]
    git(served.folder, "checkout", "params.yaml")
    schedules = f"/deployments/{deployment['id']}/schedules"
    every_minute = {
        "schedule": {"interval": 60, "anchor_date": "2026-01-01T00:00:00Z"},
        "active": True,
        "slug": "soon",
        "parameters": {"targets": ["after"]},
    }
    (added,) = served.post(schedules, [every_minute])

    def scheduled() -> Any:
        runs = served.post(
            "/flow_runs/filter", {"deployments": {"id": {"any_": [deployment["id"]]}}, "limit": 200}
        )
        # A minute that comes while the one before is busy is cancelled: one run of a deployment at
        # a time.
        return [
            run
            for run in runs
            if run["auto_scheduled"] and run["state"]["type"] not in {"SCHEDULED", "CANCELLED"}
        ]

    run = wait_for(scheduled, "a scheduled run", 300)[0]
    served.delete(f"{schedules}/{added['id']}")
    state = served.ended(run["id"])
    assert state["type"] == "COMPLETED", served.messages(run["id"])
    outcomes = served.outcomes(run["id"])
    assert outcomes == {"start": "Restored", "fragile": "Restored", "after": "Cached"}
    assert git(served.folder, "status", "--porcelain", "dvc.lock", "reports") == ""


@pytest.mark.slow
def test_a_grid_makes_each_experiment_once_and_compares_them(
    served: Served, first_run: str
) -> None:
    before = git(served.folder, "status", "--porcelain")
    grid = {"rl.short.iterations": [3, 4]}
    run, state = served.finished("grid", grid=grid, targets=["slow"], max_parallel=2)
    assert state["type"] == "COMPLETED", served.messages(run)
    assert set(served.outcomes(run).values()) == {"Ran"}
    again, state = served.finished("grid", grid=grid, targets=["slow"])
    assert state["message"] == "2 of 2 experiments are there"
    assert set(served.outcomes(again).values()) == {"Cached"}
    table = served.artifacts(again)["experiments-grid"]["data"]
    assert "| rl.short.iterations | slow value |" in table
    assert f"| 3 | {slow_value(3)} |" in table
    assert f"| 4 | {slow_value(4)} |" in table
    assert (served.folder / "reports" / "experiments" / "grid.html").read_text().count(
        "<polyline"
    ) == 1
    assert not list((served.folder / ".dvc" / "tmp" / "cells").iterdir())
    assert git(served.folder, "status", "--porcelain") == before + "?? reports/experiments/\n", (
        "the workspace was touched"
    )


@pytest.mark.slow
def test_dvcs_own_commands_know_the_experiments_and_what_changed(
    served: Served, first_run: str
) -> None:
    names = dvc(served, "exp", "list", "--name-only").split()
    assert len(names) == 2
    (three,) = [name for name in names if "iterations-3" in name]
    assert three in dvc(served, "exp", "show", "--md")
    change = json.loads(dvc(served, "exp", "diff", "HEAD", three, "--json"))
    assert change["metrics"]["reports/metrics/slow.json"]["value"]["new"] == slow_value(3)
    assert change["params"]["params.yaml"]["rl.short.iterations"] == {"old": 2, "new": 3, "diff": 1}
    assert json.loads(dvc(served, "params", "diff", "HEAD", three, "--json"))["params.yaml"]
    assert json.loads(dvc(served, "metrics", "diff", "HEAD", three, "--json"))[
        "reports/metrics/slow.json"
    ]
    assert "start" in dvc(served, "dag", "--md")
    dvc(served, "exp", "apply", three)
    assert (served.folder / "data" / "slow.txt").read_text() == f"{slow_value(3)}\n"


def units(served: Served, iterations: int) -> list[int]:
    """The units of work that the slow stage did for a params value, in the order in which it did
    them."""
    path = served.folder / "units.txt"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [int(done) for total, done in rows if total == str(iterations)]


def slow_is_at(served: Served, iterations: int, unit: int) -> None:
    wait_for(
        lambda: len(units(served, iterations)) >= unit,
        f"unit {unit} of {iterations}: {served.log}",
        300,
    )


def is_right(served: Served, iterations: int) -> None:
    """The slow stage's result is what an undisturbed run gives, and no unit that had been saved was
    done twice."""
    assert (served.folder / "data" / "slow.txt").read_text() == f"{slow_value(iterations)}\n"
    assert not list((served.folder / "data" / "scratch").iterdir())
    assert "up to date" in dvc(served, "status", "slow")


@pytest.mark.slow
def test_a_cancel_in_the_ui_stops_the_tree_and_the_next_run_goes_on_from_there(
    served: Served, first_run: str
) -> None:
    run = served.start_after_edit(31)
    slow_is_at(served, 31, 8)
    served.post(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    started = time.monotonic()
    wait_for(lambda: not slow_processes(served.folder), "the stage to end", 15)
    assert time.monotonic() - started < 15
    assert served.ended(run)["type"] == "CANCELLED"
    assert served.outcomes(run) == {"slow": "Cancelled"}
    assert "Traceback" not in (served.folder / "logs").joinpath(*log_of(served, run)).read_text()
    before = units(served, 31)
    assert before == list(range(1, len(before) + 1))
    # The next run crashes halfway: its retry goes on from what was saved five units before at most.
    (served.folder / "crash").touch()
    run, state = served.finished(targets=["slow"], retries=2)
    assert state["type"] == "COMPLETED", served.messages(run)
    assert served.tasks(run)["slow"]["run_count"] == 2
    again = units(served, 31)[len(before) :]
    assert again[0] == len(before) + 1, "what the cancelled run had done was not saved"
    assert max(Counter(units(served, 31)).values()) == 2
    assert sorted(set(units(served, 31))) == list(range(1, 32))
    is_right(served, 31)


def log_of(served: Served, run: str) -> tuple[str, str]:
    return f"{served.get(f'/flow_runs/{run}')['name']}-{run[:8]}", "slow.log"


@pytest.mark.slow
def test_killing_the_flow_process_ends_the_stage_and_everyone_else_gets_their_turn(
    served: Served, first_run: str
) -> None:
    """SIGKILL for the flow, then at once another flow, a third that must wait for it, and a plain
    `dvc repro`."""
    served.start_after_edit(33)
    slow_is_at(served, 33, 6)
    served.flow_process().kill()
    wait_for(lambda: not slow_processes(served.folder), "the orphaned stage to end", 15)
    before = units(served, 33)
    programs = {
        "first": ["flows.pipeline", "slow"],
        "second": ["flows.pipeline", "slow"],
        "plain": ["dvc", "repro", "slow"],
    }
    outputs = {name: served.folder.parent / f"{name}.log" for name in programs}
    running = {}
    for name, arguments in programs.items():
        with outputs[name].open("w") as output:
            running[name] = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=served.folder,
                env=served.environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if name == "second":
            slow_is_at(served, 33, len(before) + 1)
    codes = {name: process.wait(timeout=900) for name, process in running.items()}
    said = {name: path.read_text() for name, path in outputs.items()}
    assert codes["first"] == codes["second"] == 0, said
    assert "Waiting: another flow run works in this folder" in said["first"] + said["second"]
    assert codes["plain"] == 0 or "is busy, it is being blocked by" in said["plain"], said["plain"]
    assert units(served, 33) == list(range(1, 34)), "a unit was done twice or not at all"
    assert set(lock(served)["stages"]) == STAGES
    is_right(served, 33)


def test_schedules_changed_in_the_ui_survive_what_make_serve_does_when_it_starts(
    served: Served,
) -> None:
    """Edited, added, switched off, taken away, and a deployment paused: `deploy` is what a restart
    does to a server that has a history."""

    def known(name: str) -> tuple[bool, list[tuple[Any, bool]]]:
        deployment = served.deployment(name)
        return deployment["paused"], sorted(
            (str(s["schedule"].get("cron")), s["active"]) for s in deployment["schedules"]
        )

    full, evaluate, grid = (
        f"/deployments/{served.deployment(name)['id']}" for name in ("full", "evaluate", "grid")
    )
    (weekly,) = served.deployment("full")["schedules"]
    served.patch(
        f"{full}/schedules/{weekly['id']}",
        {"schedule": {"cron": "30 6 * * 1", "timezone": "Europe/Berlin"}},
    )
    served.post(
        f"{full}/schedules",
        [{"schedule": {"cron": "0 12 * * 3", "timezone": "UTC"}, "active": False}],
    )
    (nightly,) = served.deployment("evaluate")["schedules"]
    served.delete(f"{evaluate}/schedules/{nightly['id']}")
    served.patch(grid, {"paused": True})
    before = {name: known(name) for name in ("full", "evaluate", "grid")}
    assert before == {
        "full": (False, [("0 12 * * 3", False), ("30 6 * * 1", True)]),
        "evaluate": (False, []),
        "grid": (True, []),
    }
    program = [sys.executable, "-c", "from flows.serve import deploy; deploy()"]
    done = subprocess.run(
        program,
        cwd=served.folder,
        env=served.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: known(name) for name in before} == before


@pytest.mark.slow
def test_ctrl_c_stops_everything_and_dvc_alone_goes_on(served: Served, first_run: str) -> None:
    served.start_after_edit(35)
    slow_is_at(served, 35, 6)
    tree = served.process_tree()
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(timeout=200) == 0
    assert [
        process
        for process in tree
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ] == []
    assert served.log.read_text().rstrip().endswith("Stopped.")
    dvc(served, "repro", "slow")
    assert units(served, 35) == list(range(1, 36))
    is_right(served, 35)
