"""Rollout and training speed at the true shapes of SDAR-4B and 8B on one GPU, random weights, with
the roofline beside them.

    python -m benchmarks.gpu                       # SDAR-4B on the first GPU: rollouts, then a
    training step python -m benchmarks.gpu --shape sdar-8b --rows 128 --only rollout python -m
    benchmarks.gpu --shape tiny          # a look at the script itself, on any machine

Random weights decide nothing worth reading, so a step commits a fixed number of tokens
(`--steps-per-block` 2 of a block of 4: two denoising passes and one that commits; published dynamic
runs take 1.75) and no response ends early. The roofline is measured where it is
used: the rate of a large matrix product and of a large copy. A pass can be no faster than its
products at that rate, nor than reading the weights and the keys of its rows at the other.
Utilisation counts products with weights only (tracerl.models.cost), a backward pass twice its
forward. Aims on an H200: 15,000 tokens/s of rollouts at 4B, block size 4, 128 rows; 45% of the peak
in training.

--compile has torch.compile make one graph of every layer (`inductor`; `eager` only checks that it
can): shapes are few on purpose.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.rows import merge_rows, row
from benchmarks.sampler import settings_of
from benchmarks.training_step import step, trajectories
from tracerl.models.cost import Meter
from tracerl.models.policy import Policy
from tracerl.models.transformer import Architecture
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import generator_for, key_for
from tracerl.settings.training import Optimizer
from tracerl.training.trainer import Trainer

# vocabulary, hidden, intermediate, layers, heads, key heads, size of a head
SHAPES = {
    "sdar-4b": (151936, 2560, 9728, 36, 32, 8, 128),
    "sdar-8b": (151936, 4096, 12288, 36, 32, 8, 128),
    "tiny": (1000, 64, 192, 2, 4, 2, 16),
}
TOKENS_PER_S, UTILISATION = {"sdar-4b": 15_000.0, "sdar-8b": 7_500.0}, 0.45


@dataclass(frozen=True)
class Roofline:
    """What the device gives a large product, FLOP/s, and a large copy, bytes/s."""

    flops: float
    bytes: float

    def seconds(self, flops: float, moved: float) -> float:
        """The least time in which both can be done."""
        return max(flops / self.flops, moved / self.bytes)


def build(shape: str, device: torch.device, dtype: torch.dtype) -> Policy:
    """The shape with normal weights drawn on the device (4 billion numbers of the seeded host
    generator would take minutes)."""
    vocabulary, hidden, intermediate, layers, heads, key_heads, size = SHAPES[shape]
    with torch.device("meta"):
        arch = Architecture(
            family="sdar",
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=key_heads,
            head_dim=size,
            rope_theta=1e6,
            norm_eps=1e-6,
            tie_embeddings=False,
            mask_id=vocabulary - 1,
        )
        model = Policy(arch).to(dtype)
    model.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(
                std=0.02, generator=generator
            ) if parameter.dim() == 2 else parameter.fill_(1.0)
    return model.eval()


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one run that has ended on the device too."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def roofline(device: torch.device, dtype: torch.dtype) -> Roofline:
    """The best of several products and copies, large on a GPU and small elsewhere."""
    size = 8192 if device.type == "cuda" else 512
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    table = torch.empty(
        1 << (30 if device.type == "cuda" else 26), dtype=torch.uint8, device=device
    )
    copy = torch.empty_like(table)
    product, moved = (
        min(timed(work, device) for _ in range(8))
        for work in (lambda: a @ b, lambda: copy.copy_(table))
    )
    return Roofline(2 * size**3 / product, 2 * table.numel() / moved)


def rollouts(
    model: Policy,
    options: argparse.Namespace,
    roof: Roofline,
    clock: Callable[[Callable[[], object]], float],
) -> None:
    """Groups of eight responses to prompts of one length, twice as many as there are slots."""
    settings, arch = settings_of(options, {"cache": {"kind": "exact"}}), model.architecture
    requests = []
    for i in range(max(1, options.rows // 4)):
        prompt = (
            generator_for(1, "prompt", i)
            .integers(1, arch.vocab_size - 1, size=options.prompt)
            .tolist()
        )
        requests += [Request(prompt, key_for(1, "noise", i, s)) for s in range(8)]
    # Warm-up.
    sample(
        model,
        (),
        requests[: options.rows],
        settings.model_copy(update={"max_new_tokens": 4 * options.block_size}),
    )
    meter = Meter()
    meter.watch(model)
    seconds = clock(lambda: sample(model, (), requests, settings))
    tokens, size = len(requests) * options.new_tokens, next(model.parameters()).element_size()
    weights = sum(parameter.numel() for parameter in model.parameters()) * size
    keys = (
        2
        * arch.num_layers
        * arch.num_kv_heads
        * arch.head_dim
        * size
        * options.rows
        * (options.prompt + options.new_tokens / 2)
    )
    bound = roof.seconds(meter.flops, meter.forwards * (weights + keys))
    print(
        f"rollouts: {tokens / seconds:,.0f} tokens/s, {meter.forwards} passes of "
        f"{1e3 * seconds / meter.forwards:.1f} ms, "
        f"{seconds / bound:.2f} x the roofline ({tokens / bound:,.0f} tokens/s)"
    )
    report(
        options,
        "rollout",
        seconds,
        bound,
        TOKENS_PER_S.get(options.shape),
        {"tokens_per_s": round(tokens / seconds, 1)},
    )


def training(
    model: Policy,
    options: argparse.Namespace,
    roof: Roofline,
    clock: Callable[[Callable[[], object]], float],
) -> None:
    """One TraceRL step on `--train-rows` responses, one token a step: old log-probabilities,
    objective, backward, AdamW."""
    optimizer = Optimizer(
        lr=1e-6, betas=(0.9, 0.99), weight_decay=0.0, clip_norm=1.0, warmup=0, decay=0.0
    )
    trainer = Trainer(model, optimizer, 10)
    length = (options.prompt + options.new_tokens) // options.block_size * options.block_size
    batch = trajectories(
        {
            "length": length,
            "rows": options.train_rows,
            "vocabulary": model.architecture.vocab_size - 1,
        }
    )
    step(trainer, batch[:1], plain=False)  # warm-up, and the moments
    meter = Meter()
    meter.watch(model)
    seconds = clock(lambda: step(trainer, batch, plain=False))
    used = meter.flops / seconds / roof.flops
    trained = sum(trajectory.num_tokens for trajectory in batch)
    print(
        f"training: {meter.tokens / 2 / seconds:,.0f} layout tokens/s, {trained / seconds:,.0f} "
        "trained tokens/s, "
        f"utilisation {used:.1%} of {roof.flops / 1e12:,.1f} TFLOP/s"
    )
    report(
        options,
        "training",
        seconds,
        meter.flops / roof.flops,
        UTILISATION,
        {"utilisation": round(used, 4)},
    )


def report(
    options: argparse.Namespace,
    name: str,
    seconds: float,
    bound: float,
    target: float | None,
    more: dict[str, float],
) -> None:
    """A row of the benchmarks' file, whose plain_s is the roofline's; of a real shape on a GPU
    only."""
    if options.device == "cuda" and target is not None:
        what = f"{torch.cuda.get_device_name()}, {options.rows} rows, plain_s is the roofline"
        merge_rows(
            [row(f"gpu/{name}-{options.shape}", seconds, bound, target, True, means=what, **more)]
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cuda = torch.cuda.is_available()
    parser.add_argument("--shape", choices=SHAPES, default="sdar-4b" if cuda else "tiny")
    parser.add_argument("--only", choices=["rollout", "training"])
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--dtype", default="bfloat16" if cuda else "float32")
    parser.add_argument("--rows", type=int, default=128 if cuda else 8)
    parser.add_argument("--train-rows", type=int, default=4 if cuda else 1)
    parser.add_argument("--prompt", type=int, default=256 if cuda else 16)
    parser.add_argument("--new-tokens", type=int, default=512 if cuda else 32)
    parser.add_argument("--block-size", type=int, default=4)
    parser.add_argument("--steps-per-block", type=int, default=2)
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--compile", metavar="BACKEND")
    options = parser.parse_args()
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    roof = roofline(device, dtype)
    print(
        f"{options.shape} on {device}, {options.dtype}: {roof.flops / 1e12:,.2f} TFLOP/s, "
        f"{roof.bytes / 1e9:,.0f} GB/s"
    )
    model = build(options.shape, device, dtype)
    model.attention = options.attention
    if options.compile:
        # A layer's number is a constant of its graph.
        torch._dynamo.config.recompile_limit = 16 * len(model.model.layers)
        for layer in model.model.layers:
            layer.compile(backend=options.compile, fullgraph=True)

    def clock(work: Callable[[], object]) -> float:
        return timed(work, device)

    if options.only != "training":
        rollouts(model, options, roof, clock)
    if options.only != "rollout":
        training(model, options, roof, clock)
    if device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
