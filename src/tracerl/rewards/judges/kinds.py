"""The three kinds of judges: written steps of generated arithmetic, a local autoregressive model, a
server."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tracerl.errors import ParamsError
from tracerl.rewards.judges.chunks import split
from tracerl.rewards.judges.model import model_judge
from tracerl.rewards.judges.questions import Answer, Judge, Question
from tracerl.rewards.judges.server import server_judge
from tracerl.rewards.judges.steps import step_scores
from tracerl.settings.base import Section
from tracerl.settings.models import Compute
from tracerl.settings.rewards import Judge as JudgeSettings
from tracerl.settings.rewards import ModelJudge, Process, ServerJudge, StepsJudge
from tracerl.types import Task


def make_judge(
    name: str, settings: JudgeSettings, root: Path, compute: Compute, key: str | None
) -> Judge:
    """The judge of a section of the params. root: where a relative path starts. key: of the server,
    from the environment.

    Raises ParamsError if a server's key is not set, CheckpointError if a model's checkpoint cannot
    be used.
    """
    return _MAKERS[type(settings)](name, settings, root, compute, key)


def _make_steps_judge(
    name: str, settings: StepsJudge, root: Path, compute: Compute, key: str | None
) -> Judge:
    return steps_judge


def _make_model_judge(
    name: str, settings: ModelJudge, root: Path, compute: Compute, key: str | None
) -> Judge:
    return model_judge(settings, root / settings.path, compute)


def _make_server_judge(
    name: str, settings: ServerJudge, root: Path, compute: Compute, key: str | None
) -> Judge:
    if settings.api_key_variable is not None and not key:
        raise ParamsError(
            "a judge's key is not set",
            where=f"verification.judges.{name}",
            got=f"no {settings.api_key_variable}",
            wanted="the key in that environment variable",
            do=f"export {settings.api_key_variable}=..., or set "
            "api_key_variable to null for a server without keys",
        )
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ParamsError(
            "a judge's key cannot be sent",
            where=f"verification.judges.{name}",
            got=f"{settings.api_key_variable} holds more than printable ASCII",
            do="copy the key again",
        )
    return server_judge(settings, key)


_MAKERS: dict[type[Section], Callable[[str, Any, Path, Compute, str | None], Judge]] = {
    StepsJudge: _make_steps_judge,
    ModelJudge: _make_model_judge,
    ServerJudge: _make_server_judge,
}


def steps_judge(questions: Sequence[Question]) -> list[Answer]:
    """The programmatic judge. A whole response is worth the mean of its chunks (one chunk, unless
    it was given as several)."""
    answers, scores_of = [], dict[tuple[str, tuple[str, ...]], list[float | None]]()
    for question in questions:
        key = (question.task.task_id, question.chunks)
        if key not in scores_of:
            scores_of[key] = step_scores(question.task, question.chunks)
        scores = scores_of[key] if question.index is None else [scores_of[key][question.index]]
        decided = [score for score in scores if score is not None]
        answers.append(
            Answer(score=sum(decided) / len(decided))
            if decided
            else Answer(score=None, reason=f"kind {question.task.kind!r} has no rule for steps")
        )
    return answers


def trial(
    judge: Judge,
    kind: str,
    prompt: str,
    response: str,
    separators: Sequence[str],
    answer: str,
    rubric: str,
) -> list[tuple[str, Answer]]:
    """(text, answer) of each step of a response to a problem, or of the whole response if nothing
    separates steps."""
    spec = json.dumps({"rubric": rubric}) if rubric else ""
    task = Task(
        task_id="trial/1",
        task_set="trial",
        kind=kind,
        split="test",
        difficulty=1,
        prompt=prompt,
        answer=answer,
        solution="",
        spec=spec,
    )
    if not separators:
        return [(response, judge([Question(task=task, chunks=(response,))])[0])]
    settings = Process(
        judge="trial", weight=1.0, separators=list(separators), max_chunks=max(len(response), 1)
    )
    texts = split(
        [ord(character) for character in response], lambda ids: "".join(map(chr, ids)), settings
    )[1]
    return list(
        zip(
            texts,
            judge([Question(task=task, chunks=tuple(texts), index=i) for i in range(len(texts))]),
            strict=True,
        )
    )
