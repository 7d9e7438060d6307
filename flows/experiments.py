"""The experiments flow: a grid over params, each cell a DVC experiment, a few at a time, compared
at the end.

    python -m flows.experiments '{"rl.short.kl_weight": [0, 0.01], "seed": [1, 2]}' --targets
    evaluate

A cell runs `dvc repro` in a clone of its own below .dvc/tmp/cells, at the commit that is checked
out here, with this project's cache: stages that other cells or earlier runs have done are restored.
Its result is saved with `dvc exp save`, so that `dvc exp show`, `diff` and `apply` know it. Cells
that are there already are not run again, and one that was stopped goes on where it was. What is not
committed takes no part.

Departure from `dvc exp run --set-param`: that one loses a value without a word where params.yaml
shares it through an anchor, as ours does.
"""

import argparse
import hashlib
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger, task
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, as_completed
from prefect.states import Cancelled, Completed, Failed
from pydantic import Field

from flows import artifacts, comparison, process
from flows.output import Output
from flows.pipeline import RETRY_SECONDS, MaxParallel, Retries, run_name
from flows.serve import temporary_server
from flows.workspace import flow_lock, override_params, read_plan
from tracerl.disk import atomic_file, write_text
from tracerl.errors import TracerlError

Grid = Annotated[dict[str, list[Any]], Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]


@flow(name="experiments")
def experiments(
    grid: Grid,
    targets: list[str] = [],  # noqa: B006
    name: Name = "grid",
    max_parallel: MaxParallel = 1,
    retries: Retries = 0,
) -> State[None]:
    """Runs every combination of the grid's values that is no experiment of the current commit yet,
    then compares all of them.

    Args:
        grid: Params and the values to try, for example {"seed": [1, 2], "rl.short.kl_weight": [0,
        0.01]}.
        targets: Stages (rl@short) or groups of stages (evaluate) to bring up to date, with what
        they need; all if empty.
        name: Begins the names of the experiments.
        max_parallel: How many experiments run at the same time.
        retries: How often a failed experiment is tried again. It goes on from its last saved work.
    """
    root, logger = Path.cwd(), get_run_logger()
    process.reset_stop()
    with flow_lock(root, run_name(), logger.info, "experiments"):
        baseline = git(root, "rev-parse", "HEAD").strip()
        if changed := git(root, "status", "--porcelain", "--untracked-files=no"):
            logger.warning(
                "The experiments start from commit %s, without what is not committed:\n%s",
                baseline[:8],
                changed,
            )
        plan = read_plan(root, targets)
        metrics = [path for stage in plan.values() for path in stage.metrics]
        cells = {cell_name(name, values, targets): values for values in combinations(grid)}
        for values in cells.values():
            # A mistake in any cell shows before the first one runs.
            override_params(git(root, "show", f"{baseline}:./params.yaml"), values)
        states: dict[str, State[Any]] = {}
        try:
            run_cells(cells, root, baseline, list(plan), max_parallel, retries, states)
        except BaseException:
            process.stop_all()
            raise
        finally:
            compare(name, cells, root, baseline, metrics)
    failed = [cell for cell, state in states.items() if not state.is_completed()]
    counts = f"{len(cells) - len(failed)} of {len(cells)} experiments are there"
    return (
        Failed(message=f"{counts}; failed: {', '.join(failed)}")
        if failed
        else Completed(message=counts)
    )


def run_cells(
    cells: Mapping[str, Mapping[str, Any]],
    root: Path,
    baseline: str,
    stages: list[str],
    max_parallel: int,
    retries: int,
    states: dict[str, State[Any]],
) -> None:
    """Runs the cells in their order, as many at a time as there are slots; fills `states`."""
    waiting = list(cells)
    running: dict[PrefectFuture[Any], str] = {}
    while waiting or running:
        while waiting and len(running) < max_parallel:
            cell = waiting.pop(0)
            cell_task = run_cell.with_options(
                name=cell, task_run_name=cell, retries=retries, retry_delay_seconds=RETRY_SECONDS
            )
            future = cell_task.submit(
                cell,
                dict(cells[cell]),
                str(root),
                baseline,
                stages,
                run_name(),
                return_state=False,
            )
            running[future] = cell
        finished = next(as_completed(list(running)))
        finished.wait()
        states[running.pop(finished)] = finished.state


@task
def run_cell(
    cell: str, values: dict[str, Any], root: str, baseline: str, stages: list[str], run: str
) -> State[None]:
    """One cell: clone, params, `dvc repro`, `dvc exp save`, and the experiment's ref back into this
    repository."""
    project, logger = Path(root), get_run_logger()
    if is_there(project, baseline, cell):
        return Completed(name="Cached", message="The experiment is there already")
    log = project / "logs" / run / f"{cell}.log"
    folder = clone(project, baseline, cell, values)
    output = Output(cell, log, logger)
    for command in (
        ["checkout", "--allow-missing", "--quiet"],
        ["repro", *stages],
        ["exp", "save", "--force", "--name", cell, *stages],
    ):
        if command[0] == "exp":  # reports that no commit has yet are part of it too
            new = git(folder, "ls-files", "--others", "--exclude-standard").splitlines()
            command += [part for path in new for part in ("--include-untracked", path)]
        code = process.run(process.dvc(*command), folder, log, output)
        if process.stopping():
            return Cancelled(
                message=f"Stopped. The next run goes on from what is saved. Log: {log}"
            )
        if code:
            return Failed(
                message=(
                    f"dvc {command[0]} ended with status {code}: "
                    f"{output.trouble or 'it did not say why'} Log: {log}"
                )
            )
    git(project, "fetch", "--quiet", str(folder), f"{ref(baseline, cell)}:{ref(baseline, cell)}")
    shutil.rmtree(folder)
    return Completed(name="Ran", message=f"In dvc exp show as {cell}. Log: {log}")


