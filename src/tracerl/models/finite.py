"""Numbers that are not finite: where they come from, once they have been seen.

Nobody looks for them on every pass. Who reads numbers from the device anyway (the sampler, once a
step) sees NaN among them, and only then asks here.
"""

from typing import Any

import torch
from torch import nn

from tracerl.errors import NonFiniteError
from tracerl.models.masks import Layout
from tracerl.models.policy import Policy


def nonfinite_error(
    policy: Policy, where: str, input_ids: torch.Tensor, layout: Layout
) -> NonFiniteError:
    """The error to raise when logits were not finite.

    Args:
        where: request and step.
        input_ids: int64 [B, L], passed once more to find the first layer. layout: of this pass.
    """
    weight = first_nonfinite_weight(policy)
    if weight is not None:
        return weights_error(weight, where)
    layer = _first_nonfinite_layer(policy, input_ids, layout)
    return NonFiniteError(
        "the model's logits are not finite",
        where=where,
        got=f"first in {layer}, in {policy.dtype}; all weights are finite",
        wanted="finite numbers",
        do="set compute.dtype to bfloat16 or float32 if it is float16",
    )


def weights_error(weight: str, where: str) -> NonFiniteError:
    """The error to raise when logits were not finite because of a weight."""
    return NonFiniteError(
        "the model's logits are not finite",
        where=where,
        got=f"weights that are not finite in {weight}",
        wanted="finite numbers",
        do="use an earlier checkpoint, or copy or download it again",
    )


def first_nonfinite_weight(model: nn.Module) -> str | None:
    """Name of the first parameter that holds NaN or infinity."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return name
    return None


@torch.no_grad()
def _first_nonfinite_layer(policy: Policy, input_ids: torch.Tensor, layout: Layout) -> str:
    names: list[str] = []

    def watch(name: str) -> Any:
        def check(module: nn.Module, arguments: Any, output: torch.Tensor) -> None:
            if not bool(output.isfinite().all()):
                names.append(name)

        return check

    watched: list[tuple[str, nn.Module]] = [("the embeddings", policy.model.embed_tokens)]
    for i, layer in enumerate(policy.model.layers):
        watched.append((f"layer {i}", layer))
    watched += [("the last norm", policy.model.norm), ("the LM head", policy.lm_head)]
    handles = []
    for name, module in watched:
        handles.append(module.register_forward_hook(watch(name)))
    try:
        policy.logits(policy(input_ids, layout))
    finally:
        for handle in handles:
            handle.remove()
    return names[0] if names else "a pass through the cache"
