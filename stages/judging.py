"""What the stages that judge share: the verifiers' processes, and the judges of the params with
their keys from the environment."""

import os

from stages.runtime import paths
from tracerl.rewards.judges.kinds import make_judge
from tracerl.rewards.judges.questions import Judge
from tracerl.rewards.verify.verifier import configure
from tracerl.settings.params import Params
from tracerl.settings.rounds import RlRound

_made: dict[str, Judge] = {}


def prepare(params: Params) -> None:
    """Tells the verifiers their limits and the judge of verification.judge, which is made when it
    is first needed."""
    configure(params.verification, lambda: judge(params, str(params.verification.judge)))


def judge(params: Params, name: str) -> Judge:
    """The judge of this name in verification.judges, one for all who ask for it."""
    settings = params.verification.judges[name]
    if name not in _made:
        variable = settings.key_variable
        key = None if variable is None else os.environ.get(variable)
        _made[name] = make_judge(name, settings, paths.ROOT, params.compute, key)
    return _made[name]


def asked(params: Params, settings: RlRound) -> tuple[str, ...]:
    """Names of the judges that a round asks beside the verdicts: for a part of its reward, and for
    steps."""
    part = [str(params.verification.judge)] if "judge" in settings.reward else []
    return tuple(
        dict.fromkeys([*part, *([settings.process.judge] if settings.process is not None else [])])
    )
