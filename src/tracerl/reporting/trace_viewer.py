"""Responses in the order in which they were unmasked: as records that the report's template draws,
and as a page that plays them.

Tokens are shown one by one, each decoded from its own id. Nothing of a response is trusted: a
character that is not printable is shown by the token's id, and the template escapes the rest.
"""

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from tracerl.errors import DataError
from tracerl.models.tokenizer import Tokenizer
from tracerl.reporting.pages import template
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
    """One token of the canvas. part: "prompt", "response" (up to the first end token) or "after".
    step: 1-based, 0 where there is none.

    hue: degrees of the colour wheel. detail: what is known of it in words.
    """

    text: str
    part: str
    step: int
    hue: int
    detail: str


@dataclass(frozen=True)
class Frame:
    """The response after one step. blocks: of each block its runs of (text, whether this step wrote
    it)."""

    step: int
    num_new: int
    hue: int
    blocks: list[list[tuple[str, bool]]]


@dataclass(frozen=True)
class Trace:
    """One response. blocks: tokens by block of the absolute grid, from the first block that holds a
    response token on.

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


def last_traces(
    connection: duckdb.DuckDBPyConnection, tokenizer: Tokenizer, stage: str, count: int
) -> list[Trace]:
    """`count` training responses of a stage's last iteration, the verdicts in turn; always the same
    ones for the same rows."""
    rows = answer(connection, _LAST_ITERATION, {"stage": stage, "count": count}).to_pylist()
    return [build_trace(row, tokenizer) for row in rows]


def build_trace(row: dict[str, Any], tokenizer: Tokenizer) -> Trace:
    """A row of the rollout schema, joined with its task's prompt and answer, as a trace."""
    block_size = row["block_size"]
    first = len(row["prompt_ids"]) // block_size * block_size
    tokens = _tokens(row, tokenizer)[first:]
    blocks = [tokens[i : i + block_size] for i in range(0, len(tokens), block_size)]
    copied = (
        "prompt",
        "answer",
        "verdict",
        "rollout_id",
        "block_size",
        "remasking",
        "stop_reason",
        "num_tokens",
    )
    return Trace(
        **{name: row[name] for name in copied},
        num_steps=row["num_steps"],
        tokens_per_step=row["num_tokens"] / max(row["num_denoising_forwards"], 1),
        blocks=blocks,
        frames=[_frame(step, blocks, row["num_steps"]) for step in range(1, row["num_steps"] + 1)],
    )


def _tokens(row: dict[str, Any], tokenizer: Tokenizer) -> list[Token]:
    tokens = [
        Token(_display_text(i, tokenizer), "prompt", 0, 0, f"prompt, position {n}")
        for n, i in enumerate(row["prompt_ids"])
    ]
    for n, (token_id, step, logprob) in enumerate(
        zip(row["response_ids"], row["step_map"], row["logprobs"], strict=True)
    ):
        part = "response" if n < row["num_tokens"] else "after"
        detail = f"position {len(row['prompt_ids']) + n}, " + (
            f"step {step}" if step else "never reached"
        )
        if math.isfinite(logprob):
            detail += f", probability {100 * math.exp(logprob):.1f}%"
        text = _display_text(token_id, tokenizer) if step else _MASK
        tokens.append(Token(text, part, step, _hue(step, row["num_steps"]), detail))
    return tokens


def _display_text(token_id: int, tokenizer: Tokenizer) -> str:
    """A token's text with white space made visible; the mask and end tokens have signs of their
    own."""
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
        cells = [
            (token.text if token.step <= step else _MASK, token.step == step) for token in response
        ]
        lines.append(
            [
                ("".join(text for text, _ in run), new)
                for new, run in groupby(cells, key=lambda cell: cell[1])
            ]
        )
    return Frame(
        step,
        sum(token.step == step for block in blocks for token in block),
        _hue(step, num_steps),
        lines,
    )


def _hue(step: int, num_steps: int) -> int:
    """From violet, the first step, through green to amber, the last."""
    return round(265 - 220 * (step - 1) / max(num_steps - 1, 1))


# The viewer

