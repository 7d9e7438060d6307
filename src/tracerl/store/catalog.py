"""SQL over everything a run wrote: the views `tasks`, `rollouts`, `traces` and `evals` of an in-memory DuckDB connection.

Nothing is stored, so nothing is stale and nothing is locked: a view is the list of Parquet files that are in its folder at the moment of
connecting. Queries can read the data folder and nothing else, and `answer` runs those that only read.
"""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tracerl.errors import DataError
from tracerl.store.schema import ROLLOUTS, SCHEMA_VERSION, TASKS, VERSION_KEY

# View -> its files below data/, and their schema. `rollouts` holds the RL rounds' training and held-out responses.
VIEWS: dict[str, tuple[str, pa.Schema]] = {
    "tasks": ("tasks/*.parquet", TASKS),
    "rollouts": ("rollouts/*/*.parquet", ROLLOUTS),
    "traces": ("traces/*.parquet", ROLLOUTS),
    "evals": ("evals/*/*.parquet", ROLLOUTS),
}
# A PIVOT is parsed into several statements.
_READING = {duckdb.StatementType.SELECT, duckdb.StatementType.MULTI}


def connect(root: Path) -> duckdb.DuckDBPyConnection:
    """A connection with the views over `root`/data. A view whose folder holds no file is empty and has its columns all the same.

    Raises DataError naming the file if one is damaged or of another schema version.
    """
    data = (root / "data").resolve()
    connection = duckdb.connect(":memory:")
    connection.execute("SET allowed_directories = [$data]", {"data": str(data)})
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    for name, (pattern, schema) in VIEWS.items():
        # Outputs are put beside their place as *.tmp before they are renamed into it.
        files = [path for path in sorted(data.glob(pattern)) if path.parent.suffix != ".tmp"]
        for path in files:
            _check(path)
        if files:
            connection.read_parquet([str(path) for path in files]).create_view(name)
        else:
            connection.from_arrow(schema.empty_table()).create(name)
    return connection


def answer(connection: duckdb.DuckDBPyConnection, query: str, values: dict[str, object] | None = None) -> pa.Table:
    """The result of one reading statement; `values` are those of its $names.

    Raises DataError with DuckDB's explanation if the query is wrong, reads outside the data folder or would change something.
    """
    try:
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type not in _READING:
            raise DataError("not a query", got=query, wanted="one SELECT, FROM, DESCRIBE, SUMMARIZE or PIVOT statement")
        return connection.sql(query, params=values).to_arrow_table()
    except duckdb.Error as error:
        raise DataError("the query cannot be answered", got=str(error).strip(),
                        wanted=f"SQL over the views {', '.join(VIEWS)}; `DESCRIBE rollouts` lists columns") from error  # fmt: skip


def _check(path: Path) -> None:
    try:
        version = (pq.read_schema(path).metadata or {}).get(VERSION_KEY)
    except (pa.ArrowException, OSError) as error:
        raise DataError("a Parquet file is damaged", where=str(path), got=error,
                        do="delete it and run the stage that wrote it again") from error  # fmt: skip
    if version != str(SCHEMA_VERSION).encode():
        raise DataError("a Parquet file has another schema version", where=str(path), got=version, wanted=SCHEMA_VERSION)
