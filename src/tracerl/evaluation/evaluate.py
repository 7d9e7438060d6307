"""Evaluate a policy: sample held-out problems in each decoding mode, store every response, return
the metrics. A killed evaluation goes on from its last saved batch."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracerl.evaluation.metrics import summarise
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.rollouts.responses import SampleContext, respond, rollouts_to_table
from tracerl.settings.sampling import Sampler
from tracerl.store.files import read_rollouts, write_rollouts
from tracerl.types import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """What is sampled, and how.

    Example: problems {"sums": 200 tasks}, modes {"static": ..., "dynamic": ...}, num_samples
    {"sums": {"static": 1, "dynamic": 3}} are 800 responses.
    """

    stage: str
    """Name of the stage; a response's stage is "<stage>/<mode>"."""

    problems: Mapping[str, Sequence[Task]]
    """Task set -> its problems."""

    modes: Mapping[str, Sampler]
    """Name of a mode -> settings of the sampler. Every problem is sampled in every mode."""

    num_samples: Mapping[str, Mapping[str, int]]
    """Task set -> name of a mode -> responses per problem."""

    batch_size: int
    """Problems whose responses are sampled, judged and saved together."""

    policy_hash: str
    """Hash of the weights."""

    seed: int
    """The run's seed."""

    truncated_is_wrong: bool
    """Whether a response that was cut at the length limit is wrong whatever it holds."""

    num_resamples: int
    """Resamples of the bootstrap over problems."""

    @property
    def kinds(self) -> set[str]:
        """Kinds of the problems: which verifiers judge them."""
        tasks = itertools.chain.from_iterable(self.problems.values())
        return {task.kind for task in tasks}

    @property
    def num_responses(self) -> int:
        """Responses in all."""
        total = 0
        for task_set, tasks in self.problems.items():
            total += len(tasks) * sum(self.num_samples[task_set].values())
        return total


def evaluate(
    model: "Policy | PreTrainedModel",
    tokenizer: Tokenizer,
    plan: EvaluationPlan,
    folder: Path,
    on_progress: Callable[[int, int, str], None],
) -> list[dict[str, Any]]:
    """One row of metrics for each task set and mode: `benchmark`, `remasking` (the mode),
    `block_size` and the metrics of `summarise`.

    Every response is saved in `folder`, a file per batch; a batch whose file is there is not
    sampled again. `on_progress` is called with responses done, responses in all, and what is being
    sampled.
    """
    rows = []
    num_done = 0
    for task_set, tasks in plan.problems.items():
        for mode, sampler in plan.modes.items():
            context = SampleContext(
                stage=f"{plan.stage}/{mode}",
                iteration=0,
                policy_hash=plan.policy_hash,
                seed=plan.seed,
                truncated_is_wrong=plan.truncated_is_wrong,
            )
            tables = []
            for start in range(0, len(tasks), plan.batch_size):
                path = folder / f"{task_set}-{mode}-{start:06d}.parquet"
                if not path.is_file():
                    batch = tasks[start : start + plan.batch_size]
                    num_samples = plan.num_samples[task_set][mode]
                    rollouts = respond(model, tokenizer, batch, num_samples, sampler, context)
                    write_rollouts(path, rollouts_to_table(rollouts))
                tables.append(read_rollouts(path))
                num_done += tables[-1].num_rows
                on_progress(num_done, plan.num_responses, f"{task_set} {mode}")
            metrics = summarise(pa.concat_tables(tables), plan.num_resamples, plan.seed)
            coordinates = {
                "benchmark": task_set,
                "remasking": mode,
                "block_size": sampler.block_size,
            }
            rows.append({**coordinates, **metrics})
    return rows
