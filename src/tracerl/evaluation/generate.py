"""Responses to a file of prompts: text or token ids in, rows of the store's schema out, one file
that is complete or absent.

Finished parts lie in `<out>.parts/` until the last is there; the same command run again continues
after them. What they were made of (prompts, settings, weights, seed) is hashed into each, and parts
or a file of another run are refused, neither mixed nor overwritten.
"""

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from tracerl.disk import atomic_file, json_rows, json_value, number_lines, parquet_rows
from tracerl.errors import DataError, ParamsError
from tracerl.models.families import Attention
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.rewards.verify.verifier import Verdict
from tracerl.rollouts.responses import SampleContext, prompt_ids, settings_columns
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import key_for
from tracerl.settings.defaults import merge
from tracerl.settings.params import Params
from tracerl.settings.problems import describe
from tracerl.settings.sampling import Dynamic, Exact, Sampler
from tracerl.store.files import rollout_table
from tracerl.store.schema import ROLLOUTS
from tracerl.types import Task, Trajectory

# The columns of every response, and which prompt it answers.
SCHEMA = ROLLOUTS.append(pa.field("prompt_index", pa.int32(), nullable=False)).append(
    pa.field("prompt", pa.string())
)
STAGE = "generate"
SUFFIXES = (".parquet", ".jsonl")
_ROWS_AT_ONCE = 1000
_RUN_KEY, _SETTINGS_KEY = b"tracerl.run", b"tracerl.sampler"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A row of the prompt file.

    Example: Prompt(text="1+1=", ids=(7, 9, 7, 12))
    """

    text: str | None
    """Its text; None where the file holds token ids."""

    ids: tuple[int, ...]
    """The token ids that the model gets, opening included."""


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
        order=Dynamic(kind="dynamic", threshold=0.9),
        confidence="raw",
        confidence_of="drawn",
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        guidance=0.0,
        opening="",
        max_prompt_tokens=4096,
        max_new_tokens=512,
        cache=Exact(kind="exact"),
        max_rows=64,
        cache_tokens=None,
    )


def sampler_of(params: Params, place: str, where: str) -> Sampler:
    """The sampler at `place` of a params file: "traces", "rl.NAME" or "evaluate.NAME".

    Raises ParamsError naming the places there are.
    """
    places = {"traces": params.traces.sampler}
    for name, rl in params.rl.items():
        places[f"rl.{name}"] = rl.sampler
    for name, evaluation in params.evaluate.items():
        places[f"evaluate.{name}"] = evaluation.sampler
    if place not in places:
        raise ParamsError(
            "no sampler section of this name", where=where, got=place, wanted=", ".join(places)
        )
    return places[place]


def change_settings(settings: Sampler, changes: Mapping[str, Any]) -> Sampler:
    """The settings with some keys replaced, checked like a params file. changes: dotted keys
    (`order.threshold`); a section whose kind changes needs all of its keys.

    Raises ParamsError naming every wrong key.
    """
    tree: dict[str, Any] = {}
    for key, value in changes.items():
        *path, last = key.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    merged = merge(settings.model_dump(), tree, Sampler)
    try:
        return Sampler.model_validate_json(json.dumps(merged))
    except ValidationError as error:
        problems = "; ".join(describe(problem, Sampler) for problem in error.errors())
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
        text = row.get("prompt")
        ids_of_row: Any = row.get("prompt_ids")
        if (text is None) == (ids_of_row is None) or not (text or ids_of_row):
            raise DataError(
                "a row has no prompt",
                where=where,
                got=sorted(row),
                wanted="prompt (text) or prompt_ids (token ids), not empty",
            )
        if text is None:
            if not _are_token_ids(ids_of_row, tokenizer.vocab_size):
                raise DataError(
                    "prompt_ids are not token ids",
                    where=where,
                    got=str(ids_of_row)[:80],
                    wanted=f"a list of whole numbers from 0 to {tokenizer.vocab_size - 1}",
                )
            ids = ids_of_row
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
        prompts.append(Prompt(text=text, ids=tuple(ids)))
    if not prompts:
        raise DataError("there are no prompts", where=str(path))
    return prompts


def _are_token_ids(value: Any, vocab_size: int) -> bool:
    """Whether a value of a row is a list of ids of the vocabulary. JSON's true is no id."""
    if not isinstance(value, list):
        return False
    return all(type(part) is int and 0 <= part < vocab_size for part in value)


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
        lines = number_lines(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("the prompts cannot be read", where=str(path), got=error) from error
    return (
        ({"prompt": line} for _, line in lines)
        if path.suffix == ".txt"
        else json_rows(lines, str(path))
    )


@dataclass(frozen=True, kw_only=True)
class GenerateRun:
    """What `generate` samples, and where to."""

    prompts: Sequence[Prompt]
    """The prompts, in the order of their file."""

    settings: Sampler
    """Settings of the sampler."""

    num_samples: int
    """Responses to each prompt."""

    seed: int
    """Random seed: the noise of a response depends on it, its prompt index and its sample index."""

    policy_hash: str
    """Hash of the weights."""

    out: Path
    """The file to write: .parquet or .jsonl."""

    part_size: int
    """Responses that are sampled and saved together."""

    @property
    def name(self) -> str:
        """A hash of all that the responses depend on, and of the size of the parts."""
        parts = [
            [prompt.ids for prompt in self.prompts],
            self.settings.model_dump(exclude={"max_rows", "cache_tokens"}),
            self.num_samples,
            self.seed,
            self.policy_hash,
            self.part_size,
            SCHEMA.names,
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def generate(
    model: Policy, tokenizer: Tokenizer, run: GenerateRun, on_done: Callable[[int], None]
) -> pa.Table:
    """Samples the responses, writes `run.out` and returns its rows: the store's columns, with
    verdict "undecided", `prompt_index` and `prompt`.

    `on_done` is called with numbers of finished responses, those of an earlier call included.
    Raises DataError, before anything is sampled, if `out` is no file to write or holds something
    else, or if parts of another run lie in the way.
    """
    output = _read_output(run)
    pairs = list(itertools.product(range(len(run.prompts)), range(run.num_samples)))
    if output is not None:
        on_done(len(pairs))
        return output
    columns = settings_columns(run.settings, model)
    record = json.dumps({**columns, "block_size": run.settings.block_size}, sort_keys=True)
    metadata = {_RUN_KEY: run.name.encode(), _SETTINGS_KEY: record.encode()}
    schema = SCHEMA.with_metadata({**(ROLLOUTS.metadata or {}), **metadata})
    folder = run.out.with_name(run.out.name + ".parts")
    tables = []
    for number, start in enumerate(range(0, len(pairs), run.part_size)):
        path = folder / f"{number:05d}.parquet"
        part = pairs[start : start + run.part_size]
        if path.is_file():
            tables.append(_read_part(path, run.name).cast(schema))
            on_done(len(part))
            continue
        requests = []
        for p, s in part:
            requests.append(Request(run.prompts[p].ids, key_for(run.seed, STAGE, p, s)))
        trajectories = sample(model, tokenizer.end_ids, requests, run.settings, on_done)
        tables.append(_table(part, trajectories, run, columns, tokenizer).cast(schema))
        _write(tables[-1], path)
    # One chunk each: equal rows are equal bytes, also where parts were read back.
    table = pa.concat_tables(tables).combine_chunks()
    _write(table, run.out)
    shutil.rmtree(folder)
    return table


def _read_output(run: GenerateRun) -> pa.Table | None:
    """The rows of `out` if this run has written it already, None if there is no such file.

    Raises DataError if it cannot be written or is of another run.
    """
    out = run.out
    if out.suffix not in SUFFIXES:
        raise DataError(
            "no format for responses",
            where=str(out),
            got=out.suffix or "no suffix",
            wanted=" or ".join(SUFFIXES),
        )
    if not out.exists():
        return None
    if out.suffix == ".parquet" and out.is_file():
        with suppress(pa.ArrowException, OSError, UnicodeDecodeError):
            table = pq.read_table(out)
            if (table.schema.metadata or {}).get(_RUN_KEY) == run.name.encode():
                return table
    raise DataError(
        "the file would be overwritten",
        where=str(out),
        got="a directory" if out.is_dir() else "a file of another run",
        wanted="a new file",
        do="name another file with --out, or delete this one",
    )


def _table(
    part: Sequence[tuple[int, int]],
    trajectories: Sequence[Trajectory],
    run: GenerateRun,
    columns: dict[str, object],
    tokenizer: Tokenizer,
) -> pa.Table:
    """Responses to (prompt index, sample index) as rows. columns: the sampler's settings."""
    context = SampleContext(
        stage=STAGE,
        iteration=0,
        policy_hash=run.policy_hash,
        seed=run.seed,
        truncated_is_wrong=False,
    )
    verdict = Verdict(verdict="undecided", parts={}, detail="not judged")
    rollouts = []
    for (prompt_index, sample_index), trajectory in zip(part, trajectories, strict=True):
        task = Task(
            task_id=f"{STAGE}/{prompt_index}",
            task_set=STAGE,
            kind="",
            split="",
            difficulty=0,
            prompt="",
            answer="",
            solution="",
        )
        text = tokenizer.decode(trajectory.response_ids[: trajectory.num_tokens].tolist())
        rollout = context.rollout(
            task,
            sample_index,
            trajectory,
            text=text,
            verdict=verdict,
            reward_parts={},
            settings=columns,
        )
        rollouts.append(rollout)
    indices = pa.array([p for p, _ in part], pa.int32())
    texts = pa.array([run.prompts[p].text for p, _ in part], pa.string())
    table = rollout_table(rollouts)
    return pa.table([*table.columns, indices, texts], names=SCHEMA.names)


def _read_part(path: Path, run: str) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
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
    """Writes responses as Parquet, or as a JSON object a line."""
    with atomic_file(path, "the responses cannot be written") as aside:
        if path.suffix == ".parquet":
            pq.write_table(table, aside, compression="zstd")
            return
        with aside.open("w", encoding="utf-8") as file:
            for batch in table.to_batches(_ROWS_AT_ONCE):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    file.write(json.dumps(json_value(row), ensure_ascii=False) + "\n")
