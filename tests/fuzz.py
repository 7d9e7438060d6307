"""Fuzzing of the doors through which strangers' input comes in: whatever comes, the answer is a
result or an error of ours, within five seconds, and damage is never accepted silently.

The suite tries a few examples of each door. More, for as long as it finds something:

    python -m tests.fuzz --examples 10000 --door sql
"""

import argparse
import contextlib
import faulthandler
import io
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.reporting.synthetic_run import make_rollouts, small_params, write_run
from tracerl.cli import main
from tracerl.errors import TracerlError, printable
from tracerl.reporting.terminal import Format, write_result
from tracerl.settings.tasks import FileSet
from tracerl.store.catalog import answer, connect
from tracerl.store.check import check_folder
from tracerl.store.files import read_rollouts, rollout_table, write_rollouts
from tracerl.store.parquet import seal
from tracerl.store.schema import ROLLOUTS
from tracerl.tasks import make_task_set
from tracerl.training.scratch import Workspace

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 5

# Text that has broken programs before: escapes, patterns, options, other alphabets, numbers.
NASTY = [
    "", " ", "\x1b]0;x\x07", "\x9b", "\u202e", "\ud800", "\0", "'", '"', ";", "--", "*", "[1]", "?",
    "-1", "1e400", "nan", "9" * 40, "../..", "/", "%s", "{}", "{a}", "\\", "\n", "π", "$HOME",
]  # fmt: skip
words = st.one_of(st.sampled_from(NASTY), st.text(max_size=20))


class Hang(BaseException):
    """An input took longer than the limit."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises Hang after LIMIT_SECONDS of processor time. Wall time would count the other processes
    of a busy machine."""

    def ring(number: int, frame: object) -> NoReturn:
        raise Hang

    old = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def tells(action: Callable[[], object]) -> str | None:
    """None if the action ends, or the message of its error, which must be one of ours."""
    try:
        with limited():
            action()
    except TracerlError as error:
        message = str(error)
        assert message == printable(message), "a message with control characters"
        return message
    return None


Edit = tuple[str, int, bytes]


def edits(size: int) -> st.SearchStrategy[list[Edit]]:
    """Changes to a file of `size` bytes: bytes changed, removed, added or cut off."""
    kinds = st.sampled_from(["cut", "insert", "remove", "replace"])
    edit = st.tuples(kinds, st.integers(0, max(size - 1, 0)), st.binary(min_size=1, max_size=8))
    return st.lists(edit, min_size=1, max_size=3)


def edited(content: bytes, changes: list[Edit]) -> bytes:
    """The content of a file after these changes."""
    for kind, place, new in changes:
        head = content[:place]
        tail = {"cut": b"", "insert": new + content[place:], "remove": content[place + len(new) :]}
        content = head + tail.get(kind, new + content[place + len(new) :])
    return content


# The doors: each makes its strategy and its check in a folder of its own


Door = tuple[st.SearchStrategy[Any], Callable[[Any], None]]


def sql_door(folder: Path) -> Door:
    """SQL text over a run: documented queries with words exchanged, and expressions."""
    write_run(folder, small_params())
    connection = connect(folder)
    before = sorted(folder.rglob("*"))
    documented = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "sql.md").read_text(), re.S)
    pieces = sorted({token for text in documented for token in re.findall(r"\w+|\S", text)})
    pieces += ["map{[1]: 2}", "NULL::BLOB", "INTERVAL 1 MONTH", "'infinity'::TIMESTAMP", "uuid()"]
    pieces += ["9e999", "1::HUGEINT", "[[1], NULL]", "{'a': [1]}", "DATE '0001-01-01'", "'x'::BIT"]
    pieces += ["COPY", "ATTACH", "PRAGMA", "SET", "CREATE", "DROP", "CALL", "INSTALL", "EXPORT"]
    pieces += ["read_csv", "read_text", "glob('**')", "getenv('HOME')", "TIME '1:00'", "1::DECIMAL"]
    tokens = st.one_of(st.sampled_from(pieces), words)

    @st.composite
    def texts(draw: st.DrawFn) -> str:
        if draw(st.booleans()):
            return " ".join(["SELECT", *draw(st.lists(tokens, min_size=1, max_size=6))])
        query = re.findall(r"\w+|\S", draw(st.sampled_from(documented)))
        for _ in range(draw(st.integers(1, 3))):
            query[draw(st.integers(0, len(query) - 1))] = draw(tokens)
        return " ".join(query)

    def check(text: str) -> None:
        def ask() -> None:
            result = answer(connection, text)
            for chosen in (Format.csv, Format.json, Format.table):
                with contextlib.redirect_stdout(io.StringIO()) as stream:
                    write_result(result.slice(0, 20), chosen, None)
                if chosen is Format.json:
                    assert len(json.loads(stream.getvalue())) == min(result.num_rows, 20)
            write_result(result.slice(0, 20), Format.csv, folder.parent / "out.csv")

        tells(ask)
        assert sorted(folder.rglob("*")) == before, "a query changed the run"

    return texts(), check


