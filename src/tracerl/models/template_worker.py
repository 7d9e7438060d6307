"""The process that renders chat templates: one JSON request a line on stdin, one answer a line on
stdout.

Templates come from strangers. transformers renders them in a sandbox without code; here they also
have limits: the process is killed by a timer when a template takes too much CPU time, has a limit
of memory, and refuses text that is too long.
"""

import ctypes
import json
import resource
import signal
import sys
from typing import Any

CPU_SECONDS = 3.0
MEMORY_BYTES = 4 << 30
MAX_CHARACTERS = 1 << 22
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answers requests `{"template", "conversations", "variables"}` with `{"texts"}` or
    `{"error"}` until stdin ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    from transformers.utils.chat_template_utils import render_jinja_template

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # SIGPROF ends the process
        answer = _render(render_jinja_template, request)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _render(render: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        texts, _ = render(
            conversations=request["conversations"],
            chat_template=request["template"],
            add_generation_prompt=True,
            **request["variables"],
        )
    except Exception as error:  # whatever a template raises is an answer
        return {"error": f"{type(error).__name__}: {error}"[:2000]}
    longest = max(map(len, texts), default=0)
    if longest > MAX_CHARACTERS:
        return {"error": f"{longest} characters of text; at most {MAX_CHARACTERS}"}
    return {"texts": texts}
