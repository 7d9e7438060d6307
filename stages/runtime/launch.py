"""Starting the ranks of a stage: torchrun here, and over ssh on the other hosts."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tracerl.settings.models import Launch

# What a rank on another host needs of this environment.
_VARIABLES = ("PYTHONPATH", "OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY")


def needs_launcher(launch: Launch) -> bool:
    """Whether these settings ask for more than this process."""
    return launch.ranks > 1 or bool(launch.hosts) or bool(launch.zero)


def become_launcher(launch: Launch) -> None:
    """Becomes torchrun for this command line and does not return; with other hosts, starts it there
    too and ends with the one here."""
    stage = ["-m", f"stages.{Path(sys.argv[0]).stem}", *sys.argv[1:]]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(launch.ranks),
    ]
    if len(launch.hosts) < 2:
        os.execv(sys.executable, [*torchrun, "--standalone", *stage])
    torchrun += [
        "--nnodes",
        str(len(launch.hosts)),
        "--rdzv-backend",
        "c10d",
        "--rdzv-id",
        "-".join(stage[1:]),
        "--rdzv-endpoint",
        f"{launch.hosts[0]}:{launch.port}",
    ]
    sys.exit(_run_on_hosts([*torchrun, *stage], launch.hosts[1:]))


def _run_on_hosts(command: list[str], others: list[str]) -> int:
    """Exit status of a command that runs here and on the other hosts, in the same folder."""
    settings = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    line = f"cd {shlex.quote(os.getcwd())} && exec env {shlex.join([*settings, *command])}"
    remote = []
    for host in others:
        # A terminal of its own (-tt): what runs there ends with the connection. After -- no host
        # is taken for an option.
        ssh = ["ssh", "-tt", "--", host, line]
        remote.append(subprocess.Popen(ssh, stdin=subprocess.DEVNULL))
    here = subprocess.Popen(command)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: here.send_signal(number))
    status = here.wait()
    for process in remote:
        process.terminate()
    return status if status >= 0 else 128 - status
