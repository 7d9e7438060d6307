"""A small DVC project for the flows: real params, stages of seconds, one of them a stage as the
real ones are.

start --> wide@0 ... wide@11 --> report
      --> fragile --> after
slow
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.repository import commit, git
from tests.tiny_run import ROOT, tiny_params

NUM_WIDE = 12

# A stage without torch: fast to start. `fragile` writes its metrics, then fails if there is
# something in data/raw.
STEP = """
import json, sys, time
from pathlib import Path
import yaml
name, seed = sys.argv[1], yaml.safe_load(Path("params.yaml").read_text())["seed"]
if name == "start":
    for line in range(200):
        print("start says", line)
Path("reports/metrics").mkdir(parents=True, exist_ok=True)
Path("data").mkdir(exist_ok=True)
if name == "report":
    Path("reports/report.html").write_text("<h1>The report</h1>")
else:
    metrics = json.dumps({"score": {"seed": seed}, "name": name})
    Path(f"reports/metrics/{name}.json").write_text(metrics)
    if name == "fragile" and any(Path("data/raw").glob("break*")):
        sys.exit("error: fragile found something to break on")
    Path(f"data/{name}.txt").write_text(f"{name} {seed if name == 'start' else ''}")
"""

# A stage as the real ones are: it works in a scratch workspace, saves after each unit, and goes on
# from there.
SLOW = """
import os, signal, time
from pathlib import Path
import torch
from stages.runtime import entry, paths
from stages.runtime.code import write_code_lists
from stages.runtime.params import write_stage_params
from stages.runtime.progress import progress
from stages.runtime.scratch import open_workspace
from tracerl.disk import write_json

def main():
    write_stage_params(paths.ROOT / "params.yaml", paths.PARAMS)
    write_code_lists(paths.CODE)
    settings = entry.start("rl@short").rl["short"]
    space = open_workspace("rl@short", [])
    done, value = 0, 1
    if saved := space.load():
        done, value = saved[1]["done"], saved[1]["value"]
    show = progress("slow", "iteration")
    while done < settings.iterations:
        time.sleep(0.2)
        done, value = done + 1, (value * 31 + done) % 10007
        with Path("units.txt").open("a") as units:
            units.write(f"{settings.iterations} {done}\\n")
        if Path("crash").exists() and done == settings.iterations // 2 + 1:
            Path("crash").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if done % 5 == 0 or done == settings.iterations or space.stopping():
            space.save({"nothing": torch.zeros(1)}, {"done": done, "value": value})
        show(done, settings.iterations, f"reward {value / 10007:.2f}")
    (space.directory / "slow.txt").write_text(f"{value}\\n")
    write_json(space.directory / "metrics.json", {"value": value})
    metrics = paths.REPORTS / "metrics" / "slow.json"
    space.publish({"slow.txt": paths.DATA / "slow.txt", "metrics.json": metrics})

entry.run(main, "slow")
"""


def slow_value(iterations: int) -> int:
    """What the slow stage must end with, however often it was disturbed."""
    value = 1
    for done in range(iterations):
        value = (value * 31 + done) % 10007
    return value


def graph() -> dict[str, Any]:
    def stage(command: str, name: str, deps: list[str], params: list[str]) -> dict[str, Any]:
        metrics: list[Any] = [{f"reports/metrics/{name}.json": {"cache": False}}]
        return {
            "cmd": command,
            "deps": deps,
            "params": params,
            "outs": [f"data/{name}.txt"],
            "metrics": metrics,
        }

    start = stage("python step.py start", "start", ["step.py"], ["seed"])
    wide = stage(
        "python step.py wide@${item}",
        "wide@${item}",
        ["step.py", "data/start.txt"],
        ["truncated_is_wrong"],
    )
    fragile = stage(
        "python step.py fragile", "fragile", ["step.py", "data/start.txt", "data/raw"], []
    )
    slow = stage("python slow.py", "slow", ["slow.py"], ["rl.short.iterations"])
    after = stage("python step.py after", "after", ["step.py", "data/fragile.txt"], [])
    report = {
        "cmd": "python step.py report",
        "deps": ["step.py", *(f"data/wide@{i}.txt" for i in range(NUM_WIDE))],
        "outs": [{"reports/report.html": {"cache": False}}],
    }
    stages = {
        "start": {**start, "desc": "The first stage"},
        "fragile": fragile,
        "after": after,
        "report": report,
    }
    return {
        "stages": {
            **stages,
            "slow": {**slow, "meta": {"tags": ["gpu"]}},
            "wide": {"foreach": list(range(NUM_WIDE)), "do": wide},
        }
    }


def make_project(folder: Path) -> None:
    """A git repository with one commit, in which nothing has run."""
    for name in ("flows", ".dvc"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "cache", "tmp")
        )
    for name in ("prefect.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, folder / name)
    params = tiny_params()
    params["rl"]["short"]["iterations"] = 2
    (folder / "params.yaml").write_text(
        "# The params of the test\n" + yaml.safe_dump(params, sort_keys=False)
    )
    (folder / "dvc.yaml").write_text(yaml.safe_dump(graph(), sort_keys=False))
    (folder / "step.py").write_text(STEP)
    (folder / "slow.py").write_text(SLOW)
    (folder / "data" / "raw").mkdir(parents=True)
    (folder / "data" / "raw" / ".gitkeep").touch()
    (folder / ".gitignore").write_text(
        "/logs/\n/.prefect/\n/data/scratch/\n/data/params/\n/data/code/\n/units.txt\n__pycache__/\n"
    )
    git(folder, "init", "--quiet")
    for name, value in {
        "user.name": "test",
        "user.email": "test@localhost",
        "commit.gpgsign": "false",
    }.items():
        git(folder, "config", name, value)
    commit(folder, "first")


def environment(folder: Path) -> dict[str, str]:
    """That of a user in the project's folder, with Prefect's and DVC's own files beside the
    project."""
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT", "DVC"))
        },
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "DO_NOT_TRACK": "1",
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(folder.parent / "site-cache"),
        "PREFECT_HOME": str(folder.parent / "prefect"),
    }


def command(
    folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m ARGUMENTS` in the project."""
    env = env or environment(folder)
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def slow_processes(folder: Path) -> list[psutil.Process]:
    """Processes of the project's slow stage, wherever they are: the orphans too."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        info = process.info
        if (
            info["cwd"] == str(folder)
            and "slow.py" in " ".join(info["cmdline"] or [])
            and info["status"] != psutil.STATUS_ZOMBIE
        ):
            found.append(process)
    return found
