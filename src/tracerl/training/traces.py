"""Known solutions as traces for SFT: rows of the store whose step map is the model's own preferred
order."""

from collections.abc import Callable, Sequence

from tracerl import distributed
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.rewards.verify.verifier import Verdict
from tracerl.rollouts.responses import SampleContext, recorded_settings
from tracerl.sampling.traces import preferred_order
from tracerl.settings.training import Traces
from tracerl.training.sft import completed, worked_trajectory
from tracerl.types import Rollout, Task


def preferred_solutions(
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
        **recorded_settings(settings.sampler, model),
        "cache_mode": "none",
        "remasking": "preferred",
    }
    attention = model.family.attention
    rollouts = []
    own = tasks[distributed.rank_slice(len(tasks))]
    for start in range(0, len(own), settings.batch_size):
        batch = own[start : start + settings.batch_size]
        known = [
            completed(worked_trajectory(task, tokenizer), settings.block_size, tokenizer, attention)
            for task in batch
        ]
        ordered = preferred_order(
            model, known, settings.block_size, settings.pick, settings.step_tokens
        )
        rollouts += [
            context.rollout(
                task,
                0,
                t,
                text=task.solution,
                verdict=Verdict("correct", {"correct": 1.0}),
                reward_parts={"correct": 1.0},
                settings=recorded,
            )
            for task, t in zip(batch, ordered, strict=True)
        ]
        on_done(len(batch))
    on_done(len(tasks) - len(own))
    return distributed.all_gather(rollouts)