def parquet_door(folder: Path) -> Door:
    """A file of responses of which bytes, or whole columns, have changed since it was sealed."""
    path = folder / "data" / "rollouts" / "rl@short" / "iter-00001.parquet"
    rows = rollout_table(make_rollouts("rl@short", 1))
    write_rollouts(path, rows)
    seal(path.parent)
    sound = path.read_bytes()

    changes = st.tuples(
        st.sampled_from(["drop", "type", "null", "fewer", "version"]),
        st.sampled_from(ROLLOUTS.names),
        st.sampled_from([pa.int8(), pa.string(), pa.float32(), pa.list_(pa.int64())]),
        st.sampled_from([b"0", b"1", b"2", b"99", b"", b"x"]),
    )

    def changed(kind: str, name: str, other: pa.DataType, version: bytes) -> bytes:
        """A sound Parquet file that is not the one of the manifest."""
        table = rows
        index = table.column_names.index(name)
        if kind == "drop":
            table = table.drop_columns([name])
        elif kind == "type":
            table = table.set_column(index, name, pa.nulls(len(table), other))
        elif kind == "null":
            field = pa.field(name, table.schema.field(name).type)
            table = table.set_column(index, field, pa.nulls(len(table), field.type))
        elif kind == "fewer":
            table = table.slice(1)
        else:
            table = table.replace_schema_metadata({b"tracerl.schema_version": version})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        return bytes(sink.getvalue())

    def check(change: Any) -> None:
        content = edited(sound, change) if isinstance(change, list) else changed(*change)
        path.write_bytes(content)
        tells(lambda: read_rollouts(path))
        tells(lambda: answer(connect(folder), "FROM rollouts"))
        tells(lambda: answer(connect(folder, skip_damaged=True), "FROM rollouts"))
        if content == sound:
            return
        assert tells(lambda: connect(folder, verify=True)) is not None, "a change is accepted"
        findings: list[object] = []
        tells(lambda: findings.extend(check_folder(path.parent, "rollouts", 200)))
        assert findings, "`data check` accepts a change"

    return st.one_of(edits(len(sound)), changes), check


def state_door(folder: Path) -> Door:
    """The saved state of a stage of which bytes have changed."""
    space = Workspace(folder)
    tensors = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(7)}
    space.save(tensors, {"step": 3, "curve": [{"loss": 0.5}]})
    path = folder / "state.safetensors"

    sound = path.read_bytes()

    def check(changes: list[Edit]) -> None:
        path.write_bytes(edited(sound, changes))
        loaded: list[Any] = []
        if tells(lambda: loaded.append(space.load())) is None:
            state, progress = loaded[0]
            assert progress == {"step": 3, "curve": [{"loss": 0.5}]}
            assert state.keys() == tensors.keys()
            assert all(torch.equal(state[name], tensors[name]) for name in tensors)

    return edits(len(sound)), check


def tasks_door(folder: Path) -> Door:
    """Users' task files, JSONL and Parquet."""
    values = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner)),
        max_leaves=4,
    )
    keys = st.one_of(st.sampled_from(["prompt", "answer", "solution", "difficulty", "kind"]), words)
    good = st.builds(lambda i: {"prompt": f"{i}?", "answer": str(i)}, st.integers(0, 10**6))
    rows = st.lists(st.one_of(good, st.dictionaries(keys, values, max_size=5)), max_size=6)

    def to_json(content: list[dict[str, Any]]) -> bytes:
        return "".join(json.dumps(row) + "\n" for row in content).encode()

    sound = to_json([{"prompt": f"{i}?", "answer": "1"} for i in range(40)])
    damaged = edits(len(sound)).map(lambda changes: edited(sound, changes))
    files = st.tuples(
        st.sampled_from(["t.jsonl", "t.parquet"]),
        st.one_of(rows.map(to_json), damaged, st.binary(max_size=40), rows.map(to_table)),
    )

    def check(file: tuple[str, bytes]) -> None:
        name, content = file
        (folder / name).write_bytes(content)
        section = FileSet.model_validate_json(
            json.dumps({"source": "file", "path": name, "num_train": 2, "num_test": 1})
        )
        tasks: list[Any] = []
        if tells(lambda: tasks.extend(make_task_set("t", section, 0.25, 1, folder))) is None:
            for task in tasks:
                assert isinstance(task.prompt, str)
                assert task.prompt.strip()
                assert task.answer
                json.dumps(task.prompt + task.answer + task.solution).encode()

    return files, check


