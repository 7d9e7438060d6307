"""One TraceRL step against one row per view with a dense mask and logits everywhere; and how its
time and memory grow.

    python -m benchmarks.training_step                 # rows go to reports/metrics/benchmarks.json;
    minutes on a CPU python -m benchmarks.training_step --only step     # the comparison alone;
    also: length, batch, vocabulary

A step is what training does with one response: old log-probabilities over its views, the clipped
objective, backward, AdamW. Ours puts the views behind one clean copy, attends in chunks to what is
seen, and makes logits in parts where a token is predicted. Plain has a row [clean | noisy] for each
view, a boolean mask over it, and logits and their log-softmax at all of its positions. Their
gradients are compared in float64. Every measurement is a process of its own; seconds are those of
the process, memory is what its peak adds to what it held before the step, weights and optimizer
state being there already.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rows import alone, merge_rows, row
from tracerl.models import sparse
from tracerl.models.families import FAMILIES
from tracerl.models.policy import Policy, new_model
from tracerl.models.transformer import Architecture
from tracerl.objectives.likelihood import token_logprobs
from tracerl.objectives.losses import policy_gain, policy_loss
from tracerl.objectives.plans import Plan, trace_plan
from tracerl.objectives.views import Views, build_views
from tracerl.seeds import generator_for
from tracerl.settings.training import Optimizer
from tracerl.training.trainer import Trainer
from tracerl.types import Trajectory

BLOCK = 4
STEP = {"length": 1024, "rows": 1, "vocabulary": 4096, "hidden": 128, "layers": 4}
SMALL = {"length": 256, "rows": 1, "vocabulary": 1024, "hidden": 64, "layers": 2}
SCALES = {
    "length": [{"length": length} for length in (128, 256, 512, 1024, 2048, 4096)],
    "batch": [{"rows": rows} for rows in (1, 2, 4, 8)],
    "vocabulary": [{"vocabulary": size} for size in (1000, 10_000, 50_000, 150_000)],
}


def build(case: dict[str, int], dtype: torch.dtype) -> Policy:
    hidden = case["hidden"]
    shape = Architecture(
        family="sdar",
        vocab_size=case["vocabulary"],
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_layers=case["layers"],
        num_heads=4,
        num_kv_heads=2,
        head_dim=hidden // 4,
        rope_theta=10000.0,
        norm_eps=1e-6,
        tie_embeddings=False,
        mask_id=0,
    )
    return new_model(shape, generator_for(1, "training step")).to(dtype)


def trajectories(case: dict[str, int]) -> list[Trajectory]:
    """Responses to an eighth of prompt, one token a step in a drawn order, so that every block has
    a view for each of its places."""
    prompt, found = case["length"] // 8 // BLOCK * BLOCK, []
    response = case["length"] - prompt
    for i in range(case["rows"]):
        rng = generator_for(1, "trajectory", i)
        order = np.concatenate(
            [rng.permutation(BLOCK) + BLOCK * block for block in range(response // BLOCK)]
        )
        nothing = np.zeros(response, dtype=np.float32)
        ids = rng.integers(1, case["vocabulary"], size=case["length"]).astype(np.int32)
        steps = (order + 1).astype(np.int32)
        found.append(
            Trajectory(
                prompt_ids=ids[:prompt],
                response_ids=ids[prompt:],
                step_map=steps,
                logprobs=nothing,
                filtered_logprobs=nothing,
                num_tokens=response,
                block_size=BLOCK,
                canvas_length=case["length"],
                stop_reason="length",
            )
        )
    return found


def views_of(batch: list[Trajectory], apart: bool) -> Views:
    """The views of some responses: behind one clean copy, or in a row each."""
    family = FAMILIES["sdar"]
    plans = [trace_plan(trajectory, BLOCK, family, shrink=1) for trajectory in batch]
    pairs = list(zip(batch, plans, strict=True))
    if apart:
        pairs = [
            (t, Plan(states=plan.states[v : v + 1], weights=plan.weights[v : v + 1]))
            for t, plan in pairs
            for v in range(len(plan.states))
        ]
    return build_views([t for t, _ in pairs], [plan for _, plan in pairs], BLOCK, family, 0)


def logprobs_of(model: Policy, views: Views, plain: bool) -> torch.Tensor:
    """Log-probabilities of the targets, [T]; the plain way from a table [rows, length,
    vocabulary]."""
    if not plain:
        return token_logprobs(model, views, 1.0)
    table = model.logits(model(views.input_ids, views.layout)).log_softmax(-1)
    return table[views.row, views.column, views.targets]


def step(trainer: Trainer[Policy], batch: list[Trajectory], plain: bool) -> None:
    """One step of the policy."""
    model, views = trainer.model, views_of(batch, plain)
    with torch.no_grad():
        old = logprobs_of(model.eval(), views, plain)
    weights = torch.full_like(old, 1 / len(old))

    def loss(views: Views) -> tuple[torch.Tensor, dict[str, float]]:
        new = logprobs_of(model, views, plain)
        gain = policy_gain(
            "token", new, old, torch.ones_like(old), (0.2, 0.2), views.source, views.weight
        )
        return policy_loss(gain, torch.zeros_like(gain), weights, 0.0), {}

    trainer.step([views], loss)


def trainer_of(
    case: dict[str, int], plain: bool, dtype: torch.dtype = torch.float32
) -> Trainer[Policy]:
    model = build(case, dtype)
    model.attention = "sdpa" if plain else "auto"
    return Trainer(
        model,
        Optimizer(lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, clip_norm=1.0, warmup=0, decay=0.0),
        100,
    )


def memory(kind: str) -> int:
    """VmRSS (now) or VmHWM (peak) of this process, bytes."""
    [line] = [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind)
    ]
    return int(line.split()[1]) * 1024


def measure(case: dict[str, int], plain: bool, repeats: int) -> dict[str, float]:
    """Seconds of a step (the best of several) and the bytes its peak adds."""
    torch.set_num_threads(1)
    trainer, batch = trainer_of(case, plain), trajectories(case)
    step(trainer, trajectories({**case, "length": 64, "rows": 1}), plain)
    trainer.model.zero_grad(set_to_none=True)
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before, best, kernels = memory("VmRSS"), float("inf"), Kernels()
    for _ in range(repeats):
        started = time.process_time()
        step(trainer, batch, plain)
        best = min(best, time.process_time() - started)
    added = float(memory("VmHWM") - before)
    return {"seconds": best, "bytes": added, "attention": kernels.seconds / repeats}


class Kernels:
    """Seconds that the kernels of attention in chunks take in this process, from now on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for name in ("_FLASH", "_FLASH_BACKWARD"):
            setattr(sparse, name, self._timed(getattr(sparse, name)))

    def _timed(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            started = time.process_time()
            found = kernel(*arguments, **options)
            self.seconds += time.process_time() - started
            return found

        return run


def power(sizes: list[float], values: list[float]) -> float:
    """Of the size, fitted to the logarithms of values."""
    return round(float(np.polyfit(np.log(sizes), np.log(values), 1)[0]), 2)


def measured(case: dict[str, int], plain: bool = False, repeats: int = 2) -> dict[str, float]:
    """The same in a process of its own, forked before this one has ever run a backward pass."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(measure, (case, plain, repeats))


def largest_difference(case: dict[str, int]) -> float:
    """Of the gradients of ours and plain in float64, relative to the largest gradient."""
    found = []
    for plain in (False, True):
        trainer = trainer_of(case, plain, torch.float64)
        views = views_of(trajectories(case), plain)
        order = torch.argsort(views.token)
        loss = (
            logprobs_of(trainer.model, views, plain)[order] * torch.linspace(-1, 1, len(order))
        ).sum()
        found.append(torch.autograd.grad(loss, list(trainer.model.parameters())))
    scale = max(float(part.abs().max()) for part in found[1])
    return max(float((a - b).abs().max()) for a, b in zip(*found, strict=True)) / scale


def compare() -> dict[str, Any]:
    ours, plain = measured(STEP), measured(STEP, plain=True)
    difference = largest_difference({**STEP, "hidden": 64, "layers": 2, "vocabulary": 512})
    mb = {"ours_mb": round(ours["bytes"] / 1e6, 1), "plain_mb": round(plain["bytes"] / 1e6, 1)}
    share = round(ours["bytes"] / plain["bytes"], 3)
    return row(
        "training-step/step",
        ours["seconds"],
        plain["seconds"],
        2.0,
        difference <= 1e-10,
        gradient_difference=difference,
        **mb,
        memory_share=share,
        memory_target=0.5,
    )


def scaling(name: str) -> dict[str, Any]:
    """Time and memory as one size grows. ratio: by what memory grows over the whole range; powers
    of the size, fitted to all points: of memory, of time, and of time without the kernels of
    attention in chunks, which is quadratic in length."""
    points = []
    for change in SCALES[name]:
        found = measured({**SMALL, **change}, repeats=1)
        seconds = {key: round(found[key], 3) for key in ("seconds", "attention")}
        points.append({**change, **seconds, "mb": round(found["bytes"] / 1e6, 1)})
        print(points[-1], flush=True)
    growth = points[-1]["mb"] / points[0]["mb"]
    scale = next(iter(SCALES[name][-1].values())) / next(iter(SCALES[name][0].values()))
    keys = (next(iter(SCALES[name][0])), "mb", "seconds", "attention")
    sizes, held, times, attention = ([point[key] for point in points] for key in keys)
    others = [whole - kernels for whole, kernels in zip(times, attention, strict=True)]
    means = f"growth of memory as {name} grows {scale:g} times; the target is at most linear growth"
    return alone(
        f"training-step/{name}",
        points[-1]["seconds"],
        ratio=round(growth, 3),
        target=scale,
        power=power(sizes, held),
        power_of_time=power(sizes, times),
        power_of_time_without_attention=power(sizes, others),
        means=means,
        points=points,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["step", *SCALES], action="append")
    options = parser.parse_args()
    wanted = options.only or ["step", *SCALES]
    rows = [scaling(name) for name in SCALES if name in wanted] + (
        [compare()] if "step" in wanted else []
    )
    merge_rows(rows)
    if not all(found["equal"] in (True, None) for found in rows):
        sys.exit("the gradients differ")


if __name__ == "__main__":
    main()
