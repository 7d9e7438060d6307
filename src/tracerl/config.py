"""The params file as frozen records: strict, complete, with no default for a number that changes
results.

`load_params` is the one reader. Every key must be known and of the right type; what is wrong is
reported with its path, the value got and the keys that exist. Checks that need two keys at once (a
block size that does not divide, a round without its parent) are here too.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tracerl.errors import ParamsError


class Section(BaseModel):
    """A part of the params tree."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


# Names become file names and stage names.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Shares = Annotated[dict[str, Annotated[float, Field(gt=0.0)]], Field(min_length=1)]
Fraction = Field(ge=0.0, le=1.0)
Positive = Field(gt=0)
Remasking = Literal["static", "dynamic", "sequential", "entropy", "plackett_luce"]


class TaskSet(Section):
    """A set of problems: generated (`source` names a generator), from reasoning-gym (`source: gym`,
    `task` names one of its tasks, `options` are of its configuration), or read from a file
    (`source: file`): the user's own, or one that `tracerl data add` wrote. `source: open` is a
    user's file of problems without a verifiable answer, which the judge of `verification` decides.
    """

    source: Literal["sums", "arithmetic", "countdown", "sudoku", "gym", "file", "open"]
    difficulty: tuple[int, int] | None = None
    num_train: int = Field(ge=0)
    num_test: int = Field(ge=0)
    path: str | None = None
    task: str | None = None
    options: dict[str, int | float | bool | str | list[int] | list[str]] | None = None

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> Self:
        if self.source == "file" and not self.path:
            raise ValueError(
                "source 'file' needs a path to a .jsonl or .parquet file with columns prompt, answer and optionally solution"
            )
        if self.source == "open" and not self.path:
            raise ValueError(
                "source 'open' needs a path to a .jsonl or .parquet file with the column prompt and optionally rubric and answer"
            )
        if (self.source == "gym") != (self.task is not None):
            raise ValueError(
                "source 'gym' and no other needs task, the name of a reasoning-gym task"
            )
        if self.options is not None and self.source != "gym":
            raise ValueError("only source 'gym' has options, those of its task")
        if self.source not in ("file", "gym", "open") and (
            self.difficulty is None
            or self.difficulty[0] > self.difficulty[1]
            or self.difficulty[0] < 1
        ):
            raise ValueError("a generated set needs difficulty: [lowest, highest], at least 1")
        highest = {"countdown": 4, "sudoku": 12}.get(self.source)
        if (
            highest
            and self.difficulty
            and (
                self.difficulty[1] > highest
                or (self.source == "countdown" and self.difficulty[0] < 2)
            )
        ):
            raise ValueError("difficulty of countdown is 2 to 4 numbers, of sudoku 1 to 12 blanks")
        return self


def check_range(name: str, value: tuple[float, float], empty: bool) -> None:
    """Raises ValueError unless `value` is a range inside [0, 1]. empty: whether its two ends may be
    one."""
    low, high = value
    if not 0.0 <= low <= high <= 1.0 or (low == high and not empty):
        raise ValueError(f"{name} must be a range inside [0, 1], got {value}")


class Tasks(Section):
    """held_out: the share of all possible problems, by a hash of the problem, that belong to the
    test split."""

    held_out: float = Field(gt=0.0, lt=1.0)
    sets: dict[Name, TaskSet]


class ModelShape(Section):
    """Shape of the small default model; its vocabulary comes from the character tokenizer."""

    family: Literal["sdar", "llada", "dream"]
    hidden_size: int = Positive
    intermediate_size: int = Positive
    num_layers: int = Positive
    num_heads: int = Positive
    num_kv_heads: int = Positive
    head_dim: int = Positive
    rope_theta: float = Field(gt=0.0)
    norm_eps: float = Field(gt=0.0)
    tie_embeddings: bool

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ValueError(
                "num_heads must be a multiple of num_kv_heads, and head_dim even (rotary positions pair its halves)"
            )
        return self


