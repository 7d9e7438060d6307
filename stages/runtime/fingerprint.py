"""What a stage's result depends on, as a digest: its params, its code, torch's version and the
bytes of its inputs."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from stages.runtime import paths
from stages.runtime.code import code_list
from tracerl.disk import file_sha256
from tracerl.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Everything that a stage's result depends on, when it was taken."""

    stage: str
    """rl@short."""
    inputs: tuple[Path, ...]
    """Files and folders that the stage reads, besides its params."""
    digests: dict[str, str]
    """Path or name of a part -> its SHA-256, or version."""

    @property
    def name(self) -> str:
        """12 hexadecimal digits."""
        lines = [f"{part} {digest}\n" for part, digest in self.digests.items()]
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:12]


def take_fingerprint(stage: str, inputs: Sequence[Path]) -> Fingerprint:
    """Reads params, code and inputs of a stage as they are now."""
    digests = {"torch": version("torch")}
    params = paths.PARAMS / f"{stage}.yaml"
    digests[_place(params)] = file_sha256(params) if params.is_file() else "missing"
    for line in code_list(stage.partition("@")[0]).splitlines():
        digest, _, path = line.partition("  ")
        digests[path] = digest
    for source in inputs:
        for file in _files(source):
            digests[_place(file)] = file_sha256(file)
    return Fingerprint(stage=stage, inputs=tuple(inputs), digests=digests)


def check_unchanged(start: Fingerprint) -> None:
    """Raises DataError if params, code or an input of a stage changed since its start: what DVC
    would then record is not what ran."""
    now = take_fingerprint(start.stage, start.inputs)
    parts = {**start.digests, **now.digests}
    changed = [part for part in parts if start.digests.get(part) != now.digests.get(part)]
    if changed:
        raise DataError(
            "something that this stage read was changed while it ran; its result is not published",
            where=start.stage,
            got=f"changed: {', '.join(changed)}",
            do="undo the change, and the same command publishes what is saved; or keep it, and the"
            " same command starts again",
        )


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file())


def _place(path: Path) -> str:
    """A path below the project's root, or as it is."""
    return path.relative_to(paths.ROOT).as_posix() if path.is_relative_to(paths.ROOT) else str(path)
