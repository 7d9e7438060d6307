"""The one block grid and the one visibility rule.

Blocks are aligned to absolute positions of the unpadded sequence, prompt included: position p lies in block p // block_size. The public
training code aligns blocks to the start of the response instead, which agrees with its own sampler only when the prompt length is
divisible by the block size (docs/algorithm.md, deviation 1).

Every token of a layout carries an attention block and a stream. Stream 0 is the clean sequence, a positive number is one noisy view of
it, `PAD` is padding. Full attention is the same rule with every token in block 0 of stream 0.
"""

import torch

from tracerl.models.families import Attention

PAD = -1
CLEAN = 0
COMMON = 1 << 40  # the stream of clean tokens that every document of their row sees (a prompt that several responses share)
DOCUMENT = 1 << 20  # added to all streams of a row's second document, twice to those of its third, ...


def block_starts_after(length: int, block_size: int) -> int:
    """The first multiple of `block_size` that is not smaller than `length`."""
    return -(-length // block_size) * block_size


def first_live_start(prompt_length: int, block_size: int, attention: Attention) -> int:
    """Where the first block that is sampled starts: on the grid if attention is block-causal, at the response if it is full.

    Full attention has no grid to keep: its blocks are an order of sampling only, and the published samplers start them at the response.
    """
    return prompt_length // block_size * block_size if attention == "block_causal" else prompt_length


def attention_blocks(positions: torch.Tensor, block_size: int, attention: Attention) -> torch.Tensor:
    """Attention block of each absolute position: the grid's block if attention is block-causal, one block for all if it is full."""
    return positions // block_size if attention == "block_causal" else torch.zeros_like(positions)


def visible(query_blocks: torch.Tensor, query_streams: torch.Tensor, key_blocks: torch.Tensor, key_streams: torch.Tensor) -> torch.Tensor:
    """Which keys each query `sees`, bool [..., Q, K], from int64 [..., Q] and [..., K]."""
    return sees(query_blocks.unsqueeze(-1), query_streams.unsqueeze(-1), key_blocks.unsqueeze(-2), key_streams.unsqueeze(-2))


def sees(query_block: torch.Tensor, query_stream: torch.Tensor, key_block: torch.Tensor, key_stream: torch.Tensor) -> torch.Tensor:
    """The rule itself, element by element: whether a query sees a key, bool of the tensors' common shape.

    A clean key is seen from its own block on by clean queries and from the next block on by noisy ones; a noisy key is seen by its own
    block of its own view. Documents of one row see nothing of each other, but all of them what is common. Padding is seen by nobody (and
    sees one token, itself, only because a softmax over nothing is not a number).
    """
    same_document = key_stream // DOCUMENT == query_stream // DOCUMENT
    earlier = (((key_stream % DOCUMENT == CLEAN) & same_document) | (key_stream == COMMON)) & (key_block < query_block)
    own = (key_stream == query_stream) & (key_block == query_block)
    return (earlier | own) & (key_stream != PAD) & (query_stream != PAD)