class Optimizer(Section):
    """AdamW. warmup: steps of linear rise. decay: the last share of steps over which the rate falls
    linearly to zero."""

    lr: float = Field(gt=0.0)
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]]
    weight_decay: float = Field(ge=0.0)
    clip_norm: float = Field(gt=0.0)
    warmup: int = Field(ge=0)
    decay: float = Fraction


class Sampler(Section):
    """How responses are sampled; docs/sampling.md explains every key with its source.

    max_new_tokens: response limit, rounded up to whole blocks. max_prompt_tokens: tasks with a
    longer prompt are left out and counted.
    max_rows: responses sampled at once. opening: text the response is made to begin with
    ("<think>"), "" for none.
    steps_per_block, schedule: tokens per step of static, sequential and plackett_luce: spread
    evenly, or as Dream's noise levels say.
    threshold: of dynamic. entropy_bound: of entropy, nats. order_temperature, order_score: of
    plackett_luce; "module" is the checkpoint's order module (models/order.py).
    confidence, confidence_of: what ranks positions (sampling/drawing.py). temperature 0 takes the
    most likely token. top_k 0, top_p 1 and guidance 0 are off.
    cache: "exact" keeps committed keys where that changes nothing (block-causal families) and
    nothing elsewhere; "prefix", "dual" and "window" are the approximate caches of full attention.
    horizon: tokens after the live block that a window sees. refresh_every: steps between full
    passes of an approximate cache, null for one at the start of each block. refresh_sees: whether
    those of a window see the whole canvas (as published) or nothing beyond the horizon either.
    cache_tokens: positions that a cache holds over all rows, null for max_rows of the longest
    request's length; with fewer, fewer rows are sampled at once, and the responses are the same.
    """

    block_size: int = Positive
    steps_per_block: int = Positive
    schedule: Literal["even", "dream"]
    remasking: Remasking
    threshold: float
    entropy_bound: float | None = Field(ge=0.0)
    order_temperature: float | None = Field(gt=0.0)
    order_score: Literal["max_logit", "max_logprob", "module"] | None
    confidence: Literal["raw", "tempered", "filtered", "margin", "neg_entropy"]
    confidence_of: Literal["drawn", "max"]
    temperature: float = Field(ge=0.0)
    top_k: int = Field(ge=0)
    top_p: float = Field(gt=0.0, le=1.0)
    guidance: float = Field(ge=0.0)
    opening: str
    max_prompt_tokens: int = Positive
    max_new_tokens: int = Positive
    cache: Literal["none", "exact", "prefix", "dual", "window"]
    horizon: int | None = Field(ge=0)
    refresh_every: int | None = Field(gt=0)
    refresh_sees: Literal["canvas", "window"] | None
    max_rows: int = Positive
    cache_tokens: int | None = Field(gt=0)

    @property
    def filters(self) -> bool:
        """Whether top-k or top-p change the distribution that tokens are drawn from."""
        return bool(self.top_k) or self.top_p < 1.0

    @property
    def approximate(self) -> bool:
        """Whether the cache changes what the model computes."""
        return self.cache in ("prefix", "dual", "window")

    def missing(self, remasking: str) -> list[str]:
        """The keys that remasking mode `remasking` needs and this section leaves null."""
        needs = {
            "entropy": ["entropy_bound"],
            "plackett_luce": ["order_temperature", "order_score"],
        }
        return [key for key in needs.get(remasking, []) if getattr(self, key) is None]

    @model_validator(mode="after")
    def _block_is_finished(self) -> Self:
        if self.steps_per_block > self.block_size:
            raise ValueError(
                f"steps_per_block {self.steps_per_block} is larger than block_size {self.block_size}"
            )
        if missing := self.missing(self.remasking):
            raise ValueError(f"remasking {self.remasking!r} needs {' and '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _confidence_means_something(self) -> Self:
        if self.confidence == "neg_entropy":
            if self.threshold > 0.0:
                raise ValueError(
                    f"threshold {self.threshold} can never be exceeded: confidence 'neg_entropy' is 0 nats at most"
                )
        elif not 0.0 <= self.threshold <= 1.0:
            raise ValueError(
                f"threshold {self.threshold} must be in [0, 1]: confidence {self.confidence!r} is a probability"
            )
        if self.confidence_of == "max" and self.confidence in ("margin", "neg_entropy"):
            raise ValueError(
                f"confidence {self.confidence!r} is that of a distribution, not of a token: set confidence_of to 'drawn'"
            )
        if self.temperature == 0.0 and (
            self.filters or self.confidence in ("tempered", "filtered")
        ):
            raise ValueError(
                "at temperature 0 the most likely token is taken: top_k, top_p and confidence 'tempered' or 'filtered' say nothing"
            )
        if self.confidence == "filtered" and (self.top_k == 1 or not self.filters):
            raise ValueError(
                "confidence 'filtered' needs top_k of at least 2 or top_p below 1: with top_k 1 every confidence is 1, "
                "and without a filter it is 'tempered'"
            )
        return self

    @model_validator(mode="after")
    def _cache_has_what_it_needs(self) -> Self:
        if (
            not (self.cache == "window")
            == (self.horizon is not None)
            == (self.refresh_sees is not None)
        ):
            raise ValueError(
                "horizon and refresh_sees belong to cache 'window', which needs both "
                f"(got cache {self.cache!r}, horizon {self.horizon}, refresh_sees {self.refresh_sees!r})"
            )
        if self.refresh_every is not None and not self.approximate:
            raise ValueError(f"cache {self.cache!r} is never refreshed: set refresh_every to null")
        return self


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


class Lora(Section):
    """Low-rank adapters: only they are trained and saved (models/lora.py). alpha / rank scales
    them; dropout is that of SFT.

    targets: the linear layers that get one, in every layer of the transformer.
    """

    rank: int = Positive
    alpha: float = Field(gt=0.0)
    dropout: float = Field(ge=0.0, lt=1.0)
    targets: Annotated[
        list[Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]],
        Field(min_length=1),
    ]


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


