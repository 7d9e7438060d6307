"""The files of a run, in a local folder or below an address that fsspec opens, by their paths
relative to it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import duckdb
import fsspec
from fsspec.implementations.local import LocalFileSystem

from tracerl.errors import DataError


class RunFiles:
    """root: a folder, or an address such as s3://bucket/run."""

    def __init__(self, root: Path | str) -> None:
        self.protocol = str(root).split("://")[0] if "://" in str(root) else ""
        try:
            self.system, place = fsspec.core.url_to_fs(str(root))
        except (ImportError, ValueError) as error:
            raise DataError(
                "the address of a run cannot be opened",
                where=str(root),
                got=error,
                do="install what fsspec needs for it: pip install 'tracerl[s3]'",
            ) from error
        self.root = (
            str(Path(root).resolve())
            if isinstance(self.system, LocalFileSystem)
            else place.rstrip("/")
        )

    def glob(self, pattern: str) -> list[str]:
        """Paths that match, in order."""
        return sorted(
            str(path)[len(self.root) + 1 :] for path in self.system.glob(f"{self.root}/{pattern}")
        )

    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self.system.open(f"{self.root}/{path}", "rb"))

    def text(self, path: str) -> str:
        with self.open(path) as stream:
            return stream.read().decode()

    def address(self, path: str) -> str:
        """What DuckDB calls a file or folder of the run."""
        return f"{self.protocol}://{self.root}/{path}" if self.protocol else f"{self.root}/{path}"

    def register(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Lets DuckDB read through fsspec where the run is not local."""
        if self.protocol and not isinstance(self.system, LocalFileSystem):
            connection.register_filesystem(self.system)

    @contextmanager
    def local_copy(self, folder: str) -> Iterator[Path]:
        """A small folder as a local one; the folder itself if it is local."""
        if isinstance(self.system, LocalFileSystem):
            yield Path(self.root) / folder
            return
        with tempfile.TemporaryDirectory() as copy:
            for path in self.glob(f"{folder}/*.json") + self.glob(f"{folder}/*.jinja"):
                (Path(copy) / Path(path).name).write_text(self.text(path))
            yield Path(copy)
