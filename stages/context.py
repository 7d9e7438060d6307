"""What every stage script needs: its params section, a scratch workspace named by a fingerprint, a
progress bar, and a clean failure.

Stages are started by DVC in the project's root. They know the params file, the folders and the
terminal; the library knows none of these.
"""

import argparse
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm import tqdm

from tracerl import distributed
from tracerl.disk import file_sha256, write_json, write_text
from tracerl.errors import DataError, ParamsError, TracerlError
from tracerl.settings.models import Launch
from tracerl.settings.params import Params, load_params
from tracerl.training.scratch import Workspace
from tracerl.types import Task

if TYPE_CHECKING:  # stages without tensors do not wait for torch
    import torch

    from tracerl.models.cost import Meter

Section = TypeVar("Section")

CODE = Path(__file__).resolve().parents[1]
ROOT = Path(os.environ.get("DVC_ROOT", ".")).resolve()
DATA, REPORTS = ROOT / "data", ROOT / "reports"
CHECKPOINTS, ROLLOUTS, TASKS, TRACES, EVALS = (
    DATA / n for n in ("checkpoints", "rollouts", "tasks", "traces", "evals")
)
SCRATCH = DATA / "scratch"

_PROCESS = os.getpid()
_stop_asked = False
_meters: dict[str, "tuple[Meter, torch.device]"] = {}
_locks: dict[Path, int] = {}


def load(*, ranks: bool = False) -> Params:
    """The params file of this workspace, with torch set to its thread count.

    ranks: whether the stage's work is shared by several processes where the params say so
    (`launch`). This process then becomes their launcher, which runs the same command line once for
    each of them, or, where a launcher has started it, one of the ranks.
    """
    import torch  # stages that compute nothing with it read the file themselves and start seconds sooner

    params = load_params(ROOT / "params.yaml")
    pin_vectors(params.compute.vectors)
    torch.set_num_threads(params.threads)
    if (
        ranks
        and not distributed.is_launched()
        and (params.launch.ranks > 1 or params.launch.hosts or params.launch.zero)
    ):
        _launch(params.launch)
    if ranks:
        distributed.join()
    return params


def pin_vectors(vectors: str) -> None:
    """Keeps torch's CPU kernels to vectors of one width (`compute.vectors`), so that every x86 CPU
    that has them gives the same bits.

    torch reads the variable when it first computes, which is after this. Raises ParamsError if this
    CPU lacks these instructions, or if torch has chosen its kernels before. No effect on ARM.
    """
    import torch

    if vectors == "widest":
        os.environ.pop("ATEN_CPU_CAPABILITY", None)
        return
    if platform.machine() not in ("x86_64", "AMD64"):
        return
    flags = cpu_flags()
    needs = {"avx2": {"avx2", "fma"}, "avx512": {"avx512f", "avx512vl", "avx512bw", "avx512dq"}}
    if flags and not needs[vectors] <= flags:
        raise ParamsError(
            "this CPU has no vector instructions of this width",
            where="params.yaml: compute.vectors",
            got=vectors,
            do="set compute.vectors: widest; numbers then differ from other machines' in their last bits",
        )
    os.environ["ATEN_CPU_CAPABILITY"] = vectors
    used = torch.backends.cpu.get_cpu_capability().lower()
    if used != vectors:
        raise ParamsError(
            "torch computes with vectors of another width",
            where="params.yaml: compute.vectors",
            got=used,
            wanted=vectors,
            do=f"start the process with ATEN_CPU_CAPABILITY={vectors} in its environment",
        )


