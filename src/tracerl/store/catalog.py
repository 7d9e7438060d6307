"""SQL over everything a run wrote: the views and macros of an in-memory DuckDB connection.

Nothing is stored, so nothing is stale and nothing is locked: a view is the list of Parquet files
that are in its folders at the moment of connecting. Queries can read the data folder and nothing
else, and `answer` runs those that only read. A run lies in a local folder or below an address that
fsspec opens (s3://bucket/run).

Views of files: tasks, traces, rollouts, evals. Views made of reports/, params.yaml and the
checkpoints' configurations while connecting: checkpoints, metrics (every metric and every point of
every curve, one a row), runs (a row for each stage of the params).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tracerl.disk import stream_sha256
from tracerl.errors import DataError
from tracerl.store.parquet import MANIFEST, open_parquet, parse_manifest, upgrade_rows
from tracerl.store.run_files import RunFiles
from tracerl.store.run_tables import RUN_TABLES, current_stages, run_tables
from tracerl.store.schema import DATASETS, ROLLOUTS, SCHEMA_VERSION, SCHEMAS, upgrades

VIEWS = (*DATASETS, *RUN_TABLES)

# Name with parameters -> SQL, and what it is for. docs/sql.md shows each at work.
MACROS: dict[str, tuple[str, str]] = {
    "pass_rate(verdict)": ("avg((verdict = 'correct')::DOUBLE)", "share of correct responses"),
    "tokens_per_step(num_tokens, num_denoising_forwards)": (
        "sum(num_tokens) / nullif(sum(num_denoising_forwards), 0)",
        "counted tokens per denoising forward, as in the report",
    ),
    "unmask_order(step_map)": (
        "list_filter(list_grade_up(step_map), lambda place: step_map[place] > 0)",
        "1-based positions in the response in the order in which they were committed",
    ),
    "group_advantage(reward, stage, iteration, task_id)": (
        "coalesce((reward - avg(reward) OVER (PARTITION BY stage, iteration, task_id))"
        " / nullif(stddev_pop(reward) OVER (PARTITION BY stage, iteration, task_id), 0), 0)",
        "z-score of a reward within its group, 0 where all are equal",
    ),
    "pass_at_k(n, c, k)": (
        "CASE WHEN k > n THEN NULL WHEN n - c < k THEN 1.0"
        " ELSE 1 - list_product("
        "list_transform(range(k), lambda i: (n - c - i) / (n - i)::DOUBLE)) END",
        "chance that k of n responses, c of them correct, hold a correct one:"
        " 1 - C(n-c, k) / C(n, k)",
    ),
    "last_iteration()": (
        "TABLE FROM rollouts WHERE NOT held_out AND (stage, iteration) IN"
        " (SELECT (stage, max(iteration)) FROM rollouts WHERE NOT held_out GROUP BY stage)",
        "training responses of each round's last iteration, as a table",
    ),
}
DECODED = ("decoded(ids)", "text of token ids, by the tokenizer of data/checkpoints/base")

# A PIVOT is parsed into several statements.
_READING = {duckdb.StatementType.SELECT, duckdb.StatementType.MULTI}


@dataclass(frozen=True, kw_only=True)
class Files:
    """The Parquet files of one data set."""

    published: dict[int, list[str]]
    """Sound files of stages that have ended, by schema version: what DuckDB opens."""

    unfinished: dict[int, list[str]]
    """The same of stages that run, failed or were stopped."""

    problems: list[str]
    """What is wrong with the other files, in words."""


def connect(
    root: Path | str,
    *,
    skip_damaged: bool = False,
    verify: bool = False,
    unfinished: bool = False,
) -> duckdb.DuckDBPyConnection:
    """A connection with the views over the run at `root`. A view whose folder holds no file is
    empty and has its columns all the same.

    skip_damaged: leave damaged files out. verify: compare the SHA-256 of every file with its
    manifest as well, not only name, size and rows. unfinished: add the rows of stages that have not
    ended; their column `unfinished` is true.

    Raises DataError if there is no run, or naming every file that is damaged, missing, or of a
    schema that is not known.
    """
    run = RunFiles(root)
    files = {dataset: _list_files(run, dataset, verify, unfinished) for dataset in DATASETS}
    problems: list[str] = []
    for dataset_files in files.values():
        problems += dataset_files.problems
    if problems and not skip_damaged:
        raise DataError(
            "files of the run cannot be queried",
            where=str(root),
            got="\n    ".join(["", *problems]),
            do="`tracerl data check` says more; --skip-damaged queries the others",
        )
    connection = duckdb.connect(":memory:")
    _restrict(connection, run)
    current = current_stages(run)
    for dataset, dataset_files in files.items():
        _create_view(connection, dataset, dataset_files, current)
    for name, rows in run_tables(run).items():
        connection.from_arrow(rows).create(name)
    for signature, (body, _) in MACROS.items():
        connection.execute(f"CREATE MACRO {signature} AS {body}")
    _create_decoded(connection, run)
    return connection


def connect_file(path: Path) -> duckdb.DuckDBPyConnection:
    """A connection over one file of responses, such as `tracerl generate` writes, as if it were a
    run: its rows are the view `rollouts`, its prompts the view `tasks`. Queries read nothing else.

    Raises DataError if the file is damaged or not of the store's schema.
    """
    file, version = open_parquet(path, "rollouts")
    try:
        rows = file.read()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError("a Parquet file is damaged", where=str(path), got=error) from error
    prompts = rows["prompt"] if "prompt" in rows.column_names else pa.nulls(len(rows), pa.string())
    responses = upgrade_rows(
        rows.select([n for n in rows.column_names if n in ROLLOUTS.names]), "rollouts", version
    )
    connection = duckdb.connect(":memory:")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    connection.from_arrow(responses.append_column("prompt", prompts)).create("file_rows")
    marks = "false AS held_out, false AS unfinished, NULL::BOOLEAN AS outdated"
    connection.execute(f"CREATE VIEW rollouts AS SELECT * EXCLUDE (prompt), {marks} FROM file_rows")
    for dataset in ("traces", "evals"):
        connection.execute(f"CREATE VIEW {dataset} AS FROM rollouts LIMIT 0")
    connection.execute(
        "CREATE VIEW tasks AS SELECT task_id, any_value(task_set) AS task_set,"
        " any_value(prompt) AS prompt, '' AS answer FROM file_rows GROUP BY task_id"
    )
    for signature, (body, _) in MACROS.items():
        connection.execute(f"CREATE MACRO {signature} AS {body}")
    return connection


def _restrict(connection: duckdb.DuckDBPyConnection, run: RunFiles) -> None:
    """Lets queries read the data folder and nothing else."""
    run.register(connection)
    # `query_progress` needs the progress bar; nothing is printed.
    connection.execute("SET enable_progress_bar = true")
    connection.execute("SET enable_progress_bar_print = false")
    # DuckDB compares a path as it is written: as a name, and as a pattern that stands for one.
    folders = [run.address("data"), run.pattern("data")]
    connection.execute("SET allowed_directories = $folders", {"folders": folders})
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def find_damaged_files(root: Path | str, verify: bool = False) -> list[str]:
    """What `connect` would refuse, in words: one entry for each file that is damaged, missing, or
    of a schema that is not known."""
    run = RunFiles(root)
    problems = []
    for dataset in DATASETS:
        problems += _list_files(run, dataset, verify, unfinished=True).problems
    return problems


def query(
    root: Path | str, sql: str, values: Mapping[str, object] | None = None
) -> duckdb.DuckDBPyRelation:
    """A query over the run at `root` as a DuckDB relation, for notebooks: from there
    .to_arrow_table(), .df() or .pl().

    Example: query("runs/first", "FROM rollouts WHERE verdict = 'wrong'").df()

    Raises DataError as `connect` does, and if the text is not one query that only reads.
    """
    return relation(connect(root, unfinished=True), sql, values)


def relation(
    connection: duckdb.DuckDBPyConnection, sql: str, values: Mapping[str, object] | None = None
) -> duckdb.DuckDBPyRelation:
    """One reading statement as a relation; `values` are those of its $names. Raises DataError with
    DuckDB's explanation if it is wrong."""
    try:
        sql.encode()
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type not in _READING:
            raise DataError(
                "not a query",
                got=sql,
                wanted="one SELECT, FROM, DESCRIBE, SUMMARIZE or PIVOT statement",
            )
        return connection.sql(sql, params=None if values is None else dict(values))
    except (duckdb.Error, UnicodeEncodeError) as error:
        raise _query_error(error) from error


