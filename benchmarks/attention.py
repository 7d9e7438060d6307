"""Time of each attention back end against the reference, and how far their results lie apart.

Two passes of a random model: a training layout, [clean | noisy views], and live blocks against
their keys. On CUDA in bfloat16, where `flex` is compiled and `flash` runs if it is installed; on a
CPU in float32, where `flex` only checks its masks.

Example: python -m benchmarks.attention --length 2048
"""

import argparse
import time

import torch

from tracerl.models.attention import Backend, flash_installed
from tracerl.models.masks import Layout
from tracerl.models.policy import Policy, new_model
from tracerl.models.transformer import Architecture, CacheWindow, KeyValueCache
from tracerl.seeds import generator_for

BLOCK, ROWS, REPEATS = 4, 4, 5


def training_layout(length: int, device: torch.device) -> Layout:
    """A clean sequence and two noisy views of all of it, ROWS times."""
    positions = torch.arange(length, device=device).repeat(3).expand(ROWS, -1)
    streams = torch.arange(3, device=device).repeat_interleave(length).expand(ROWS, -1)
    return Layout(positions, positions // BLOCK, streams)


def cached_layout(length: int, device: torch.device) -> Layout:
    """The last block of every row against all keys up to it."""
    live = torch.arange(length - BLOCK, length, device=device).expand(ROWS, -1)
    return Layout(
        live, live, live, first_keys=torch.full((ROWS,), length, device=device), num_keys=length
    )


def timed(
    model: Policy, ids: torch.Tensor, layout: Layout, backend: Backend
) -> tuple[float, torch.Tensor]:
    """Seconds of one pass, the best of several, and its hidden states."""
    window = None
    if length := layout.num_keys:
        window = CacheWindow(KeyValueCache(model, ROWS, length), 0, length)
    model.attention, best = backend, float("inf")
    for _ in range(REPEATS):
        if ids.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        out = model(ids, layout, window)
        if ids.is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best, out


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=512)
    length = parser.parse_args().length // BLOCK * BLOCK
    cuda = torch.cuda.is_available()
    device, dtype = (
        torch.device("cuda" if cuda else "cpu"),
        torch.bfloat16 if cuda else torch.float32,
    )
    shape = Architecture(
        family="sdar",
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=1024,
        num_layers=2,
        num_heads=8,
        num_kv_heads=4,
        head_dim=64,
        rope_theta=1e6,
        norm_eps=1e-6,
        tie_embeddings=False,
        mask_id=0,
    )
    model = new_model(shape, generator_for(1, "attention")).to(device, dtype).eval()
    for name, layout in (
        ("training", training_layout(length, device)),
        ("cached", cached_layout(length, device)),
    ):
        ids = torch.randint(
            0, 1000, layout.positions.shape, generator=torch.Generator().manual_seed(1)
        ).to(device)
        reference, wanted = timed(model, ids, layout, "sdpa")
        backends: list[Backend] = ["flex", "flash"] if cuda and flash_installed() else ["flex"]
        for backend in backends:
            seconds, out = timed(model, ids, layout, backend)
            difference = float((out - wanted).abs().max())
            told = f"{backend} takes {seconds / reference:.2f} x sdpa, differs by {difference:.1e}"
            print(f"{name} pass of {tuple(ids.shape)} on {device}: {told}")


if __name__ == "__main__":
    main()
