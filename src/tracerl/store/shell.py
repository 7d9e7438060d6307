"""The interactive shell of `tracerl sql`: statements end with a semicolon, history is kept in a
file, Tab completes names."""

from collections.abc import Callable, Iterable
from pathlib import Path

import duckdb
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer

from tracerl.store.catalog import DECODED, MACROS, VIEWS

HELP = """\
End a statement with ; and Enter. Tab completes, Up recalls, Ctrl-C stops a query or clears
the line, Ctrl-D leaves.
  .help            this text
  .tables          the views
  .columns VIEW    the columns of a view
  .macros          the macros
  .quit            leave"""
_KEYWORDS = [
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "BY",
    "ALL",
    "ORDER",
    "BY",
    "LIMIT",
    "HAVING",
    "JOIN",
    "LEFT",
    "JOIN",
    "USING",
    "ON",
    "AS",
    "WITH",
    "DISTINCT",
    "COUNT",
    "AVG",
    "SUM",
    "MIN",
    "MAX",
    "MEDIAN",
    "QUANTILE_CONT",
    "UNNEST",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "END",
    "AND",
    "OR",
    "NOT",
    "IN",
    "LIKE",
    "BETWEEN",
    "IS",
    "NULL",
    "DESCRIBE",
    "SUMMARIZE",
    "PIVOT",
    "OVER",
    "PARTITION",
    "QUALIFY",
    "FILTER",
    "UNION",
    "EXCLUDE",
    "LIST",
    "LIST_SORT",
    "LIST_AVG",
    "LIST_MAX",
    "LEN",
    "TRUE",
    "FALSE",
    "DESC",
    "ASC",
]


def completions(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Word -> what it is: views, their columns, macros, dot commands and keywords."""
    words = dict.fromkeys(map(str.lower, _KEYWORDS), "keyword")
    for view in VIEWS:
        for name, kind, *_ in connection.sql(f"DESCRIBE {view}").fetchall():
            words[str(name)] = str(kind).lower()
    for signature, (_, what) in MACROS.items():
        words[signature.partition("(")[0] + "("] = what
    words["decoded("] = DECODED[1]
    words |= dict.fromkeys(VIEWS, "view")
    words |= dict.fromkeys((".help", ".tables", ".columns", ".macros", ".quit"), "command")
    return words


class NameCompleter(Completer):
    """Names that start with the word before the cursor, views before others, then those that hold
    it."""

    def __init__(self, words: dict[str, str]) -> None:
        self.words = words

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        word = document.get_word_before_cursor(WORD=False).lower()
        dotted = document.text.startswith(".") and " " not in document.text
        typed = document.text if dotted else word
        if not typed:
            return
        first = sorted(
            (name for name in self.words if name.startswith(typed)),
            key=lambda name: (self.words[name] != "view", name),
        )
        matches = []
        for name in self.words:
            if typed in name and not name.startswith(typed) and len(typed) > 2:
                matches.append(name)
        later = sorted(matches)
        for name in [*first, *later]:
            yield Completion(name, start_position=-len(typed), display_meta=self.words[name])


def run_shell(
    connection: duckdb.DuckDBPyConnection,
    run: Callable[[str], None],
    say: Callable[[str], None],
    history: Path,
) -> None:
    """Reads statements until the end of input. `run` answers a query, `say` prints a line; neither
    may raise for a wrong query."""
    session: PromptSession[str] = PromptSession(
        "tracerl> ",
        history=_open_history(history, say),
        completer=NameCompleter(completions(connection)),
        multiline=True,
        prompt_continuation="    ...> ",
        lexer=PygmentsLexer(SqlLexer),
        key_bindings=_keys(),
        complete_while_typing=False,
    )
    say("Views: " + ", ".join(VIEWS) + ". Type .help for help.")
    while True:
        try:
            text = session.prompt().strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.rstrip(";").strip() in (".quit", ".exit"):
            return
        if text.startswith("."):
            _command(text.rstrip(";").split(), run, say)
        elif text.rstrip(";").strip():
            run(text.rstrip().rstrip(";"))


def _open_history(path: Path, say: Callable[[str], None]) -> History:
    """The statements of earlier shells; of this one only where the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        say(f"No history is kept: {error}")
        return InMemoryHistory()
    return FileHistory(str(path))


def _command(words: list[str], run: Callable[[str], None], say: Callable[[str], None]) -> None:
    if words[0] == ".tables":
        say("\n".join(VIEWS))
    elif words[0] == ".columns" and len(words) == 2 and words[1] in VIEWS:
        run(f"SELECT column_name, column_type FROM (DESCRIBE {words[1]})")
    elif words[0] == ".macros":
        say(
            "\n".join(
                [f"{signature}: {what}" for signature, (_, what) in MACROS.items()]
                + [": ".join(DECODED)]
            )
        )
    else:
        say(HELP)


def _keys() -> KeyBindings:
    """Enter ends a statement that ends with a semicolon, a dot command or an empty line, and else
    begins a new line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        text = buffer.text.strip()
        if not text or text.startswith(".") or text.endswith(";"):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys
