"""Chat templates, rendered by transformers' own renderer in a process with limits of time, memory
and output (template_worker.py)."""

import contextlib
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import IO, Any, cast

from tracerl.errors import CheckpointError, DataError

_COMMAND = "from tracerl.models.template_worker import main; main()"


class ChatTemplate:
    """A Jinja template of conversations.

    Raises CheckpointError if `source` is not a valid template. variables: what the template may
    use beside the messages, here the special tokens by their names.
    """

    def __init__(self, source: str, variables: Mapping[str, str], where: str) -> None:
        self._source = source
        self._variables = dict(variables)
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None
        answer = self._ask([])
        if "error" in answer:
            raise CheckpointError(
                "invalid chat template",
                where=where,
                got=answer["error"],
                do="correct or remove it",
            )

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a conversation, up to where the next response starts.

        Raises DataError if the template refuses the messages, fails, or exceeds its limits.
        """
        answer = self._ask([[dict(message) for message in messages]])
        if "error" in answer:
            raise DataError(
                "the chat template cannot render these messages",
                got=answer["error"],
                do="correct the messages, or the checkpoint's chat template",
            )
        text: str = answer["texts"][0]
        return text

    def _ask(self, conversations: list[list[dict[str, Any]]]) -> dict[str, Any]:
        request = {
            "template": self._source,
            "conversations": conversations,
            "variables": self._variables,
        }
        with self._lock:
            if self._worker is None or self._worker.poll() is not None:
                self._worker = _start()
                weakref.finalize(self, _end, self._worker)
            questions = cast(IO[str], self._worker.stdin)
            answers = cast(IO[str], self._worker.stdout)
            try:
                questions.write(json.dumps(request) + "\n")
                questions.flush()
                line = answers.readline()
            except OSError:
                line = ""
            if not line:
                _end(self._worker)
                self._worker = None
                return {"error": "the template took too much time or memory, and was stopped"}
        answer: dict[str, Any] = json.loads(line)
        return answer


def _start() -> subprocess.Popen[str]:
    environment = {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": ":".join(filter(None, sys.path)),
    }
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        env=environment,
        start_new_session=True,
    )


def _end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        with contextlib.suppress(OSError):
            cast(IO[str], pipe).close()
