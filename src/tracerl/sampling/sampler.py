"""The one denoising loop: for traces, RL rollouts, evaluation and chat.

Requests run in slots. Each forward pass handles the live block of every slot, wherever in its response it stands; a finished row leaves
at once and the next request takes its place. With the exact key/value cache of block-causal families the pass holds the live blocks only,
and a finished block is passed once more, clean, to commit it. Without it the pass holds the whole canvas.

Contract: a row's tokens depend on its own request only, not on batch size, order or padding (identical in float64; in float32 the noise is
identical and a decision can differ where its margin is at rounding level). Committed tokens are never overwritten. A block with an end
token is denoised to completion, then the row stops.

Departures from the papers: the confidence is that of the drawn token under the unmodified distribution (`raw`); the paper's text takes the
largest probability. Tokens are drawn by inverting the distribution function in float64, one uniform number per position, which is exact
and needs no noise over the vocabulary.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tracerl.config import Sampler
from tracerl.errors import DataError
from tracerl.models.masks import CLEAN, PAD, attention_blocks, block_starts_after
from tracerl.models.transformer import CacheWindow, KeyValueCache, Layout, Transformer, predictor_positions
from tracerl.sampling.unmasking import choose
from tracerl.seeds import uniforms
from tracerl.types import Trajectory


@dataclass(frozen=True)
class Request:
    """One response to sample. key: names its noise, from `seeds.key_for`."""

    prompt_ids: Sequence[int]
    key: int


@torch.inference_mode()
def sample(
    model: Transformer,
    end_ids: Sequence[int],
    requests: Sequence[Request],
    settings: Sampler,
    on_done: Callable[[int], None] | None = None,
) -> list[Trajectory]:
    """One trajectory per request, in the order of the requests. `on_done` is told how many rows have just finished.

    Raises DataError for an empty prompt or an id outside the vocabulary.
    """
    _check(model, requests)
    slots = _Slots(model, end_ids, requests, settings)
    waiting = deque(range(len(requests)))
    results: dict[int, Trajectory] = {}
    while waiting or slots.count:
        free = slots.size - slots.count
        if waiting and (slots.count == 0 or free * 4 >= slots.size):
            slots.admit([waiting.popleft() for _ in range(min(free, len(waiting)))])
        finished = slots.step()
        results.update(finished)
        if finished and on_done:
            on_done(len(finished))
    return [results[i] for i in range(len(requests))]


@dataclass(frozen=True)
class Drawn:
    """Tokens drawn at masked positions, all of one shape: int64 tokens and, of each, its confidence, its log-probability at temperature,
    and the same under the distribution after top-k and top-p."""

    tokens: torch.Tensor
    confidence: torch.Tensor
    logprobs: torch.Tensor
    filtered_logprobs: torch.Tensor

    def scattered(self, at: tuple[torch.Tensor, torch.Tensor], shape: torch.Size) -> "Drawn":
        """The flat entries put at their places of a [rows, K] table; zeros elsewhere."""

        def put(values: torch.Tensor) -> torch.Tensor:
            return values.new_zeros(shape).index_put(at, values)

        return Drawn(put(self.tokens), put(self.confidence), put(self.logprobs), put(self.filtered_logprobs))


def draw(logits: torch.Tensor, numbers: torch.Tensor, settings: Sampler) -> Drawn:
    """Draws one token from each row of logits [T, V], using one uniform number each, float64 [T].

    At temperature 0 the token is the most likely one and its log-probability that of the unmodified distribution.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    raw = logits.log_softmax(-1)
    tempered = (logits / settings.temperature).log_softmax(-1) if settings.temperature not in (0.0, 1.0) else raw
    filtered = _filtered(tempered, settings)
    if settings.temperature == 0.0:
        tokens = raw.argmax(-1)
    else:
        distribution = filtered.double().exp().cumsum(-1)
        target = numbers.unsqueeze(-1) * distribution[:, -1:]
        tokens = torch.searchsorted(distribution, target, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)

    def of_tokens(logprobs: torch.Tensor) -> torch.Tensor:
        return logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    confidence = of_tokens(raw if settings.confidence == "raw" else tempered).exp()
    return Drawn(tokens, confidence, of_tokens(tempered), of_tokens(filtered))


