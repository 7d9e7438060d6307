"""Sample responses to tasks and judge them. Trace collection, RL and evaluation all use this."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from tracerl import distributed
from tracerl.models.checkpoint import forbidden_ids
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.rewards.verify.parts import reward_parts
from tracerl.rewards.verify.verifier import Verdict, judge_answers, provenance, verify_all
from tracerl.sampling.autoregressive import sample_autoregressive
from tracerl.sampling.caches import cache_for
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import key_for
from tracerl.settings.rewards import RewardPart
from tracerl.settings.sampling import Sampler
from tracerl.store.files import rollout_table
from tracerl.store.schema import JUDGED_BY_KEY
from tracerl.types import Rollout, Task, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class SampleContext:
    """When and by which policy responses are sampled. `seed`, `stage` and `iteration` are seed
    coordinates of every response."""

    stage: str
    """The stage that samples, such as "rl@short" or "evaluate@wide/static"."""

    iteration: int
    """Iteration of the stage, 0 where it has none."""

    policy_hash: str
    """Hash of the weights."""

    seed: int
    """The run's seed."""

    truncated_is_wrong: bool
    """Whether a response that was cut at the length limit is wrong whatever it holds."""

    reward: Mapping[RewardPart, float] = field(default_factory=lambda: {"correct": 1.0})
    """Weight of each part of the reward; correctness alone unless an RL round sets others."""

    def rollout(
        self,
        task: Task,
        index: int,
        trajectory: Trajectory,
        *,
        text: str,
        verdict: Verdict,
        reward_parts: dict[str, float],
        settings: dict[str, object],
    ) -> Rollout:
        """Sample number `index` of a task as a row of the store. The id is unique where stage
        names, iterations and tasks are."""
        return Rollout(
            rollout_id=f"{self.stage}/{self.iteration:05d}/{task.task_id}/{index}",
            stage=self.stage,
            iteration=self.iteration,
            sample_index=index,
            task=task,
            trajectory=trajectory,
            text=text,
            reward=sum(reward_parts.values()),
            verdict=verdict.verdict,
            policy_hash=self.policy_hash,
            seed=self.seed,
            settings=settings,
            reward_parts=reward_parts,
            detail=verdict.detail,
        )


def respond(
    model: "Policy | PreTrainedModel",
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    num_samples: int,
    settings: Sampler,
    context: SampleContext,
    on_done: Callable[[int], None] | None = None,
) -> list[Rollout]:
    """`num_samples` judged responses per task, the responses of a task next to each other. The
    noise of a response depends on its ids only.

    Each rank samples and judges its share; all ranks get all responses.
    """
    pairs = list(itertools.product(tasks, range(num_samples)))
    rank_pairs = pairs[distributed.rank_slice(len(pairs))]
    prompts = {task.task_id: prompt_ids(task.prompt, tokenizer, settings) for task, _ in rank_pairs}
    requests = []
    for task, index in rank_pairs:
        key = key_for(context.seed, context.stage, context.iteration, task.task_id, index)
        requests.append(Request(prompts[task.task_id], key))
    if isinstance(model, Policy):
        trajectories = sample(model, tokenizer.end_ids, requests, settings, on_done)
    else:
        trajectories = sample_autoregressive(
            model,
            tokenizer.end_ids,
            requests,
            settings,
            on_done,
            forbidden_ids(model.config.get_text_config().vocab_size, tokenizer),
        )
    texts = []
    for trajectory in trajectories:
        texts.append(tokenizer.decode(trajectory.response_ids[: trajectory.num_tokens].tolist()))
    rollouts = _judge_responses(
        rank_pairs,
        trajectories,
        texts,
        settings,
        context,
        columns=settings_columns(settings, model),
    )
    all_rollouts = distributed.all_gather(rollouts)
    if on_done is not None and len(all_rollouts) > len(rollouts):
        on_done(len(all_rollouts) - len(rollouts))
    return all_rollouts


