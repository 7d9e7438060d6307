"""A conversation: tokens appear in the order in which they are unmasked, in their places, and
nothing of them commands the terminal."""

import io
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.tiny import sharp_model, tiny_sampler
from tracerl.errors import printable
from tracerl.models.checkpoint import save_checkpoint
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import character_tokenizer
from tracerl.reporting.chat import MASKED, Unmasking, converse
from tracerl.sampling.sampler import Commit, Request, sample
from tracerl.seeds import key_for

TOKENIZER = character_tokenizer()
ROOT = Path(__file__).parents[2]


def model_of(family: str) -> Policy:
    return sharp_model(family, vocab_size=TOKENIZER.vocab_size)


def talk(family: str, *lines: str, **changes: Any) -> tuple[list[dict[str, str]], str]:
    """The conversation and everything that went to the terminal."""
    screen, waiting = io.StringIO(), iter([*lines, None])
    console = Console(
        file=screen,
        force_terminal=True,
        width=200,
        height=50,
        markup=False,
        emoji=False,
        color_system=None,
    )
    messages = converse(
        model_of(family), TOKENIZER, tiny_sampler(**changes), 1, console, lambda: next(waiting)
    )
    return messages, screen.getvalue()


def test_masked_positions_hold_their_place_until_their_token_is_known():
    unmasking = Unmasking(TOKENIZER, first_block=2, block_size=4)
    ids = TOKENIZER.encode("abcdef")
    assert unmasking.render().plain == MASKED * 2
    unmasking.add(Commit(0, [(1, ids[1])]))
    assert unmasking.render().plain == MASKED + "b"
    unmasking.add(Commit(0, [(0, ids[0])]))
    assert unmasking.render().plain == "ab"
    unmasking.add(Commit(0, [(3, ids[3]), (5, ids[5])]))
    assert unmasking.render().plain == "ab" + MASKED + "d" + MASKED + "f"
    assert [
        (span.start, span.end) for span in unmasking.render().spans if "bold" in str(span.style)
    ] == [(3, 4), (5, 6)]


@pytest.mark.parametrize("family", ["sdar", "llada", "dream"])
def test_what_is_shown_grows_in_the_order_of_the_step_map(family):
    """The frames of the screen are those that the trajectory's step map describes."""
    model, settings = model_of(family), tiny_sampler(steps_per_block=2)
    request, frames = Request(TOKENIZER.prompt_ids("1+1=?"), key_for(1, "chat", 1)), []
    filled = 1 if family == "sdar" else 0
    unmasking = Unmasking(TOKENIZER, 4 - filled, 4)

    def show(committed: Commit) -> None:
        unmasking.add(committed)
        frames.append(unmasking.render().plain)

    [trajectory] = sample(model, (), [request], settings, on_commit=show)
    assert len(frames) == trajectory.num_steps
    for step, frame in enumerate(frames, start=1):
        known = trajectory.step_map <= step
        width = (filled + int(np.flatnonzero(known).max())) // 4 * 4 + 4 - filled
        pieces = [
            TOKENIZER.decode([int(i)]) if k else MASKED
            for i, k in zip(trajectory.response_ids[:width], known[:width], strict=True)
        ]
        assert frame == printable("".join(pieces))


def test_a_conversation_remembers_its_turns_until_it_is_reset():
    messages, screen = talk("sdar", "1+1=", "", "2+2=", "/exit", "never read")
    assert [(m["role"], m["content"]) for m in messages if m["role"] == "user"] == [
        ("user", "1+1="),
        ("user", "2+2="),
    ]
    first, second = (m["content"] for m in messages if m["role"] == "assistant")
    model, settings = model_of("sdar"), tiny_sampler()
    for turn, (prompt, answer) in enumerate(
        [("1+1=", first), (f"1+1={first}2+2=", second)], start=1
    ):
        [alone] = sample(
            model,
            TOKENIZER.end_ids,
            [Request(TOKENIZER.encode(prompt), key_for(1, "chat", turn))],
            settings,
        )
        assert answer == TOKENIZER.decode(alone.response_ids[: alone.num_tokens].tolist())
    assert screen.count("tokens/s") == 2
    assert printable(second).splitlines()[-1] in screen
    messages, _ = talk("sdar", "1+1=", "/reset", "2+2=")
    assert [m["content"] for m in messages if m["role"] == "user"] == ["2+2="]


def test_the_opening_begins_the_answer():
    messages, _ = talk("llada", "1+1=", opening="So ")
    assert messages[-1]["content"].startswith("So ")


def test_a_conversation_that_is_too_long_is_refused_and_goes_on():
    messages, screen = talk("sdar", "1" * 65, "1+1=")
    assert "65 tokens long" in screen
    assert [m["content"] for m in messages if m["role"] == "user"] == ["1+1="]


def test_a_response_can_be_stopped(monkeypatch):
    calls: Iterator[bool] = iter([True, False])

    def interrupted(*arguments: object, **named: object) -> object:
        if next(calls):
            raise KeyboardInterrupt
        return sample(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("tracerl.reporting.chat.sample", interrupted)
    messages, screen = talk("sdar", "1+1=", "2+2=")
    assert "stopped" in screen
    assert [m["content"] for m in messages if m["role"] == "user"] == ["2+2="]


def test_nothing_that_a_terminal_obeys_is_shown():
    assert printable("a\x1b[2Jb\r\x07\u202ec\n") == "a\\x1b[2Jb\\r\\x07\\u202ec\n"


def test_the_command_talks_through_a_terminal(tmp_path):
    save_checkpoint(model_of("sdar"), TOKENIZER, tmp_path / "model")
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-c",
        "from tracerl.cli import main; main()",
        "chat",
        "--model",
        str(tmp_path / "model"),
        "--device",
        "cpu",
        "--set",
        "max_new_tokens=8",
        "--set",
        "temperature=1.0",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    screen = b""

    def wait_for(text: bytes, times: int) -> None:
        nonlocal screen
        deadline = time.monotonic() + 200
        while screen.count(text) < times:
            assert time.monotonic() < deadline, screen.decode(errors="replace")
            if select.select([ours], [], [], 1.0)[0]:
                screen += os.read(ours, 4096)

    wait_for(b"\n> ", 1)
    os.write(ours, b"1+1=\n")
    wait_for(b"tokens/s", 1)
    wait_for(b"> ", 2)
    os.write(ours, b"/exit\n")
    assert process.wait(timeout=100) == 0
    os.close(ours)
    assert MASKED.encode() in screen, "masked positions are shown before their tokens"
    assert b"max_new_tokens 8" in screen
