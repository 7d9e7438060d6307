"""The records that travel between the parts: frozen, NumPy arrays of token ids, joined by id and
never by position in parallel lists.

Notation: P prompt length, R response length (whole blocks up to the end of the last sampled one).
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

# What a task's `kind` may be: it names the verifier that decides; "open" is for a judge.
TASK_KINDS = ("sums", "arithmetic", "text", "math", "code", "countdown", "sudoku", "gym", "open")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A problem with a verifiable answer.

    Example: Task(task_id="sums-short/2c1f", task_set="sums-short", kind="sums", split="test",
    difficulty=3, prompt="4+7+5=", answer="16", solution="11;16;#16")
    """

    task_id: str
    """Task set and a hash of the prompt."""
    task_set: str
    """Name of the task set in the params."""
    kind: str
    """Which verifier decides; one of TASK_KINDS."""
    split: str
    """"train" or "test"."""
    difficulty: int
    """Number of terms or operators."""
    prompt: str
    """The question, as text."""
    answer: str
    """The answer that the verifier compares with."""
    solution: str
    """A worked solution in the form that the model should write; "" if there is none."""
    spec: str = ""
    """What the verifier needs beyond the answer, as JSON (a code task's tests, a puzzle's clues);
    "" if nothing."""


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One response and how it was unmasked; enough to score every one of its decisions again
    without re-tokenising anything.

    Example, P = 2, block size 2; 2 is the end token: Trajectory(prompt_ids=[7 9],
    response_ids=[4 1 2 0], step_map=[1 2 3 3], logprobs=[-0.1 -0.7 -0.2 -1.3],
    filtered_logprobs=[-0.1 -0.7 -0.2 -1.3], num_tokens=3, block_size=2, canvas_length=6,
    stop_reason="end", num_denoising_forwards=3, num_forwards=6)
    """

    prompt_ids: Ids
    """int32 [P]: token ids of the prompt."""
    response_ids: Ids
    """int32 [R]: token ids of the response, the whole last block even where the text ends
    before."""
    step_map: Ids
    """int32 [R]: the 1-based step that committed each token; 0 where none did (full attention
    only)."""
    logprobs: Floats
    """float32 [R]: log-probability of each committed token at the sampling temperature, before any
    filter; NaN where step_map is 0 or the sampler did not write the token (worked solutions)."""
    filtered_logprobs: Floats
    """float32 [R]: the same under the distribution after top-k and top-p; equal to `logprobs` when
    both are off."""
    num_tokens: int
    """Tokens up to and including the first end token; later ones are neither trained, counted nor
    displayed."""
    block_size: int
    """The block size it was sampled at, in tokens."""
    canvas_length: int
    """P plus every position that the sampler saw, in tokens."""
    stop_reason: str
    """"end" or "length"."""
    num_denoising_forwards: int = 0
    """Forward passes that chose tokens."""
    num_forwards: int = 0
    """All forward passes: with prefill, cache commits and the passes of guidance."""
    edit_map: Ids | None = None
    """int32 [R]: the 1-based step that last replaced each token, 0 for never; None unless the
    sampler replaces tokens. The log-probabilities are those of the last replacement."""
    order_in_step: Ids | None = None
    """int32 [R]: of a drawn order (plackett_luce), the 1-based place of each token in its step."""
    order_logprobs: Floats | None = None
    """float32 [R]: log-probability of drawing each token at that place; the sum over a step is
    log p of the step's ordered set."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_steps(self) -> int:
        """Denoising steps up to the last commit (on Dream's schedule a step may commit nothing)."""
        return int(self.step_map.max(initial=0))


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """The C chunks of a response, and what a judge thinks of them.

    Example: of `11;16;#16` in characters, Chunks(ends=[3 6 10], scores=[1 1 1],
    rewards=[0.58 0 1])
    """

    ends: Ids
    """int32 [C]: chunk c holds the tokens ends[c - 1] to ends[c]; the last is num_tokens."""
    scores: Floats
    """float32 [C]: from -1 to 1, NaN where the judge is undecided."""
    rewards: Floats
    """float32 [C]: the scores standardised in the group and weighted; what RL is paid."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A trajectory of a task with its verdict: one row of the store.

    Example: Rollout(rollout_id="rl@short/3/sums-short/2c1f/0", stage="rl@short", iteration=3,
    sample_index=0, task=task, trajectory=trajectory, text="11;16;#16", reward=1.0,
    verdict="correct", policy_hash="9f31c2...", seed=1, settings={"block_size": 2, ...},
    reward_parts={"correct": 1.0})
    """

    rollout_id: str
    """Unique in the store."""
    stage: str
    """The stage that sampled it ("rl@short")."""
    iteration: int
    """The iteration of that stage, 0 before the first."""
    sample_index: int
    """Which of the task's responses, from 0."""
    task: Task
    """The task it answers."""
    trajectory: Trajectory
    """The response."""
    text: str
    """The decoded response."""
    reward: float
    """What RL is paid."""
    verdict: str
    """"correct", "wrong" or "undecided"."""
    policy_hash: str
    """Hash of the weights that sampled it."""
    seed: int
    """The run's random seed."""
    settings: dict[str, object]
    """The sampler's settings as recorded with the row."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """The named summands of the reward."""
    detail: str = ""
    """Why that verdict, where there is more to say; of a program the sandbox and the verdict on
    each test."""
    chunks: Chunks | None = None
    """Where a round has process rewards."""
