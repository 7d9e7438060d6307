"""The one block grid and the one visibility rule.

Blocks are aligned to absolute positions of the unpadded sequence, prompt included: position p lies
in block p // block_size. The public training code aligns blocks to the start of the response
instead, which agrees with its own sampler only when the prompt length is divisible by the block
size (docs/algorithm.md, deviation 1).

Every token of a layout carries an attention block and a stream. Stream 0 is the clean sequence, a
positive number is one noisy view of it, `PAD` is padding. Full attention is the same rule with
every token in block 0 of stream 0.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch

from tracerl.models.families import Attention

PAD = -1
CLEAN = 0
# The stream of clean tokens that every document of their row sees (a prompt that several responses
# share).
COMMON = 1 << 40
# Added to all streams of a row's second document, twice to those of its third, ...
DOCUMENT = 1 << 20


@dataclass(frozen=True)
class Layout:
    """Where the tokens of a forward pass stand, and who sees whom: all int64 [B, L].

    Padding attends to itself so that no softmax row is empty (NaN).

    Example, block size 2, two clean blocks and one noisy view of the second:
        positions [0 1 2 3 2 3]   blocks [0 0 1 1 1 1]   streams [0 0 0 0 1 1]
    """

    positions: torch.Tensor
    """absolute positions of the unpadded sequence"""
    blocks: torch.Tensor
    """attention block of each token"""
    streams: torch.Tensor
    """CLEAN, the number of a noisy view, or PAD"""
    first_keys: torch.Tensor | None = None
    """int64 [B], of a pass through a cache: every query of a row sees this many first keys and
    nothing else; blocks and streams then have no effect"""
    num_keys: int = 0
    """keys of a pass through a cache"""

    def to(self, device: torch.device) -> "Layout":
        """The same on another device."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                values[name] = value.to(device)
        return Layout(**values)

    @property
    def is_self_attention(self) -> bool:
        """Whether the keys are the queries."""
        return self.first_keys is None

    def mask(self) -> torch.Tensor:
        """Bool [B, Q, K], or [B, 1, K] where all queries of a row see the same."""
        if self.first_keys is not None:
            return (
                torch.arange(self.num_keys, device=self.blocks.device)
                < self.first_keys.unsqueeze(1)
            ).unsqueeze(1)
        seen = visible(self.blocks, self.streams, self.blocks, self.streams)
        return seen | torch.eye(self.blocks.shape[1], dtype=torch.bool, device=self.blocks.device)

    def prefix(self) -> torch.Tensor | None:
        """How many first keys all (unpadded) queries of each row see, int32 [B]; None if they do
        not see the same first keys."""
        if self.first_keys is not None:
            return self.first_keys.to(torch.int32)
        real = self.streams != PAD
        if bool(((self.streams != CLEAN) & real).any()):
            return None
        last = self.blocks.masked_fill(~real, -1).amax(1, keepdim=True)
        seen = (self.streams == CLEAN) & (self.blocks <= last)
        count = seen.sum(1, keepdim=True)
        first = torch.arange(seen.shape[1], device=seen.device) < count
        if bool(((self.blocks != last) & real).any() | (seen != first).any()):
            return None
        return count.squeeze(1).clamp(min=1).to(torch.int32)


def block_starts_after(length: int, block_size: int) -> int:
    """The first multiple of `block_size` that is not smaller than `length`."""
    return -(-length // block_size) * block_size


def first_live_start(prompt_length: int, block_size: int, attention: Attention) -> int:
    """Where the first block that is sampled starts: on the grid if attention is block-causal, at
    the response if it is full.

    Full attention has no grid to keep: its blocks are an order of sampling only, and the published
    samplers start them at the response.
    """
    return (
        prompt_length // block_size * block_size if attention == "block_causal" else prompt_length
    )


def attention_blocks(
    positions: torch.Tensor, block_size: int, attention: Attention
) -> torch.Tensor:
    """Attention block of each absolute position: the grid's block if attention is block-causal, one
    block for all if it is full."""
    return positions // block_size if attention == "block_causal" else torch.zeros_like(positions)


def visible(
    query_blocks: torch.Tensor,
    query_streams: torch.Tensor,
    key_blocks: torch.Tensor,
    key_streams: torch.Tensor,
) -> torch.Tensor:
    """Which keys each query `sees`, bool [..., Q, K], from int64 [..., Q] and [..., K]."""
    return sees(
        query_blocks.unsqueeze(-1),
        query_streams.unsqueeze(-1),
        key_blocks.unsqueeze(-2),
        key_streams.unsqueeze(-2),
    )


def sees(
    query_block: torch.Tensor,
    query_stream: torch.Tensor,
    key_block: torch.Tensor,
    key_stream: torch.Tensor,
) -> torch.Tensor:
    """The rule itself, element by element: whether a query sees a key, bool of the tensors' common
    shape.

    A clean key is seen from its own block on by clean queries and from the next block on by noisy
    ones; a noisy key is seen by its own block of its own view. Documents of one row see nothing of
    each other, but all of them what is common. Nobody attends to padding (`Layout.mask` lets it
    attend to itself).
    """
    same_document = key_stream // DOCUMENT == query_stream // DOCUMENT
    earlier = (
        is_shared(key_stream) & (same_document | (key_stream == COMMON)) & (key_block < query_block)
    )
    own = (key_stream == query_stream) & (key_block == query_block)
    return (earlier | own) & (key_stream != PAD) & (query_stream != PAD)


def is_shared(streams: torch.Tensor) -> torch.Tensor:
    """Whether keys of these streams may be seen by other blocks than their own: clean and common
    ones, bool of the tensor's shape."""
    return streams % DOCUMENT == CLEAN  # that of COMMON is, too
