"""Every rule is kept by sound rows and seen broken by a crafted one, which is named with its file,
row group and column."""

from pathlib import Path

import pytest

from tests.store.crafted import BREAKS, BREAKS_AT_A_BOUND, VOCAB_SIZE, as_table, sound
from tracerl.errors import DataError
from tracerl.store import parquet
from tracerl.store.parquet import write_parquet
from tracerl.store.rules import RULES, add_token_columns, broken_rules, require_rules

CASES = [(table, rule.name) for table, rules in RULES.items() for rule in rules]
ID = {"tasks": "task_id", "rollouts": "rollout_id"}


@pytest.mark.parametrize("table", RULES)
def test_sound_rows_keep_every_rule(table, tmp_path):
    write_parquet(tmp_path / "sound.parquet", as_table(table, sound(table)))
    assert list(broken_rules(tmp_path / "sound.parquet", table, VOCAB_SIZE)) == []
    write_parquet(tmp_path / "none.parquet", as_table(table, []))
    assert list(broken_rules(tmp_path / "none.parquet", table, VOCAB_SIZE)) == []


def test_every_rule_has_a_row_that_breaks_it():
    assert {table: list(breaks) for table, breaks in BREAKS.items()} == {
        t: [rule.name for rule in rules] for t, rules in RULES.items()
    }


@pytest.mark.parametrize(("table", "name"), CASES)
def test_a_broken_rule_is_named_with_its_row(table, name, tmp_path):
    rows = sound(table)[:2]
    rows[1] = BREAKS[table][name](rows[1])
    path = tmp_path / "crafted.parquet"
    write_parquet(path, as_table(table, rows))
    found = {broken.rule.name: broken for broken in broken_rules(path, table, VOCAB_SIZE)}
    assert name in found
    assert (found[name].count, found[name].first) == (1, (rows[1][ID[table]],))


@pytest.mark.parametrize(("name", "changes"), BREAKS_AT_A_BOUND)
def test_every_condition_of_a_rule_is_checked_up_to_its_bound(name, changes, tmp_path):
    path = tmp_path / "crafted.parquet"
    write_parquet(path, as_table("rollouts", [{**sound("rollouts")[0], **changes}]))
    assert name in {broken.rule.name for broken in broken_rules(path, "rollouts", VOCAB_SIZE)}


def test_broken_rules_stop_with_file_row_group_column_count_and_first_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 2)
    rows, path = sound("rollouts"), tmp_path / "crafted.parquet"
    rows[2], rows[3] = (BREAKS["rollouts"]["one_step_per_token"](row) for row in rows[2:4])
    write_parquet(path, as_table("rollouts", rows))
    with pytest.raises(DataError) as error:
        require_rules(path, "rollouts", VOCAB_SIZE)
    for part in (str(path), "row group 1", "column step_map", "2 rows", rows[2]["rollout_id"]):
        assert part in str(error.value)


def test_the_vocabulary_is_not_checked_where_it_is_not_known(tmp_path):
    rows = [BREAKS["rollouts"]["ids_in_vocabulary"](row) for row in sound("rollouts")]
    write_parquet(tmp_path / "crafted.parquet", as_table("rollouts", rows))
    require_rules(tmp_path / "crafted.parquet", "rollouts", None)


@pytest.mark.parametrize(
    ("prompt", "block_size", "steps", "distinct", "inside"),
    [
        # The first block holds one token of the response: step 3 is in two blocks.
        (
            3,
            4,
            [1, 3, 2, 3, 4, 3, 5, 5, 6],
            6,
            False,
        ),
        (3, 4, [1, 3, 2, 2, 4, 5, 5, 5, 6], 6, True),
        (3, 2, [1, 1, 2, 2], 2, True),  # blocks of full attention start at the response
        (4, 4, [2, 1, 0, 0], 2, True),  # never reached
        (4, 2, [1, 1, 0, 0], 1, True),
        (4, 2, [2, 2, 1, 1], 2, False),
        (4, 2, [1, 1, 1, 2], 2, False),  # step 1 is the last of a block and the first of the next
        (4, 4, [1, 1, 3, 3], 2, True),
    ],
)
def test_derived_columns_follow_the_grid(prompt, block_size, steps, distinct, inside):
    row = {
        **sound("rollouts")[0],
        "num_prompt_tokens": prompt,
        "prompt_ids": [0] * prompt,
        "block_size": block_size,
        "step_map": steps,
    }
    other = sound("rollouts")[1]
    table = add_token_columns(as_table("rollouts", [other, row, other]))
    assert table["distinct_steps"].to_pylist() == [other["num_steps"], distinct, other["num_steps"]]
    assert table["steps_in_blocks"].to_pylist() == [True, inside, True]


def test_derived_extremes_are_those_of_the_lists():
    row = sound("rollouts")[0]
    odd = {
        **row,
        "prompt_ids": [],
        "response_ids": [7, 3],
        "step_map": [2_000_000_000, 1],
        "logprobs": [-1.0, float("nan"), 0.5],
    }
    none = {**row, "prompt_ids": [9], "response_ids": [], "step_map": [], "logprobs": []}
    table = add_token_columns(as_table("rollouts", [none, odd, none])).select(
        ["lowest_id", "highest_id", "lowest_step", "highest_step"]
    )
    assert [tuple(one.values()) for one in table.to_pylist()] == [
        (9, 9, None, None),
        (3, 7, 1, 2_000_000_000),
        (9, 9, None, None),
    ]
    highest = add_token_columns(as_table("rollouts", [none, odd, row]))[
        "highest_logprob"
    ].to_pylist()
    assert highest[0] is None
    assert highest[1] != highest[1]
    assert highest[2] == max(row["logprobs"])


def test_slices_do_not_change_what_is_derived(monkeypatch):
    rows = as_table("rollouts", sound("rollouts"))
    whole = add_token_columns(rows)
    monkeypatch.setattr("tracerl.store.rules._SLICE", 3)
    assert add_token_columns(rows).equals(whole)


def test_crafted_rows_have_a_folder(tmp_path: Path):
    with pytest.raises(DataError, match="missing"):
        require_rules(tmp_path / "nowhere.parquet", "tasks", None)
