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
_VISIBLE = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})

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


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token of the canvas."""

    text: str
    """What is drawn; white space, masks and end tokens have signs of their own."""
    part: str
    """"prompt", "response" (up to the first end token) or "after"."""
    step: int
    """The step that unmasked it, from 1; 0 if none did."""
    hue: int
    """Degrees of the colour wheel."""
    detail: str
    """What is known of it in words."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The response after one step."""

    step: int
    """From 1."""
    num_new: int
    """How many tokens this step unmasked."""
    hue: int
    """Degrees of the colour wheel."""
    blocks: list[list[tuple[str, bool]]]
    """Of each block its runs of (text, whether this step wrote it)."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One response, as the report draws it."""

    prompt: str
    """The task's text."""
    answer: str
    """The task's answer."""
    verdict: str
    """Such as "correct"."""
    rollout_id: str
    """The row's id."""
    block_size: int
    """Of the sampler, in tokens."""
    remasking: str
    """The sampler's order, such as "dynamic"."""
    stop_reason: str
    """"end", or "length" if it was cut."""
    num_tokens: int
    """Up to and including the end token."""
    num_steps: int
    """Steps that unmasked a token."""
    tokens_per_step: float
    """num_tokens by denoising forwards, as everywhere."""
    blocks: list[list[Token]]
    """Tokens by block of the absolute grid, from the first that holds a response token on."""
    frames: list[Frame]
    """One for each step."""


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
    num_steps = row["num_steps"]
    return Trace(
        prompt=row["prompt"],
        answer=row["answer"],
        verdict=row["verdict"],
        rollout_id=row["rollout_id"],
        block_size=block_size,
        remasking=row["remasking"],
        stop_reason=row["stop_reason"],
        num_tokens=row["num_tokens"],
        num_steps=num_steps,
        tokens_per_step=row["num_tokens"] / max(row["num_denoising_forwards"], 1),
        blocks=blocks,
        frames=[_frame(step, blocks, num_steps) for step in range(1, num_steps + 1)],
    )


def _tokens(row: dict[str, Any], tokenizer: Tokenizer) -> list[Token]:
    """Tokens of prompt and response, in the order of their positions."""
    tokens = []
    for position, token_id in enumerate(row["prompt_ids"]):
        text = _display_text(token_id, tokenizer)
        detail = f"prompt, position {position}"
        tokens.append(Token(text=text, part="prompt", step=0, hue=0, detail=detail))
    columns = zip(row["response_ids"], row["step_map"], row["logprobs"], strict=True)
    for n, (token_id, step, logprob) in enumerate(columns):
        detail = f"position {len(row['prompt_ids']) + n}, "
        detail += f"step {step}" if step else "never reached"
        if math.isfinite(logprob):
            detail += f", probability {100 * math.exp(logprob):.1f}%"
        tokens.append(
            Token(
                text=_display_text(token_id, tokenizer) if step else _MASK,
                part="response" if n < row["num_tokens"] else "after",
                step=step,
                hue=_hue(step, row["num_steps"]),
                detail=detail,
            )
        )
    return tokens


def _display_text(token_id: int, tokenizer: Tokenizer) -> str:
    """A token's text with white space made visible; the mask and end tokens have signs of their
    own."""
    if token_id in tokenizer.end_ids:
        return _END
    if token_id == tokenizer.mask_id:
        return _MASK
    text = tokenizer.decode([token_id]).translate(_VISIBLE)
    return text if text and text.isprintable() else f"⟨{token_id}⟩"


def _frame(step: int, blocks: Sequence[Sequence[Token]], num_steps: int) -> Frame:
    """The response's tokens after `step`, masks as dots; the prompt's are left out."""
    lines = []
    num_new = 0
    for block in blocks:
        runs: list[tuple[str, bool]] = []
        for token in block:
            if token.part == "prompt":
                continue
            text = token.text if token.step <= step else _MASK
            is_new = token.step == step
            num_new += is_new
            if runs and runs[-1][1] == is_new:
                runs[-1] = (runs[-1][0] + text, is_new)
            else:
                runs.append((text, is_new))
        lines.append(runs)
    return Frame(step=step, num_new=num_new, hue=_hue(step, num_steps), blocks=lines)


def _hue(step: int, num_steps: int) -> int:
    """From violet, the first step, through green to amber, the last."""
    return round(265 - 220 * (step - 1) / max(num_steps - 1, 1))


# The viewer

