"""Supervised fine-tuning on trajectories, and with it the training of the small default base.

Objectives: `random`, fresh noise at every visit, a level per block or per sequence; `semi_ar`, a
level per block, earlier blocks clean and later ones masked (for block attention the same as
`random`); `trace`, the views of each example's step map; `ar`, next-token prediction for shifted
families.

Departures from the paper: the loss is divided by all trainable tokens of the batch, the unmasked
included, so that with weights 1/t and t ~ U(0, 1) it is the evidence bound exactly; of the run of
end tokens that closes the last block `end_tokens` are learned (all, if it is null), further padding
does not exist.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tracerl import distributed
from tracerl.errors import ParamsError
from tracerl.models.families import FAMILIES, Attention, Family
from tracerl.models.masks import block_starts_after, first_live_start
from tracerl.models.policy import Policy, seed_dropout
from tracerl.models.routing import watch_routing
from tracerl.models.tokenizer import Tokenizer
from tracerl.objectives.likelihood import token_logprobs
from tracerl.objectives.losses import sft_loss
from tracerl.objectives.plans import Plan
from tracerl.objectives.supervised import make_plan, num_tokens
from tracerl.objectives.view_rows import num_layout_tokens
from tracerl.objectives.views import build_views, max_row_tokens, split_plan
from tracerl.seeds import generator_for, key_for
from tracerl.settings.training import Training
from tracerl.training.run_context import RunContext
from tracerl.training.trainer import StepStats, Trainer, pack_concatenated, pack_padded
from tracerl.types import Task, Trajectory


def task_trajectory(task: Task, tokenizer: Tokenizer) -> Trajectory:
    """A task's worked solution as a trajectory without a step map."""
    return solution_trajectory(task.prompt, task.solution, tokenizer)


def solution_trajectory(prompt_text: str, solution: str, tokenizer: Tokenizer) -> Trajectory:
    """A prompt in the checkpoint's chat form with its solution and the end token, as a trajectory
    without a step map."""
    prompt = tokenizer.prompt_ids(prompt_text)
    response = [*tokenizer.encode(solution), tokenizer.end_ids[0]]
    unknown = np.full(len(response), np.nan, dtype=np.float32)
    return Trajectory(
        prompt_ids=np.array(prompt, dtype=np.int32),
        response_ids=np.array(response, dtype=np.int32),
        step_map=np.zeros(len(response), dtype=np.int32),
        logprobs=unknown,
        filtered_logprobs=unknown,
        num_tokens=len(response),
        block_size=1,
        canvas_length=len(prompt) + len(response),
        stop_reason="end",
    )


def complete_last_block(
    trajectory: Trajectory,
    block_size: int,
    tokenizer: Tokenizer,
    attention: Attention,
    end_tokens: int | None = None,
) -> Trajectory:
    """The trajectory filled with padding to a whole block of sampling, the closing run of end and
    pad tokens made trainable.

    Blocks are those of the sampler: on the absolute grid, or counted from the response for full
    attention. end_tokens: how many of that run are, the first included; null for all. What a
    sampler wrote after its end token stays as it is and, unless it is more of those, untrained.
    """
    length = len(trajectory.prompt_ids) + len(trajectory.response_ids)
    first = first_live_start(len(trajectory.prompt_ids), block_size, attention)
    total = first + block_starts_after(length - first, block_size)
    fill = total - length
    padding = np.full(fill, tokenizer.pad_id, dtype=np.int32)
    last_step = np.full(fill, trajectory.num_steps + 1, dtype=np.int32)
    unknown = np.full(fill, np.nan, dtype=np.float32)
    ids = np.concatenate([trajectory.response_ids, padding])
    closing = (*tokenizer.end_ids, tokenizer.pad_id)
    limit = len(ids)
    if end_tokens is not None:
        limit = min(len(ids), trajectory.num_tokens - 1 + end_tokens)
    num_trainable = trajectory.num_tokens
    if trajectory.stop_reason == "end":
        while num_trainable < limit and ids[num_trainable] in closing:
            num_trainable += 1
    return replace(
        trajectory,
        response_ids=ids,
        step_map=np.concatenate([trajectory.step_map, last_step]),
        logprobs=np.concatenate([trajectory.logprobs, unknown]),
        filtered_logprobs=np.concatenate([trajectory.filtered_logprobs, unknown]),
        num_tokens=num_trainable,
        canvas_length=max(total, trajectory.canvas_length),
    )


@dataclass(frozen=True, kw_only=True)
class SftBatch:
    """The examples of one optimizer step, over all ranks."""

    trajectories: list[Trajectory]
    """Completed to whole blocks."""
    plans: list[Plan]
    """What is predicted in each of them."""
    block_size: int
    """The block size of this step, in tokens."""

    @property
    def num_trainable(self) -> int:
        """Trainable tokens, masked in this step or not: the denominator of the loss."""
        return sum(trajectory.num_tokens for trajectory in self.trajectories)


@dataclass(frozen=True, kw_only=True)
class SftMicroBatch:
    """Some examples of a step that go through the model together."""

    number: int
    """Number in the step, over all ranks; names the random stream of dropout."""
    trajectories: list[Trajectory]
    """Of the batch; an example whose rows are long may stand in several micro-batches."""
    plans: list[Plan]
    """The views of each of them that are predicted here."""
    counts: bool
    """False for a repeat that only gives this rank as many passes as the others have."""


