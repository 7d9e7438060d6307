"""Sections `base.model`, `compute` and `launch`: what a model is and where it runs."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Positive, Section


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


class TokenIds(Section):
    """Ids that replace those an imported directory names: of the mask, of the ends of a response
    (the first is learned), of the padding that fills a finished block. null keeps the directory's
    own."""

    mask: Annotated[int, Field(ge=0)] | None
    end: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None
    pad: Annotated[int, Field(ge=0)] | None


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
