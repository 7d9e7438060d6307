"""Block-sparse attention without a kernel of its own: chunks of queries against the keys that they
can see. For long layouts on a CPU.

No query-by-key table is ever made. Tokens of one block and stream see and are seen alike, so
visibility is worked out over such runs; of the keys of a chunk, those that all its queries see need
no mask, and a mask is kept for the few that only some see. The backward pass computes the weights
again from the log-sum-exp, so that what is kept grows with the number of tokens and not with its
square.

Contract: equal to attention over the boolean mask to rounding; padding gets zeros. Sums are in
float32 at least.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tracerl.models.masks import PAD, sees

CHUNK = 128  # queries


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Neighbouring queries of a row, and the keys that they see."""

    row: int
    """The row of the batch."""
    start: int
    """Column of the first query."""
    stop: int
    """One behind the column of the last query."""
    ranges: list[tuple[int, int]]
    """[start, stop) of columns of keys that all queries see."""
    columns: torch.Tensor
    """int64 [P]: columns of keys that some queries see."""
    mask: torch.Tensor
    """bool [stop - start, P]: which query sees which of these."""


def chunks_of(blocks: torch.Tensor, streams: torch.Tensor) -> list[Chunk]:
    """The chunks of a pass whose keys are its queries; blocks and streams int64 [B, L] on the
    CPU."""
    chunks: list[Chunk] = []
    for row in range(len(blocks)):
        chunks += _row_chunks(row, blocks[row], streams[row])
    return chunks


def _row_chunks(row: int, blocks: torch.Tensor, streams: torch.Tensor) -> list[Chunk]:
    columns = torch.arange(len(blocks))
    new = torch.ones(len(blocks), dtype=torch.bool)
    new[1:] = (
        (blocks[1:] != blocks[:-1]) | (streams[1:] != streams[:-1]) | (columns[1:] % CHUNK == 0)
    )
    starts = columns[new]
    stops = torch.cat([starts[1:], columns.new_tensor([len(blocks)])])
    real = streams[starts] != PAD
    starts, stops = starts[real], stops[real]
    block, stream = blocks[starts], streams[starts]
    begins, ends = starts.tolist(), stops.tolist()
    chunks, first = [], 0
    while first < len(starts):
        last = first + 1
        while last < len(starts) and _joins(begins, ends, first, last):
            last += 1
        chunks.append(_chunk(row, (first, last), starts, stops, block, stream))
        first = last
    return chunks


def _joins(starts: list[int], stops: list[int], first: int, last: int) -> bool:
    """Whether run `last` follows the one before it and still fits into the chunk that began with
    run `first`."""
    return starts[last] == stops[last - 1] and stops[last] - starts[first] <= CHUNK


def _chunk(
    row: int,
    runs: tuple[int, int],
    starts: torch.Tensor,
    stops: torch.Tensor,
    block: torch.Tensor,
    stream: torch.Tensor,
) -> Chunk:
    own_runs = slice(*runs)
    seen = sees(block[own_runs].unsqueeze(1), stream[own_runs].unsqueeze(1), block, stream)
    by_all = seen.all(0)
    by_some = seen.any(0)
    ranges: list[tuple[int, int]] = []
    for start, stop in zip(starts[by_all].tolist(), stops[by_all].tolist(), strict=True):
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((start, stop))
    some = (by_some & ~by_all).nonzero().squeeze(1)
    lengths = (stops - starts)[some]
    owner = torch.arange(len(some)).repeat_interleave(lengths)
    offset = torch.arange(len(owner)) - (lengths.cumsum(0) - lengths)[owner]
    mask = seen[:, some].repeat_interleave((stops - starts)[own_runs], dim=0)[:, owner]
    return Chunk(
        row=row,
        start=int(starts[own_runs][0]),
        stop=int(stops[own_runs][-1]),
        ranges=ranges,
        columns=starts[some][owner] + offset,
        mask=mask,
    )


def attend_chunks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, chunks: list[Chunk]
) -> torch.Tensor:
    """Attention output [B, H, L, D] for query [B, H, L, D] and key, value [B, H_kv, L, D]."""
    out: torch.Tensor = _Sparse.apply(query, key, value, chunks)  # type: ignore[no-untyped-call]
    return out


