"""What must be true of every row: the store's laws as SQL conditions, run by DuckDB over one row
group at a time.

The same list is used in three places: the file that an RL iteration has just written, `tracerl data
check`, and the counts that Great Expectations judges between stages. What a law asks of every token
of a list is a column made by numpy (`add_token_columns`), several times faster than DuckDB's list
functions, that the conditions read like any other.
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
from tracerl.store.parquet import open_parquet, upgrade_rows

NUM_FIRST = 5
_SLICE = 512  # rows whose tokens numpy handles at once: as many as stay in a processor's cache


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A law of a row."""

    name: str
    """Names it in a validation's result."""
    column: str
    """Which column to look at."""
    broken: str
    """SQL that is true of a row that breaks it."""
    says: str
    """The law in words."""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """Rows of one row group that break one rule."""

    path: Path
    """The Parquet file."""
    row_group: int
    """The row group's number in the file, from 0."""
    rule: Rule
    """What they break."""
    count: int
    """How many there are."""
    first: tuple[str, ...]
    """Ids of the first of them."""

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
            name="task_id_of_its_set",
            column="task_id",
            broken="NOT starts_with(task_id, task_set || '/') OR task_set = ''",
            says="the id begins with the task set",
        ),
        Rule(
            name="split_is_known",
            column="split",
            broken="split NOT IN ('train', 'test')",
            says="the split is train or test",
        ),
        Rule(
            name="prompt_is_not_empty",
            column="prompt",
            broken="trim(prompt) = ''",
            says="the prompt is not empty",
        ),
        Rule(
            name="kind_is_not_empty", column="kind", broken="kind = ''", says="a verifier is named"
        ),
        Rule(
            name="difficulty_is_positive",
            column="difficulty",
            broken="difficulty < 1",
            says="the difficulty is at least 1",
        ),
    ),
    "rollouts": (
        Rule(
            name="id_is_not_empty",
            column="rollout_id",
            broken="rollout_id = '' OR stage = '' OR task_id = ''",
            says="ids are not empty",
        ),
        Rule(
            name="numbers_are_not_negative",
            column="iteration",
            broken="iteration < 0 OR sample_index < 0 OR seed < 0",
            says="coordinates are not negative",
        ),
        Rule(
            name="policy_is_named",
            column="policy_hash",
            broken="NOT regexp_full_match(policy_hash, '[0-9a-f]+')",
            says="the policy hash is hexadecimal",
        ),
        Rule(
            name="prompt_length",
            column="num_prompt_tokens",
            broken="num_prompt_tokens <> len(prompt_ids) OR num_prompt_tokens < 1",
            says="num_prompt_tokens is the length of prompt_ids, at least 1",
        ),
        Rule(
            name="response_length",
            column="num_tokens",
            broken="num_tokens NOT BETWEEN 1 AND len(response_ids)",
            says="num_tokens is between 1 and the length of response_ids",
        ),
        Rule(
            name="whole_blocks",
            column="response_ids",
            broken=f"block_size < 1 OR (({_PADDED}) % greatest(block_size, 1) <> 0"
            " AND len(response_ids) % greatest(block_size, 1) <> 0)",
            says="the response holds whole blocks",
        ),
        Rule(
            name="canvas_holds_response",
            column="canvas_length",
            broken=f"canvas_length < {_PADDED}",
            says="the canvas is at least as long as the sequence",
        ),
        Rule(
            name="one_step_per_token",
            column="step_map",
            broken="len(step_map) <> len(response_ids)",
            says="every token has exactly one step",
        ),
        Rule(
            name="counted_tokens_have_steps",
            column="step_map",
            broken="lowest_step < 1 AND list_min(step_map[:num_tokens]) < 1",
            says="every counted token was committed at a step",
        ),
        Rule(
            name="steps_are_a_partition",
            column="step_map",
            broken=(
                "highest_step <> num_steps OR (schedule <> 'dream' AND distinct_steps <> num_steps)"
            ),
            says="steps are 1 to num_steps, and none is empty except on Dream's schedule",
        ),
        Rule(
            name="steps_stay_in_blocks",
            column="step_map",
            broken="NOT steps_in_blocks",
            says="no step spans two blocks, and blocks follow each other",
        ),
        Rule(
            name="ids_in_vocabulary",
            column="response_ids",
            broken="lowest_id < 0 OR highest_id >= $vocab_size",
            says="token ids lie inside the vocabulary",
        ),
        Rule(
            name="one_logprob_per_token",
            column="logprobs",
            broken="len(logprobs) <> len(response_ids)",
            says="every token has exactly one log-probability",
        ),
        Rule(
            name="logprobs_are_logarithms",
            column="logprobs",
            broken="NOT isnan(highest_logprob) AND highest_logprob > 1e-5",
            says="log-probabilities are not above 0",
        ),
        Rule(
            name="logprobs_are_known",
            column="logprobs",
            broken="remasking <> 'preferred' AND isnan(highest_logprob) AND "
            "isnan(list_max(logprobs[:num_tokens]))",
            says="every sampled token has a log-probability",
        ),
        Rule(
            name="filtered_where_filtered",
            column="filtered_logprobs",
            broken=(
                "remasking <> 'preferred' AND (top_k <> 0 OR top_p < 1) <> (filtered_logprobs IS "
                "NOT NULL)"
            ),
            says="log-probabilities under a filter are stored exactly where there was one",
        ),
        Rule(
            name="lists_of_one_length",
            column="order_in_step",
            broken="(filtered_logprobs IS NOT NULL AND len(filtered_logprobs) <> len(response_ids))"
            " OR (order_in_step IS NOT NULL AND len(order_in_step) <> len(response_ids))"
            " OR (order_logprobs IS NOT NULL AND len(order_logprobs) <> len(response_ids))",
            says="optional lists are as long as the response",
        ),
        Rule(
            name="order_where_drawn",
            column="order_in_step",
            broken=(
                "(remasking = 'plackett_luce') <> (order_in_step IS NOT NULL AND order_logprobs "
                "IS NOT NULL)"
            ),
            says="the order within steps is stored exactly where it was drawn",
        ),
        Rule(
            name="forwards_add_up",
            column="num_forwards",
            broken="num_denoising_forwards > num_forwards "
            "OR (remasking <> 'preferred' AND num_steps > num_denoising_forwards)",
            says="steps <= denoising forwards <= all forwards",
        ),
        Rule(
            name="verdict_is_known",
            column="verdict",
            broken="verdict NOT IN ('correct', 'wrong', 'undecided')",
            says="the verdict is known",
        ),
        Rule(
            name="stop_is_known",
            column="stop_reason",
            broken="stop_reason NOT IN ('end', 'length')",
            says="the response ended or was cut",
        ),
        Rule(
            name="reward_is_a_number",
            column="reward",
            broken="NOT isfinite(reward)",
            says="the reward is a finite number",
        ),
        Rule(
            name="parts_make_the_reward",
            column="reward_parts",
            broken=(
                "cardinality(reward_parts) > 0 AND abs(list_sum(map_values(reward_parts)) - "
                "reward) > 1e-6"
            ),
            says="reward parts add up to the reward",
        ),
        Rule(
            name="undecided_is_not_paid",
            column="reward",
            broken="verdict = 'undecided' AND reward > 0",
            says="an undecided response is not paid",
        ),
        Rule(
            name="chunks_are_the_response",
            column="chunk_ends",
            broken=(
                "chunk_ends IS NOT NULL AND (len(chunk_ends) = 0 OR chunk_ends[-1] <> num_tokens "
                "OR chunk_ends[1] < 1 OR len(list_distinct(chunk_ends)) <> len(chunk_ends) OR "
                "list_sort(chunk_ends) <> chunk_ends)"
            ),
            says="chunks follow each other from the first counted token to the last",
        ),
        Rule(
            name="chunks_are_scored",
            column="chunk_scores",
            broken="(chunk_ends IS NULL) <> (chunk_scores IS NULL) OR (chunk_ends IS NULL) <> "
            "(chunk_rewards IS NULL)"
            " OR len(chunk_scores) <> len(chunk_ends) OR len(chunk_rewards) <> len(chunk_ends)"
            " OR len(list_filter(chunk_scores, lambda score: NOT isnan(score) AND abs(score) > "
            "1)) > 0"
            " OR len(list_filter(chunk_rewards, lambda reward: NOT isfinite(reward))) > 0",
            says="every chunk has a score from -1 to 1, or none, and a finite reward",
        ),
        Rule(
            name="settings_make_sense",
            column="temperature",
            broken="temperature < 0 OR top_k < 0 OR top_p <= 0 OR top_p > 1 OR steps_per_block < 1",
            says="sampler settings lie in their ranges",
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
    columns = []
    for rule in rules:
        ids = f"list({_ID[table]}) FILTER (WHERE {rule.broken})"
        columns += [f"coalesce(len({ids}), 0)", f"({ids})[:{NUM_FIRST}]"]
    counts = ", ".join(columns)
    with duckdb.connect(":memory:", config={"threads": "1"}) as connection:
        connection.execute("SET enable_progress_bar = false")  # it would print
        for group, rows in enumerate(row_groups(path, table)):
            connection.register("stored", rows if table == "tasks" else add_token_columns(rows))
            parameters = values if table == "rollouts" else None
            if not connection.execute(
                any_broken, parameters
            ).fetchall():  # one cheap pass, and nearly always the last
                continue
            found = connection.execute(f"SELECT {counts} FROM stored", parameters).fetchall()[0]
            for rule, count, first in zip(rules, found[::2], found[1::2], strict=True):
                if count:
                    yield Broken(
                        path=path, row_group=group, rule=rule, count=count, first=tuple(first)
                    )


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
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(
                "a Parquet file is damaged",
                where=f"{path}, row group {group}, "
                f"column {_find_damaged_column(path, table, group)}",
                got=error,
                do="delete it and run the stage that wrote it again",
            ) from error
        yield upgrade_rows(rows, table, version)


def add_token_columns(rows: pa.Table) -> pa.Table:
    """Rows of rollouts with what rules ask of every token, as columns. A list without elements has
    no lowest and no highest one (null).

    lowest_id, highest_id: of prompt and response. lowest_step, highest_step. highest_logprob: NaN
    if there is one.
    distinct_steps: how many steps hold a token. steps_in_blocks: whether no step spans two blocks
    and later blocks have later steps. The grid is the absolute one where the sequence ends on it;
    blocks of full attention may start at the response instead.
    """
    parts = []
    for first in range(0, max(len(rows), 1), _SLICE):
        parts.append(_token_columns(rows.slice(first, _SLICE)))
    made = pa.Table.from_batches(parts)
    return pa.table([*rows.columns, *made.columns], [*rows.column_names, *made.column_names])


def _token_columns(rows: pa.Table) -> pa.RecordBatch:
    prompt = _flat(rows, "prompt_ids")
    response = _flat(rows, "response_ids")
    logprobs = _flat(rows, "logprobs")
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
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            return str(name)
    return "unknown"