def _judge_responses(
    pairs: Sequence[tuple[Task, int]],
    trajectories: Sequence[Trajectory],
    texts: Sequence[str],
    settings: Sampler,
    context: SampleContext,
    columns: dict[str, object],
) -> list[Rollout]:
    """Verdict and reward of each response: (task, sample index), trajectory and text in one order.
    columns: the sampler's settings as columns of the store."""
    responses = []
    for (task, _), trajectory, text in zip(pairs, trajectories, texts, strict=True):
        responses.append((task, text, trajectory.stop_reason))
    verdicts, scores = _verdicts_and_scores(responses, context)
    rollouts = []
    for (task, index), trajectory, text, verdict, score in zip(
        pairs, trajectories, texts, verdicts, scores, strict=True
    ):
        parts = reward_parts(
            context.reward,
            task,
            text,
            verdict,
            trajectory.num_tokens,
            settings.max_new_tokens,
            score,
        )
        rollout = context.rollout(
            task,
            index,
            trajectory,
            text=text,
            verdict=verdict,
            reward_parts=parts,
            settings=columns,
        )
        rollouts.append(rollout)
    return rollouts


def _verdicts_and_scores(
    responses: Sequence[tuple[Task, str, str]], context: SampleContext
) -> tuple[list[Verdict], list[float | None]]:
    """Verdicts of (task, text, stop reason) and, where the reward has a part "judge", the judge's
    scores. A response is undecided if the verifier or the judge leaves it undecided."""
    verdicts = verify_all(responses, context.truncated_is_wrong)
    if "judge" not in context.reward:
        return verdicts, [None] * len(verdicts)
    scores: dict[int, float | None] = {}
    to_judge = []
    for i, (task, _, stop_reason) in enumerate(responses):
        if verdicts[i].verdict == "undecided":
            continue
        if context.truncated_is_wrong and stop_reason == "length":
            scores[i] = -1.0
        elif task.kind == "open":  # its verdict came from the judge already
            scores[i] = 2 * verdicts[i].parts["correct"] - 1
        else:
            to_judge.append(i)
    answers = judge_answers([responses[i][:2] for i in to_judge])
    for i, answer in zip(to_judge, answers, strict=True):
        scores[i] = answer.score
        if answer.score is None:
            verdicts[i] = Verdict(
                verdict="undecided", parts={"correct": 0.0}, detail=f"judge: {answer.reason}"
            )
    return verdicts, list(map(scores.get, range(len(verdicts))))


def rollouts_to_table(rollouts: Sequence[Rollout], judges: Sequence[str] = ()) -> pa.Table:
    """Rollouts as rows of the store's schema. The file's metadata name the verifier, the sandbox
    and the judges that judged them.

    judges: names of judges used for more than the verdicts.
    """
    table = rollout_table(rollouts)
    judged_by = json.dumps(
        provenance({rollout.task.kind for rollout in rollouts}, judges), sort_keys=True
    )
    return table.replace_schema_metadata(
        {**(table.schema.metadata or {}), JUDGED_BY_KEY: judged_by.encode()}
    )


def prompt_ids(prompt: str, tokenizer: Tokenizer, settings: Sampler) -> list[int]:
    """Token ids of a prompt in the checkpoint's chat form, followed by the ids of the opening: the
    text that every response is made to begin with. The model does not choose the opening."""
    return [*tokenizer.prompt_ids(prompt), *opening_ids(tokenizer, settings)]


def opening_ids(tokenizer: Tokenizer, settings: Sampler) -> list[int]:
    """Token ids of the opening; empty if there is none."""
    return tokenizer.encode(settings.opening) if settings.opening else []


# Columns of the store for keys of orders and caches.
_ORDER_COLUMNS = {
    "remasking": "kind",
    "threshold": "threshold",
    "entropy_bound": "bound",
    "order_temperature": "temperature",
    "order_score": "score",
}
_CACHE_COLUMNS = {
    "cache_mode": "kind",
    "cache_horizon": "horizon",
    "refresh_every": "refresh_every",
    "refresh_sees": "refresh_sees",
}


def settings_columns(settings: Sampler, model: "Policy | PreTrainedModel") -> dict[str, object]:
    """The sampler's settings as columns of the store; None where the order or cache has no such
    key."""
    columns = settings.model_dump(
        exclude={
            "block_size",
            "order",
            "cache",
            "max_rows",
            "cache_tokens",
            "max_prompt_tokens",
            "edit",
        }
    )
    order = settings.order.model_dump()
    cache = settings.cache.model_dump()
    columns |= {column: order.get(key) for column, key in _ORDER_COLUMNS.items()}
    columns |= {column: cache.get(key) for column, key in _CACHE_COLUMNS.items()}
    if isinstance(model, Policy):
        columns["cache_mode"] = cache_for(model.family.attention, settings).kind
    else:
        columns["cache_mode"] = "exact"
    return columns
