"""The one transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

The near-identical architectures of the families are flags (`qk_norm`, `qkv_bias`, `fused_qkv`,
`tie_embeddings`, ...). Parameter names are those of the published Qwen-like checkpoints;
`checkpoint.py` translates the others. The model returns hidden states; `logits` is called by
whoever knows which positions are predicted, so that a [rows, length, vocabulary] tensor is never
made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from tracerl.models.attention import Backend, Prepared, attend, prepare
from tracerl.models.families import FAMILIES, Family
from tracerl.models.masks import Layout
from tracerl.models.mlp import MLP, Experts, MixtureOfExperts

LOGITS_AT_ONCE = 1 << 24  # numbers in a table of logits: 64 MB in float32
Read = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Shape of a model."""

    family: str
    """name of a record of `families.FAMILIES`"""
    vocab_size: int
    """rows of embeddings and head"""
    hidden_size: int
    intermediate_size: int
    """width inside the MLP"""
    num_layers: int
    num_heads: int
    """query heads, a multiple of `num_kv_heads`"""
    num_kv_heads: int
    head_dim: int
    """size of a head, even"""
    rope_theta: float
    """base of the rotary frequencies"""
    norm_eps: float
    """added to the mean square in RMSNorm"""
    tie_embeddings: bool
    """whether head and embeddings are one parameter"""
    mask_id: int
    """token id of the mask; -1 until a tokenizer names it"""
    rotary_factor: float = 1.0
    """share of a head's first dimensions that are rotated"""
    experts: Experts | None = None
    """shape of the mixtures of experts; None: all layers are dense"""

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are rotated."""
        return int(self.head_dim * self.rotary_factor)


class KeyValueCache:
    """Keys and values: per layer [num_rows, max_length + 1, num_kv_heads, head_dim], written in
    place. The last column is spare."""

    def __init__(self, model: "Transformer", num_rows: int, max_length: int) -> None:
        arch, weight = model.architecture, model.model.embed_tokens.weight
        shape = (num_rows, max_length + 1, arch.num_kv_heads, arch.head_dim)
        self.keys = [weight.new_zeros(shape) for _ in range(arch.num_layers)]
        self.values = [weight.new_zeros(shape) for _ in range(arch.num_layers)]

    def copy_rows(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Copies the first `length` columns of rows over those of others, all at once; int64 [N]
        each."""
        for tensor in (*self.keys, *self.values):
            tensor[targets, :length] = tensor[sources, :length]


