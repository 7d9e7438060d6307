"""Sections named `sampler`: how responses are sampled; docs/sampling.md gives every key's source.

sampling/orders.py and sampling/caches.py say what each order and each cache does and costs.
"""

import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Positive, Section, is_none


class _Order(Section):
    """Which masked positions a step commits (remasking)."""

    scheduled: ClassVar[bool] = False
    """Whether `steps_per_block` and `schedule` say how many positions a step commits."""
    ranks_by_entropy: ClassVar[bool] = False
    """Whether positions are ranked by their entropy, whatever `confidence` says."""
    is_drawn: ClassVar[bool] = False
    """Whether the order is drawn from scores, which are stored with the response."""


class Static(_Order):
    """The most confident positions, as many as the schedule says."""

    scheduled = True

    kind: Literal["static"]
    """Name of the order."""


class Sequential(_Order):
    """Left to right, as many positions as the schedule says."""

    scheduled = True

    kind: Literal["sequential"]
    """Name of the order."""


class Dynamic(_Order):
    """Every position whose confidence exceeds a threshold, at least the most confident ones."""

    kind: Literal["dynamic"]
    """Name of the order."""
    threshold: float
    """Confidence to exceed: a probability, or nats for confidence neg_entropy."""
    at_least: int | None = Field(default=None, gt=0, exclude_if=is_none)
    """Positions that are committed whatever their confidence, null for one."""


class SubBlocks(_Order):
    """Inside a block one sub-block after the other, from left to right: of the first with masked
    positions every one whose confidence exceeds a threshold, at least the most confident one
    (Fast-dLLM v2)."""

    kind: Literal["sub_blocks"]
    """Name of the order."""
    threshold: float
    """Confidence to exceed: a probability, or nats for confidence neg_entropy."""
    size: int = Positive
    """Tokens of a sub-block; block_size is a multiple."""


class Entropy(_Order):
    """The positions of least entropy, as long as their sum stays below a bound; at least one."""

    ranks_by_entropy = True

    kind: Literal["entropy"]
    """Name of the order."""
    bound: float = Field(ge=0.0)
    """Bound of the summed entropies, nats."""


class PlackettLuce(_Order):
    """Drawn without replacement by Plackett-Luce scores, as many as the schedule says."""

    scheduled = True
    is_drawn = True

    kind: Literal["plackett_luce"]
    """Name of the order."""
    temperature: float = Field(gt=0.0)
    """Scores are divided by it."""
    score: Literal["max_logit", "max_logprob", "module"]
    """Score of a position; module: of the checkpoint's order module (models/order.py)."""


Order = Annotated[
    Static | Sequential | Dynamic | SubBlocks | Entropy | PlackettLuce,
    Field(discriminator="kind"),
]


class _Cache(Section):
    """Which keys and values a step reads instead of computing them."""

    stores_keys: ClassVar[bool] = True
    """Whether there are keys to store at all."""
    shares_prompts: ClassVar[bool] = False
    """Whether prompts and finished blocks are passed once, because nothing later changes their
    keys (block-causal attention)."""
    is_approximate: ClassVar[bool] = False
    """Whether the cache changes what the model computes (full attention)."""

    @property
    def canvas_horizon(self) -> int | None:
        """Tokens after the active block that any pass ever sees; None for all."""
        return None


class NoCache(_Cache):
    """The whole canvas at every step."""

    stores_keys = False

    kind: Literal["none"]
    """Name of the cache."""


class Exact(_Cache):
    """Keys of committed blocks, where that changes nothing: block-causal attention. With full
    attention, where every key depends on every later token, it is the same as none."""

    shares_prompts = True

    kind: Literal["exact"]
    """Name of the cache."""


class _Approximate(_Cache):
    """Keys of the last pass over the whole canvas."""

    is_approximate = True

    refresh_every: Annotated[int, Field(gt=0)] | None
    """Steps between passes over the whole canvas; null for one at the start of each block."""


class Prefix(_Approximate):
    """A step passes the active block and all that follows (Fast-dLLM)."""

    kind: Literal["prefix"]
    """Name of the cache."""


