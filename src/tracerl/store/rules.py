"""What must be true of every row: the store's laws as SQL conditions, run by DuckDB over one row
group at a time.

One list serves three doors: the file that an RL iteration has just written, `tracerl data check`,
and the counts that Great Expectations judges between stages. What a law asks of every token of a
list is a column made by numpy (`derived`), several times faster than DuckDB's list functions, that
the conditions read like any other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracerl.errors import DataError
from tracerl.store.parquet import open_parquet, upgraded

NUM_FIRST = 5
_SLICE = 512  # rows whose tokens numpy handles at once: as many as stay in a processor's cache


@dataclass(frozen=True)
class Rule:
    """A law of a row. column: which column to look at. broken: SQL that is true of a row that
    breaks it. says: the law in words."""

    name: str
    column: str
    broken: str
    says: str


@dataclass(frozen=True)
class Broken:
    """Rows of one row group that break one rule. first: ids of the first of them."""

    path: Path
    row_group: int
    rule: Rule
    count: int
    first: tuple[str, ...]

    def __str__(self) -> str:
        rows = f"{self.count} row{'s' if self.count > 1 else ''}, first {', '.join(self.first)}"
        return (
            f"{self.path}, row group {self.row_group}, column {self.rule.column}: "
            f"{self.rule.says} ({rows})"
        )


_PADDED = "num_prompt_tokens + len(response_ids)"

RULES: dict[str, tuple[Rule, ...]] = {
    "tasks": (
        Rule(
            "task_id_of_its_set",
            "task_id",
            "NOT starts_with(task_id, task_set || '/') OR task_set = ''",
            "the id begins with the task set",
        ),
        Rule(
            "split_is_known",
            "split",
            "split NOT IN ('train', 'test')",
            "the split is train or test",
        ),
        Rule("prompt_is_not_empty", "prompt", "trim(prompt) = ''", "the prompt is not empty"),
        Rule("kind_is_not_empty", "kind", "kind = ''", "a verifier is named"),
        Rule(
            "difficulty_is_positive", "difficulty", "difficulty < 1", "the difficulty is at least 1"
        ),
    ),
    "rollouts": (
        Rule(
            "id_is_not_empty",
            "rollout_id",
            "rollout_id = '' OR stage = '' OR task_id = ''",
            "ids are not empty",
        ),
        Rule(
            "numbers_are_not_negative",
            "iteration",
            "iteration < 0 OR sample_index < 0 OR seed < 0",
            "coordinates are not negative",
        ),
        Rule(
            "policy_is_named",
            "policy_hash",
            "NOT regexp_full_match(policy_hash, '[0-9a-f]+')",
            "the policy hash is hexadecimal",
        ),
        Rule(
            "prompt_length",
            "num_prompt_tokens",
            "num_prompt_tokens <> len(prompt_ids) OR num_prompt_tokens < 1",
            "num_prompt_tokens is the length of prompt_ids, at least 1",
        ),
        Rule(
            "response_length",
            "num_tokens",
            "num_tokens NOT BETWEEN 1 AND len(response_ids)",
            "num_tokens is between 1 and the length of response_ids",
        ),
        Rule(
            "whole_blocks",
            "response_ids",
            f"block_size < 1 OR (({_PADDED}) % greatest(block_size, 1) <> 0"
            " AND len(response_ids) % greatest(block_size, 1) <> 0)",
            "the response holds whole blocks",
        ),
        Rule(
            "canvas_holds_response",
            "canvas_length",
            f"canvas_length < {_PADDED}",
            "the canvas is at least as long as the sequence",
        ),
        Rule(
            "one_step_per_token",
            "step_map",
            "len(step_map) <> len(response_ids)",
            "every token has exactly one step",
        ),
        Rule(
            "counted_tokens_have_steps",
            "step_map",
            "lowest_step < 1 AND list_min(step_map[:num_tokens]) < 1",
            "every counted token was committed at a step",
        ),
        Rule(
            "steps_are_a_partition",
            "step_map",
            "highest_step <> num_steps OR (schedule <> 'dream' AND distinct_steps <> num_steps)",
            "steps are 1 to num_steps, and none is empty except on Dream's schedule",
        ),
        Rule(
            "steps_stay_in_blocks",
            "step_map",
            "NOT steps_in_blocks",
            "no step spans two blocks, and blocks follow each other",
        ),
        Rule(
            "ids_in_vocabulary",
            "response_ids",
            "lowest_id < 0 OR highest_id >= $vocab_size",
            "token ids lie inside the vocabulary",
        ),
        Rule(
            "one_logprob_per_token",
            "logprobs",
            "len(logprobs) <> len(response_ids)",
            "every token has exactly one log-probability",
        ),
        Rule(
            "logprobs_are_logarithms",
            "logprobs",
            "NOT isnan(highest_logprob) AND highest_logprob > 1e-5",
            "log-probabilities are not above 0",
        ),
        Rule(
            "logprobs_are_known",
            "logprobs",
            "remasking <> 'preferred' AND isnan(highest_logprob) AND "
            "isnan(list_max(logprobs[:num_tokens]))",
            "every sampled token has a log-probability",
        ),
        Rule(
            "filtered_where_filtered",
            "filtered_logprobs",
            "remasking <> 'preferred' AND (top_k <> 0 OR top_p < 1) <> (filtered_logprobs IS NOT "
            "NULL)",
            "log-probabilities under a filter are stored exactly where there was one",
        ),
        Rule(
            "lists_of_one_length",
            "order_in_step",
            " OR ".join(
                f"({name} IS NOT NULL AND len({name}) <> len(response_ids))"
                for name in ("filtered_logprobs", "order_in_step", "order_logprobs")
            ),
            "optional lists are as long as the response",
        ),
        Rule(
            "order_where_drawn",
            "order_in_step",
            "(remasking = 'plackett_luce') <> (order_in_step IS NOT NULL AND order_logprobs IS "
            "NOT NULL)",
            "the order within steps is stored exactly where it was drawn",
        ),
        Rule(
            "forwards_add_up",
            "num_forwards",
            "num_denoising_forwards > num_forwards "
            "OR (remasking <> 'preferred' AND num_steps > num_denoising_forwards)",
            "steps <= denoising forwards <= all forwards",
        ),
        Rule(
            "verdict_is_known",
            "verdict",
            "verdict NOT IN ('correct', 'wrong', 'undecided')",
            "the verdict is known",
        ),
        Rule(
            "stop_is_known",
            "stop_reason",
            "stop_reason NOT IN ('end', 'length')",
            "the response ended or was cut",
        ),
        Rule(
            "reward_is_a_number", "reward", "NOT isfinite(reward)", "the reward is a finite number"
        ),
        Rule(
            "parts_make_the_reward",
            "reward_parts",
            "cardinality(reward_parts) > 0 AND abs(list_sum(map_values(reward_parts)) - reward) > "
            "1e-6",
            "reward parts add up to the reward",
        ),
        Rule(
            "undecided_is_not_paid",
            "reward",
            "verdict = 'undecided' AND reward > 0",
            "an undecided response is not paid",
        ),
        Rule(
            "chunks_are_the_response",
            "chunk_ends",
            "chunk_ends IS NOT NULL AND (len(chunk_ends) = 0 OR chunk_ends[-1] <> num_tokens OR "
            "chunk_ends[1] < 1"
            " OR len(list_distinct(chunk_ends)) <> len(chunk_ends) OR list_sort(chunk_ends) <> "
            "chunk_ends)",
            "chunks follow each other from the first counted token to the last",
        ),
        Rule(
            "chunks_are_scored",
            "chunk_scores",
            "(chunk_ends IS NULL) <> (chunk_scores IS NULL) OR (chunk_ends IS NULL) <> "
            "(chunk_rewards IS NULL)"
            " OR len(chunk_scores) <> len(chunk_ends) OR len(chunk_rewards) <> len(chunk_ends)"
            " OR len(list_filter(chunk_scores, lambda score: NOT isnan(score) AND abs(score) > "
            "1)) > 0"
            " OR len(list_filter(chunk_rewards, lambda reward: NOT isfinite(reward))) > 0",
            "every chunk has a score from -1 to 1, or none, and a finite reward",
        ),
        Rule(
            "settings_make_sense",
            "temperature",
            "temperature < 0 OR top_k < 0 OR top_p <= 0 OR top_p > 1 OR steps_per_block < 1",
            "sampler settings lie in their ranges",
        ),
    ),
}


def _responses(dataset: str, wrong_split: str) -> dict[str, tuple[str, str]]:
    """Rules between rows of responses. wrong_split: true of a response whose task belongs to the
    other split."""
    return {
        "ids_are_unique": (
            "no two rows have one id",
            f"SELECT rollout_id AS id FROM {dataset} GROUP BY ALL HAVING count(*) > 1",
        ),
        "responses_are_unique": (
            "a stage samples each response of a task once",
            f"SELECT min(rollout_id) AS id FROM {dataset} WHERE remasking <> 'preferred' GROUP BY "
            "stage, iteration, task_id, sample_index"
            " HAVING count(*) > 1",
        ),
        "tasks_are_known": (
            "every response belongs to a task of the task sets",
            f"SELECT rollout_id AS id FROM {dataset} ANTI JOIN tasks USING (task_id)",
        ),
        "splits_are_kept": (
            "training uses train tasks and evaluation test tasks",
            f"SELECT rollout_id AS id FROM {dataset} JOIN tasks USING (task_id) WHERE "
            f"{wrong_split}",
        ),
    }


_PROMPTS = (
    "SELECT task_id, task_set, split, answer, regexp_replace(lower(prompt), '\\s+', '', "
    "'g') AS prompt FROM tasks"
)

# Data set -> what must be true between its rows: the law in words, and a query for the ids of rows
# that break it.
SET_RULES: dict[str, dict[str, tuple[str, str]]] = {
    "tasks": {
        "ids_are_unique": (
            "no two tasks have one id",
            "SELECT task_id AS id FROM tasks GROUP BY ALL HAVING count(*) > 1",
        ),
        "splits_do_not_overlap": (
            "no test problem is also a train problem, whatever its capitals and spaces",
            f"WITH plain AS ({_PROMPTS}) SELECT task_id AS id FROM plain WHERE split = 'test'"
            " AND prompt IN (SELECT prompt FROM plain WHERE split = 'train')",
        ),
        "answers_agree": (
            "a problem has one answer",
            f"WITH plain AS ({_PROMPTS}) SELECT min(task_id) AS id FROM plain GROUP BY task_set, "
            "prompt HAVING count(DISTINCT answer) > 1",
        ),
    },
    "traces": _responses("traces", "split <> 'train'"),
    "rollouts": _responses(
        "rollouts", "split <> if(contains(stage, '/held-out'), 'test', 'train')"
    ),
    "evals": _responses("evals", "split <> 'test'"),
}
# Held-out measurements of a round that end below where they began: the last mean over problems lies
# below the 95% interval of the first.
_DECLINES = """
WITH problems AS (
    SELECT stage, iteration, task_id, avg((verdict = 'correct')::DOUBLE) AS passed
    FROM rollouts WHERE contains(stage, '/held-out') GROUP BY ALL
), measured AS (
    SELECT stage, iteration, avg(passed) AS accuracy,
        accuracy - 1.96 * stddev_pop(passed) / sqrt(count(*)) AS low
    FROM problems GROUP BY ALL
)
SELECT stage AS id FROM measured
GROUP BY stage HAVING max_by(accuracy, iteration) < min_by(low, iteration)
"""
# As SET_RULES, of what is worth a warning and stops nothing.
SET_WARNINGS: dict[str, dict[str, tuple[str, str]]] = {
    "tasks": {},
    "traces": {},
    "rollouts": {
        "rounds_end_no_lower": (
            "no round ends with a held-out accuracy below the 95% interval of its start",
            _DECLINES,
        ),
    },
    "evals": {},
}
_ID = {"tasks": "task_id", "rollouts": "rollout_id"}


def broken_rules(path: Path, table: str, vocab_size: int | None) -> Iterator[Broken]:
    """Every rule that rows of a file break, by row group. `vocab_size` None leaves the vocabulary
    unchecked.

    Raises DataError naming file, row group and column if the file cannot be read.
    """
    import duckdb

    rules, values = RULES[table], {"vocab_size": vocab_size}
    any_broken = (
        f"SELECT 1 FROM stored WHERE {' OR '.join(f'({rule.broken})' for rule in rules)} LIMIT 1"
    )
    # One aggregate, so that a condition is evaluated once.
    ids = [f"list({_ID[table]}) FILTER (WHERE {rule.broken})" for rule in rules]
    counts = ", ".join(f"coalesce(len({one}), 0), ({one})[:{NUM_FIRST}]" for one in ids)
    with duckdb.connect(":memory:", config={"threads": "1"}) as connection:
        connection.execute("SET enable_progress_bar = false")  # it would print
        for group, rows in enumerate(row_groups(path, table)):
            connection.register("stored", rows if table == "tasks" else derived(rows))
            parameters = values if table == "rollouts" else None
            if not connection.execute(
                any_broken, parameters
            ).fetchall():  # one cheap pass, and nearly always the last
                continue
            found = connection.execute(f"SELECT {counts} FROM stored", parameters).fetchall()[0]
            for rule, count, first in zip(rules, found[::2], found[1::2], strict=True):
                if count:
                    yield Broken(path, group, rule, count, tuple(first))


def require_rules(path: Path, table: str, vocab_size: int | None) -> None:
    """Raises DataError naming file, row group, column, counts and first rows unless every row of
    the file keeps every rule."""
    if broken := list(broken_rules(path, table, vocab_size)):
        raise DataError(
            "rows break the laws of the store",
            where=str(path),
            got="\n    ".join(["", *map(str, broken)]),
            do="the file is kept for a look; correct what wrote it and run the stage again",
        )


def row_groups(path: Path, table: str) -> Iterator[pa.Table]:
    """Row groups of a file, brought to this version. Raises DataError naming row group and column
    of the first page that is damaged."""
    file, version = open_parquet(path, table)
    for group in range(file.num_row_groups):
        try:
            rows = file.read_row_group(group)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                "a Parquet file is damaged",
                where=f"{path}, row group {group}, "
                f"column {_find_damaged_column(path, table, group)}",
                got=error,
                do="delete it and run the stage that wrote it again",
            ) from error
        yield upgraded(rows, table, version)


def derived(rows: pa.Table) -> pa.Table:
    """Rows of rollouts with what rules ask of every token, as columns. A list without elements has
    no lowest and no highest one (null).

    lowest_id, highest_id: of prompt and response. lowest_step, highest_step. highest_logprob: NaN
    if there is one.
    distinct_steps: how many steps hold a token. steps_in_blocks: whether no step spans two blocks
    and later blocks have later steps. The grid is the absolute one where the sequence ends on it;
    blocks of full attention may start at the response instead.
    """
    parts = [
        _token_columns(rows.slice(first, _SLICE)) for first in range(0, max(len(rows), 1), _SLICE)
    ]
    made = pa.Table.from_batches(parts)
    return pa.table([*rows.columns, *made.columns], [*rows.column_names, *made.column_names])


def _token_columns(rows: pa.Table) -> pa.RecordBatch:
    prompt, response, logprobs = (
        _flat(rows, name) for name in ("prompt_ids", "response_ids", "logprobs")
    )
    steps, lengths = _flat(rows, "step_map")
    starts, row = _block_starts(rows, lengths)
    return pa.record_batch(
        {
            "lowest_id": pc.min_element_wise(
                _extreme(np.minimum, *prompt), _extreme(np.minimum, *response)
            ),
            "highest_id": pc.max_element_wise(
                _extreme(np.maximum, *prompt), _extreme(np.maximum, *response)
            ),
            "lowest_step": _extreme(np.minimum, steps, lengths),
            "highest_step": _extreme(np.maximum, steps, lengths),
            "highest_logprob": _extreme(np.maximum, *logprobs),
            "distinct_steps": pa.array(_distinct_steps(steps, lengths)),
            "steps_in_blocks": pa.array(_steps_in_blocks(steps, starts, row, len(rows))),
        }
    )


def _flat(rows: pa.Table, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Elements of all lists of a column one after another, and the length of each list."""
    lists = rows[name].combine_chunks()
    return lists.flatten().to_numpy(), lists.value_lengths().to_numpy().astype(np.int64)


