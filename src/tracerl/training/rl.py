"""TraceRL: reinforcement learning on the model's own unmasking trajectories.

One iteration: pick tasks, sample groups of responses, verify, write the rollout file, keep informative groups, old log-probabilities over
the views, optimizer steps on the clipped objective, save the state, append the metrics. A killed run continues after its last saved
iteration and repeats it exactly.

Departures from the paper and its public code: views lie on the absolute block grid the sampler used (the public code's start at the
response); the denominators of the loss are counted over the whole optimizer step; the KL is a sum over the same weighted tokens as the
policy term. TraceRL under a confidence order is not an unbiased estimator of the policy gradient: the order is not scored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tracerl.config import RlRound
from tracerl.errors import TrainingError
from tracerl.evaluation.metrics import summarise
from tracerl.evaluation.responses import Occasion, respond
from tracerl.models.checkpoint import policy_hash
from tracerl.models.tokenizer import Tokenizer
from tracerl.models.transformer import Transformer
from tracerl.objectives.advantages import group_advantages, keeps_group
from tracerl.objectives.likelihood import token_logprobs
from tracerl.objectives.losses import denominator, policy_loss, token_weights
from tracerl.objectives.views import build_views, num_layout_tokens, trace_plan
from tracerl.seeds import generator_for
from tracerl.store.files import rollout_table, write_rollouts
from tracerl.store.workspace import Workspace
from tracerl.training.trainer import Trainer, packed
from tracerl.types import Rollout, Task, Trajectory, Views

ROLLOUTS = "rollouts"


@dataclass(frozen=True)
class Batch:
    """Responses to train on: trajectories with the advantage of each, float64 [num_trajectories]."""

    trajectories: list[Trajectory]
    advantages: npt.NDArray[np.float64]


@dataclass(frozen=True)
class MicroBatch:
    """Views of some trajectories with everything about them that the update leaves constant, all float32 [T]."""

    views: Views
    weights: torch.Tensor
    advantages: torch.Tensor
    old_logprobs: torch.Tensor
    reference_logprobs: torch.Tensor


def train_rl(
    model: Transformer,
    reference: Transformer | None,
    tokenizer: Tokenizer,
    train_tasks: dict[str, list[Task]],
    test_tasks: dict[str, list[Task]],
    settings: RlRound,
    truncated_is_wrong: bool,
    seed: int,
    stage: str,
    workspace: Workspace,
    on_iteration: Callable[[int, int, str], None],
) -> dict[str, list[dict[str, Any]]]:
    """Trains `model` in place; returns the curves `train` (a row per iteration) and `held_out`. Rollout files lie in the workspace.

    reference: the initial policy, needed for kl_to "initial". Tasks by set; raises TrainingError when too few groups are informative.
    """
    trainer = Trainer(model, settings.optimizer, settings.iterations * settings.updates)
    curves: dict[str, list[dict[str, Any]]] = {"train": [], "held_out": []}
    iteration = 0
    if saved := workspace.load():
        trainer.load_state(saved[0])
        curves, iteration = saved[1]["curves"], saved[1]["iteration"]
    rounds = _Round(model, reference, tokenizer, settings, truncated_is_wrong, seed, stage, workspace)
    while iteration < settings.iterations:
        if iteration == 0 and not curves["held_out"]:
            curves["held_out"] += rounds.held_out(test_tasks, 0)
        iteration += 1
        row = rounds.iterate(trainer, train_tasks, iteration)
        curves["train"].append(row)
        if iteration % settings.held_out.every == 0 or iteration == settings.iterations:
            curves["held_out"] += rounds.held_out(test_tasks, iteration)
        if iteration % settings.save_every == 0 or iteration == settings.iterations:
            workspace.save(trainer.state(), {"curves": curves, "iteration": iteration})
        on_iteration(iteration, settings.iterations, f"reward {row['reward']:.2f}")
    return curves


@dataclass(frozen=True)
class _Round:
    """What stays the same through a round."""

    model: Transformer
    reference: Transformer | None
    tokenizer: Tokenizer
    settings: RlRound
    truncated_is_wrong: bool
    seed: int
    stage: str
    workspace: Workspace

    def iterate(self, trainer: Trainer, tasks: dict[str, list[Task]], iteration: int) -> dict[str, Any]:
        """One iteration; returns its metrics."""
        groups = self._sample_groups(tasks, iteration)
        rollouts = [rollout for group in groups for rollout in group]
        table = rollout_table(rollouts)
        write_rollouts(self.workspace.directory / ROLLOUTS / f"iter-{iteration:05d}.parquet", table)
        kept = [group for group in groups if keeps_group(_rewards(group), self.settings.pass_rate)][: self.settings.groups]
        if len(kept) < self.settings.min_groups:
            raise TrainingError(
                "too few groups of responses say which response is better", where=f"{self.stage}, iteration {iteration}",
                got=f"{len(kept)} of {len(groups)} sampled groups, mean reward {np.mean([r.reward for r in rollouts]):.3f}",
                wanted=f"at least min_groups = {self.settings.min_groups} with a pass rate inside {self.settings.pass_rate}",
                do="use easier or harder tasks, a larger group_size or a higher max_sampled_groups; every rollout so far is kept",
            )  # fmt: skip
        order = generator_for(self.seed, self.stage, iteration, "updates").permutation(len(kept))
        batches = [_batch([kept[i] for i in part], self.settings) for part in np.array_split(order, self.settings.updates) if len(part)]
        prepared = [self._micro_batches(batch) for batch in batches]
        figures = [self._update(trainer, micro_batches) for micro_batches in prepared]
        summary = summarise(table, 1, self.seed)
        return {
            "iteration": iteration,
            "reward": float(np.mean([r.reward for r in rollouts])),
            "sampled_groups": len(groups),
            "kept_groups": len(kept),
            **{name: float(np.mean([f[name] for f in figures])) for name in figures[0]},
            **{name: summary[name] for name in ("tokens_per_step", "mean_length", "truncation_rate")},
        }

    def held_out(self, tasks: dict[str, list[Task]], iteration: int) -> list[dict[str, Any]]:
        """Accuracy on the first held-out problems of each set, per remasking mode; the responses are stored as well."""
        rows = []
        for remasking in self.settings.held_out.remasking:
            name = f"held-out-{remasking}"
            occasion = Occasion(f"{self.stage}/{name}", iteration, policy_hash(self.model), self.seed, self.truncated_is_wrong)
            chosen = [task for pool in tasks.values() for task in pool[: self.settings.held_out.num_problems]]
            sampler = self.settings.sampler.model_copy(update={"remasking": remasking})
            table = rollout_table(respond(self.model.eval(), self.tokenizer, chosen, 1, sampler, occasion))
            write_rollouts(self.workspace.directory / ROLLOUTS / f"{name}-{iteration:05d}.parquet", table)
            rows.append({"iteration": iteration, "remasking": remasking, **summarise(table, self.settings.held_out.bootstrap, self.seed)})
        return rows

    def _sample_groups(self, tasks: dict[str, list[Task]], iteration: int) -> list[list[Rollout]]:
        """Groups of responses, further prompts being drawn until enough groups are informative or the cap is reached."""
        settings = self.settings
        queue = _draw_tasks(tasks, settings.tasks, settings.max_sampled_groups, generator_for(self.seed, self.stage, iteration, "tasks"))
        occasion = Occasion(self.stage, iteration, policy_hash(self.model), self.seed, self.truncated_is_wrong, settings.reward)
        groups: list[list[Rollout]] = []
        missing = settings.groups
        while missing > 0 and len(groups) < len(queue):
            # At least a quarter of a batch: a sampler's forward costs much the same for a handful of rows.
            wave = queue[len(groups) : len(groups) + max(missing, settings.groups // 4)]
            rollouts = respond(self.model.eval(), self.tokenizer, wave, settings.group_size, settings.sampler, occasion)
            groups += [rollouts[i : i + settings.group_size] for i in range(0, len(rollouts), settings.group_size)]
            missing = settings.groups - sum(keeps_group(_rewards(group), settings.pass_rate) for group in groups)
        return groups

    def _micro_batches(self, batch: Batch) -> list[MicroBatch]:
        """Views, weights and old log-probabilities of one optimizer step, in the micro-batches that its gradient will use."""
        settings, family, size = self.settings, self.model.family, self.settings.train_block_size
        plans = [trace_plan(trajectory, size, family, settings.shrink) for trajectory in batch.trajectories]
        lengths = [num_layout_tokens(t, p, size, family) for t, p in zip(batch.trajectories, plans, strict=True)]
        tokens = sum(trajectory.num_tokens for trajectory in batch.trajectories)
        divisor = denominator(settings.reduction, len(batch.trajectories), tokens, settings.sampler.max_new_tokens)
        prepared = []
        for indices in packed(lengths, settings.micro_batch_tokens):
            chosen = [batch.trajectories[i] for i in indices]
            views = build_views(chosen, [plans[i] for i in indices], size, family, self.tokenizer.mask_id)
            with torch.no_grad():
                old = token_logprobs(self.model.eval(), views, settings.sampler.temperature)
                initial = token_logprobs(self.reference, views, settings.sampler.temperature) if self.reference is not None else old
            advantages = torch.from_numpy(batch.advantages[indices]).to(old.dtype)[views.source].to(old.device)
            prepared.append(
                MicroBatch(views, token_weights(settings.reduction, views.group, divisor).to(old.device), advantages, old, initial)
            )
        return prepared

    def _update(self, trainer: Trainer, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        """One optimizer step (in evaluation mode: no dropout in any RL pass), with its figures."""
        settings, kl, clipped, count = self.settings, 0.0, 0.0, 0

        def loss_of(batch: MicroBatch) -> Callable[[], torch.Tensor]:
            def loss() -> torch.Tensor:
                nonlocal kl, clipped, count
                logprobs = token_logprobs(self.model, batch.views, settings.sampler.temperature)
                difference = logprobs.detach() - batch.old_logprobs
                kl += float((torch.exp(difference) - 1 - difference).sum())
                clipped += float(((difference < np.log1p(-settings.clip[0])) | (difference > np.log1p(settings.clip[1]))).sum())
                count += len(difference)
                return policy_loss(logprobs, batch.old_logprobs, batch.reference_logprobs, batch.advantages, batch.weights,
                                   settings.clip, settings.kl, settings.kl_weight)  # fmt: skip

            return loss

        stats = trainer.step([loss_of(batch) for batch in micro_batches])
        return {"loss": stats.loss, "grad_norm": stats.grad_norm, "lr": stats.lr, "kl": kl / count, "clip_fraction": clipped / count}


def _rewards(group: Sequence[Rollout]) -> npt.NDArray[np.float64]:
    return np.array([rollout.reward for rollout in group], dtype=np.float64)


def _batch(groups: Sequence[Sequence[Rollout]], settings: RlRound) -> Batch:
    trajectories = [rollout.trajectory for group in groups for rollout in group]
    return Batch(trajectories, np.concatenate([group_advantages(settings.advantages, _rewards(group)) for group in groups]))


def _draw_tasks(tasks: dict[str, list[Task]], shares: dict[str, float], count: int, rng: np.random.Generator) -> list[Task]:
    """`count` tasks, sets drawn by share, no task twice (fewer if the sets are smaller)."""
    orders = {name: list(rng.permutation(len(pool))) for name, pool in tasks.items()}
    drawn: list[Task] = []
    while len(drawn) < count and any(orders.values()):
        names = [name for name in tasks if orders[name]]
        weights = np.array([shares[name] for name in names])
        name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        drawn.append(tasks[name][orders[name].pop()])
    return drawn
