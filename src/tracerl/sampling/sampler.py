"""The one denoising loop: for traces, RL rollouts, evaluation and chat.

Requests run in slots. Each step handles the active block of every slot, wherever in its response it
stands; a finished row leaves at once and the next request takes its place. The host keeps the rows
(slots.py), the device the weights and the key/value caches (passes.py); they meet once a step, when
the host reads what was committed. What a step passes through the model depends on the cache:

* none: the whole canvas.
* exact (block-causal families): the active blocks; a finished block is passed once more, clean, to
commit it. A prompt that several
  requests share is passed once.
* prefix, dual, window (full attention, approximate): the whole canvas at the start of a block,
which also refreshes every key; then the
  active block with what follows it (prefix), alone (dual), or with the next `horizon` positions,
  beyond which nothing is seen (window).

Contract: a row's tokens depend on its own request only, not on batch size, order, padding or the
memory there is (identical in float64; in float32 the noise is identical and a decision can differ
where its margin is at rounding level). Committed tokens are never overwritten. A block with an end
token is denoised to completion, then the row stops. A row is admitted only with room for its
longest response, so that an admitted row always finishes; a request for which there will never be
room is refused before anything is sampled.

Departures from the papers: blocks of block-causal families lie on the absolute grid, also while
sampling; the position that predicts the first token of a block of a shifted family is passed with
the block (published cached samplers commit that token from the refresh pass).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tracerl.errors import DataError
from tracerl.models.finite import nonfinite_error
from tracerl.models.masks import Layout, attention_blocks
from tracerl.models.policy import Policy
from tracerl.sampling.caches import cache_for, hidden_states
from tracerl.sampling.drawing import TokenDraws, draw, guide
from tracerl.sampling.orders import choose, needs_module, order_logprobs, perturb
from tracerl.sampling.passes import Passes, to_device
from tracerl.sampling.slots import ActiveBlock, Ints, Slots, StepResult
from tracerl.sampling.slots import Request as Request
from tracerl.seeds import uniforms
from tracerl.settings.sampling import Sampler
from tracerl.types import Trajectory

# Set in the counter of a position's order noise, so that no uniform number decides both a token and
# an order.
_ORDER = 1 << 31
_POSITIONS_STEP = (
    64  # of static shapes: the predicted positions of a step are padded to a multiple of this
)


@dataclass(frozen=True)
class Commit:
    """Tokens that a step has just committed in one response."""

    request: int
    """Index of the request."""
    tokens: list[tuple[int, int]]
    """(index in the response, id), in order of position."""


@torch.inference_mode()
def sample(
    model: Policy,
    end_ids: Sequence[int],
    requests: Sequence[Request],
    settings: Sampler,
    on_done: Callable[[int], None] | None = None,
    on_commit: Callable[[Commit], None] | None = None,
) -> list[Trajectory]:
    """One trajectory per request, in the order of the requests.

    `on_done` is told how many rows have just finished, `on_commit` what a step has committed.
    Raises DataError for an empty prompt, an id outside the vocabulary, a cache or an order module
    that the model cannot have, or a cache that is too small for the longest request, and
    NonFiniteError at the first logits that are not finite.
    """
    _check(model, requests, settings)
    engine = _Engine(model, end_ids, requests, settings)
    slots, waiting = engine.slots, deque(_by_prompt(requests))
    results: dict[int, Trajectory] = {}
    while waiting or slots.count:
        free = slots.size - slots.count
        if waiting and (slots.count == 0 or free * 4 >= slots.size):
            engine.passes.admit([waiting.popleft() for _ in range(min(free, len(waiting)))])
        finished = engine.step(on_commit)
        results.update(finished)
        if finished and on_done:
            on_done(len(finished))
    return [results[i] for i in range(len(requests))]


def static_shapes(device: torch.device) -> bool:
    """Whether passes should have few shapes (compiled graphs, kernels that are launched) rather
    than small ones."""
    return device.type == "cuda"


def _check(model: Policy, requests: Sequence[Request], settings: Sampler) -> None:
    if settings.cache.is_approximate and model.family.attention != "full":
        raise DataError(
            "the cache does not fit the model",
            where=f"sampler.cache, family {model.family.name}",
            got=settings.cache.kind,
            wanted="exact or none: a block-causal family has an exact cache, so it needs no "
            "approximate one",
        )
    if settings.edit is not None and (
        model.family.attention == "full" or model.family.crosses_edges
    ):
        raise DataError(
            "the model's sampler does not replace tokens",
            where=f"sampler.edit, family {model.family.name}",
            got=settings.edit,
            wanted="null, or a block-causal family whose logits are not shifted",
        )
    if needs_module(settings.order) and model.order is None:
        raise DataError(
            "the checkpoint has no order module",
            where="sampler.order.score",
            got="module",
            wanted="max_logit, max_logprob, or the checkpoint of a round whose order has this "
            "score",
        )
    check_prompts(requests, model.architecture.vocab_size)


def check_prompts(requests: Sequence[Request], vocab_size: int) -> None:
    """Raises DataError naming the first request whose prompt is empty or holds an id outside the
    vocabulary."""
    for i, request in enumerate(requests):
        ids = request.prompt_ids
        if len(ids) == 0 or min(ids) < 0 or max(ids) >= vocab_size:
            raise DataError(
                "a prompt cannot be sampled from",
                where=f"request {i}",
                got=f"{len(ids)} tokens: {list(ids)[:12]}",
                wanted=f"at least one id, all in 0 to {vocab_size - 1}",
            )


def _by_prompt(requests: Sequence[Request]) -> list[int]:
    """The order of admission: as given, but requests with one prompt follow each other."""
    seen: dict[tuple[int, ...], int] = {}
    rank = [seen.setdefault(tuple(request.prompt_ids), i) for i, request in enumerate(requests)]
    return sorted(range(len(requests)), key=lambda i: (rank[i], i))


def rows_that_fit(slots: Slots, settings: Sampler) -> int:
    """How many rows of the longest request's length the cache has room for, at most those that are
    wanted.

    Raises DataError if it has room for none: such a request could wait for ever.
    """
    if not slots.cache.stores_keys or settings.cache_tokens is None:
        return slots.size
    fitting = settings.cache_tokens // slots.width
    if not fitting:
        longest = int(np.argmax(slots.limit))
        raise DataError(
            "the cache has no room for a request",
            where=f"sampler.cache_tokens, request {longest}",
            got=f"{settings.cache_tokens} positions",
            wanted=f"at least {slots.width}: a prompt of "
            f"{len(slots.requests[longest].prompt_ids)} tokens and {settings.max_new_tokens} new "
            "ones, in whole blocks",
            do="raise cache_tokens, or lower max_prompt_tokens or max_new_tokens",
        )
    return min(slots.size, fitting)


class _Engine:
    """The slots, the passes over them, and what a step decides."""

    def __init__(
        self,
        model: Policy,
        end_ids: Sequence[int],
        requests: Sequence[Request],
        settings: Sampler,
    ) -> None:
        self.model = model
        self.settings = settings
        self.static = static_shapes(model.device)
        self.order_module = model.order if needs_module(settings.order) else None
        self.num_branches = 2 if settings.guidance else 1
        self.slots = Slots(
            requests,
            end_ids,
            settings,
            model.family,
            model.architecture.mask_id,
            cache_for(model.family.attention, settings),
        )
        self.slots.allocate(rows_that_fit(self.slots, settings))
        self.passes = Passes(model, self.slots, self.num_branches, self.static)

    def step(self, on_commit: Callable[[Commit], None] | None = None) -> dict[int, Trajectory]:
        """One forward pass over all live rows; returns the trajectories that it finished, by
        request index."""
        slots = self.slots
        active = slots.active_block()
        hidden = [hidden_states(self.passes, active, branch) for branch in range(self.num_branches)]
        result = self._decide(hidden, active) if len(active.rows) else None
        rows, positions = slots.record(active, result, self.num_branches)
        if on_commit and len(rows):
            self._report(on_commit, rows, positions)
        finished = slots.advance(active)
        results = {int(slots.request[row]): slots.trajectory(row, ended) for row, ended in finished}
        if finished:
            self.passes.close_gaps([row for row, _ in finished])
        return results

    def _decide(self, hidden: list[torch.Tensor], active: ActiveBlock) -> StepResult:
        """Draws a token at each masked position, chooses which to commit, and reads the result:
        the only host/device sync of a step."""
        rows, columns = active.rows, active.columns
        if self.static:  # the last entry over and over; it is written to its place once more
            more = -len(rows) % _POSITIONS_STEP
            rows = np.pad(rows, (0, more), mode="edge")
            columns = np.pad(columns, (0, more), mode="edge")
        draws = self._draw(hidden, active, rows, columns)
        masked, step = self._to_device(active.masked, self.slots.step_in_block[: self.slots.count])
        ranking = self._ranking(draws, active)
        edge = int(self.model.family.crosses_edges)
        commit = choose(ranking, masked, step, self.settings, edge)
        if self.settings.edit is not None:
            commit |= self._edits(draws, active)
        if edge:
            # The next block's first token is alone; a schedule might never get to it.
            commit[:, -1] = masked[:, -1]
        fields = [torch.where(commit, draws.tokens, -1), draws.logprobs, draws.filtered_logprobs]
        if self.settings.order.is_drawn:
            fields += order_logprobs(draws.order_scores, ranking, masked)
        tokens, *others = self._read(torch.stack([field.double() for field in fields]))
        self._check_finite(others[0], active)
        return StepResult(
            tokens=tokens.astype(np.int64),
            logprobs=others[0],
            filtered_logprobs=others[1],
            order=others[2] if self.settings.order.is_drawn else None,
            order_logprobs=others[3] if self.settings.order.is_drawn else None,
        )

    def _edits(self, draws: TokenDraws, active: ActiveBlock) -> torch.Tensor:
        """Committed tokens that the model would replace, bool [n, K]."""
        edit = self.settings.edit
        assert edit is not None
        rows = np.arange(len(active.positions))[:, None]
        at = active.positions.clip(max=self.slots.width - 1)
        tokens, editable = self._to_device(self.slots.canvas[rows, at], active.editable)
        return editable & (draws.tokens != tokens) & (draws.confidence > edit.threshold)

    def _check_finite(self, logprobs: npt.NDArray[np.float64], active: ActiveBlock) -> None:
        """Raises NonFiniteError, naming request, step and layer, if the logits of a masked position
        were not finite: then its log-probability is NaN."""
        wrong = np.isnan(logprobs) & (active.masked | active.editable)
        if not wrong.any():
            return
        slots = self.slots
        row, column = np.argwhere(wrong)[0]
        end = int(slots.end[row])
        positions, ids = self._to_device(np.arange(end)[None], slots.canvas[row, :end][None])
        attention = self.model.family.attention
        blocks = attention_blocks(positions, self.settings.block_size, attention)
        raise nonfinite_error(
            self.model,
            f"request {slots.request[row]}, step {slots.num_steps[row] + 1}, "
            f"position {active.targets[row, column]}",
            ids,
            Layout(positions, blocks, torch.zeros_like(positions)),
        )

    def _draw(
        self, hidden: list[torch.Tensor], active: ActiveBlock, rows: Ints, columns: Ints
    ) -> TokenDraws:
        """A token at each masked position, as a [n, K] table."""
        counters = (self.slots.num_steps[rows] << 32) + active.targets[rows, columns]
        row, column, counter, key = self._to_device(rows, columns, counters, self.slots.key[rows])
        logits = self.model.logits(hidden[0][row, column])
        if self.settings.guidance:
            unconditional = self.model.logits(hidden[1][row, column])
            logits = guide(logits, unconditional, self.settings.guidance)
        logits = self.model.mask_logits_(logits)
        scores = None
        if self.order_module is not None:
            scores = self.order_module(hidden[0][row, column])
        draws = draw(logits, uniforms(key, counter), self.settings, scores)
        return draws.scatter((row, column), torch.Size(active.positions.shape))

    def _ranking(self, draws: TokenDraws, active: ActiveBlock) -> torch.Tensor:
        """What positions are chosen by: how confident the model is of each, or, of an order that is
        drawn, its score with noise."""
        if not self.settings.order.is_drawn:
            return draws.confidence
        counters = (self.slots.num_steps[: self.slots.count, None] << 32) + active.targets + _ORDER
        counter, key = self._to_device(counters, self.slots.key[: self.slots.count, None])
        return perturb(draws.order_scores, uniforms(key, counter))

    def _to_device(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        return to_device(self.model.device, *arrays)

    def _read(self, answer: torch.Tensor) -> np.ndarray:
        """The one transfer from the device."""
        return answer.cpu().numpy()

    def _report(self, on_commit: Callable[[Commit], None], rows: Ints, positions: Ints) -> None:
        by_request: dict[int, list[tuple[int, int]]] = {}
        slots = self.slots
        offsets = positions - slots.prompt_length[rows]
        for owner, offset, token in zip(
            slots.request[rows].tolist(),
            offsets.tolist(),
            slots.canvas[rows, positions].tolist(),
            strict=True,
        ):
            by_request.setdefault(owner, []).append((offset, token))
        for owner, committed in by_request.items():
            on_commit(Commit(owner, committed))
