"""Stopping a stage: the first SIGINT or SIGTERM lets it save the unit of work it is in, the second
ends it at once. Both leave it resumable."""

import os
import signal

_PROCESS = os.getpid()
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_stop_requested = False


def install_handlers() -> None:
    """Handles SIGINT and SIGTERM in this process from now on."""
    for number in _SIGNALS:
        signal.signal(number, _request_stop)


def stop_requested() -> bool:
    """Whether a signal has asked this process to stop."""
    return _stop_requested


def _request_stop(number: int, _: object) -> None:
    global _stop_requested
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    if os.getpid() != _PROCESS:
        # A forked child has nothing to save, and its parent expects it to end.
        os.kill(os.getpid(), number)
    _stop_requested = True
    name = signal.Signals(number).name
    message = f"{name}: stopping when this unit of work is saved; once more ends it at once\n"
    os.write(2, message.encode())
