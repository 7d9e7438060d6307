"""Process rewards: a judge scores the chunks of the responses that an iteration trains on.

Scores (1, 0, -1, or between) are standardised over the chunks with the same place in the responses
of a group, as the outcome is over the responses, weighted, and paid on the last step inside their
chunk, beside the outcome (`token_process_rewards`).

Departures from the public code: chunks may be written steps, not only runs of tokens; the outcome's
reward stays beside that of the process, which there replaces it; a chunk that the judge cannot
decide is paid nothing and leaves the standardisation, where there it counts as the response's
outcome; so does one that stands alone at its place, which there keeps its score as it is; a step
that reaches into two chunks is paid for each of them in full, where there a token gets its own
chunk's share only. One answer is asked for, not three that must agree.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracerl import distributed
from tracerl.models.tokenizer import Tokenizer
from tracerl.objectives.advantages import chunk_advantages, chunk_rewards, returns_and_advantages
from tracerl.rewards.judges.chunks import split
from tracerl.rewards.judges.questions import Judge, Question
from tracerl.settings.rewards import Process
from tracerl.types import Chunks, Rollout

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]
Groups = list[list[Rollout]]


@dataclass(frozen=True, kw_only=True)
class ProcessRewarder:
    """Pays the steps of responses."""

    judge: Judge
    """Answers a batch of questions, each about one chunk."""
    settings: Process
    """Separators, number and weight of the chunks."""

    def pay(
        self, groups: Groups, advantages: str, tokenizer: Tokenizer
    ) -> tuple[Groups, dict[str, float]]:
        """The groups with the chunks of every response, and metrics: chunks, those left undecided,
        the mean score of the others. Ranks share the questions.

        advantages: the round's kind of them; a value model takes the z-scores.
        """
        ends: list[list[int]] = []
        questions: list[Question] = []
        for group in groups:
            for rollout in group:
                trajectory = rollout.trajectory
                ids = trajectory.response_ids[: trajectory.num_tokens].tolist()
                chunk_ends, texts = split(ids, tokenizer.decode, self.settings)
                ends.append(chunk_ends)
                for i in range(len(texts)):
                    questions.append(Question(task=rollout.task, chunks=tuple(texts), index=i))
        scores = self._scores(questions)
        per_response = iter(np.split(scores, np.cumsum(list(map(len, ends)))[:-1]))
        ends_left = iter(ends)
        paid = []
        for group in groups:
            group_scores = list(itertools.islice(per_response, len(group)))
            group_ends = list(itertools.islice(ends_left, len(group)))
            paid.append(self._pay_group(group, group_scores, group_ends, advantages))
        decided = scores[~np.isnan(scores)]
        return paid, {
            "chunks": float(len(scores)),
            "undecided_chunks": float(len(scores) - len(decided)),
            "chunk_score": float(decided.mean()) if len(decided) else 0.0,
        }

    def _scores(self, questions: list[Question]) -> Floats:
        """The judge's score of every question, NaN where it is undecided."""
        shard = questions[distributed.rank_slice(len(questions))]
        answers = distributed.all_gather(list(self.judge(shard)) if shard else [])
        return np.array([np.nan if answer.score is None else answer.score for answer in answers])

    def _pay_group(
        self, group: Sequence[Rollout], scores: list[Floats], ends: list[list[int]], kind: str
    ) -> list[Rollout]:
        """The group with the chunks of its responses and what they are paid."""
        standard = chunk_advantages("group" if kind == "gae" else kind, scores)
        paid = []
        for rollout, score, reward, end in zip(group, scores, standard, ends, strict=True):
            chunks = Chunks(
                ends=np.array(end, np.int32),
                scores=score.astype(np.float32),
                rewards=(self.settings.weight * reward).astype(np.float32),
            )
            paid.append(replace(rollout, chunks=chunks))
        return paid


def token_process_rewards(rollout: Rollout, steps: Steps) -> Floats:
    """Process reward of each trainable token, float64 [T]; zeros without chunks. steps: int64 [T],
    the step of each."""
    if rollout.chunks is None:
        return np.zeros(len(steps))
    return chunk_rewards(
        rollout.chunks.rewards.astype(np.float64), rollout.chunks.ends.astype(np.int64), steps
    )


def process_advantages(rollout: Rollout, steps: Steps) -> Floats:
    """What process rewards add to a token's advantage where there is no value model, float64 [T]:
    those of its step and of later ones.

    It is what a value model that is 0 everywhere gives, with discount and trace 1.
    """
    rewards = token_process_rewards(rollout, steps)
    return returns_and_advantages(rewards, np.zeros(len(steps)), steps, 1.0, 1.0)[1]
