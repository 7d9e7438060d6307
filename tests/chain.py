"""A project of its own with the real stages under a real DVC, and tiny params."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.forked_python import python_folder
from tests.repository import commit, git
from tests.tiny_run import ROOT, digests, tiny_params, write_params


def make_chain(folder: Path, params: dict[str, Any], stages: Sequence[str] = ()) -> None:
    """Writes a git repository without a commit: code, params, and dvc.yaml with these stages of the
    shipped one, or all of them. Nothing has run."""
    for name in ("src", "stages", "flows", ".dvc"):
        shutil.copytree(
            ROOT / name,
            folder / name,
            ignore=shutil.ignore_patterns("__pycache__", "cache", "tmp", "*.egg-info"),
        )
    for name in ("dvc.yaml", ".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "reports").mkdir()
    shutil.copy(ROOT / "reports" / "baseline.json", folder / "reports")
    write_params(folder, params)
    shutil.rmtree(folder / "data")  # what the stages `code` and `params` write
    (folder / "data" / "raw").mkdir(parents=True)
    (folder / "easy.jsonl").rename(folder / "data" / "raw" / "easy.jsonl")
    if stages:
        path = folder / "dvc.yaml"
        pipeline = yaml.safe_load(path.read_text())
        pipeline["stages"] = {name: pipeline["stages"][name] for name in stages}
        path.write_text(yaml.safe_dump(pipeline, sort_keys=False))
    git(folder, "init", "--quiet")


def chain_params() -> dict[str, Any]:
    """Tiny params whose task file lies where `make_chain` puts it."""
    params = tiny_params()
    params["tasks"]["sets"]["sums-short"]["path"] = "data/raw/easy.jsonl"
    return params


def chain_environment(folder: Path) -> dict[str, str]:
    """That of a user in the project: its own library, this Python, DVC's own files beside it."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "src"),
        "OMP_NUM_THREADS": "1",
        "DVC_SITE_CACHE_DIR": str(folder.parent / "site-cache"),
        "DVC_NO_ANALYTICS": "1",
    }


def dvc(folder: Path, *arguments: str) -> str:
    """Output of a DVC command in a project folder; it must succeed. Its stages are forked."""
    environment = chain_environment(folder)
    environment["PATH"] = f"{python_folder()}:{environment['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def stages_run(output: str) -> list[str]:
    """The stages that a `dvc repro` ran, from its output."""
    return re.findall(r"Running stage '([^']+)'", output)


def commit_and_tag(folder: Path, name: str) -> None:
    commit(folder, name)
    git(folder, "tag", name)


def results(folder: Path) -> dict[str, str]:
    """Digests of everything the stages made, without DVC's and git's own files."""
    made = {
        **digests(folder / "data"),
        **{f"reports/{name}": digest for name, digest in digests(folder / "reports").items()},
    }
    return {
        name: digest
        for name, digest in made.items()
        if not name.endswith(".gitignore") and not name.startswith("raw/")
    }
