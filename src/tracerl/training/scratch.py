"""Scratch work that survives a kill, and outputs that are complete or absent.

A stage works in its own scratch directory, named by a fingerprint of everything its result depends
on. Its whole state is one file, replaced atomically after each unit of work, so that a killed stage
continues from its last finished unit and ends as if undisturbed. Finished outputs are copied beside
their places, renamed into them, and only then is the scratch directory removed: a kill in between
leaves a scratch directory from which the same command publishes again at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from tracerl import distributed
from tracerl.disk import atomic_file, remove_path
from tracerl.errors import DataError

if TYPE_CHECKING:  # a stage without tensors does not wait for torch
    import torch

_STATE = "state.safetensors"


class Workspace:
    """A scratch directory with one state file: tensors and JSON progress, saved together.

    `stopping` says whether someone has asked the stage to end: a loop then saves after the unit it
    is in, whatever its interval. Of several ranks, which all see the directory, the first one
    writes. `before_publish` is called with what is to be published, before anything is, and may
    raise an error.
    """

    def __init__(
        self,
        directory: Path,
        stopping: Callable[[], bool] = lambda: False,
        before_publish: Callable[[Mapping[str, Path]], None] = lambda _: None,
    ) -> None:
        self.directory = directory
        self.stopping = stopping
        self._before_publish = before_publish
        if distributed.is_first():
            remove_path(directory.with_name(directory.name + ".tmp"))
            directory.mkdir(parents=True, exist_ok=True)
            for aside in directory.rglob("*.tmp"):
                aside.unlink()
        distributed.barrier()

    def save(self, tensors: Mapping[str, torch.Tensor], progress: Mapping[str, Any]) -> None:
        """Replaces the state: after this returns on the first rank, a kill loses nothing that came
        before it."""
        if not distributed.is_first():
            return
        from safetensors.torch import save_file

        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        text = json.dumps(progress)
        metadata = {"progress": text, "sha256": _state_sha256(contiguous, text)}
        what = "the state could not be saved; the one before it is untouched"
        with atomic_file(self.directory / _STATE, what) as aside:
            try:
                save_file(contiguous, aside, metadata=metadata)
            except SafetensorError as error:
                raise OSError(str(error)) from error

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """Tensors and progress of the last save, or None at the start. Raises DataError if the file
        is not what was saved, down to a bit."""
        path = self.directory / _STATE
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                metadata = file.metadata() or {}
            text = metadata.get("progress", "")
            if metadata.get("sha256") != _state_sha256(tensors, text):
                raise ValueError("its SHA-256 is not the one that was saved with it")
            return tensors, json.loads(text)
        except (SafetensorError, ValueError, OSError, RecursionError) as error:
            raise DataError(
                "the saved state is damaged",
                where=str(path),
                got=error,
                do="delete this file and start the stage again",
            ) from error

    def publish(self, outputs: Mapping[str, Path]) -> None:
        """Puts files and directories of the scratch directory (by name) into their final places,
        then removes the scratch directory."""
        self._before_publish(outputs)
        for name, target in outputs.items():
            source, aside = self.directory / name, target.with_name(target.name + ".tmp")
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_path(aside)
            if source.is_dir():
                shutil.copytree(source, aside)
            else:
                shutil.copyfile(source, aside)
            _swap(aside, target)
        trash = self.directory.with_name(self.directory.name + ".tmp")
        os.replace(self.directory, trash)  # in one moment, so that no rerun finds half of it
        shutil.rmtree(trash)


def _state_sha256(tensors: Mapping[str, torch.Tensor], progress: str) -> str:
    """SHA-256 of a state: names, dtypes, shapes and bytes of its tensors, and its progress."""
    import torch

    digest = hashlib.sha256(progress.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _swap(aside: Path, target: Path) -> None:
    """Puts `aside` in the place of `target`; a directory cannot be replaced in one call, so the old
    one is renamed away first."""
    old = target.with_name(target.name + ".old.tmp")
    remove_path(old)
    if target.is_dir():
        os.replace(target, old)
    os.replace(aside, target)
    remove_path(old)