def clone(project: Path, baseline: str, cell: str, values: Mapping[str, Any]) -> Path:
    """A clone at the baseline with the cell's params and this project's cache; the one of a stopped
    run if there is one."""
    folder = project / ".dvc" / "tmp" / "cells" / f"{baseline[:12]}-{cell}"
    if folder.is_dir():
        return folder
    with atomic_file(folder, "an experiment's clone cannot be made") as aside:
        git(project, "clone", "--quiet", "--shared", "--no-checkout", str(project), str(aside))
        git(aside, "checkout", "--quiet", "--detach", baseline)
        for name in ("user.name", "user.email"):  # `dvc exp save` makes a commit
            git(aside, "config", name, git(project, "config", name).strip())
        params = aside / "params.yaml"
        write_text(params, override_params(params.read_text("utf-8"), values))
        cache = subprocess.run(
            process.dvc("cache", "dir"), cwd=project, capture_output=True, text=True, check=True
        ).stdout.strip()
        (aside / ".dvc" / "config.local").write_text(
            f"[cache]\n    dir = {project / cache}\n", "utf-8"
        )
    return folder


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every choice of one value for each param of the grid, in order."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def cell_name(name: str, values: Mapping[str, Any], targets: Sequence[str]) -> str:
    """A readable name with a digest of everything that makes the cell another one."""
    text = " ".join(f"{key.split('.')[-1]} {json.dumps(value)}" for key, value in values.items())
    words = re.sub(r"[^A-Za-z0-9.]+|\.{2,}", "-", text)[:60].strip("-.")  # what git takes in a name
    digest = hashlib.sha256(
        json.dumps([dict(values), sorted(targets)], sort_keys=True).encode()
    ).hexdigest()
    return f"{name}-{words}-{digest[:6]}"


def ref(baseline: str, cell: str) -> str:
    """Where DVC keeps an experiment in git."""
    return f"refs/exps/{baseline[:2]}/{baseline[2:]}/{cell}"


def is_there(root: Path, baseline: str, cell: str) -> bool:
    """Whether the experiment has been saved."""
    command = ["git", "rev-parse", "--verify", "--quiet", ref(baseline, cell)]
    return subprocess.run(command, cwd=root, stdout=subprocess.DEVNULL, check=False).returncode == 0


def git(folder: Path, *arguments: str) -> str:
    """Output of a git command. Raises TracerlError if it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise TracerlError(
            f"git {arguments[0]} failed",
            where=str(folder),
            got=done.stderr.strip(),
            do=(
                "experiments need a git repository with a commit, and git's user.name and "
                "user.email"
            ),
        )
    return done.stdout


def compare(
    name: str, cells: comparison.Cells, root: Path, baseline: str, metrics: Sequence[str]
) -> None:
    """A table and plots of the experiments that are there, in the UI and as a page below
    reports/."""
    results = {}
    for cell in cells:
        if is_there(root, baseline, cell):
            results[cell] = cell_metrics(root, ref(baseline, cell), metrics)
    if not results:
        return
    text = comparison.markdown(comparison.table(cells, results))
    artifacts.publish_markdown(
        f"experiments {name}", text, f"{len(results)} of {len(cells)} experiments"
    )
    page = Path("reports", "experiments", f"{name}.html")
    write_text(root / page, comparison.page(name, cells, results))
    artifacts.publish_links(root, [page.as_posix()])


def cell_metrics(root: Path, revision: str, files: Sequence[str]) -> dict[str, float]:
    """The numbers in the metrics files of a git revision, by file and name. Those of the last
    stages come first: they hold the results."""
    numbers = {}
    for path in reversed(files):
        for name, value in artifacts.numbers(artifacts.metrics_at(root, revision, path)):
            numbers[f"{Path(path).stem} {name}"] = value
    return numbers


def main() -> None:
    """Runs the flow once, from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grid", type=json.loads, help="JSON: params and the values to try")
    parser.add_argument(
        "--targets", nargs="*", default=[], help="stages or groups of stages; all by default"
    )
    parser.add_argument("--name", default="grid", help="begins the experiments' names (grid)")
    parser.add_argument(
        "--max-parallel", type=int, default=1, metavar="N", help="experiments at the same time (1)"
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="how often a failed experiment is tried again (0)",
    )
    arguments = parser.parse_args()
    with temporary_server():
        state = experiments(**vars(arguments), return_state=True)
    sys.exit(0 if state.is_completed() else f"{state.name}: {state.message}")


if __name__ == "__main__":
    main()
