"""DVC's lock files survive a kill and a full disk.

DVC rewrites dvc.lock in place after every stage. A kill meanwhile leaves it empty or cut off: DVC
then refuses to run, or has forgotten what it ran. Whoever runs DVC here keeps a good copy in
.dvc/tmp and puts it back. The same holds for .dvc/tmp/rwlock, which names running processes: a
damaged one is removed.
"""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tracerl.disk import write_text
from tracerl.errors import DataError

_POLL_SECONDS = 0.5
_RWLOCK_TRIES = 5
_RWLOCK_SECONDS = 0.05
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@contextlib.contextmanager
def safe_lock(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """While it is open, DVC may be killed in this folder at any moment: damage of earlier runs is
    repaired first, and that of this one at the end.

    Raises DataError if the lock is damaged and there is nothing to repair it with, or the disk
    does not take the repaired one.
    """
    repair(folder, say)
    repair_rwlock(folder, say)
    keep_copy(folder)
    end = threading.Event()

    def watch() -> None:
        while not end.wait(_POLL_SECONDS):
            with contextlib.suppress(DataError):  # a full disk: the copy before stays
                keep_copy(folder)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        end.set()
        watcher.join()
        repair(folder, say)
        _copy_path(folder).unlink(missing_ok=True)


def repair(folder: Path, say: Callable[[str], None]) -> None:
    """Puts back what a kill has taken from dvc.lock, and says so.

    With a copy: damaged is a lock that does not parse, or that lacks stages of the copy and is not
    the committed one. Without a copy, a lock that does not parse is replaced by the committed one.
    Raises DataError if there is none either.
    """
    lock = folder / "dvc.lock"
    copy = _copy_path(folder)
    text = lock.read_text("utf-8", errors="replace") if lock.is_file() else ""
    stages = stages_of(text)
    if copy.is_file():
        before = stages_of(copy.read_text("utf-8")) or {}
        if stages is None or (_is_cut(before, stages) and text != _lock_of_last_commit(folder)):
            now = _entries_before_cut(text)
            write_text(lock, _dump({**before, **now}))
            lost = ", ".join(sorted(set(before) - set(now)))
            say(f"dvc.lock was cut off by a kill; entries put back: {lost}")
        return
    if stages is not None or not lock.is_file():
        return
    committed = _lock_of_last_commit(folder)
    if stages_of(committed) is None:
        raise DataError(
            "dvc.lock was cut off by a kill, and no good copy is there",
            where=str(lock),
            got=f"{len(text)} characters that are no lock file",
            do="delete it; DVC then takes what its run cache has and runs the rest again",
        )
    write_text(lock, committed)
    say("dvc.lock was cut off by a kill; the committed one is back, later stages may run again")


def repair_rwlock(folder: Path, say: Callable[[str], None]) -> None:
    """Removes DVC's list of running processes where a kill has cut it off: DVC would end with
    an error until someone deletes it."""
    path = folder / ".dvc" / "tmp" / "rwlock"
    if path.is_file() and read_rwlock(path) is None:
        path.unlink(missing_ok=True)
        say(f"{path} was cut off by a kill; it is removed")


def read_rwlock(path: Path) -> dict[str, Any] | None:
    """Which processes hold which files; None if it is damaged. One that is being written is
    read again: DVC empties it first."""
    for _ in range(_RWLOCK_TRIES):
        with contextlib.suppress(OSError, ValueError):
            locks = json.loads(path.read_text("utf-8"))
            return locks if isinstance(locks, dict) else None
        time.sleep(_RWLOCK_SECONDS)
    return None


def keep_copy(folder: Path) -> None:
    """Copies dvc.lock, if it is whole and lacks no stage of the copy before."""
    copy = _copy_path(folder)
    try:
        text = (folder / "dvc.lock").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return
    stages = stages_of(text)
    if stages is None:
        return
    if copy.is_file():
        before = copy.read_text("utf-8")
        if text == before or set(stages_of(before) or {}) - set(stages):
            return
    copy.parent.mkdir(parents=True, exist_ok=True)
    write_text(copy, text)


def stages_of(text: str) -> dict[str, Any] | None:
    """The entries of a lock file by stage; None if the text is no whole lock file.

    A text that ends within a line is not whole, even if it happens to be YAML.
    """
    if not text.endswith("\n"):
        return None
    stages = _parse(text)
    if stages is None or not all(_is_whole(entry) for entry in stages.values()):
        return None
    return stages


def _parse(text: str) -> dict[str, Any] | None:
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return None
    if not isinstance(data, dict) or data.get("schema") != "2.0":
        return None
    stages = data.get("stages") or {}
    return stages if isinstance(stages, dict) else None


def _entries_before_cut(text: str) -> dict[str, Any]:
    """Entries of a lock file that ends anywhere, but for the one in which it ends."""
    entries = _parse(text[: text.rfind("\n") + 1]) or {}
    names = list(entries)[:-1]
    return {name: entries[name] for name in names if _is_whole(entries[name])}


def _is_cut(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether entries that parse are fewer than before, or the last one says less."""
    if set(before) - set(now):
        return True
    last = next(reversed(now), "")
    return last in before and _num_values(now[last]) < _num_values(before[last])


def _num_values(entry: dict[str, Any]) -> int:
    """How much an entry says of its outputs, which are written last."""
    return sum(len(out) for out in entry["outs"])


def _is_whole(entry: Any) -> bool:
    """An entry that was cut off has no outputs, or an output or a dependency without its hash."""
    if not isinstance(entry, dict) or "cmd" not in entry or not entry.get("outs"):
        return False
    if not isinstance(entry["outs"], list):
        return False
    parts = [*(entry.get("deps") or []), *entry["outs"]]
    return all(isinstance(part, dict) and {"path", "hash", "md5"} <= set(part) for part in parts)


def _dump(stages: dict[str, Any]) -> str:
    return yaml.safe_dump({"schema": "2.0", "stages": stages}, sort_keys=False)


def _lock_of_last_commit(folder: Path) -> str:
    """dvc.lock of the last commit; "" if there is none."""
    command = ["git", "show", "HEAD:./dvc.lock"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _copy_path(folder: Path) -> Path:
    """Below .dvc of this folder or of the nearest one above, as DVC looks for it."""
    root = next((each for each in (folder, *folder.parents) if (each / ".dvc").is_dir()), folder)
    name = "-".join(folder.relative_to(root).parts) or "root"
    return root / ".dvc" / "tmp" / f"lock-{name}.good"
