"""Sections `base.model`, `base.token_ids`, `lora`, `compute` and `launch`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Positive, Section, is_none


class ExpertShape(Section):
    """Shape of the mixtures of experts of a new model, of the families that have them."""

    num_experts: int = Positive
    """Experts of a layer, a multiple of num_groups."""
    per_token: int = Positive
    """Experts that each token goes through."""
    intermediate_size: int = Positive
    """Width inside an expert."""
    num_shared: int = Field(ge=0)
    """Experts that every token goes through besides (llada-moe, llada2)."""
    num_dense: int = Field(ge=0)
    """First layers that have a dense MLP instead."""
    num_groups: int = Positive
    """Groups of neighbouring experts (llada2)."""
    groups_per_token: int = Positive
    """Groups that a token's experts are chosen from (llada2)."""
    scaling: float = Field(gt=0.0)
    """Factor of the weights of a token's experts (llada2)."""

    @model_validator(mode="after")
    def _experts_fit(self) -> Self:
        available = self.num_experts // self.num_groups * self.groups_per_token
        if self.num_experts % self.num_groups or self.per_token > available:
            raise ValueError(
                "num_experts must be a multiple of num_groups, and a token's groups must have at "
                "least per_token experts"
            )
        return self


class ModelShape(Section):
    """Shape of the small default model; its vocabulary comes from the character tokenizer."""

    family: Literal[
        "sdar",
        "llada",
        "dream",
        "a2d-qwen3",
        "a2d-qwen3-block",
        "a2d-qwen2",
        "a2d-qwen2-block",
        "a2d-llama",
        "a2d-llama-block",
        "stable-diffcoder",
        "fast-dllm-v2",
        "sdar-moe",
        "llada-moe",
        "llada2",
    ]
    """Attention and prediction of models/families.py. Of an imported a2d checkpoint, which does not
    say it, also the attention it was trained with."""
    hidden_size: int = Positive
    """Width of the residual stream."""
    intermediate_size: int = Positive
    """Width of the MLP."""
    num_layers: int = Positive
    """Transformer layers."""
    num_heads: int = Positive
    """Query heads; a multiple of num_kv_heads."""
    num_kv_heads: int = Positive
    """Key and value heads."""
    head_dim: int = Positive
    """Width of a head; even, because rotary positions pair its halves."""
    rope_theta: float = Field(gt=0.0)
    """Base of the rotary frequencies."""
    norm_eps: float = Field(gt=0.0)
    """Added to the mean square in RMSNorm."""
    tie_embeddings: bool
    """Whether the LM head is the embedding."""
    rotary_factor: float | None = Field(default=None, gt=0.0, le=1.0, exclude_if=is_none)
    """Share of a head's dimensions that rotary positions turn (llada-moe, llada2), null for all."""
    experts: ExpertShape | None = Field(default=None, exclude_if=is_none)
    """Mixtures of experts of the families that have them, null for dense layers."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ValueError(
                "num_heads must be a multiple of num_kv_heads, and head_dim even "
                "(rotary positions pair its halves)"
            )
        return self


Projection = Literal[
    "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
]


class Lora(Section):
    """Low-rank adapters: only they are trained and saved (models/lora.py)."""

    rank: int = Positive
    """Rank of each adapter."""
    alpha: float = Field(gt=0.0)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(ge=0.0, lt=1.0)
    """Dropout probability of the adapter's input, in supervised training only."""
    targets: Annotated[list[Projection], Field(min_length=1)]
    """Linear layers that get an adapter, in every layer of the transformer; of the experts, each.
    llada2 has qkv_proj instead of the first three."""
    quantise: Literal["nf4"] | None = Field(default=None, exclude_if=is_none)
    """nf4: the frozen weights of these layers are kept in 4 bits (models/nf4.py); null: as they are
    stored."""


class TokenIds(Section):
    """Ids that replace those an imported directory names; null keeps the directory's."""

    mask: Annotated[int, Field(ge=0)] | None
    """Id of the mask token."""
    end: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None
    """Ids that end a response; the first one is learned."""
    pad: Annotated[int, Field(ge=0)] | None
    """Id that fills the last block after the end."""


class Compute(Section):
    """Where models run."""

    device: Literal["auto", "cpu", "cuda"]
    """auto: CUDA if there is a device, else the CPU."""
    dtype: Literal["stored", "float32", "bfloat16", "float16", "float64"]
    """Type of the weights; stored: as in the checkpoint."""
    attention: Literal["auto", "sdpa", "sparse", "flex", "flash"]
    """Back end of attention, see models/attention.py."""
    checkpoint_layers: bool
    """Whether training keeps only each layer's input and recomputes the rest in the backward pass:
    a third more time, a fraction of the memory."""
    vectors: Literal["avx2", "avx512", "widest"]
    """Widest vector instructions of torch's own CPU kernels (widest: all that this CPU has). Other
    widths add in another order, so that numbers differ in their last bits. No effect on a GPU or on
    ARM."""


class Launch(Section):
    """The processes of a stage; docs/distributed.md. Results differ by rounding only."""

    ranks: int = Positive
    """Processes on each machine, one per GPU."""
    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_@.:%-]*$")]]
    """Machines by their names for ssh, the first the one that runs the command; [] for this one
    alone."""
    port: int = Field(ge=1024, lt=65536)
    """Port of the first machine where the others meet it."""
    zero: Literal[0, 1, 2, 3]
    """DeepSpeed's ZeRO stage; 0 for plain AdamW."""
    offload: bool
    """Whether ZeRO keeps optimizer states in host memory."""

    @model_validator(mode="after")
    def _offload_needs_zero(self) -> Self:
        if self.offload and not self.zero:
            raise ValueError(
                "offload needs zero 1, 2 or 3: plain AdamW keeps its states beside the weights"
            )
        return self
