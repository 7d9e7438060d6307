"""A guard takes the whole process tree of its command down, whoever asks for it and whatever the
processes have done to hide."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from flows.workspace import override_params
from tests.flows.project import command, environment, make_project, slow_processes, slow_value
from tests.flows.served import wait_for
from tests.tiny_run import ROOT

GUARD = str(ROOT / "flows" / "guard.py")

# A command with a child in a session of its own, whose parent is dead, that saves when it is asked
# to stop.
FAMILY = """
import os, signal, sys, time
from pathlib import Path
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGINT, lambda *_: (Path("saved").touch(), sys.exit()))
        Path("orphan").write_text(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
while not Path("orphan").exists() or not Path("orphan").read_text():
    time.sleep(0.01)
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
time.sleep(600)
"""


def guard(folder: Path, *command: str, before: str = "") -> "subprocess.Popen[bytes]":
    start = [sys.executable, GUARD] if not before else [sys.executable, "-c", before, GUARD]
    return subprocess.Popen([*start, *command], cwd=folder, stdin=subprocess.PIPE)


def orphan(folder: Path) -> psutil.Process:
    path = folder / "orphan"
    return psutil.Process(
        int(wait_for(lambda: path.exists() and path.read_text(), "the orphan", 60))
    )


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("how", ["pipe", "SIGTERM", "SIGINT"])
def test_an_orphan_in_another_session_is_asked_to_save_and_ends(tmp_path: Path, how: str) -> None:
    running = guard(tmp_path, sys.executable, "-c", FAMILY)
    assert running.stdin is not None
    hidden = orphan(tmp_path)
    if how == "pipe":
        running.stdin.close()
    else:
        running.send_signal(signal.Signals[how])
    running.wait(timeout=60)
    running.stdin.close()
    assert gone(hidden)
    assert (tmp_path / "saved").exists()


def test_the_death_of_the_holder_ends_the_tree(tmp_path: Path) -> None:
    holder = (
        "import subprocess, sys, time; guard = subprocess.Popen(sys.argv[1:], "
        "stdin=subprocess.PIPE); time.sleep(600)"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", holder, sys.executable, GUARD, sys.executable, "-c", FAMILY],
        cwd=tmp_path,
    )
    hidden = orphan(tmp_path)
    running.kill()
    running.wait()
    wait_for(lambda: gone(hidden), "the end of the tree", 60)
    assert (tmp_path / "saved").exists()


def test_the_exit_status_is_the_commands_and_what_it_leaves_behind_is_ended(tmp_path: Path) -> None:
    running = guard(tmp_path, sys.executable, "-c", FAMILY, "7")
    assert running.stdin is not None
    with running.stdin:
        assert running.wait(timeout=60) == 7
    pid = int((tmp_path / "orphan").read_text())
    assert not psutil.pid_exists(pid) or gone(psutil.Process(pid))


def test_a_command_that_obeys_nothing_is_killed(tmp_path: Path) -> None:
    stubborn = """
import signal, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path("ready").touch()
time.sleep(600)
"""
    hurried = (
        "import sys; sys.path.insert(0, sys.argv[1].rsplit('/', 2)[0]); from flows import guard; "
        "guard.ASK = tuple((n, 0.3) for n, _ in guard.ASK); sys.exit(guard.main(sys.argv[2:]))"
    )
    running = guard(tmp_path, sys.executable, "-c", stubborn, before=hurried)
    assert running.stdin is not None
    wait_for((tmp_path / "ready").exists, "the command", 60)
    started = time.monotonic()
    running.stdin.close()
    assert running.wait(timeout=60) == 256 - signal.SIGKILL  # what a shell sees of -9
    assert time.monotonic() - started < 30


def test_the_death_of_who_runs_dvc_lets_the_stage_save_and_plain_dvc_goes_on_from_there(
    tmp_path: Path,
) -> None:
    """What a flow does, without Prefect: its process is killed with SIGKILL in the middle of a
    stage that saves every five units."""
    folder = tmp_path / "project"
    folder.mkdir()
    make_project(folder)
    params = folder / "params.yaml"
    params.write_text(override_params(params.read_text(), {"rl.short.iterations": 33}))
    runner = """if True:
        import sys
        from pathlib import Path
        from flows import process
        command = process.dvc("repro", "--single-item", "slow")
        process.run(command, Path.cwd(), Path("logs/slow.log"), print)
    """
    running = subprocess.Popen(
        [sys.executable, "-c", runner],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.DEVNULL,
    )
    done = folder / "units.txt"
    wait_for(
        lambda: done.exists() and len(done.read_text().splitlines()) >= 7, "the seventh unit", 600
    )
    running.kill()
    running.wait()
    wait_for(lambda: not slow_processes(folder), "the end of the orphaned stage", 30)
    before = done.read_text().splitlines()
    assert "stopped: slow after iteration" in (folder / "logs" / "slow.log").read_text()
    again = command(folder, "dvc", "repro", "slow")
    assert again.returncode == 0, again.stdout + again.stderr
    assert done.read_text().splitlines() == [f"33 {i}" for i in range(1, 34)], (
        f"after {len(before)} units it did not go on from there"
    )
    assert (folder / "data" / "slow.txt").read_text() == f"{slow_value(33)}\n"
    assert not list((folder / "data" / "scratch").iterdir())