def _extreme(which: np.ufunc, values: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> pa.Array:
    """The smallest or largest element of each list (np.minimum, np.maximum)."""
    there = lengths > 0
    found = np.zeros(len(lengths), values.dtype)
    found[there] = which.reduceat(values, (lengths.cumsum() - lengths)[there])
    return pa.array(found, mask=~there)


def _block_starts(
    rows: pa.Table, lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each block begins in the elements of all step maps, and which row it belongs to."""
    prompt, size = (
        rows["num_prompt_tokens"].to_numpy().astype(np.int64),
        np.maximum(rows["block_size"].to_numpy(), 1).astype(np.int64),
    )
    # Tokens of the prompt in the first block.
    outside = np.where((prompt + lengths) % size == 0, prompt % size, 0)
    counts = -(-(lengths + outside) // size)
    row = np.repeat(np.arange(len(lengths)), counts)
    nth = np.arange(len(row)) - np.repeat(counts.cumsum() - counts, counts)
    return (lengths.cumsum() - lengths)[row] + np.maximum(nth * size[row] - outside[row], 0), row


def _distinct_steps(
    steps: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """A step beyond the number of tokens counts as the first beyond it: with either, some step
    before it is empty."""
    width = int(lengths.max(initial=0)) + 2
    seen = np.zeros(len(lengths) * width, dtype=bool)
    seen[np.repeat(np.arange(len(lengths)) * width, lengths) + steps.clip(0, width - 1)] = True
    return np.count_nonzero(seen.reshape(-1, width)[:, 1:], axis=1)


def _steps_in_blocks(
    steps: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    row: npt.NDArray[np.int64],
    num_rows: int,
) -> npt.NDArray[np.bool_]:
    """Of each row, whether the first step of every block comes after the last of the block before.
    Step 0 (never reached) is last."""
    # 0 and below wrap to the end.
    first = np.minimum.reduceat((steps - 1).view(np.uint32), starts).astype(np.int64) + 1
    last = np.maximum.reduceat(steps, starts)
    crosses = (first[1:] <= last[:-1]) & (row[1:] == row[:-1])
    kept = np.ones(num_rows, dtype=bool)
    kept[row[1:][crosses]] = False
    return kept


def _find_damaged_column(path: Path, table: str, group: int) -> str:
    """The first column of a row group that cannot be read by itself."""
    file, _ = open_parquet(path, table)
    for name in file.schema_arrow.names:
        try:
            file.read_row_group(group, columns=[name])
        except (pa.ArrowException, OSError):
            return str(name)
    return "unknown"
