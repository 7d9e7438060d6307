"""`make serve`: Prefect's server, a worker, the deployments of prefect.yaml and the report's pages
on this machine, until Ctrl-C.

    python -m flows.serve
    python -m flows.serve --port 4300

The server keeps its SQLite file in .prefect/ (or $PREFECT_HOME). Schedules that were changed in the
UI stay as they are there. `temporary_server` is the server of one flow run without all this.
"""

import argparse
import atexit
import contextlib
import functools
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

POOL = "local"
START_SECONDS = 600  # eight on an idle machine
STOP_SECONDS = 30  # what a flow run may take to stop its stages, which save their work
ENVIRONMENT = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
# These can be set from outside.
DEFAULTS = {
    "PREFECT_HOME": str(Path(".prefect").resolve()),
    "PREFECT_WORKER_QUERY_SECONDS": "2",  # how soon a run that is asked for in the UI starts
    "PREFECT_API_REQUEST_TIMEOUT": "120",  # a machine that is busy with training answers late
    # SQLite refuses a write now and then when several come at once.
    "PREFECT_CLIENT_MAX_RETRIES": "10",
}


def main() -> None:
    """Starts everything, waits for Ctrl-C or SIGTERM, stops everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (127.0.0.1); whoever reaches it may run the flows",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=4200,
        help="port of the UI (4200); the report's pages are on the next one",
    )
    arguments = parser.parse_args()
    ui, pages = (f"http://{arguments.host}:{port}" for port in (arguments.port, arguments.port + 1))
    os.environ.update(ENVIRONMENT, PREFECT_API_URL=f"{ui}/api", TRACERL_PAGES_URL=pages)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _request_stop)
    try:
        with (
            serve_pages(arguments.host, arguments.port + 1),
            prefect(
                "server", "start", "--host", arguments.host, "--port", str(arguments.port)
            ) as server,
        ):
            advice = "see its messages above; if the port is taken: make serve PORT=4300"
            wait_until_healthy(f"{ui}/api/health", server, advice)
            deploy()
            with (
                prefect("worker", "start", "--pool", POOL, "--type", "process") as worker,
                cancel_runs_at_exit(),
            ):
                print(
                    f"\nPrefect UI  {ui}\nReport      {pages}/reports/report.html\nCtrl-C stops "
                    "it all.\n",
                    flush=True,
                )
                while all(program.poll() is None for program in (server, worker)):
                    time.sleep(0.5)
        sys.exit("error: Prefect's server or worker ended by itself; its messages are above")
    except KeyboardInterrupt:
        print("Stopped.", flush=True)


def _request_stop(number: int, frame: FrameType | None) -> None:
    for again in (signal.SIGINT, signal.SIGTERM):
        # What follows stops everything in its order and must not be stopped itself.
        signal.signal(again, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def prefect(*arguments: str, quiet: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A `prefect` command under a guard, which ends it and everything below it when we leave, or
    die. A quiet one prints its errors only."""
    guard = [
        sys.executable,
        str(Path(__file__).with_name("guard.py")),
        sys.executable,
        "-m",
        "prefect",
        "--no-prompt",
        *arguments,
    ]
    output = subprocess.DEVNULL if quiet else None
    program = subprocess.Popen(guard, stdin=subprocess.PIPE, stdout=output, start_new_session=True)
    assert program.stdin is not None
    try:
        yield program
    finally:
        program.stdin.close()
        program.wait()


@contextlib.contextmanager
def temporary_server() -> Iterator[None]:
    """A Prefect server for the flow runs inside, unless the settings name one (PREFECT_API_URL).

    Prefect would start one by itself, which a kill of this process leaves behind. This one is under
    a guard. It ends with this process, not at the end of the block: Prefect sends the last events
    of a run when Python exits.
    """
    from prefect.settings import PREFECT_API_URL, temporary_settings

    if PREFECT_API_URL.value():
        yield
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}/api"
    options = (
        "--no-ui",
        "--no-scheduler",
        "--no-late-runs",
        "--analytics-off",
        "--log-level",
        "ERROR",
    )
    running = contextlib.ExitStack()
    atexit.register(running.close)
    server = running.enter_context(
        prefect("server", "start", "--host", "127.0.0.1", "--port", port, *options, quiet=True)
    )
    wait_until_healthy(
        f"{url}/health", server, "see its messages above; run the same command again"
    )
    with temporary_settings({PREFECT_API_URL: url}):
        yield


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], advice: str) -> None:
    """Returns when the server answers; ends the program, with advice, if it does not in time or has
    ended."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(url, timeout=5) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.3)
    sys.exit(f"error: no Prefect server\n  where: {url}\n  what to do: {advice}")


def deploy() -> None:
    """Makes the work pool and brings the deployments to what prefect.yaml says, except for
    schedules that are there already."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import (
        DeploymentScheduleUpdate,
        DeploymentUpdate,
        WorkPoolCreate,
    )
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    with get_client(sync_client=True) as client:
        with contextlib.suppress(ObjectAlreadyExists):
            template = ProcessWorker.get_default_base_job_template()
            client.create_work_pool(
                WorkPoolCreate(name=POOL, type="process", base_job_template=template)
            )
        before = client.read_deployments()
        subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for deployment in before:
            fields = {"schedule", "active", "max_scheduled_runs", "parameters", "slug"}
            schedules = [
                DeploymentScheduleUpdate(**schedule.model_dump(include=fields))
                for schedule in deployment.schedules
            ]
            client.update_deployment(
                deployment.id, DeploymentUpdate(schedules=schedules, paused=deployment.paused)
            )


@contextlib.contextmanager
def cancel_runs_at_exit() -> Iterator[None]:
    """When we leave, runs that are under way are cancelled as if in the UI, and waited for."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
    from prefect.states import Cancelling

    try:
        yield
    finally:
        unfinished = FlowRunFilter.model_validate(
            {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}}
        )
        here = WorkPoolFilter.model_validate({"name": {"any_": [POOL]}})
        # The server may be what has ended.
        with (
            contextlib.suppress(Exception),
            get_client(sync_client=True) as client,
        ):
            runs = client.read_flow_runs(flow_run_filter=unfinished, work_pool_filter=here)
            for run in runs:
                print(f"Cancelling {run.name}; its stages save their work ...", flush=True)
                client.set_flow_run_state(run.id, Cancelling(message="The server was stopped"))
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline and client.read_flow_runs(
                flow_run_filter=unfinished, work_pool_filter=here
            ):
                time.sleep(0.5)


class _Pages(http.server.SimpleHTTPRequestHandler):
    """The files below reports/, nothing else, without a line per request."""

    def translate_path(self, path: str) -> str:
        place = Path(super().translate_path(path)).resolve()
        reports = Path(self.directory, "reports").resolve()
        return str(place if place.is_relative_to(reports) else reports / "not-there")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def serve_pages(host: str, port: int) -> Iterator[None]:
    """The pages that stages write, over HTTP: a browser opens no file:// link from a page like the
    UI's."""
    try:
        server = http.server.ThreadingHTTPServer(
            (host, port), functools.partial(_Pages, directory=str(Path.cwd()))
        )
    except OSError as error:
        sys.exit(
            f"error: the port of the report's pages is taken\n  where: {host}:{port}\n  got: "
            f"{error}\n  what to do: make serve PORT=4300"
        )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
