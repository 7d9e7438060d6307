"""A conversation in the terminal: tokens appear in the order in which they are unmasked, each in
its place.

What the model writes is hostile: nothing of it reaches the terminal but printable characters
(`printable`) and line breaks.
"""

import time
from collections.abc import Callable
from itertools import groupby

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tracerl.errors import printable
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.rollouts.responses import opening_ids
from tracerl.sampling.sampler import Commit, Request, sample
from tracerl.seeds import key_for
from tracerl.settings.sampling import Sampler
from tracerl.types import Trajectory

MASKED = "░"
HELP = "/reset forgets the conversation, /exit or an empty Ctrl-D ends it, Ctrl-C stops a response."


class Unmasking:
    """A response while it is sampled: which tokens are known, and which of them the last step
    brought."""

    def __init__(self, tokenizer: Tokenizer, first_block: int, block_size: int) -> None:
        """first_block: response positions of the first block, fewer than `block_size` where the
        prompt fills a part of it."""
        self.tokenizer, self.first_block, self.block_size = tokenizer, first_block, block_size
        self.tokens: dict[int, int] = {}
        self.latest: set[int] = set()

    def add(self, commit: Commit) -> None:
        self.tokens.update(commit.tokens)
        self.latest = {position for position, _ in commit.tokens}

    def render(self) -> Text:
        """The response up to the end of its live block: known text, the newest of it in bold, and a
        mark for each masked position."""
        if not self.tokens:
            return Text(MASKED * self.first_block, style="dim")
        behind = max(self.tokens) - self.first_block
        width = (
            self.first_block + (behind // self.block_size + 1) * self.block_size
            if behind >= 0
            else self.first_block
        )
        out = Text()
        for state, group in groupby(
            range(width),
            key=lambda p: (
                "masked" if p not in self.tokens else "new" if p in self.latest else "known"
            ),
        ):
            run = list(group)
            if state == "masked":
                out.append(MASKED * len(run), style="dim")
            else:
                text = self.tokenizer.decode([self.tokens[position] for position in run])
                out.append(printable(text), style="bold green" if state == "new" else "")
        return out


def converse(
    model: Policy,
    tokenizer: Tokenizer,
    settings: Sampler,
    seed: int,
    console: Console,
    read: Callable[[], str | None],
) -> list[dict[str, str]]:
    """Talks until `read` gives None or "/exit"; returns the messages of the conversation."""
    messages: list[dict[str, str]] = []
    turn = 0
    while (line := read()) is not None and line.strip() != "/exit":
        if line.strip() == "/reset":
            messages = []
            console.print("(forgotten)", style="dim")
            continue
        if not line.strip():
            continue
        asked = [*messages, {"role": "user", "content": line}]
        prompt = [*tokenizer.chat_ids(asked), *opening_ids(tokenizer, settings)]
        if len(prompt) > settings.max_prompt_tokens:
            console.print(
                f"The conversation is {len(prompt)} tokens long, the limit is "
                f"{settings.max_prompt_tokens}: /reset it.",
                style="red",
            )
            continue
        turn += 1
        try:
            answer = _respond(
                model, tokenizer, settings, Request(prompt, key_for(seed, "chat", turn)), console
            )
        except KeyboardInterrupt:
            console.print("(stopped; the question is forgotten)", style="dim")
            continue
        messages = [*asked, {"role": "assistant", "content": settings.opening + answer}]
    return messages


def _respond(
    model: Policy, tokenizer: Tokenizer, settings: Sampler, request: Request, console: Console
) -> str:
    """Samples one response in place and returns its text."""
    filled = (
        len(request.prompt_ids) % settings.block_size
        if model.family.attention == "block_causal"
        else 0
    )
    unmasking = Unmasking(tokenizer, settings.block_size - filled, settings.block_size)
    started = time.monotonic()
    with Live(
        unmasking.render(), console=console, auto_refresh=False, vertical_overflow="visible"
    ) as live:

        def show(commit: Commit) -> None:
            unmasking.add(commit)
            live.update(unmasking.render(), refresh=True)

        [trajectory] = sample(model, tokenizer.end_ids, [request], settings, on_commit=show)
        text = tokenizer.decode(trajectory.response_ids[: trajectory.num_tokens].tolist())
        live.update(Text(printable(text)), refresh=True)
    console.print(_summary(trajectory, time.monotonic() - started), style="dim", highlight=False)
    return text


def _summary(trajectory: Trajectory, seconds: float) -> str:
    tokens, passes = trajectory.num_tokens, trajectory.num_forwards
    cut = " (cut at the limit)" if trajectory.stop_reason == "length" else ""
    return (
        f"{tokens} tokens in {trajectory.num_steps} steps, {passes} passes, "
        f"{tokens / max(seconds, 1e-9):.0f} tokens/s{cut}"
    )
