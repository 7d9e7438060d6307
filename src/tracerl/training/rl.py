"""Reinforcement learning by any method of objectives/methods.py, TraceRL above all: on the model's
own unmasking trajectories.

One iteration: pick tasks, sample groups of responses, verify, keep informative groups, score their
steps if there are process rewards, write the rollout file (training/collect.py); advantages, with
the value model's update where there is one (training/credit.py); old log-probabilities over the
method's views and optimizer steps on the clipped objective (training/policy_update.py); save the
state, append the metrics. A killed run continues after its last saved iteration and repeats it
exactly. A round may have phases (training/phases.py): an iteration is one of its phase's, whose
name and accuracy stand in its row.

Departures from TraceRL's paper and public code: views lie on the absolute block grid that the
sampler used (the public code's start at the response); the denominators of the loss are counted
over the whole optimizer step; the KL is a sum over the same weighted tokens as the policy term.
TraceRL under a confidence order is not an unbiased estimator of the policy gradient: the order is
not scored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tracerl.evaluation.metrics import summarise
from tracerl.models.checkpoint import load_for_training, save_checkpoint
from tracerl.models.policy import Policy, fit_order_module
from tracerl.models.routing import watch_routing
from tracerl.models.tokenizer import Tokenizer
from tracerl.models.value import ValueModel, load_value_model, save_value_model
from tracerl.rollouts.task_pools import fitting_tasks, held_out_tasks, training_tasks
from tracerl.sampling.orders import needs_module
from tracerl.seeds import generator_for
from tracerl.settings.models import Compute
from tracerl.settings.rounds import RlRound
from tracerl.training.collect import Collector, Judging
from tracerl.training.credit import AdvantageEstimator
from tracerl.training.critic import Critic
from tracerl.training.phases import next_phase
from tracerl.training.policy_update import Batch, PolicyUpdate
from tracerl.training.run_context import RunContext
from tracerl.training.trainer import Trainer
from tracerl.types import Rollout, Task

ROLLOUTS = "rollouts"

Curves = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Models:
    """What a round trains and needs."""

    policy: Policy
    """Trained in place; whole on every rank."""
    tokenizer: Tokenizer
    """Of the policy."""
    reference: Policy | None = None
    """The initial policy, needed for kl_to "initial" and "synced" (where it is overwritten)."""
    value_model: ValueModel | None = None
    """Trained beside the policy for advantages "gae"."""

    @property
    def transformers(self) -> list[Policy]:
        """All that go through forward passes."""
        models = [self.policy]
        if self.reference is not None:
            models.append(self.reference)
        if self.value_model is not None:
            models.append(self.value_model.transformer)
        return models

    def save(self, directory: Path, final_dir: Path) -> None:
        """Writes the policy, and in its directory the value model, as a checkpoint. final_dir:
        where the directory will be published."""
        save_checkpoint(self.policy, self.tokenizer, directory, final_dir)
        if self.value_model is not None:
            save_value_model(self.value_model, directory)


def load_models(
    directory: Path, compute: Compute, settings: RlRound, seed: int, stage: str
) -> Models:
    """The models of a round that starts from a checkpoint directory, with fresh adapters and a
    fresh order module where the round needs them and the checkpoint has none."""

    def load_initial_policy() -> tuple[Policy, Tokenizer]:
        policy, tokenizer = load_for_training(
            directory, compute, settings.lora, generator_for(seed, stage, "lora")
        )
        if any(needs_module(phase.sampler.order) for phase in settings.phase_rounds):
            fit_order_module(policy, generator_for(seed, stage, "order"))
        return policy, tokenizer

    policy, tokenizer = load_initial_policy()
    reference = load_initial_policy()[0] if settings.kl_to != "iteration" else None
    value_model = None
    if settings.value is not None:
        if settings.value.start == "parent":
            value_model = load_value_model(policy, directory)
        else:
            value_model = ValueModel(policy)
    return Models(policy=policy, tokenizer=tokenizer, reference=reference, value_model=value_model)


@dataclass(frozen=True, kw_only=True)
class TaskPools:
    """Tasks by set."""

    train: dict[str, list[Task]]
    """What is sampled for training."""
    held_out: dict[str, list[Task]]
    """What the held-out accuracy is measured on."""
    num_dropped: dict[str, int] = field(default_factory=dict)
    """Tasks of each set whose prompt is too long for a sampler of the round."""


def training_sets(settings: RlRound) -> list[str]:
    """The task sets that the phases of a round draw from, each once."""
    names: dict[str, None] = {}
    for phase in settings.phase_rounds:
        names |= dict.fromkeys(phase.tasks)
    return list(names)


def held_out_sets(settings: RlRound) -> list[str]:
    """The task sets that a round's held-out accuracy is measured on."""
    return list(settings.held_out.tasks or settings.tasks)