def cpu_flags() -> set[str]:
    """The instruction sets that Linux says this CPU has; empty where it cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    for line in lines:
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def trainable(tasks: Sequence[Task]) -> list[Task]:
    """The train split."""
    return [task for task in tasks if task.split == "train"]


def held_out(tasks: Sequence[Task], where: str) -> list[Task]:
    """The test split. Raises DataError if it is empty."""
    test = [task for task in tasks if task.split == "test"]
    if not test:
        raise DataError(
            "a task set has no held-out problem",
            where=where,
            got=f"{len(tasks)} tasks",
            wanted="a test split",
            do="raise num_test of the set, or give its file more prompts",
        )
    return test


def task_files(names: Iterable[str]) -> dict[str, Path]:
    """Where the task sets lie."""
    return {name: TASKS / f"{name}.parquet" for name in names}


def section(sections: Mapping[str, Section], kind: str, name: str) -> Section:
    """The params section of one stage of a kind."""
    if name not in sections:
        raise ParamsError(
            f"no {kind} of this name", where="params.yaml", got=name, wanted=", ".join(sections)
        )
    return sections[name]


def training_outputs(stage: str) -> dict[str, Path]:
    """Where checkpoint, curve and metrics of a training stage are published."""
    return {
        "curve.tsv": REPORTS / "curves" / f"{stage}.tsv",
        "metrics.json": REPORTS / "metrics" / f"{stage}.json",
        "checkpoint": CHECKPOINTS / stage,
    }


def write_curve(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of one kind as tab-separated values, for DVC plots and the report."""
    lines = ["\t".join(rows[0])] + [
        "\t".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in row.values())
        for row in rows
    ]
    write_text(path, "\n".join(lines) + "\n")


def workspace(stage: str, params: Params, section: Any, inputs: Sequence[Path]) -> Workspace:
    """The scratch workspace of a stage; other fingerprints' leftovers of the same stage are
    removed.

    Raises DataError while another process works on the same stage.
    """
    name = f"{stage}-{_fingerprint(params, section if isinstance(section, tuple) else (section,), inputs)}"
    if not distributed.is_first():
        distributed.barrier()  # until the first rank has cleared and locked the place
        return Workspace(SCRATCH / name, lambda: distributed.is_set_on_any_rank(_stop_asked))
    for other in SCRATCH.glob(f"{stage}-*"):
        if other.name != name and re.fullmatch(
            re.escape(stage) + r"-[0-9a-f]{12}(\.tmp)?", other.name
        ):
            _lock(other, stage)
            shutil.rmtree(other)
    (SCRATCH / name).mkdir(parents=True, exist_ok=True)
    _lock(SCRATCH / name, stage)
    distributed.barrier()
    return Workspace(SCRATCH / name, lambda: distributed.is_set_on_any_rank(_stop_asked))


def measure(stage: str, *models: object) -> None:
    """Counts the passes of these models from now on; logs/measured/<stage>.json holds them, with
    the peak of memory, when the stage ends.

    Of a stage that was resumed they are those of its last process. They are no output: two runs
    differ in them.
    """
    from tracerl.models.cost import Meter
    from tracerl.models.policy import Policy

    watched = [model for model in models if isinstance(model, Policy)]
    if watched:
        meter, _ = _meters.setdefault(stage, (Meter(), watched[0].device))
        for model in watched:
            meter.watch(model)


def progress(stage: str, unit: str) -> Callable[[int, int, str], None]:
    """A progress bar with ETA, from now on: a live line on a terminal, a line every ten seconds
    elsewhere.

    To be called after the work that it shows is saved: it raises KeyboardInterrupt once a signal
    has asked the stage to end. Of several ranks the first one shows.
    """
    live = sys.stderr.isatty()
    bar = tqdm(
        desc=stage,
        unit=unit,
        mininterval=0.5 if live else 10,
        dynamic_ncols=live,
        disable=not distributed.is_first(),
    )

    def show(done: int, total: int, text: str = "") -> None:
        if bar.total is None:
            bar.total, bar.initial, bar.n = (
                total,
                done - 1,
                done - 1,
            )  # a resumed stage starts where it was
        bar.set_postfix_str(text, refresh=False)
        bar.update(done - bar.n)
        if done >= total:
            bar.close()
        if _stop_asked:
            raise KeyboardInterrupt(f"{stage} after {unit} {done} of {total}")

    return show


