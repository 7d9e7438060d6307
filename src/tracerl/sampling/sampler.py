"""The one denoising loop: for traces, RL rollouts, evaluation and chat.

Requests run in slots. Each step handles the live block of every slot, wherever in its response it stands; a finished row leaves at once and
the next request takes its place. What a step passes through the model depends on the cache:

* none: the whole canvas.
* exact (block-causal families): the live blocks; a finished block is passed once more, clean, to commit it.
* prefix, dual, window (full attention, approximate): the whole canvas at the start of a block, which also refreshes every key; then the
  live block with what follows it (prefix), alone (dual), or with the next `horizon` positions, beyond which nothing is seen (window).

Contract: a row's tokens depend on its own request only, not on batch size, order or padding (identical in float64; in float32 the noise is
identical and a decision can differ where its margin is at rounding level). Committed tokens are never overwritten. A block with an end
token is denoised to completion, then the row stops.

Departures from the papers: blocks of block-causal families lie on the absolute grid, also while sampling; the position that predicts the
first token of a block of a shifted family is passed with the block (published cached samplers commit that token from the refresh pass).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tracerl.config import Sampler
from tracerl.errors import DataError
from tracerl.models.families import Attention
from tracerl.models.masks import CLEAN, PAD, attention_blocks, block_starts_after, first_live_start
from tracerl.models.transformer import CacheWindow, KeyValueCache, Layout, Transformer, predictor_positions
from tracerl.sampling.drawing import Drawn, draw, guided
from tracerl.sampling.unmasking import choose, order_logprobs, perturbed
from tracerl.seeds import uniforms
from tracerl.types import Trajectory

# Set in the counter of a position's order noise, so that no uniform number decides both a token and an order.
_ORDER = 1 << 31


@dataclass(frozen=True)
class Request:
    """One response to sample. key: names its noise, from `seeds.key_for`."""

    prompt_ids: Sequence[int]
    key: int


@dataclass(frozen=True)
class Committed:
    """Tokens that a step has just committed. request: index of the request. tokens: (index in the response, id), in order of position."""

    request: int
    tokens: list[tuple[int, int]]


@torch.inference_mode()
def sample(
    model: Transformer,
    end_ids: Sequence[int],
    requests: Sequence[Request],
    settings: Sampler,
    on_done: Callable[[int], None] | None = None,
    on_commit: Callable[[Committed], None] | None = None,
) -> list[Trajectory]:
    """One trajectory per request, in the order of the requests.

    `on_done` is told how many rows have just finished, `on_commit` what a step has committed.
    Raises DataError for an empty prompt, an id outside the vocabulary, or a cache or an order module that the model cannot have.
    """
    _check(model, requests, settings)
    slots = _Slots(model, end_ids, requests, settings)
    waiting = deque(range(len(requests)))
    results: dict[int, Trajectory] = {}
    while waiting or slots.count:
        free = slots.size - slots.count
        if waiting and (slots.count == 0 or free * 4 >= slots.size):
            slots.admit([waiting.popleft() for _ in range(min(free, len(waiting)))])
        finished = slots.step(on_commit)
        results.update(finished)
        if finished and on_done:
            on_done(len(finished))
    return [results[i] for i in range(len(requests))]


def cache_mode(attention: Attention, settings: Sampler) -> str:
    """The cache that models are sampled with: the exact one is none for full attention, whose keys depend on every later token."""
    return "none" if settings.cache == "exact" and attention == "full" else settings.cache


def _check(model: Transformer, requests: Sequence[Request], settings: Sampler) -> None:
    if settings.approximate and model.family.attention != "full":
        raise DataError("the cache does not fit the model", where=f"sampler.cache, family {model.family.name}", got=settings.cache,
                        wanted="exact or none: a block-causal family has an exact cache, so it needs no approximate one")  # fmt: skip
    if settings.remasking == "plackett_luce" and settings.order_score == "module" and model.order is None:
        raise DataError("the checkpoint has no order module", where="sampler.order_score", got="module",
                        wanted="max_logit, max_logprob, or the checkpoint of a mask_aware round with this order_score")  # fmt: skip
    check_prompts(requests, model.architecture.vocab_size)


def check_prompts(requests: Sequence[Request], vocab_size: int) -> None:
    """Raises DataError naming the first request whose prompt is empty or holds an id outside the vocabulary."""
    for i, request in enumerate(requests):
        ids = request.prompt_ids
        if len(ids) == 0 or min(ids) < 0 or max(ids) >= vocab_size:
            raise DataError("a prompt cannot be sampled from", where=f"request {i}", got=f"{len(ids)} tokens: {list(ids)[:12]}",
                            wanted=f"at least one id, all in 0 to {vocab_size - 1}")  # fmt: skip


class _Slots:
    """The rows being sampled: rows [0, count) of every tensor are live, in no particular order.

    Worlds: 0 is the canvas as it is, 1 (with guidance only) the canvas with its prompt masked; each has its own cache.
    """

    def __init__(self, model: Transformer, end_ids: Sequence[int], requests: Sequence[Request], settings: Sampler) -> None:
        self.model, self.settings, self.requests = model, settings, requests
        self.block_size, self.mode = settings.block_size, cache_mode(model.family.attention, settings)
        self.end_ids = torch.tensor(list(end_ids), device=model.device)
        self.first = [first_live_start(len(r.prompt_ids), self.block_size, model.family.attention) for r in requests]
        self.limit = [
            first + block_starts_after(len(r.prompt_ids) + settings.max_new_tokens - first, self.block_size)
            for r, first in zip(requests, self.first, strict=True)
        ]
        self.size = min(settings.max_rows, max(len(requests), 1))
        width = max(self.limit, default=self.block_size)
        self.ordering = settings.remasking == "plackett_luce" and settings.order_score == "module"
        self._cut = settings.refresh_sees == "window"
        self.worlds = range(2 if settings.guidance else 1)
        self.caches = [KeyValueCache(model, self.size, width) for _ in self.worlds] if self.mode != "none" else []
        self.count = 0

        def table(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(self.size, width, dtype=dtype, device=model.device)

        def column() -> torch.Tensor:
            return torch.zeros(self.size, dtype=torch.int64, device=model.device)

        self.canvas, self.step_map, self.order_in_step = table(torch.int64), table(torch.int64), table(torch.int64)
        self.logprobs, self.filtered_logprobs, self.order_logprobs = (table(torch.float32) for _ in range(3))
        self.masked = table(torch.bool)
        self.request, self.key, self.start, self.end, self.prompt_length = (column() for _ in range(5))
        self.num_steps, self.step_in_block, self.num_forwards = column(), column(), column()
        self._tables = [
            self.canvas,
            self.step_map,
            self.order_in_step,
            self.logprobs,
            self.filtered_logprobs,
            self.order_logprobs,
            self.masked,
        ]
        self._columns = [
            self.request,
            self.key,
            self.start,
            self.end,
            self.prompt_length,
            self.num_steps,
            self.step_in_block,
            self.num_forwards,
        ]

    def admit(self, indices: Sequence[int]) -> None:
        """Puts requests into free slots and, with the exact cache, passes their whole prompt blocks through the model once."""
        first = self.count
        for row, index in enumerate(indices, start=first):
            prompt, end = self.requests[index].prompt_ids, self.limit[index]
            for tensor in self._tables:
                tensor[row] = 0
            self.canvas[row] = self.model.architecture.mask_id
            self.canvas[row, : len(prompt)] = torch.as_tensor(prompt, dtype=torch.int64)
            self.masked[row, len(prompt) : end] = True
            for column in self._columns:
                column[row] = 0
            self.request[row], self.key[row], self.end[row] = index, self.requests[index].key, end
            self.start[row], self.prompt_length[row] = self.first[index], len(prompt)
        self.count += len(indices)
        if self.mode == "exact" and (width := int(self.start[first : self.count].max())):
            positions = torch.arange(width, device=self.model.device).expand(len(indices), -1)
            inside = positions < self.start[first : self.count].unsqueeze(1)
            layout = Layout(positions, positions // self.block_size, torch.where(inside, CLEAN, PAD))
            for world in self.worlds:
                self.model(self._shown(world)[first : self.count, :width], layout, CacheWindow(self.caches[world], first, 0))
                self.num_forwards[first : self.count] += self.start[first : self.count] > 0

    def step(self, on_commit: Callable[[Committed], None] | None = None) -> dict[int, Trajectory]:
        """One forward pass over all live rows; returns the trajectories that it finished, by request index."""
        n = self.count
        live = self.start[:n].unsqueeze(1) + torch.arange(self.block_size, device=self.model.device)
        masked = self.masked[:n].gather(1, live)
        denoising = masked.any(1)
        drawn = self._drawn(masked, live)
        commit = self._commit(drawn, masked, live)
        self.num_steps[:n] += denoising
        self.step_in_block[:n] += denoising
        self.num_forwards[:n] += len(self.worlds)
        rows, columns = commit.nonzero(as_tuple=True)
        at = rows, live[rows, columns]
        self.canvas[at], self.logprobs[at] = drawn.tokens[commit], drawn.logprobs[commit].float()
        self.filtered_logprobs[at] = drawn.filtered_logprobs[commit].float()
        self.step_map[at], self.masked[at] = self.num_steps[rows], False
        if on_commit:
            self._tell(on_commit, *at)
        complete = ~(masked & ~commit).any(1)
        ended = (torch.isin(self.canvas[:n].gather(1, live), self.end_ids) & (self.step_map[:n].gather(1, live) > 0)).any(1)
        done = complete & (ended | (self.start[:n] + self.block_size >= self.end[:n]))
        advance = complete & ~done & (~denoising if self.mode == "exact" else torch.ones_like(complete))
        self.start[:n] += advance * self.block_size
        self.step_in_block[:n].masked_fill_(advance, 0)
        finished = done.nonzero().squeeze(1).tolist()
        results = {int(self.request[row]): self._trajectory(row, bool(ended[row])) for row in finished}
        self._close_gaps(finished)
        return results

    # What the model is asked

    def _shown(self, world: int) -> torch.Tensor:
        """The canvas of every slot as a world shows it, int64 [size, width]."""
        if world == 0:
            return self.canvas
        positions = torch.arange(self.canvas.shape[1], device=self.canvas.device)
        return self.canvas.masked_fill(positions < self.prompt_length.unsqueeze(1), self.model.architecture.mask_id)

    def _hidden(self, live: torch.Tensor, world: int) -> torch.Tensor:
        """Hidden states that predict the live positions, [n, K, hidden]."""
        if self.mode == "none":
            return self._pass_canvas(live, world, None)
        if self.mode == "exact":
            return self._pass_window(live, world, None, live, live[:, -1] + 1)
        every = self.settings.refresh_every
        stale = self.step_in_block[: self.count] == 0 if every is None else self.step_in_block[: self.count] % every == 0
        if bool(stale.all()):
            return self._pass_canvas(live, world, torch.arange(self.count, device=live.device))
        fresh = (~stale).nonzero().squeeze(1)
        some = self._pass_approximate(live[fresh], world, fresh)
        hidden = some.new_empty(self.count, *some.shape[1:])
        hidden[fresh] = some
        if bool(stale.any()):
            rows = stale.nonzero().squeeze(1)
            hidden[rows] = self._pass_canvas(live[rows], world, rows)
        return hidden

    def _pass_canvas(self, live: torch.Tensor, world: int, rows: torch.Tensor | None) -> torch.Tensor:
        """The whole canvas of all rows, or of `rows`, whose keys are all written to the cache."""
        family, canvas = self.model.family, self._shown(world)[: self.count]
        end = self.end[: self.count] if rows is None else self.end[rows]
        seen = live[:, -1] + 1 if family.attention == "block_causal" else self._horizon(live, end) if self._cut else end
        positions = torch.arange(int(seen.max()), device=live.device).expand(len(live), -1)
        streams = torch.where(positions < seen.unsqueeze(1), CLEAN, PAD)
        layout = Layout(positions, attention_blocks(positions, self.block_size, family.attention), streams)
        window = None if rows is None else CacheWindow(self.caches[world], 0, 0, rows)
        hidden: torch.Tensor = self.model((canvas if rows is None else canvas[rows])[:, : positions.shape[1]], layout, window)
        at = predictor_positions(live, family)
        return hidden.gather(1, at.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))

    def _pass_approximate(self, live: torch.Tensor, world: int, rows: torch.Tensor) -> torch.Tensor:
        """The live blocks of `rows` and what the mode forwards after them, against the keys of the last refresh.

        The predictor of a shifted family's first token is passed too, and padding makes the rows equally long; neither writes its keys.
        """
        end, behind = self.end[rows], live[:, -1] + 1
        last = {"prefix": end, "dual": behind, "window": self._horizon(live, end)}[self.mode]
        first = live[:, 0] - self.model.family.shift
        queries = first.unsqueeze(1) + torch.arange(int((last - first).max()), device=live.device)
        own = (queries >= live[:, :1]) & (queries < last.unsqueeze(1))
        columns = torch.where(own, queries, self.caches[world].spare_column)
        some = None if len(rows) == self.count else rows  # keys of all rows are read where they lie, those of some are copied
        return self._pass_window(queries, world, some, columns, end if self.mode == "dual" else last)[:, : self.block_size]

    def _horizon(self, live: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        """Where the window of each row ends."""
        return (live[:, -1] + 1 + (self.settings.horizon or 0)).minimum(end)

    def _pass_window(
        self, queries: torch.Tensor, world: int, rows: torch.Tensor | None, columns: torch.Tensor, key_end: torch.Tensor
    ) -> torch.Tensor:
        """Positions `queries` of all rows, or of `rows`, against the keys [0, key_end) of the cache, after writing theirs to `columns`."""
        attention, length = self.model.family.attention, int(key_end.max())
        keys = torch.arange(length, device=queries.device).expand(len(queries), -1)
        layout = Layout(
            queries,
            attention_blocks(queries, self.block_size, attention),
            torch.full_like(queries, CLEAN),
            attention_blocks(keys, self.block_size, attention),
            torch.where(keys < key_end.unsqueeze(1), CLEAN, PAD),
        )
        canvas = self._shown(world)[: self.count] if rows is None else self._shown(world)[rows]
        ids = canvas.gather(1, queries.clamp(max=canvas.shape[1] - 1))
        hidden: torch.Tensor = self.model(ids, layout, CacheWindow(self.caches[world], 0, length, rows, columns))
        return hidden

    # What a step decides

    def _drawn(self, masked: torch.Tensor, live: torch.Tensor) -> Drawn:
        """Passes the live blocks and draws a token at each of their masked positions, [n, K]."""
        hidden = [self._hidden(live, world) for world in self.worlds]
        rows, columns = masked.nonzero(as_tuple=True)
        at = rows, columns
        counters = (self.num_steps[rows] << 32) + live[at]
        logits = self.model.logits(hidden[0][at])
        if self.settings.guidance:
            logits = guided(logits, self.model.logits(hidden[1][at]), self.settings.guidance)
        order = self.model.order(hidden[0][at]) if self.ordering and self.model.order is not None else None
        return draw(logits, uniforms(self.key[rows], counters), self.settings, order).scattered(at, live.shape)

    def _commit(self, drawn: Drawn, masked: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        """Chooses which drawn tokens to commit, bool [n, K], and records a drawn order."""
        n = self.count
        if self.settings.remasking != "plackett_luce":
            return choose(drawn.confidence, masked, self.step_in_block[:n], self.settings)
        counters = (self.num_steps[:n].unsqueeze(1) << 32) + live + _ORDER
        values = perturbed(drawn.order_scores, uniforms(self.key[:n].unsqueeze(1), counters))
        commit = choose(values, masked, self.step_in_block[:n], self.settings)
        order, logprobs = order_logprobs(drawn.order_scores, values, masked)
        rows, columns = commit.nonzero(as_tuple=True)
        at = rows, live[rows, columns]
        self.order_in_step[at], self.order_logprobs[at] = order[commit], logprobs[commit].float()
        return commit

    # What comes out

    def _tell(self, on_commit: Callable[[Committed], None], rows: torch.Tensor, positions: torch.Tensor) -> None:
        by_request: dict[int, list[tuple[int, int]]] = {}
        tokens = self.canvas[rows, positions].tolist()
        owners, offsets = self.request[rows].tolist(), (positions - self.prompt_length[rows]).tolist()
        for owner, offset, token in zip(owners, offsets, tokens, strict=True):
            by_request.setdefault(owner, []).append((offset, token))
        for owner, committed in by_request.items():
            on_commit(Committed(owner, committed))

    def _trajectory(self, row: int, ended: bool) -> Trajectory:
        index = int(self.request[row])
        prompt = self.requests[index].prompt_ids
        response = slice(len(prompt), int(self.start[row]) + self.block_size)
        ids = self.canvas[row, response].to(torch.int32).cpu().numpy()
        ends = torch.isin(self.canvas[row, response], self.end_ids).nonzero()
        full = self.model.family.attention == "full"
        settings = self.settings
        drawn_order = settings.remasking == "plackett_luce"
        return Trajectory(
            prompt_ids=self.canvas[row, : len(prompt)].to(torch.int32).cpu().numpy(),
            response_ids=ids,
            step_map=self.step_map[row, response].to(torch.int32).cpu().numpy(),
            logprobs=self.logprobs[row, response].cpu().numpy().copy(),
            filtered_logprobs=self.filtered_logprobs[row, response].cpu().numpy().copy(),
            num_tokens=int(ends[0]) + 1 if ended else len(ids),
            block_size=self.block_size,
            canvas_length=min(int(self.end[row]), response.stop + (settings.horizon or 0)) if self._cut or not full else int(self.end[row]),
            stop_reason="end" if ended else "length",
            num_denoising_forwards=int(self.num_steps[row]),
            num_forwards=int(self.num_forwards[row]),
            order_in_step=self.order_in_step[row, response].to(torch.int32).cpu().numpy() if drawn_order else None,
            order_logprobs=self.order_logprobs[row, response].cpu().numpy().copy() if drawn_order else None,
            cache_mode=self.mode,
            cache_horizon=settings.horizon,
        )

    def _close_gaps(self, finished: Sequence[int]) -> None:
        """Moves live rows from the tail into the slots of finished ones, so that live rows stay together."""
        gone = set(finished)
        remaining = self.count - len(finished)
        movers = [row for row in range(remaining, self.count) if row not in gone]
        for hole, mover in zip((row for row in finished if row < remaining), movers, strict=True):
            for tensor in (*self._tables, *self._columns):
                tensor[hole] = tensor[mover]
            for cache in self.caches:
                cache.move_row(mover, hole)
        self.count = remaining
