"""The doors through which strangers' input comes in, each with the inputs to try and what must be
true of the answer: a result or an error of ours, within five seconds, and damage is never accepted
silently. `tests/fuzz.py` tries them.

An input is plain data (text, bytes, numbers in lists and tuples), so that one that failed can be
kept as a line of tests/fixtures/fuzz/<door>.txt and tried again for ever.
"""

import contextlib
import copy
import faulthandler
import io
import json
import math
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from hypothesis import strategies as st

from tests.reporting.synthetic_run import make_rollouts, small_params, write_run
from tests.tiny import sharp_model
from tests.tiny_run import tiny_params
from tracerl.cli import main
from tracerl.errors import TracerlError, printable
from tracerl.models.checkpoint import load_checkpoint, save_checkpoint
from tracerl.models.tokenizer import character_tokenizer
from tracerl.reporting.terminal import Format, write_result
from tracerl.settings.params import load_params, parse_params
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
ESCAPES = ["", " ", "\x1b]0;x\x07", "\x9b", "\u202e", "\ud800", "\0", "\n", "\\", "π", "$HOME"]
SYNTAX = ["'", '"', ";", "--", "*", "[1]", "?", "%s", "{}", "{a}", "../..", "/"]
NUMBERS = ["-1", "1e400", "nan", "9" * 40]
NASTY = [*ESCAPES, *SYNTAX, *NUMBERS]
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


ARROW_TYPES = {
    "int8": pa.int8(),
    "string": pa.string(),
    "float": pa.float32(),
    "list": pa.list_(pa.int64()),
}


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
        st.sampled_from(sorted(ARROW_TYPES)),
        st.sampled_from([b"0", b"1", b"2", b"99", b"", b"x"]),
    )

    def changed(kind: str, name: str, other: str, version: bytes) -> bytes:
        """A sound Parquet file that is not the one of the manifest."""
        table = rows
        index = table.column_names.index(name)
        if kind == "drop":
            table = table.drop_columns([name])
        elif kind == "type":
            table = table.set_column(index, name, pa.nulls(len(table), ARROW_TYPES[other]))
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


# Options of each command, and whether one takes a value.
COMMANDS: dict[str, list[str]] = {
    "sql": ["--root", "--format", "--out", "--skip-damaged", "--verify", "--responses"],
    "trace": ["--root", "--out", "--against", "--limit", "--responses", "--model"],
    "summary": ["--root", "--markdown"],
    "compare": ["--root", "--resamples", "--seed"],
    "data check": ["--root"],
    "data accept": ["--root"],
    "data add": ["--from", "--template", "--root"],
    "generate": ["--model", "--prompts", "--out", "--set", "--seed", "--params", "--device"],
    "chat": ["--model", "--params", "--sampler", "--set", "--seed"],
    "judge": ["--prompt", "--response", "--params", "--separator", "--kind", "--answer", "--root"],
    "export": ["--model", "--out", "--merge-lora", "--dtype"],
    "doctor": ["--params", "--root"],
    "watch": ["--once", "--root", "--every"],
}
# How many arguments without an option a command takes, where it does nothing with another number.
POSITIONAL = {"sql": 1, "trace": 1, "judge": 1, "data add": 1, "chat": 0, "generate": 0}
FLAGS = ("--skip-damaged", "--verify", "--markdown", "--once")
# What a command needs before it does anything, so that most lines get past the first check.
NEEDED = {
    "chat": ["--model", "MODEL", "--set", "max_new_tokens=8"],
    "generate": ["--model", "MODEL", "--prompts", "PROMPTS"],
    "judge": ["--params", "PARAMS", "--prompt", "4+7=", "--response", "11"],
    "data add": ["--root", "ADD"],
    "export": ["--model", "MODEL"],
}


