"""Block-sparse attention without a kernel of its own: chunks of queries against the keys that they
can see. For long layouts on a CPU.

No query-by-key table is ever made. Tokens of one block and stream see and are seen alike, so
visibility is worked out over such runs; of the keys of a chunk, those that all its queries see need
no mask, and a mask is kept for the few that only some see. Torch's flash kernel for CPUs attends to
either kind in tiles that stay in the cache of the processor, and the two outputs are added in
proportion to their sums of exponentials. The backward pass computes the weights again from the
log-sum-exp, so that what is kept grows with the number of tokens and not with its square.

Contract: equal to attention over the boolean mask to rounding; padding gets zeros. Sums are in
float32 at least.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tracerl.models.masks import PAD, is_shared, sees

CHUNK = 128  # queries
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


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
    lowest, highest = block[own_runs].aminmax()
    # Only these can be seen: runs that others share, and those of the same blocks.
    maybe = (block <= highest) & (is_shared(stream) | (block >= lowest))
    [numbers] = maybe.nonzero(as_tuple=True)
    seen = sees(
        block[own_runs].unsqueeze(1), stream[own_runs].unsqueeze(1), block[maybe], stream[maybe]
    )
    by_all, by_some = seen.all(0), seen.any(0)
    if bool((by_some & ~by_all).any()):
        # No query without a key among those that some see.
        by_all &= (numbers < runs[0]) | (numbers >= runs[1])
    some = numbers[by_some & ~by_all]
    lengths = (stops - starts)[some]
    owner = torch.arange(len(some)).repeat_interleave(lengths)
    offset = torch.arange(len(owner)) - (lengths.cumsum(0) - lengths)[owner]
    mask = seen[:, by_some & ~by_all].repeat_interleave((stops - starts)[own_runs], dim=0)
    return Chunk(
        row=row,
        start=int(starts[own_runs][0]),
        stop=int(stops[own_runs][-1]),
        ranges=_ranges(starts[numbers[by_all]], stops[numbers[by_all]]),
        columns=starts[some][owner] + offset,
        mask=mask[:, owner],
    )


def _ranges(starts: torch.Tensor, stops: torch.Tensor) -> list[tuple[int, int]]:
    """[start, stop) of runs, int64 [N] each, those that follow each other as one."""
    joins = starts[1:] == stops[:-1]
    first, last = (
        torch.ones_like(starts, dtype=torch.bool),
        torch.ones_like(stops, dtype=torch.bool),
    )
    first[1:], last[:-1] = ~joins, ~joins
    return list(zip(starts[first].tolist(), stops[last].tolist(), strict=True))


def attend_chunks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, chunks: list[Chunk]
) -> torch.Tensor:
    """Attention output [B, H, L, D] for query [B, H, L, D] and key, value [B, H_kv, L, D]."""
    out: torch.Tensor = _Sparse.apply(query, key, value, chunks)  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True)
class _Part:
    """Keys of a chunk that one call of the kernel attends to."""

    columns: slice | torch.Tensor
    """Where they lie in the row: neighbours, or int64 [N]."""
    bias: torch.Tensor | None
    """[1, 1, G * (stop - start), N]: 0 where a query sees a key, else minus infinity; None: all
    see all."""


def _parts(chunk: Chunk, groups: int, dtype: torch.dtype) -> list[_Part]:
    """The chunk's keys: those that all queries see, then those that some see. Each query sees at
    least one key of each part."""
    parts = []
    if len(chunk.ranges) == 1:
        parts.append(_Part(slice(*chunk.ranges[0]), None))
    elif chunk.ranges:
        columns = torch.cat([torch.arange(start, stop) for start, stop in chunk.ranges])
        parts.append(_Part(columns, None))
    if len(chunk.columns):
        bias = torch.zeros(chunk.mask.shape, dtype=dtype)
        bias.masked_fill_(~chunk.mask, float("-inf"))
        parts.append(_Part(chunk.columns, bias.repeat(groups, 1)[None, None]))
    return parts


def _gather(table: torch.Tensor, chunk: Chunk, part: _Part) -> torch.Tensor:
    """Keys or values of a part, [1, H_kv, N, D], in float32 at least."""
    rows = table[chunk.row : chunk.row + 1, :, part.columns]
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def _queries(table: torch.Tensor, chunk: Chunk, heads: int) -> torch.Tensor:
    """The chunk's queries in float32 at least, the heads that share a key head behind each other,
    [1, H_kv, G * (stop - start), D]."""
    queries = table[chunk.row, :, chunk.start : chunk.stop]
    return queries.reshape(1, heads, -1, queries.shape[-1]).to(
        torch.promote_types(queries.dtype, torch.float32)
    )


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, chunks: list[Chunk]
    ) -> torch.Tensor:
        out, heads = torch.zeros_like(query), key.shape[1]
        wide = torch.promote_types(query.dtype, torch.float32)
        total = query.new_zeros(query.shape[:-1], dtype=wide)  # log of the sum of exponentials
        for chunk in chunks:
            queries, found = _queries(query, chunk, heads), []
            for part in _parts(chunk, query.shape[1] // heads, wide):
                keys, values = _gather(key, chunk, part), _gather(value, chunk, part)
                found.append(_FLASH(queries, keys, values, attn_mask=part.bias))
            some, logsum = found[0] if len(found) == 1 else _merge(*found)
            place = chunk.row, slice(None), slice(chunk.start, chunk.stop)
            out[place] = some.reshape(out[place].shape).to(out.dtype)
            total[place] = logsum.reshape(total[place].shape)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.chunks = chunks
        return out

    @staticmethod
    def backward(
        ctx: Any, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        query, key, value, out, total = ctx.saved_tensors
        [upstream] = gradients
        heads, wide = key.shape[1], total.dtype
        to_query = torch.zeros_like(query)
        to_key, to_value = torch.zeros_like(key, dtype=wide), torch.zeros_like(value, dtype=wide)
        for chunk in ctx.chunks:
            place = chunk.row, slice(None), slice(chunk.start, chunk.stop)
            queries, up, outputs = (
                _queries(table, chunk, heads) for table in (query, upstream, out)
            )
            logsum = total[place].reshape(queries.shape[:-1])
            slope = torch.zeros_like(queries)
            for part in _parts(chunk, query.shape[1] // heads, wide):
                keys, values = _gather(key, chunk, part), _gather(value, chunk, part)
                found = _FLASH_BACKWARD(
                    up, queries, keys, values, outputs, logsum, 0.0, False, attn_mask=part.bias
                )
                slope += found[0]
                _add(to_key, chunk, part, found[1])
                _add(to_value, chunk, part, found[2])
            to_query[place] = slope.reshape(to_query[place].shape).to(to_query.dtype)
        return to_query, to_key.to(key.dtype), to_value.to(value.dtype), None


def _merge(
    one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [1, H, Q, D] and log of the sum of exponentials [1, H, Q] over the keys of two
    parts."""
    total = torch.logaddexp(one[1], other[1])
    first, second = (one[1] - total).exp(), (other[1] - total).exp()
    return one[0] * first.unsqueeze(-1) + other[0] * second.unsqueeze(-1), total


def _add(table: torch.Tensor, chunk: Chunk, part: _Part, gradient: torch.Tensor) -> None:
    """Adds [1, H_kv, N, D] to where `_gather` took it from."""
    row = table[chunk.row]
    if isinstance(part.columns, slice):
        row[:, part.columns] += gradient[0]
    else:
        row.index_add_(1, part.columns, gradient[0])
