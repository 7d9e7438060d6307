"""From tasks to groups of judged rollouts: sampling, the filter, process rewards, and the store.

A response whose verdict is undecided is stored and counted, and that is all: it is neither paid nor
charged, so it leaves its group before the filter, the advantages and the training.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracerl import distributed
from tracerl.errors import TrainingError
from tracerl.evaluation.metrics import summarise
from tracerl.models.checkpoint import policy_hash
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.objectives.advantages import keeps_group
from tracerl.rewards.verify.parts import is_graded
from tracerl.rollouts.responses import SampleContext, respond, rollouts_to_table
from tracerl.seeds import generator_for
from tracerl.settings.rounds import RlRound
from tracerl.store.files import write_rollouts
from tracerl.store.rules import require_rules
from tracerl.training.process_rewards import ProcessRewarder
from tracerl.types import Rollout, Task

Groups = list[list[Rollout]]


@dataclass(frozen=True, kw_only=True)
class Judging:
    """How the responses of a round are judged."""

    truncated_is_wrong: bool
    """Whether a response that stops at the length limit is wrong whatever it says."""
    rewarder: ProcessRewarder | None = None
    """Pays the steps of responses, if the round has process rewards."""
    judges: tuple[str, ...] = ()
    """Names of the judges that are consulted for parts of the reward or for steps."""


@dataclass(frozen=True, kw_only=True)
class Collection:
    """What one iteration sampled."""

    groups: Groups
    """The groups that are trained on, without undecided responses."""
    rows: pa.Table
    """Every response, as stored."""
    metrics: dict[str, Any]
    """Mean reward, and groups and responses counted by what became of them."""


@dataclass(frozen=True, kw_only=True)
class Collector:
    """Samples, judges and stores the responses of a round."""

    model: Policy
    """The policy, whole on every rank."""
    tokenizer: Tokenizer
    """Of the policy."""
    settings: RlRound
    """The round, or the phase of it."""
    judging: Judging
    """How responses are judged."""
    seed: int
    """The run's random seed."""
    stage: str
    """The stage; names rollouts and random streams."""
    folder: Path
    """Where the Parquet files of rollouts go."""

    def collect(self, pools: dict[str, list[Task]], iteration: int) -> Collection:
        """One iteration's groups. pools: training tasks by set. Raises TrainingError when too few
        groups say which response is better."""
        groups = self._sample_groups(pools, iteration)
        informative = [drop_undecided(group) for group in groups if self.is_informative(group)]
        informative = informative[: self.settings.groups]
        process_metrics: dict[str, float] = {}
        rewarder = self.judging.rewarder
        if rewarder is not None:
            informative, process_metrics = rewarder.pay(
                informative, self.settings.advantages, self.tokenizer
            )
        paid = {rollout.rollout_id: rollout for rollout in _flat(informative)}
        rollouts = [paid.get(rollout.rollout_id, rollout) for rollout in _flat(groups)]
        rows = rollouts_to_table(rollouts, self.judging.judges)
        self._store(f"iter-{iteration:05d}", rows)
        self._require_groups(informative, groups, iteration)
        metrics = {
            "reward": float(np.mean(_rewards(rollouts))),
            "sampled_groups": len(groups),
            "kept_groups": len(informative),
            **self.count_uninformative(groups),
            "undecided": _num_undecided(rollouts),
            **process_metrics,
        }
        return Collection(groups=informative, rows=rows, metrics=metrics)

    def held_out(self, pools: dict[str, list[Task]], iteration: int) -> list[dict[str, Any]]:
        """Accuracy on the first held-out problems of each set, a row per mode; the responses
        are stored as well."""
        settings = self.settings.held_out
        tasks: list[Task] = []
        for pool in pools.values():
            tasks += pool[: settings.num_problems]
        policy = policy_hash(self.model)
        curve_rows = []
        for mode_name, mode in settings.modes.items():
            name = f"held-out-{mode_name}"
            context = SampleContext(
                stage=f"{self.stage}/{name}",
                iteration=iteration,
                policy_hash=policy,
                seed=self.seed,
                truncated_is_wrong=self.judging.truncated_is_wrong,
            )
            sampler = mode.apply(self.settings.sampler)
            num_samples = mode.samples(settings.num_samples)
            rollouts = respond(
                self.model.eval(), self.tokenizer, tasks, num_samples, sampler, context
            )
            table = rollouts_to_table(rollouts)
            self._store(f"{name}-{iteration:05d}", table)
            summary = summarise(table, settings.bootstrap, self.seed)
            # How programs end is known only where some ran: a curve's rows have the same columns.
            row = {"iteration": iteration, "remasking": mode_name}
            for key, value in summary.items():
                if not key.startswith("program_"):
                    row[key] = value
            curve_rows.append(row)
        return curve_rows

    def is_informative(self, group: Sequence[Rollout]) -> bool:
        """Whether a sampled group says which response is better."""
        return keeps_group(
            _rewards(drop_undecided(group)),
            self.settings.pass_rate,
            is_graded(self.settings.reward, group[0].task),
        )

    def count_uninformative(self, groups: Sequence[Sequence[Rollout]]) -> dict[str, int]:
        """Sampled groups that teach nothing, by why: those above the range of pass rates (or all
        equal), those below it, and those with fewer than two decided responses."""
        num_easy = num_hard = num_undecided = 0
        for group in groups:
            if self.is_informative(group):
                continue
            decided = drop_undecided(group)
            if len(decided) < 2:
                num_undecided += 1
            elif np.mean([r.verdict == "correct" for r in decided]) < self.settings.pass_rate[0]:
                num_hard += 1
            else:
                num_easy += 1
        return {
            "too_easy_groups": num_easy,
            "too_hard_groups": num_hard,
            "undecided_groups": num_undecided,
        }

    def _require_groups(self, informative: Groups, groups: Groups, iteration: int) -> None:
        settings = self.settings
        if len(informative) >= settings.min_groups:
            return
        rollouts = _flat(groups)
        mean = np.mean(_rewards(rollouts))
        raise TrainingError(
            "too few groups of responses say which response is better",
            where=f"{self.stage}, iteration {iteration}",
            got=f"{len(informative)} of {len(groups)} sampled groups, mean reward {mean:.3f}, "
            f"{_num_undecided(rollouts)} of {len(rollouts)} responses undecided",
            wanted=f"at least min_groups = {settings.min_groups} with a pass rate inside "
            f"{settings.pass_rate}",
            do="use easier or harder tasks, a larger group_size or a higher max_sampled_groups; "
            f"the rollouts so far lie in {self.folder}, and `tracerl sql` and `tracerl trace` show "
            "them, marked unfinished",
        )

    def _store(self, name: str, table: pa.Table) -> None:
        """Writes rollouts and checks the file against the store's rules before anything is learned
        from it."""
        path = self.folder / f"{name}.parquet"
        write_rollouts(path, table)
        if distributed.is_first():
            require_rules(path, "rollouts", self.model.architecture.vocab_size)

    def _sample_groups(self, pools: dict[str, list[Task]], iteration: int) -> Groups:
        """Groups of responses, further prompts being drawn until enough groups are informative or
        the cap is reached."""
        settings = self.settings
        queue = draw_tasks(
            {name: pools[name] for name in settings.tasks},
            settings.tasks,
            settings.max_sampled_groups,
            generator_for(self.seed, self.stage, iteration, "tasks"),
        )
        context = SampleContext(
            stage=self.stage,
            iteration=iteration,
            policy_hash=policy_hash(self.model),
            seed=self.seed,
            truncated_is_wrong=self.judging.truncated_is_wrong,
            reward=settings.reward,
        )
        groups: Groups = []
        missing = settings.groups
        size = settings.group_size
        while missing > 0 and len(groups) < len(queue):
            # At least a quarter of a batch: a sampler's forward costs much the same for a handful
            # of rows.
            wave = queue[len(groups) : len(groups) + max(missing, settings.groups // 4)]
            rollouts = respond(
                self.model.eval(), self.tokenizer, wave, size, settings.sampler, context
            )
            groups += [rollouts[i : i + size] for i in range(0, len(rollouts), size)]
            missing = settings.groups - sum(map(self.is_informative, groups))
        return groups


def draw_tasks(
    pools: dict[str, list[Task]], shares: dict[str, float], count: int, rng: np.random.Generator
) -> list[Task]:
    """`count` tasks, sets drawn by share, no task twice (fewer if the sets are smaller)."""
    orders = {name: list(rng.permutation(len(pool))) for name, pool in pools.items()}
    tasks: list[Task] = []
    while len(tasks) < count and any(orders.values()):
        names = [name for name in pools if orders[name]]
        weights = np.array([shares[name] for name in names])
        name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        tasks.append(pools[name][orders[name].pop()])
    return tasks


def drop_undecided(group: Sequence[Rollout]) -> list[Rollout]:
    """The group without the responses whose verdict is "undecided"."""
    return [rollout for rollout in group if rollout.verdict != "undecided"]


def _flat(groups: Groups) -> list[Rollout]:
    """The responses of all groups, group by group."""
    return list(itertools.chain.from_iterable(groups))


def _num_undecided(rollouts: Sequence[Rollout]) -> int:
    return sum(rollout.verdict == "undecided" for rollout in rollouts)


def _rewards(group: Sequence[Rollout]) -> npt.NDArray[np.float64]:
    return np.array([rollout.reward for rollout in group], dtype=np.float64)