class TokenIds(Section):
    """Ids that replace those an imported directory names: of the mask, of the ends of a response
    (the first is learned), of the padding that fills a finished block. null keeps the directory's
    own."""

    mask: Annotated[int, Field(ge=0)] | None
    end: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None
    pad: Annotated[int, Field(ge=0)] | None


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


class HeldOut(Section):
    """Held-out accuracy during a round: `num_problems` per task set at iteration 0 and every
    `every` iterations, in each mode.

    tasks: task sets whose test splits are asked, null for the round's own (a published training set
    has no test split).
    """

    tasks: Annotated[list[str], Field(min_length=1)] | None
    every: int = Positive
    num_problems: int = Positive
    bootstrap: int = Positive
    remasking: Annotated[list[Remasking], Field(min_length=1)]


Method = Literal[
    "tracerl",
    "random",
    "coupled",
    "diffucoder",
    "diffu_grpo",
    "wd1",
    "spg",
    "gdpo",
    "espo",
    "step_merge",
    "mask_aware",
]
# Keys of a round that belong to its method. Every method needs all of its own.
METHOD_KEYS: dict[str, tuple[str, ...]] = {
    "tracerl": (),
    "random": ("copies", "noise"),
    "coupled": ("copies", "noise"),
    "diffucoder": ("copies", "noise"),
    "diffu_grpo": ("prompt_masking",),
    "wd1": ("prompt_masking",),
    "spg": ("copies", "noise", "bound_exponent", "bound_share"),
    "gdpo": ("copies", "nodes"),
    "espo": ("copies", "noise"),
    "step_merge": ("segments",),
    "mask_aware": ("segments", "order_weight", "order_clip"),
}
# Methods that are defined with one kind of ratio only.
METHOD_RATIOS: dict[str, tuple[str, ...]] = {
    "wd1": ("none",),
    "spg": ("none",),
    "gdpo": ("sequence",),
    "espo": ("sequence",),
}
# Methods that estimate one likelihood per response.
WHOLE_RESPONSE = ("wd1", "spg", "gdpo", "espo")


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


