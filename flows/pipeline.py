"""The pipeline flow: every stage of the DVC graph as a Prefect task that runs it through DVC.

    python -m flows.pipeline                    everything, as `dvc repro` would
    python -m flows.pipeline evaluate report    these stages and what they need

The plan is read from the DVC graph at the start of each run: stages are declared in dvc.yaml only.
What is fresh is DVC's decision too, asked for when the plan is read; for a stage that is not, or
that follows such a one, a task runs `dvc repro --single-item STAGE` and reads from its output
whether the stage ran, was restored from the run cache or was unchanged. Prefect adds
schedules, retries, limits, logs, artifacts and a button that stops it all.
"""

# No `from __future__ import annotations`: Prefect makes the form of the parameters from the real
# annotations.
import argparse
import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger, task
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture, as_completed
from prefect.states import Cancelled, Completed, Failed
from pydantic import Field

from flows import artifacts, process
from flows.output import MEANING, Output, hide_failed_runs, run_unlocked
from flows.serve import temporary_server
from flows.workspace import (
    Stage,
    is_target,
    override_params,
    read_plan,
    restore_params,
    single_run,
    wait_for_plain_dvc,
    write_overrides,
)
from tracerl.errors import TracerlError

Logger = logging.Logger | logging.LoggerAdapter[Any]

RETRY_SECONDS = 2.0
CAUSE = ": "

MaxParallel = Annotated[int, Field(ge=1, le=64)]
Retries = Annotated[int, Field(ge=0, le=10)]


@flow(name="pipeline")
def pipeline(
    targets: list[str] = [],  # noqa: B006
    overrides: dict[str, Any] = {},  # noqa: B006
    force: bool = False,
    max_parallel: MaxParallel = 2,
    retries: Retries = 0,
) -> State[None]:
    """Brings the stages of this folder's DVC project up to date. A run over a folder in use waits
    for the other one to end.

    Args:
        targets: Stages (rl@short) or groups of stages (evaluate) to bring up to date, with what
        they need; all if empty.
        overrides: Params to change in params.yaml for this run, for example
        {"rl.short.iterations": 20}. Afterwards the file is as before.
        force: Run the targets, or all stages, even if nothing changed.
        max_parallel: How many independent stages run at the same time.
        retries: How often a stage that crashed or was killed is tried again. It goes on from its
        last saved work. What a stage itself calls an error would come again, and ends it.
    """
    logger = get_run_logger()
    process.reset_stop()
    hide_failed_runs()
    try:
        return update(Path.cwd(), logger, targets, overrides, force, max_parallel, retries)
    except TracerlError as error:  # a wrong target or override: said, without a traceback
        for line in f"error: {error}".splitlines():
            logger.error("%s", line)
        return Failed(message=str(error))


def update(
    root: Path,
    logger: Logger,
    targets: list[str],
    overrides: Mapping[str, Any],
    force: bool,
    max_parallel: int,
    retries: int,
) -> State[None]:
    """One run of the pipeline. Raises TracerlError for what no stage can be blamed for."""
    with (
        single_run(root, run_name(), logger.info),
        params_with(root, overrides, logger),
    ):
        plan = read_plan(root, targets)
        logs = root / "logs" / run_name()
        states: dict[str, State[Any]] = {}
        try:
            forced = [name for name in plan if force and is_target(name, targets)]
            run_plan(plan, root, logs, forced, max_parallel, retries, states)
        except BaseException:  # Prefect's cancel is one of them
            process.stop_all()
            raise
        finally:
            show_results(plan, states, root, logs)
    return summary(plan, states)


def run_plan(
    plan: Mapping[str, Stage],
    root: Path,
    logs: Path,
    forced: list[str],
    max_parallel: int,
    retries: int,
    states: dict[str, State[Any]],
) -> None:
    """Runs each stage as soon as what it needs has run and one of the slots is free; fills
    `states`. DVC is not started for a fresh stage, unless something that it needs was run."""
    order = TopologicalSorter({name: stage.needs for name, stage in plan.items()})
    order.prepare()
    futures: dict[str, PrefectFuture[Any]] = {}
    ready: list[str] = []
    runs: set[str] = set()  # what was handed to DVC: it may have changed
    place = {name: i for i, name in enumerate(plan)}
    running: dict[PrefectFuture[Any], str] = {}
    while order.is_active():
        ready = sorted([*ready, *order.get_ready()], key=place.__getitem__)
        while ready and len(running) < max_parallel:
            stage = plan[name := ready.pop(0)]
            stage_task = run_stage.with_options(
                name=name,
                description=stage.description,
                tags=stage.tags,
                retries=retries,
                retry_delay_seconds=RETRY_SECONDS,
                retry_condition_fn=may_end_otherwise,
                task_run_name=name,
            )
            needs = [futures[need] for need in stage.needs]
            is_fresh = stage.is_fresh and name not in forced and runs.isdisjoint(stage.needs)
            if not is_fresh:
                runs.add(name)
            futures[name] = stage_task.submit(
                stage,
                str(root),
                str(logs),
                name in forced,
                is_fresh,
                return_state=False,
                wait_for=needs,
            )
            running[futures[name]] = name
        finished = next(as_completed(list(running)))
        finished.wait()  # or its state is not there yet
        name = running.pop(finished)
        states[name] = finished.state
        order.done(name)  # also if it failed: what needs it then shows as NotReady


