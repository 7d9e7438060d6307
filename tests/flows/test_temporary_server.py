"""A flow that is started without `make serve` has a server of its own, which ends with it."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.disturbances import works_in
from tests.flows.project import command, environment, make_project
from tests.flows.served import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def left(folder: Path) -> list[psutil.Process]:
    """Processes that still work in a folder."""
    return [process for process in psutil.process_iter() if works_in(process, folder)]


def test_nothing_is_left_of_a_flow_that_is_killed_or_ends(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    make_project(folder)
    with (tmp_path / "flow.log").open("wb") as log:
        flow = subprocess.Popen(
            [sys.executable, "-m", "flows.pipeline", "slow"],
            cwd=folder,
            env=environment(folder),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    wait_for((folder / "units.txt").exists, "the first unit", 500)
    servers = [process for process in left(folder) if "uvicorn" in " ".join(process.cmdline())]
    servers += [process for process in left(folder) if "prefect" in process.cmdline()]
    assert servers, (tmp_path / "flow.log").read_text()
    flow.kill()
    flow.wait()
    wait_for(lambda: not left(folder), "the end of all that the flow had started", 60)
    again = command(folder, "flows.pipeline", "slow")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Traceback" not in again.stdout + again.stderr
    assert not left(folder)