def _filtered(logprobs: torch.Tensor, settings: Sampler) -> torch.Tensor:
    """Log-probabilities after top-k, then top-p, renormalised; the very same tensor when both are off."""
    if not settings.top_k and settings.top_p == 1.0:
        return logprobs
    if settings.top_k:
        smallest = logprobs.topk(min(settings.top_k, logprobs.shape[-1]), dim=-1).values[:, -1:]
        logprobs = logprobs.masked_fill(logprobs < smallest, float("-inf"))
    if settings.top_p < 1.0:
        ordered, order = logprobs.softmax(-1).sort(dim=-1, descending=True, stable=True)
        beyond = ordered.cumsum(-1) - ordered >= settings.top_p
        logprobs = logprobs.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), float("-inf"))
    return logprobs.log_softmax(-1)


def _check(model: Transformer, requests: Sequence[Request]) -> None:
    for i, request in enumerate(requests):
        ids = request.prompt_ids
        if len(ids) == 0 or min(ids) < 0 or max(ids) >= model.architecture.vocab_size:
            raise DataError("a prompt cannot be sampled from", where=f"request {i}", got=f"{len(ids)} tokens: {list(ids)[:12]}",
                            wanted=f"at least one id, all in 0 to {model.architecture.vocab_size - 1}")  # fmt: skip


