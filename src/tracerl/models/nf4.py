"""Frozen weights in 4 bits under low-rank adapters (QLoRA, arXiv 2305.14314, section 3).

A matrix is cut into blocks of 64 numbers. A block keeps its largest absolute value in float32, and
of each number the nearest of 16 levels: 4.5 bits a number. Products compute with the matrix that
comes back, made for each product and, in the backward pass, once more, so that it is never kept.
Not done: the paper's second quantisation, of the float32 values (0.37 bits a number), and its paged
optimizer. The bitsandbytes package is not used: its layers would take the place of ours, experts'
among them.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

BLOCK = 64
# Quantiles of a normal distribution, scaled to [-1, 1], of which one is zero (appendix E there).
LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


class PackedWeight(nn.Module):
    """A matrix [out, in], or one of each expert, in 4 bits.

    Attributes:
        codes: uint8 [matrices, blocks, 32], two levels in each byte, the first in its upper half.
        scales: the largest absolute value of each block, float32, as bytes: uint8 [matrices, 4 *
            blocks]. A cast of the model would round floating-point numbers.
    """

    codes: torch.Tensor
    scales: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        """weight: [out, in] or [experts, out, in], in any floating-point type."""
        super().__init__()
        self.rows, self.columns = weight.shape[-2:]
        codes = []
        scales = []
        for matrix in weight.detach().reshape(-1, self.rows, self.columns):
            packed, scale = pack(matrix.flatten())
            codes.append(packed)
            scales.append(scale.view(torch.uint8))
        self.register_buffer("codes", torch.stack(codes))
        self.register_buffer("scales", torch.stack(scales))

    def matrix(self, dtype: torch.dtype, index: int = 0) -> torch.Tensor:
        """What the bits of one matrix stand for, [out, in]."""
        numbers = unpack(self.codes[index], self.scales[index].view(torch.float32))
        count = self.rows * self.columns
        return numbers[:count].view(self.rows, self.columns).to(dtype)

    def product(
        self, rows: torch.Tensor, index: int = 0, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rows [..., out] of rows [..., in]. The matrix gets no gradient."""
        out: torch.Tensor = _Product.apply(rows, self, index)  # type: ignore[no-untyped-call]
        return out if bias is None else out + bias

    def grouped_product(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Rows [N, out] of rows [N, in] that are sorted by expert; ends int32 [experts]: where the
        rows of each expert end. One product for each expert in use."""
        parts = []
        start = 0
        for expert, end in enumerate(ends.tolist()):
            if end > start:
                parts.append(self.product(rows[start:end], expert))
            start = end
        return torch.cat(parts)


class _Product(torch.autograd.Function):
    """A linear layer that keeps the bits, and not the matrix, for its backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, packed: PackedWeight, index: int) -> torch.Tensor:
        ctx.packed = packed
        ctx.index = index
        return F.linear(rows, packed.matrix(rows.dtype, index))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        [gradient] = gradients
        return gradient @ ctx.packed.matrix(gradient.dtype, ctx.index), None, None


def pack(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [blocks, 32] and scales float32 [blocks] of n numbers; the last block is filled
    up with zeros."""
    numbers = F.pad(numbers.float(), (0, -numbers.numel() % BLOCK)).view(-1, BLOCK)
    scales = numbers.abs().amax(1)
    levels = torch.tensor(LEVELS, device=numbers.device)
    midpoints = (levels[1:] + levels[:-1]) / 2
    shares = numbers / scales.where(scales > 0, 1.0).unsqueeze(1)
    nearest = torch.bucketize(shares, midpoints).to(torch.uint8)
    return (nearest[:, 0::2] << 4) | nearest[:, 1::2], scales


def unpack(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The numbers that codes [blocks, 32] and scales [blocks] stand for, float32 [64 * blocks]."""
    levels = torch.tensor(LEVELS, device=codes.device)
    nearest = torch.stack((codes >> 4, codes & 15), -1).flatten(1).int()
    return (levels[nearest] * scales.unsqueeze(1)).flatten()


def packed_bytes(count: int) -> int:
    """Bytes of a matrix of `count` numbers."""
    return -(-count // BLOCK) * (BLOCK // 2 + 4)
