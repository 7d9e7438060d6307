"""What passes cost: floating-point operations of the products with weights, counted by hand and as
they happen.

Attention over keys is not counted (as in the usual model FLOP utilisation; at 2,000 keys it adds
some 15% to a 4B model), nor are norms, softmaxes and draws. A multiply-add is two operations; a
backward pass costs twice its forward pass.
"""

import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tracerl.models.transformer import Architecture, Transformer


def layer_flops(arch: Architecture) -> int:
    """Of one token through all layers, forwards; of experts those that it goes through."""
    heads = 2 * (arch.num_heads + arch.num_kv_heads) * arch.head_dim
    experts = arch.experts
    if experts is None:
        return 2 * arch.num_layers * arch.hidden_size * (heads + 3 * arch.intermediate_size)
    num_dense = len(experts.dense_layers)
    active = experts.per_token * experts.intermediate_size + experts.shared_size
    sparse = (arch.num_layers - num_dense) * (3 * active + experts.num_experts)
    widths = arch.num_layers * heads + num_dense * 3 * arch.intermediate_size + sparse
    return 2 * arch.hidden_size * widths


def head_flops(arch: Architecture) -> int:
    """Of one position through the LM head, forwards."""
    return 2 * arch.hidden_size * arch.vocab_size


def training_state_bytes(num_trained: int, dtype: torch.dtype) -> int:
    """Bytes that training needs beside the weights: a gradient and two moments of every trained
    parameter, of at least float32, and for weights in half precision their float32 masters and the
    gradient of a micro-batch."""
    wide = torch.promote_types(dtype, torch.float32)
    if wide == dtype:
        return 3 * num_trained * dtype.itemsize
    return num_trained * (4 * wide.itemsize + dtype.itemsize)


@dataclass
class Meter:
    """Counts the passes of the models that `watch` is given."""

    forwards: int = 0
    """Passes."""
    tokens: int = 0
    """Positions in them, padding included."""
    predicted: int = 0
    """Positions that the LM head was applied to."""
    flops: int = 0
    """Floating-point operations of all of it, three times those of a pass with a gradient."""

    def watch(self, model: Transformer) -> None:
        """Counts this model's passes from now on."""
        per_token, per_position = layer_flops(model.architecture), head_flops(model.architecture)

        def count_pass(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
            self.forwards += 1
            self.tokens += arguments[0].numel()
            self.flops += per_token * arguments[0].numel() * (3 if torch.is_grad_enabled() else 1)

        def count_predictions(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
            positions = arguments[0].numel() // arguments[0].shape[-1]
            self.predicted += positions
            self.flops += per_position * positions * (3 if torch.is_grad_enabled() else 1)

        model.register_forward_pre_hook(count_pass)
        model.lm_head.register_forward_pre_hook(count_predictions)


def reset_peak_memory(device: torch.device) -> None:
    """Lets `peak_memory` start anew from what is held now, on CUDA and on Linux; elsewhere it keeps
    counting from the start of the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "utf-8")


def peak_memory(device: torch.device) -> int:
    """The most bytes this process has held: on its CUDA device, or in all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
