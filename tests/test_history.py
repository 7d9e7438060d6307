"""DVC's commands over all commits read what the docs say they read."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml
from dvc.schema import COMPILED_LOCKFILE_SCHEMA, COMPILED_MULTI_STAGE_SCHEMA
from voluptuous import Invalid

from tests.repository import git

ROOT = Path(__file__).parents[1]
SCHEMAS = {"dvc.yaml": COMPILED_MULTI_STAGE_SCHEMA, "dvc.lock": COMPILED_LOCKFILE_SCHEMA}


@cache
def can_be_read(blob: str, name: str) -> bool:
    """Whether a stored file is YAML of DVC's own schema."""
    try:
        SCHEMAS[name](yaml.load(git(ROOT, "cat-file", "blob", blob), yaml.CSafeLoader))
    except (yaml.YAMLError, Invalid):
        return False
    return True


def test_dvc_reads_every_commit_but_those_that_the_docs_name() -> None:
    if git(ROOT, "rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("needs the whole history")
    commits = git(ROOT, "rev-list", "--topo-order", "HEAD").split()
    places = [(commit, name) for commit in commits for name in SCHEMAS]
    asked = "".join(f"{commit}:{name}\n" for commit, name in places)
    command = ["git", "cat-file", "--batch-check"]
    told = subprocess.run(
        command, cwd=ROOT, input=asked, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    unreadable = []
    for (commit, name), line in zip(places, told, strict=True):
        blob, kind = line.split()[:2]
        if kind == "blob" and not can_be_read(blob, name):
            unreadable.append(commit)
    page = (ROOT / "docs" / "orchestration.md").read_text("utf-8")
    named = re.search(r"In (\d+) early commits of this repository, from `(\w+)` to\s+`(\w+)`", page)
    assert named is not None
    assert len(unreadable) == int(named[1])
    assert unreadable[-1].startswith(named[2])
    assert unreadable[0].startswith(named[3])
