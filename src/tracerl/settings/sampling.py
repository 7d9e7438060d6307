"""Sections named `sampler`: how responses are sampled."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Positive, Section

Remasking = Literal["static", "dynamic", "sequential", "entropy", "plackett_luce"]


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
