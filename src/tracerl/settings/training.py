"""Sections `base`, `traces` and `sft`: supervised training and what it learns from."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Fraction, Positive, Section, Shares, check_range, is_none
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

    @property
    def needs_shift(self) -> bool:
        """Whether the family must predict a token from the position before it."""
        return False


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

    kind: Literal["ar"]
    """Name of the objective."""

    @property
    def needs_shift(self) -> bool:
        return True


class AdaptObjective(_NoiseObjective):
    """A noise level per block, or per response with full attention, and next-token prediction for a
    share of the examples. In blocks of one token of a family that shifts it is next-token
    prediction for all of them, which is what the masked tokens see there."""

    kind: Literal["adapt"]
    """Name of the objective."""
    complementary: bool
    """Whether an example is learned in two views that mask complementary tokens, so that every
    token is predicted once."""
    clean: float = Fraction
    """Share of the examples that are predicted left to right from clean tokens."""

    @property
    def needs_shift(self) -> bool:
        return self.clean > 0.0


Objective = Annotated[
    RandomObjective | SemiArObjective | TraceObjective | ArObjective | AdaptObjective,
    Field(discriminator="kind"),
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


class _AdaptData(Section):
    """What all kinds of data have."""

    @property
    def shares(self) -> dict[str, float]:
        """Share of the examples by task set or file."""
        raise NotImplementedError

    @property
    def task_sets(self) -> list[str]:
        """Task sets that are read."""
        return []

    @property
    def learns_prompts(self) -> bool:
        """Whether all tokens but an example's first are learned."""
        return True


class SolutionData(_AdaptData):
    """Worked solutions of task sets."""

    kind: Literal["solutions"]
    """Name of the kind."""
    tasks: Shares
    """Task set -> share of the examples."""
    prompts: bool
    """Whether the tokens of prompts are learned too."""

    @property
    def shares(self) -> dict[str, float]:
        return self.tasks

    @property
    def task_sets(self) -> list[str]:
        return list(self.tasks)

    @property
    def learns_prompts(self) -> bool:
        return self.prompts


class PairData(_AdaptData):
    """Files of prompts and solutions."""

    kind: Literal["pairs"]
    """Name of the kind."""
    files: Shares
    """.jsonl or .parquet file with columns prompt and solution, below the project's root -> share
    of the examples."""
    prompts: bool
    """Whether the tokens of prompts are learned too."""

    @property
    def shares(self) -> dict[str, float]:
        return self.files

    @property
    def learns_prompts(self) -> bool:
        return self.prompts


class TextData(_AdaptData):
    """Files of documents, cut into pieces of max_length tokens."""

    kind: Literal["text"]
    """Name of the kind."""
    files: Shares
    """.jsonl or .parquet file with column text, below the project's root -> share of the
    examples."""

    @property
    def shares(self) -> dict[str, float]:
        return self.files


class AdaptPhase(Section):
    """A part of the adaptation with one block size."""

    block_size: int = Positive
    """Tokens of a block. Blocks of one are the autoregressive model itself where the shift is
    kept."""
    tokens: int = Positive
    """Tokens of examples that are learned from; decides the number of steps."""


class Adapt(Section):
    """How an autoregressive checkpoint (Llama, Qwen2, Qwen3) is trained to predict masked tokens;
    training/adaptation.py."""

    attention: Literal["block_causal", "full"]
    """Attention of the result."""
    shift: bool
    """Whether the result predicts a token from the position before it, as its origin does."""
    data: Annotated[SolutionData | PairData | TextData, Field(discriminator="kind")]
    """What it learns from."""
    objective: Annotated[AdaptObjective | RandomObjective, Field(discriminator="kind")]
    """What is predicted."""
    phases: Annotated[list[AdaptPhase], Field(min_length=1)]
    """Phases in their order."""
    end_tokens: int | None = Field(default=None, gt=0)
    """End tokens that close the last block and are learned; null for all."""
    row_tokens: int | None = Field(default=None, gt=0)
    """Tokens of a row that several examples share, none of which sees another; null for a row
    each."""
    batch_size: int = Positive
    """Examples per optimizer step."""
    micro_batch_tokens: int = Positive
    """Tokens of a forward pass, over all rows."""
    max_length: int = Positive
    """Longer examples are left out and counted, tokens; documents are cut into pieces of this
    length."""
    save_every: int = Positive
    """Steps between two saved states and rows of the curve."""
    optimizer: Optimizer
    """Of all weights, over all phases."""

    @model_validator(mode="after")
    def _clean_tokens_need_the_shift(self) -> Self:
        if self.objective.needs_shift and not self.shift:
            raise ValueError(
                "objective.clean needs shift: without it a token would be predicted where it is "
                "seen"
            )
        return self

    def phase_trainings(self, mean_tokens: float) -> list[Training]:
        """Each phase as supervised training of its own.

        mean_tokens: of an example, by which the phase's tokens become steps.
        """
        trainings = []
        for phase in self.phases:
            steps = -(-phase.tokens // max(1, round(self.batch_size * mean_tokens)))
            training = Training(
                objective=self.objective,
                end_tokens=self.end_tokens,
                row_tokens=self.row_tokens,
                block_sizes={phase.block_size: 1.0},
                tasks=self.data.shares,
                num_steps=steps,
                batch_size=self.batch_size,
                micro_batch_tokens=self.micro_batch_tokens,
                max_length=self.max_length,
                save_every=self.save_every,
                optimizer=self.optimizer,
            )
            trainings.append(training)
        return trainings


class Base(Section):
    """The first checkpoint: imported, adapted from an autoregressive one, or a new model trained on
    worked solutions."""

    path: str | None
    """Directory of a published checkpoint, below the project's root; null to train a new model."""
    token_ids: TokenIds
    """Ids that replace those of the directory. With `adapt` and without a mask there, a token
    `<|mask|>` is added to the vocabulary."""
    adapt: Adapt | None = Field(default=None, exclude_if=is_none)
    """How the autoregressive checkpoint at `path` becomes a diffusion model; null to import it as
    it is."""
    model: ModelShape
    """Shape of the new model."""
    train: Training
    """How the new model is trained."""

    @model_validator(mode="after")
    def _adapted_is_imported(self) -> Self:
        if self.adapt is not None and self.path is None:
            raise ValueError("adapt needs path, the directory of an autoregressive checkpoint")
        return self

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
        if self.sampler.edit is not None:
            raise ValueError(
                "a trace says at which step each token was committed, and replays no replaced "
                "tokens: set sampler.edit to null"
            )
        return self
