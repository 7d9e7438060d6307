"""How many passes a stage of a params file takes, and their floating-point operations, were
everything as large as its limits allow."""

import math
from dataclasses import dataclass
from fractions import Fraction

from tracerl.models.cost import head_flops, layer_flops
from tracerl.models.families import FAMILIES
from tracerl.models.masks import block_starts_after
from tracerl.models.transformer import Architecture
from tracerl.sampling.sampler import cache_mode
from tracerl.settings.sampling import Sampler
from tracerl.settings.training import RlRound, Traces, Training


@dataclass(frozen=True)
class Work:
    """forwards: passes of a batch. flops: models/cost.py says of what."""

    forwards: int = 0
    flops: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.forwards + other.forwards, self.flops + other.flops)

    def times(self, count: int) -> "Work":
        return Work(self.forwards * count, self.flops * count)


def sampling_work(
    settings: Sampler, arch: Architecture, count: int, remasking: str | None = None
) -> Work:
    """Of `count` responses, in slots that are never idle; each prompt is passed for itself."""
    attention, size = FAMILIES[arch.family].attention, settings.block_size
    mode, remasking = cache_mode(attention, settings), remasking or settings.remasking
    prompt, blocks = settings.max_prompt_tokens, -(-settings.max_new_tokens // size)
    if attention == "block_causal" and prompt % size:
        blocks += 1  # the block that prompt and response share
    steps = (
        settings.steps_per_block if remasking in ("static", "sequential", "plackett_luce") else size
    )
    canvas = (
        block_starts_after(prompt + settings.max_new_tokens, size)
        if attention == "block_causal"
        else prompt + blocks * size
    )
    if mode == "exact":
        passes, tokens = blocks * (steps + 1), prompt + blocks * (steps + 1) * size
    elif mode == "none":
        hidden = (
            size if attention == "block_causal" else 0
        )  # later blocks are not passed where they cannot be seen
        passes, tokens = (
            blocks * steps,
            steps * sum(canvas - hidden * later for later in range(blocks)),
        )
    else:
        every = settings.refresh_every or steps
        full = -(-steps // every)
        longest = {"prefix": canvas, "dual": size, "window": size + (settings.horizon or 0)}[mode]
        windows = sum(
            min(longest, (later + 1) * size) + FAMILIES[arch.family].shift
            for later in range(blocks)
        )
        passes, tokens = blocks * steps, blocks * full * canvas + (steps - full) * windows
    worlds = 2 if settings.guidance else 1
    predicted = blocks * steps * size
    flops = float(count) * worlds * (tokens * layer_flops(arch) + predicted * head_flops(arch))
    rows = settings.max_rows
    if mode != "none" and settings.cache_tokens is not None:
        rows = max(1, min(rows, settings.cache_tokens // canvas))
    waves = -(-count // rows)
    return Work(worlds * waves * (passes + (mode == "exact")), flops)


def preferred_work(settings: Traces, arch: Architecture) -> Work:
    """Of known solutions in the model's own order: a pass for every `pick` tokens, over the whole
    canvas."""
    length = settings.sampler.max_prompt_tokens + settings.sampler.max_new_tokens
    passes = -(-settings.sampler.max_new_tokens // settings.pick)
    count = sum(settings.preferred.values())
    one = passes * (
        2 * length * layer_flops(arch) + settings.sampler.max_new_tokens * head_flops(arch)
    )
    return Work(-(-count // settings.batch_size) * passes, float(count) * one)


def sft_work(settings: Training, arch: Architecture) -> Work:
    """Of all optimizer steps, every example as long as it may be."""
    block, length = max(settings.block_sizes), settings.max_length
    views = {
        "trace": _views(arch, block, settings.shrink, length),
        "semi_ar": -(-length // block),
    }.get(settings.objective, 1)
    if settings.objective == "semi_ar" and FAMILIES[arch.family].attention == "block_causal":
        views = 1
    tokens = settings.batch_size * (
        length if settings.objective == "ar" else _layout(arch, length, views)
    )
    return _trained(
        tokens, settings.batch_size * length, settings.micro_batch_tokens, arch, 1, 0
    ).times(settings.num_steps)


def rl_work(settings: RlRound, arch: Architecture) -> Work:
    """Of all iterations: groups up to the cap, old (and reference) log-probabilities and the
    gradient's passes over the kept ones, values, and the held-out evaluations."""
    sampler, block = settings.sampler, settings.train_block_size
    length = block_starts_after(sampler.max_prompt_tokens + sampler.max_new_tokens, block)
    traced = settings.method in ("tracerl", "step_merge", "mask_aware")
    views = (
        _views(arch, block, settings.shrink, sampler.max_new_tokens)
        if traced
        else 2 * (settings.copies or 1) * (settings.nodes or 1)
    )
    count = settings.groups * settings.group_size
    tokens, predicted = (
        count * _layout(arch, length, views),
        count * sampler.max_new_tokens * (1 if traced else views),
    )
    draws = settings.epochs if settings.method != "tracerl" else 1
    without = Fraction(draws * (1 + (settings.kl_to != "iteration")))
    if settings.epochs == draws:  # the first optimizer step needs no other pass than its own
        without -= Fraction(1, settings.updates)
    update = _trained(
        tokens, predicted, settings.micro_batch_tokens, arch, settings.epochs, without
    )
    if settings.value is not None:
        update += _trained(
            count
            * _layout(arch, length, _views(arch, block, settings.shrink, sampler.max_new_tokens)),
            0,
            settings.micro_batch_tokens,
            arch,
            1,
            1,
        )
    sampled = sampling_work(sampler, arch, settings.max_sampled_groups * settings.group_size)
    evaluations = 1 + -(-settings.iterations // settings.held_out.every)
    problems = settings.held_out.num_problems * len(settings.held_out.tasks or settings.tasks)
    held_out = sum(
        (sampling_work(sampler, arch, problems, mode) for mode in settings.held_out.remasking),
        Work(),
    )
    return (sampled + update).times(settings.iterations) + held_out.times(evaluations)


def _views(arch: Architecture, block: int, shrink: int, tokens: int) -> int:
    """Views of a trajectory that committed a token a step."""
    return -(-(tokens if FAMILIES[arch.family].attention == "full" else block) // shrink)


def _layout(arch: Architecture, length: int, views: int) -> int:
    """Tokens of a trajectory's rows: a canvas for each view, or one clean copy and the views behind
    it."""
    return views * length if FAMILIES[arch.family].attention == "full" else (1 + views) * length


def _trained(
    tokens: int,
    predicted: int,
    micro_batch: int,
    arch: Architecture,
    epochs: int,
    without: Fraction | int,
) -> Work:
    """Passes with a gradient (`epochs` of them) and without one."""
    passes = math.ceil(-(-tokens // micro_batch) * (epochs + without))
    return Work(
        passes,
        float(3 * epochs + without) * (tokens * layer_flops(arch) + predicted * head_flops(arch)),
    )
