"""Trajectories for tests: written out, random, or any that a sampler can make."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tests.tiny import RULES, VOCAB_SIZE
from tracerl.models.families import FAMILIES
from tracerl.models.masks import first_live_start
from tracerl.seeds import generator_for
from tracerl.types import Trajectory


def make_trajectory(
    prompt_length: int,
    steps: list[int],
    num_tokens: int,
    block_size: int,
    order: list[int] | None = None,
) -> Trajectory:
    nothing = np.zeros(len(steps), np.float32)
    return Trajectory(
        prompt_ids=np.full(prompt_length, 3, np.int32),
        response_ids=np.arange(5, 5 + len(steps), dtype=np.int32),
        step_map=np.array(steps, np.int32),
        logprobs=nothing,
        filtered_logprobs=nothing,
        num_tokens=num_tokens,
        block_size=block_size,
        canvas_length=prompt_length + len(steps),
        stop_reason="length",
        order_in_step=None if order is None else np.array(order, np.int32),
    )


EVERYTHING = 10**6  # more segments than any response has


def ordered(trajectory: Trajectory, seed: int) -> Trajectory:
    """The trajectory with a random order inside its steps."""
    order = generator_for(seed, "order").permutation(len(trajectory.step_map)).astype(np.int32)
    return replace(trajectory, order_in_step=order)


def responses(family: str) -> list[Trajectory]:
    """Four responses of unlike length, some ending inside a block, with an order inside their
    steps."""
    rng, batch = generator_for(1, "responses", family), []
    for prompt, blocks, ended in ((3, 2, 3), (5, 3, 9), (4, 1, 4), (6, 2, 4)):
        first = 0 if FAMILIES[family].attention == "full" else prompt
        length = blocks * 4 - first % 4
        live = (first + np.arange(length)) // 4
        steps = live * 3 + rng.integers(1, 4, size=length)
        steps = np.unique(steps, return_inverse=True)[1].reshape(-1) + 1
        made = make_trajectory(
            prompt, steps.tolist(), min(ended, length), 4, order=rng.permutation(length).tolist()
        )
        ids = rng.integers(3, 32, size=prompt + length).astype(np.int32)
        batch.append(replace(made, prompt_ids=ids[:prompt], response_ids=ids[prompt:]))
    return batch


@st.composite
def trajectories(draw: st.DrawFn, block_size: int, full: bool) -> Trajectory:
    """Any trajectory a sampler of this block size can make: blocks in order, inside a block any
    ordered partition."""
    prompt_length, num_blocks = draw(st.integers(1, 2 * block_size + 1)), draw(st.integers(1, 4))
    start = first_live_start(prompt_length, block_size, "full" if full else "block_causal")
    end = start + num_blocks * block_size
    step_map: list[int] = []
    for block in range(num_blocks):
        inside = block_size - (prompt_length - start if block == 0 else 0)
        drawn = draw(st.lists(st.integers(0, block_size - 1), min_size=inside, max_size=inside))
        ranks = np.unique(drawn, return_inverse=True)[1].reshape(-1)
        step_map += [int(rank) + 1 + max(step_map, default=0) for rank in ranks]
    ids = draw(st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=end, max_size=end))
    nothing = np.zeros(len(step_map), dtype=np.float32)
    return Trajectory(
        prompt_ids=np.array(ids[:prompt_length], dtype=np.int32),
        response_ids=np.array(ids[prompt_length:], dtype=np.int32),
        step_map=np.array(step_map, dtype=np.int32),
        logprobs=nothing,
        filtered_logprobs=nothing,
        num_tokens=draw(st.integers(1, len(step_map))),
        block_size=block_size,
        canvas_length=end + (block_size * draw(st.integers(0, 2)) if full else 0),
        stop_reason="end",
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[Trajectory], int]:
    """A family, some trajectories of one block size, and a training block that is a multiple of
    it."""
    family = draw(st.sampled_from(sorted(RULES)))
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    items = trajectories(block_size, FAMILIES[family].attention == "full")
    return (
        family,
        draw(st.lists(items, min_size=1, max_size=3)),
        block_size * draw(st.sampled_from([1, 2, 3])),
    )
