"""Prompts in, responses out: complete or absent, resumed where a run was killed, and what is wrong
is named by its row."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tiny import sharp_model, tiny_sampler
from tracerl.cli import main
from tracerl.errors import DataError, ParamsError
from tracerl.evaluation.generate import (
    SCHEMA,
    GenerateRun,
    Prompt,
    change_settings,
    default_settings,
    generate,
    read_prompts,
    sampler_of,
)
from tracerl.models.checkpoint import save_checkpoint
from tracerl.models.tokenizer import character_tokenizer
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import key_for
from tracerl.settings.params import load_params
from tracerl.store.catalog import answer, connect_file
from tracerl.store.files import read_rollouts
from tracerl.store.rules import broken_rules
from tracerl.store.schema import ROLLOUTS

TOKENIZER = character_tokenizer()
MODEL = sharp_model("sdar", vocab_size=TOKENIZER.vocab_size)
SETTINGS = tiny_sampler(cache="exact")
PARAMS = Path(__file__).parents[2] / "params.yaml"


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt(text=text, ids=tuple(TOKENIZER.prompt_ids(text))) for text in texts]


def plan(
    out: Path, texts: tuple[str, ...] = ("1+1=", "2+30=", "4="), policy: str = "aa"
) -> GenerateRun:
    return GenerateRun(
        prompts=prompts(*texts),
        settings=SETTINGS,
        num_samples=2,
        seed=1,
        policy_hash=policy,
        out=out,
        part_size=2,
    )


def run(
    out: Path,
    texts: tuple[str, ...] = ("1+1=", "2+30=", "4="),
    told: list[int] | None = None,
    policy: str = "aa",
) -> pa.Table:
    done = told if told is not None else []
    return generate(MODEL, TOKENIZER, plan(out, texts, policy), done.append)


def test_every_prompt_has_its_responses_in_order(tmp_path):
    told: list[int] = []
    table = run(tmp_path / "r.parquet", told=told)
    assert table.equals(pq.read_table(tmp_path / "r.parquet"))
    assert [p.name for p in tmp_path.iterdir()] == ["r.parquet"], "no part is left behind"
    assert sum(told) == 6
    rows = table.to_pylist()
    assert [(r["prompt_index"], r["sample_index"], r["prompt"]) for r in rows] == [
        (i, s, text) for i, text in enumerate(("1+1=", "2+30=", "4=")) for s in (0, 1)
    ]
    for row in rows:
        key = key_for(1, "generate", row["prompt_index"], row["sample_index"])
        [alone] = sample(MODEL, TOKENIZER.end_ids, [Request(row["prompt_ids"], key)], SETTINGS)
        assert row["response_ids"] == alone.response_ids.tolist()
        assert row["step_map"] == alone.step_map.tolist()
        assert row["text"] == TOKENIZER.decode(alone.response_ids[: alone.num_tokens].tolist())
        assert row["num_forwards"] == alone.num_forwards
    recorded = json.loads(table.schema.metadata[b"tracerl.sampler"])
    assert (recorded["cache_mode"], recorded["block_size"], recorded["remasking"]) == (
        "exact",
        4,
        "static",
    )
    assert recorded["threshold"] is None


def test_a_killed_run_continues_after_its_last_part_and_ends_with_the_same_file(tmp_path):
    whole = run(tmp_path / "whole.parquet")

    def die_in_the_second_part(count: int) -> None:
        told.append(count)
        if sum(told) > 2:
            raise KeyboardInterrupt

    told: list[int] = []
    out, texts = tmp_path / "r.parquet", ("1+1=", "2+30=", "4=")
    with pytest.raises(KeyboardInterrupt):
        generate(MODEL, TOKENIZER, plan(out, texts), die_in_the_second_part)
    assert not out.exists()
    parts = sorted((tmp_path / "r.parquet.parts").iterdir())
    assert [part.name for part in parts] == ["00000.parquet"]
    written = parts[0].stat().st_mtime_ns
    with pytest.raises(DataError, match="another run"):
        run(out, policy="bb")
    assert parts[0].stat().st_mtime_ns == written
    told = []
    assert run(out, told=told).equals(whole)
    assert sum(told) == 6
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".parquet"])
def test_prompts_are_read_from_every_kind_of_file(tmp_path, suffix):
    path = tmp_path / f"p{suffix}"
    if suffix == ".txt":
        path.write_text("1+1=\n2=\n")
    elif suffix == ".jsonl":
        path.write_text('{"prompt": "1+1="}\n{"prompt_ids": [5, 6]}\n')
    else:
        pq.write_table(
            pa.table({"prompt": ["1+1=", None], "prompt_ids": [None, [5, 6]], "other": [1, 2]}),
            path,
        )
    first, second = read_prompts(path, TOKENIZER, SETTINGS, template=True)
    assert first == Prompt(text="1+1=", ids=tuple(TOKENIZER.prompt_ids("1+1=")))
    assert second == (
        Prompt(text="2=", ids=tuple(TOKENIZER.encode("2=")))
        if suffix == ".txt"
        else Prompt(text=None, ids=(5, 6))
    )


def test_the_opening_ends_the_prompt(tmp_path):
    (tmp_path / "p.txt").write_text("1+1=\n")
    [prompt] = read_prompts(
        tmp_path / "p.txt", TOKENIZER, SETTINGS.model_copy(update={"opening": "So "}), template=True
    )
    assert prompt.ids == tuple(TOKENIZER.encode("1+1=So "))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("p.txt", "a\n\nb\n", ["p.txt, row 2", "no prompt"]),
        ("p.txt", "", ["there are no prompts"]),
        ("p.jsonl", '{"prompt": "a"}\n{"answer": "b"}\n', ["p.jsonl, row 2", "no prompt"]),
        ("p.jsonl", '{"prompt": "a", "prompt_ids": [5]}\n', ["p.jsonl, row 1"]),
        ("p.jsonl", '{"prompt": 5}\n', ["p.jsonl, row 1", "not text"]),
        ("p.jsonl", '{"prompt_ids": ["a"]}\n', ["p.jsonl, row 1", "not token ids"]),
        ("p.jsonl", '{"prompt_ids": [true]}\n', ["p.jsonl, row 1", "not token ids", "True"]),
        ("p.jsonl", '{"prompt_ids": [-1]}\n', ["not token ids", "from 0 to"]),
        ("p.jsonl", '{"prompt_ids": [1000000]}\n', ["not token ids"]),
        ("p.jsonl", "[1]\n", ["not an object"]),
        ("p.jsonl", "{\n", ["cannot be read"]),
        ("p.parquet", "text", ["cannot be read"]),
        ("p.csv", "a", [".csv", "wanted"]),
        ("p.txt", "0" * 65, ["p.txt, row 1", "65 tokens", "at most 64"]),
    ],
)
def test_a_bad_prompt_file_is_named_with_its_row(tmp_path, name, content, told):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as raised:
        read_prompts(tmp_path / name, TOKENIZER, SETTINGS, template=True)
    assert all(part in str(raised.value) for part in told), str(raised.value)


def test_settings_come_from_a_params_file_and_changes_are_checked():
    params = load_params(PARAMS)
    assert sampler_of(params, "rl.short", "params.yaml") == params.rl["short"].sampler
    with pytest.raises(ParamsError, match=r"rl\.short"):
        sampler_of(params, "rl.shrot", "params.yaml")
    assert change_settings(SETTINGS, {"temperature": 0.5}).temperature == 0.5
    wrong: list[dict[str, Any]] = [
        {"temprature": 1.0},
        {"order.threshold": 2.0},
        {"threshold": 0.5},
        {"cache.kind": "dual", "cache.refresh_every": None, "cache.horizon": 3},
    ]
    for changes in wrong:
        with pytest.raises(ParamsError, match=list(changes)[-1]):
            change_settings(SETTINGS, changes)


@pytest.mark.parametrize("attention", ["block_causal", "full"])
def test_the_default_settings_are_exact(attention):
    settings = default_settings(attention)
    assert not settings.cache.is_approximate
    assert not settings.filters


def test_the_command_writes_a_file_from_a_checkpoint_directory(tmp_path, capsys):
    save_checkpoint(MODEL, TOKENIZER, tmp_path / "model")
    (tmp_path / "p.txt").write_text("1+1=\n2+3=\n")
    arguments = [
        "generate",
        "--model",
        str(tmp_path / "model"),
        "--prompts",
        str(tmp_path / "p.txt"),
        "--out",
        str(tmp_path / "r.parquet"),
    ]
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *arguments,
                "--device",
                "cpu",
                "--set",
                "max_new_tokens=8",
                "--set",
                "temperature=1.0",
                "--num-samples",
                "2",
            ]
        )
    assert ended.value.code == 0
    table = pq.read_table(tmp_path / "r.parquet")
    assert table["prompt"].to_pylist() == ["1+1=", "1+1=", "2+3=", "2+3="]
    assert json.loads(table.schema.metadata[b"tracerl.sampler"])["max_new_tokens"] == 8
    printed = capsys.readouterr()
    assert "4 responses" in printed.out
    assert "tokens per forward" in printed.out
    assert "temperature 1.0" in printed.err
    for wrong, told in [
        ("max_new_tokens", "has no value"),
        ("max_new_token=8", "did you mean 'max_new_tokens'"),
        ("threshold=[", "cannot be read"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--device", "cpu", "--set", wrong])
        assert told in str(ended.value.code)


# One schema


def test_generated_responses_are_rows_of_the_store_and_keep_its_rules(tmp_path):
    table = run(tmp_path / "r.parquet")
    assert table.schema.names == SCHEMA.names == [*ROLLOUTS.names, "prompt_index", "prompt"]
    assert [field.type for field in table.schema][: len(ROLLOUTS)] == [f.type for f in ROLLOUTS]
    assert list(broken_rules(tmp_path / "r.parquet", "rollouts", TOKENIZER.vocab_size)) == []
    assert read_rollouts(tmp_path / "r.parquet").num_rows == 6
    assert {row["verdict"] for row in table.to_pylist()} == {"undecided"}


def test_sql_and_the_trace_viewer_read_generated_responses(tmp_path, capsys):
    table = run(tmp_path / "r.parquet")
    TOKENIZER.save(tmp_path)
    query = "SELECT prompt, text FROM rollouts JOIN tasks USING (task_id) ORDER BY rollout_id"
    arguments = ["--responses", str(tmp_path / "r.parquet")]
    with pytest.raises(SystemExit) as ended:
        main(["sql", query, "--format", "json", *arguments])
    assert ended.value.code == 0
    expected = [{"prompt": row["prompt"], "text": row["text"]} for row in table.to_pylist()]
    assert json.loads(capsys.readouterr().out) == expected
    page = tmp_path / "trace.html"
    with pytest.raises(SystemExit) as ended:
        main(["trace", "true", *arguments, "--model", str(tmp_path), "--out", str(page)])
    assert ended.value.code == 0
    assert page.read_text().count("generate/00000/generate/2/1") == 2
    with pytest.raises(DataError, match="cannot be answered"):
        answer(connect_file(tmp_path / "r.parquet"), "FROM read_csv('/etc/passwd')")


def test_json_lines_hold_the_same_rows(tmp_path):
    table = run(tmp_path / "r.parquet")
    run(tmp_path / "r.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [row["response_ids"] for row in rows] == table["response_ids"].to_pylist()
    assert list(rows[0]) == SCHEMA.names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl", "r.parquet"]


@pytest.mark.parametrize("name", ["r.txt", "r", "folder.parquet", "other.parquet", "r.jsonl"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_sampled(name, tmp_path):
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "other.parquet").write_text("mine")
    (tmp_path / "r.jsonl").write_text("mine")
    before = sorted(tmp_path.iterdir())
    told: list[int] = []
    with pytest.raises(DataError, match=r"no format|would be overwritten") as error:
        run(tmp_path / name, told=told)
    assert str(tmp_path / name) in str(error.value)
    assert (told, sorted(tmp_path.iterdir())) == ([], before)


def test_a_finished_run_is_not_sampled_again_and_another_one_is_refused(tmp_path):
    first = run(tmp_path / "r.parquet")
    written = (tmp_path / "r.parquet").stat().st_mtime_ns
    assert run(tmp_path / "r.parquet").equals(first)
    assert (tmp_path / "r.parquet").stat().st_mtime_ns == written
    with pytest.raises(DataError, match="would be overwritten"):
        run(tmp_path / "r.parquet", policy="bb")