def answer(
    connection: duckdb.DuckDBPyConnection, query: str, values: Mapping[str, object] | None = None
) -> pa.Table:
    """The result of one reading statement; `values` are those of its $names.

    Raises DataError with DuckDB's explanation if the query is wrong, reads outside the data folder
    or would change something.
    """
    rows = relation(connection, query, values)
    try:
        return rows.to_arrow_table()
    except (duckdb.Error, pa.ArrowException) as error:
        raise _query_error(error) from error


def _query_error(error: Exception) -> DataError:
    return DataError(
        "the query cannot be answered",
        got=str(error).strip(),
        wanted=f"SQL over the views {', '.join(VIEWS)}; `DESCRIBE rollouts` lists columns",
    )


def _list_files(run: RunFiles, dataset: str, verify: bool, unfinished: bool) -> Files:
    """The files of a data set, checked against their schema and their manifests."""
    folder, _, scratch, _ = DATASETS[dataset]
    problems: list[str] = []
    published = _check_files(run, dataset, f"data/{folder}", verify, problems)
    in_scratch: dict[int, list[str]] = {}
    if unfinished and scratch is not None:
        in_scratch = _check_files(run, dataset, f"data/{scratch}", verify, problems)
    return Files(published=published, unfinished=in_scratch, problems=problems)