def load_pools(
    files: Mapping[str, Path], tokenizer: Tokenizer, settings: RlRound, stage: str
) -> TaskPools:
    """The tasks of a round whose prompts fit its samplers. files: Parquet file of each set.

    Raises DataError if no prompt of a set fits, or a measured set has no held-out problem.
    """
    samplers = [settings.sampler, *(phase.sampler for phase in settings.phase_rounds)]
    tasks, num_dropped = fitting_tasks(files, tokenizer, samplers, stage)
    held_out = {}
    for name in held_out_sets(settings):
        held_out[name] = held_out_tasks(tasks[name], f"{stage}: {name}")
    return TaskPools(
        train={name: training_tasks(tasks[name]) for name in training_sets(settings)},
        held_out=held_out,
        num_dropped=num_dropped,
    )


@dataclass(kw_only=True)
class _Progress:
    """What a round remembers from iteration to iteration, beside the tensors."""

    curves: Curves = field(default_factory=lambda: {"train": [], "held_out": []})
    """The curves `train` (a row per iteration) and `held_out`."""
    iteration: int = 0
    """The last finished iteration."""
    synced: int = 0
    """The policy's optimizer steps when the reference was last overwritten."""


@dataclass(frozen=True, kw_only=True)
class _Round:
    """Everything that an iteration of a round, or of one of its phases, needs."""

    models: Models
    settings: RlRound
    judging: Judging
    context: RunContext
    trainer: Trainer[Policy]
    critic: Critic | None
    phase: str | None = None

    @property
    def collector(self) -> Collector:
        return Collector(
            model=self.models.policy,
            tokenizer=self.models.tokenizer,
            settings=self.settings,
            judging=self.judging,
            seed=self.context.seed,
            stage=self.context.stage,
            folder=self.context.workspace.directory / ROLLOUTS,
        )

    @property
    def estimator(self) -> AdvantageEstimator:
        return AdvantageEstimator(
            settings=self.settings,
            family=self.models.policy.family,
            tokenizer=self.models.tokenizer,
            seed=self.context.seed,
            stage=self.context.stage,
            critic=self.critic,
        )

    @property
    def policy_update(self) -> PolicyUpdate:
        return PolicyUpdate(
            trainer=self.trainer,
            settings=self.settings,
            mask_id=self.models.tokenizer.mask_id,
            seed=self.context.seed,
            stage=self.context.stage,
            reference=self.models.reference,
        )


def train_rl(
    models: Models, pools: TaskPools, settings: RlRound, judging: Judging, context: RunContext
) -> Curves:
    """Trains the policy in place; returns the curves `train` (a row per iteration) and `held_out`.
    Rollout files lie in the workspace. Raises TrainingError when too few groups are informative.
    """
    num_steps = settings.iterations * settings.updates * settings.epochs
    round_ = _Round(
        models=models,
        settings=settings,
        judging=judging,
        context=context,
        trainer=Trainer(models.policy, settings.optimizer, num_steps, context.launch),
        critic=_make_critic(models, settings, context),
    )
    progress = _resume(round_)
    curves = progress.curves
    round_.trainer.sync_model()
    while progress.iteration < settings.iterations:
        if progress.iteration == 0 and not curves["held_out"]:
            curves["held_out"] += round_.collector.held_out(pools.held_out, 0)
        progress.iteration += 1
        _sync_reference(round_, progress)
        row = _iterate(_in_phase(round_, curves["train"]), pools, progress.iteration)
        curves["train"].append(row)
        is_last = progress.iteration == settings.iterations
        if progress.iteration % settings.held_out.every == 0 or is_last:
            curves["held_out"] += round_.collector.held_out(pools.held_out, progress.iteration)
        is_due = progress.iteration % settings.save_every == 0 or is_last
        if is_due or context.workspace.stopping():
            _save(round_, progress)
        context.on_progress(progress.iteration, settings.iterations, _describe(row))
    if round_.critic is not None:
        round_.critic.trainer.sync_model()
    return curves


