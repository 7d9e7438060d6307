"""SQL over everything a run wrote: the views and macros of an in-memory DuckDB connection.

Nothing is stored, so nothing is stale and nothing is locked: a view is the list of Parquet files
that are in its folders at the moment of connecting. Queries can read the data folder and nothing
else, and `answer` runs those that only read. A run lies in a local folder or below an address that
fsspec opens (s3://bucket/run).

Views of files: tasks, traces, rollouts, evals. Views made of reports/, params.yaml and the
checkpoints' configurations while connecting: checkpoints, metrics (every figure and every point of
every curve, one a row), runs (a row for each stage of the params).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tracerl.errors import DataError
from tracerl.store.figures import FIGURES, figures
from tracerl.store.parquet import MANIFEST, open_parquet, parse_manifest
from tracerl.store.run_files import RunFiles
from tracerl.store.schema import DATASETS, SCHEMA_VERSION, SCHEMAS, upgrades

VIEWS = (*DATASETS, *FIGURES)

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
        " ELSE 1 - list_product(list_transform(range(k), lambda i: (n - c - i) / (n - i)::DOUBLE)) END",
        "chance that k of n responses, c of them correct, hold a correct one: 1 - C(n-c, k) / C(n, k)",
    ),
}
DECODED = ("decoded(ids)", "text of token ids, by the tokenizer of data/checkpoints/base")

# A PIVOT is parsed into several statements.
_READING = {duckdb.StatementType.SELECT, duckdb.StatementType.MULTI}


def connect(root: Path | str, skip_damaged: bool = False) -> duckdb.DuckDBPyConnection:
    """A connection with the views over the run at `root`. A view whose folder holds no file is
    empty and has its columns all the same.

    Raises DataError naming every file that is damaged, missing, or of a schema that is not known;
    `skip_damaged` leaves those out instead.
    """
    run = RunFiles(root)
    files = {dataset: _usable_files(run, dataset) for dataset in DATASETS}
    problems = [problem for _, found in files.values() for problem in found]
    if problems and not skip_damaged:
        raise DataError(
            "files of the run cannot be queried",
            where=str(root),
            got="\n    ".join(["", *problems]),
            do="`tracerl data check` says more; --skip-damaged asks the others",
        )
    connection = duckdb.connect(":memory:")
    run.register(connection)
    connection.execute(
        "SET enable_progress_bar = true"
    )  # `query_progress` is asked for it; nothing is printed
    connection.execute("SET enable_progress_bar_print = false")
    connection.execute("SET allowed_directories = [$data]", {"data": run.address("data")})
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    for dataset, (versions, _) in files.items():
        _create_view(connection, dataset, versions)
    for name, rows in figures(run).items():
        connection.from_arrow(rows).create(name)
    for signature, (body, _) in MACROS.items():
        connection.execute(f"CREATE MACRO {signature} AS {body}")
    _create_decoded(connection, run)
    return connection


def damaged(root: Path | str) -> list[str]:
    """What `connect` would refuse, in words: one entry for each file that is damaged, missing, or
    of a schema that is not known."""
    run = RunFiles(root)
    return [problem for dataset in DATASETS for problem in _usable_files(run, dataset)[1]]


def query(
    root: Path | str, sql: str, values: Mapping[str, object] | None = None
) -> duckdb.DuckDBPyRelation:
    """A query over the run at `root` as a DuckDB relation, for notebooks: from there
    .to_arrow_table(), .df() or .pl().

    Example: query("runs/first", "FROM rollouts WHERE verdict = 'wrong'").df()

    Raises DataError as `connect` does, and if the text is not one query that only reads.
    """
    return relation(connect(root), sql, values)


def relation(
    connection: duckdb.DuckDBPyConnection, sql: str, values: Mapping[str, object] | None = None
) -> duckdb.DuckDBPyRelation:
    """One reading statement as a relation; `values` are those of its $names. Raises DataError with
    DuckDB's explanation if it is wrong."""
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type not in _READING:
            raise DataError(
                "not a query",
                got=sql,
                wanted="one SELECT, FROM, DESCRIBE, SUMMARIZE or PIVOT statement",
            )
        return connection.sql(sql, params=None if values is None else dict(values))
    except duckdb.Error as error:
        raise _explained(error) from error


def answer(
    connection: duckdb.DuckDBPyConnection, query: str, values: Mapping[str, object] | None = None
) -> pa.Table:
    """The result of one reading statement; `values` are those of its $names.

    Raises DataError with DuckDB's explanation if the query is wrong, reads outside the data folder
    or would change something.
    """
    asked = relation(connection, query, values)
    try:
        return asked.to_arrow_table()
    except duckdb.Error as error:
        raise _explained(error) from error


def _explained(error: duckdb.Error) -> DataError:
    return DataError(
        "the query cannot be answered",
        got=str(error).strip(),
        wanted=f"SQL over the views {', '.join(VIEWS)}; `DESCRIBE rollouts` lists columns",
    )


def _usable_files(run: RunFiles, dataset: str) -> tuple[dict[int, list[str]], list[str]]:
    """Addresses of a data set's sound files by schema version, and what is wrong with the others."""
    folder, table = DATASETS[dataset]
    versions: dict[int, list[str]] = {}
    problems: list[str] = []
    # Outputs are put beside their place as *.tmp before they are renamed into it.
    found = [
        path
        for path in run.glob(f"data/{folder}/*.parquet")
        if not path.rsplit("/", 2)[-2].endswith(".tmp")
    ]
    for path in found:
        try:
            with run.open(path) as stream:
                _, version = open_parquet(run.address(path), table, stream)
            versions.setdefault(version, []).append(run.address(path))
        except DataError as error:
            problems.append(str(error))
    for manifest in run.glob(f"data/{folder}/{MANIFEST}"):
        parent = manifest.rsplit("/", 1)[0]
        if parent.endswith(".tmp"):
            continue
        try:
            with run.open(manifest) as stream:
                listed = parse_manifest(stream.read().decode(), run.address(manifest))
            problems += [
                f"{run.address(parent)}/{name} is missing"
                for name in sorted(listed)
                if f"{parent}/{name}" not in found
            ]
        except DataError as error:
            problems.append(str(error))
    return versions, problems


def _create_view(
    connection: duckdb.DuckDBPyConnection, dataset: str, versions: Mapping[int, list[str]]
) -> None:
    """A view over files of any known version, with the columns of this one."""
    table = DATASETS[dataset].table
    if not versions:
        connection.from_arrow(SCHEMAS[table].empty_table()).create(dataset)
        return
    columns = ", ".join(SCHEMAS[table].names)
    parts = []
    for version, addresses in sorted(versions.items()):
        listed = ", ".join("'" + address.replace("'", "''") + "'" for address in addresses)
        added = (
            "".join(f", {text} AS {name}" for name, text in upgrades(table, version).items())
            if version < SCHEMA_VERSION
            else ""
        )
        parts.append(f"SELECT {columns} FROM (SELECT *{added} FROM read_parquet([{listed}]))")
    connection.execute(f"CREATE VIEW {dataset} AS {' UNION ALL '.join(parts)}")


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