def cli_door(folder: Path, commands: Sequence[str] = tuple(COMMANDS)) -> Door:
    """Arguments of commands, and what is typed where a command reads it."""
    values = st.one_of(
        st.sampled_from(
            [*PLACES, "1", "0", "cpu", "csv", "json", "true", "select 1", "from evals"]
        ),
        st.sampled_from(
            ["steps", "math500", "gsm8k", "package", "temperature=2", "max_new_tokens=3"]
        ),
        words,
    )
    typed = st.lists(st.one_of(words, st.sampled_from(["/reset", "/exit", "2+2="])), max_size=3)

    @st.composite
    def arguments(draw: st.DrawFn) -> tuple[list[str], list[str]]:
        command = draw(st.sampled_from(sorted(commands)))
        num_positional = POSITIONAL.get(command, draw(st.integers(0, 2)))
        line = [draw(values) for _ in range(num_positional)]
        line += NEEDED.get(command, []) if draw(st.booleans()) else []
        for option in draw(st.lists(st.sampled_from(COMMANDS[command]), max_size=3, unique=True)):
            # Results go below the folder, wherever a word points.
            value = f"OUT/{draw(st.integers(0, 3))}.csv" if option == "--out" else draw(values)
            line += [option] if option in FLAGS else [option, value]
        if command == "watch":
            line = ["--once", "--root", draw(st.sampled_from(PLACES))]
        if command == "trace" and "--out" not in line:
            line += ["--out", "OUT/trace.html"]
        if command == "data add":  # nothing is fetched, and the run stays as it is
            line += ["--from", draw(st.sampled_from(PLACES)), "--root", "ADD"]
        if command == "data accept":  # it writes, and by default into the current folder
            line += ["--root", draw(st.sampled_from(["ADD", "NONE", "FILE"]))]
        if command == "sql":  # a shell waits for someone who types
            line[0] = line[0] or "select 1"
            line[0] = "select 1" if line[0].startswith("-") else line[0]
        return [*command.split(), *line], draw(typed)

    places = make_places(folder)

    def check(value: tuple[list[str], list[str]]) -> None:
        line, text = value
        ended = run_line([place(word, places) for word in line], "\n".join(text))
        assert ended in (None, 0, 1, 2) or str(ended).startswith("error: "), ended
        assert printable(str(ended)) == str(ended)

    return arguments(), check


PLACES = ("RUN", "NONE", "FILE", "RUN/params.yaml", "RUN/data", "MODEL", "PARAMS", "PROMPTS")


def make_places(folder: Path) -> dict[str, str]:
    """What the words of PLACES stand for, made in a folder."""
    names = ("RUN", "NONE", "FILE", "MODEL", "PARAMS", "PROMPTS", "ADD", "OUT")
    places = {name: folder / name.lower() for name in names}
    places["RUN"].mkdir()
    places["ADD"].mkdir()
    write_run(places["RUN"], small_params())
    places["FILE"].write_text("text")
    write_checkpoint(places["MODEL"])
    params = tiny_params()
    params["verification"]["judges"] = {"steps": {"kind": "steps"}}
    places["PARAMS"].write_text(json.dumps(params))
    places["PROMPTS"] = folder / "prompts.txt"
    places["PROMPTS"].write_text("2+2=\n")
    return {name: str(path) for name, path in places.items()}


def place(word: str, places: Mapping[str, str]) -> str:
    """A word of a command line with the folder of a place in it."""
    first, slash, rest = word.partition("/")
    return places[first] + slash + rest if first in places else word


def run_line(line: list[str], text: str) -> object:
    """Exit status or message of a command line; `text` is what is typed."""
    stdin = sys.stdin
    sys.stdin = io.StringIO(text)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            limited(),
        ):
            main(line)
    except SystemExit as ended:
        return ended.code
    finally:
        sys.stdin = stdin
    return None


def write_checkpoint(folder: Path) -> None:
    """A tiny published checkpoint."""
    tokenizer = character_tokenizer()
    model = sharp_model("sdar", vocab_size=tokenizer.vocab_size, mask_id=tokenizer.mask_id)
    save_checkpoint(model, tokenizer, folder)