RewardPart = Literal[
    "correct",
    "boxed_format",
    "xml_count",
    "soft_format",
    "strict_format",
    "integer_answer",
    "right_numbers",
    "filled_blanks",
    "brevity",
    "judge",
]


class Process(Section):
    """Process rewards: judge `judge` of `verification.judges` scores the chunks of a response; see
    training/process.py and docs/judges.md.

    weight: of the scores, once standardised in the group, beside the outcome. A chunk ends with the
    token that completes one of `separators`, or holds `chunk_tokens` tokens; the last of
    `max_chunks` holds all the rest.
    """

    judge: Name
    weight: float = Field(gt=0.0)
    separators: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = (
        None
    )
    chunk_tokens: int | None = Field(default=None, gt=0)
    max_chunks: int = Positive

    @model_validator(mode="after")
    def _chunks_end_one_way(self) -> Self:
        if (self.separators is None) == (self.chunk_tokens is None):
            raise ValueError("chunks need separators or chunk_tokens, and not both")
        return self


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


# Keys of a judge that belong to its kind. Every kind needs all of its own.
JUDGE_KEYS: dict[str, tuple[str, ...]] = {
    "steps": (),
    "model": ("path", "max_rows", "max_prompt_tokens", "min_mass", "instructions"),
    "server": (
        "url",
        "model",
        "api_key_variable",
        "temperature",
        "max_answer_tokens",
        "timeout_seconds",
        "retries",
        "backoff_seconds",
        "concurrency",
        "instructions",
    ),
}
# Generated task sets whose written steps have a rule (rewards/judges/steps.py).
STEP_SOURCES = ("sums", "arithmetic", "countdown")
_NULLABLE_JUDGE_KEYS = ("api_key_variable", "temperature")


