"""Files of a checkpoint directory: the one reader of JSON, and the one check of symbolic links.

A directory may come from a stranger, and what is read here is copied into checkpoints and exports.
A link that leads out of the directory could carry any file of this machine there, so it is refused;
links into content-addressed stores (the blobs of a Hugging Face hub cache, a DVC cache) are
followed.
"""

import json
import re
from pathlib import Path
from typing import Any

from tracerl.errors import CheckpointError

_HUB_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DVC_OBJECT = re.compile(r".*/files/md5/[0-9a-f]{2}/[0-9a-f]{30}")


def safe_path(directory: Path, name: str) -> Path:
    """The path of a file of a checkpoint directory, which need not exist.

    Raises CheckpointError for a symbolic link that leads out of the directory.
    """
    path = directory / name
    if not path.is_symlink():
        return path
    target = path.resolve()
    is_blob = target.parent.name == "blobs" and _HUB_BLOB.fullmatch(target.name)
    is_object = _DVC_OBJECT.fullmatch(target.as_posix())
    if target.is_relative_to(directory.resolve()) or is_blob or is_object:
        return path
    raise CheckpointError(
        "a file of the checkpoint is a link that leads out of its directory",
        where=str(path),
        got=str(target),
        wanted="a file, or a link within the directory or into the blobs of a hub cache",
        do="replace the link by a copy of the file if you trust it",
    )


def has_file(directory: Path, name: str) -> bool:
    """Whether a checkpoint directory has a file. Raises CheckpointError as `safe_path` does."""
    return safe_path(directory, name).is_file()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint directory. Raises CheckpointError if the file is missing, is a
    link out of the directory, or holds anything else."""
    path = safe_path(path.parent, path.name)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"not a checkpoint directory: its {path.name} cannot be read",
            where=str(path),
            got=error,
            wanted="config.json, *.safetensors and the tokenizer of a published checkpoint",
            do="copy or download the file again",
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"not a checkpoint directory: its {path.name} cannot be read",
            where=str(path),
            got=f"a {type(content).__name__}",
            wanted="a JSON object",
            do="copy or download the file again",
        )
    return content


def read_optional_json(path: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint directory, empty if there is no such file."""
    return read_json(path) if has_file(path.parent, path.name) else {}
