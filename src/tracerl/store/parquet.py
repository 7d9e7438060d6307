"""Parquet files and folders of them. A file is complete or absent; a bad one is named, never
skipped.

A folder is append-only: each writer (rank) adds files of its own names, and once all are there
`seal` lists them with rows and checksums in manifest.json. Nothing is written into a sealed folder.
`open_parquet` is the one place that says whether a file is one of ours.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tracerl.disk import atomic_file, file_sha256, write_text
from tracerl.errors import DataError
from tracerl.store.schema import LIST_ENCODINGS, SCHEMA_VERSION, SCHEMAS, VERSION_KEY, upgrades

MANIFEST = "manifest.json"
ROWS_PER_GROUP = 8192


def write_parquet(path: Path, rows: pa.Table) -> None:
    """Writes rows of one of the schemas as one file, aside and then renamed. Equal rows give equal
    bytes.

    Raises DataError if the disk is full or the folder is sealed.
    """
    if (path.parent / MANIFEST).exists():
        raise DataError(
            "a sealed folder is not written into",
            where=str(path),
            do="write into a folder of its own, and seal that",
        )
    scalars = []
    lists = []
    encodings = {}
    for field in rows.schema:
        element = f"{field.name}.list.element"
        if not pa.types.is_nested(field.type):
            scalars.append(field.name)
        elif pa.types.is_list(field.type) and field.name in LIST_ENCODINGS:
            encodings[element] = LIST_ENCODINGS[field.name]
        elif pa.types.is_list(field.type):
            lists.append(element)
    with atomic_file(path, "a Parquet file could not be written") as aside:
        pq.write_table(
            rows,
            aside,
            compression="zstd",
            row_group_size=ROWS_PER_GROUP,
            use_dictionary=[*scalars, *lists],
            column_encoding=encodings,
            write_statistics=scalars,
            write_page_checksum=True,
        )


def read_parquet(path: Path, table: str) -> pa.Table:
    """All rows of a file of `table` ("tasks" or "rollouts"), with the columns of this version.

    Raises DataError naming the file if it is damaged, missing, of another schema, or of a version
    that is not known.
    """
    file, version = open_parquet(path, table)
    try:
        rows = file.read()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            "a Parquet file is damaged",
            where=str(path),
            got=error,
            do="`tracerl data check` says where",
        ) from error
    return upgrade_rows(rows, table, version)


def open_parquet(
    path: Path | str, table: str, stream: BinaryIO | None = None
) -> tuple[pq.ParquetFile, int]:
    """A file of tasks or rollouts with its footer read, and the schema version it was written
    under. `stream` holds it if it is not local.

    Raises DataError naming the file if it is missing, damaged, of a version this program does not
    know, or lacks columns of its version.
    """
    try:
        file = pq.ParquetFile(stream or path, page_checksum_verification=True)
        kinds = {field.name: field.type for field in file.schema_arrow}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            "a Parquet file is damaged or missing",
            where=str(path),
            got=error,
            do="delete it and run the stage that wrote it again",
        ) from error
    written = (file.schema_arrow.metadata or {}).get(VERSION_KEY)
    if written not in [str(version).encode() for version in range(1, SCHEMA_VERSION + 1)]:
        raise DataError(
            "a Parquet file has another schema version",
            where=str(path),
            got=written,
            wanted=f"{SCHEMA_VERSION}, or an older one",
            do="update tracerl, or run the stage that wrote it again",
        )
    version = int(written)
    added = upgrades(table, version)
    missing = []
    for field in SCHEMAS[table]:
        if field.name not in added and kinds.get(field.name) != field.type:
            missing.append(field)
    doubtful = []
    for name, count in sorted(Counter(file.schema_arrow.names).items()):
        if count > 1 or name in added:
            doubtful.append(name)
    if doubtful:
        raise DataError(
            "a Parquet file has columns that its schema version does not have, or has them twice",
            where=str(path),
            got=f"version {version}, {', '.join(doubtful)}",
            do="run the stage that wrote it again",
        )
    if missing:
        raise DataError(
            "a Parquet file lacks columns",
            where=str(path),
            got=", ".join(f"{field.name} {kinds.get(field.name, 'absent')}" for field in missing),
            wanted=", ".join(f"{field.name} {field.type}" for field in missing),
        )
    return file, version


def upgrade_rows(rows: pa.Table, table: str, version: int) -> pa.Table:
    """Rows of `version` with the columns that this version has."""
    if version == SCHEMA_VERSION:
        return rows
    import duckdb

    added = ", ".join(f"{text} AS {name}" for name, text in upgrades(table, version).items())
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET enable_progress_bar = false")  # it would print
        filled = (
            connection.from_arrow(rows).project(f"*, {added}").to_arrow_table() if added else rows
        )
    return pa.table(
        {field.name: filled[field.name].cast(field.type) for field in SCHEMAS[table]},
        schema=SCHEMAS[table],
    )


def seal(folder: Path) -> None:
    """Ends the writing of a folder: lists its Parquet files with rows, bytes and SHA-256. One rank
    does this, after all have written.

    Raises DataError naming the file if one is damaged.
    """
    files = {}
    for path in sorted(folder.glob("*.parquet")):
        try:
            rows = pq.read_metadata(path).num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(
                "a Parquet file is damaged",
                where=str(path),
                got=error,
                do="run the stage that wrote it again",
            ) from error
        files[path.name] = {"rows": rows, "bytes": path.stat().st_size, "sha256": file_sha256(path)}
    write_text(
        folder / MANIFEST,
        json.dumps({"schema_version": SCHEMA_VERSION, "files": files}, indent=1, sort_keys=True)
        + "\n",
    )


def read_manifest(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Rows, bytes and sha256 of each file that was in the folder when it was sealed; None if it was
    not."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    return parse_manifest(path.read_text(encoding="utf-8"), str(path))


def parse_manifest(text: str | bytes, where: str) -> dict[str, dict[str, Any]]:
    """Entries of a manifest's text. Raises DataError if it is damaged."""
    try:
        files: dict[str, dict[str, Any]] = json.loads(text)["files"]
        entries = {}
        for name, entry in files.items():
            entries[name] = {key: entry[key] for key in ("rows", "bytes", "sha256")}
        return entries
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            "a manifest is damaged",
            where=where,
            got=repr(error),
            do="run the stage that wrote the folder again",
        ) from error