_CHOSEN = """
WITH responses AS (FROM rollouts UNION ALL FROM evals UNION ALL FROM traces)
SELECT r.*, coalesce(t.prompt, '') AS prompt, coalesce(t.answer, '') AS answer
FROM (FROM responses WHERE {condition}) r LEFT JOIN tasks t USING (task_id)
ORDER BY stage, iteration, task_id, sample_index, rollout_id LIMIT $count
"""
# Of each problem the same sample; if the condition leaves several, the one of the latest iteration.
_PAIRED = """
WITH responses AS (FROM rollouts UNION ALL FROM evals UNION ALL FROM traces)
SELECT r.*, coalesce(t.prompt, '') AS prompt, coalesce(t.answer, '') AS answer
FROM (FROM responses WHERE {condition}) r LEFT JOIN tasks t USING (task_id)
WHERE list_contains($tasks, r.task_id)
QUALIFY row_number() OVER (
    PARTITION BY r.task_id, r.sample_index ORDER BY r.iteration DESC, r.rollout_id) = 1
"""
_UNKNOWN = 255  # a confidence that was not recorded


@dataclass(frozen=True)
class Response:
    """A row of the rollout schema with its task's prompt and answer, and the response to the same
    problem that it is compared with."""

    row: dict[str, Any]
    before: dict[str, Any] | None = None


def select_responses(
    connection: duckdb.DuckDBPyConnection, condition: str, against: str | None, count: int
) -> list[Response]:
    """At most `count` responses of rollouts, evals and traces that meet an SQL condition, each with
    its counterpart that meets `against`.

    Raises DataError if a condition is wrong or nothing meets the first.
    """
    rows = answer(
        connection, _CHOSEN.format(condition=f"({condition})"), {"count": count}
    ).to_pylist()
    if not rows:
        raise DataError(
            "no response meets the condition",
            got=condition,
            do=(
                "look with `tracerl sql 'select stage, iteration, count(*) from rollouts group by "
                "all'`"
            ),
        )
    if against is None:
        return [Response(row) for row in rows]
    tasks = sorted({row["task_id"] for row in rows})
    others = answer(
        connection, _PAIRED.format(condition=f"({against})"), {"tasks": tasks}
    ).to_pylist()
    before = {(row["task_id"], row["sample_index"]): row for row in others}
    return [Response(row, before.get((row["task_id"], row["sample_index"]))) for row in rows]


def render_viewer(responses: Sequence[Response], tokenizer: Tokenizer, condition: str) -> str:
    """One HTML page that plays the responses; `condition` says in the page which they are."""
    texts: dict[int, int] = {}  # token id -> its place in the page's list of texts
    packed = [
        {
            **_pack(one.row, texts),
            "before": _pack(one.before, texts) if one.before is not None else None,
        }
        for one in responses
    ]
    data = json.dumps(
        {"texts": [_display_text(token_id, tokenizer) for token_id in texts], "responses": packed},
        ensure_ascii=False,
    )
    script = (Path(__file__).parent / "viewer.js").read_text()
    return template("viewer.html.j2").render(
        condition=condition, data=data.replace("<", "\\u003c"), script=script
    )


def _pack(row: dict[str, Any], texts: dict[int, int]) -> dict[str, Any]:
    """A response as the page's script reads it: typed arrays in base64, and the words that are
    shown."""
    block_size, num_prompt = row["block_size"], len(row["prompt_ids"])
    # Blocks lie on the absolute grid where the sequence ends on it; those of full attention may
    # start at the response.
    tail = (
        row["prompt_ids"][num_prompt // block_size * block_size :]
        if (num_prompt + len(row["response_ids"])) % block_size == 0
        else []
    )

    def places(ids: Sequence[int]) -> list[int]:
        return [texts.setdefault(token_id, len(texts)) for token_id in ids]

    confidence = [
        round(100 * math.exp(min(value, 0.0))) if math.isfinite(value) else _UNKNOWN
        for value in row["logprobs"]
    ]
    per_step = row["num_tokens"] / max(row["num_denoising_forwards"], 1)
    meta = [
        f"{row['num_tokens']} tokens in {row['num_steps']} steps, {per_step:.2f} per step",
        f"{row['remasking']}, block size {block_size}",
        "ended by itself" if row["stop_reason"] == "end" else "cut at the length limit",
        row["rollout_id"],
    ]
    copied = (
        "rollout_id",
        "stage",
        "iteration",
        "prompt",
        "answer",
        "verdict",
        "text",
        "num_tokens",
        "num_steps",
        "block_size",
    )
    return {
        **{name: row[name] for name in copied},
        "reward": f"{row['reward']:.4g}",
        "meta": " · ".join(meta),
        "tail": places(tail),
        "ids": _base64(np.array(places(row["response_ids"]), dtype="<u4")),
        "steps": _base64(np.array(row["step_map"], dtype="<u4")),
        "confidence": _base64(np.array(confidence, dtype="u1")),
    }


def _base64(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()
