# ruff: noqa: E501 (modules as text)
"""Laws of the sandbox for an ordinary user: it holds as it does for root, and where the system
forbids it nothing runs.

Where the tests run as root a system Python runs the judge as nobody, in a copy of the library that
everybody may read.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WITHOUT_RIGHTS = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
NOBODY = [*WITHOUT_RIGHTS, "--reuid", "65534", "--regid", "65534", "--clear-groups"]
CHOSEN = (
    "leaves a grandchild",
    "loops",
    "kills everybody",
    "reads the environment",
    "connects",
    "writes outside",
    "is root",
)
JUDGE = f"""
import os, sys
from rewards.verify.hostile import HOSTILE
from tracerl.errors import TracerlError
from tracerl.rewards.verify.code import CodeTests, run_tests
from tracerl.rewards.verify.sandbox import Limits, SandboxPool

try:
    limits = Limits(
        cpu_seconds=1.0, wall_seconds=4.0, memory=512 << 20, processes=16,
        file_size=1 << 20, files=64, output=1 << 16,
    )
    pool = SandboxPool("bubblewrap", limits, 1)
except TracerlError as error:
    sys.exit(f"refused: {{error}}")
task = CodeTests(style="call", tests=[{{"args": [x], "expected": x * x + 7}} for x in (3, 10)], entry_point="f")
for name in {CHOSEN!r}:
    print(name, run_tests(pool, HOSTILE[name].replace("PORT_HOST", "127.0.0.1").replace("PORT", "9"), task))
print("right", run_tests(pool, "def f(x): return x * x + 7", task))
forking = '''
import os, time
def f():
    for n in range(99):
        try:
            if os.fork() == 0: time.sleep(99)
        except OSError:
            return n
'''
print("forks", run_tests(pool, forking, CodeTests(style="assert", tests=["assert f() < 16"], provides=("f",))))
pool.close()
print("left over", [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid() and mine(pid)])
"""
MINE = """
import os
def mine(pid):
    try:
        state = open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()
        return os.stat(f"/proc/{pid}").st_uid == os.getuid() and state[0] != "Z" and int(state[3]) != os.getsid(0)
    except OSError:
        return False
"""


@pytest.fixture(scope="module")
def command():
    """A command line that runs the judge as an ordinary user, and its environment."""
    if not shutil.which("bwrap") or (os.getuid() == 0 and not shutil.which("setpriv")):
        pytest.skip("needs bubblewrap, and setpriv where the tests run as root")
    folder = Path(tempfile.mkdtemp(prefix="tracerl-test-"))
    folder.chmod(0o755)
    shutil.copytree(
        ROOT / "src" / "tracerl", folder / "tracerl", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(
        ROOT / "tests" / "rewards", folder / "rewards", ignore=shutil.ignore_patterns("__pycache__")
    )
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    start = NOBODY if os.getuid() == 0 else WITHOUT_RIGHTS
    for python in (
        sys.executable,
        f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}",
        "/usr/bin/python3",
    ):
        trial = [*start, python, "-c", "import tracerl.rewards.verify.code"]
        tried = subprocess.run(trial, env=environment, capture_output=True, cwd="/", check=False)
        if tried.returncode == 0:
            break
    else:
        pytest.skip("needs a Python of version 3.11 or later that every user may run")
    yield [python, "-c", MINE + JUDGE], environment
    shutil.rmtree(folder)


def judged(start, command):
    arguments, environment = command
    return subprocess.run(
        [*start, *arguments], env=environment, capture_output=True, text=True, cwd="/", check=False
    )


def test_for_an_ordinary_user_the_sandbox_holds(command):
    done = judged(NOBODY if os.getuid() == 0 else WITHOUT_RIGHTS, command)
    if "refused" in done.stderr:
        pytest.skip(f"this system allows ordinary users no sandbox: {done.stderr}")
    *hostile, right, forks, left = done.stdout.splitlines()
    assert [line.partition(" [")[0] for line in hostile] == list(CHOSEN), done.stderr
    assert not any("passed" in line for line in hostile)
    assert right == "right ['passed', 'passed']"
    assert forks == "forks ['passed']", "the limit on processes holds"
    assert left == "left over []"


def test_where_namespaces_are_forbidden_nothing_runs_and_the_way_out_is_named(command):
    forbidding = [
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"',
        "sh",
    ]
    if subprocess.run([*forbidding, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs to make a user namespace in which making another is forbidden")
    arguments, environment = command
    done = judged([*forbidding, *WITHOUT_RIGHTS], (arguments, environment))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "bubblewrap does not work here" in done.stderr
    assert "allow user namespaces" in done.stderr
    assert "unconfined" in done.stderr


def test_without_bubblewrap_nothing_runs_and_the_package_is_named(command):
    arguments, environment = command
    done = subprocess.run(
        arguments,
        env={**environment, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "no program named bwrap" in done.stderr
    assert "apt install bubblewrap" in done.stderr
