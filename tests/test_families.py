"""The chain runs for every family by switching `family` in the params (shrink 2 for full
attention), with all weights or with adapters."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from stages import base, evaluate, rl, sft, tasks, traces
from tests.tiny_run import set_root, tiny_params, write_params
from tracerl.models.checkpoint import load_checkpoint
from tracerl.models.families import FAMILIES

EXPERTS = {
    "num_experts": 8,
    "per_token": 2,
    "intermediate_size": 16,
    "num_shared": 1,
    "num_dense": 1,
    "num_groups": 4,
    "groups_per_token": 2,
    "scaling": 2.5,
}
LORA = {"rank": 4, "alpha": 8.0, "dropout": 0.1, "targets": ["q_proj", "v_proj", "down_proj"]}


def family_params(family: str, lora: dict[str, Any] | None) -> dict[str, Any]:
    """A few steps of every kind of stage, for one family."""
    params = tiny_params()
    params["base"]["model"]["family"] = family
    if FAMILIES[family].dense_key:
        params["base"]["model"] |= {"experts": EXPERTS, "rotary_factor": 0.5}
    params["base"]["train"].update(num_steps=20, save_every=20)
    params["sft"]["short"].update(num_steps=6, save_every=3, lora=lora)
    params["traces"].update(
        preferred={"sums-short": 6, "arithmetic-short": 6},
        rollouts={"sums-short": 2, "arithmetic-short": 2},
    )
    params["rl"]["short"].update(iterations=2, groups=2, max_sampled_groups=2, lora=lora)
    params["rl"]["short"]["held_out"] = {
        **params["rl"]["short"]["held_out"],
        "tasks": ["arithmetic-long"],
    }
    params["evaluation"].update(num_problems=4)
    params["evaluate"]["rl-short"]["tasks"] = ["sums-short"]
    if FAMILIES[family].attention == "full":
        params["sft"]["short"]["objective"]["shrink"] = 2
        params["rl"]["short"]["shrink"] = 2
    return params


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stages, run in this process, find and put everything."""
    set_root(tmp_path, monkeypatch)
    return tmp_path


# The default chain, sdar with all weights, is that of test_pipeline.py.
@pytest.mark.parametrize(
    ("family", "lora"),
    [
        ("llada", None),
        pytest.param("dream", None, marks=pytest.mark.slow),
        ("sdar", LORA),
        pytest.param("sdar", {**LORA, "quantise": "nf4"}, marks=pytest.mark.slow),
        pytest.param("fast-dllm-v2", None, marks=pytest.mark.slow),
        pytest.param(
            "llada2",
            {**LORA, "targets": ["qkv_proj", "gate_proj", "down_proj"]},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_base_traces_sft_rl_and_evaluation_run(
    family: str, lora: dict[str, Any] | None, folder: Path
) -> None:
    write_params(folder, family_params(family, lora))
    tasks.main()
    base.main()
    traces.main()
    sft.main("short")
    rl.main("short")
    evaluate.main("rl-short")
    checkpoints = folder / "data" / "checkpoints"
    assert (
        json.loads((checkpoints / "base" / "config.json").read_text())["model_type"]
        == FAMILIES[family].model_types[0]
    )
    for stage in ("sft@short", "rl@short"):
        model, _ = load_checkpoint(checkpoints / stage)
        assert model.family.name == family
        assert (model.adapters is not None) is (lora is not None)
        assert not list((checkpoints / stage).glob("model*")) or lora is None, (
            "a round with adapters saves them alone"
        )
    hashes = [
        json.loads((folder / "reports" / "metrics" / f"{stage}.json").read_text())["policy_hash"]
        for stage in ("base", "sft@short", "rl@short")
    ]
    assert hashes[0] != hashes[1]
    has_experts = bool(FAMILIES[family].dense_key)
    for name in ("base", "sft@short", "rl@short"):
        header, *rows = (
            line.split("\t")
            for line in (folder / "reports" / "curves" / f"{name}.tsv").read_text().splitlines()
        )
        assert all(math.isfinite(float(row[header.index("loss")])) for row in rows)
        figures = {"expert_load", "idle_experts", "router_ties"}
        assert figures & set(header) == (figures if has_experts else set())
    iterations = [
        pq.read_table(file)
        for file in sorted((folder / "data" / "rollouts" / "rl@short").glob("iter-*.parquet"))
    ]
    assert [table.num_rows for table in iterations] == [8, 8]
    assert set(iterations[0]["policy_hash"].to_pylist()) == {hashes[1]}
    rewards: dict[tuple[int, str], set[float]] = {}
    for number, table in enumerate(iterations):
        for task, reward in zip(
            table["task_id"].to_pylist(), table["reward"].to_pylist(), strict=True
        ):
            rewards.setdefault((number, task), set()).add(reward)
    informative = any(len(group) > 1 for group in rewards.values())
    assert (hashes[1] != hashes[2]) is informative, (
        "weights move exactly when a group says which response is better"
    )
    asked = [
        pq.read_table(file)
        for file in (folder / "data" / "rollouts" / "rl@short").glob("held-out-*.parquet")
    ]
    assert {task.split("/")[0] for table in asked for task in table["task_id"].to_pylist()} == {
        "arithmetic-long"
    }
    figures = json.loads(
        (folder / "reports" / "metrics" / "evaluate" / "rl-short.json").read_text()
    )
    assert {row["remasking"] for row in figures["rows"]} == {"static", "dynamic"}
    assert figures["settings"]["policy_hash"] == hashes[2]
