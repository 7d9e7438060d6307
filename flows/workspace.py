"""A project folder as the flows see it: the plan in its DVC graph, its params with overrides, and
one flow at a time."""

import contextlib
import copy
import difflib
import fcntl
import graphlib
import io
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from flows.lockfile import read_rwlock, safe_lock
from tracerl.disk import write_text
from tracerl.errors import ParamsError, TracerlError
from tracerl.settings.params import parse_params

_WAIT_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a flow knows of a DVC stage; paths are relative to the project.

    Example: Stage(name="rl@short", description="Reinforcement learning round short",
    needs=("sft@short", "tasks"), metrics=("reports/metrics/rl@short.json",), pages=(),
    tags=("gpu",), is_fresh=False).
    """

    name: str
    """As `dvc repro` calls it."""
    description: str
    """`desc` of the stage in dvc.yaml, or its command."""
    needs: tuple[str, ...]
    """Names of the stages whose outputs it reads."""
    metrics: tuple[str, ...]
    """Its metrics files."""
    pages: tuple[str, ...]
    """Its HTML pages. One need not be there: an output folder may hold none."""
    tags: tuple[str, ...]
    """`meta: {tags: [...]}` of the stage in dvc.yaml."""
    is_fresh: bool
    """Whether nothing that DVC has recorded of it has changed: `dvc repro` would not run it now."""


def read_plan(root: Path, targets: Sequence[str] = ()) -> dict[str, Stage]:
    """The stages that the targets need and the targets, or all stages: each after those it needs,
    those first after which the longest row of stages waits.

    A target is a stage (rl@short) or a group of stages (rl). Raises ParamsError for any other name.
    """
    from dvc.repo import Repo, lock_repo

    with Repo(str(root), _wait_for_lock=True) as repo, lock_repo(repo):
        graph = repo.index.graph
        nodes = {_name(node): node for node in graph}
        needs = {}
        for name, node in nodes.items():
            needs[name] = tuple(sorted(_name(needed) for needed in graph.successors(node)))
        names = _with_needs(needs, targets)
        order = list(
            graphlib.TopologicalSorter({name: needs[name] for name in names}).static_order()
        )
        heights = dict.fromkeys(order, 1)  # stages in the longest row that begins with this one
        for name in reversed(order):
            for need in needs[name]:
                heights[need] = max(heights[need], heights[name] + 1)
        order.sort(key=lambda name: (-heights[name], name))
        return {name: _stage(root, nodes[name], needs[name]) for name in order}


def is_target(stage: str, targets: Sequence[str]) -> bool:
    """Whether targets name a stage or its group, or there are none."""
    return not targets or stage in targets or stage.split("@")[0] in targets


def _with_needs(needs: Mapping[str, Sequence[str]], targets: Sequence[str]) -> set[str]:
    """The stages that targets name, and all that those need."""
    unknown = [target for target in targets if not any(is_target(name, [target]) for name in needs)]
    if unknown:
        near = difflib.get_close_matches(unknown[0].replace(".", "@"), list(needs), n=1)
        raise ParamsError(
            "no stage of this name",
            where="targets",
            got=", ".join(unknown),
            wanted=", ".join(sorted(needs)),
            do=f"did you mean {near[0]}?" if near else "",
        )
    waiting = [name for name in needs if is_target(name, targets)]
    names: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            waiting += needs[name]
    return names


def _name(node: Any) -> str:
    """What `dvc repro` calls a stage in the project's root: its name, behind its file if that is
    not dvc.yaml. Added data is its file."""
    name, file = getattr(node, "name", None), node.path_in_repo
    return str(file if name is None else name if file == "dvc.yaml" else f"{file}:{name}")


def _stage(root: Path, node: Any, needs: Sequence[str]) -> Stage:
    outs = [Path(out.fs_path).relative_to(root) for out in node.outs]
    metrics = [path.as_posix() for path, out in zip(outs, node.outs, strict=True) if out.metric]
    pages = [
        (path if path.suffix else path / "index.html").as_posix()
        for path in outs
        if path.suffix in (".html", "")
    ]
    tags = (node.meta or {}).get("tags", [])
    return Stage(
        name=_name(node),
        description=node.desc or node.cmd or "",
        needs=tuple(needs),
        metrics=tuple(metrics),
        pages=tuple(pages),
        tags=tuple(tags),
        is_fresh=_is_fresh(node),
    )


def _is_fresh(node: Any) -> bool:
    """Whether nothing that DVC has recorded of a stage has changed."""
    from dvc.lock import LockError

    try:
        return not node.changed()
    except LockError:  # another DVC process works on its files
        return False


def override_params(text: str, overrides: Mapping[str, Any], where: str = "params.yaml") -> str:
    """The text of a params file with `overrides` (dotted key -> value), checked against the params'
    schema.

    Comments and anchors stay, unless a value is shared through an anchor with keys that are not
    overridden: then every anchor is written out, since `dvc exp run -S` and a plain edit would
    change the other keys too, or nothing. Raises ParamsError.
    """
    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 4096
    wanted = _plain(text)
    for key, value in overrides.items():
        _assign(wanted, key, copy.deepcopy(value), where)
    parse_params(wanted, where)
    tree = yaml.load(text)
    for key, value in overrides.items():
        _assign(tree, key, copy.deepcopy(value), where)
    edited = io.StringIO()
    yaml.dump(tree, edited)
    if _plain(edited.getvalue()) == wanted:
        return edited.getvalue()
    resolved = io.StringIO()
    yaml.dump(wanted, resolved)
    return (
        "# Params of one flow run with overrides; afterwards the file is as before.\n"
        + resolved.getvalue()
    )


def write_overrides(root: Path, overrides: Mapping[str, Any]) -> None:
    """Writes overrides into params.yaml until `restore_params`. Raises ParamsError."""
    params = root / "params.yaml"
    original = params.read_text("utf-8")
    text = override_params(original, overrides)
    folder = _override_folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "original.yaml", original)
    write_text(folder / "overridden.yaml", text)
    write_text(params, text)


def restore_params(root: Path, say: Callable[[str], None]) -> None:
    """Takes overrides of a flow run back out of params.yaml, also those of a run that was killed.

    What was edited meanwhile stays; where an edit and an override meet, the edit does.
    """
    params = root / "params.yaml"
    folder = _override_folder(root)
    original, overridden = folder / "original.yaml", folder / "overridden.yaml"
    if not (original.is_file() and overridden.is_file()):
        return
    if params.read_text("utf-8") == overridden.read_text("utf-8"):
        write_text(params, original.read_text("utf-8"))
    else:
        names = [str(params), str(overridden), str(original)]
        command = ["git", "merge-file", "--stdout", "--ours", *names]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or _is_broken(done.stdout):
            say(f"params.yaml was edited during a run with overrides; before it was {original}")
            return
        write_text(params, done.stdout)
        say("params.yaml was edited during a run with overrides: the edits stay, the overrides go")
    overridden.unlink()
    original.unlink()


def _is_broken(text: str) -> bool:
    """Whether a params file is no YAML."""
    try:
        _plain(text)
    except YAMLError:
        return True
    return False


def _override_folder(root: Path) -> Path:
    return root / ".dvc" / "tmp" / "overrides"


def _plain(text: str) -> Any:
    """The data of a YAML file, no object shared between two keys."""
    data = YAML(typ="safe", pure=True).load(text)
    return data if data is None else _copy_plain(data)


def _copy_plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _copy_plain(value) for key, value in data.items()}
    return [_copy_plain(value) for value in data] if isinstance(data, list) else data


def _assign(tree: Any, key: str, value: Any, where: str) -> None:
    parts = key.split(".")
    for depth, part in enumerate(parts, start=1):
        known = {str(name): name for name in tree} if isinstance(tree, dict) else {}
        if part not in known:
            raise ParamsError(
                "an override names no key of the params",
                where=f"{where}: {key}",
                got=part,
                wanted=", ".join(known),
            )
        if depth == len(parts):
            tree[known[part]] = value
        tree = tree[known[part]]


@contextlib.contextmanager
def flow_lock(
    root: Path, who: str, say: Callable[[str], None], what: str = "flow"
) -> Iterator[None]:
    """One flow of a kind at a time in this folder: waits, saying for whom, until no other one holds
    it. The lock ends with the process."""
    path = root / ".dvc" / "tmp" / f"{what}.lock"
    if not (root / ".dvc").is_dir():
        raise TracerlError(
            "not a DVC project",
            where=str(root),
            do="start the flow in the folder that holds .dvc/ and dvc.yaml",
        )
    path.parent.mkdir(exist_ok=True)
    with path.open("a+") as file:
        waits = WaitNotifier(say)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                waits.wait(f"another flow run works in this folder ({file.read().strip()})")
        with contextlib.suppress(OSError):  # a full disk: others wait without knowing for whom
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"{who}, process {os.getpid()}".encode())
        yield


@contextlib.contextmanager
def single_run(root: Path, who: str, say: Callable[[str], None]) -> Iterator[None]:
    """The one run of DVC in this folder: waits for every other one, and keeps DVC's lock files
    whole. Raises TracerlError."""
    with flow_lock(root, who, say):
        wait_for_runs(root, say)
        with safe_lock(root, say):
            yield


def wait_for_plain_dvc(root: Path, say: Callable[[str], None]) -> None:
    """Waits until no `dvc repro` runs stages in this folder: it reads params.yaml as it goes, so
    that nobody may change it meanwhile, and it keeps others off the files of its stage."""
    waits = WaitNotifier(say)
    while busy := _dvc_processes(root):
        waits.wait(
            f"another DVC process runs stages in this folder (process {', '.join(map(str, busy))})"
        )


def wait_for_runs(root: Path, say: Callable[[str], None]) -> None:
    """Waits until no stage and no `dvc repro` runs in this folder: those of a runner that was
    killed go on without it, write dvc.lock, and keep others off their files."""
    waits = WaitNotifier(say)
    while runs := _run_processes(root):
        waits.wait(f"another run is at work in this folder ({', '.join(runs)})")


def _run_processes(root: Path) -> list[str]:
    """Stages and DVC's runs in this folder, with their process ids."""
    runs = []
    for process in psutil.process_iter():
        try:
            name = _run_name(process.cmdline())
            if name is not None and Path(process.cwd()) == root:
                runs.append(f"{name}, process {process.pid}")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return runs


def _run_name(words: Sequence[str]) -> str | None:
    """What a command line runs: a stage, or several ones through DVC; None for anything else."""
    if any(Path(word).name == "dvc" for word in words) and {"repro", "exp"} & set(words):
        return "dvc repro"
    return next((word for word in words if word.startswith("stages.")), None)


def _dvc_processes(root: Path) -> list[int]:
    """Living processes that hold DVC's locks on stages' inputs and outputs."""
    path = root / ".dvc" / "tmp" / "rwlock"
    locks = (read_rwlock(path) if path.is_file() else None) or {}
    holders = [
        *locks.get("write", {}).values(),
        *(reader for readers in locks.get("read", {}).values() for reader in readers),
    ]
    return sorted({holder["pid"] for holder in holders if psutil.pid_exists(holder["pid"])})


class WaitNotifier:
    """Waiting that says for what it waits, at once and then every minute."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said = float("-inf")

    def wait(self, reason: str) -> None:
        if time.monotonic() - self._said >= 60:
            self._said = time.monotonic()
            self._say(f"Waiting: {reason}")
        time.sleep(_WAIT_SECONDS)
