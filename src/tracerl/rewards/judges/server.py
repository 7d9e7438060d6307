"""A judge behind a server that speaks OpenAI's chat completions: vLLM, SGLang, llama.cpp, Ollama,
or a hosted one.

Contract: whatever the server does, every question gets an answer, undecided at worst, in bounded
time and memory. A try that takes longer than `timeout_seconds` to connect, for any bytes of the
head, or for the whole body, or fails in a way that may pass (no connection, 408, 409, 425, 429,
5xx), is repeated after a pause that doubles; any other status, and an answer that states no score,
is final. Once so many questions in a row as are asked at once, and a few more, could not be put to
the server with all their tries, it counts as gone, and the rest of the batch is undecided without
being asked.

The key is given to `server_judge` and stands in the Authorization header alone. Redirections are
not followed, so that it goes to no other host (but through a proxy that the environment names).
"""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tracerl.rewards.judges.questions import (
    SCORE_CLOSING,
    Answer,
    Judge,
    Question,
    prompt_of,
    read_score,
)
from tracerl.settings.rewards import ServerJudge

if TYPE_CHECKING:
    import httpx

_MAX_BODY = 1 << 20
_MAX_PAUSE = 60.0
_GONE_AFTER = 3  # questions beyond those asked at once
_PASSING = frozenset({408, 409, 425, 429}) | frozenset(range(500, 600))


class _UnansweredError(Exception):
    """A try that failed in a way that may pass. pause: seconds the server asked to wait, None if it
    said nothing at all."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


def server_judge(settings: ServerJudge, key: str | None) -> Judge:
    """A judge that asks settings.url, several questions at once."""

    def ask(questions: Sequence[Question]) -> list[Answer]:
        import httpx

        headers = {"Authorization": f"Bearer {key}"} if key else {}
        threads = settings.concurrency
        limits = httpx.Limits(max_connections=threads, max_keepalive_connections=threads)
        with (
            httpx.Client(
                headers=headers, timeout=settings.timeout_seconds, limits=limits
            ) as client,
            ThreadPoolExecutor(threads) as pool,
        ):
            asking = _Asking(client, settings)
            return list(pool.map(asking.answer, questions))

    return ask


def server_state(settings: ServerJudge, key: str | None) -> str:
    """What the server says when it is asked for its models, in words."""
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(
            f"{settings.url.rstrip('/')}/models",
            headers=headers,
            timeout=min(settings.timeout_seconds, 5.0),
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"does not answer: {type(error).__name__}"
    return "answers" if answer.status_code == 200 else f"answers with status {answer.status_code}"


class _Asking:
    """One batch. in_vain: questions in a row, over all threads, that could not be put to the
    server."""

    def __init__(self, client: "httpx.Client", settings: ServerJudge) -> None:
        self.client, self.settings, self.in_vain = client, settings, 0

    def answer(self, question: Question) -> Answer:
        settings, reason, heard = self.settings, "", False
        for attempt in range(settings.retries + 1):
            if self.in_vain >= (settings.concurrency) + _GONE_AFTER:
                return Answer(score=None, reason="the server is gone")
            try:
                answer = self._try(question)
            except _UnansweredError as error:
                reason, heard = str(error), error.pause is not None
                if heard:
                    self.in_vain = 0
                if attempt < settings.retries:
                    time.sleep(
                        min(
                            max(settings.backoff_seconds * 2**attempt, error.pause or 0.0),
                            _MAX_PAUSE,
                        )
                    )
            else:
                self.in_vain = 0
                return answer
        if not heard:
            self.in_vain += 1
        return Answer(score=None, reason=reason)

    def _try(self, question: Question) -> Answer:
        settings = self.settings
        text = prompt_of(question, settings.instructions, SCORE_CLOSING)
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": settings.max_answer_tokens,
        }
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        status, data, pause = self._post(json.dumps(body).encode())
        if status in _PASSING:
            raise _UnansweredError(f"status {status}", pause)
        if status != 200:
            return Answer(score=None, reason=f"status {status}")
        content = _content(data)
        if content is None:
            return Answer(score=None, reason="the answer is no chat completion")
        score = read_score(content)
        return Answer(
            score=score,
            reason=""
            if score is not None
            else "the answer's last line states no score from -1 to 1",
        )

    def _post(self, body: bytes) -> tuple[int, bytes, float]:
        """(status, body, seconds to wait if it says so). A body is read up to a limit of size and
        of time."""
        import httpx

        settings = self.settings
        deadline = time.monotonic() + settings.timeout_seconds
        address = f"{settings.url.rstrip('/')}/chat/completions"
        try:
            with self.client.stream(
                "POST", address, content=body, headers={"Content-Type": "application/json"}
            ) as response:
                data = b""
                for part in response.iter_bytes():
                    data += part
                    if len(data) > _MAX_BODY:
                        return response.status_code, b"", 0.0
                    if time.monotonic() > deadline:
                        raise _UnansweredError("the answer took too long")
                return response.status_code, data, _seconds(response.headers.get("retry-after", ""))
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            raise _UnansweredError(type(error).__name__) from None


def _content(data: bytes) -> str | None:
    """The text of a chat completion's first choice; None if the body is anything else."""
    try:
        content = json.loads(data)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
    return content if isinstance(content, str) else None


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0