# Values that a key of a params file or of a checkpoint's JSON does not expect.
ODD_NUMBERS = [0, 1, -1, 2, 2**31, 2**70, 10**30, -(10**30), 0.0, 0.5, -0.5, 1e308, 1e-308]
ODD_PARTS: list[Any] = [[], [[]], [0], [1, 2], ["a"], {}, {"a": 1}, {"kind": "x"}, {"kind": []}]
ODD_WORDS = [None, True, False, math.inf, -math.inf, math.nan, "static", "base", "cpu"]
ODD_VALUES: list[Any] = [*ODD_NUMBERS, *ODD_PARTS, *ODD_WORDS, *NASTY]
# Texts that readers of YAML have failed on: deep nesting, circles, tags, keys twice, and names that
# stand for more and more.
DEEP_TEXTS = ["[" * 5000, "{" * 5000, "- " * 5000]
CIRCLES = ["seed: &a [*a]", "a: &a {b: *a}", "<<: *x"]
TAGS = ["!!python/object/apply:os.system ['true']", "!!binary aGk=", "a: 2020-01-01", "a: 1:30"]
LAYOUTS = ["", "? [a, b]\n: c", "%YAML 9.9\n---\n", "--- 1\n--- 2", "\ufeffseed: 1", "a: 1\n\tb: 1"]
GROWTH = "".join(
    f"{name}: &{name} [{', '.join([value] * 9)}]\n"
    for name, value in zip("abcdefgh", ["x", "*a", "*b", "*c", "*d", "*e", "*f", "*g"], strict=True)
)
ODD_TEXTS = [*DEEP_TEXTS, *CIRCLES, *TAGS, *LAYOUTS, "seed: 1\nseed: 2", GROWTH]

Change = tuple[str, int, int]


def tree_changes(tree: Any) -> st.SearchStrategy[list[Change]]:
    """Changes to plain data: (what, which place, which odd value or other place)."""
    num_places = len(list(places_in(tree)))
    kinds = st.sampled_from(["set", "remove", "add", "copy", "rename"])
    change = st.tuples(kinds, st.integers(0, num_places - 1), st.integers(0, 10**6))
    return st.lists(change, min_size=1, max_size=2)


