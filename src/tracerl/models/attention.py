"""Attention over a visibility mask: the reference back end (`scaled_dot_product_attention`), which runs everywhere."""

import torch
from torch.nn import functional as F


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention output [B, H, Q, D] for query [B, H, Q, D] and key, value [B, H_kv, K, D]; mask is bool, broadcastable to [B, 1, Q, K].

    Grouped key/value heads are expanded here. Every query must see at least one key (`Layout.mask` lets padding see itself).
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
