"""Known solutions as traces for SFT: their step map is the model's own preferred order (TraceRL,
appendix B.1).

In every block the model repeatedly picks the `pick` masked positions with the largest maximum
probability given what is committed, the known tokens are committed there, until the block is done;
then neighbouring selections are merged to steps of `step_tokens` tokens. Since the tokens are
known, all blocks of a block-causal model are decided in one forward pass per selection.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tracerl import distributed
from tracerl.models.families import Family
from tracerl.models.finite import nonfinite_error
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.objectives.likelihood import prediction_logits
from tracerl.objectives.plans import MASKED, PREDICTED, VISIBLE, Plan, sampling_blocks
from tracerl.objectives.views import build_views
from tracerl.rewards.verify.verifier import Verdict
from tracerl.rollouts.responses import (
    SampleContext,
    respond,
    rollouts_to_table,
    settings_columns,
)
from tracerl.settings.training import Traces
from tracerl.store.files import read_rollouts, write_rollouts
from tracerl.training.sft import complete_last_block, task_trajectory
from tracerl.types import Rollout, Task, Trajectory


def collect_traces(
    model: Policy,
    tokenizer: Tokenizer,
    tasks: Mapping[str, Sequence[Task]],
    settings: Traces,
    context: SampleContext,
    folder: Path,
    on_progress: Callable[[int, int, str], None],
) -> dict[str, dict[str, Any]]:
    """Writes the traces of every task set as `folder`/<set>.parquet and returns counts of each.

    Solutions are taken from the beginning of a set, tasks that the model answers itself from its
    end. tasks: training tasks by set. A set whose file is there is not sampled again. `on_progress`
    is called with responses done, responses in all, and the set.
    """
    total = sum(settings.preferred.values()) + settings.group_size * sum(settings.rollouts.values())
    num_done = 0
    counts = {}
    for name, pool in tasks.items():

        def on_done(number: int, name: str = name) -> None:
            nonlocal num_done
            num_done += number
            on_progress(num_done, max(total, num_done), name)

        path = folder / f"{name}.parquet"
        if not path.is_file():
            with_solution = [task for task in pool if task.solution]
            solutions = collect_solutions(
                model,
                tokenizer,
                with_solution[: settings.preferred.get(name, 0)],
                settings,
                replace(context, stage=f"{context.stage}/preferred"),
                on_done,
            )
            responses = respond(
                model,
                tokenizer,
                pool[max(0, len(pool) - settings.rollouts.get(name, 0)) :],
                settings.group_size,
                settings.sampler,
                context,
                on_done,
            )
            write_rollouts(path, rollouts_to_table([*solutions, *responses]))
        table = read_rollouts(path)
        counts[name] = {
            "num_responses": table.num_rows,
            "num_verified": table["verdict"].to_pylist().count("correct"),
            "mean_steps": sum(table["num_steps"].to_pylist()) / max(table.num_rows, 1),
        }
    return counts


def collect_solutions(
    model: Policy,
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    settings: Traces,
    context: SampleContext,
    on_done: Callable[[int], None],
) -> list[Rollout]:
    """The worked solution of every task, with the step map of the model's own preferred order.
    Ranks share the tasks."""
    recorded = {
        **settings_columns(settings.sampler, model),
        "cache_mode": "none",
        "remasking": "preferred",
    }
    rollouts = []
    shard = tasks[distributed.rank_slice(len(tasks))]
    for start in range(0, len(shard), settings.batch_size):
        batch = shard[start : start + settings.batch_size]
        solutions = []
        for task in batch:
            solution = task_trajectory(task, tokenizer)
            solutions.append(
                complete_last_block(
                    solution, settings.block_size, tokenizer, model.family.attention
                )
            )
        ordered = order_by_preference(
            model, solutions, settings.block_size, settings.pick, settings.step_tokens
        )
        for task, trajectory in zip(batch, ordered, strict=True):
            rollout = context.rollout(
                task,
                0,
                trajectory,
                text=task.solution,
                verdict=Verdict(verdict="correct", parts={"correct": 1.0}),
                reward_parts={"correct": 1.0},
                settings=recorded,
            )
            rollouts.append(rollout)
        on_done(len(batch))
    on_done(len(tasks) - len(shard))
    return distributed.all_gather(rollouts)


@torch.no_grad()
def order_by_preference(
    model: Policy,
    trajectories: Sequence[Trajectory],
    block_size: int,
    pick: int,
    step_tokens: int,
) -> list[Trajectory]:
    """The trajectories with a `step_map` of steps of `step_tokens` tokens, never across the
    sampler's blocks of `block_size`. Raises NonFiniteError at the first logits that are not finite.
    """
    blocks = [sampling_blocks(t, model.family, block_size) for t in trajectories]
    selection = [np.zeros(len(b), dtype=np.int64) for b in blocks]
    round_number = 0
    while any((s == 0).any() for s in selection):
        round_number += 1
        plans = [_plan(s == 0, b, model) for s, b in zip(selection, blocks, strict=True)]
        views = build_views(
            trajectories, plans, block_size, model.family, model.architecture.mask_id
        )
        confidence = prediction_logits(model, views).softmax(-1).max(-1).values.cpu().numpy()
        if np.isnan(confidence).any():
            first = int(views.source[int(np.isnan(confidence).argmax())])
            raise nonfinite_error(
                model,
                f"preferred order of response {first} of the batch, selection {round_number}",
                views.input_ids.to(model.device),
                views.layout.to(model.device),
            )
        for i, (chosen, block) in enumerate(zip(selection, blocks, strict=True)):
            here = (views.source == i).numpy()
            tokens = views.token.numpy()[here]
            edges = _edges(trajectories[i], block_size, model.family)
            _select(chosen, block, tokens, confidence[here], edges, pick, round_number)
    ordered = []
    for trajectory, chosen, block in zip(trajectories, selection, blocks, strict=True):
        step_map = _merge_steps(chosen, block, step_tokens // pick)
        ordered.append(replace(trajectory, step_map=step_map, block_size=block_size))
    return ordered


def _plan(
    open_positions: npt.NDArray[np.bool_], blocks: npt.NDArray[np.int64], model: Policy
) -> Plan:
    """Predicts every open position: in one view if later blocks are invisible anyway, else in one
    view per block, later ones masked."""
    if model.family.attention == "block_causal":
        blocks = np.zeros_like(blocks)
    view = np.unique(blocks)[:, None]
    inside = np.where(open_positions, PREDICTED, VISIBLE)
    later = np.where(blocks == view, inside, MASKED)
    states = np.where(blocks < view, VISIBLE, later).astype(np.int8)
    return Plan(states=states, weights=np.ones(states.shape, dtype=np.float32))


def _edges(trajectory: Trajectory, block_size: int, family: Family) -> npt.NDArray[np.bool_]:
    """Which response tokens sampling commits alone before the rest of their block, bool [R]."""
    positions = len(trajectory.prompt_ids) + np.arange(len(trajectory.response_ids))
    return (positions % block_size == 0) & family.crosses_edges


def _select(
    chosen: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
    confidence: npt.NDArray[np.float32],
    edges: npt.NDArray[np.bool_],
    pick: int,
    round_number: int,
) -> None:
    """Marks the `pick` most confident open tokens of every block with the number of this selection;
    ties break by position. A token at an edge is marked alone, before the others of its block."""
    order = np.lexsort((tokens, -confidence))
    for block in np.unique(blocks[tokens]):
        inside = [t for t in tokens[order] if blocks[t] == block]
        alone = [t for t in inside if edges[t]]
        chosen[alone or inside[:pick]] = round_number


def _merge_steps(
    selection: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64], merge: int
) -> npt.NDArray[np.int32]:
    """1-based steps over the whole response: blocks in order, inside a block every `merge`
    neighbouring selections."""
    pairs = np.stack([blocks, (selection - 1) // merge])
    _, steps = np.unique(pairs, axis=1, return_inverse=True)
    return (steps.reshape(-1) + 1).astype(np.int32)