_SELECTION = """
WITH responses AS (FROM rollouts UNION ALL FROM evals UNION ALL FROM traces)
SELECT r.*, coalesce(t.prompt, '') AS prompt, coalesce(t.answer, '') AS answer
FROM (FROM responses WHERE {condition}) r LEFT JOIN tasks t USING (task_id)
ORDER BY stage, iteration, task_id, sample_index, rollout_id LIMIT $count
"""
# Of each problem the same sample; if the condition leaves several, the one of the latest iteration.
_COUNTERPARTS = """
WITH responses AS (FROM rollouts UNION ALL FROM evals UNION ALL FROM traces)
SELECT r.*, coalesce(t.prompt, '') AS prompt, coalesce(t.answer, '') AS answer
FROM (FROM responses WHERE {condition}) r LEFT JOIN tasks t USING (task_id)
WHERE list_contains($tasks, r.task_id)
QUALIFY row_number() OVER (
    PARTITION BY r.task_id, r.sample_index ORDER BY r.iteration DESC, r.rollout_id) = 1
"""
_UNKNOWN = 255  # a confidence that was not recorded
_PAGE_COLUMNS = (
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


@dataclass(frozen=True)
class Response:
    """A response that the page plays."""

    row: dict[str, Any]
    """A row of the rollout schema with its task's prompt and answer."""
    before: dict[str, Any] | None = None
    """The response to the same problem that it is compared with."""


def select_responses(
    connection: duckdb.DuckDBPyConnection, condition: str, against: str | None, count: int
) -> list[Response]:
    """At most `count` responses of rollouts, evals and traces that meet an SQL condition, each with
    its counterpart that meets `against`.

    Raises DataError if a condition is wrong or nothing meets the first.
    """
    query = _SELECTION.format(condition=f"({condition}\n)")
    rows = answer(connection, query, {"count": count}).to_pylist()
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
        return list(map(Response, rows))
    tasks = sorted({row["task_id"] for row in rows})
    query = _COUNTERPARTS.format(condition=f"({against}\n)")
    before = {}
    for row in answer(connection, query, {"tasks": tasks}).to_pylist():
        before[row["task_id"], row["sample_index"]] = row
    return [Response(row, before.get((row["task_id"], row["sample_index"]))) for row in rows]


def render_viewer(responses: Sequence[Response], tokenizer: Tokenizer, condition: str) -> str:
    """One HTML page that plays the responses; `condition` says in the page which they are."""
    texts: dict[int, int] = {}  # token id -> its place in the page's list of texts
    records = []
    for response in responses:
        record = _page_record(response.row, texts)
        before = response.before
        record["before"] = None if before is None else _page_record(before, texts)
        records.append(record)
    words = [_display_text(token_id, tokenizer) for token_id in texts]
    data = json.dumps({"texts": words, "responses": records}, ensure_ascii=False)
    script = (Path(__file__).parent / "viewer.js").read_text("utf-8")
    return template("viewer.html.j2").render(
        condition=condition, data=data.replace("<", "\\u003c"), script=script
    )


def _page_record(row: dict[str, Any], texts: dict[int, int]) -> dict[str, Any]:
    """A response as the page's script reads it: typed arrays in base64, and the words that are
    shown. texts: token id -> its place in the page's list, to which new ones are added."""
    block_size = row["block_size"]
    tail = _prompt_tail(row)

    def places(ids: Sequence[int]) -> list[int]:
        return [texts.setdefault(token_id, len(texts)) for token_id in ids]

    confidence = list(map(_confidence, row["logprobs"]))
    per_step = row["num_tokens"] / max(row["num_denoising_forwards"], 1)
    meta = [
        f"{row['num_tokens']} tokens in {row['num_steps']} steps, {per_step:.2f} per step",
        f"{row['remasking']}, block size {block_size}",
        "ended by itself" if row["stop_reason"] == "end" else "cut at the length limit",
        row["rollout_id"],
    ]
    return {
        **{name: row[name] for name in _PAGE_COLUMNS},
        "reward": f"{row['reward']:.4g}",
        "meta": " · ".join(meta),
        "tail": places(tail),
        "ids": _base64(np.array(places(row["response_ids"]), dtype="<u4")),
        "steps": _base64(np.array(row["step_map"], dtype="<u4")),
        "confidence": _base64(np.array(confidence, dtype="u1")),
    }


def _prompt_tail(row: dict[str, Any]) -> list[int]:
    """The prompt's tokens in the first block of the response.

    Blocks lie on the absolute grid where the sequence ends on it; those of full attention may start
    at the response, and then there are none.
    """
    ids: list[int] = row["prompt_ids"]
    if (len(ids) + len(row["response_ids"])) % row["block_size"]:
        return []
    return ids[len(ids) // row["block_size"] * row["block_size"] :]


def _confidence(logprob: float) -> int:
    """Probability in per cent."""
    return round(100 * math.exp(min(logprob, 0.0))) if math.isfinite(logprob) else _UNKNOWN


def _base64(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()
