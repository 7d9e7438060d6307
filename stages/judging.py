"""What the stages that judge share: the verifiers' processes, and the judges of the params with
their keys from the environment."""

import os

from stages.runtime import paths
from tracerl.rewards.judges.kinds import make_judge
from tracerl.rewards.judges.questions import Judge
from tracerl.rewards.verify.verifier import configure
from tracerl.settings.params import Params
from tracerl.settings.rounds import RlRound
from tracerl.training.collect import Judging
from tracerl.training.process_rewards import ProcessRewarder

_judges: dict[str, Judge] = {}


def prepare(params: Params) -> None:
    """Tells the verifiers their limits and the judge of verification.judge, which is made when it
    is first needed."""
    configure(params.verification, lambda: judge(params, str(params.verification.judge)))


def judge(params: Params, name: str) -> Judge:
    """The judge of this name in verification.judges; there is one of each."""
    settings = params.verification.judges[name]
    if name not in _judges:
        variable = settings.key_variable
        key = None if variable is None else os.environ.get(variable)
        _judges[name] = make_judge(name, settings, paths.ROOT, params.compute, key)
    return _judges[name]


def round_judging(params: Params, settings: RlRound) -> Judging:
    """How the responses of a round are judged."""
    names = []
    if "judge" in settings.reward:
        names.append(str(params.verification.judge))
    rewarder = None
    if settings.process is not None:
        names.append(settings.process.judge)
        rewarder = ProcessRewarder(
            judge=judge(params, settings.process.judge), settings=settings.process
        )
    return Judging(
        truncated_is_wrong=params.truncated_is_wrong,
        rewarder=rewarder,
        judges=tuple(dict.fromkeys(names)),
    )