def to_table(rows: list[dict[str, Any]]) -> bytes:
    """Rows as a Parquet file, or nothing where Arrow has no type for them."""
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(pa.Table.from_pylist(rows), sink)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return b""
    return bytes(sink.getvalue())


COMMANDS: dict[str, list[str]] = {
    "sql": ["--root", "--format", "--out", "--skip-damaged", "--verify", "--responses"],
    "trace": ["--root", "--out", "--against", "--limit", "--responses", "--model"],
    "summary": ["--root", "--markdown"],
    "compare": ["--root", "--resamples", "--seed"],
    "data check": ["--root"],
    "data accept": ["--root"],
    "generate": ["--model", "--prompts", "--out", "--set", "--seed", "--params", "--device"],
    "export": ["--model", "--out", "--merge-lora", "--dtype"],
    "doctor": ["--params", "--root"],
    "watch": ["--once", "--root", "--every"],
}
FLAGS = ("--skip-damaged", "--verify", "--markdown", "--once")


def cli_door(folder: Path) -> Door:
    """Arguments of the command line."""
    (folder / "run").mkdir()
    write_run(folder / "run", small_params())
    (folder / "file").write_text("text")
    paths = [str(folder / name) for name in ("run", "none", "file", "run/params.yaml", "run/data")]
    values = st.one_of(
        st.sampled_from([*paths, "1", "0", "cpu", "csv", "json", "true", "select 1", "from evals"]),
        words,
    )

    @st.composite
    def arguments(draw: st.DrawFn) -> list[str]:
        command = draw(st.sampled_from(sorted(COMMANDS)))
        positional = 1 if command in ("sql", "trace") else draw(st.integers(0, 2))
        line = [draw(values) for _ in range(positional)]
        for option in draw(st.lists(st.sampled_from(COMMANDS[command]), max_size=3, unique=True)):
            # Results go below the folder, wherever a word points.
            value = draw(values)
            if option == "--out":
                value = str(folder / "out" / f"{draw(st.integers(0, 3))}.csv")
            line += [option] if option in FLAGS else [option, value]
        if command == "watch":
            line = ["--once", "--root", draw(st.sampled_from(paths))]
        if command == "trace" and "--out" not in line:
            line += ["--out", str(folder / "out" / "trace.html")]
        if command == "sql":  # a shell waits for someone who types
            line[0] = line[0] or "select 1"
            line[0] = "select 1" if line[0].startswith("-") else line[0]
        return [*command.split(), *line]

    def check(line: list[str]) -> None:
        code: object = None
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            limited(),
        ):
            try:
                main(line)
            except SystemExit as ended:
                code = ended.code
        assert code in (None, 0, 1, 2) or str(code).startswith("error: "), code
        assert printable(str(code)) == str(code)

    return arguments(), check


DOORS: dict[str, Callable[[Path], Door]] = {
    "cli": cli_door,
    "parquet": parquet_door,
    "sql": sql_door,
    "state": state_door,
    "tasks": tasks_door,
}


def fuzz(name: str, examples: int, folder: Path) -> int:
    """Tries so many inputs of a door, the same ones each time; returns how many it tried. Fails
    with the smallest input that does what none may."""
    strategy, check = DOORS[name](folder)
    tried = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def attempt(value: Any) -> None:
        nonlocal tried
        tried += 1
        check(value)

    attempt()
    return tried


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--examples", type=int, default=1000, help="inputs of each door")
    parser.add_argument("--door", choices=sorted(DOORS), action="append", help="default: all")
    arguments = parser.parse_args()
    for name in arguments.door or sorted(DOORS):
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "door").mkdir()
            tried = fuzz(name, arguments.examples, Path(folder) / "door")
        print(f"{name}: {tried} inputs in {time.monotonic() - start:.0f} s, none wrong", flush=True)


if __name__ == "__main__":
    run()