class Judge(Section):
    """Who scores responses or their chunks; see rewards/judges/kinds.py and docs/judges.md. Keys of other
    kinds are left out.

    kind: "steps" checks the written steps of generated arithmetic, "model" asks a local
    autoregressive checkpoint for yes or no, "server" a server that speaks OpenAI's chat
    completions.
    instructions: put before every question, "" for none. path: directory of the checkpoint.
    max_rows: questions at once. max_prompt_tokens: longer questions are undecided. min_mass: so are
    those where yes and no together have less probability.
    url: up to and without /chat/completions. model: its name there. api_key_variable: the
    environment variable that holds the key, null for none; the key itself is never stored.
    temperature: null leaves it to the server. max_answer_tokens: limit of an answer.
    timeout_seconds: of connecting, of each wait and of the body of a try. retries: further tries,
    the n-th after backoff_seconds x 2^(n-1).
    concurrency: questions at once, on each rank.
    """

    kind: Literal["steps", "model", "server"]
    instructions: str | None = None
    path: str | None = None
    max_rows: int | None = Field(default=None, gt=0)
    max_prompt_tokens: int | None = Field(default=None, gt=0)
    min_mass: float | None = Field(default=None, ge=0.0, le=1.0)
    url: str | None = Field(default=None, pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$")
    model: str | None = Field(default=None, min_length=1)
    api_key_variable: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    temperature: float | None = Field(default=None, ge=0.0)
    max_answer_tokens: int | None = Field(default=None, gt=0)
    timeout_seconds: float | None = Field(default=None, gt=0.0)
    retries: int | None = Field(default=None, ge=0)
    backoff_seconds: float | None = Field(default=None, ge=0.0)
    concurrency: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _kind_has_its_keys_and_no_others(self) -> Self:
        needed, said = JUDGE_KEYS[self.kind], self.model_fields_set - {"kind"}
        missing = [
            k
            for k in needed
            if k not in said or (getattr(self, k) is None and k not in _NULLABLE_JUDGE_KEYS)
        ]
        if missing:
            raise ValueError(f"a judge of kind {self.kind!r} needs {', '.join(missing)}")
        if idle := sorted(key for key in said - set(needed) if getattr(self, key) is not None):
            raise ValueError(
                f"{', '.join(idle)} say nothing to a judge of kind {self.kind!r}: leave them out"
            )
        return self


class Verification(Section):
    """How responses are judged; see rewards/. None of it touches sums, arithmetic and text.

    judges: by name, for those who use them: `judge` (null for none) decides tasks without a
    verifiable answer and the reward part "judge", and a round's `process` names the one that scores
    steps.

    num_workers: judging processes at once; no verdict depends on it. math_cpu_seconds: CPU time to
    compare two answers.
    sandbox: where model programs run; "unconfined" isolates nothing and must be chosen by name. The
    rest are a program's limits: CPU time a process, idle time a test, memory a process, processes,
    file size, open files, output a test.
    """

    judge: Name | None = None
    judges: dict[Name, Judge] | None = None
    num_workers: int = Positive
    math_cpu_seconds: float = Field(gt=0.0)
    sandbox: Literal["bubblewrap", "unconfined"]
    code_cpu_seconds: float = Field(gt=0.0)
    code_idle_seconds: float = Field(gt=0.0)
    memory_mib: int = Positive
    processes: int = Positive
    file_kib: int = Positive
    open_files: int = Field(ge=16)
    output_kib: int = Positive


class Evaluation(Section):
    """A checkpoint on task sets' test splits, once per remasking mode of `evaluation` (which
    replaces the sampler's own)."""

    checkpoint: str
    tasks: Annotated[list[str], Field(min_length=1)]
    sampler: Sampler


class EvaluationDefaults(Section):
    """What all evaluations share: problems per task set, responses per problem, problems per saved
    batch, bootstrap resamples."""

    num_problems: int = Positive
    num_samples: int = Positive
    batch_size: int = Positive
    remasking: Annotated[list[Remasking], Field(min_length=1)]
    bootstrap: int = Positive


class Compute(Section):
    """Where models run. device: "auto" is CUDA if there is one. dtype: of the weights, "stored" as
    they are in the checkpoint.

    attention: the back end, see models/attention.py. checkpoint_layers: whether training keeps only
    what enters each layer and computes the rest again in the backward pass, which takes a third
    more time and a fraction of the memory. vectors: the widest vector instructions that torch's own
    CPU kernels use ("widest": all that this CPU has); other widths add in another order, so that
    numbers differ in their last bits. No effect on a GPU or on ARM.
    """

    device: Literal["auto", "cpu", "cuda"]
    dtype: Literal["stored", "float32", "bfloat16", "float16", "float64"]
    attention: Literal["auto", "sdpa", "sparse", "flex", "flash"]
    checkpoint_layers: bool
    vectors: Literal["avx2", "avx512", "widest"]


class Launch(Section):
    """The processes of a stage; docs/distributed.md. A result depends on them by rounding only.

    ranks: processes on each machine, one per GPU. hosts: machines by the names that ssh knows them
    by, the first the one that runs the command; none for this one alone. port: where the first
    meets the others. zero: DeepSpeed's ZeRO stage, 0 for plain AdamW. offload: whether ZeRO keeps
    optimizer states in host memory.
    """

    ranks: int = Positive
    hosts: list[str]
    port: int = Field(ge=1024, lt=65536)
    zero: Literal[0, 1, 2, 3]
    offload: bool

    @model_validator(mode="after")
    def _offload_needs_zero(self) -> Self:
        if self.offload and not self.zero:
            raise ValueError(
                "offload needs zero 1, 2 or 3: plain AdamW keeps its states beside the weights"
            )
        return self


class Report(Section):
    """num_traces: responses shown per round in the order in which they were unmasked. num_played:
    per round, in reports/traces.html."""

    num_traces: int = Field(ge=0)
    num_played: int = Field(ge=0)


class Validation(Section):
    """What the validate stages demand beyond the store's rules; see store/expectations.py.

    pass_rate: range of every round's, evaluation's and task set's share of correct responses.
    truncation, undecided: largest shares.
    drift: largest relative change of a figure against reports/baseline.json before it is warned of.
    """

    pass_rate: tuple[float, float]
    truncation: float = Fraction
    undecided: float = Fraction
    drift: float = Field(gt=0.0)

    @model_validator(mode="after")
    def _pass_rate_is_a_range(self) -> Self:
        check_range("pass_rate", self.pass_rate, empty=True)
        return self


class Params(Section):
    """A whole run. threads: OpenMP threads of every stage; part of what a result depends on, bit
    for bit.

    truncated_is_wrong: whether a response cut at the length limit is wrong whatever it holds: in
    traces, RL and every evaluation.
    """

    seed: int = Field(ge=0)
    threads: int = Positive
    truncated_is_wrong: bool
    compute: Compute
    launch: Launch
    verification: Verification
    tasks: Tasks
    base: Base
    traces: Traces
    sft: dict[Name, SftRound]
    rl: dict[Name, RlRound]
    evaluation: EvaluationDefaults
    evaluate: dict[Name, Evaluation]
    validation: Validation
    report: Report

    @property
    def parents(self) -> dict[str, str]:
        """The checkpoint that each round starts from, by stage, in the order of the params."""
        return {f"sft@{name}": one.init for name, one in self.sft.items()} | {
            f"rl@{name}": one.init for name, one in self.rl.items()
        }

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        checkpoints = {
            "base",
            *(f"sft@{name}" for name in self.sft),
            *(f"rl@{name}" for name in self.rl),
        }
        users: list[tuple[str, str, list[str]]] = [
            ("traces", self.traces.checkpoint, [*self.traces.preferred, *self.traces.rollouts])
        ]
        users += [(f"sft.{name}", item.init, list(item.tasks)) for name, item in self.sft.items()]
        users += [(f"rl.{name}", item.init, list(item.tasks)) for name, item in self.rl.items()]
        users += [
            (f"rl.{name}.phases", item.init, [*one.tasks])
            for name, item in self.rl.items()
            for one in item.phases or ()
            if one.tasks
        ]
        users += [
            (f"rl.{name}.held_out", item.init, item.held_out.tasks or [])
            for name, item in self.rl.items()
        ]
        users += [
            (f"evaluate.{name}", item.checkpoint, item.tasks)
            for name, item in self.evaluate.items()
        ]
        users += [("base.train", "base", list(self.base.train.tasks))]
        for place, checkpoint, sets in users:
            if checkpoint not in checkpoints:
                raise ValueError(
                    f"{place}: no checkpoint {checkpoint!r}; there are {', '.join(sorted(checkpoints))}"
                )
            for name in sets:
                if name not in self.tasks.sets:
                    raise ValueError(
                        f"{place}: no task set {name!r}; there are {', '.join(sorted(self.tasks.sets))}"
                    )
        for name, evaluation in self.evaluate.items():
            if missing := {
                key
                for mode in self.evaluation.remasking
                for key in evaluation.sampler.missing(mode)
            }:
                raise ValueError(
                    f"evaluate.{name}: evaluation.remasking {self.evaluation.remasking} needs sampler keys {sorted(missing)}"
                )
        self._check_judges(users)
        traced = {*self.traces.preferred, *self.traces.rollouts}
        for name, item in self.sft.items():
            if item.data == "traces" and not traced.issuperset(item.tasks):
                raise ValueError(
                    f"sft.{name}: no traces are collected of {sorted(set(item.tasks) - traced)}; add them to traces"
                )
        for name, item in self.sft.items():
            if self.compute.checkpoint_layers and item.lora is not None and item.lora.dropout:
                raise ValueError(
                    f"sft.{name}: checkpoint_layers computes a layer twice, and its dropout would not be the same"
                )
        for name in self.parents:
            line = [name]
            while (parent := self.parents.get(line[-1])) is not None:
                if parent in line:
                    circle = " <- ".join([*line, parent])
                    raise ValueError(
                        f"{parent.replace('@', '.')}: its parents go round in a circle ({circle})"
                    )
                line.append(parent)
        return self

    def _check_judges(self, users: Sequence[tuple[str, str, list[str]]]) -> None:
        """users: (place, checkpoint, task sets) of every place that uses task sets; training on
        solutions asks for no response."""
        known, judge = self.verification.judges or {}, self.verification.judge
        named = [("verification.judge", judge)] if judge is not None else []
        named += [
            (f"rl.{name}.process.judge", one.process.judge)
            for name, one in self.rl.items()
            if one.process is not None
        ]
        for place, wanted in named:
            if wanted not in known:
                raise ValueError(
                    f"{place}: no judge {wanted!r}; verification.judges has {', '.join(sorted(known)) or 'none'}"
                )
        users = [user for user in users if not user[0].startswith(("sft.", "base.", "traces"))]
        users += [("traces", "", list(self.traces.rollouts))]
        asking = [
            (place, name)
            for place, _, sets in users
            for name in sets
            if self.tasks.sets[name].source == "open"
        ]
        asking += [
            (f"rl.{name}.reward", "judge") for name, one in self.rl.items() if "judge" in one.reward
        ]
        if asking and judge is None:
            raise ValueError(
                f"{asking[0][0]}: {asking[0][1]} is decided by a judge: name one in verification.judge"
            )
        if (
            judge is not None
            and known[judge].kind == "steps"
            and (unjudged := [asked for asked in asking if asked[1] != "judge"])
        ):
            raise ValueError(
                f"{unjudged[0][0]}: a judge of kind 'steps' has no rule for {unjudged[0][1]}, whose source is 'open'"
            )
        for name, one in self.rl.items():
            if one.process is not None and known[one.process.judge].kind == "steps":
                drawn = dict.fromkeys(
                    task_set for stretch in one.stretches for task_set in stretch.tasks
                )
                sets = [
                    task_set
                    for task_set in drawn
                    if self.tasks.sets[task_set].source not in STEP_SOURCES
                ]
                if sets or one.process.separators is None:
                    raise ValueError(
                        f"rl.{name}.process: a judge of kind 'steps' needs separators and task sets of source "
                        f"{' or '.join(STEP_SOURCES)} (got {sets or 'chunk_tokens'})"
                    )


def load_params(path: Path) -> Params:
    """Reads and checks a params file. Raises ParamsError naming every wrong key with its path."""
    try:
        data = YAML(typ="safe", pure=True).load(
            path.read_text()
        )  # as DVC reads it; a key given twice is refused
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ParamsError("the params file cannot be read", where=str(path), got=error) from error
    return parse_params(data, where=str(path))


def parse_params(data: Any, where: str) -> Params:
    """Params from plain data, as YAML gives it."""
    try:
        # JSON rules of strictness: a list may be a tuple, a whole number a float, and nothing else
        # is converted.
        return Params.model_validate_json(json.dumps(data, default=str))
    except TypeError as error:
        raise ParamsError(
            "a key of the params is neither text nor number", where=where, got=error
        ) from error
    except ValidationError as error:
        problems = "\n    ".join(_explain(problem, data) for problem in error.errors())
        raise ParamsError(
            f"{error.error_count()} wrong entries in the params",
            where=where,
            got="\n    " + problems,
            do="correct these keys; src/tracerl/config.py says what each means",
        ) from None


def _explain(problem: Any, data: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"]) or "(whole file)"
    text = f"{path}: {problem['msg']}"
    if problem["type"] == "extra_forbidden":
        siblings = _known_keys(problem["loc"])
        near = difflib.get_close_matches(str(problem["loc"][-1]), siblings, n=1)
        return f"{path}: unknown key" + (
            f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(siblings)}"
        )
    if problem["type"] != "value_error" and problem["type"] != "missing":
        text += f" (got {problem['input']!r})"
    return text


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    """Keys of the section that holds `location`."""
    section: Any = Params
    for part in location[:-1]:
        fields = getattr(section, "model_fields", None)
        annotation = fields[part].annotation if fields and part in fields else section
        section = next(_sections_in(annotation), annotation)
    return list(getattr(section, "model_fields", {}))


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    """The sections that an annotation names, however deep: `Phase` in `list[Phase] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)
