"""Responses in the order in which they were unmasked, as records that the report's template draws.

Tokens are shown one by one, each decoded from its own id. Nothing of a response is trusted: a character that is not printable is shown by
the token's id, and the template escapes the rest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import duckdb

from tracerl.models.tokenizer import Tokenizer
from tracerl.store.catalog import answer

_MASK = "·"
_END = "∎"
_SHOWN = {" ": "␣", "\n": "↵", "\t": "⇥"}

# A response of each verdict in turn, from as many tasks as possible.
_LAST_ITERATION = """
WITH ranked AS (
    SELECT *, row_number() OVER (PARTITION BY verdict ORDER BY sample_index, rollout_id) AS nth
    FROM rollouts
    WHERE stage = $stage AND iteration = (SELECT max(iteration) FROM rollouts WHERE stage = $stage)
)
SELECT ranked.* EXCLUDE (nth), coalesce(prompt, '') AS prompt, coalesce(answer, '') AS answer
FROM ranked LEFT JOIN tasks USING (task_id)
ORDER BY nth, verdict
LIMIT $count
"""


@dataclass(frozen=True)
class Token:
    """One token of the canvas. part: "prompt", "response" (up to the first end token) or "after". step: 1-based, 0 where there is none.

    hue: degrees of the colour wheel. detail: what is known of it in words.
    """

    text: str
    part: str
    step: int
    hue: int
    detail: str


@dataclass(frozen=True)
class Frame:
    """The response after one step. blocks: of each block its runs of (text, whether this step wrote it)."""

    step: int
    num_new: int
    hue: int
    blocks: list[list[tuple[str, bool]]]


@dataclass(frozen=True)
class Trace:
    """One response. blocks: tokens by block of the absolute grid, from the first block that holds a response token on.

    tokens_per_step counts denoising forwards, as everywhere.
    """

    prompt: str
    answer: str
    verdict: str
    rollout_id: str
    block_size: int
    remasking: str
    stop_reason: str
    num_tokens: int
    num_steps: int
    tokens_per_step: float
    blocks: list[list[Token]]
    frames: list[Frame]


def last_traces(connection: duckdb.DuckDBPyConnection, tokenizer: Tokenizer, stage: str, count: int) -> list[Trace]:
    """`count` training responses of a stage's last iteration, the verdicts in turn; always the same ones for the same rows."""
    rows = answer(connection, _LAST_ITERATION, {"stage": stage, "count": count}).to_pylist()
    return [build_trace(row, tokenizer) for row in rows]


def build_trace(row: dict[str, Any], tokenizer: Tokenizer) -> Trace:
    """A row of the rollout schema, joined with its task's prompt and answer, as a trace."""
    block_size = row["block_size"]
    first = len(row["prompt_ids"]) // block_size * block_size
    tokens = _tokens(row, tokenizer)[first:]
    blocks = [tokens[i : i + block_size] for i in range(0, len(tokens), block_size)]
    copied = ("prompt", "answer", "verdict", "rollout_id", "block_size", "remasking", "stop_reason", "num_tokens")
    return Trace(
        **{name: row[name] for name in copied},
        num_steps=row["num_steps"],
        tokens_per_step=row["num_tokens"] / max(row["num_denoising_forwards"], 1),
        blocks=blocks,
        frames=[_frame(step, blocks, row["num_steps"]) for step in range(1, row["num_steps"] + 1)],
    )


def _tokens(row: dict[str, Any], tokenizer: Tokenizer) -> list[Token]:
    tokens = [Token(_shown(i, tokenizer), "prompt", 0, 0, f"prompt, position {n}") for n, i in enumerate(row["prompt_ids"])]
    for n, (token_id, step, logprob) in enumerate(zip(row["response_ids"], row["step_map"], row["logprobs"], strict=True)):
        part = "response" if n < row["num_tokens"] else "after"
        detail = f"position {len(row['prompt_ids']) + n}, " + (f"step {step}" if step else "never reached")
        if math.isfinite(logprob):
            detail += f", probability {100 * math.exp(logprob):.1f}%"
        text = _shown(token_id, tokenizer) if step else _MASK
        tokens.append(Token(text, part, step, _hue(step, row["num_steps"]), detail))
    return tokens


def _shown(token_id: int, tokenizer: Tokenizer) -> str:
    """A token's text with white space made visible; the mask and end tokens have signs of their own."""
    if token_id in tokenizer.end_ids:
        return _END
    if token_id == tokenizer.mask_id:
        return _MASK
    text = "".join(_SHOWN.get(character, character) for character in tokenizer.decode([token_id]))
    return text if text and text.isprintable() else f"⟨{token_id}⟩"


def _frame(step: int, blocks: Sequence[Sequence[Token]], num_steps: int) -> Frame:
    """The response's tokens after `step`, masks as dots; the prompt's are left out."""
    lines = []
    for block in blocks:
        response = [token for token in block if token.part != "prompt"]
        cells = [(token.text if token.step <= step else _MASK, token.step == step) for token in response]
        lines.append([("".join(text for text, _ in run), new) for new, run in groupby(cells, key=lambda cell: cell[1])])
    return Frame(step, sum(token.step == step for block in blocks for token in block), _hue(step, num_steps), lines)


def _hue(step: int, num_steps: int) -> int:
    """From violet, the first step, through green to amber, the last."""
    return round(265 - 220 * (step - 1) / max(num_steps - 1, 1))