def _check_files(
    run: RunFiles, dataset: str, folders: str, verify: bool, problems: list[str]
) -> dict[int, list[str]]:
    """The sound files of `folders` (a pattern) by schema version, as DuckDB opens them; adds what
    is wrong with the others to `problems`."""
    versions: dict[int, list[str]] = {}
    sizes = {}
    for path, size in run.sizes(f"{folders}/*.parquet").items():
        if not _is_aside(path):
            sizes[path] = size
    entries = _manifest_entries(run, folders, sizes, problems)
    for path, size in sizes.items():
        try:
            version, num_rows = _read_footer(run, path, DATASETS[dataset].table)
            if path in entries:
                _compare(run, path, entries[path], size, num_rows, verify)
        except DataError as error:
            problems.append(str(error))
        else:
            versions.setdefault(version, []).append(run.pattern(path))
    return versions


def _read_footer(run: RunFiles, path: str, table: str) -> tuple[int, int]:
    """Schema version and number of rows of a file."""
    with run.open(path) as stream:
        file, version = open_parquet(run.address(path), table, stream)
        return version, file.metadata.num_rows


def _manifest_entries(
    run: RunFiles, folders: str, paths: Collection[str], problems: list[str]
) -> dict[str, dict[str, Any]]:
    """What manifests say of each file, by path. Files that are missing, or that their folder's
    manifest does not list, are problems."""
    entries: dict[str, dict[str, Any]] = {}
    for manifest in run.glob(f"{folders}/{MANIFEST}"):
        if _is_aside(manifest):
            continue
        parent = manifest.rpartition("/")[0]
        try:
            with run.open(manifest) as stream:
                files = parse_manifest(stream.read(), run.address(manifest))
        except DataError as error:
            problems.append(str(error))
            continue
        listed = {f"{parent}/{name}": entry for name, entry in files.items()}
        entries |= listed
        there = {path for path in paths if path.rpartition("/")[0] == parent}
        for path in sorted(listed.keys() - there):
            problems.append(f"{run.address(path)} is missing")
        for path in sorted(there - listed.keys()):
            problems.append(f"{run.address(path)} is not in its folder's {MANIFEST}")
    return entries


