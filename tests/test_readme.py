"""What the README tells a newcomer to type works."""

import re
import shlex
from pathlib import Path

import pytest

from tests.reporting.synthetic_run import small_params, write_run
from tracerl.cli import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]


@pytest.mark.parametrize("command", [line for line in COMMANDS if "tracerl sql" in line])
def test_every_query_of_the_readme_is_answered(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, small_params())
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command, comments=True)[1:]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"(?m)(?:`|^)make ([a-z-]+)", README))
    assert {"repro", "test", "setup"} <= named
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


def test_every_path_of_the_readme_exists() -> None:
    named = re.findall(
        r"`((?:src|stages|docs|tests)/[A-Za-z0-9_./-]+|[a-z]+\.(?:yaml|md|toml))`", README
    )
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