def places_in(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (map or list, key or index) of plain data."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    for key in keys:
        yield tree, key
        if isinstance(tree[key], (dict, list)):
            yield from places_in(tree[key])


def change_tree(tree: Any, changes: list[Change]) -> Any:
    """Plain data after these changes."""
    tree = copy.deepcopy(tree)
    for kind, number, other in changes:
        places = list(places_in(tree))
        holder, key = places[number % len(places)]
        odd = copy.deepcopy(ODD_VALUES[other % len(ODD_VALUES)])
        source, name = places[other % len(places)]
        if kind == "set":
            holder[key] = odd
        elif kind == "remove":
            del holder[key]
        elif kind == "copy":
            holder[key] = copy.deepcopy(source[name])
        elif isinstance(holder, list):
            holder.append(odd)
        elif kind == "add":
            holder[NASTY[other % len(NASTY)]] = odd
        else:
            holder[NASTY[other % len(NASTY)]] = holder.pop(key)
        if not tree:
            return tree
    return tree


def params_door(folder: Path) -> Door:
    """Params files: keys and values exchanged, bytes changed, and texts that break readers."""
    sound = tiny_params()
    sound["rl"] = {"short": sound["rl"]["short"]}
    sound["sft"] = {"short": sound["sft"]["short"]}
    sound["evaluate"] = {"sft-short": sound["evaluate"]["sft-short"]}
    text = yaml.safe_dump(sound, sort_keys=False)
    inputs = st.one_of(
        tree_changes(sound),
        tree_changes(sound),
        edits(len(text)).map(lambda changes: edited(text.encode(), changes)),
        st.sampled_from(ODD_TEXTS),
        st.text(max_size=60),
    )
    path = folder / "params.yaml"

    def check(value: Any) -> None:
        changed = change_tree(sound, value) if isinstance(value, list) else None
        # Most of the time goes into reading YAML: every fourth tree is written as a file.
        is_file = changed is None or value[0][1] % 4 == 0
        if isinstance(value, bytes):
            path.write_bytes(value)
        elif is_file:
            text = value if changed is None else yaml.safe_dump(changed, sort_keys=False)
            path.write_text(text, errors="surrogatepass")
        loaded: list[Any] = []

        def read() -> None:
            loaded.append(load_params(path) if is_file else parse_params(changed, str(path)))

        if tells(read) is not None:
            return
        (params,) = loaded
        tree = params.model_dump(mode="json")
        assert parse_params(tree, "again") == params, "what was read is not what was written"
        if changed is not None and len(value) == 1 and value[0][0] == "set":
            assert_not_coerced(changed, tree)

    return inputs, check


def assert_not_coerced(before: Any, after: Any) -> None:
    """That every value of a params file stands in the params as it was written, but for whole
    numbers where any number may stand."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() & after.keys():
            assert_not_coerced(before[key], after[key])
    elif isinstance(before, list) and isinstance(after, list):
        assert len(before) == len(after)
        for first, second in zip(before, after, strict=True):
            assert_not_coerced(first, second)
    elif before is not None:
        assert before == after, f"{before!r} was read as {after!r}"
        assert isinstance(before, bool) == isinstance(after, bool)


def checkpoint_door(folder: Path) -> Door:
    """Directories of checkpoints: JSON with keys and values exchanged, bytes of every file changed,
    files that are missing or empty."""
    sound = folder / "sound"
    write_checkpoint(sound)
    content = {path.name: path.read_bytes() for path in sorted(sound.iterdir())}
    trees = {name: json.loads(data) for name, data in content.items() if name.endswith(".json")}

    @st.composite
    def changes(draw: st.DrawFn) -> tuple[str, str, Any]:
        kind = draw(st.sampled_from(["json", "json", "bytes", "header", "missing"]))
        names = sorted(trees if kind == "json" else content)
        name = draw(st.sampled_from(names)) if kind != "header" else "model.safetensors"
        if kind == "json":
            return kind, name, draw(tree_changes(trees[name]))
        if kind == "header":
            return kind, name, draw(tree_changes(header_of(content[name])))
        return kind, name, draw(edits(len(content[name]))) if kind == "bytes" else draw(st.just(0))

    directory = folder / "checkpoint"

    def check(value: tuple[str, str, Any]) -> None:
        kind, name, what = value
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(sound, directory)
        path = directory / name
        if kind == "missing":
            path.unlink()
        elif kind == "json":
            path.write_text(json.dumps(change_tree(trees[name], what)))
        elif kind == "header":
            path.write_bytes(
                with_header(content[name], change_tree(header_of(content[name]), what))
            )
        else:
            path.write_bytes(edited(content[name], what))
        tells(lambda: use_checkpoint(directory))

    return changes(), check


def header_of(file: bytes) -> Any:
    """The header of a safetensors file: name -> dtype, shape, place."""
    size = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + size])


def with_header(file: bytes, header: Any) -> bytes:
    """A safetensors file with another header."""
    size = int.from_bytes(file[:8], "little")
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + file[8 + size :]


def use_checkpoint(directory: Path) -> None:
    """Loads a checkpoint; what is accepted computes finite numbers, and reads and writes text."""
    policy, tokenizer = load_checkpoint(directory)
    ids = tokenizer.encode("2+2=")
    tokenizer.decode(tokenizer.prompt_ids("2+2="))
    tokenizer.chat_ids([{"role": "user", "content": "2+2="}])
    assert all(0 <= i < policy.architecture.vocab_size for i in ids)
    assert all(bool(torch.isfinite(weight).all()) for weight in policy.parameters())


DOORS: dict[str, Callable[[Path], Door]] = {
    "chat": partial(cli_door, commands=["chat"]),
    "checkpoint": checkpoint_door,
    "cli": cli_door,
    "data add": partial(cli_door, commands=["data add"]),
    "judge": partial(cli_door, commands=["judge"]),
    "params": params_door,
    "parquet": parquet_door,
    "sql": sql_door,
    "state": state_door,
    "tasks": tasks_door,
}
