"""The rollout engine against plain batch generation, with a cache and without, on 64 prompts of
mixed lengths.

    python -m benchmarks.engine            # small model on the CPU, minutes; rows go to
    reports/metrics/benchmarks.json python -m benchmarks.engine --quick    # one response to each
    prompt, for a look; writes nothing

Plain is what published scripts do: prompts in batches as they come; every row of a batch goes
through its blocks in step with the others and waits for the slowest; logits and draws at every live
position; a row that has ended is computed until its batch has. It uses the same weights, noise and
draws, and its responses are checked to be the same, in float64: in float32 a decision whose margin
is rounding can fall otherwise in a batch of another shape, and `same_in_float32` says how many
responses are the same. Random weights end a response by chance, by one of some end ids, which gives
the fixed mix of lengths that is printed. On a CPU seconds are those of the process.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.rows import merge_rows, row
from tracerl.evaluation.generate import change_settings, default_settings
from tracerl.models.masks import CLEAN, PAD, Layout
from tracerl.models.policy import Policy, new_model
from tracerl.models.transformer import Architecture, CacheWindow, KeyValueCache
from tracerl.sampling.drawing import draw
from tracerl.sampling.orders import choose
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import generator_for, key_for, uniforms
from tracerl.settings.sampling import Sampler

NUM_PROMPTS, NUM_SAMPLES = 64, 4
VOCABULARY = 2048
# name: responses to a prompt, end ids (more of them: shorter responses), whether plain has a cache,
# the ratio that is aimed for
CASES = {
    "cached": (NUM_SAMPLES, 100, True, 3.0),
    "cached-longer": (NUM_SAMPLES, 72, True, 3.0),
    "no-cache": (1, 100, False, 8.0),
}
SETTINGS = {
    "block_size": 4,
    "steps_per_block": 4,
    "order.threshold": 0.012,
    "temperature": 1.0,
    "max_prompt_tokens": 256,
    "max_new_tokens": 128,
    "max_rows": 32,
}


def build(device: str, dtype: torch.dtype) -> Policy:
    """The shape of the default model with grouped heads; logits of a few nats' spread, so that
    steps commit one to four tokens."""
    shape = Architecture(
        family="sdar",
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=288,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=24,
        rope_theta=10000.0,
        norm_eps=1e-6,
        tie_embeddings=False,
        mask_id=0,
    )
    model = new_model(shape, generator_for(1, "engine")).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(50)
        model.lm_head.weight.mul_(3 / 0.02 / 96**0.5)
    return model.to(device, dtype)


def workload(num_samples: int) -> list[Request]:
    """`num_samples` requests for each of 64 prompts of 8 to 200 tokens, most of them short."""
    requests = []
    for i in range(NUM_PROMPTS):
        rng = generator_for(1, "engine prompt", i)
        prompt = rng.integers(1, VOCABULARY, size=int(8 * 25 ** rng.random())).tolist()
        requests += [Request(prompt, key_for(1, "engine noise", i, s)) for s in range(num_samples)]
    return requests


@torch.inference_mode()
def plain(
    model: Policy,
    end_ids: Sequence[int],
    requests: Sequence[Request],
    settings: Sampler,
    cached: bool,
) -> list[list[int]]:
    """The responses of plain batch generation, up to the end of the block that ends them."""
    responses: list[list[int]] = []
    for first in range(0, len(requests), settings.max_rows):
        responses += _plain_batch(
            model, end_ids, requests[first : first + settings.max_rows], settings, cached
        )
    return responses


def _plain_batch(
    model: Policy,
    end_ids: Sequence[int],
    requests: Sequence[Request],
    settings: Sampler,
    cached: bool,
) -> list[list[int]]:
    size, device, rows = settings.block_size, model.device, len(requests)
    lengths = torch.tensor([len(request.prompt_ids) for request in requests], device=device)
    starts, ends = lengths // size * size, -(-(lengths + settings.max_new_tokens) // size) * size
    width = int(ends.max())
    canvas = torch.full((rows, width), model.architecture.mask_id, device=device)
    for line, request in zip(canvas, requests, strict=True):
        line[: len(request.prompt_ids)] = torch.tensor(request.prompt_ids, device=device)
    keys, end = (
        torch.tensor([request.key for request in requests], device=device),
        torch.tensor(end_ids, device=device),
    )
    positions = torch.arange(width, device=device).expand(rows, -1)
    masked = (positions >= lengths.unsqueeze(1)) & (positions < ends.unsqueeze(1))
    prompts, steps = masked.logical_not(), torch.zeros(rows, dtype=torch.int64, device=device)
    cache = KeyValueCache(model, rows, width) if cached else None
    if cache is not None and int(starts.max()):
        inside = positions[:, : int(starts.max())]
        layout = Layout(
            inside, inside // size, torch.where(inside < starts.unsqueeze(1), CLEAN, PAD)
        )
        model(canvas[:, : int(starts.max())], layout, CacheWindow(cache, 0, 0))
    done = torch.zeros(rows, dtype=torch.bool, device=device)
    last = starts.clone()
    for block in range(int(((ends - starts) // size).max())):
        live = (starts.unsqueeze(1) + block * size + torch.arange(size, device=device)).clamp(
            max=width - 1
        )
        active, in_block = ~done & (starts + block * size < ends), torch.zeros_like(steps)
        while bool((masked.gather(1, live) & active.unsqueeze(1)).any()):
            here = masked.gather(1, live) & active.unsqueeze(1)
            logits = model.logits(_plain_hidden(model, canvas, live, cache, size))
            counters = (steps.unsqueeze(1) << 32) + live
            drawn = draw(
                logits.flatten(0, 1), uniforms(keys.unsqueeze(1), counters).flatten(), settings
            )
            commit = choose(drawn.confidence.view_as(live), here, in_block, settings)
            at = (
                torch.arange(rows, device=device).unsqueeze(1).expand_as(live)[commit],
                live[commit],
            )
            canvas[at], masked[at] = drawn.tokens.view_as(live)[commit], False
            steps += here.any(1)
            in_block += here.any(1)
        if cache is not None:
            _plain_hidden(model, canvas, live, cache, size)
        last = torch.where(active, live[:, -1] + 1, last)
        done |= (torch.isin(canvas.gather(1, live), end) & ~prompts.gather(1, live)).any(1)
        if bool((done | (last >= ends)).all()):
            break
    return [canvas[i, int(lengths[i]) : int(last[i])].tolist() for i in range(rows)]


def _plain_hidden(
    model: Policy,
    canvas: torch.Tensor,
    live: torch.Tensor,
    cache: KeyValueCache | None,
    size: int,
) -> torch.Tensor:
    """Hidden states of the live blocks: against the cache, or from the whole canvas up to them."""
    length = int(live.max()) + 1
    if cache is not None:
        layout = Layout(live, live, live, first_keys=live[:, -1] + 1, num_keys=length)
        hidden: torch.Tensor = model(canvas.gather(1, live), layout, CacheWindow(cache, 0, length))
        return hidden
    positions = torch.arange(length, device=live.device).expand(len(live), -1)
    layout = Layout(
        positions, positions // size, torch.where(positions <= live[:, -1:], CLEAN, PAD)
    )
    hidden = model(canvas[:, :length], layout)
    return hidden.gather(1, live.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds and result of one run."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    started = clock()
    result = work()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - started, result


def compare(
    name: str,
    device: str,
    num_samples: int,
    num_end_ids: int,
    cached: bool,
    target: float,
    repeats: int,
) -> dict[str, Any]:
    """A row of the engine against plain generation: the better of `repeats` runs of each, in turn,
    and a run of both in float64."""
    settings, requests = (
        change_settings(default_settings("block_causal"), SETTINGS),
        workload(num_samples),
    )
    model, exact = build(device, torch.float32), build(device, torch.float64)
    ends = list(range(1, num_end_ids + 1))
    ours_s = plain_s = float("inf")
    for _ in range(repeats):
        seconds, ours = timed(lambda: sample(model, ends, requests, settings), device)
        ours_s = min(ours_s, seconds)
        seconds, theirs = timed(lambda: plain(model, ends, requests, settings, cached), device)
        plain_s = min(plain_s, seconds)
    same = sum(
        trajectory.response_ids.tolist() == ids
        for trajectory, ids in zip(ours, theirs, strict=True)
    )
    responses_of = [
        trajectory.response_ids.tolist() for trajectory in sample(exact, ends, requests, settings)
    ]
    equal = responses_of == plain(exact, ends, requests, settings, cached)
    prompts, responses = (
        np.array([len(t.prompt_ids) for t in ours]),
        np.array([t.num_tokens for t in ours]),
    )
    steps = sum(len(t.response_ids) for t in ours) / sum(t.num_denoising_forwards for t in ours)
    for what, lengths in (("prompts", prompts), ("responses", responses)):
        shares = np.percentile(lengths, [0, 25, 50, 75, 90, 100]).astype(int).tolist()
        print(
            f"{len(lengths)} {what}: shortest, quartiles, 90%, longest {shares}, mean "
            f"{lengths.mean():.1f}"
        )
    print(
        f"{steps:.2f} tokens a step, {settings.max_rows} rows at once, "
        f"{responses.sum() / ours_s:.0f} tokens/s"
    )
    means = {
        "mean_response": round(float(responses.mean()), 1),
        "longest_response": int(responses.max()),
    }
    speed = {"tokens_per_s": round(float(responses.sum()) / ours_s, 1), "device": device}
    return row(
        name,
        ours_s,
        plain_s,
        target,
        equal,
        rollouts=len(requests),
        same_in_float32=same,
        **means,
        **speed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for name, (samples, num_end_ids, cached, target) in CASES.items():
        if name in (options.only or CASES):
            few = 1 if options.quick else samples
            found = compare(
                f"engine/{name}", options.device, few, num_end_ids, cached, target, options.repeats
            )
            rows.append(found)
            print(found) if options.quick else merge_rows([found])
    if not all(found["equal"] for found in rows):
        sys.exit("the responses differ")


if __name__ == "__main__":
    main()