class Dual(_Approximate):
    """A step passes the active block alone (Fast-dLLM)."""

    kind: Literal["dual"]
    """Name of the cache."""


class Window(_Approximate):
    """A step passes the active block and the next `horizon` tokens, and sees nothing beyond."""

    kind: Literal["window"]
    """Name of the cache."""
    horizon: int = Field(ge=0)
    """Tokens after the active block that a step sees."""
    refresh_sees: Literal["canvas", "window"]
    """Whether passes over the whole canvas see all of it (as published) or nothing beyond the
    horizon either."""

    @property
    def canvas_horizon(self) -> int | None:
        return self.horizon if self.refresh_sees == "window" else None


Cache = Annotated[NoCache | Exact | Prefix | Dual | Window, Field(discriminator="kind")]


class Edit(Section):
    """Committed tokens of the active block may still be replaced (LLaDA 2.1)."""

    threshold: float = Field(ge=0.0, le=1.0)
    """A token is replaced where the model draws another one with a confidence above this."""
    max_post_steps: int = Positive
    """Steps at most that go on replacing after the last mask of a block is gone."""


class Sampler(Section):
    """How responses are sampled."""

    block_size: int = Positive
    """Tokens of a block."""
    steps_per_block: int = Positive
    """Steps a block takes under a scheduled order (static, sequential, plackett_luce)."""
    schedule: Literal["even", "rounded", "dream"]
    """Tokens per step of a scheduled order: spread evenly, the first steps taking the remainder;
    what is left over the steps left, rounded half to even, as dllm does; or as Dream's noise levels
    say."""
    order: Order
    """Which masked positions a step commits."""
    confidence: Literal["raw", "tempered", "filtered", "margin", "neg_entropy"]
    """What ranks positions, see sampling/drawing.py."""
    confidence_of: Literal["drawn", "max"]
    """Whether the confidence is the drawn token's or the largest of the position."""
    temperature: float = Field(ge=0.0)
    """Of the token draw; 0 takes the most likely token."""
    top_k: int = Field(ge=0)
    """Most likely tokens that may be drawn; 0 for all."""
    top_p: float = Field(gt=0.0, le=1.0)
    """Probability mass that may be drawn; 1 for all."""
    guidance: float = Field(ge=0.0)
    """Scale of classifier-free guidance; 0 for none."""
    opening: str
    """Text that every response is made to begin with ("<think>"); "" for none."""
    max_prompt_tokens: int = Positive
    """Tasks with a longer prompt are left out and counted."""
    max_new_tokens: int = Positive
    """Limit of a response, rounded up to whole blocks."""
    cache: Cache
    """Which keys and values a step reads instead of computing them."""
    max_rows: int = Positive
    """Responses sampled at once."""
    cache_tokens: int | None = Field(gt=0)
    """Positions that a cache holds over all rows, null for max_rows of the longest request. With
    fewer, fewer rows are sampled at once; the responses are the same."""
    edit: Edit | None = Field(default=None, exclude_if=is_none)
    """Replaces committed tokens, in evaluations and chat of block-causal models; null for never."""

    @property
    def filters(self) -> bool:
        """Whether top-k or top-p change the distribution that tokens are drawn from."""
        return bool(self.top_k) or self.top_p < 1.0

    @property
    def confidence_source(self) -> str:
        """The confidence that positions are ranked by."""
        return "neg_entropy" if self.order.ranks_by_entropy else self.confidence

    @model_validator(mode="after")
    def _block_is_finished(self) -> Self:
        if self.steps_per_block > self.block_size:
            raise ValueError(
                f"steps_per_block {self.steps_per_block} is larger than block_size "
                f"{self.block_size}"
            )
        if isinstance(self.order, SubBlocks) and self.block_size % self.order.size:
            raise ValueError(
                f"block_size {self.block_size} is not a multiple of order.size {self.order.size}"
            )
        return self

    @model_validator(mode="after")
    def _confidence_has_an_effect(self) -> Self:
        if isinstance(self.order, Dynamic | SubBlocks):
            self._check_threshold(self.order.threshold)
        if self.confidence_of == "max" and self.confidence in ("margin", "neg_entropy"):
            raise ValueError(
                f"confidence {self.confidence!r} is that of a distribution, not of a token: "
                "set confidence_of to 'drawn'"
            )
        if self.temperature == 0.0 and (
            self.filters or self.confidence in ("tempered", "filtered")
        ):
            raise ValueError(
                "at temperature 0 the most likely token is taken: top_k, top_p and confidence "
                "'tempered' or 'filtered' have no effect"
            )
        if self.edit is not None and (
            self.order.is_drawn or self.confidence_source in ("margin", "neg_entropy")
        ):
            raise ValueError(
                "edit compares the probability of another token: it goes neither with a drawn "
                "order nor with confidence 'margin' or 'neg_entropy'"
            )
        if self.confidence == "filtered" and (self.top_k == 1 or not self.filters):
            raise ValueError(
                "confidence 'filtered' needs top_k of at least 2 or top_p below 1: with top_k 1 "
                "every confidence is 1, and without a filter it is 'tempered'"
            )
        return self

    def _check_threshold(self, threshold: float) -> None:
        if self.confidence == "neg_entropy":
            if threshold > 0.0:
                raise ValueError(
                    f"order.threshold {threshold} can never be exceeded: confidence 'neg_entropy' "
                    "is 0 nats at most"
                )
        elif not 0.0 <= threshold <= 1.0:
            raise ValueError(
                f"order.threshold {threshold} must be in [0, 1]: confidence {self.confidence!r} "
                "is a probability"
            )


