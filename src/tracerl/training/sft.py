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

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tracerl import distributed
from tracerl.errors import DataError, ParamsError
from tracerl.models.families import FAMILIES, Attention
from tracerl.models.masks import block_starts_after, first_live_start
from tracerl.models.policy import Policy, seed_dropout
from tracerl.models.tokenizer import Tokenizer
from tracerl.objectives.likelihood import token_logprobs
from tracerl.objectives.losses import sft_loss
from tracerl.objectives.plans import (
    Masking,
    Plan,
    causal_plan,
    random_plan,
    semi_ar_plan,
    trace_plan,
)
from tracerl.objectives.views import build_views, num_layout_tokens
from tracerl.seeds import generator_for, key_for
from tracerl.settings.models import Launch
from tracerl.settings.training import Training
from tracerl.store.workspace import Workspace
from tracerl.training.trainer import Trainer, packed, together
from tracerl.types import Task, Trajectory


def worked_trajectory(task: Task, tokenizer: Tokenizer) -> Trajectory:
    """A task's worked solution as a trajectory without a step map."""
    prompt, response = (
        tokenizer.prompt_ids(task.prompt),
        [*tokenizer.encode(task.solution), tokenizer.end_ids[0]],
    )
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


def completed(
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
    closing = (*tokenizer.end_ids, tokenizer.pad_id)
    length = len(trajectory.prompt_ids) + len(trajectory.response_ids)
    first = first_live_start(len(trajectory.prompt_ids), block_size, attention)
    total = first + block_starts_after(length - first, block_size)
    fill = total - length
    ids = np.concatenate([trajectory.response_ids, np.full(fill, tokenizer.pad_id, dtype=np.int32)])
    steps = np.concatenate(
        [trajectory.step_map, np.full(fill, trajectory.num_steps + 1, dtype=np.int32)]
    )
    logprobs, filtered = (
        np.concatenate([values, np.full(fill, np.nan, dtype=np.float32)])
        for values in (trajectory.logprobs, trajectory.filtered_logprobs)
    )
    trainable = trajectory.num_tokens
    most = len(ids) if end_tokens is None else min(len(ids), trajectory.num_tokens - 1 + end_tokens)
    while trajectory.stop_reason == "end" and trainable < most and ids[trainable] in closing:
        trainable += 1
    canvas = max(total, trajectory.canvas_length)
    return replace(
        trajectory,
        response_ids=ids,
        step_map=steps,
        logprobs=logprobs,
        filtered_logprobs=filtered,
        num_tokens=trainable,
        canvas_length=canvas,
    )


def train_sft(
    model: Policy,
    tokenizer: Tokenizer,
    examples: dict[str, list[Trajectory]],
    settings: Training,
    seed: int,
    stage: str,
    workspace: Workspace,
    on_step: Callable[[int, int, str], None],
    launch: Launch | None = None,
) -> list[dict[str, Any]]:
    """Trains `model` in place on `examples` (task set -> trajectories) and returns its curve, one
    row per `save_every` steps.

    Resumes from the workspace. Ranks share the micro-batches of a step. Every step's examples,
    block size and noise are functions of (seed, stage, step). Raises ParamsError for the objective
    `ar` with a family that does not shift: it would read each token where the token itself is seen.
    """
    if settings.objective == "ar" and not model.family.shift:
        raise ParamsError(
            "next-token prediction needs a family that shifts its logits",
            where=f"{stage}: objective 'ar'",
            got=model.family.name,
            wanted=", ".join(f.name for f in FAMILIES.values() if f.shift),
        )
    trainer = Trainer(model.train(), settings.optimizer, settings.num_steps, launch)
    curve: list[dict[str, Any]] = []
    recent: list[float] = []  # losses since the curve's last row
    if saved := workspace.load():
        trainer.load_state(saved[0])
        curve, recent = saved[1]["curve"], saved[1]["recent"]
    while trainer.num_steps < settings.num_steps:
        step = (seed, stage, trainer.num_steps)
        stats = trainer.step(_micro_batches(trainer.model, tokenizer, examples, settings, step))
        recent.append(stats.loss)
        done = trainer.num_steps
        due = done % settings.save_every == 0 or done == settings.num_steps
        if due:
            curve.append(
                {
                    "step": done,
                    "loss": float(np.mean(recent)),
                    "grad_norm": stats.grad_norm,
                    "lr": stats.lr,
                }
            )
            recent = []
        if due or workspace.stopping():
            workspace.save(trainer.state(), {"curve": curve, "recent": recent})
        on_step(done, settings.num_steps, f"loss {stats.loss:.3f}")
    trainer.follow()
    model.eval()
    return curve


def _micro_batches(
    model: Policy,
    tokenizer: Tokenizer,
    examples: dict[str, list[Trajectory]],
    settings: Training,
    step: tuple[int, str, int],
) -> list[Callable[[], torch.Tensor]]:
    """This rank's losses of one optimizer step; their sum over ranks is the mean over all trainable
    tokens of its batch.

    step: seed coordinates. What a micro-batch drops depends on its number in the step, not on the
    rank.
    """
    rng = generator_for(*step)
    sizes = np.array(list(settings.block_sizes.values()))
    block_size = int(rng.choice(list(settings.block_sizes), p=sizes / sizes.sum()))
    shares = np.array([settings.tasks[name] for name in examples])
    sets = rng.choice(len(examples), size=settings.batch_size, p=shares / shares.sum())
    pools = list(examples.values())
    attention = model.family.attention
    batch = [
        completed(
            pools[i][int(rng.integers(len(pools[i])))],
            block_size,
            tokenizer,
            attention,
            settings.end_tokens,
        )
        for i in sets
    ]
    plans = [_plan(trajectory, block_size, model, settings, rng) for trajectory in batch]
    num_trainable = sum(trajectory.num_tokens for trajectory in batch)
    lengths = [
        num_layout_tokens(t, p, block_size, model.family) for t, p in zip(batch, plans, strict=True)
    ]

    def loss_of(item: tuple[int, list[int]], counts: bool) -> Callable[[], torch.Tensor]:
        number, indices = item

        def loss() -> torch.Tensor:
            seed_dropout(model, key_for(step[0], step[1], "dropout", step[2], number))
            chosen, shown = [batch[i] for i in indices], [plans[i] for i in indices]
            views = build_views(
                chosen, shown, block_size, model.family, tokenizer.mask_id, settings.row_tokens or 0
            )
            return sft_loss(
                token_logprobs(model, views, temperature=1.0),
                views.weight.to(model.device) / num_trainable * counts,
            )

        return loss

    pack = packed if settings.row_tokens is None else together
    return [
        loss_of(*item)
        for item in distributed.shard_padded(
            list(enumerate(pack(lengths, settings.micro_batch_tokens)))
        )
    ]


def _plan(
    trajectory: Trajectory,
    block_size: int,
    model: Policy,
    settings: Training,
    rng: np.random.Generator,
) -> Plan:
    if settings.objective == "trace":
        return trace_plan(trajectory, block_size, model.family, settings.shrink)
    if settings.objective == "ar":
        return causal_plan(trajectory)
    noisy = semi_ar_plan if settings.objective == "semi_ar" else random_plan
    masking = Masking(
        block_size=block_size,
        family=model.family,
        noise=settings.noise,
        weighting=settings.weighting,
    )
    return noisy(trajectory, masking, rng)


def check_lengths(
    examples: dict[str, list[Trajectory]], max_length: int, stage: str
) -> tuple[dict[str, list[Trajectory]], dict[str, int]]:
    """Leaves out examples longer than `max_length` tokens and counts them per task set.

    Raises DataError if a set has no example left.
    """
    kept = {
        name: [t for t in pool if len(t.prompt_ids) + len(t.response_ids) <= max_length]
        for name, pool in examples.items()
    }
    dropped = {name: len(examples[name]) - len(kept[name]) for name in examples}
    empty = [name for name, pool in kept.items() if not pool]
    if empty:
        raise DataError(
            "a task set gives no training example",
            where=f"{stage}: {', '.join(empty)}",
            got={
                name: f"{len(examples[name])} examples, {dropped[name]} longer than {max_length}"
                for name in empty
            },
            wanted="at least one with a solution",
            do="raise max_length, or add solutions or traces to the set",
        )
    return kept, dropped
