"""Sections `base`, `traces` and `sft`: supervised training and what it learns from."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Fraction, Positive, Section, Shares, check_range
from tracerl.settings.models import Lora, ModelShape, TokenIds
from tracerl.settings.sampling import Sampler


class Optimizer(Section):
    """AdamW with a linear warm-up and a linear decay to zero."""

    lr: float = Field(gt=0.0)
    """Peak learning rate."""
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]]
    """Decay rates of the first and the second moment."""
    weight_decay: float = Field(ge=0.0)
    """Decoupled weight decay."""
    clip_norm: float = Field(gt=0.0)
    """Largest norm of the gradient of a step."""
    warmup: int = Field(ge=0)
    """Steps over which the rate rises linearly."""
    decay: float = Fraction
    """Last share of the steps, over which the rate falls linearly to zero."""


class _Objective(Section):
    """What supervised training predicts; objectives/supervised.py."""

    needs_steps: ClassVar[bool] = False
    """Whether examples must have a step map."""
    needs_shift: ClassVar[bool] = False
    """Whether the family must predict a token from the position before it."""


class _NoiseObjective(_Objective):
    """Fresh noise at every visit of an example."""

    noise: tuple[float, float]
    """Range of the noise level t."""
    weighting: Literal["inverse_t", "uniform"]
    """Weight of a predicted token: 1/t or 1."""

    @model_validator(mode="after")
    def _noise_is_a_range(self) -> Self:
        check_range("noise", self.noise, empty=False)
        return self


class RandomObjective(_NoiseObjective):
    """A noise level per block, or per response with full attention."""

    kind: Literal["random"]
    """Name of the objective."""


class SemiArObjective(_NoiseObjective):
    """A noise level per block, earlier blocks clean and later ones masked."""

    kind: Literal["semi_ar"]
    """Name of the objective."""


class TraceObjective(_Objective):
    """The views of each example's step map."""

    needs_steps = True

    kind: Literal["trace"]
    """Name of the objective."""
    shrink: int = Positive
    """Neighbouring steps that are merged into one."""


class ArObjective(_Objective):
    """Next-token prediction, for families that shift their logits."""

    needs_shift = True

    kind: Literal["ar"]
    """Name of the objective."""


Objective = Annotated[
    RandomObjective | SemiArObjective | TraceObjective | ArObjective, Field(discriminator="kind")
]


class Training(Section):
    """Supervised training on trajectories; training/sft.py."""

    objective: Objective
    """What is predicted."""
    end_tokens: int | None = Field(default=None, gt=0)
    """End tokens that close the last block and are learned; null for all."""
    row_tokens: int | None = Field(default=None, gt=0)
    """Tokens of a row that several examples share; null for a row each."""
    block_sizes: Annotated[
        dict[Annotated[int, Field(gt=0)], Annotated[float, Field(gt=0.0)]], Field(min_length=1)
    ]
    """Block size in tokens -> share of the batches."""
    tasks: Shares
    """Task set -> share of the examples."""
    num_steps: int = Positive
    """Optimizer steps."""
    batch_size: int = Positive
    """Examples per optimizer step."""
    micro_batch_tokens: int = Positive
    """Tokens of a forward pass, over all rows."""
    max_length: int = Positive
    """Longer examples are left out and counted, tokens."""
    save_every: int = Positive
    """Steps between two saved states and rows of the curve."""
    optimizer: Optimizer
    """Of all trained weights."""


class SftRound(Training):
    """Supervised fine-tuning from another checkpoint."""

    init: str
    """Stage that made the first checkpoint: base, sft@NAME or rl@NAME."""
    lora: Lora | None
    """Adapters to train instead of all weights, or null."""
    data: Literal["tasks", "traces"]
    """The task sets' worked solutions, or traces with step maps."""

    @model_validator(mode="after")
    def _traces_have_steps(self) -> Self:
        if self.objective.needs_steps and self.data != "traces":
            raise ValueError(
                f"objective {self.objective.kind!r} needs data 'traces': worked solutions have no "
                "step map"
            )
        return self


class Base(Section):
    """The first checkpoint: imported, or a new model trained on worked solutions."""

    path: str | None
    """Directory of a published checkpoint, below the project's root; null to train a new model."""
    token_ids: TokenIds
    """Ids that replace those of the directory."""
    model: ModelShape
    """Shape of the new model."""
    train: Training
    """How the new model is trained."""

    @model_validator(mode="after")
    def _solutions_have_no_steps(self) -> Self:
        kind = self.train.objective.kind
        if self.train.objective.needs_steps:
            raise ValueError(
                f"train.objective cannot be {kind!r}: worked solutions have no step map"
            )
        return self


class Traces(Section):
    """Trace collection; docs/algorithm.md section 4."""

    checkpoint: str
    """Stage that made the checkpoint."""
    block_size: int = Positive
    """Blocks of known solutions, tokens."""
    pick: int = Positive
    """Tokens of a known solution that the model chooses in a forward pass."""
    step_tokens: int = Positive
    """Tokens of a step of a known solution, a multiple of pick."""
    preferred: dict[str, Annotated[int, Field(ge=0)]]
    """Task set -> known solutions in the model's own preferred order."""
    rollouts: dict[str, Annotated[int, Field(ge=0)]]
    """Task set -> tasks whose responses are sampled; verified ones are kept."""
    group_size: int = Positive
    """Responses per task of `rollouts`."""
    batch_size: int = Positive
    """Known solutions per forward pass."""
    sampler: Sampler
    """How responses are sampled."""

    @model_validator(mode="after")
    def _selections_merge(self) -> Self:
        if self.step_tokens % self.pick:
            raise ValueError(
                f"step_tokens {self.step_tokens} is not a multiple of pick {self.pick}"
            )
        return self
