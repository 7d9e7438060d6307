"""Section `rl`: rounds of reinforcement learning; training/rl.py."""

import json
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from tracerl.settings.base import Fraction, Name, Positive, Section, Shares, check_range
from tracerl.settings.evaluation import HeldOut, explain, samplers_of
from tracerl.settings.methods import Clip, Method, Ratio
from tracerl.settings.models import Lora
from tracerl.settings.rewards import Process, RewardPart
from tracerl.settings.sampling import PhaseSampler, Sampler
from tracerl.settings.training import Optimizer


class Critic(Section):
    """A value model beside the policy; training/critic.py."""

    start: Literal["policy", "parent"]
    """Its first backbone: that of the round's first policy, or the value model that the parent
    round saved."""
    discount: float = Fraction
    """gamma of generalised advantage estimation."""
    trace: float = Fraction
    """lambda of generalised advantage estimation."""
    clip: float = Field(gt=0.0)
    """Clip of the value around its old one."""
    every: int = Positive
    """It is updated in each `every`-th iteration, starting with the first."""
    updates: int = Positive
    """Optimizer steps of an update."""
    optimizer: Optimizer
    """Of the value model alone."""


class AccuracyThreshold(Section):
    """What ends a phase: the mean accuracy of its last training responses."""

    accuracy: float = Fraction
    """Least mean accuracy."""
    over: int = Positive
    """Iterations of the mean."""


class Phase(Section):
    """A part of a round: the keys that it changes, and when it ends; docs/curriculum.md.

    It ends after `iterations` or as soon as `until` is met, whichever comes first; with neither it
    lasts to the end of the round. After the last phase the first one follows. A key that is left
    out is the round's.
    """

    name: Name
    """Name in the training curve."""
    iterations: int | None = Field(default=None, gt=0)
    """Iterations after which it ends."""
    until: AccuracyThreshold | None = None
    """Accuracy at which it ends."""
    tasks: Shares | None = None
    """As in the round."""
    groups: int | None = None
    """As in the round."""
    max_sampled_groups: int | None = None
    """As in the round."""
    min_groups: int | None = None
    """As in the round."""
    pass_rate: tuple[float, float] | None = None
    """As in the round."""
    train_block_size: int | None = None
    """As in the round."""
    shrink: int | None = None
    """As in the round."""
    micro_batch_tokens: int | None = None
    """As in the round."""
    sampler: PhaseSampler | None = None
    """Keys of the round's sampler that change."""

    @property
    def shortest(self) -> int | None:
        """The fewest iterations after which it can end; None if it never does."""
        ends = [self.iterations, None if self.until is None else self.until.over]
        return min((end for end in ends if end is not None), default=None)


