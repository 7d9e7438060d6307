"""Tokens per second through a mixture of experts and through a dense MLP of the same active size,
forwards and with gradients.

    python -m benchmarks.mixture --experts 64        # on a CPU: a quarter of the experts
    python -m benchmarks.mixture --device cuda --dtype bfloat16 --tokens 16384

Widths are those of LLaDA2-mini: hidden 2,048, experts of 512, of which a token has 8, and a shared
one. On CUDA in bfloat16 the products of all experts are one kernel (torch's grouped_mm), elsewhere
a loop over the experts in use. Beside the speeds stands their ratio: what routing, sorting and many
small products cost.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from tracerl.models.families import FAMILIES
from tracerl.models.mlp import MLP, Experts, MixtureOfExperts

HIDDEN_SIZE = 2048
LLADA2_MINI = Experts(
    num_experts=256,
    per_token=8,
    intermediate_size=512,
    shared_size=512,
    dense_layers=(),
    num_groups=8,
    groups_per_token=4,
    scaling=2.5,
)


def seconds(run: Callable[[], object], repeats: int, device: torch.device) -> float:
    """The least of some times, after a run that is not counted."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def draw(module: nn.Module) -> nn.Module:
    """Weights of the scale of a trained layer."""
    torch.manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--experts", type=int, default=256, help="a multiple of 8")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    dtype = getattr(torch, arguments.dtype)
    shape = replace(LLADA2_MINI, num_experts=arguments.experts)
    active = shape.per_token * shape.intermediate_size + shape.shared_size
    with device:
        x = torch.randn(1, arguments.tokens, HIDDEN_SIZE).to(dtype)
        layers = {
            f"dense {active}": draw(MLP(HIDDEN_SIZE, active)).to(dtype),
            f"{shape.per_token} of {shape.num_experts} experts": draw(
                MixtureOfExperts(HIDDEN_SIZE, shape, FAMILIES["llada2"])
            ).to(dtype),
        }
    speeds: dict[str, list[float]] = {}
    for name, layer in layers.items():

        def forward(layer: nn.Module = layer) -> torch.Tensor:
            with torch.no_grad():
                out: torch.Tensor = layer(x)
            return out

        def train(layer: nn.Module = layer) -> None:
            layer(x).sum().backward()

        times = [seconds(run, arguments.repeats, device) for run in (forward, train)]
        speeds[name] = [arguments.tokens / each for each in times]
        print(
            f"{name}: {speeds[name][0]:,.0f} tokens/s forwards, "
            f"{speeds[name][1]:,.0f} tokens/s with gradients"
        )
    dense, mixture = speeds.values()
    ratios = [one / other for one, other in zip(mixture, dense, strict=True)]
    print(f"mixture / dense: {ratios[0]:.2f} forwards, {ratios[1]:.2f} with gradients")


if __name__ == "__main__":
    main()
