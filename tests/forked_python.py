"""Modules that start in a twentieth of a second: `python -m MODULE`, forked from a process that has
imported torch and great-expectations.

No module of the stages is imported before the fork: a stage's root is the folder in which its
first module is imported.

    python tests/forked_python.py SOCKET     the process that forks, until its stdin closes
"""

import array
import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

# What the stages import, and what torch and pyarrow import when they are first used.
MODULES = (
    "great_expectations",
    "pandas",
    "torch._dynamo",
    "tracerl.reporting.report",
    "tracerl.store.expectations",
    "tracerl.training.rl",
    "tracerl.training.sft",
    "tracerl.training.traces",
)
_START_SECONDS = 240.0
_PART_BYTES = 1 << 16

# A `python` for the PATH of DVC. What is no stage is given to the real one.
CLIENT = """#!{python} -ISs
import os, sys
if len(sys.argv) < 3 or sys.argv[1] != "-m" or not sys.argv[2].startswith("stages."):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
sys.path.insert(0, {folder!r})
from forked_python import ForkedModule
module = ForkedModule({address!r}, sys.argv[2:], os.getcwd(), dict(os.environ), (0, 1, 2))
code = module.wait()
sys.exit(code if code >= 0 else 128 - code)
"""


class ForkedModule:
    """A running `python -m`.

    argv: the module's name and its arguments. streams: file descriptors of its stdin, stdout and
    stderr.
    """

    def __init__(
        self,
        address: str,
        argv: Sequence[str],
        folder: str,
        environment: dict[str, str],
        streams: tuple[int, int, int],
    ) -> None:
        request = {"argv": list(argv), "folder": folder, "environment": environment}
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        content = json.dumps(request).encode()
        num_sent = self._connection.sendmsg([content], control)
        self._connection.sendall(content[num_sent:])
        self._connection.shutdown(socket.SHUT_WR)
        self._answer = self._connection.makefile()
        self.pid = int(self._answer.readline())
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit status, minus the signal that killed it, or None while it runs."""
        ended = self._code is not None or select.select([self._connection], [], [], 0)[0]
        return self.wait() if ended else None

    def wait(self) -> int:
        """The same at its end."""
        if self._code is None:
            self._code = int(self._answer.readline())
            self._answer.close()
            self._connection.close()
        return self._code


@functools.cache
def fork_server() -> str:
    """The address of the process that forks, which ends with this one. Beside it is the folder
    `bin`, with a `python` that forks stages."""
    temporary = tempfile.TemporaryDirectory(prefix="fork-")
    folder = Path(temporary.name)
    address = str(folder / "socket")
    client = folder / "bin" / "python"
    client.parent.mkdir()
    client.write_text(
        CLIENT.format(
            python=sys.executable, address=address, folder=str(Path(__file__).resolve().parent)
        )
    )
    client.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    def end() -> None:
        server.communicate()
        temporary.cleanup()

    atexit.register(end)
    assert server.stdout is not None
    ready, _, _ = select.select([server.stdout], [], [], _START_SECONDS)
    assert ready
    assert server.stdout.readline() == b"ready\n"
    return address


def python_folder() -> Path:
    """A folder for the PATH, whose `python` forks stages."""
    return Path(fork_server()).with_name("bin")


def serve(address: str) -> None:
    """Forks for each connection, until stdin closes. Without threads: they would not be forked."""
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()  # a collection in a forked process would copy the memory of every module
    assert threading.active_count() == 1
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that serve a connection
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            readable, _, _ = select.select([sys.stdin, listener], [], [])
            if sys.stdin in readable:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                answer(connection)
            connection.close()


def answer(connection: socket.socket) -> NoReturn:
    """Runs the module of a connection in a process of its own, and sends its id and its status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    content, streams = receive(connection)
    child = os.fork()
    if child == 0:
        connection.close()
        run(json.loads(content), streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """A request, and the descriptors of its streams."""
    streams = array.array("i")
    content = b""
    while True:
        part, control, _, _ = connection.recvmsg(
            _PART_BYTES, socket.CMSG_SPACE(3 * streams.itemsize)
        )
        for _, _, data in control:
            streams.frombytes(data)
        if not part:
            return content, list(streams)
        content += part


def run(request: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """`python -m` with the request's words, folder and environment."""
    argv: list[str] = request["argv"]
    folder: str = request["folder"]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = [folder, *os.environ.get("PYTHONPATH", "").split(":")]
    sys.argv = argv
    code: object = None
    try:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the end of an interpreter, which would copy the memory of every module to clear it.
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(sys.argv[1])
