"""One verdict, for tests that judge responses one at a time."""

from tracerl.rewards.verify.verifier import Verdict, verify_all
from tracerl.types import Task


def verify(task: Task, response: str, stop_reason: str, truncated_is_wrong: bool) -> Verdict:
    return verify_all([(task, response, stop_reason)], truncated_is_wrong)[0]