def _iterate(round_: _Round, pools: TaskPools, iteration: int) -> dict[str, Any]:
    """One iteration; returns its row of the training curve."""
    context = round_.context
    collection = round_.collector.collect(pools.train, iteration)
    advantages, value_metrics = round_.estimator.estimate(collection.groups, iteration)
    stream = generator_for(context.seed, context.stage, iteration, "updates")
    order = stream.permutation(len(collection.groups))
    batches = []
    for part in np.array_split(order, round_.settings.updates):
        if len(part):
            batch = make_batch(round_.estimator, collection.groups, advantages, part.tolist())
            batches.append(batch)
    with watch_routing(round_.models.policy) as routing:
        update_metrics = round_.policy_update.update(batches, iteration)
    round_.trainer.sync_model()
    summary = summarise(collection.rows, 1, context.seed)
    row: dict[str, Any] = {"iteration": iteration}
    if round_.phase is not None:
        row |= {"phase": round_.phase, "accuracy": summary["accuracy"]}
    row |= {**collection.metrics, **update_metrics, **routing.row(), **value_metrics}
    for name in ("tokens_per_step", "mean_length", "truncation_rate", "empty_rate"):
        row[name] = summary[name]
    return row


def make_batch(
    estimator: AdvantageEstimator,
    groups: Sequence[Sequence[Rollout]],
    advantages: Sequence[Sequence[np.ndarray]],
    chosen: Sequence[int],
) -> Batch:
    """The responses of the chosen groups, with their advantages."""
    batch = Batch(trajectories=[], advantages=[])
    for i in chosen:
        batch.trajectories.extend(estimator.trainable(rollout) for rollout in groups[i])
        batch.advantages.extend(advantages[i])
    return batch


def _make_critic(models: Models, settings: RlRound, context: RunContext) -> Critic | None:
    if models.value_model is None or settings.value is None:
        return None
    value = settings.value
    num_steps = -(-settings.iterations // value.every) * value.updates
    trainer = Trainer(models.value_model, value.optimizer, num_steps, context.launch)
    return Critic(settings=value, trainer=trainer)


def _in_phase(round_: _Round, rows: Sequence[Mapping[str, Any]]) -> _Round:
    """The round as it is in the iteration after `rows` of the training curve."""
    if round_.settings.phases is None:
        return round_
    phase = next_phase(round_.settings.phases, rows)
    settings = round_.settings.phase_rounds[round_.settings.phases.index(phase)]
    return replace(round_, settings=settings, phase=phase.name)


def _sync_reference(round_: _Round, progress: _Progress) -> None:
    """Overwrites a moving reference with the policy, every `sync_every` optimizer steps."""
    reference = round_.models.reference
    if reference is None or round_.settings.sync_every is None:
        return
    if round_.trainer.num_steps - progress.synced >= round_.settings.sync_every:
        reference.load_state_dict(round_.models.policy.state_dict())
        progress.synced = round_.trainer.num_steps


def _save(round_: _Round, progress: _Progress) -> None:
    """Saves everything that a killed round needs to go on."""
    tensors = round_.trainer.state()
    if round_.critic is not None:
        for name, tensor in round_.critic.trainer.state().items():
            tensors[f"value.{name}"] = tensor
    reference = round_.models.reference
    if reference is not None and round_.settings.kl_to == "synced":
        for name, parameter in reference.named_parameters():
            tensors[f"reference.{name}"] = parameter
    round_.context.workspace.save(tensors, asdict(progress))


def _resume(round_: _Round) -> _Progress:
    """Reads what `_save` saved, if it did."""
    saved = round_.context.workspace.load()
    if saved is None:
        return _Progress()
    tensors, progress = saved
    round_.trainer.load_state(tensors)
    if round_.critic is not None:
        round_.critic.trainer.load_state(_with_prefix("value", tensors))
    reference = round_.models.reference
    if reference is not None and round_.settings.kl_to == "synced":
        # A tied head is not saved twice.
        reference.load_state_dict(_with_prefix("reference", tensors), strict=False)
    return _Progress(**progress)


def _describe(row: Mapping[str, Any]) -> str:
    """An iteration's row in a few words, for a progress bar."""
    phase = f"{row['phase']}, " if "phase" in row else ""
    return f"{phase}reward {row['reward']:.2f}"


def _with_prefix(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors whose name starts with a prefix, without it."""
    part = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix + "."):
            part[name.removeprefix(prefix + ".")] = tensor
    return part