def may_end_otherwise(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Whether a failed stage may end otherwise if it is tried again: not after an error of ours,
    which says what a person has to do."""
    del task, task_run
    return f"{CAUSE}error: " not in (state.message or "")


@task
def run_stage(stage: Stage, root: str, logs: str, force: bool, is_fresh: bool) -> State[None]:
    """One stage through DVC, with its log, its progress and its metrics; nothing if it is fresh."""
    if is_fresh:
        return Completed(name="Cached", message=f"{MEANING['Cached']}.")
    logger, started = get_run_logger(), time.monotonic()
    log = Path(logs) / f"{stage.name}.log"
    output = Output(stage.name, log, logger)
    command = process.dvc("repro", "--single-item", *(["--force"] if force else []), stage.name)
    code = None
    try:
        code = run_unlocked(command, Path(root), log, output)
    finally:
        metrics = stage.metrics if code == 0 else files_since(started, Path(root), stage.metrics)
        if output.outcome != "Cached":
            artifacts.publish_metrics(Path(root), stage.name, metrics)
    if process.stopping():
        return Cancelled(message=f"Stopped. The next run goes on from what is saved. Log: {log}")
    if code:
        return Failed(
            message=(
                f"DVC ended with status {code}{CAUSE}{output.trouble or 'it did not say why'}"
                f" Log: {log}"
            )
        )
    return Completed(
        name=output.outcome,
        message=f"{MEANING[output.outcome]}, {time.time() - started:.0f} s. Log: {log}",
    )


def files_since(started: float, root: Path, files: Sequence[str]) -> list[str]:
    """Files that are not those of an earlier run, which stay until a stage publishes; `started` in
    seconds since 1970."""
    paths = {name: root / name for name in files}
    return [n for n, path in paths.items() if path.is_file() and path.stat().st_mtime >= started]


@contextlib.contextmanager
def params_with(root: Path, overrides: Mapping[str, Any], logger: Logger) -> Iterator[None]:
    """While it is open, params.yaml has the overrides, where DVC sees them; then it is as before,
    with what was edited meanwhile."""
    restore_params(root, logger.warning)
    if not overrides:
        yield
        return
    # A mistake shows before any waiting.
    override_params((root / "params.yaml").read_text("utf-8"), overrides)
    wait_for_plain_dvc(root, logger.info)
    write_overrides(root, overrides)
    rows = [{"param": key, "value": repr(value)} for key, value in overrides.items()]
    artifacts.publish_table("overrides", rows, "Params that this run changes, for this run only")
    try:
        yield
    finally:
        restore_params(root, logger.warning)


def show_results(
    plan: Mapping[str, Stage], states: Mapping[str, State[Any]], root: Path, logs: Path
) -> None:
    """A table of what happened to each stage, and links to the pages; also after a failure or a
    cancel."""
    rows = []
    for name in plan:
        log = logs / f"{name}.log"
        rows.append(
            {
                "stage": name,
                "state": states[name].name if name in states else "unfinished",
                "log": str(log.relative_to(root)) if log.is_file() else "",
            }
        )
    artifacts.publish_table("stages", rows, "What this run did")
    artifacts.publish_links(root, [page for stage in plan.values() for page in stage.pages])


def summary(plan: Mapping[str, Stage], states: Mapping[str, State[Any]]) -> State[None]:
    """The state of the whole run, which names what failed."""
    names = [states[name].name or "" for name in plan]
    counts = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
    failed = [name for name in plan if states[name].is_failed() or states[name].is_crashed()]
    if failed:
        return Failed(message=f"Failed: {', '.join(failed)} ({counts})")
    return Completed(message=counts)


def run_name() -> str:
    """The name of the flow run, with the beginning of its id, since names may repeat."""
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return f"{context.flow_run.name}-{str(context.flow_run.id)[:8]}"


def main() -> None:
    """Runs the flow once, from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", help="stages or groups of stages; all by default")
    parser.add_argument(
        "--force", action="store_true", help="run the targets even if nothing changed"
    )
    parser.add_argument(
        "--max-parallel",
        type=int,
        default=2,
        metavar="N",
        help="independent stages at the same time (2)",
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="how often a stage that crashed is tried again (0)",
    )
    arguments = parser.parse_args()
    with temporary_server():
        state = pipeline(**vars(arguments), return_state=True)
    sys.exit(0 if state.is_completed() else f"{state.name}: {state.message}")


if __name__ == "__main__":
    main()
