"""Where the time of the default run goes, phase by phase: a few units of each kind of stage, on
what `dvc repro` left in data/.

    dvc repro && python -m benchmarks.phases         # rows go to reports/metrics/benchmarks.json; a
    minute

Each stage runs in a process and a folder of its own, unchanged, with the params of the default run
but fewer steps, iterations or problems; published data are read through links. Phases are functions
whose time is taken, less that of the phases inside them; `other` is everything else, and `start`,
which shares leave out, what comes before the stage's first line. Seconds are those of the process.
"""

import argparse
import functools
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from benchmarks.rows import alone, merge_rows
from stages.runtime.code import write_code_lists
from stages.runtime.params import write_stage_params

ROOT = Path(__file__).resolve().parents[1]
# stage, name, and what is changed in its section of the params: a tenth of a round, held-out
# problems included.
STAGES: list[tuple[str, str | None, dict[str, Any]]] = [
    ("base", None, {"train": {"num_steps": 60}}),
    (
        "traces",
        None,
        {
            "preferred": {"sums-short": 128, "arithmetic-short": 128},
            "rollouts": {"sums-short": 64, "arithmetic-short": 64},
        },
    ),
    ("sft", "short", {"num_steps": 40}),
    ("rl", "short", {"iterations": 4, "held_out": {"num_problems": 32}}),
    ("evaluate", "rl-short", {}),
]
PHASES = {
    # Torch's optimizers import its compiler when the first one is made.
    "importing": ["tracerl.training.master_weights:adamw"],
    "reading": [
        "stages.sft:load_examples",
        "stages.rl:load_pools",
        *(f"stages.{s}:fitting_tasks" for s in ("traces", "evaluate")),
    ],
    "sampling": ["tracerl.rollouts.responses:sample"],
    "verifying": ["tracerl.rollouts.responses:_verdicts_and_scores"],
    "views": [
        *(
            f"tracerl.training.policy_update:{name}"
            for name in ("build_views", "row_bundles", "PolicyUpdate.plan")
        ),
        *(
            f"tracerl.training.sft:{name}"
            for name in ("build_views", "_plan", "complete_last_block", "num_layout_tokens")
        ),
        *(f"tracerl.training.traces:{name}" for name in ("build_views", "_plan")),
    ],
    "forward": [
        "tracerl.training.policy_update:scores",
        "tracerl.training.sft:token_logprobs",
        "tracerl.training.traces:prediction_logits",
    ],
    "backward": ["torch:Tensor.backward"],
    "optimizer": ["tracerl.training.master_weights:MasterWeights.step"],
    "storing": [
        *(f"tracerl.training.scratch:Workspace.{name}" for name in ("save", "publish")),
        "tracerl.training.collect:Collector._store",
        *(
            f"tracerl.{module}:{name}"
            for module in ("evaluation.evaluate", "training.traces")
            for name in ("write_rollouts", "read_rollouts", "rollouts_to_table")
        ),
    ],
}


class Clock:
    """Seconds of the process by phase; a phase inside another one stops that one's clock."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"start": time.process_time()}
        self._running: list[str] = ["other"]
        self._since = time.process_time()

    def turn(self) -> None:
        """What has passed belongs to the phase that runs."""
        now = time.process_time()
        self.seconds[self._running[-1]] = (
            self.seconds.get(self._running[-1], 0.0) + now - self._since
        )
        self._since = now

    def watch(self, phase: str, place: str) -> None:
        """Counts the time of a function, `module:name` or `module:class.name`, if its module is
        loaded."""
        module, path = place.split(":")
        if module not in sys.modules:
            return
        *outer, name = path.split(".")
        owner: Any = sys.modules[module]
        for part in outer:
            owner = getattr(owner, part)
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def timed(*arguments: Any, **options: Any) -> Any:
            self.turn()
            self._running.append(phase)
            try:
                return plain(*arguments, **options)
            finally:
                self.turn()
                self._running.pop()

        setattr(owner, name, timed)


def run(stage: str, name: str | None, folder: str) -> dict[str, float]:
    """Seconds by phase of one stage; to be called in a process of its own."""
    os.chdir(folder)
    main = importlib.import_module(f"stages.{stage}").main
    clock = Clock()
    for phase, places in PHASES.items():
        for place in places:
            clock.watch(phase, place)
    main(*([name] if name else []))
    clock.turn()
    return clock.seconds


def profile(stage: str, name: str | None, change: dict[str, Any]) -> dict[str, Any]:
    """A row of one stage, run in a folder of its own."""
    label = stage if name is None else f"{stage}@{name}"
    with tempfile.TemporaryDirectory() as folder:
        params = yaml.safe_load((ROOT / "params.yaml").read_text())
        section = params[stage] if name is None else params[stage][name]
        for key, value in change.items():
            section[key] = {**section[key], **value} if isinstance(value, dict) else value
        (Path(folder) / "params.yaml").write_text(yaml.safe_dump(params))
        data = Path(folder) / "data"
        write_stage_params(Path(folder) / "params.yaml", data / "params")
        write_code_lists(data / "code")
        (data / "checkpoints").mkdir(parents=True)
        for source in [
            ROOT / "data" / "tasks",
            ROOT / "data" / "traces",
            *(ROOT / "data" / "checkpoints").iterdir(),
        ]:
            if source.name not in (stage, label):
                (data / source.relative_to(ROOT / "data")).symlink_to(source)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            seconds = pool.submit(run, stage, name, folder).result()
    start = seconds.pop("start")
    total = sum(seconds.values())
    shares = {
        phase: round(value / total, 3)
        for phase, value in sorted(seconds.items(), key=lambda item: -item[1])
    }
    means = f"share of each phase; {change or 'the whole stage'}"
    return alone(f"phases/{label}", total, means=means, start_s=round(start, 2), shares=shares)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", metavar="STAGE", action="append", choices=[stage for stage, *_ in STAGES]
    )
    wanted = parser.parse_args().only
    if not (ROOT / "data" / "checkpoints").is_dir():
        sys.exit("error: no checkpoints\n  where: data/checkpoints\n  what to do: dvc repro")
    os.environ["OMP_NUM_THREADS"] = "1"
    merge_rows([profile(*one) for one in STAGES if wanted is None or one[0] in wanted])


if __name__ == "__main__":
    main()