def _gather(table: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    """The chunk's keys or values, [H_kv, N, D]: those of the ranges, then those of the columns."""
    row = table[chunk.row]
    parts = [row[:, start:stop] for start, stop in chunk.ranges]
    return torch.cat([*parts, row[:, chunk.columns]], dim=1).to(
        torch.promote_types(row.dtype, torch.float32)
    )


def _queries(table: torch.Tensor, chunk: Chunk, heads: int) -> torch.Tensor:
    """The chunk's queries, the heads that share a key head behind each other, [H_kv, G * (stop -
    start), D]."""
    queries = table[chunk.row, :, chunk.start : chunk.stop]
    return queries.reshape(heads, -1, queries.shape[-1]).to(
        torch.promote_types(queries.dtype, torch.float32)
    )


def _scores(query: torch.Tensor, key: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    """Scaled scores [H_kv, G * (stop - start), N], minus infinity where nothing is seen."""
    scores = torch.bmm(query, key.transpose(1, 2)).mul_(query.shape[-1] ** -0.5)
    some = len(chunk.columns)
    if some:
        part = scores.view(len(scores), -1, len(chunk.mask), scores.shape[-1])[..., -some:]
        part.masked_fill_(~chunk.mask, float("-inf"))
    return scores


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, chunks: list[Chunk]
    ) -> torch.Tensor:
        out, heads = torch.zeros_like(query), key.shape[1]
        wide = torch.promote_types(query.dtype, torch.float32)
        total = query.new_zeros(query.shape[:-1], dtype=wide)  # log of the sum of exponentials
        for chunk in chunks:
            scores = _scores(_queries(query, chunk, heads), _gather(key, chunk), chunk)
            largest = scores.amax(-1, keepdim=True)
            weights = scores.sub_(largest).exp_()
            norm = weights.sum(-1, keepdim=True)
            place = chunk.row, slice(None), slice(chunk.start, chunk.stop)
            out[place] = (
                (torch.bmm(weights, _gather(value, chunk)) / norm)
                .view(out[place].shape)
                .to(out.dtype)
            )
            total[place] = (largest + norm.log()).view(total[place].shape)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.chunks = chunks
        return out

    @staticmethod
    def backward(
        ctx: Any, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        query, key, value, out, total = ctx.saved_tensors
        [upstream] = gradients
        heads, scale = key.shape[1], query.shape[-1] ** -0.5
        shift = (upstream.to(total.dtype) * out).sum(-1)
        to_query = torch.zeros_like(query)
        to_key, to_value = (
            torch.zeros_like(key, dtype=total.dtype),
            torch.zeros_like(value, dtype=total.dtype),
        )
        for chunk in ctx.chunks:
            place = chunk.row, slice(None), slice(chunk.start, chunk.stop)
            queries, keys, up = (
                _queries(query, chunk, heads),
                _gather(key, chunk),
                _queries(upstream, chunk, heads),
            )
            weights = _scores(queries, keys, chunk).sub_(total[place].reshape(heads, -1, 1)).exp_()
            _add(to_value, chunk, torch.bmm(weights.transpose(1, 2), up))
            slope = (
                torch.bmm(up, _gather(value, chunk).transpose(1, 2))
                .sub_(shift[place].reshape(heads, -1, 1))
                .mul_(weights)
                .mul_(scale)
            )
            to_query[place] = torch.bmm(slope, keys).view(to_query[place].shape).to(to_query.dtype)
            _add(to_key, chunk, torch.bmm(slope.transpose(1, 2), queries))
        return to_query, to_key.to(key.dtype), to_value.to(value.dtype), None


def _add(table: torch.Tensor, chunk: Chunk, part: torch.Tensor) -> None:
    """Adds [H_kv, N, D] to where `_gather` took it from."""
    row = table[chunk.row]
    done = 0
    for start, stop in chunk.ranges:
        row[:, start:stop] += part[:, done : done + stop - start]
        done += stop - start
    row.index_add_(1, chunk.columns, part[:, done:])
