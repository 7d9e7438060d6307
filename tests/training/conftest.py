"""What tests of whole rounds share."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tracerl.rollouts import responses
from tracerl.training import collect
from tracerl.types import Rollout


@pytest.fixture
def paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses are right or wrong by their tokens, so that a model of random weights has something
    to learn."""

    def judged(rollouts: list[Rollout]) -> list[Rollout]:
        rewards = [float(r.trajectory.response_ids.sum() % 3 == 0) for r in rollouts]
        said = ["correct" if x else "wrong" for x in rewards]
        return [
            replace(r, reward=x, reward_parts={"correct": x}, verdict=v)
            for r, x, v in zip(rollouts, rewards, said, strict=True)
        ]

    respond: Callable[..., list[Rollout]] = responses.respond
    monkeypatch.setattr(
        collect, "respond", lambda *arguments, **named: judged(respond(*arguments, **named))
    )
