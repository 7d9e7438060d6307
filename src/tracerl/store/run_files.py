"""The files of a run, in a local folder or below an address that fsspec opens, by their paths
relative to it."""

import glob
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import duckdb
import fsspec
from fsspec.implementations.local import LocalFileSystem

from tracerl.errors import DataError

# A folder is a run if it holds one of these.
_PARTS_OF_A_RUN = ("params.yaml", "data", "reports")


class RunFiles:
    """The files of one run."""

    def __init__(self, root: Path | str) -> None:
        """root: a folder, or an address such as s3://bucket/run.

        Raises DataError if the address cannot be opened or no run lies there.
        """
        self.protocol = str(root).split("://")[0] if "://" in str(root) else ""
        if self.protocol in ("http", "https", "ftp"):
            raise DataError(
                "the folders of this address cannot be listed",
                where=str(root),
                wanted="a folder, or an address such as s3://bucket/run",
            )
        try:
            self.system, place = fsspec.core.url_to_fs(str(root))
        except (ImportError, ValueError) as error:
            raise DataError(
                "the address of a run cannot be opened",
                where=str(root),
                got=error,
                do="install what fsspec needs for it: pip install '.[s3]' in the project's folder",
            ) from error
        self.root = (
            str(Path(root).resolve())
            if isinstance(self.system, LocalFileSystem)
            else place.rstrip("/")
        )
        if not any(self._system_call("exists", f"{self.root}/{part}") for part in _PARTS_OF_A_RUN):
            raise DataError(
                "there is no run here",
                where=str(root),
                wanted=(
                    f"a folder that holds {', '.join(_PARTS_OF_A_RUN[:-1])} or "
                    f"{_PARTS_OF_A_RUN[-1]}"
                ),
                do="name the folder of a run with --root",
            )

    def _system_call(self, name: str, *arguments: object, **options: object) -> Any:
        """A method of the file system. Raises DataError where it fails: no credentials, no network,
        no permission."""
        try:
            return getattr(self.system, name)(*arguments, **options)
        except Exception as error:  # every file system of fsspec has errors of its own
            raise DataError(
                "the files of a run cannot be read",
                where=f"{self.protocol or 'file'}: {arguments[0]}",
                got=f"{type(error).__name__}: {error}",
                do="check the address, the credentials and the permissions",
            ) from error

    def glob(self, pattern: str) -> list[str]:
        """Paths that match, in order."""
        return list(self.sizes(pattern))

    def sizes(self, pattern: str) -> dict[str, int]:
        """Bytes of each file or folder that matches, in the order of their paths. The root's own
        name is no pattern, whatever characters it has."""
        found = self._system_call("glob", f"{glob.escape(self.root)}/{pattern}", detail=True)
        sizes = {}
        for path, info in sorted(found.items()):
            sizes[str(path)[len(self.root) + 1 :]] = int(info.get("size") or 0)
        return sizes

    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._system_call("open", f"{self.root}/{path}", "rb"))

    def text(self, path: str) -> str:
        """A file as text. Raises DataError if it is no UTF-8."""
        with self.open(path) as stream:
            content = stream.read()
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise DataError("a file is no text", where=self.address(path), got=error) from error

    def address(self, path: str) -> str:
        """The name of a file or folder of the run, for messages."""
        return f"{self.protocol}://{self.root}/{path}" if self.protocol else f"{self.root}/{path}"

    def pattern(self, path: str) -> str:
        """A file or folder of the run for DuckDB, which takes every path for a pattern."""
        prefix = f"{self.protocol}://" if self.protocol else ""
        return f"{prefix}{glob.escape(f'{self.root}/{path}')}"

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
                (Path(copy) / Path(path).name).write_text(self.text(path), "utf-8")
            yield Path(copy)
