"""Laws of control groups, on a folder that looks like the kernel's: which group is chosen, and what
is written where. The kernel's own are used where they can be made."""

import pytest

from tracerl.rewards.verify.control_groups import ControlGroup, accounting, parent_of_groups
from tracerl.rewards.verify.sandbox import Limits, SandboxError, SandboxPool, check_backend


def hierarchy(folder, own, controllers):
    """A hierarchy below `folder` in which this process is in the group `own`; `controllers` of
    each group."""
    for name, text in controllers.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "cgroup.subtree_control").write_text(text)
        (folder / name / "cgroup.procs").write_text("")
    names = folder / "own"
    names.write_text(f"4:memory:/elsewhere\n0::/{own}\n")
    return names


def test_groups_are_made_below_or_beside_the_own_one_where_its_controllers_are_handed_down(
    tmp_path,
):
    below, beside, nowhere, half = (tmp_path / name for name in ("a", "b", "c", "d"))
    own = hierarchy(below, "x/y", {"x": "cpu", "x/y": "cpu memory pids"})
    assert parent_of_groups(below, own) == below / "x/y"
    own = hierarchy(beside, "x/y", {"x": "memory pids", "x/y": ""})
    assert parent_of_groups(beside, own) == beside / "x"
    own = hierarchy(nowhere, "x/y", {"": "memory pids", "x": "", "x/y": ""})
    assert parent_of_groups(nowhere, own) is None
    own = hierarchy(half, "x", {"": "memory", "x": "pids"})
    assert parent_of_groups(half, own) is None


def test_without_the_second_version_there_are_no_groups(tmp_path):
    own = hierarchy(tmp_path, "", {"": "memory pids"})
    assert parent_of_groups(tmp_path, own) == tmp_path
    own.write_text("4:memory:/\n")
    parent_of_groups.cache_clear()
    assert parent_of_groups(tmp_path, own) is None
    assert parent_of_groups(tmp_path, tmp_path / "none") is None


def test_a_group_holds_limits_and_processes_and_counts_cpu_time(tmp_path):
    group = ControlGroup(tmp_path, memory=5000, processes=7)
    (folder,) = tmp_path.iterdir()
    group.add(4711)
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n")
    texts = {path.name: path.read_text() for path in folder.iterdir() if path.name != "cpu.stat"}
    assert texts == {
        "memory.max": "5000",
        "memory.swap.max": "0",
        "pids.max": "7",
        "cgroup.procs": "4711",
    }
    assert group.cpu_seconds == 2.5


def test_a_group_that_cannot_be_made_is_an_error(tmp_path):
    with pytest.raises(OSError, match="none"):
        ControlGroup(tmp_path / "none", memory=5000, processes=7)


def test_the_kernel_counts_what_short_lived_processes_use():
    """They are never waited for and each ends before anybody looks."""
    if parent_of_groups() is None:
        pytest.skip(accounting())
    try:
        assert check_backend("bubblewrap").endswith(", control groups")
    except SandboxError as error:
        pytest.skip(str(error))
    limits = Limits(
        cpu_seconds=1.0,
        wall_seconds=5.0,
        memory=400 << 20,
        processes=16,
        file_size=1 << 20,
        files=64,
        output=1 << 16,
    )
    program = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def f():
    for _ in range(40):
        if os.fork() == 0:
            end = time.process_time() + 0.02
            while time.process_time() < end:
                pass
            os._exit(0)
        time.sleep(0.03)
    return 1
"""
    pool = SandboxPool("bubblewrap", limits, 0)
    with pool.sandbox({"role": "solution", "program": program}) as sandbox:
        sandbox.receive(30.0)
        sandbox.send({"call": "f", "args": []}, 30.0)
        assert sandbox.receive(30.0) == {"value": 1}
    pool.close()
    assert sandbox.use.cpu_seconds >= 0.7
