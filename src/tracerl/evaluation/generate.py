"""Responses to a file of prompts: text or token ids in, ids and text out, one Parquet file that is
complete or absent.

Finished parts lie in `<out>.parts/` until the last is there; the same command run again continues
after them. What they were made of (prompts, settings, weights, seed) is hashed into each, and parts
of another run are refused, not mixed.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from tracerl.disk import atomic_file, json_rows, numbered_lines, parquet_rows
from tracerl.errors import DataError, ParamsError
from tracerl.models.families import Attention
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.rollouts.responses import prompt_ids, recorded_settings
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import key_for
from tracerl.settings.params import Params
from tracerl.settings.sampling import Sampler
from tracerl.types import Trajectory

_INTS, _FLOATS = (
    pa.list_(pa.field("element", kind, nullable=False)) for kind in (pa.int32(), pa.float32())
)
_SCHEMA = pa.schema(
    [
        pa.field("prompt_index", pa.int32(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("prompt", pa.string()),
        pa.field("text", pa.string(), nullable=False),
        pa.field("prompt_ids", _INTS, nullable=False),
        pa.field("response_ids", _INTS, nullable=False),
        pa.field("step_map", _INTS, nullable=False),
        pa.field("logprobs", _FLOATS, nullable=False),
        pa.field("num_tokens", pa.int32(), nullable=False),
        pa.field("stop_reason", pa.string(), nullable=False),
        pa.field("num_denoising_forwards", pa.int32(), nullable=False),
        pa.field("num_forwards", pa.int32(), nullable=False),
    ]
)
_RUN_KEY, _SETTINGS_KEY = b"tracerl.run", b"tracerl.sampler"


@dataclass(frozen=True)
class Prompt:
    """A line of the prompt file: its text, or None where it holds token ids, and the ids the model
    is given."""

    text: str | None
    ids: tuple[int, ...]


def default_settings(attention: Attention) -> Sampler:
    """Settings of `generate` and `chat` where no params file gives any; they are printed, and
    recorded with the output.

    The published block size and threshold of SDAR and TraDo, and of Fast-dLLM for full attention;
    exact, and the most likely token.
    """
    block_size = 4 if attention == "block_causal" else 32
    return Sampler(
        block_size=block_size,
        steps_per_block=block_size,
        schedule="even",
        remasking="dynamic",
        threshold=0.9,
        entropy_bound=None,
        order_temperature=None,
        order_score=None,
        confidence="raw",
        confidence_of="drawn",
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        guidance=0.0,
        opening="",
        max_prompt_tokens=4096,
        max_new_tokens=512,
        cache="exact",
        horizon=None,
        refresh_every=None,
        refresh_sees=None,
        max_rows=64,
        cache_tokens=None,
    )


def sampler_of(params: Params, place: str, where: str) -> Sampler:
    """The sampler at `place` of a params file: "traces", "rl.NAME" or "evaluate.NAME".

    Raises ParamsError naming the places there are.
    """
    places = {"traces": params.traces.sampler}
    places |= {f"rl.{name}": section.sampler for name, section in params.rl.items()}
    places |= {f"evaluate.{name}": section.sampler for name, section in params.evaluate.items()}
    if place not in places:
        raise ParamsError(
            "no sampler section of this name", where=where, got=place, wanted=", ".join(places)
        )
    return places[place]


def changed_settings(settings: Sampler, changes: dict[str, Any]) -> Sampler:
    """The settings with some keys replaced, checked like a params file.

    Raises ParamsError naming every wrong key.
    """
    unknown = [key for key in changes if key not in Sampler.model_fields]
    if unknown:
        raise ParamsError(
            "no such sampler setting",
            got=", ".join(unknown),
            wanted=", ".join(Sampler.model_fields),
        )
    try:
        return Sampler.model_validate_json(json.dumps({**settings.model_dump(), **changes}))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'sampler'}: {e['msg']}" for e in error.errors()
        )
        raise ParamsError(
            "these sampler settings do not work", got=problems, do="docs/sampling.md explains each"
        ) from None


def read_prompts(
    path: Path, tokenizer: Tokenizer, settings: Sampler, template: bool
) -> list[Prompt]:
    """Prompts of a .txt (one a line), .jsonl or .parquet file; rows of the latter have `prompt`
    (text) or `prompt_ids` (used as they are).

    template: whether text is put into the checkpoint's chat form. Raises DataError naming the row
    that is empty, unreadable or too long.
    """
    prompts = []
    for number, row in enumerate(_rows(path), start=1):
        where = f"{path}, row {number}"
        text, given = row.get("prompt"), row.get("prompt_ids")
        if (text is None) == (given is None) or not (text or given):
            raise DataError(
                "a row has no prompt",
                where=where,
                got=sorted(row),
                wanted="prompt (text) or prompt_ids (token ids), not empty",
            )
        if text is None:
            if not isinstance(given, list) or not all(isinstance(i, int) for i in given):
                raise DataError("prompt_ids are not token ids", where=where, got=given)
            ids = given
        elif isinstance(text, str):
            ids = (
                prompt_ids(text, tokenizer, settings)
                if template
                else tokenizer.encode(text + settings.opening)
            )
        else:
            raise DataError("a prompt is not text", where=where, got=text)
        if len(ids) > settings.max_prompt_tokens:
            raise DataError(
                "a prompt is longer than the limit",
                where=where,
                got=f"{len(ids)} tokens",
                wanted=f"at most {settings.max_prompt_tokens}",
                do="shorten it or raise max_prompt_tokens",
            )
        prompts.append(Prompt(text, tuple(ids)))
    if not prompts:
        raise DataError("there are no prompts", where=str(path))
    return prompts


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix not in (".txt", ".jsonl", ".parquet"):
        raise DataError(
            "no prompt file",
            where=str(path),
            got=path.suffix or "no suffix",
            wanted=".txt, .jsonl or .parquet",
        )
    if path.suffix == ".parquet":
        return parquet_rows(path)
    try:
        lines = numbered_lines(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("the prompts cannot be read", where=str(path), got=error) from error
    return (
        ({"prompt": line} for _, line in lines)
        if path.suffix == ".txt"
        else json_rows(lines, str(path))
    )


def generate(
    model: Policy,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    settings: Sampler,
    num_samples: int,
    seed: int,
    policy: str,
    out: Path,
    part_size: int,
    on_done: Callable[[int], None],
) -> pa.Table:
    """Samples `num_samples` responses to each prompt, `part_size` responses a part, and writes
    `out`; returns its table.

    policy: hash of the weights. A row's noise depends on seed, prompt index and sample index only.
    `on_done` is told finished rows, those of an earlier call included. Raises DataError if parts of
    another run lie in the way.
    """
    run = _run_name(prompts, settings, num_samples, seed, policy, part_size)
    recorded = json.dumps(
        recorded_settings(settings, model) | {"block_size": settings.block_size}, sort_keys=True
    )
    schema = _SCHEMA.with_metadata({_RUN_KEY: run.encode(), _SETTINGS_KEY: recorded.encode()})
    wanted = [(p, s) for p in range(len(prompts)) for s in range(num_samples)]
    folder = out.with_name(out.name + ".parts")
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for number, start in enumerate(range(0, len(wanted), part_size)):
        path, chosen = folder / f"{number:05d}.parquet", wanted[start : start + part_size]
        if path.is_file():
            tables.append(_part(path, run))
            on_done(len(chosen))
            continue
        requests = [Request(prompts[p].ids, key_for(seed, "generate", p, s)) for p, s in chosen]
        trajectories = sample(model, tokenizer.end_ids, requests, settings, on_done)
        rows = [
            _row(p, s, prompts[p], t, tokenizer)
            for (p, s), t in zip(chosen, trajectories, strict=True)
        ]
        tables.append(pa.Table.from_pylist(rows, schema=schema))
        _write(tables[-1], path)
    table = pa.concat_tables(tables)
    _write(table, out)
    shutil.rmtree(folder)
    return table


def _row(
    prompt_index: int,
    sample_index: int,
    prompt: Prompt,
    trajectory: Trajectory,
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    kept = (
        "prompt_ids",
        "response_ids",
        "step_map",
        "logprobs",
        "num_tokens",
        "stop_reason",
        "num_denoising_forwards",
        "num_forwards",
    )
    text = tokenizer.decode(trajectory.response_ids[: trajectory.num_tokens].tolist())
    own = {
        "prompt_index": prompt_index,
        "sample_index": sample_index,
        "prompt": prompt.text,
        "text": text,
    }
    return {**own, **{name: getattr(trajectory, name) for name in kept}}


def _run_name(
    prompts: Sequence[Prompt],
    settings: Sampler,
    num_samples: int,
    seed: int,
    policy: str,
    part_size: int,
) -> str:
    """A hash of all that the responses depend on, and of the size of the parts."""
    told = [
        [prompt.ids for prompt in prompts],
        settings.model_dump(exclude={"max_rows", "cache_tokens"}),
        num_samples,
        seed,
        policy,
        part_size,
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _part(path: Path, run: str) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            "a part is damaged",
            where=str(path),
            got=error,
            do="delete it and run the same command again",
        ) from error
    if (found := (table.schema.metadata or {}).get(_RUN_KEY, b"").decode()) != run:
        raise DataError(
            "parts of another run lie in the way",
            where=str(path.parent),
            got=f"run {found}",
            wanted=f"run {run}",
            do="finish that run with its own prompts and settings, or delete the folder",
        )
    return table


def _write(table: pa.Table, path: Path) -> None:
    with atomic_file(path, "the responses cannot be written") as aside:
        pq.write_table(table, aside, compression="zstd")
