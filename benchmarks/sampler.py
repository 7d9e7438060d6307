"""Tokens per second and forward passes of the sampler's caches against no cache, on random weights,
all in one run.

    python -m benchmarks.sampler                   # small models on the CPU, some seconds python -m
    benchmarks.sampler --hidden 4096 --layers 32 --heads 32 --new-tokens 256 --rows 16 --device cuda
    --dtype bfloat16

Random weights decide nothing worth reading, so every mode commits the same number of tokens at each
step (static sampling), and what is compared is the cost of a pass. Tokens per forward counts every
pass. A ratio above 1 is faster than no cache.
"""

import argparse
import time

import torch

from tracerl.evaluation.generate import change_settings, default_settings
from tracerl.models.policy import Policy, new_model
from tracerl.models.transformer import Architecture
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import generator_for, key_for
from tracerl.settings.sampling import Sampler

MODES: dict[str, list[dict[str, object]]] = {
    "sdar": [{"kind": "none"}, {"kind": "exact"}],
    "llada": [
        {"kind": "none"},
        {"kind": "prefix", "refresh_every": None},
        {"kind": "dual", "refresh_every": None},
        {"kind": "window", "horizon": 32, "refresh_every": None, "refresh_sees": "canvas"},
        {"kind": "dual", "refresh_every": 4},
    ],
}


def model_of(family: str, options: argparse.Namespace) -> Policy:
    architecture = Architecture(
        family=family,
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_layers=options.layers,
        num_heads=options.heads,
        num_kv_heads=options.heads,
        head_dim=options.hidden // options.heads,
        rope_theta=10000.0,
        norm_eps=1e-6,
        tie_embeddings=False,
        mask_id=0,
    )
    return (
        new_model(architecture, generator_for(1, family))
        .to(options.device, getattr(torch, options.dtype))
        .eval()
    )


def settings_of(options: argparse.Namespace, changes: dict[str, object]) -> Sampler:
    given: dict[str, object] = {
        "block_size": options.block_size,
        "steps_per_block": options.steps_per_block,
        "order.kind": "static",
        "temperature": 1.0,
        "max_prompt_tokens": options.prompt,
        "max_new_tokens": options.new_tokens,
        "cache": {"kind": "none"},
        "max_rows": options.rows,
    }
    return change_settings(default_settings("full"), given | changes)


def measured(model: Policy, requests: list[Request], settings: Sampler) -> tuple[float, int, int]:
    """Seconds (the better of two runs), tokens and forward passes of all requests. On a CPU the
    seconds are those of the process."""
    clock = time.process_time if model.device.type == "cpu" else time.perf_counter
    best = float("inf")
    for _ in range(2):
        started = clock()
        trajectories = sample(model, (), requests, settings)
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, clock() - started)
    return best, sum(t.num_tokens for t in trajectories), sum(t.num_forwards for t in trajectories)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in {
        "hidden": 128,
        "layers": 4,
        "heads": 4,
        "vocabulary": 500,
        "prompt": 64,
        "new-tokens": 64,
        "block-size": 16,
        "steps-per-block": 8,
        "rows": 4,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    prompts = [
        generator_for(1, "prompt", i).integers(1, options.vocabulary, size=options.prompt).tolist()
        for i in range(options.rows)
    ]
    requests = [Request(prompt, key_for(1, "noise", i)) for i, prompt in enumerate(prompts)]
    print(
        f"{options.rows} prompts of {options.prompt} tokens, {options.new_tokens} new ones, "
        f"blocks of {options.block_size}"
    )
    print(
        f"{options.device + ' seconds':28}{'tokens/s':>10}{'ratio':>8}{'forwards':>10}"
        f"{'tokens per forward':>20}"
    )
    for family, modes in MODES.items():
        model = model_of(family, options)
        without = 0.0
        for changes in modes:
            seconds, tokens, forwards = measured(
                model, requests, settings_of(options, {"cache": changes})
            )
            without = without or seconds
            name = " ".join(
                [family, *(str(value) for value in changes.values() if value != "canvas")]
            )
            print(
                f"{name:28}{tokens / seconds:10.0f}{without / seconds:8.2f}{forwards:10}"
                f"{tokens / forwards:20.2f}"
            )


if __name__ == "__main__":
    main()
