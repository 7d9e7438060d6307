"""A running `make serve` on a project, and what its API says."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.flows.project import environment

FINAL = {"COMPLETED", "FAILED", "CANCELLED", "CRASHED"}


class Served:
    """Prefect's REST API, as the UI uses it."""

    def __init__(
        self, folder: Path, port: int, process: "subprocess.Popen[bytes]", log: Path
    ) -> None:
        self.folder, self.port, self.process, self.log = folder, port, process, log
        self.ui = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=f"{self.ui}/api", timeout=60)

    def get(self, path: str) -> Any:
        return self._ask("GET", path)

    def post(self, path: str, data: Any) -> Any:
        return self._ask("POST", path, data)

    def patch(self, path: str, data: Any) -> Any:
        return self._ask("PATCH", path, data)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def _ask(self, method: str, path: str, data: Any = None) -> Any:
        for _ in range(20):
            answer = self.client.request(method, path, json=data)
            # "database is locked": SQLite's way of asking to be asked again.
            if answer.status_code != 503:
                break
            time.sleep(0.5)
        assert answer.is_success, f"{answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def environment(self) -> dict[str, str]:
        return {**environment(self.folder), "PREFECT_API_URL": f"{self.ui}/api"}

    def deployment(self, name: str) -> Any:
        return self.get(
            f"/deployments/name/{'experiments' if name == 'grid' else 'pipeline'}/{name}"
        )

    def start(self, deployment: str = "full", **parameters: Any) -> str:
        """Asks for a run of a deployment, as the button in the UI does; returns its id."""
        path = f"/deployments/{self.deployment(deployment)['id']}/create_flow_run"
        run: dict[str, Any] = self.post(
            path, {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        )
        return str(run["id"])

    def start_after_edit(self, iterations: int) -> str:
        """Writes rl.short.iterations into params.yaml, then asks for a run of the stage `slow`."""
        path = self.folder / "params.yaml"
        params = yaml.safe_load(path.read_text())
        params["rl"]["short"]["iterations"] = iterations
        path.write_text(yaml.safe_dump(params, sort_keys=False))
        return self.start(targets=["slow"])

    def state(self, run: str) -> Any:
        return self.get(f"/flow_runs/{run}")["state"]

    def ended(self, run: str) -> Any:
        """The final state of a run."""
        return wait_for(
            lambda: state if (state := self.state(run))["type"] in FINAL else None,
            f"the end of {run}: {self.log}",
            900,
        )

    def finished(self, deployment: str = "full", **parameters: Any) -> tuple[str, Any]:
        """(id, final state) of a run from beginning to end."""
        run = self.start(deployment, **parameters)
        return run, self.ended(run)

    def tasks(self, run: str) -> dict[str, Any]:
        """The task runs of a flow run, by stage. The server hears of their states a little later
        than of the run's."""

        def known() -> Any:
            tasks = self.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
            settled = all(task["state"] and task["state"]["type"] != "RUNNING" for task in tasks)
            return {task["name"]: task for task in tasks} if settled else None

        return dict(wait_for(known, f"the states of the tasks of {run}", 60))

    def outcomes(self, run: str) -> dict[str, str]:
        return {name: task["state"]["name"] for name, task in self.tasks(run).items()}

    def artifacts(self, run: str) -> dict[str, Any]:
        return {
            artifact["key"]: artifact
            for artifact in self.post("/artifacts/filter", {"flow_runs": {"id": {"any_": [run]}}})
        }

    def messages(self, run: str) -> list[str]:
        rows = self.post(
            "/logs/filter",
            {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200, "sort": "TIMESTAMP_ASC"},
        )
        return [row["message"] for row in rows]

    def flow_process(self) -> psutil.Process:
        """The process of the one flow run under way."""
        guards = [
            p
            for p in self.process_tree()
            if "guard.py" in " ".join(p.cmdline()) and "repro" in p.cmdline()
        ]
        (flow,) = {guard.parent() for guard in guards}
        assert flow is not None
        return flow

    def process_tree(self) -> list[psutil.Process]:
        return [
            p
            for p in psutil.Process(self.process.pid).children(recursive=True)
            if p.status() != psutil.STATUS_ZOMBIE
        ]


def wait_for(check: Callable[[], Any], what: str, seconds: float) -> Any:
    """The first true answer of `check`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := check():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds} s for {what}")


def free_ports() -> int:
    """The first of two free ports in a row."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@contextmanager
def serving(folder: Path, env: dict[str, str] | None = None) -> Iterator[Served]:
    """`make serve` in the project, stopped at the end if it still runs."""
    port, log = free_ports(), folder.parent / "serve.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "flows.serve", "--port", str(port)]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env or environment(folder),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(
            lambda: "started!" in log.read_text() or process.poll() is not None,
            f"make serve: {log}",
            600,
        )
        assert process.poll() is None, log.read_text()
        served = Served(folder, port, process, log)
        with served.client:
            yield served
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=200)