@dataclass(frozen=True)
class CacheWindow:
    """One forward pass of B rows of L tokens through a cache: where its keys and values are
    written, and which ones its queries see."""

    cache: KeyValueCache
    """The cache."""
    first_row: int
    """Keys and values go to rows [first_row, first_row + B) of the cache."""
    length: int
    """Queries see the keys [0, length) of those rows; 0: the tokens of this pass see each other
    only (prefill)."""
    rows: torch.Tensor | None = None
    """int64 [B]: the rows, where they do not follow each other."""
    columns: torch.Tensor | None = None
    """int64 [B, L]: columns to write to; None for the layout's positions. The cache's last column
    takes what nobody may read."""

    def exchange(
        self, layer: int, positions: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes this pass's keys and values [B, L, H_kv, D] of a layer and returns those that its
        queries see."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        rows: slice | torch.Tensor = (
            slice(self.first_row, self.first_row + len(key)) if self.rows is None else self.rows
        )
        numbers = (
            torch.arange(rows.start, rows.stop, device=key.device)
            if isinstance(rows, slice)
            else rows
        )
        at = numbers.unsqueeze(1), positions if self.columns is None else self.columns
        keys[at], values[at] = key, value
        return (
            (keys[rows, : self.length], values[rows, : self.length])
            if self.length
            else (key, value)
        )


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class SelfAttention(nn.Module):
    def __init__(self, arch: Architecture, family: Family, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, arch.head_dim
        query_size, key_size = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
        self.sizes = [query_size, key_size, key_size]
        self.is_fused = family.fused_qkv
        if self.is_fused:
            self.qkv_proj = nn.Linear(arch.hidden_size, sum(self.sizes), bias=family.qkv_bias)
        else:
            self.q_proj = nn.Linear(arch.hidden_size, query_size, bias=family.qkv_bias)
            self.k_proj = nn.Linear(arch.hidden_size, key_size, bias=family.qkv_bias)
            self.v_proj = nn.Linear(arch.hidden_size, key_size, bias=family.qkv_bias)
        self.o_proj = nn.Linear(query_size, arch.hidden_size, bias=False)
        self.q_norm = RMSNorm(arch.head_dim, arch.norm_eps) if family.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(arch.head_dim, arch.norm_eps) if family.qk_norm else nn.Identity()

    def forward(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        seen: Prepared,
        layout: Layout,
        window: CacheWindow | None,
    ) -> torch.Tensor:
        b, length, _ = x.shape
        query, key, value = self._project(x)
        query = rotate(self.q_norm(query.view(b, length, -1, self.head_dim)), rotary)
        key = rotate(self.k_norm(key.view(b, length, -1, self.head_dim)), rotary)
        value = value.view(b, length, -1, self.head_dim)
        if window is not None:
            key, value = window.exchange(self.layer, layout.positions, key, value)
        out = attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), seen)
        projected: torch.Tensor = self.o_proj(out.transpose(1, 2).reshape(b, length, -1))
        return projected

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of all heads, [B, L, heads * head_dim] each."""
        if not self.is_fused:
            return self.q_proj(x), self.k_proj(x), self.v_proj(x)
        query, key, value = self.qkv_proj(x).split(self.sizes, dim=-1)
        # Contiguous, as the products of three weights are.
        return query.contiguous(), key.contiguous(), value.contiguous()


class Layer(nn.Module):
    def __init__(self, arch: Architecture, family: Family, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(arch.hidden_size, arch.norm_eps)
        self.self_attn = SelfAttention(arch, family, layer)
        self.post_attention_layernorm = RMSNorm(arch.hidden_size, arch.norm_eps)
        self.mlp: nn.Module = MLP(arch.hidden_size, arch.intermediate_size)
        if arch.experts is not None and layer not in arch.experts.dense_layers:
            self.mlp = MixtureOfExperts(arch.hidden_size, arch.experts, family)

    def forward(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        seen: Prepared,
        layout: Layout,
        window: CacheWindow | None,
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, seen, layout, window)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Head(nn.Linear):
    """The LM head, and which tokens it must not predict.

    With `read` it makes the logits in parts of at most `LOGITS_AT_ONCE` numbers, and again for the
    gradient. However many parts there are, it is one call: under ZeRO 3 each call gathers the
    weight, and ranks must make as many.

    Attributes:
        forbidden: int64 [n], ids without probability: the mask, and ids without a token.
    """

    forbidden: torch.Tensor

    def __init__(self, hidden_size: int, vocab_size: int, forbidden: Sequence[int]) -> None:
        super().__init__(hidden_size, vocab_size, bias=False)
        self.forbid(forbidden)

    def forbid(self, ids: Sequence[int]) -> None:
        """Replaces the ids that must not be predicted."""
        table = torch.tensor(list(ids), dtype=torch.int64, device=self.weight.device)
        self.register_buffer("forbidden", table, persistent=False)

    def mask_(self, logits: torch.Tensor) -> torch.Tensor:
        """The same logits [..., vocab], minus infinity at forbidden ids; changed in place."""
        return logits.index_fill_(-1, self.forbidden, float("-inf"))

    def forward(
        self, input: torch.Tensor, targets: torch.Tensor | None = None, read: "Read | None" = None
    ) -> torch.Tensor:
        """Logits [..., vocab] of all ids; with `targets` int64 [T] and `read`, what it makes of
        logits, float32 or wider and without the forbidden ids, and targets of a part."""
        if targets is None or read is None:
            return super().forward(input)

        def part(some: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            logits = F.linear(some, self.weight)
            wide = torch.promote_types(logits.dtype, torch.float32)
            return read(self.mask_(logits.to(wide)), ids)

        size = max(1, LOGITS_AT_ONCE // self.out_features)
        if len(input) <= size:
            return part(input, targets)
        outputs = []
        parts = zip(torch.split(input, size), torch.split(targets, size), strict=True)
        for some, ids in parts:
            outputs.append(checkpoint(part, some, ids, use_reentrant=False))
        return torch.cat(outputs)


class Backbone(nn.Module):
    def __init__(self, arch: Architecture, family: Family) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(arch.vocab_size, arch.hidden_size)
        self.layers = nn.ModuleList(Layer(arch, family, i) for i in range(arch.num_layers))
        self.norm = RMSNorm(arch.hidden_size, arch.norm_eps)


class Transformer(nn.Module):
    """The backbone and its LM head.

    Attributes:
        attention: the attention back end (attention.py).
        checkpoint_layers: recompute each layer's activations in the backward pass.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.family = FAMILIES[architecture.family]
        self.attention: Backend = "auto"
        self.checkpoint_layers = False
        self.model = Backbone(architecture, self.family)
        forbidden = [architecture.mask_id] if architecture.mask_id >= 0 else []
        self.lm_head = Head(architecture.hidden_size, architecture.vocab_size, forbidden)
        self.tie()

    def tie(self) -> None:
        """Makes head and embeddings one parameter where the architecture says so (again after
        parameters were replaced)."""
        if self.architecture.tie_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def device(self) -> torch.device:
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.embed_tokens.weight.dtype

    def forward(
        self, input_ids: torch.Tensor, layout: Layout, window: CacheWindow | None = None
    ) -> torch.Tensor:
        """Hidden states after the last norm, [B, L, hidden], for input_ids int64 [B, L]."""
        x = self.model.embed_tokens(input_ids)
        seen = prepare(layout, self.attention, x.dtype)
        rotary = rotary_table(
            layout.positions, self.architecture.rotary_dim, self.architecture.rope_theta, x.dtype
        )
        for layer in self.model.layers:
            if self.checkpoint_layers and torch.is_grad_enabled():
                x = checkpoint(layer, x, rotary, seen, layout, window, use_reentrant=False)
            else:
                x = layer(x, rotary, seen, layout, window)
        out: torch.Tensor = self.model.norm(x)
        return out

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., vocab] of hidden states [..., hidden] that were read with
        `predictor_positions`: of all ids, as the published models have them."""
        logits: torch.Tensor = self.lm_head(hidden)
        return logits

    def mask_logits_(self, logits: torch.Tensor) -> torch.Tensor:
        """The same logits [..., vocab] with minus infinity at the mask and at ids without a token,
        in place: what sampler and scorer make probabilities of."""
        return self.lm_head.mask_(logits)

    def read_logits(self, hidden: torch.Tensor, targets: torch.Tensor, read: Read) -> torch.Tensor:
        """`read` of the masked logits of hidden states [T, hidden] and of targets [T], [T, ...]; no
        table [T, vocab] is made at once."""
        out: torch.Tensor = self.lm_head(hidden, targets, read)
        return out


def predictor_positions(positions: torch.Tensor, family: Family) -> torch.Tensor:
    """Where the hidden state lies that predicts the token at each position: the one place that
    shifts logits.

    The first position of a shifted family has no predecessor and is predicted from itself, as the
    published samplers do.
    """
    return (positions - family.shift).clamp(min=0)


def rotary_table(
    positions: torch.Tensor, head_dim: int, theta: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [B, L, 1, head_dim] of positions int64 [B, L]; angles in float32 at least,
    whatever the model's dtype."""
    wide = torch.promote_types(dtype, torch.float32)
    powers = torch.arange(0, head_dim, 2, device=positions.device, dtype=wide) / head_dim
    angles = positions.to(wide).unsqueeze(-1) * theta**-powers
    angles = torch.cat([angles, angles], dim=-1).unsqueeze(2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Applies rotary positions to x [B, L, H, D] (first half paired with second half, as the
    published families do); where the table is narrower than D, to the first dimensions."""
    cos, sin = rotary
    size = cos.shape[-1]
    if size < x.shape[-1]:
        turned = rotate(x[..., :size], rotary)
        return torch.cat([turned, x[..., size:]], dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class SkipInit(TorchFunctionMode):
    """Skips parameter initialisation. On "meta" torch would run it too, and load its compiler for
    that, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"]
        return func(*args, **kwargs)


def draw_weights(model: Transformer, generator: np.random.Generator) -> None:
    """Fresh weights: normal, 1/sqrt(fan-in) for matrices, 0.02 for embeddings and head; biases are
    zero, norms are left at one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                is_vocabulary = "embed_tokens" in name or "lm_head" in name
                scale = 0.02 if is_vocabulary else parameter.shape[-1] ** -0.5
                drawn = generator.standard_normal(tuple(parameter.shape), dtype=np.float32) * scale
                parameter.copy_(torch.from_numpy(drawn))
            elif name.endswith("bias"):
                parameter.zero_()
