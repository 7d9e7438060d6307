"""Process rewards: a judge scores the chunks of the responses that an iteration trains on.

Scores (1, 0, -1, or between) are standardised over the chunks with the same place in the responses
of a group, as the outcome is over the responses, weighted, and paid on the last step inside their
chunk, beside the outcome (`placed`).

Departures from the public code: chunks may be written steps, not only runs of tokens; the outcome's
reward stays beside that of the process, which there replaces it; a chunk that the judge cannot
decide is paid nothing and leaves the standardisation, where there it counts as the response's
outcome; so does one that stands alone at its place, which there keeps its score as it is; a step
that reaches into two chunks is paid for each of them in full, where there a token gets its own
chunk's share only. One answer is asked for, not three that must agree.
"""

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


@dataclass(frozen=True)
class ProcessSide:
    """A round's judge of steps with its settings."""

    judge: Judge
    settings: Process


def judged_groups(
    side: ProcessSide, advantages: str, tokenizer: Tokenizer, groups: Groups
) -> tuple[Groups, dict[str, float]]:
    """The groups with the chunks of every response, and figures: chunks, those left undecided, the
    mean score of the others.

    advantages: the round's kind of them; a value model takes the z-scores.
    """
    rollouts = [rollout for group in groups for rollout in group]
    parts = [
        split(
            r.trajectory.response_ids[: r.trajectory.num_tokens].tolist(),
            tokenizer.decode,
            side.settings,
        )
        for r in rollouts
    ]
    questions = [
        Question(r.task, tuple(texts), i)
        for r, (_, texts) in zip(rollouts, parts, strict=True)
        for i in range(len(texts))
    ]
    own = questions[distributed.rank_slice(len(questions))]
    answers = distributed.all_gather(
        list(side.judge(own)) if own else []
    )  # ranks share the questions
    flat = np.array([np.nan if answer.score is None else answer.score for answer in answers])
    cuts = np.cumsum([len(ends) for ends, _ in parts])[:-1]
    scores, ends = iter(np.split(flat, cuts)), iter(parts)
    judged = [
        _with_chunks(
            group, [next(scores) for _ in group], [next(ends)[0] for _ in group], side, advantages
        )
        for group in groups
    ]
    decided = flat[~np.isnan(flat)]
    return judged, {
        "chunks": float(len(flat)),
        "undecided_chunks": float(len(flat) - len(decided)),
        "chunk_score": float(decided.mean()) if len(decided) else 0.0,
    }


def _with_chunks(
    group: Sequence[Rollout],
    scores: list[Floats],
    ends: list[list[int]],
    side: ProcessSide,
    kind: str,
) -> list[Rollout]:
    standard = chunk_advantages("group" if kind == "gae" else kind, scores)
    return [
        replace(
            rollout,
            chunks=Chunks(
                ends=np.array(cut, np.int32),
                scores=score.astype(np.float32),
                rewards=(side.settings.weight * paid).astype(np.float32),
            ),
        )
        for rollout, score, paid, cut in zip(group, scores, standard, ends, strict=True)
    ]


def placed(rollout: Rollout, steps: Steps) -> Floats:
    """Process reward of each trainable token, float64 [T]; zeros without chunks. steps: int64 [T],
    the step of each."""
    if rollout.chunks is None:
        return np.zeros(len(steps))
    return chunk_rewards(
        rollout.chunks.rewards.astype(np.float64), rollout.chunks.ends.astype(np.int64), steps
    )


def advantage_to_go(rollout: Rollout, steps: Steps) -> Floats:
    """What process rewards add to a token's advantage where there is no value model, float64 [T]:
    those of its step and of later ones.

    It is what a value model that says 0 everywhere gives, with discount and trace 1.
    """
    return returns_and_advantages(placed(rollout, steps), np.zeros(len(steps)), steps, 1.0, 1.0)[1]
