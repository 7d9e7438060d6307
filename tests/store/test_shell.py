"""The SQL shell, typed at through a pipe: answers, completion, history, commands, and no end before
it is asked for."""

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from tests.reporting.synthetic_run import make_rollouts
from tracerl.errors import DataError
from tracerl.store.catalog import VIEWS, answer, connect
from tracerl.store.files import rollout_table, write_rollouts
from tracerl.store.shell import HELP, NameCompleter, completions, run_shell


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    write_rollouts(
        root / "data" / "rollouts" / "rl@short" / "one.parquet",
        rollout_table(make_rollouts("rl@short", 1)),
    )
    return connect(root)


def typed(connection, text, history):
    """What the shell says and answers when `text` is typed."""
    said = []

    def run(query):
        try:
            said.append(answer(connection, query).to_pylist())
        except DataError as error:
            said.append(str(error))

    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(text)
        run_shell(connection, run, said.append, history)
    return said


def test_a_statement_ends_with_a_semicolon_and_may_have_many_lines(connection, tmp_path):
    said = typed(
        connection,
        "select count(*) as n\nfrom rollouts;\nselect 1 as x;\n.quit\n",
        tmp_path / "new" / "history",
    )
    assert said[1:] == [[{"n": 8}], [{"x": 1}]]
    assert "select 1 as x;" in (tmp_path / "new" / "history").read_text()


def test_history_of_an_earlier_session_can_be_recalled(connection, tmp_path):
    typed(connection, "select 42 as x;\n.quit\n", tmp_path / "history")
    assert typed(connection, "\x1b[A\x1b[A\n.quit\n", tmp_path / "history")[1:] == [[{"x": 42}]]


def test_a_shell_without_a_place_for_its_history_says_so_and_answers(connection, tmp_path):
    (tmp_path / "home").write_text("no folder")
    said = typed(connection, "select 1 as x;\n.quit\n", tmp_path / "home" / "history")
    assert said[0].startswith("No history is kept: ")
    assert str(tmp_path / "home") in said[0]
    assert said[2] == [{"x": 1}]


def test_a_wrong_query_does_not_end_the_shell_and_end_of_input_does(connection, tmp_path):
    said = typed(connection, "selec 1;\nselect 2 as x;\n\x04", tmp_path / "history")
    assert "syntax error" in said[1]
    assert said[2] == [{"x": 2}]


def test_commands_say_what_there_is(connection, tmp_path):
    said = typed(
        connection, ".tables\n.columns rollouts\n.macros\n.nonsense\n.quit\n", tmp_path / "history"
    )
    assert said[1] == "\n".join(VIEWS)
    assert {"column_name": "step_map", "column_type": "INTEGER[]"} in said[2]
    assert "pass_at_k(n, c, k): " in said[3]
    assert said[4] == HELP


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("select step_m", "step_map"),
        ("from roll", "rollouts"),
        ("select pass_r", "pass_rate("),
        (".ta", ".tables"),
        ("SELECT LIST_A", "list_avg"),
    ],
)
def test_tab_completes_views_columns_macros_and_commands(connection, text, first):
    found = list(
        NameCompleter(completions(connection)).get_completions(
            Document(text), CompleteEvent(completion_requested=True)
        )
    )
    assert found[0].text == first
    assert list(NameCompleter({}).get_completions(Document("select "), CompleteEvent())) == []
