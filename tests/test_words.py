"""A chain of the shape of the profile `words` on a random model of two layers: adaptation, SFT, the
autoregressive baseline, RL, and evaluations of all of them and of the origin."""

import copy
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from profiles.make import PROFILES
from profiles.words import prepare_problems
from tests.autoregressive import FREE_ID, write_autoregressive
from tests.tiny_run import ROOT, RunningStage, digests, run_stage, write_params
from tracerl.errors import DataError
from tracerl.models.checkpoint import load_checkpoint
from tracerl.settings.defaults import resolve
from tracerl.store.files import read_tasks

pytestmark = pytest.mark.timeout(600)
SAMPLES = Path(__file__).parent / "fixtures" / "benchmarks"
SETS = {"num_train": 60, "num_test": 20}
STEPS = {"num_steps": 4, "batch_size": 4, "save_every": 1}
STAGES = {"sft": ("short", "ar"), "rl": ("short",), "evaluate": ("origin", "ar", "rl-short")}


def words_params() -> dict[str, Any]:
    """The profile with the stages of STAGES, one easy set of problems, a few steps in every stage,
    and one rank."""
    params: dict[str, Any] = resolve(copy.deepcopy(PROFILES["words"]))
    for kind, names in STAGES.items():
        params[kind] = {name: params[kind][name] for name in names}
    params["defaults"] = {}  # every one is written out
    params["launch"]["ranks"] = 1
    for task_set in params["tasks"]["sets"].values():
        task_set.update(SETS, path="easy.jsonl")
    base = params["base"]
    base.update(path="origin", token_ids={"mask": FREE_ID, "end": None, "pad": None})
    base["adapt"].update(batch_size=4, save_every=1)
    for phase in base["adapt"]["phases"]:
        phase["tokens"] = 40
    for sft in params["sft"].values():
        sft.update(STEPS)
    for rl in params["rl"].values():
        rl.update(iterations=1, groups=2, group_size=2, min_groups=1, max_sampled_groups=2)
        rl.update(pass_rate=[0.0, 1.0])
        rl["held_out"] = {**rl["held_out"], "every": 1, "num_problems": 2}
    params["evaluation"].update(num_problems=4, batch_size=4, bootstrap=50)
    return params


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the chain has run up to the adapted base."""
    folder = tmp_path_factory.mktemp("words")
    write_params(folder, words_params())
    write_autoregressive(folder / "origin", "llama", num_hidden_layers=2)
    for stage in ("tasks", "base"):
        run_stage(folder, stage)
    return folder


def test_the_adapted_base_says_how_its_phases_went(adapted: Path) -> None:
    checkpoint = adapted / "data" / "checkpoints" / "base"
    assert load_checkpoint(checkpoint)[0].family.name == "fast-dllm-v2"
    lines = (adapted / "reports" / "curves" / "base.tsv").read_text().splitlines()
    rows = [dict(zip(lines[0].split("\t"), line.split("\t"), strict=True)) for line in lines[1:]]
    sizes = [row["block_size"] for row in rows]
    assert sizes == sorted(sizes)
    assert set(sizes) == {"1", "2", "4"}
    metrics = json.loads((adapted / "reports" / "metrics" / "base.json").read_text())
    assert metrics["num_examples"] == {"mawps": 60}
    assert f"{metrics['loss']:.6g}" == rows[-1]["loss"]


@pytest.mark.slow
def test_an_adaptation_that_was_killed_ends_with_the_same_bytes(
    adapted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(adapted, folder)
    shutil.rmtree(folder / "data" / "checkpoints")
    process = RunningStage(folder, "base")
    while process.returncode is None and steps_saved(folder) < 2:
        pass
    process.send_signal(signal.SIGKILL)
    process.ended()
    assert steps_saved(folder) >= 2, "killed in the middle"
    run_stage(folder, "base")
    assert digests(folder) == digests(adapted)


def test_a_set_without_a_file_is_named_before_anything_runs(tmp_path: Path) -> None:
    """And files under any of their names are imported with the prompt of word problems."""
    source, folder = tmp_path / "files", tmp_path / "run"
    shutil.copytree(SAMPLES, source)
    (source / "gsm8k.jsonl").rename(source / "gsm8k_test.jsonl")
    other = {"question": "Bob has 2 pens and finds 1. How many?", "answer": "2+1=3\n#### 3"}
    (source / "train.jsonl").write_text(json.dumps(other) + "\n")
    (source / "svamp.json").rename(source / "SVAMP.json")
    with pytest.raises(DataError, match=r"train\.csv or word_problems_train\.jsonl"):
        prepare_problems(source, folder)
    row = {"prompt": "Bryan has 8 books.", "answer": "8", "solution": "#### 8"}
    (source / "word_problems_train.jsonl").write_text(json.dumps(row) + "\n")
    prepare_problems(source, folder)
    for name in PROFILES["words"]["tasks"]["sets"]:
        (task, *_) = read_tasks(folder / "data" / "raw" / f"{name}.parquet")
        assert task.prompt.startswith("Question: ")
        assert task.prompt.endswith("\nAnswer:\n")


def steps_saved(folder: Path) -> int:
    for state in (folder / "data" / "scratch").glob("*/state.safetensors"):
        with safe_open(state, framework="pt") as file:
            return int(file.get_tensor("num_steps"))
    return 0


@pytest.mark.slow
def test_the_rest_of_the_chain_runs_on_the_adapted_base(adapted: Path, tmp_path: Path) -> None:
    """SFT masked and left to right, RL, the evaluations, whose table has the origin too, and the
    checks and the report, which take all of them as data of a run."""
    folder = tmp_path / "run"
    shutil.copytree(adapted, folder)
    shutil.copy(ROOT / "reports" / "baseline.json", folder / "reports")
    run_stage(folder, "traces")
    for kind, names in STAGES.items():
        for name in names:
            run_stage(folder, kind, name)
    for artifact in ("tasks", "traces", "rollouts", "evals"):
        run_stage(folder, "validate", artifact)
    run_stage(folder, "report")
    assert (folder / "reports" / "report.html").is_file()
    checkpoints = set()
    for path in (folder / "reports" / "metrics" / "evaluate").glob("*.json"):
        rows = json.loads(path.read_text())["rows"]
        assert len(rows) == 2, "static and dynamic"
        checkpoints |= {row["checkpoint"] for row in rows}
    assert checkpoints == {"base/origin", "sft@ar", "rl@short"}