class _Slots:
    """The rows being sampled: rows [0, count) of every tensor are live, in no particular order."""

    def __init__(self, model: Transformer, end_ids: Sequence[int], requests: Sequence[Request], settings: Sampler) -> None:
        self.model, self.settings, self.requests = model, settings, requests
        self.block_size = settings.block_size
        self.end_ids = torch.tensor(list(end_ids), device=model.device)
        self.limit = [block_starts_after(len(r.prompt_ids) + settings.max_new_tokens, self.block_size) for r in requests]
        self.size = min(settings.max_rows, max(len(requests), 1))
        width = max(self.limit, default=self.block_size)
        self.cached = settings.cache and model.family.attention == "block_causal"
        self.cache = KeyValueCache(model, self.size, width) if self.cached else None
        self.count = 0

        def table(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(self.size, width, dtype=dtype, device=model.device)

        def column() -> torch.Tensor:
            return torch.zeros(self.size, dtype=torch.int64, device=model.device)

        self.canvas, self.step_map = table(torch.int64), table(torch.int64)
        self.logprobs, self.filtered_logprobs, self.masked = table(torch.float32), table(torch.float32), table(torch.bool)
        self.request, self.key, self.start, self.end = column(), column(), column(), column()
        self.num_steps, self.step_in_block, self.num_forwards = column(), column(), column()
        self._tables = [self.canvas, self.step_map, self.logprobs, self.filtered_logprobs, self.masked]
        self._columns = [self.request, self.key, self.start, self.end, self.num_steps, self.step_in_block, self.num_forwards]

    def admit(self, indices: Sequence[int]) -> None:
        """Puts requests into free slots and, with a cache, passes their whole prompt blocks through the model once."""
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
            self.start[row] = len(prompt) // self.block_size * self.block_size
        self.count += len(indices)
        if self.cache is not None and (width := int(self.start[first : self.count].max())):
            positions = torch.arange(width, device=self.model.device).expand(len(indices), -1)
            inside = positions < self.start[first : self.count].unsqueeze(1)
            layout = Layout(positions, positions // self.block_size, torch.where(inside, CLEAN, PAD))
            self.model(self.canvas[first : self.count, :width], layout, CacheWindow(self.cache, first, 0))
            self.num_forwards[first : self.count] += self.start[first : self.count] > 0

    def step(self) -> dict[int, Trajectory]:
        """One forward pass over all live rows; returns the trajectories that it finished, by request index."""
        n = self.count
        live = self.start[:n].unsqueeze(1) + torch.arange(self.block_size, device=self.model.device)
        masked = self.masked[:n].gather(1, live)
        hidden = self._hidden(live)
        denoising = masked.any(1)
        commit, drawn = self._decide(hidden, masked, live)
        self.num_steps[:n] += denoising
        self.step_in_block[:n] += denoising
        self.num_forwards[:n] += 1
        rows, columns = commit.nonzero(as_tuple=True)
        at = rows, live[rows, columns]
        self.canvas[at], self.logprobs[at] = drawn.tokens[commit], drawn.logprobs[commit].float()
        self.filtered_logprobs[at] = drawn.filtered_logprobs[commit].float()
        self.step_map[at], self.masked[at] = self.num_steps[rows], False
        complete = ~(masked & ~commit).any(1)
        ended = (torch.isin(self.canvas[:n].gather(1, live), self.end_ids) & (self.step_map[:n].gather(1, live) > 0)).any(1)
        done = complete & (ended | (self.start[:n] + self.block_size >= self.end[:n]))
        advance = complete & ~done & (~denoising if self.cached else torch.ones_like(complete))
        self.start[:n] += advance * self.block_size
        self.step_in_block[:n].masked_fill_(advance, 0)
        finished = done.nonzero().squeeze(1).tolist()
        results = {int(self.request[row]): self._trajectory(row, bool(ended[row])) for row in finished}
        self._close_gaps(finished)
        return results

    def _hidden(self, live: torch.Tensor) -> torch.Tensor:
        """Hidden states that predict the live positions, [n, K, hidden]."""
        n, family = self.count, self.model.family
        if self.cache is not None:
            length = int(live.max()) + 1
            key_blocks = (torch.arange(length, device=live.device) // self.block_size).expand(n, -1)
            layout = Layout(live, live // self.block_size, torch.full_like(live, CLEAN), key_blocks, torch.full_like(key_blocks, CLEAN))
            cached: torch.Tensor = self.model(self.canvas[:n].gather(1, live), layout, CacheWindow(self.cache, 0, length))
            return cached
        seen = self.end[:n] if family.attention == "full" else live[:, -1] + 1
        positions = torch.arange(int(seen.max()), device=live.device).expand(n, -1)
        streams = torch.where(positions < seen.unsqueeze(1), CLEAN, PAD)
        layout = Layout(positions, attention_blocks(positions, self.block_size, family.attention), streams)
        hidden: torch.Tensor = self.model(self.canvas[:n, : positions.shape[1]], layout)
        at = predictor_positions(live, family)
        return hidden.gather(1, at.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))

    def _decide(self, hidden: torch.Tensor, masked: torch.Tensor, live: torch.Tensor) -> tuple[torch.Tensor, Drawn]:
        """Draws a token at every masked live position and chooses which to commit, bool [n, K]."""
        rows, columns = masked.nonzero(as_tuple=True)
        at = rows, columns
        counters = (self.num_steps[rows] << 32) + live[at]
        drawn = draw(self.model.logits(hidden[at]), uniforms(self.key[rows], counters), self.settings).scattered(at, live.shape)
        return choose(drawn.confidence, masked, self.step_in_block[: self.count], self.settings), drawn

    def _trajectory(self, row: int, ended: bool) -> Trajectory:
        index = int(self.request[row])
        prompt = self.requests[index].prompt_ids
        response = slice(len(prompt), int(self.start[row]) + self.block_size)
        ids = self.canvas[row, response].to(torch.int32).cpu().numpy()
        ends = torch.isin(self.canvas[row, response], self.end_ids).nonzero()
        full = self.model.family.attention == "full"
        return Trajectory(
            prompt_ids=self.canvas[row, : len(prompt)].to(torch.int32).cpu().numpy(),
            response_ids=ids,
            step_map=self.step_map[row, response].to(torch.int32).cpu().numpy(),
            logprobs=self.logprobs[row, response].cpu().numpy().copy(),
            filtered_logprobs=self.filtered_logprobs[row, response].cpu().numpy().copy(),
            num_tokens=int(ends[0]) + 1 if ended else len(ids),
            block_size=self.block_size,
            canvas_length=int(self.end[row]) if full else response.stop,
            stop_reason="end" if ended else "length",
            num_denoising_forwards=int(self.num_steps[row]),
            num_forwards=int(self.num_forwards[row]),
        )

    def _close_gaps(self, finished: Sequence[int]) -> None:
        """Moves live rows from the tail into the slots of finished ones, so that live rows stay together."""
        gone = set(finished)
        remaining = self.count - len(finished)
        movers = [row for row in range(remaining, self.count) if row not in gone]
        for hole, mover in zip((row for row in finished if row < remaining), movers, strict=True):
            for tensor in (*self._tables, *self._columns):
                tensor[hole] = tensor[mover]
            if self.cache is not None:
                self.cache.move_row(mover, hole)
        self.count = remaining