def train_sft(
    model: Policy,
    tokenizer: Tokenizer,
    examples: dict[str, list[Trajectory]],
    settings: Training,
    context: RunContext,
) -> list[dict[str, Any]]:
    """Trains `model` in place on `examples` (task set -> trajectories) and returns its curve, one
    row per `save_every` steps.

    Resumes from the workspace. Ranks share the micro-batches of a step. Every step's examples,
    block size and noise are functions of (seed, stage, step). Raises ParamsError for the objective
    `ar` with a family that does not shift: it would read each token where the token itself is seen.
    """
    if settings.objective.needs_shift and not model.family.shift:
        raise ParamsError(
            "next-token prediction needs a family that shifts its logits",
            where=f"{context.stage}: objective {settings.objective.kind!r}",
            got=model.family.name,
            wanted=", ".join(f.name for f in FAMILIES.values() if f.shift),
        )
    workspace = context.workspace
    trainer = Trainer(model.train(), settings.optimizer, settings.num_steps, context.launch)
    curve: list[dict[str, Any]] = []
    recent: list[float] = []  # losses since the curve's last row
    if saved := workspace.load():
        trainer.load_state(saved[0])
        curve = saved[1]["curve"]
        recent = saved[1]["recent"]
    while trainer.num_steps < settings.num_steps:
        with watch_routing(model) as routing:
            stats = sft_step(trainer, tokenizer, examples, settings, context)
        recent.append(stats.loss)
        done = trainer.num_steps
        due = done % settings.save_every == 0 or done == settings.num_steps
        if due:
            row = {"loss": float(np.mean(recent)), "grad_norm": stats.grad_norm, "lr": stats.lr}
            curve.append({"step": done, **row, **routing.row()})
            recent = []
        if due or workspace.stopping():
            workspace.save(trainer.state(), {"curve": curve, "recent": recent})
        context.on_progress(done, settings.num_steps, f"loss {stats.loss:.3f}")
    trainer.sync_model()
    model.eval()
    return curve


def sft_step(
    trainer: Trainer[Policy],
    tokenizer: Tokenizer,
    examples: dict[str, list[Trajectory]],
    settings: Training,
    context: RunContext,
) -> StepStats:
    """One optimizer step; its loss is the mean over all trainable tokens of the batch."""
    model = trainer.model
    step = trainer.num_steps
    stream = generator_for(context.seed, context.stage, step)
    batch = draw_batch(examples, settings, tokenizer, model.family, stream)

    def loss(micro_batch: SftMicroBatch) -> tuple[torch.Tensor, dict[str, float]]:
        # What a micro-batch drops depends on its number in the step, not on the rank.
        key = key_for(context.seed, context.stage, "dropout", step, micro_batch.number)
        seed_dropout(model, key)
        return micro_batch_loss(model, batch, micro_batch, settings, tokenizer.mask_id), {}

    return trainer.step(split_batch(batch, settings, model.family), loss)


def draw_batch(
    examples: dict[str, list[Trajectory]],
    settings: Training,
    tokenizer: Tokenizer,
    family: Family,
    rng: np.random.Generator,
) -> SftBatch:
    """The examples of one optimizer step, drawn by the shares of `tasks`, their block size by those
    of `block_sizes`."""
    size_shares = np.array(list(settings.block_sizes.values()))
    block_size = int(rng.choice(list(settings.block_sizes), p=size_shares / size_shares.sum()))
    set_shares = np.array([settings.tasks[name] for name in examples])
    sets = rng.choice(len(examples), size=settings.batch_size, p=set_shares / set_shares.sum())
    pools = list(examples.values())
    trajectories = []
    for i in sets:
        example = pools[i][int(rng.integers(len(pools[i])))]
        trajectories.append(
            complete_last_block(
                example, block_size, tokenizer, family.attention, settings.end_tokens
            )
        )
    plans = []
    for trajectory in trajectories:
        plans.append(make_plan(settings.objective, trajectory, block_size, family, rng))
    return SftBatch(trajectories=trajectories, plans=plans, block_size=block_size)


def split_batch(batch: SftBatch, settings: Training, family: Family) -> list[SftMicroBatch]:
    """This rank's micro-batches of a step. The views of an example with more than
    `micro_batch_tokens` tokens are split."""
    limit = settings.micro_batch_tokens
    parts: list[tuple[Trajectory, Plan]] = []
    for trajectory, plan in zip(batch.trajectories, batch.plans, strict=True):
        for part in split_plan(trajectory, plan, batch.block_size, family, limit):
            parts.append((trajectory, part))
    lengths = []
    for trajectory, part in parts:
        lengths.append(num_layout_tokens(trajectory, part, batch.block_size, family))
    pack = pack_padded if settings.row_tokens is None else pack_concatenated
    packings = list(enumerate(pack(lengths, limit)))
    micro_batches = []
    for (number, indices), counts in distributed.shard_padded(packings):
        trajectories, plans = map(list, zip(*(parts[i] for i in indices), strict=True))
        micro_batches.append(
            SftMicroBatch(number=number, trajectories=trajectories, plans=plans, counts=counts)
        )
    return micro_batches


def micro_batch_loss(
    model: Policy,
    batch: SftBatch,
    micro_batch: SftMicroBatch,
    settings: Training,
    mask_id: int,
) -> torch.Tensor:
    """The micro-batch's part of the step's loss, a scalar."""
    views = build_views(
        micro_batch.trajectories,
        micro_batch.plans,
        batch.block_size,
        model.family,
        mask_id,
        settings.row_tokens or 0,
    )
    weights = views.weight.to(model.device) / batch.num_trainable * micro_batch.counts
    return sft_loss(token_logprobs(model, views, temperature=1.0), weights)


def longest_sft_row(settings: Training, family: Family) -> int:
    """The most tokens that have to go through the model in one pass: an example of `max_length`
    tokens with one view."""
    block_size, length = max(settings.block_sizes), settings.max_length
    every_view = num_tokens(settings.objective, family.attention, block_size, length)
    return min(every_view, max_row_tokens(family, block_size, 0, length))
