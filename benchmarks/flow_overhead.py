"""What a flow costs over plain DVC when there is nothing to do: `dvc repro` against `python -m
flows.pipeline`.

    python -m benchmarks.flow_overhead
    python -m benchmarks.flow_overhead --stages 20 --parallel 4

Makes a project of independent, almost empty stages in a temporary folder and a Prefect server for
it, runs everything once, then times no-op runs of both in turn. Prints the seconds of each, their
ratio, and the flow's cost for each stage.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from flows.serve import ENVIRONMENT, prefect, wait_until_healthy

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stages", type=int, default=10, help="how many stages the project has (10)"
    )
    parser.add_argument("--parallel", type=int, default=2, help="max_parallel of the flow (2)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each is timed; the median counts (3)"
    )
    parser.add_argument("--port", type=int, default=4790, help="port of the server (4790)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        make_project(folder, arguments.stages)
        api = f"http://127.0.0.1:{arguments.port}/api"
        os.environ.update(
            ENVIRONMENT,
            PREFECT_API_URL=api,
            PREFECT_HOME=f"{name}/prefect",
            PYTHONPATH=f"{ROOT / 'src'}:{ROOT}",
            DVC_SITE_CACHE_DIR=f"{name}/site",
            DVC_NO_ANALYTICS="1",
        )
        dvc, flow = ["dvc", "repro"], ["flows.pipeline", "--max-parallel", str(arguments.parallel)]
        with prefect("server", "start", "--port", str(arguments.port)) as server:
            wait_until_healthy(f"{api}/health", server, "name a free port with --port")
            for command in (dvc, flow):  # everything is done once, and the code is in memory
                seconds(folder, command)
            times = [(seconds(folder, dvc), seconds(folder, flow)) for _ in range(arguments.rounds)]
    plain, watched = (median(column) for column in zip(*times, strict=True))
    each = (watched - plain) / arguments.stages
    print(
        f"dvc repro {plain:.1f} s, flow {watched:.1f} s, ratio {watched / plain:.1f}, {each:.2f} "
        f"s for each of {arguments.stages} stages"
    )


def make_project(folder: Path, num_stages: int) -> None:
    """A git repository with independent stages that each write one small file."""
    folder.mkdir()
    for command in (["git", "init", "--quiet"], [sys.executable, "-m", "dvc", "init", "--quiet"]):
        subprocess.run(command, cwd=folder, check=True)
    stages = [
        f"  stage{i}:\n    cmd: echo {i} > {i}.txt\n    outs: [{i}.txt]\n    deps: [params.yaml]\n"
        for i in range(num_stages)
    ]
    (folder / "dvc.yaml").write_text("stages:\n" + "".join(stages))
    (folder / "params.yaml").write_text("seed: 1\n")


def seconds(folder: Path, arguments: list[str]) -> float:
    """Wall time of `python -m ARGUMENTS`; ends the program if it fails."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"error: {' '.join(arguments)} failed\n{done.stdout}{done.stderr}")
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
