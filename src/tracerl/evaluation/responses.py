"""Tasks in, judged responses out: sampling, decoding and verification, used by trace collection, RL and evaluation alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tracerl.config import RewardPart, Sampler
from tracerl.errors import DataError
from tracerl.models.tokenizer import Tokenizer
from tracerl.models.transformer import Transformer
from tracerl.rewards.parts import reward_parts
from tracerl.rewards.verify import verify_all
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import key_for
from tracerl.types import Rollout, Task


@dataclass(frozen=True)
class Occasion:
    """When and by which policy responses are sampled; `seed`, `stage` and `iteration` are seed coordinates of every row.

    reward: weight of each part of the reward; correctness alone unless a round of RL says otherwise.
    """

    stage: str
    iteration: int
    policy_hash: str
    seed: int
    truncated_is_wrong: bool
    reward: Mapping[RewardPart, float] = field(default_factory=lambda: {"correct": 1.0})


def respond(
    model: Transformer,
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    num_samples: int,
    settings: Sampler,
    occasion: Occasion,
    on_done: Callable[[int], None] | None = None,
) -> list[Rollout]:
    """`num_samples` judged responses per task, a task's responses next to each other. A row's noise depends on its own ids only."""
    requests, owners = [], []
    for task in tasks:
        prompt = tokenizer.prompt_ids(task.prompt)
        for index in range(num_samples):
            requests.append(Request(prompt, key_for(occasion.seed, occasion.stage, occasion.iteration, task.task_id, index)))
            owners.append((task, index))
    trajectories = sample(model, tokenizer.end_ids, requests, settings, on_done)
    recorded = recorded_settings(settings, model)
    texts = [tokenizer.decode(trajectory.response_ids[: trajectory.num_tokens].tolist()) for trajectory in trajectories]
    judged = [(task, text, t.stop_reason) for (task, _), text, t in zip(owners, texts, trajectories, strict=True)]
    verdicts = verify_all(judged, occasion.truncated_is_wrong)
    rollouts = []
    for (task, index), trajectory, text, verdict in zip(owners, trajectories, texts, verdicts, strict=True):
        parts = reward_parts(occasion.reward, task, text, verdict, trajectory.num_tokens, settings.max_new_tokens)
        rollouts.append(
            Rollout(
                rollout_id=f"{occasion.stage}/{occasion.iteration:05d}/{task.task_id}/{index}",
                stage=occasion.stage,
                iteration=occasion.iteration,
                sample_index=index,
                task=task,
                trajectory=trajectory,
                text=text,
                reward=sum(parts.values()),
                verdict=verdict.verdict,
                policy_hash=occasion.policy_hash,
                seed=occasion.seed,
                settings=recorded,
                reward_parts=parts,
            )
        )
    return rollouts


def within_prompt_limit(tasks: Sequence[Task], tokenizer: Tokenizer, settings: Sampler, where: str) -> tuple[list[Task], int]:
    """The tasks whose prompt fits `max_prompt_tokens`, and how many do not.

    Raises DataError if none fits.
    """
    kept = [task for task in tasks if len(tokenizer.prompt_ids(task.prompt)) <= settings.max_prompt_tokens]
    if tasks and not kept:
        raise DataError("every prompt is longer than the limit", where=where, got=f"{len(tasks)} tasks",
                        wanted=f"prompts of at most {settings.max_prompt_tokens} tokens", do="raise sampler.max_prompt_tokens")  # fmt: skip
    return kept, len(tasks) - len(kept)


def recorded_settings(settings: Sampler, model: Transformer) -> dict[str, object]:
    """The sampler's settings as columns of the store."""
    exact = settings.cache and model.family.attention == "block_causal"
    kept = settings.model_dump(exclude={"block_size", "cache", "max_rows", "max_prompt_tokens"})
    return {**kept, "cache_mode": "exact" if exact else "none", "cache_horizon": None}
