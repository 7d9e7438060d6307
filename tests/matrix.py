"""Every way to run an experiment gives the same weights: policy hashes by way and seed.

    python -m tests.matrix

Ways: the workspace, a temporary folder, a queue with two jobs, and the flow's grid, each in a
project of its own without a run cache, beside a plain `dvc repro` of the changed params. The exit
status is 1 if a cell differs or a workspace was changed by an experiment elsewhere.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.chain import commit_and_tag, dvc
from tests.chaos import make_small_chain
from tests.disturbances import environment
from tests.repository import git

SEEDS = (2, 3)
QUEUE_SECONDS = 900.0
METRICS = "reports/metrics/sft@short.json"

Hashes = dict[int, str]


def plain(folder: Path) -> Hashes:
    """`dvc repro` after an edit of params.yaml."""
    hashes = {}
    for seed in SEEDS:
        path = folder / "params.yaml"
        params = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**params, "seed": seed}, sort_keys=False))
        dvc(folder, "repro")
        hashes[seed] = json.loads((folder / METRICS).read_text())["policy_hash"]
    return hashes


def workspace(folder: Path) -> Hashes:
    for seed in SEEDS:
        dvc(folder, "exp", "run", "--name", f"seed-{seed}", "--set-param", f"seed={seed}")
    return hashes_of_experiments(folder)


def temporary(folder: Path) -> Hashes:
    for seed in SEEDS:
        dvc(folder, "exp", "run", "--temp", "--name", f"t-{seed}", "--set-param", f"seed={seed}")
    return hashes_of_experiments(folder)


def queued(folder: Path) -> Hashes:
    for seed in SEEDS:
        dvc(folder, "exp", "run", "--queue", "--name", f"q-{seed}", "--set-param", f"seed={seed}")
    dvc(folder, "queue", "start", "--jobs", "2")
    deadline = time.monotonic() + QUEUE_SECONDS
    while len(hashes_of_experiments(folder)) < len(SEEDS) and time.monotonic() < deadline:
        time.sleep(2)
    dvc(folder, "queue", "stop", "--kill")
    return hashes_of_experiments(folder)


def grid(folder: Path) -> Hashes:
    command = [sys.executable, "-m", "flows.experiments", json.dumps({"seed": SEEDS})]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return hashes_of_experiments(folder)


def hashes_of_experiments(folder: Path) -> Hashes:
    """The policy hash of each experiment of a project, by its seed."""
    hashes = {}
    refs = git(folder, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    for ref in refs:
        if "/exec/" in ref or "/celery/" in ref:
            continue
        params = yaml.safe_load(git(folder, "show", f"{ref}:params.yaml"))
        listed = git(folder, "ls-tree", "--name-only", ref, METRICS).strip()
        if listed:
            metrics = json.loads(git(folder, "show", f"{ref}:{METRICS}"))
            hashes[params["seed"]] = metrics["policy_hash"]
    return hashes


# Each way, and whether it may change the workspace.
WAYS: dict[str, tuple[Callable[[Path], Hashes], bool]] = {
    "dvc repro": (plain, True),
    "workspace": (workspace, True),
    "temp": (temporary, False),
    "queue, 2 jobs": (queued, False),
    "grid": (grid, False),
}


def main() -> None:
    rows: dict[str, Hashes] = {}
    touched = []
    with tempfile.TemporaryDirectory(prefix="matrix-") as place:
        for number, (name, (run, may_change)) in enumerate(WAYS.items()):
            folder = Path(place) / str(number) / "project"
            make_small_chain(folder)
            dvc(folder, "repro")
            commit_and_tag(folder, "first")
            before = (folder / "params.yaml").read_text(), git(folder, "status", "--porcelain")
            rows[name] = run(folder)
            after = (folder / "params.yaml").read_text(), git(folder, "status", "--porcelain")
            if before != after and not may_change:
                touched.append(name)
            cells = "  ".join(rows[name].get(seed, "missing") for seed in SEEDS)
            print(f"{name:14} {cells}", flush=True)
    print("workspace changed by: " + (", ".join(touched) or "none"))
    same = all(hashes == rows["dvc repro"] for hashes in rows.values())
    sys.exit(0 if same and not touched else 1)


if __name__ == "__main__":
    main()
