"""Small files: rows of users' data files, text that is complete or absent, and checksums. One
reader and one writer of each."""

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from tracerl.errors import DataError

_ROWS_AT_ONCE = 1000


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of any Parquet file. Raises DataError naming it if it is damaged."""
    import pyarrow as pa  # the command line imports this module for --help
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(path).iter_batches(_ROWS_AT_ONCE):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            "a Parquet file cannot be read",
            where=str(path),
            got=error,
            do="write, copy or download it again",
        ) from error


def file_rows(path: Path, what: str) -> Iterator[dict[str, Any]]:
    """Rows of a .jsonl or .parquet file. Raises DataError naming it, and what it was to be ("task
    file")."""
    if path.suffix not in (".jsonl", ".parquet") or not path.is_file():
        raise DataError(
            f"a {what} cannot be read",
            where=str(path),
            got="no such file" if not path.is_file() else path.suffix,
            wanted="an existing .jsonl or .parquet file",
        )
    if path.suffix == ".parquet":
        return parquet_rows(path)
    try:
        # Excel and Notepad begin UTF-8 files with a byte order mark.
        return json_rows(number_lines(path.read_text(encoding="utf-8-sig")), str(path))
    except UnicodeDecodeError as error:
        raise DataError(
            f"a {what} is not UTF-8", where=str(path), got=error, do="save it as UTF-8"
        ) from error


def json_rows(lines: Iterator[tuple[int, str]], where: str) -> Iterator[dict[str, Any]]:
    """The object on each of the numbered lines of a JSONL file. Raises DataError naming the line
    that is something else."""
    for number, line in lines:
        if not line.strip():
            raise DataError("a line is blank", where=f"{where}, line {number}", do="remove it")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            nested = isinstance(error, RecursionError)
            raise DataError(
                "a line cannot be read as JSON",
                where=f"{where}, line {number}",
                got=f"brackets nested too deeply: {line[:40]}" if nested else line[:80],
                wanted='an object: {"prompt": ...}',
                do="correct or remove this line",
            ) from error
        yield json_object(row, f"{where}, line {number}")


def json_object(row: Any, where: str) -> dict[str, Any]:
    """A row of JSON data. Raises DataError if it is not an object."""
    if not isinstance(row, dict):
        raise DataError(
            "a row is not an object",
            where=where,
            got=str(row)[:80],
            wanted='names and values: {"prompt": ...}',
        )
    return row


def json_value(value: Any) -> Any:
    """A value as JSON can hold it: null where a number is not finite."""
    if isinstance(value, dict):
        return {key: json_value(part) for key, part in value.items()}
    if isinstance(value, list):
        return [json_value(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def number_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line) of a text. A newline alone ends a line: JSON strings may hold other
    line separators as they are."""
    return enumerate(text.removesuffix("\n").split("\n") if text else [], start=1)


@contextmanager
def atomic_file(path: Path, what: str = "a file cannot be written") -> Iterator[Path]:
    """Yields a path beside `path` to write a file or a folder to, and renames it to `path` at the
    end of the block: a reader sees the old file or the complete new one. If the block fails, the
    old file stays and nothing is left beside it.

    A folder can only be renamed to a place that is free or an empty folder. Raises DataError that
    begins with `what` if the file system refuses.
    """
    aside = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_path(aside)  # what a kill has left
        yield aside
        os.replace(aside, path)
    except BaseException as error:
        with suppress(OSError):
            remove_path(aside)
        if not isinstance(error, OSError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)
        raise DataError(
            what,
            where=str(path),
            got=error,
            do="free disk space and run the same command again: it resumes"
            if full
            else "name a place that can be written, or change its permissions",
        ) from error


def remove_path(path: Path) -> None:
    """Removes a file or a folder with all it holds; no effect if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a small text file as UTF-8, complete or not at all."""
    with atomic_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Writes indented JSON with a fixed key order."""
    write_text(path, json.dumps(data, indent=2, sort_keys=True) + "\n")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return stream_sha256(stream)


def stream_sha256(stream: BinaryIO) -> str:
    """SHA-256 of the bytes from the stream's position to its end."""
    digest = hashlib.sha256()
    while chunk := stream.read(2**20):
        digest.update(chunk)
    return digest.hexdigest()
