"""The records that travel between the parts: frozen, token ids only, joined by id and never by
position in parallel lists.

Notation: P prompt length, R response length (whole blocks up to the end of the last one sampled), K
block size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # those who only move rows do not wait for torch
    import torch

    from tracerl.models.masks import Layout

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """A problem with a verifiable answer.

    Example: Task("sums-short/2c1f", "sums-short", "sums", "test", 3, "4+7+5=", "16", "11;16;#16")

    task_id: task set and a hash of the prompt. kind: which verifier decides. difficulty: number of
    terms or operators.
    solution: a worked solution in the form the model should write it, "" if there is none.
    spec: what the verifier needs beyond the answer, as JSON (a code task's tests, a puzzle's
    clues), "" if nothing.
    """

    task_id: str
    task_set: str
    kind: str
    split: str
    difficulty: int
    prompt: str
    answer: str
    solution: str
    spec: str = ""


@dataclass(frozen=True)
class Trajectory:
    """One response and how it was unmasked; enough to score every one of its decisions again
    without re-tokenising anything.

    prompt_ids: int32 [P]. response_ids: int32 [R], the whole last block even where text ends
    before.
    step_map: int32 [R], the 1-based step that committed each response token; 0 marks positions
    never reached (full attention only).
    logprobs: float32 [R], log-probability of each committed token at the sampling temperature,
    before any filter; NaN where step_map is 0
        or where the sampler did not write the token (worked solutions).
    filtered_logprobs: the same under the distribution after top-k and top-p; equal to logprobs when
    both are off.
    num_tokens: tokens up to and including the first end token; later ones are neither trained,
    counted nor shown.
    block_size: the block size it was sampled at. canvas_length: P plus every position the sampler
    saw.
    stop_reason: "end" or "length".
    order_in_step, order_logprobs: of a drawn order (plackett_luce), the 1-based place of each token
    among those of its step, int32 [R], and
        the log-probability of drawing it at that place, float32 [R]; their sum over a step is log p
        of the step's ordered set.
    cache_mode, cache_horizon: the approximate cache ("prefix", "dual", "window") under which the
    model saw something else than a scorer
        will see, or "none" or "exact".
    num_denoising_forwards, num_forwards: forward passes that chose tokens; all of them, with
    prefill, cache commits and the passes of
        guidance.

    Example, P = 2, K = 2: prompt_ids [7 9], response_ids [4 1 2 0], step_map [1 2 3 3], num_tokens
    3 (2 is the end token).
    """

    prompt_ids: Ids
    response_ids: Ids
    step_map: Ids
    logprobs: Floats
    filtered_logprobs: Floats
    num_tokens: int
    block_size: int
    canvas_length: int
    stop_reason: str
    num_denoising_forwards: int = 0
    num_forwards: int = 0
    order_in_step: Ids | None = None
    order_logprobs: Floats | None = None
    cache_mode: str = "none"
    cache_horizon: int | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_steps(self) -> int:
        """Denoising steps up to the last commit (on Dream's schedule a step may commit nothing)."""
        return int(self.step_map.max(initial=0))


@dataclass(frozen=True)
class Chunks:
    """The chunks of a response, C of them, and what a judge thinks of them.

    ends: int32 [C], chunk c holds the tokens ends[c - 1] to ends[c]; the last is num_tokens.
    scores: float32 [C], from -1 to 1, NaN where the judge is undecided. rewards: float32 [C], the
    scores standardised in the group, weighted: what RL is paid.

    Example: of `11;16;#16` in characters, ends [3, 6, 10], scores [1, 1, 1], rewards [0.58, 0, 1].
    """

    ends: Ids
    scores: Floats
    rewards: Floats


@dataclass(frozen=True)
class Rollout:
    """A trajectory of a task with its verdict: one row of the store.

    stage: the stage that sampled it ("rl@short"). iteration, sample_index: which of its iterations,
    which of the task's responses.
    reward: what RL is paid; reward_parts: its named summands. verdict: "correct", "wrong" or
    "undecided". text: decoded response.
    detail: why that verdict, where there is more to say; of a program the sandbox and the verdict
    on each test.
    settings: the sampler's settings as recorded with the row. policy_hash: hash of the weights that
    sampled it. chunks: where a round has process rewards.
    """

    rollout_id: str
    stage: str
    iteration: int
    sample_index: int
    task: Task
    trajectory: Trajectory
    text: str
    reward: float
    verdict: str
    policy_hash: str
    seed: int
    settings: dict[str, object]
    reward_parts: dict[str, float] = field(default_factory=dict)
    detail: str = ""
    chunks: Chunks | None = None


@dataclass(frozen=True)
class Rivals:
    """Who competed for being committed in the segments that views predict: a contest per segment,
    its entries in the order of commitment.

    row, column: int64 [C], where the hidden state lies that scores each entry. contest: int64 [C],
    ascending. place: int64 [C], 0, 1, ... in each contest: entry k was chosen among the entries k,
    k + 1, .... chosen: int64 [T], the entry of each predicted token.
    """

    row: torch.Tensor
    column: torch.Tensor
    contest: torch.Tensor
    place: torch.Tensor
    chosen: torch.Tensor


@dataclass(frozen=True)
class Views:
    """Rows ready for one forward pass, and the tokens that pass predicts.

    input_ids: int64 [rows, length]. layout: positions, blocks and streams of the same shape.
    The other tensors are flat, one entry per predicted token, T of them:
    row, column: where the hidden state lies that predicts it (the family's shift included).
    targets: token ids. source: index of the trajectory it belongs to. token: index in that
    trajectory's response.
    group: number of the (block, step group) it belongs to, counted over the batch. weight: float32,
    the objective's weight of the token
        before any reduction (1 unless the noise schedule asks for another).
    rivals: what the order of commitment is scored with, for the method that scores it.

    Law (TraceRL): over the views of one trajectory every trainable token is predicted exactly once.
    """

    input_ids: torch.Tensor
    layout: Layout
    row: torch.Tensor
    column: torch.Tensor
    targets: torch.Tensor
    source: torch.Tensor
    token: torch.Tensor
    group: torch.Tensor
    weight: torch.Tensor
    rivals: Rivals | None = None
