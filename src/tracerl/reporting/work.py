"""How many passes a stage of a params file takes, and their floating-point operations, were
everything as large as its limits allow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from tracerl.models.cost import head_flops, layer_flops
from tracerl.models.families import FAMILIES
from tracerl.models.masks import block_starts_after
from tracerl.models.transformer import Architecture
from tracerl.objectives.methods import ESTIMATORS
from tracerl.objectives.supervised import num_tokens, num_trace_views
from tracerl.sampling.caches import ResponseShape, cache_for, cost
from tracerl.sampling.orders import num_steps
from tracerl.settings.rounds import RlRound
from tracerl.settings.sampling import Mode, Sampler
from tracerl.settings.training import Traces, Training


@dataclass(frozen=True)
class Work:
    """forwards: passes of a batch. flops: models/cost.py says of what."""

    forwards: int = 0
    flops: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.forwards + other.forwards, self.flops + other.flops)

    def times(self, count: int) -> "Work":
        return Work(self.forwards * count, self.flops * count)


def sampling_work(settings: Sampler, arch: Architecture, count: int) -> Work:
    """Of `count` responses, in slots that are never idle; each prompt is passed for itself."""
    family, size = FAMILIES[arch.family], settings.block_size
    cache = cache_for(family.attention, settings)
    prompt, blocks = settings.max_prompt_tokens, -(-settings.max_new_tokens // size)
    canvas = prompt + blocks * size
    if family.attention == "block_causal":
        canvas = block_starts_after(prompt + settings.max_new_tokens, size)
        if prompt % size:
            blocks += 1  # the block that prompt and response share
    shape = ResponseShape(
        attention=family.attention,
        shift=family.shift,
        prompt=prompt,
        canvas=canvas,
        block_size=size,
        num_blocks=blocks,
        num_steps=num_steps(settings),
    )
    passes, tokens = cost(cache, shape)
    branches = 2 if settings.guidance else 1
    predicted = blocks * shape.num_steps * size
    flops = float(count) * branches * (tokens * layer_flops(arch) + predicted * head_flops(arch))
    rows = settings.max_rows
    if cache.stores_keys and settings.cache_tokens is not None:
        rows = max(1, min(rows, settings.cache_tokens // canvas))
    waves = -(-count // rows)
    return Work(branches * waves * (passes + cache.shares_prompts), flops)


def evaluation_work(
    sampler: Sampler,
    modes: Mapping[str, Mode],
    num_responses: Mapping[str, int],
    arch: Architecture,
) -> Work:
    """Of an evaluation in all its modes. num_responses: of all problems, by name of a mode."""
    total = Work()
    for name, mode in modes.items():
        total += sampling_work(mode.apply(sampler), arch, num_responses[name])
    return total


def trace_work(settings: Traces, arch: Architecture) -> Work:
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
    attention = FAMILIES[arch.family].attention
    tokens = settings.batch_size * num_tokens(settings.objective, attention, block, length)
    return _training_work(
        tokens, settings.batch_size * length, settings.micro_batch_tokens, arch, 1, 0
    ).times(settings.num_steps)


def rl_work(settings: RlRound, arch: Architecture) -> Work:
    """Of all iterations: groups up to the cap, old (and reference) log-probabilities and the
    gradient's passes over the kept ones, values, and the held-out evaluations."""
    held_out = settings.held_out
    sampled = sampling_work(
        settings.sampler, arch, settings.max_sampled_groups * settings.group_size
    )
    evaluations = 1 + -(-settings.iterations // held_out.every)
    num_problems = held_out.num_problems * len(held_out.tasks or settings.tasks)
    num_responses = {}
    for name, mode in held_out.modes.items():
        num_responses[name] = num_problems * mode.samples(held_out.num_samples)
    evaluated = evaluation_work(settings.sampler, held_out.modes, num_responses, arch)
    iteration = sampled + _update_work(settings, arch)
    return iteration.times(settings.iterations) + evaluated.times(evaluations)


def _update_work(settings: RlRound, arch: Architecture) -> Work:
    """Of the updates of an iteration: the policy's, and the value model's if there is one."""
    sampler, block, method = settings.sampler, settings.train_block_size, settings.method
    estimator = ESTIMATORS[type(method)]
    attention = FAMILIES[arch.family].attention
    length = block_starts_after(sampler.max_prompt_tokens + sampler.max_new_tokens, block)
    steps = num_trace_views(attention, block, settings.shrink, sampler.max_new_tokens)
    count = settings.groups * settings.group_size
    tokens = count * _layout(arch, length, estimator.num_views(method, steps))
    predicted = count * sampler.max_new_tokens * estimator.num_predictions(method)
    draws = settings.epochs if method.draws_views else 1
    without = Fraction(draws * (1 + (settings.kl_to != "iteration")))
    if settings.epochs == draws:  # the first optimizer step needs no other pass than its own
        without -= Fraction(1, settings.updates)
    update = _training_work(
        tokens, predicted, settings.micro_batch_tokens, arch, settings.epochs, without
    )
    if settings.value is not None:
        tokens = count * _layout(arch, length, steps)
        update += _training_work(tokens, 0, settings.micro_batch_tokens, arch, 1, 1)
    return update


def _layout(arch: Architecture, length: int, views: int) -> int:
    """Tokens of a trajectory's rows: a canvas for each view, or one clean copy and the views behind
    it."""
    return views * length if FAMILIES[arch.family].attention == "full" else (1 + views) * length


def _training_work(
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