def _compare(
    run: RunFiles, path: str, entry: dict[str, Any], size: int, num_rows: int, verify: bool
) -> None:
    """Raises DataError unless a file has the size, the rows and, if asked for, the checksum that
    its manifest says."""
    values: dict[str, object] = {"bytes": size, "rows": num_rows}
    if verify:
        with run.open(path) as stream:
            values["sha256"] = stream_sha256(stream)
    for name, value in values.items():
        if value != entry[name]:
            raise DataError(
                "a Parquet file is not the one that its stage wrote",
                where=run.address(path),
                got=f"{name} {value}",
                wanted=f"{name} {entry[name]}, as {MANIFEST} has it",
                do="run the stage that wrote it again, or `dvc checkout` it",
            )


def _is_aside(path: str) -> bool:
    """Whether a file lies in an output that is still being published: outputs are put beside their
    place as *.tmp before they are renamed into it."""
    return any(part.endswith(".tmp") for part in path.split("/")[:-1])


def _create_view(
    connection: duckdb.DuckDBPyConnection,
    dataset: str,
    files: Files,
    current: Collection[str] | None,
) -> None:
    """A view over files of any known version, with the columns of this one and the marks.

    current: stages whose params and inputs have not changed, None if that is not known.
    """
    _, table, _, held_out = DATASETS[dataset]
    names = ", ".join(SCHEMAS[table].names)
    parts = []
    for unfinished, versions in ((False, files.published), (True, files.unfinished)):
        for version, patterns in sorted(versions.items()):
            listed = ", ".join(map(_quote, patterns))
            added = ""
            if version < SCHEMA_VERSION:
                for name, text in upgrades(table, version).items():
                    added += f", {text} AS {name}"
            source = f"(SELECT *{added} FROM read_parquet([{listed}]))"
            parts.append(f"SELECT {names}, {str(unfinished).lower()} AS unfinished FROM {source}")
    if not parts:
        no_rows = pa.Table.from_batches([], SCHEMAS[table])  # empty_table() would import pandas
        connection.from_arrow(no_rows).create(f"no_{dataset}")
        parts.append(f"SELECT {names}, false AS unfinished FROM no_{dataset}")
    columns = names
    if held_out is not None:
        state = "NULL::BOOLEAN"
        if current is not None:
            stages = ", ".join(map(_quote, sorted(current)))
            state = f"NOT list_contains([{stages}]::VARCHAR[], split_part(stage, '/', 1))"
        columns += f", {held_out} AS held_out, unfinished, {state} AS outdated"
    rows = " UNION ALL ".join(parts)
    try:
        connection.execute(f"CREATE VIEW {dataset} AS SELECT {columns} FROM ({rows})")
    except duckdb.Error as error:
        raise DataError(
            "DuckDB cannot read a file of the run",
            where=f"data set {dataset}",
            got=error,
            do="`tracerl data check` says which; run the stage that wrote it again",
        ) from error


def _quote(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def _create_decoded(connection: duckdb.DuckDBPyConnection, run: RunFiles) -> None:
    """`decoded(ids)`. The tokenizer is read when the first ids are."""
    loaded: list[Any] = []

    def decode(ids: pa.ChunkedArray) -> pa.Array:
        if not loaded:
            from tracerl.models.tokenizer import load_tokenizer

            with run.local_copy("data/checkpoints/base") as folder:
                loaded.append(load_tokenizer(folder, None))
        return pa.array(
            [None if one is None else loaded[0].decode(one) for one in ids.to_pylist()], pa.string()
        )

    connection.create_function("decoded", decode, ["INTEGER[]"], "VARCHAR", type="arrow")  # type: ignore[call-overload]
