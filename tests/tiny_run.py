"""The shipped params scaled down to seconds, and stages run on them in a folder of their own, as
DVC runs them.

No module of the stages is imported at the top: a stage's root is the folder in which its first
module is imported, and the process that stages are forked from imports this file.
"""

import contextlib
import functools
import hashlib
import json
import os
import signal
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import yaml

from tests.forked_python import ForkedModule, fork_server
from tracerl.settings.defaults import resolve

ROOT = Path(__file__).resolve().parents[1]


def tiny_params() -> dict[str, Any]:
    """params.yaml with a model of 20,000 parameters, a few steps in every stage, and `sums-short`
    so easy that a few steps teach it."""
    params: dict[str, Any] = resolve(yaml.safe_load((ROOT / "params.yaml").read_text()))
    params["defaults"] = {}  # every one is written out
    for task_set in params["tasks"]["sets"].values():
        task_set.update(num_train=60, num_test=20, difficulty=[2, 4])
    params["tasks"]["sets"]["sums-short"] = {
        "source": "file",
        "path": "easy.jsonl",
        "num_train": 60,
        "num_test": 20,
    }
    params["base"]["model"].update(
        hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16
    )
    for training in (params["base"]["train"], *params["sft"].values()):
        training.update(num_steps=40, batch_size=8, save_every=2)
        training["optimizer"] = {**training["optimizer"], "lr": 0.01, "warmup": 0}
    sets = params["tasks"]["sets"]
    params["traces"].update(
        preferred=dict.fromkeys(sets, 12), rollouts=dict.fromkeys(sets, 8), batch_size=4
    )
    for rl in params["rl"].values():
        rl.update(
            iterations=4,
            groups=4,
            group_size=4,
            min_groups=1,
            max_sampled_groups=8,
            pass_rate=[0.0, 1.0],
        )
        rl["held_out"] = {**rl["held_out"], "every": 2, "num_problems": 2}
    params["validation"].update(pass_rate=[0.0, 1.0], truncation=1.0)
    params["evaluation"].update(num_problems=16, batch_size=4, bootstrap=50)
    return params


def write_params(folder: Path, params: dict[str, Any]) -> None:
    """Writes params.yaml, its easy task file, and what the stages `code` and `params` make of
    it."""
    folder.mkdir(parents=True, exist_ok=True)
    easy = [{"prompt": f"{i}?", "answer": "1", "solution": "1"} for i in range(120)]
    (folder / "easy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in easy))
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    from stages.runtime.params import write_stage_params

    write_stage_params(folder / "params.yaml", folder / "data" / "params")
    write_code(folder / "data" / "code")


def write_code(folder: Path) -> None:
    """Writes what the stage `code` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, text in code_lists().items():
        (folder / f"{kind}.txt").write_text(text)


@functools.cache
def code_lists() -> dict[str, str]:
    """The list of each kind of stage, made once: no test changes the code itself."""
    from stages.runtime.code import code_list, stage_kinds

    imports: dict[Path, list[Path]] = {}
    return {kind: code_list(kind, imports=imports) for kind in stage_kinds()}


def set_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets stages that run in this process work in a folder."""
    from stages.runtime import paths

    places = {name: path for name, path in vars(paths).items() if isinstance(path, Path)}
    for name, path in places.items():
        monkeypatch.setattr(paths, name, folder / path.relative_to(places["ROOT"]))


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
    }


class RunningStage:
    """`python -m stages.<stage>` (or of a module with a dot in its name) on the params of a folder,
    forked from a process that has imported torch: it starts seconds sooner."""

    def __init__(self, folder: Path, stage: str, *arguments: str) -> None:
        module = stage if "." in stage else f"stages.{stage}"
        with NamedTemporaryFile(delete=False) as output, open(os.devnull) as nothing:
            self._output = Path(output.name)
            self._process = ForkedModule(
                fork_server(),
                [module, *arguments],
                str(folder),
                environment(),
                (nothing.fileno(), output.fileno(), output.fileno()),
            )

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)

    def ended(self) -> str:
        """Waits for its end; what it printed."""
        self._process.wait()
        output = self._output.read_text()
        self._output.unlink()
        return output


def run_stage(folder: Path, stage: str, *arguments: str) -> None:
    """Runs a stage to its end; fails with its output if it fails."""
    process = RunningStage(folder, stage, *arguments)
    output = process.ended()
    assert process.returncode == 0, output


def fails(folder: Path, stage: str, *arguments: str) -> str:
    """Output of a stage that must fail with a message of ours and no traceback."""
    process = RunningStage(folder, stage, *arguments)
    output = process.ended()
    assert process.returncode == 1, output
    assert "error: " in output, output
    assert "Traceback" not in output, output
    return output


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by relative path, but of what runs measured
    (logs/measured), which no two have alike."""
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.parent.name != "measured"
    )
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
