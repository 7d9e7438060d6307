"""`dvc repro` with a lock file that survives a kill; `make repro` runs it.

python -m flows.repro                 everything
python -m flows.repro evaluate -f     any arguments of dvc repro
"""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from flows import process
from flows.workspace import restore_params, single_run
from tracerl.errors import TracerlError


def main(arguments: Sequence[str]) -> int:
    """Exit status of DVC. Ctrl-C reaches DVC by the terminal, SIGTERM through this process."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        root = Path.cwd()
        with single_run(root, "flows.repro", say):
            restore_params(root, say)
            dvc = subprocess.Popen(
                process.dvc("repro", *arguments),
                env=process.environment(),
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

            def forward(number: int, _: FrameType | None) -> None:
                dvc.send_signal(number)

            signal.signal(signal.SIGTERM, forward)
            status = dvc.wait()
    except TracerlError as error:
        sys.exit(f"error: {error}")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
