"""Sections `base`, `traces`, `sft` and `rl`: everything that trains."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from tracerl.settings.base import Fraction, Name, Positive, Section, Shares, check_range
from tracerl.settings.evaluation import HeldOut
from tracerl.settings.methods import METHOD_KEYS, METHOD_RATIOS, WHOLE_RESPONSE, Method
from tracerl.settings.models import Lora, ModelShape, TokenIds
from tracerl.settings.rewards import Process, RewardPart
from tracerl.settings.sampling import Sampler


class Optimizer(Section):
    """AdamW. warmup: steps of linear rise. decay: the last share of steps over which the rate falls
    linearly to zero."""

    lr: float = Field(gt=0.0)
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]]
    weight_decay: float = Field(ge=0.0)
    clip_norm: float = Field(gt=0.0)
    warmup: int = Field(ge=0)
    decay: float = Fraction


class Training(Section):
    """Supervised training on trajectories; see training/sft.py.

    objective: "random" (fresh noise, per block or per sequence), "semi_ar" (block by block),
    "trace" (views of the step map) or "ar" (next token, shifted families). noise: range of the
    noise level t. weighting: "inverse_t" or "uniform". end_tokens: how many of the end tokens that
    close the last block are learned, null for all. row_tokens: examples share rows of so many
    tokens, null for a row each.
    block_sizes: block size -> share of the batches.
    tasks: task set -> share of the examples.
    """

    objective: Literal["random", "semi_ar", "trace", "ar"]
    noise: tuple[float, float]
    weighting: Literal["inverse_t", "uniform"]
    shrink: int = Positive
    end_tokens: int | None = Field(default=None, gt=0)
    row_tokens: int | None = Field(default=None, gt=0)
    block_sizes: Annotated[
        dict[Annotated[int, Field(gt=0)], Annotated[float, Field(gt=0.0)]], Field(min_length=1)
    ]
    tasks: Shares
    num_steps: int = Positive
    batch_size: int = Positive
    micro_batch_tokens: int = Positive
    max_length: int = Positive
    save_every: int = Positive
    optimizer: Optimizer

    @model_validator(mode="after")
    def _noise_is_a_range(self) -> Self:
        check_range("noise", self.noise, empty=False)
        return self


class SftRound(Training):
    """Supervised fine-tuning from checkpoint `init` on `data`: "tasks" (the task sets' worked
    solutions) or "traces" (with step maps).

    lora: adapters to train instead of all weights, or null.
    """

    init: str
    lora: Lora | None
    data: Literal["tasks", "traces"]

    @model_validator(mode="after")
    def _traces_have_steps(self) -> Self:
        if self.objective == "trace" and self.data != "traces":
            raise ValueError(
                "objective 'trace' needs data 'traces': worked solutions have no step map"
            )
        return self


class Base(Section):
    """The first checkpoint: imported from `path`, or, if that is null, a new `model` trained by
    `train` on worked solutions."""

    path: str | None
    token_ids: TokenIds
    model: ModelShape
    train: Training

    @model_validator(mode="after")
    def _solutions_have_no_steps(self) -> Self:
        if self.train.objective == "trace":
            raise ValueError("train.objective cannot be 'trace': worked solutions have no step map")
        return self


class Traces(Section):
    """Trace collection from `checkpoint` (algorithms: docs/algorithm.md section 4).

    preferred: known solutions per task set in the model's own preferred order; pick at a time,
    merged to `step_tokens` tokens a step.
    rollouts: tasks per set whose responses are sampled `group_size` times; verified ones are kept.
    """

    checkpoint: str
    block_size: int = Positive
    pick: int = Positive
    step_tokens: int = Positive
    preferred: dict[str, Annotated[int, Field(ge=0)]]
    rollouts: dict[str, Annotated[int, Field(ge=0)]]
    group_size: int = Positive
    batch_size: int = Positive
    sampler: Sampler

    @model_validator(mode="after")
    def _selections_merge(self) -> Self:
        if self.step_tokens % self.pick:
            raise ValueError(
                f"step_tokens {self.step_tokens} is not a multiple of pick {self.pick}"
            )
        return self


class Critic(Section):
    """A value model beside the policy; see training/critic.py.

    start: its backbone at first, that of the round's first policy ("policy") or the value model
    that the parent round saved ("parent").
    discount, trace: gamma and lambda. clip: of the value around its old one. every: it is updated
    in each `every`-th iteration, starting with the first, in `updates` optimizer steps with an
    optimizer of its own.
    """

    start: Literal["policy", "parent"]
    discount: float = Fraction
    trace: float = Fraction
    clip: float = Field(gt=0.0)
    every: int = Positive
    updates: int = Positive
    optimizer: Optimizer


class Bar(Section):
    """What ends a phase: the mean accuracy of the training responses in its last `over` iterations
    is at least `accuracy`."""

    accuracy: float = Fraction
    over: int = Positive


class Phase(Section):
    """A stretch of a round: the keys of the round that it changes, and when it ends;
    docs/curriculum.md has examples.

    It ends after `iterations` or as soon as `until` is met, whichever comes first; with neither it
    lasts to the end of the round. After the last phase the first one follows. A key that is left
    out is the round's own; sampler: the keys of the sampler that change.
    """

    name: Name
    iterations: int | None = Field(default=None, gt=0)
    until: Bar | None = None
    tasks: Shares | None = None
    groups: int | None = None
    max_sampled_groups: int | None = None
    min_groups: int | None = None
    pass_rate: tuple[float, float] | None = None
    train_block_size: int | None = None
    shrink: int | None = None
    micro_batch_tokens: int | None = None
    sampler: dict[str, Any] | None = None

    @property
    def shortest(self) -> int | None:
        """The fewest iterations after which it can end; None if it never does."""
        ends = [self.iterations, None if self.until is None else self.until.over]
        return min((end for end in ends if end is not None), default=None)


class RlRound(Section):
    """Reinforcement learning from checkpoint `init` by one of the methods of objectives/methods.py;
    see training/rl.py.

    lora: adapters to train instead of all weights, or null.
    reward: weight of each part of the reward (rewards/verify/parts.py); "correct" is the verifier's.
    groups: prompts per iteration after the filter, group_size: responses per prompt.
    max_sampled_groups: cap of the resampling.
    pass_rate: groups outside this range of pass rates are dropped. updates: optimizer steps that an
    iteration's groups are dealt out to.
    epochs: how often they are. num_pad: end tokens after the first one that are trained as well.
    ratio: per token (or unit of the method), per response, or none. clip: of the ratio, below and
    above.
    kl: estimator of the penalty, to the policy of the iteration's start, the initial one, or one
    that is synced every `sync_every` optimizer steps. block_size of the sampler may be smaller than
    train_block_size (enlargement). optimizer.warmup and decay count optimizer steps.
    allow_filtered: whether the sampler may filter tokens (top_k, top_p), which makes the updates
    off-policy. Keys of single methods are left out where they say nothing:
    value: the value model that advantages "gae" need. process: rewards of the steps of a response,
    beside that of its outcome. copies: masked copies (or pairs of them) of a response, with noise
    levels or shares in `noise`. prompt_masking: probability of masking a prompt token. nodes:
    points of the quadrature. bound_exponent, bound_share: SPG's upper bound and its share in the
    mixture. segments: how many segments of `shrink` steps are scored. order_weight, order_clip: of
    the order's term.
    group_tokens: responses to one prompt share rows of so many tokens and one copy of its whole
    blocks (block-causal attention), null for a row each: the same losses to rounding.
    phases: what changes inside the round, iteration by iteration (null: nothing). Held-out problems
    are asked under the round's own keys from first to last.
    """

    init: str
    lora: Lora | None
    method: Method
    ratio: Literal["token", "sequence", "none"]
    reward: Annotated[Mapping[RewardPart, float], Field(min_length=1)]
    tasks: Shares
    iterations: int = Positive
    groups: int = Positive
    group_size: int = Field(ge=2)
    max_sampled_groups: int = Positive
    min_groups: int = Positive
    pass_rate: tuple[float, float]
    advantages: Literal["group", "mean", "rloo", "gae"]
    value: Critic | None = None
    process: Process | None = None
    train_block_size: int = Positive
    shrink: int = Positive
    updates: int = Positive
    epochs: int = Positive
    num_pad: int = Field(ge=0)
    copies: int | None = Field(default=None, gt=0)
    noise: tuple[float, float] | None = None
    prompt_masking: float | None = Field(default=None, ge=0.0, le=1.0)
    nodes: int | None = Field(default=None, gt=0)
    bound_exponent: float | None = Field(default=None, ge=1.0)
    bound_share: float | None = Field(default=None, ge=0.0, le=1.0)
    segments: int | None = Field(default=None, gt=0)
    order_weight: float | None = Field(default=None, ge=0.0)
    order_clip: (
        tuple[Annotated[float, Field(gt=0.0, lt=1.0)], Annotated[float, Field(gt=0.0)]] | None
    ) = None
    clip: tuple[Annotated[float, Field(gt=0.0, lt=1.0)], Annotated[float, Field(gt=0.0)]]
    kl: Literal["k1", "k2", "k3"]
    kl_to: Literal["iteration", "initial", "synced"]
    sync_every: int | None = Field(default=None, gt=0)
    kl_weight: float = Field(ge=0.0)
    allow_filtered: bool
    reduction: Literal["step", "response", "token", "fixed"]
    micro_batch_tokens: int = Positive
    group_tokens: int | None = Field(default=None, gt=0)
    save_every: int = Positive
    held_out: HeldOut
    optimizer: Optimizer
    sampler: Sampler
    phases: Annotated[list[Phase], Field(min_length=1)] | None = None

    def during(self, phase: Phase) -> "RlRound":
        """The round as it is in one of its phases. Raises ValueError if what the phase changes does
        not fit."""
        changes = phase.model_dump(
            exclude={"name", "iterations", "until", "sampler"}, exclude_none=True
        )
        sampler = {**self.sampler.model_dump(), **(phase.sampler or {})}
        return RlRound.model_validate_json(
            json.dumps({**self.model_dump(), **changes, "sampler": sampler, "phases": None})
        )

    @property
    def stretches(self) -> "list[RlRound]":
        """The round as it is in each of its phases; itself alone if it has none."""
        return [self.during(phase) for phase in self.phases] if self.phases else [self]

    @model_validator(mode="after")
    def _phases_follow_each_other(self) -> Self:
        before: int | None = 0
        for phase in self.phases or ():
            if before is None or before >= self.iterations:
                raise ValueError(
                    f"phase {phase.name!r} never begins: the phases before it last for all {self.iterations} iterations"
                )
            before = None if phase.shortest is None else before + phase.shortest
            try:
                self.during(phase)
            except ValidationError as error:
                problems = "; ".join(
                    f"{'.'.join(map(str, one['loc']))} {one['msg']}".strip()
                    for one in error.errors()
                )
                raise ValueError(
                    f"phase {phase.name!r} does not fit the round: {problems}"
                ) from None
        if len({phase.name for phase in self.phases or ()}) < len(self.phases or ()):
            raise ValueError(
                f"two phases have one name: {', '.join(phase.name for phase in self.phases or ())}"
            )
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.train_block_size % self.sampler.block_size:
            raise ValueError(
                f"train_block_size {self.train_block_size} is not a multiple of the sampler's block_size {self.sampler.block_size}, "
                "so the views would not hold whole blocks of the rollout"
            )
        if self.sampler.filters and not self.allow_filtered:
            raise ValueError(
                "RL on filtered samples is off-policy: set sampler.top_k to 0 and sampler.top_p to 1.0, or allow_filtered to true"
            )
        if self.sampler.guidance:
            raise ValueError("RL scores responses without guidance: set sampler.guidance to 0.0")
        if missing := {
            key for mode in self.held_out.remasking for key in self.sampler.missing(mode)
        }:
            raise ValueError(
                f"held_out.remasking {self.held_out.remasking} needs sampler.{' and sampler.'.join(sorted(missing))}"
            )
        if self.sampler.temperature <= 0:
            raise ValueError("RL needs sampler.temperature above 0")
        if self.max_sampled_groups < self.groups or self.min_groups > self.groups:
            raise ValueError("needs min_groups <= groups <= max_sampled_groups")
        check_range("pass_rate", self.pass_rate, empty=True)
        return self

    @model_validator(mode="after")
    def _method_has_its_keys_and_no_others(self) -> Self:
        needed, known = (
            METHOD_KEYS[self.method],
            {key for keys in METHOD_KEYS.values() for key in keys},
        )
        if missing := [key for key in needed if getattr(self, key) is None]:
            raise ValueError(f"method {self.method!r} needs {', '.join(missing)}")
        if idle := sorted(key for key in known - set(needed) if getattr(self, key) is not None):
            raise ValueError(
                f"{', '.join(idle)} say nothing to method {self.method!r}: leave them out"
            )
        if self.ratio not in (
            ratios := METHOD_RATIOS.get(self.method, ("token", "sequence", "none"))
        ):
            raise ValueError(
                f"method {self.method!r} has ratio {' or '.join(ratios)}, not {self.ratio!r}"
            )
        if self.method == "mask_aware" and self.sampler.remasking != "plackett_luce":
            raise ValueError(
                "method 'mask_aware' scores the order of commitment: set sampler.remasking to 'plackett_luce'"
            )
        if (self.advantages == "gae") != (self.value is not None):
            raise ValueError(
                f"a value model belongs to advantages 'gae', which need it (got {self.advantages!r})"
            )
        if self.value is not None and self.method in WHOLE_RESPONSE:
            raise ValueError(
                f"method {self.method!r} has one likelihood per response: advantages 'gae' are per token"
            )
        if self.process is not None and self.method in WHOLE_RESPONSE:
            raise ValueError(
                f"method {self.method!r} has one likelihood per response: process rewards are per token"
            )
        if self.kl == "k3" and self.kl_weight and self.method in WHOLE_RESPONSE:
            raise ValueError(
                f"method {self.method!r} has one likelihood per response, and kl 'k3' is the exponential of a whole response's difference, "
                "which a few tenths of a nat per token make explode: set kl to 'k2', or kl_weight to 0.0"
            )
        if self.noise is not None:
            check_range("noise", self.noise, empty=False)
        if (self.kl_to == "synced") != (self.sync_every is not None):
            raise ValueError(
                f"sync_every belongs to kl_to 'synced', which needs it (got {self.kl_to!r} and {self.sync_every})"
            )
        return self
