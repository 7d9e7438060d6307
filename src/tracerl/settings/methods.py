"""Keys of the RL methods."""

from typing import Literal

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
