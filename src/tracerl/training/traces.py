"""Traces for SFT as rows of the store: known solutions in the model's preferred order, and the model's own responses."""

from collections.abc import Callable, Sequence

from tracerl.config import Traces
from tracerl.evaluation.responses import Occasion, recorded_settings, respond
from tracerl.models.tokenizer import Tokenizer
from tracerl.models.transformer import Transformer
from tracerl.sampling.traces import preferred_order
from tracerl.training.sft import completed, worked_trajectory
from tracerl.types import Rollout, Task


def preferred_solutions(
    model: Transformer,
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    count: int,
    settings: Traces,
    occasion: Occasion,
    on_done: Callable[[int], None],
) -> list[Rollout]:
    """The first `count` tasks with a worked solution, each solution with the step map of the model's own preferred order."""
    solved = [task for task in tasks if task.solution][:count]
    recorded = {**recorded_settings(settings.sampler, model), "cache_mode": "none", "remasking": "preferred"}
    rollouts = []
    for start in range(0, len(solved), settings.batch_size):
        batch = solved[start : start + settings.batch_size]
        known = [completed(worked_trajectory(task, tokenizer), settings.block_size, tokenizer.end_ids) for task in batch]
        on_done(len(batch))
        ordered = preferred_order(model, known, settings.block_size, settings.pick, settings.step_tokens)
        for task, trajectory in zip(batch, ordered, strict=True):
            rollouts.append(
                Rollout(
                    rollout_id=f"{occasion.stage}/preferred/{task.task_id}",
                    stage=occasion.stage,
                    iteration=occasion.iteration,
                    sample_index=0,
                    task=task,
                    trajectory=trajectory,
                    text=task.solution,
                    reward=1.0,
                    verdict="correct",
                    policy_hash=occasion.policy_hash,
                    seed=occasion.seed,
                    settings=recorded,
                )
            )
    return rollouts


def own_responses(
    model: Transformer,
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    count: int,
    settings: Traces,
    occasion: Occasion,
    on_done: Callable[[int], None],
) -> list[Rollout]:
    """`group_size` judged responses of each of the last `count` tasks (the first serve `preferred_solutions`); SFT takes the correct."""
    chosen = list(tasks)[max(0, len(tasks) - count) :]
    return respond(model, tokenizer, chosen, settings.group_size, settings.sampler, occasion, on_done)
