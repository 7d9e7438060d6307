"""Tasks in, judged responses out: sampling, decoding and verification, used by trace collection, RL
and evaluation alike."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tracerl import distributed
from tracerl.errors import DataError
from tracerl.models.tokenizer import Tokenizer
from tracerl.models.transformer import Transformer
from tracerl.rewards.verify.parts import reward_parts
from tracerl.rewards.verify.verifier import Verdict, judge_answers, provenance, verify_all
from tracerl.sampling.autoregressive import sample_autoregressive
from tracerl.sampling.sampler import Request, cache_mode, sample
from tracerl.seeds import key_for
from tracerl.settings.rewards import RewardPart
from tracerl.settings.sampling import Sampler
from tracerl.store.files import read_tasks, rollout_table
from tracerl.store.schema import JUDGED_BY_KEY
from tracerl.types import Rollout, Task, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Occasion:
    """When and by which policy responses are sampled; `seed`, `stage` and `iteration` are seed
    coordinates of every row.

    reward: weight of each part of the reward; correctness alone unless a round of RL says
    otherwise.
    """

    stage: str
    iteration: int
    policy_hash: str
    seed: int
    truncated_is_wrong: bool
    reward: Mapping[RewardPart, float] = field(default_factory=lambda: {"correct": 1.0})

    def row(
        self,
        task: Task,
        index: int,
        trajectory: Trajectory,
        text: str,
        verdict: str,
        parts: dict[str, float],
        settings: dict[str, object],
        detail: str = "",
    ) -> Rollout:
        """Sample number `index` of a task as a row of the store; the id is unique where stage
        names, iterations and tasks are."""
        return Rollout(
            rollout_id=f"{self.stage}/{self.iteration:05d}/{task.task_id}/{index}",
            stage=self.stage,
            iteration=self.iteration,
            sample_index=index,
            task=task,
            trajectory=trajectory,
            text=text,
            reward=sum(parts.values()),
            verdict=verdict,
            policy_hash=self.policy_hash,
            seed=self.seed,
            settings=settings,
            reward_parts=parts,
            detail=detail,
        )


def respond(
    model: "Transformer | PreTrainedModel",
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    num_samples: int,
    settings: Sampler,
    occasion: Occasion,
    on_done: Callable[[int], None] | None = None,
) -> list[Rollout]:
    """`num_samples` judged responses per task, a task's responses next to each other. A row's noise
    depends on its own ids only.

    Each rank samples and judges its share; all of them get every response.
    """
    requests, owners = [], []
    for task in tasks:
        prompt = opened_prompt(task.prompt, tokenizer, settings)
        for index in range(num_samples):
            requests.append(
                Request(
                    prompt,
                    key_for(occasion.seed, occasion.stage, occasion.iteration, task.task_id, index),
                )
            )
            owners.append((task, index))
    share = distributed.rank_slice(len(owners))
    requests, owners = requests[share], owners[share]
    if isinstance(model, Transformer):
        trajectories = sample(model, tokenizer.end_ids, requests, settings, on_done)
    else:
        trajectories = sample_autoregressive(model, tokenizer.end_ids, requests, settings, on_done)
    recorded = recorded_settings(settings, model)
    texts = [
        tokenizer.decode(trajectory.response_ids[: trajectory.num_tokens].tolist())
        for trajectory in trajectories
    ]
    judged = [
        (task, text, t.stop_reason)
        for (task, _), text, t in zip(owners, texts, trajectories, strict=True)
    ]
    verdicts, scores = _verdicts_and_scores(judged, occasion)
    rollouts = []
    for (task, index), trajectory, text, verdict, score in zip(
        owners, trajectories, texts, verdicts, scores, strict=True
    ):
        parts = reward_parts(
            occasion.reward,
            task,
            text,
            verdict,
            trajectory.num_tokens,
            settings.max_new_tokens,
            score,
        )
        rollouts.append(
            occasion.row(
                task, index, trajectory, text, verdict.verdict, parts, recorded, verdict.detail
            )
        )
    every = distributed.all_gather(rollouts)
    if on_done is not None and len(every) > len(rollouts):
        on_done(len(every) - len(rollouts))
    return every


def _verdicts_and_scores(
    judged: Sequence[tuple[Task, str, str]], occasion: Occasion
) -> tuple[list[Verdict], list[float | None]]:
    """Verdicts and, where the reward has a part "judge", its scores. A response that either leaves
    undecided is undecided."""
    verdicts = verify_all(judged, occasion.truncated_is_wrong)
    if "judge" not in occasion.reward:
        return verdicts, [None] * len(verdicts)
    decided = [i for i, verdict in enumerate(verdicts) if verdict.verdict != "undecided"]
    # What decides an open task is the judge itself, which need not be asked again.
    scores: dict[int, float | None] = {
        i: 2 * verdicts[i].parts["correct"] - 1 for i in decided if judged[i][0].kind == "open"
    }
    if occasion.truncated_is_wrong:  # whatever it holds
        scores |= {i: -1.0 for i in decided if judged[i][2] == "length"}
    asked = [i for i in decided if i not in scores]
    for i, answer in zip(asked, judge_answers([judged[i][:2] for i in asked]), strict=True):
        scores[i] = answer.score
        if answer.score is None:
            verdicts[i] = Verdict("undecided", {"correct": 0.0}, f"judge: {answer.reason}")
    return verdicts, [scores.get(i) for i in range(len(verdicts))]


def judged_table(rollouts: Sequence[Rollout], judges: Sequence[str] = ()) -> pa.Table:
    """Rollouts as rows of the store's schema; the file's metadata name the verifier, the sandbox
    and the judges that judged them.

    judges: names of those that were asked for more than the verdicts.
    """
    table = rollout_table(rollouts)
    judged_by = json.dumps(
        provenance({rollout.task.kind for rollout in rollouts}, judges), sort_keys=True
    )
    return table.replace_schema_metadata(
        {**(table.schema.metadata or {}), JUDGED_BY_KEY: judged_by.encode()}
    )


def opened_prompt(prompt: str, tokenizer: Tokenizer, settings: Sampler) -> list[int]:
    """Ids of a prompt and of the opening that every response is made to begin with: context for the
    model, not a decision of it."""
    return [*tokenizer.prompt_ids(prompt), *opening_ids(tokenizer, settings)]


def opening_ids(tokenizer: Tokenizer, settings: Sampler) -> list[int]:
    """Ids of the opening, none if there is none."""
    return tokenizer.encode(settings.opening) if settings.opening else []


def fitting_tasks(
    files: Mapping[str, Path], tokenizer: Tokenizer, settings: Sampler, where: str
) -> tuple[dict[str, list[Task]], dict[str, int]]:
    """By task set, the tasks whose prompt fits `max_prompt_tokens`, and how many do not.

    Raises DataError if none of a set fits.
    """
    kept, dropped = {}, {}
    for name, path in files.items():
        tasks = read_tasks(path)
        kept[name] = [
            task
            for task in tasks
            if len(opened_prompt(task.prompt, tokenizer, settings)) <= settings.max_prompt_tokens
        ]
        dropped[name] = len(tasks) - len(kept[name])
        if tasks and not kept[name]:
            raise DataError(
                "every prompt is longer than the limit",
                where=f"{where}: {name}",
                got=f"{len(tasks)} tasks",
                wanted=f"at most {settings.max_prompt_tokens} prompt tokens",
                do="raise sampler.max_prompt_tokens",
            )
    return kept, dropped


def recorded_settings(
    settings: Sampler, model: "Transformer | PreTrainedModel"
) -> dict[str, object]:
    """The sampler's settings as columns of the store."""
    kept = settings.model_dump(
        exclude={"block_size", "cache", "horizon", "max_rows", "cache_tokens", "max_prompt_tokens"}
    )
    return {
        **kept,
        "cache_mode": cache_mode(model.family.attention, settings)
        if isinstance(model, Transformer)
        else "exact",
        "cache_horizon": settings.horizon,
    }
