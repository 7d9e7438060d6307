"""Reinforcement learning by any method of objectives/methods.py, TraceRL above all: on the model's
own unmasking trajectories.

One iteration: pick tasks, sample groups of responses, verify, keep informative groups, score their
steps if there are process rewards, write the rollout file, values and the value model's update
where there is one, old log-probabilities over the method's views, optimizer steps on the clipped
objective, save the state, append the metrics. A killed run continues after its last saved iteration
and repeats it exactly. A round may have phases (training/phases.py): an iteration is one of its
phase's, whose name and accuracy stand in its row.

A response whose verdict is undecided is stored and counted, and that is all: it is neither paid nor
charged, so it leaves its group before the filter, the advantages and the training.

Old and new log-probabilities are taken over the same views in the same micro-batches, so that the
ratio starts at 1 to rounding. The first optimizer step of an iteration is made with the policy that
sampled: its own pass gives the old ones, and there is no other. Views that are drawn are drawn anew
for every epoch; their draw is a function of (seed, stage, iteration, epoch, response).

Departures from TraceRL's paper and public code: views lie on the absolute block grid the sampler
used (the public code's start at the response); the denominators of the loss are counted over the
whole optimizer step; the KL is a sum over the same weighted tokens as the policy term. TraceRL
under a confidence order is not an unbiased estimator of the policy gradient: the order is not
scored.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from tracerl import distributed
from tracerl.errors import TrainingError
from tracerl.evaluation.metrics import summarise
from tracerl.models.checkpoint import policy_hash
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.models.value import ValueModel
from tracerl.objectives.advantages import group_advantages, keeps_group, outcome_rewards
from tracerl.objectives.losses import (
    denominator,
    kl_penalty,
    policy_gain,
    policy_loss,
    response_mean,
)
from tracerl.objectives.methods import (
    METHODS,
    Method,
    Units,
    estimates,
    given,
    num_units,
    scores,
    unit_weights,
    units_of,
)
from tracerl.objectives.plans import Plan, trace_steps
from tracerl.objectives.views import Views, build_views, row_bundles
from tracerl.rewards.verify.parts import is_graded
from tracerl.rollouts.responses import SampleContext, judged_table, respond
from tracerl.seeds import generator_for
from tracerl.settings.models import Launch
from tracerl.settings.training import Critic, RlRound
from tracerl.store.files import write_rollouts
from tracerl.store.rules import require_rules
from tracerl.store.workspace import Workspace
from tracerl.training.critic import explained, score, token_advantages, update
from tracerl.training.phases import next_phase
from tracerl.training.process import ProcessSide, advantage_to_go, judged_groups, placed
from tracerl.training.trainer import Trainer, packed
from tracerl.types import Rollout, Task, Trajectory

ROLLOUTS = "rollouts"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """Responses to train on: trajectories with the advantage of each response token, float64 [R]
    per trajectory."""

    trajectories: list[Trajectory]
    advantages: list[npt.NDArray[np.float64]]


@dataclass(frozen=True)
class MicroBatch:
    """Views of some trajectories and their units, with everything about them that the update leaves
    constant, all [U].

    old_logprobs: None where the policy will not have moved when they are needed.
    reference_logprobs: None where they are the old ones.
    old_order: log-probability of each unit's place in the order of commitment, if the method scores
    it and the policy will have moved.
    counts: false for a repeated one that only gives this rank as many passes as the others have.
    """

    views: Views
    units: Units
    weights: torch.Tensor
    advantages: torch.Tensor
    old_logprobs: torch.Tensor | None
    reference_logprobs: torch.Tensor | None
    old_order: torch.Tensor | None
    counts: bool


@dataclass(frozen=True)
class ValueSide:
    """A round's value model with its trainer."""

    settings: Critic
    trainer: Trainer[ValueModel]


