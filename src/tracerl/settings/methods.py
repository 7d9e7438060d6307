"""Section `rl.*.method`: the RL methods, each with its own keys.

objectives/methods.py says what each computes and what it costs.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Fraction, Positive, Section, check_range

Ratio = Literal["token", "sequence", "none"]
Clip = tuple[Annotated[float, Field(gt=0.0, lt=1.0)], Annotated[float, Field(gt=0.0)]]


class _Method(Section):
    """What the rest of a round must know of its method."""

    ratios: ClassVar[tuple[Ratio, ...]] = ("token", "sequence", "none")
    """The importance ratios it is defined with."""
    unit: ClassVar[Literal["prediction", "token", "response"]] = "prediction"
    """What a likelihood is estimated of: each scored token of each view; each token, its views
    summed with their weights; or the whole response, that sum divided by its length."""
    draws_views: ClassVar[bool] = True
    """Whether its views are random, so that every epoch draws them anew."""
    scores_order: ClassVar[bool] = False
    """Whether the order of commitment is scored beside the tokens."""

    @property
    def order_term(self) -> tuple[Clip, float] | None:
        """Clip of the order's ratio and weight of its term; None unless the order is scored."""
        return None


class _Noisy(_Method):
    """A method with masked copies of the response."""

    copies: int = Positive
    """Masked copies of a response (coupled methods: pairs of copies)."""
    noise: tuple[float, float]
    """Range of the mask level t."""

    @model_validator(mode="after")
    def _noise_is_a_range(self) -> Self:
        check_range("noise", self.noise, empty=False)
        return self


class TraceRL(_Method):
    """TraceRL (arXiv 2509.06949)."""

    draws_views = False

    kind: Literal["tracerl"]
    """Name of the method."""


class Random(_Noisy):
    """UniGRPO (MMaDA, arXiv 2505.15809)."""

    kind: Literal["random"]
    """Name of the method."""


class Coupled(_Noisy):
    """Coupled masking as TraceRL's authors compare with it."""

    kind: Literal["coupled"]
    """Name of the method."""


class DiffuCoder(_Noisy):
    """Coupled GRPO (DiffuCoder, arXiv 2506.20639)."""

    unit = "token"

    kind: Literal["diffucoder"]
    """Name of the method."""


class DiffuGrpo(_Method):
    """diffu-GRPO (d1, arXiv 2504.12216)."""

    kind: Literal["diffu_grpo"]
    """Name of the method."""
    prompt_masking: float = Fraction
    """Probability of masking a prompt token."""


class Wd1(_Method):
    """wd1 (arXiv 2507.08838)."""

    ratios = ("none",)
    unit = "response"

    kind: Literal["wd1"]
    """Name of the method."""
    prompt_masking: float = Fraction
    """Probability of masking a prompt token."""


class Spg(_Noisy):
    """SPG (arXiv 2510.09541)."""

    ratios = ("none",)
    unit = "response"

    kind: Literal["spg"]
    """Name of the method."""
    bound_exponent: float = Field(ge=1.0)
    """Exponent b of the upper bound."""
    bound_share: float = Fraction
    """Share of the upper bound in the mixture for negative advantages."""


class Gdpo(_Method):
    """GDPO (arXiv 2510.08554)."""

    ratios = ("sequence",)
    unit = "response"

    kind: Literal["gdpo"]
    """Name of the method."""
    copies: int = Positive
    """Masked copies at each node."""
    nodes: int = Positive
    """Points of the Gauss quadrature over t."""


class Espo(_Noisy):
    """ESPO (arXiv 2512.03759)."""

    ratios = ("sequence",)
    unit = "response"

    kind: Literal["espo"]
    """Name of the method."""


class StepMerge(_Method):
    """d2-StepMerge (arXiv 2509.21474)."""

    kind: Literal["step_merge"]
    """Name of the method."""
    segments: int = Positive
    """Segments of `shrink` steps that are scored, at most."""


class MaskAware(_Method):
    """Mask-aware policy gradients (arXiv 2607.15200)."""

    scores_order = True

    kind: Literal["mask_aware"]
    """Name of the method."""
    segments: int = Positive
    """Segments of `shrink` steps that are scored, at most."""
    order_weight: float = Field(ge=0.0)
    """Weight of the order's term in the loss."""
    order_clip: Clip
    """Clip of the order's ratio, below and above 1."""

    @property
    def order_term(self) -> tuple[Clip, float] | None:
        return self.order_clip, self.order_weight


Method = Annotated[
    TraceRL
    | Random
    | Coupled
    | DiffuCoder
    | DiffuGrpo
    | Wd1
    | Spg
    | Gdpo
    | Espo
    | StepMerge
    | MaskAware,
    Field(discriminator="kind"),
]