def run(main: Callable[..., None], description: str, *argument: str) -> None:
    """Runs a stage with its one positional argument, if it has one; an error of ours ends it with
    its message, not a traceback.

    The first SIGINT or SIGTERM lets it finish and save the unit of work it is in, the second ends
    it at once; both leave it resumable.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in argument:
        parser.add_argument(name)
    arguments = vars(parser.parse_args())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ask_to_stop)
    try:
        main(**arguments)
        if distributed.is_first():
            _write_measured()
    except KeyboardInterrupt as stopped:
        sys.exit(
            f"stopped: {stopped}; the same command continues from what is saved"
            if distributed.is_first()
            else 1
        )
    except TracerlError as error:
        sys.exit(f"error: {error}")
    except RuntimeError as error:
        if not distributed.is_peer_failure(error):
            raise
        sys.exit(
            f"stopped: rank {distributed.rank()} lost the others ({str(error).splitlines()[0]})"
        )
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.exit(
            f"error: the disk is full\n  where: {error.filename or DATA}\n  what to do: free space and run the same command again"
        )


def _write_measured() -> None:
    for stage, (meter, device) in _meters.items():
        from tracerl.models.cost import peak_memory

        write_json(
            ROOT / "logs" / "measured" / f"{stage}.json",
            {"peak_bytes": peak_memory(device), **asdict(meter)},
        )


def _launch(launch: Launch) -> None:
    """Becomes torchrun for this command line; with other hosts, starts it there too and ends with
    the one here."""
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
    meeting = f"{launch.hosts[0]}:{launch.port}"
    torchrun += [
        "--nnodes",
        str(len(launch.hosts)),
        "--rdzv-backend",
        "c10d",
        "--rdzv-id",
        "-".join(stage[1:]),
        "--rdzv-endpoint",
        meeting,
    ]
    names = ("DVC_ROOT", "PYTHONPATH", "OMP_NUM_THREADS")
    settings = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    there = (
        f"cd {shlex.quote(os.getcwd())} && exec env {shlex.join([*settings, *torchrun, *stage])}"
    )
    # A terminal of their own: what runs there ends with the connection.
    others = [
        subprocess.Popen(["ssh", "-tt", host, there], stdin=subprocess.DEVNULL)
        for host in launch.hosts[1:]
    ]
    here = subprocess.Popen([*torchrun, *stage])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: here.send_signal(number))
    status = here.wait()
    for other in others:
        other.terminate()
    sys.exit(status if status >= 0 else 128 - status)


def _ask_to_stop(number: int, _: object) -> None:
    global _stop_asked
    for again in (signal.SIGINT, signal.SIGTERM):
        signal.signal(again, signal.SIG_DFL)
    if (
        os.getpid() != _PROCESS
    ):  # a forked child, which has nothing to save and whose parent expects it to end
        os.kill(os.getpid(), number)
    _stop_asked = True
    os.write(
        2,
        f"{signal.Signals(number).name}: stopping when this unit of work is saved; once more ends it at once\n".encode(),
    )


def _lock(directory: Path, stage: str) -> None:
    """Keeps other processes off a scratch directory until this one ends, however it ends."""
    if directory in _locks and os.path.samestat(os.fstat(_locks[directory]), directory.stat()):
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataError(
            "the stage is being run by another process",
            where=str(directory),
            got=stage,
            do="let it finish or stop it, then run the same command again",
        ) from None
    _locks[directory] = descriptor


def _fingerprint(params: Params, sections: Sequence[Any], inputs: Sequence[Path]) -> str:
    """Of everything a stage's result depends on: its params, seed, threads, torch's version, its
    inputs' bytes and the library's code."""
    judging = params.verification.model_dump(exclude={"num_workers"})
    common = [
        params.seed,
        params.threads,
        params.truncated_is_wrong,
        params.compute.model_dump(),
        judging,
        version("torch"),
    ]
    digest = hashlib.sha256(
        json.dumps([[part.model_dump() for part in sections], *common]).encode()
    )
    for folder in (CODE / "src", CODE / "stages", *inputs):
        pattern = "*.py" if folder.parent == CODE else "*"
        for file in [folder] if folder.is_file() else sorted(folder.rglob(pattern)):
            if file.is_file():
                digest.update(f"{file.relative_to(folder.parent)} {file_sha256(file)}".encode())
    return digest.hexdigest()[:12]