def train_rl(
    model: Policy,
    reference: Policy | None,
    value_model: ValueModel | None,
    tokenizer: Tokenizer,
    train_tasks: dict[str, list[Task]],
    test_tasks: dict[str, list[Task]],
    settings: RlRound,
    truncated_is_wrong: bool,
    seed: int,
    stage: str,
    workspace: Workspace,
    on_iteration: Callable[[int, int, str], None],
    launch: Launch | None = None,
    process: ProcessSide | None = None,
    judges: tuple[str, ...] = (),
) -> dict[str, list[dict[str, Any]]]:
    """Trains `model` in place; returns the curves `train` (a row per iteration) and `held_out`.
    Rollout files lie in the workspace.

    reference: the initial policy, needed for kl_to "initial" and "synced" (where it is
    overwritten). value_model: trained beside the policy for advantages "gae". process: the judge of
    steps, if the round has process rewards. judges: names of all that are asked beside the
    verdicts. Tasks by set; raises TrainingError when too few groups are informative.
    """
    trainer = Trainer(
        model, settings.optimizer, settings.iterations * settings.updates * settings.epochs, launch
    )
    value = None
    if value_model is not None and settings.value is not None:
        updates = -(-settings.iterations // settings.value.every) * settings.value.updates
        value = ValueSide(
            settings.value, Trainer(value_model, settings.value.optimizer, updates, launch)
        )
    curves: dict[str, list[dict[str, Any]]] = {"train": [], "held_out": []}
    iteration, synced = 0, 0
    if saved := workspace.load():
        trainer.load_state(saved[0])
        curves, iteration, synced = (
            saved[1]["curves"],
            saved[1]["iteration"],
            saved[1].get("synced", 0),
        )
        if value is not None:
            value.trainer.load_state(_under("value", saved[0]))
        if reference is not None and settings.kl_to == "synced":
            reference.load_state_dict(
                _under("reference", saved[0]), strict=False
            )  # a tied head is not saved twice
    rounds = _Round(
        model,
        trainer,
        reference,
        value,
        tokenizer,
        settings,
        truncated_is_wrong,
        seed,
        stage,
        workspace,
        process,
        judges,
    )
    trainer.follow()
    while iteration < settings.iterations:
        if iteration == 0 and not curves["held_out"]:
            curves["held_out"] += rounds.held_out(test_tasks, 0)
        iteration += 1
        if (
            reference is not None
            and settings.sync_every is not None
            and trainer.num_steps - synced >= settings.sync_every
        ):
            reference.load_state_dict(model.state_dict())
            synced = trainer.num_steps
        row = rounds.next_stretch(curves["train"]).iterate(train_tasks, iteration)
        curves["train"].append(row)
        if iteration % settings.held_out.every == 0 or iteration == settings.iterations:
            curves["held_out"] += rounds.held_out(test_tasks, iteration)
        if (
            iteration % settings.save_every == 0
            or iteration == settings.iterations
            or workspace.stopping()
        ):
            workspace.save(
                rounds.state(), {"curves": curves, "iteration": iteration, "synced": synced}
            )
        on_iteration(iteration, settings.iterations, _said(row))
    if value is not None:
        value.trainer.follow()
    return curves


@dataclass(frozen=True)
class _Round:
    """What stays the same through a round, or one of its phases. model: the policy, whole on every
    rank. trainer: of the policy.

    judges: names of those that are asked for parts of the reward or for steps.
    """

    model: Policy
    trainer: Trainer[Policy]
    reference: Policy | None
    value: ValueSide | None
    tokenizer: Tokenizer
    settings: RlRound
    truncated_is_wrong: bool
    seed: int
    stage: str
    workspace: Workspace
    process: ProcessSide | None = None
    judges: tuple[str, ...] = ()
    phase: str | None = None

    def next_stretch(self, rows: Sequence[Mapping[str, Any]]) -> "_Round":
        """The round as it is in the iteration after `rows` of the training curve."""
        if self.settings.phases is None:
            return self
        phase = next_phase(self.settings.phases, rows)
        return replace(self, settings=self.settings.during(phase), phase=phase.name)

    def iterate(self, tasks: dict[str, list[Task]], iteration: int) -> dict[str, Any]:
        """One iteration; returns its metrics."""
        groups = self._sample_groups(tasks, iteration)
        kept = [_decided(group) for group in groups if self._keeps(group)][: self.settings.groups]
        judged: dict[str, float] = {}
        if self.process is not None:
            kept, judged = judged_groups(
                self.process, self.settings.advantages, self.tokenizer, kept
            )
        trained = {rollout.rollout_id: rollout for group in kept for rollout in group}
        rollouts = [
            trained.get(rollout.rollout_id, rollout) for group in groups for rollout in group
        ]
        table = judged_table(rollouts, self.judges)
        self._store(f"iter-{iteration:05d}", table)
        undecided = sum(rollout.verdict == "undecided" for rollout in rollouts)
        if len(kept) < self.settings.min_groups:
            raise TrainingError(
                "too few groups of responses say which response is better",
                where=f"{self.stage}, iteration {iteration}",
                got=f"{len(kept)} of {len(groups)} sampled groups, mean reward {np.mean([r.reward for r in rollouts]):.3f}, "
                f"{undecided} of {len(rollouts)} responses undecided",
                wanted=f"at least min_groups = {self.settings.min_groups} with a pass rate inside {self.settings.pass_rate}",
                do="use easier or harder tasks, a larger group_size or a higher max_sampled_groups; every rollout so far is kept",
            )
        order = generator_for(self.seed, self.stage, iteration, "updates").permutation(len(kept))
        advantages, figures = self._advantages(kept, iteration)
        batches = [
            self._batch(kept, advantages, part)
            for part in np.array_split(order, self.settings.updates)
            if len(part)
        ]
        again = self.method.draws
        unmoved = (
            again or self.settings.epochs == 1
        )  # whether the first batch's views serve once, before any update
        prepared = [
            self._micro_batches(batch, iteration, 0, unmoved and number == 0)
            for number, batch in enumerate(batches)
        ]
        for epoch in range(1, self.settings.epochs):
            prepared += (
                [self._micro_batches(batch, iteration, epoch) for batch in batches]
                if again
                else prepared[: len(batches)]
            )
        updates = [self._update(micro_batches) for micro_batches in prepared]
        self.trainer.follow()
        summary = summarise(table, 1, self.seed)
        return {
            "iteration": iteration,
            **(
                {} if self.phase is None else {"phase": self.phase, "accuracy": summary["accuracy"]}
            ),
            "reward": float(np.mean([r.reward for r in rollouts])),
            "sampled_groups": len(groups),
            "kept_groups": len(kept),
            **self._dropped(groups),
            "undecided": undecided,
            **judged,
            **{name: float(np.mean([u[name] for u in updates])) for name in updates[0]},
            **figures,
            **{
                name: summary[name]
                for name in ("tokens_per_step", "mean_length", "truncation_rate")
            },
        }

    def held_out(self, tasks: dict[str, list[Task]], iteration: int) -> list[dict[str, Any]]:
        """Accuracy on the first held-out problems of each set, per remasking mode; the responses
        are stored as well."""
        rows, policy = [], policy_hash(self.model)
        chosen = [
            task for pool in tasks.values() for task in pool[: self.settings.held_out.num_problems]
        ]
        for remasking in self.settings.held_out.remasking:
            name = f"held-out-{remasking}"
            context = SampleContext(
                stage=f"{self.stage}/{name}",
                iteration=iteration,
                policy_hash=policy,
                seed=self.seed,
                truncated_is_wrong=self.truncated_is_wrong,
            )
            sampler = self.settings.sampler.model_copy(update={"remasking": remasking})
            table = judged_table(
                respond(self.model.eval(), self.tokenizer, chosen, 1, sampler, context)
            )
            self._store(f"{name}-{iteration:05d}", table)
            summary = summarise(table, self.settings.held_out.bootstrap, self.seed)
            # How programs end is known only where some ran: a curve's rows have the same columns.
            kept = {key: value for key, value in summary.items() if not key.startswith("program_")}
            rows.append({"iteration": iteration, "remasking": remasking, **kept})
        return rows

    def _keeps(self, group: Sequence[Rollout]) -> bool:
        """Whether a sampled group says which response is better."""
        return keeps_group(
            _rewards(_decided(group)),
            self.settings.pass_rate,
            is_graded(self.settings.reward, group[0].task),
        )

    def _dropped(self, groups: Sequence[Sequence[Rollout]]) -> dict[str, int]:
        """Sampled groups that teach nothing, by why: those above the range of pass rates (or all
        equal), those below it, and those with fewer than two decided responses."""
        dropped = [_decided(group) for group in groups if not self._keeps(group)]
        rates = [
            np.mean([rollout.verdict == "correct" for rollout in group])
            for group in dropped
            if len(group) > 1
        ]
        hard = int(sum(rate < self.settings.pass_rate[0] for rate in rates))
        return {
            "too_easy_groups": len(rates) - hard,
            "too_hard_groups": hard,
            "undecided_groups": len(dropped) - len(rates),
        }

    def _store(self, name: str, table: pa.Table) -> None:
        """Writes rollouts and holds the file to the store's rules before anything is learned from
        it."""
        path = self.workspace.directory / ROLLOUTS / f"{name}.parquet"
        write_rollouts(path, table)
        if distributed.is_first():
            require_rules(path, "rollouts", self.model.architecture.vocab_size)

    def _sample_groups(self, tasks: dict[str, list[Task]], iteration: int) -> list[list[Rollout]]:
        """Groups of responses, further prompts being drawn until enough groups are informative or
        the cap is reached."""
        settings = self.settings
        pools = {name: tasks[name] for name in settings.tasks}
        queue = _draw_tasks(
            pools,
            settings.tasks,
            settings.max_sampled_groups,
            generator_for(self.seed, self.stage, iteration, "tasks"),
        )
        context = SampleContext(
            stage=self.stage,
            iteration=iteration,
            policy_hash=policy_hash(self.model),
            seed=self.seed,
            truncated_is_wrong=self.truncated_is_wrong,
            reward=settings.reward,
        )
        groups: list[list[Rollout]] = []
        missing = settings.groups
        while missing > 0 and len(groups) < len(queue):
            # At least a quarter of a batch: a sampler's forward costs much the same for a handful
            # of rows.
            wave = queue[len(groups) : len(groups) + max(missing, settings.groups // 4)]
            rollouts = respond(
                self.model.eval(),
                self.tokenizer,
                wave,
                settings.group_size,
                settings.sampler,
                context,
            )
            groups += [
                rollouts[i : i + settings.group_size]
                for i in range(0, len(rollouts), settings.group_size)
            ]
            missing = settings.groups - sum(self._keeps(group) for group in groups)
        return groups

    def state(self) -> dict[str, torch.Tensor]:
        """Everything a killed round needs to go on: the policy's trainer, the value model's, and a
        reference that moves."""
        tensors = self.trainer.state()
        if self.value is not None:
            tensors |= {
                f"value.{name}": tensor for name, tensor in self.value.trainer.state().items()
            }
        if self.reference is not None and self.settings.kl_to == "synced":
            tensors |= {
                f"reference.{name}": tensor for name, tensor in self.reference.named_parameters()
            }
        return tensors

    @property
    def method(self) -> Method:
        return METHODS[self.settings.method]

    def _advantages(
        self, kept: Sequence[Sequence[Rollout]], iteration: int
    ) -> tuple[list[list[Floats]], dict[str, float]]:
        """Advantage of each response token of each rollout, float64 [R], and the value model's
        figures before its update."""
        if self.value is None:
            kind = self.settings.advantages
            by_group = [
                self.method.weigh(group_advantages(kind, _rewards(group))) for group in kept
            ]
            return [
                [self._spread(r, a) for r, a in zip(g, given, strict=True)]
                for g, given in zip(kept, by_group, strict=True)
            ], {}
        critic, trainer = self.value.settings, self.value.trainer
        trajectories = [self._trainable(rollout) for group in kept for rollout in group]
        outcomes = [
            reward for group in kept for reward in group_advantages("group", _rewards(group))
        ]
        owners = [rollout for group in kept for rollout in group]
        rewards = [self._paid(*item) for item in zip(owners, trajectories, outcomes, strict=True)]
        order = generator_for(self.seed, self.stage, iteration, "value updates").permutation(
            len(trajectories)
        )
        parts = [
            score(
                trainer.model,
                trajectories,
                part.tolist(),
                rewards,
                self.settings,
                critic,
                self.tokenizer.mask_id,
            )
            for part in np.array_split(order, critic.updates)
            if len(part)
        ]
        everything = [scored for part in parts for scored in part]
        tables = iter(token_advantages(everything, trajectories))
        figures = explained(everything)
        if (iteration - 1) % critic.every == 0:
            update(trainer, parts, critic.clip)
        return [[next(tables) for _ in group] for group in kept], figures

    def _spread(self, rollout: Rollout, advantage: float) -> Floats:
        """Advantage of each response token, float64 [R]: the outcome's, and from each token on what
        its steps are paid."""
        table = np.full(len(rollout.trajectory.response_ids), advantage)
        if rollout.chunks is not None:
            steps = self._steps(trajectory := self._trainable(rollout))
            table[: trajectory.num_tokens] += advantage_to_go(rollout, steps)
        return table

    def _paid(self, rollout: Rollout, trajectory: Trajectory, outcome: float) -> Floats:
        """Reward of each trainable token, float64 [num_tokens]: the outcome on the last step,
        process rewards where their chunks end."""
        steps = self._steps(trajectory)
        return outcome_rewards(outcome, steps) + placed(rollout, steps)

    def _steps(self, trajectory: Trajectory) -> npt.NDArray[np.int64]:
        return trace_steps(
            trajectory, self.settings.train_block_size, self.model.family, self.settings.shrink
        )

    def _trainable(self, rollout: Rollout) -> Trajectory:
        """The rollout's trajectory with up to `num_pad` of the end tokens that follow the first one
        made trainable."""
        trajectory, end_ids = rollout.trajectory, self.tokenizer.end_ids
        last = trajectory.num_tokens
        while last < min(
            trajectory.num_tokens + self.settings.num_pad, len(trajectory.response_ids)
        ):
            if trajectory.response_ids[last] not in end_ids:
                break
            last += 1
        return replace(trajectory, num_tokens=last)

    def _batch(
        self,
        kept: Sequence[Sequence[Rollout]],
        advantages: list[list[Floats]],
        part: npt.NDArray[np.int64],
    ) -> Batch:
        rollouts = [
            (rollout, table)
            for i in part
            for rollout, table in zip(kept[i], advantages[i], strict=True)
        ]
        return Batch(
            [self._trainable(rollout) for rollout, _ in rollouts], [table for _, table in rollouts]
        )

    def _micro_batches(
        self, batch: Batch, iteration: int, epoch: int, unmoved: bool = False
    ) -> list[MicroBatch]:
        """Views, units, weights and old log-probabilities of one optimizer step, in the
        micro-batches that its gradient will use.

        unmoved: whether that step is made with the policy as it is now, so that its own pass will
        give the old log-probabilities.
        """
        settings, family, size, method = (
            self.settings,
            self.model.family,
            self.settings.train_block_size,
            self.method,
        )
        plans = [self._plan(trajectory, iteration, epoch) for trajectory in batch.trajectories]
        together = settings.group_tokens or 0
        bundles, lengths = row_bundles(batch.trajectories, plans, size, family, together)
        tokens = sum(
            num_units(method, p, t) for p, t in zip(plans, batch.trajectories, strict=True)
        )
        divisor = denominator(
            settings.reduction, len(batch.trajectories), tokens, settings.sampler.max_new_tokens
        )
        prepared, wide = [], torch.promote_types(self.model.dtype, torch.float32)
        for packing, counts in distributed.shard_padded(
            packed(lengths, settings.micro_batch_tokens)
        ):
            indices = [i for bundle in packing for i in bundles[bundle]]
            chosen, shown = [batch.trajectories[i] for i in indices], [plans[i] for i in indices]
            views = build_views(
                chosen, shown, size, family, self.tokenizer.mask_id, group_tokens=together
            )
            units = units_of(method, views, [trajectory.num_tokens for trajectory in chosen])
            weights = (
                unit_weights(settings.reduction, units, divisor).to(self.model.device) * counts
            )
            starts = torch.tensor(np.cumsum([0, *(len(t.response_ids) for t in chosen)])[:-1])
            table = torch.from_numpy(np.concatenate([batch.advantages[i] for i in indices]))
            advantages = table[starts[units.source] + units.token].to(self.model.device, wide)
            units = units.to(self.model.device)
            with torch.no_grad():
                old, order = (
                    (None, None)
                    if unmoved
                    else self._likelihoods(self.trainer.model.eval(), views, units, advantages)
                )
                reference = (
                    None
                    if self.reference is None
                    else self._likelihoods(self.reference, views, units, advantages)[0]
                )
            prepared.append(
                MicroBatch(views, units, weights, advantages, old, reference, order, counts)
            )
        return prepared

    def _likelihoods(
        self, model: Policy, views: Views, units: Units, advantages: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-likelihood of every unit, and of its place in the order of commitment if the method
        scores that, both [U]."""
        logprobs, order = scores(self.method, model, views, self.settings)
        return estimates(self.method, logprobs, units, views, advantages, self.settings), order

    def _plan(self, trajectory: Trajectory, iteration: int, epoch: int) -> Plan:
        """The method's views of a trajectory. Their noise is a function of the trajectory's
        content, not of its place in a batch."""
        key = hashlib.blake2b(
            trajectory.prompt_ids.tobytes() + b"|" + trajectory.response_ids.tobytes(),
            digest_size=8,
        ).hexdigest()
        generator = generator_for(self.seed, self.stage, iteration, epoch, "views", key)
        return self.method.plan(trajectory, self.settings, self.model.family, generator)

    def _update(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        """One optimizer step (in evaluation mode: no dropout in any RL pass), with its figures."""
        figures = {
            "kl": 0.0,
            "clip_fraction": 0.0,
            **({"order_clip_fraction": 0.0} if self.method.ordered else {}),
        }

        def loss_of(batch: MicroBatch) -> Callable[[], torch.Tensor]:
            return lambda: self._loss(batch, figures)

        stats = self.trainer.step([loss_of(batch) for batch in micro_batches])
        own = sum(len(batch.weights) for batch in micro_batches if batch.counts)
        figures = distributed.all_reduce_sum({**figures, "count": own})
        count = max(figures.pop("count"), 1)
        return {
            "loss": stats.loss,
            "grad_norm": stats.grad_norm,
            "lr": stats.lr,
            **{k: v / count for k, v in figures.items()},
        }

    def _loss(self, batch: MicroBatch, figures: dict[str, float]) -> torch.Tensor:
        """The loss of a micro-batch; adds up its figures."""
        settings, units = self.settings, batch.units
        new, order = self._likelihoods(
            self.trainer.model.eval(), batch.views, units, batch.advantages
        )
        old = new.detach() if batch.old_logprobs is None else batch.old_logprobs
        reference = old if batch.reference_logprobs is None else batch.reference_logprobs
        difference = new.detach() - old
        figures["kl"] += batch.counts * float((torch.exp(difference) - 1 - difference).sum())
        figures["clip_fraction"] += batch.counts * self._clipped(difference, settings.clip, units)
        gain = policy_gain(
            settings.ratio, new, old, batch.advantages, settings.clip, units.source, units.weight
        )
        penalty = kl_penalty(settings.kl, new * units.size, reference * units.size) / units.size
        loss = policy_loss(gain, penalty, batch.weights, settings.kl_weight)
        if order is None:
            return loss
        clip, weight = given(settings.order_clip), given(settings.order_weight)
        old = order.detach() if batch.old_order is None else batch.old_order
        figures["order_clip_fraction"] += batch.counts * self._clipped(
            order.detach() - old, clip, units
        )
        gain = policy_gain(
            settings.ratio, order, old, batch.advantages, clip, units.source, units.weight
        )
        return loss - weight * (batch.weights * gain).sum()

    def _clipped(self, difference: torch.Tensor, clip: tuple[float, float], units: Units) -> float:
        """How many units have a ratio outside the clip."""
        if self.settings.ratio == "none":
            return 0.0
        if self.settings.ratio == "sequence":
            difference = response_mean(difference, units.source, units.weight)
        return float(((difference < np.log1p(-clip[0])) | (difference > np.log1p(clip[1]))).sum())


def _said(row: Mapping[str, Any]) -> str:
    """An iteration's row in a few words, for a progress bar."""
    return (f"{row['phase']}, " if "phase" in row else "") + f"reward {row['reward']:.2f}"


def _under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors whose name starts with a prefix, without it."""
    return {
        name.removeprefix(prefix + "."): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix + ".")
    }


def _decided(group: Sequence[Rollout]) -> list[Rollout]:
    return [rollout for rollout in group if rollout.verdict != "undecided"]


def _rewards(group: Sequence[Rollout]) -> npt.NDArray[np.float64]:
    return np.array([rollout.reward for rollout in group], dtype=np.float64)


def _draw_tasks(
    tasks: dict[str, list[Task]], shares: dict[str, float], count: int, rng: np.random.Generator
) -> list[Task]:
    """`count` tasks, sets drawn by share, no task twice (fewer if the sets are smaller)."""
    orders = {name: list(rng.permutation(len(pool))) for name, pool in tasks.items()}
    drawn: list[Task] = []
    while len(drawn) < count and any(orders.values()):
        names = [name for name in tasks if orders[name]]
        weights = np.array([shares[name] for name in names])
        name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        drawn.append(tasks[name][orders[name].pop()])
    return drawn