class SamplerChanges(Section):
    """Keys of a sampler that change; a key that is left out is as it was."""

    block_size: int | None = Field(default=None, gt=0)
    """As in the sampler."""
    steps_per_block: int | None = Field(default=None, gt=0)
    """As in the sampler."""
    schedule: Literal["even", "rounded", "dream"] | None = None
    """As in the sampler."""
    order: Order | None = None
    """A whole order."""
    confidence: Literal["raw", "tempered", "filtered", "margin", "neg_entropy"] | None = None
    """As in the sampler."""
    confidence_of: Literal["drawn", "max"] | None = None
    """As in the sampler."""
    temperature: float | None = Field(default=None, ge=0.0)
    """As in the sampler."""
    top_k: int | None = Field(default=None, ge=0)
    """As in the sampler."""
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """As in the sampler."""
    guidance: float | None = Field(default=None, ge=0.0)
    """As in the sampler."""
    max_new_tokens: int | None = Field(default=None, gt=0)
    """As in the sampler."""
    cache: Cache | None = None
    """A whole cache."""
    max_rows: int | None = Field(default=None, gt=0)
    """As in the sampler."""
    edit: Edit | None = Field(default=None, exclude_if=is_none)
    """As in the sampler."""

    def apply(self, sampler: Sampler) -> Sampler:
        """The sampler with these changes. Raises ValidationError if they do not fit."""
        changes: dict[str, Any] = {}
        for name in Sampler.model_fields:
            value = getattr(self, name, None)
            if value is not None:
                changes[name] = value.model_dump() if isinstance(value, Section) else value
        return Sampler.model_validate_json(json.dumps({**sampler.model_dump(), **changes}))


class PhaseSampler(SamplerChanges):
    """Keys of a round's sampler that change in a phase."""

    opening: str | None = None
    """As in the sampler."""
    max_prompt_tokens: int | None = Field(default=None, gt=0)
    """As in the sampler."""
    cache_tokens: int | None = Field(default=None, gt=0)
    """As in the sampler."""


class Mode(SamplerChanges):
    """A way to sample in an evaluation: what differs from the section's sampler."""

    num_samples: int | None = Field(default=None, gt=0)
    """Responses per problem in this mode; left out: as the section says."""

    def samples(self, default: int) -> int:
        """Responses per problem, `default` if the mode says nothing."""
        return default if self.num_samples is None else self.num_samples
