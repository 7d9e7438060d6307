"""Adaptation of an autoregressive checkpoint to masked prediction, in phases of growing blocks.

The recipe is that of models adapted with their shift kept (I-DLM's curriculum over block sizes,
Fast-dLLM v2's complementary masks): in blocks of one token such a model is the autoregressive one
exactly, so that the first phase is plain fine-tuning and each later one starts from a model that
can nearly do what is asked. All phases share one optimizer and one rate schedule.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.objectives.likelihood import token_logprobs_and_hits
from tracerl.objectives.losses import sft_loss
from tracerl.objectives.views import build_views
from tracerl.seeds import generator_for
from tracerl.settings.training import Adapt, Training
from tracerl.training.adaptation_examples import Examples, mean_tokens, num_example_tokens
from tracerl.training.run_context import RunContext
from tracerl.training.sft import SftBatch, SftMicroBatch, draw_batch, split_batch
from tracerl.training.trainer import StepStats, Trainer


def train_adaptation(
    model: Policy,
    tokenizer: Tokenizer,
    examples: Examples,
    adapt: Adapt,
    context: RunContext,
) -> list[dict[str, Any]]:
    """Trains `model` in place through all phases and returns its curve, one row per `save_every`
    steps and at the end of every phase.

    Resumes from the workspace. Ranks share the micro-batches of a step. A row has the phase's
    block size, the tokens of examples seen, and over the steps since the row before the mean
    cross-entropy of a predicted token in nats and the share of them that were the most probable.
    """
    phases = adapt.phase_trainings(mean_tokens(examples, adapt))
    ends = np.cumsum([phase.num_steps for phase in phases])
    total = int(ends[-1])
    workspace = context.workspace
    trainer = Trainer(model.train(), adapt.optimizer, total, context.launch)
    curve: list[dict[str, Any]] = []
    sums = _Sums()
    if saved := workspace.load():
        trainer.load_state(saved[0])
        curve = saved[1]["curve"]
        sums = _Sums(**saved[1]["sums"])
    while trainer.num_steps < total:
        phase = phases[int(np.searchsorted(ends, trainer.num_steps, side="right"))]
        stats = adaptation_step(trainer, tokenizer, examples, phase, context)
        sums = sums.add(stats.metrics)
        done = trainer.num_steps
        due = done % adapt.save_every == 0 or done in ends
        if due:
            curve.append({"step": done, **_curve_row(phase, sums, stats)})
            sums = _Sums(tokens=sums.tokens)
        if due or workspace.stopping():
            workspace.save(trainer.state(), {"curve": curve, "sums": vars(sums)})
        block_size = next(iter(phase.block_sizes))
        loss = stats.metrics["nll"] / max(1.0, stats.metrics["predicted"])
        context.on_progress(done, total, f"block {block_size}, loss {loss:.3f}")
    trainer.sync_model()
    model.eval()
    return curve


@dataclass(frozen=True)
class _Sums:
    """What was counted since the curve's last row; `tokens` since the start."""

    tokens: float = 0.0
    predicted: float = 0.0
    nll: float = 0.0
    hits: float = 0.0

    def add(self, metrics: Mapping[str, float]) -> "_Sums":
        """With the sums of a step."""
        return _Sums(**{name: value + metrics[name] for name, value in vars(self).items()})


def _curve_row(phase: Training, sums: _Sums, stats: StepStats) -> dict[str, Any]:
    predicted = max(1.0, sums.predicted)
    return {
        "block_size": next(iter(phase.block_sizes)),
        "tokens": int(sums.tokens),
        "loss": sums.nll / predicted,
        "accuracy": sums.hits / predicted,
        "grad_norm": stats.grad_norm,
        "lr": stats.lr,
    }


def adaptation_step(
    trainer: Trainer[Policy],
    tokenizer: Tokenizer,
    examples: Examples,
    phase: Training,
    context: RunContext,
) -> StepStats:
    """One optimizer step; its loss is the mean over all trainable tokens of the batch, its metrics
    are sums over it: tokens, predicted tokens, their cross-entropy and hits."""
    model = trainer.model
    stream = generator_for(context.seed, context.stage, trainer.num_steps)
    batch = draw_batch(examples, phase, tokenizer, model.family, stream)

    def loss(micro_batch: SftMicroBatch) -> tuple[torch.Tensor, dict[str, float]]:
        return adaptation_loss(model, batch, micro_batch, phase, tokenizer.mask_id)

    stats = trainer.step(split_batch(batch, phase, model.family), loss)
    tokens = float(sum(num_example_tokens(trajectory) for trajectory in batch.trajectories))
    return replace(stats, metrics={**stats.metrics, "tokens": tokens})


def adaptation_loss(
    model: Policy, batch: SftBatch, micro_batch: SftMicroBatch, phase: Training, mask_id: int
) -> tuple[torch.Tensor, dict[str, float]]:
    """The micro-batch's part of the step's loss, a scalar, and its part of the step's sums."""
    views = build_views(
        micro_batch.trajectories,
        micro_batch.plans,
        batch.block_size,
        model.family,
        mask_id,
        phase.row_tokens or 0,
    )
    logprobs, hits = token_logprobs_and_hits(model, views)
    weights = views.weight.to(model.device) / batch.num_trainable * micro_batch.counts
    sums = {
        "predicted": float(len(hits) * micro_batch.counts),
        "nll": float(-logprobs.detach().sum() * micro_batch.counts),
        "hits": float(hits.sum() * micro_batch.counts),
    }
    return sft_loss(logprobs, weights), sums
