"""Attention over what each query sees, in four back ends with the same results to rounding.

* `sdpa`: `scaled_dot_product_attention` over a boolean mask. The reference; runs everywhere.
* `sparse`: chunks of queries against the keys that they can see (sparse.py), so that no mask of a
whole layout is made. For a CPU.
* `flex`: FlexAttention, which skips the blocks of a long training layout that nobody sees. CUDA; on
a CPU forward passes only.
* `flash`: flash-attn (extra `flash`), where every query of a row sees the same first keys: a block
against its cache, or full attention
  over right-padded rows, without gradients. Other masks go to `sdpa`, as do passes against a cache
  with `sparse`.
* `auto`: on a CPU `sparse` for long layouts, else `sdpa`; on CUDA `flash` where it is installed and
the mask allows it, `flex` for long
  layouts, else `sdpa`.

A pass is prepared once (`prepare`) and attended in every layer (`attend`).
"""

import functools
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from tracerl.errors import ParamsError
from tracerl.models.masks import Layout, sees
from tracerl.models.sparse import Chunk, attend_chunks, chunks_of

Backend = Literal["auto", "sdpa", "sparse", "flex", "flash"]
_LONG = 256  # tokens of a layout from which skipping blocks of 128 pays
_LONG_ON_CPU = 1024  # the same for chunks of queries, whose kernels are called one by one


@dataclass(frozen=True)
class Prefix:
    """Every query of a row sees its first keys, int32 [B] of them."""

    lengths: torch.Tensor


@dataclass(frozen=True)
class Chunks:
    """Queries in chunks, each with the keys it sees."""

    chunks: list[Chunk]


Prepared = torch.Tensor | BlockMask | Prefix | Chunks


def check_backend(backend: Backend, device: torch.device) -> None:
    """Raises ParamsError, saying what to do, if a back end asked for by name cannot run here."""
    if backend == "flash" and not flash_installed():
        raise ParamsError(
            "attention 'flash' needs the package flash-attn",
            where="compute.attention",
            got="it is not installed",
            do=(
                "pip install --no-build-isolation 'tracerl[flash]', or set compute.attention to "
                "auto"
            ),
        )
    if backend == "flash" and device.type != "cuda":
        raise ParamsError(
            "attention 'flash' runs on CUDA only",
            where="compute.attention",
            got=f"device {device}",
            do="set compute.attention to auto",
        )
    if backend == "sparse" and device.type != "cpu":
        raise ParamsError(
            "attention 'sparse' runs on a CPU only",
            where="compute.attention",
            got=f"device {device}",
            do="set compute.attention to auto",
        )


def prepare(layout: Layout, backend: Backend, dtype: torch.dtype) -> Prepared:
    """What `attend` needs of a pass, for the back end that will run it. Raises ParamsError where
    `flex` has no backward pass."""
    device = layout.blocks.device
    gradients = torch.is_grad_enabled()
    if backend == "flex" and device.type == "cpu" and gradients:
        raise ParamsError(
            "attention 'flex' has no backward pass on a CPU",
            where="compute.attention",
            got=f"device {device}, gradients on",
            wanted="forward passes only",
            do="set compute.attention to sdpa or auto",
        )
    if backend == "auto" and device.type == "cpu":
        backend = (
            "sparse"
            if layout.is_self_attention and layout.blocks.shape[1] >= _LONG_ON_CPU
            else "sdpa"
        )
    if backend == "auto":
        backend = "flash" if flash_installed() else "flex"
        if backend == "flex" and not (layout.is_self_attention and layout.blocks.shape[1] >= _LONG):
            backend = "sdpa"
        if (
            backend == "flash"
            and layout.is_self_attention
            and gradients
            and layout.blocks.shape[1] >= _LONG
        ):
            backend = "flex"
    if backend == "flex":
        return _block_mask(layout)
    if backend == "sparse" and layout.is_self_attention:
        return Chunks(chunks_of(layout.blocks.cpu(), layout.streams.cpu()))
    if (
        backend == "flash"
        and not gradients
        and dtype in (torch.bfloat16, torch.float16)
        and (lengths := layout.prefix()) is not None
    ):
        return Prefix(lengths)
    return layout.mask().unsqueeze(1)


def _block_mask(layout: Layout) -> BlockMask:
    """What a layout's queries see, for FlexAttention, in blocks of 128."""

    def sees_key(
        b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        if layout.first_keys is not None:
            return k < layout.first_keys[b]
        return sees(
            layout.blocks[b, q], layout.streams[b, q], layout.blocks[b, k], layout.streams[b, k]
        ) | (q == k)

    rows, queries = layout.blocks.shape
    keys = queries if layout.is_self_attention else layout.num_keys
    return create_block_mask(sees_key, rows, None, queries, keys, device=layout.blocks.device)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, prepared: Prepared
) -> torch.Tensor:
    """Attention output [B, H, Q, D] for query [B, H, Q, D] and key, value [B, H_kv, K, D]; heads
    are grouped.

    Every query must see at least one key. A boolean mask is broadcastable to [B, 1, Q, K].
    """
    groups = query.shape[1] // key.shape[1]
    if isinstance(prepared, BlockMask):
        out: torch.Tensor = _flex(query.device.type)(
            query, key, value, block_mask=prepared, enable_gqa=groups > 1
        )
        return out
    if isinstance(prepared, Chunks):
        return attend_chunks(query, key, value, prepared.chunks)
    if isinstance(prepared, Prefix):
        from flash_attn import flash_attn_with_kvcache

        query = query.transpose(1, 2)
        key = key.transpose(1, 2)
        value = value.transpose(1, 2)
        seen: torch.Tensor = flash_attn_with_kvcache(
            query, key, value, cache_seqlens=prepared.lengths, causal=False
        )
        return seen.transpose(1, 2)
    batch, heads, length, size = query.shape
    # All queries see the same keys, so that those of a group of heads can be taken for one
    # another's.
    if prepared.shape[2] == 1:
        mask = prepared.expand(-1, -1, groups * length, -1)
        folded = query.reshape(batch, heads // groups, groups * length, size)
        return F.scaled_dot_product_attention(folded, key, value, attn_mask=mask).reshape(
            batch, heads, length, size
        )
    if groups > 1:
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=prepared)


def flash_installed() -> bool:
    """Whether flash-attn can be imported."""
    return importlib.util.find_spec("flash_attn") is not None


@functools.cache
def _flex(device: str) -> Callable[..., Any]:
    """FlexAttention: compiled on CUDA; eager on a CPU, only for checking masks."""
    if device != "cpu":
        return torch.compile(flex_attention, dynamic=True)

    def run_unfused(*arguments: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "flex_attention called without torch.compile", UserWarning
            )
            return flex_attention(*arguments, **options)

    return run_unfused