class RlRound(Section):
    """Reinforcement learning from a checkpoint by one of the methods of settings/methods.py."""

    init: str
    """Stage that made the first policy: base, sft@NAME or rl@NAME."""
    lora: Lora | None
    """Adapters to train instead of all weights, or null."""
    method: Method
    """The RL method with its own keys."""
    ratio: Ratio
    """Importance ratio: per token (or unit of the method), per response, or none."""
    reward: Annotated[Mapping[RewardPart, float], Field(min_length=1)]
    """Part of the reward (rewards/verify/parts.py) -> its weight; correct is the verifier's."""
    tasks: Shares
    """Task set -> share of the prompts."""
    iterations: int = Positive
    """Iterations of the round."""
    groups: int = Positive
    """Prompts per iteration after the filter."""
    group_size: int = Field(ge=2)
    """Responses per prompt."""
    max_sampled_groups: int = Positive
    """Prompts per iteration before the filter, at most."""
    min_groups: int = Positive
    """Prompts per iteration after the filter, at least."""
    pass_rate: tuple[float, float]
    """Groups outside this range of pass rates are dropped."""
    advantages: Literal["group", "mean", "rloo", "gae"]
    """Baseline of the advantages, objectives/advantages.py."""
    value: Critic | None = None
    """The value model that advantages gae need."""
    process: Process | None = None
    """Rewards of the steps of a response, beside that of its outcome."""
    train_block_size: int = Positive
    """Blocks of the views, tokens; a multiple of the sampler's block_size."""
    shrink: int = Positive
    """Neighbouring steps that are merged: in the views of methods that score the recorded steps,
    and in the steps that values and process rewards lie on."""
    updates: int = Positive
    """Optimizer steps that an iteration's groups are dealt out to."""
    epochs: int = Positive
    """Times that an iteration's groups are dealt out."""
    num_pad: int = Field(ge=0)
    """End tokens after the first one that are trained as well."""
    clip: Clip
    """Clip of the ratio, below and above 1."""
    kl: Literal["k1", "k2", "k3"]
    """Estimator of the KL penalty, objectives/losses.py."""
    kl_to: Literal["iteration", "initial", "synced"]
    """Policy of the penalty: of the iteration's start, the initial one, or one that is synced."""
    sync_every: int | None = Field(default=None, gt=0)
    """Optimizer steps between two syncs of kl_to synced, which needs it."""
    kl_weight: float = Field(ge=0.0)
    """Weight of the penalty in the loss."""
    allow_filtered: bool
    """Whether the sampler may filter tokens (top_k, top_p), which makes the updates off-policy."""
    reduction: Literal["step", "response", "token", "fixed"]
    """What the loss is averaged over, objectives/losses.py."""
    micro_batch_tokens: int = Positive
    """Tokens of a forward pass, over all rows."""
    group_tokens: int | None = Field(default=None, gt=0)
    """Tokens of a row that responses to one prompt share, with one copy of its whole blocks
    (block-causal attention); null for a row each. The same losses to rounding."""
    save_every: int = Positive
    """Iterations between two saved states."""
    held_out: HeldOut
    """Held-out accuracy during the round."""
    optimizer: Optimizer
    """Of the policy."""
    sampler: Sampler
    """How responses are sampled."""
    phases: Annotated[list[Phase], Field(min_length=1)] | None = None
    """What changes inside the round, iteration by iteration; null for nothing. Held-out problems
    are asked under the round's own keys from first to last."""

    _in_phases: "list[RlRound]" = PrivateAttr(default_factory=list)

    @property
    def phase_rounds(self) -> "list[RlRound]":
        """The round as it is in each of its phases; itself alone if it has none."""
        return self._in_phases or [self]

    def _with_phase(self, phase: Phase) -> "RlRound":
        """Raises ValueError if what the phase changes does not fit."""
        changes = phase.model_dump(
            exclude={"name", "iterations", "until", "sampler"}, exclude_none=True
        )
        try:
            if phase.sampler is not None:
                changes["sampler"] = phase.sampler.apply(self.sampler).model_dump()
            return RlRound.model_validate_json(
                json.dumps({**self.model_dump(), **changes, "phases": None})
            )
        except ValidationError as error:
            raise ValueError(
                f"phase {phase.name!r} does not fit the round: {explain(error)}"
            ) from None

    @model_validator(mode="after")
    def _phases_follow_each_other(self) -> Self:
        before: int | None = 0
        for phase in self.phases or ():
            if before is None or before >= self.iterations:
                raise ValueError(
                    f"phase {phase.name!r} never begins: the phases before it last for all "
                    f"{self.iterations} iterations"
                )
            before = None if phase.shortest is None else before + phase.shortest
        names = [phase.name for phase in self.phases or ()]
        if len(set(names)) < len(names):
            raise ValueError(f"two phases have one name: {', '.join(names)}")
        self._in_phases = [self._with_phase(phase) for phase in self.phases or ()]
        return self

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        if self.max_sampled_groups < self.groups or self.min_groups > self.groups:
            raise ValueError("needs min_groups <= groups <= max_sampled_groups")
        check_range("pass_rate", self.pass_rate, empty=True)
        return self

    @model_validator(mode="after")
    def _sampler_fits(self) -> Self:
        if self.train_block_size % self.sampler.block_size:
            raise ValueError(
                f"train_block_size {self.train_block_size} is not a multiple of the sampler's "
                f"block_size {self.sampler.block_size}, so the views would not hold whole "
                "blocks of the rollout"
            )
        if self.sampler.filters and not self.allow_filtered:
            raise ValueError(
                "RL on filtered samples is off-policy: set sampler.top_k to 0 and sampler.top_p to "
                "1.0, or allow_filtered to true"
            )
        if self.sampler.edit is not None:
            raise ValueError(
                "RL scores each token at the step that committed it, and replays no replaced "
                "tokens: set sampler.edit to null"
            )
        if self.sampler.guidance:
            raise ValueError("RL scores responses without guidance: set sampler.guidance to 0.0")
        if self.sampler.temperature <= 0:
            raise ValueError("RL needs sampler.temperature above 0")
        samplers_of(self.held_out.modes, self.sampler, "held_out.modes")
        return self

    @model_validator(mode="after")
    def _adapters_fit(self) -> Self:
        if self.value is not None and self.lora is not None and self.lora.quantise:
            raise ValueError(
                "a value model is saved with whole weights: set lora.quantise to null, or value"
            )
        return self

    @model_validator(mode="after")
    def _method_fits(self) -> Self:
        kind = self.method.kind
        if self.ratio not in self.method.ratios:
            allowed = " or ".join(self.method.ratios)
            raise ValueError(f"method {kind!r} has ratio {allowed}, not {self.ratio!r}")
        if self.method.scores_order and not self.sampler.order.is_drawn:
            raise ValueError(
                f"method {kind!r} scores the order of commitment: set sampler.order.kind to "
                "'plackett_luce'"
            )
        if self.method.unit == "response":
            self._check_response_unit()
        elif self.ratio == "sequence" and self.reduction == "step":
            raise ValueError(
                "ratio 'sequence' is one number per response, which reduction 'step' would count "
                "once for every step: set reduction to 'response'"
            )
        return self

    def _check_response_unit(self) -> None:
        says = f"method {self.method.kind!r} has one likelihood per response"
        if self.value is not None:
            raise ValueError(f"{says}: advantages 'gae' are per token")
        if self.process is not None:
            raise ValueError(f"{says}: process rewards are per token")
        if self.kl == "k3" and self.kl_weight:
            raise ValueError(
                f"{says}, and kl 'k3' is the exponential of a whole response's difference, which a "
                "few tenths of a nat per token make explode: set kl to 'k2', or kl_weight to 0.0"
            )

    @model_validator(mode="after")
    def _pairs_of_keys_fit(self) -> Self:
        if (self.advantages == "gae") != (self.value is not None):
            raise ValueError(
                "a value model belongs to advantages 'gae', which need it "
                f"(got {self.advantages!r})"
            )
        if (self.kl_to == "synced") != (self.sync_every is not None):
            raise ValueError(
                "sync_every belongs to kl_to 'synced', which needs it "
                f"(got {self.kl_to!r} and {self.sync_every})"
            )
        return self
