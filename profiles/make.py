"""Writes the whole params files of this folder: params.yaml with the settings of the papers for one
published checkpoint.

A profile is the shipped params.yaml, changed where a checkpoint or its paper says so; what is not
changed follows params.yaml. Settings are those of TraceRL (arXiv 2509.06949: block models 128
prompts x 32 responses; Dream 56 x 8, block 32, horizon 128, shrink 8) and, for LLaDA-8B, of
mask-aware policy gradients (arXiv 2607.15200). Put the checkpoint where base.path says, import the
task sets with `tracerl data add NAME`, and then:

    cp profiles/sdar-4b.yaml params.yaml && tracerl doctor --params params.yaml && dvc repro

Before the checkpoint is there, its shape is enough for a rehearsal:

    tracerl doctor --params profiles/sdar-4b.yaml --config profiles/configs/SDAR-4B-Chat.json \
        --rehearse

Example: python -m profiles.make
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from profiles.shapes import CONFIGS

HERE = Path(__file__).resolve().parent
Tree = dict[str, Any]

# test: of held-out curves and, without `evaluated`, of evaluations.
MATH = {
    "train": "math-train",
    "test": ["math500", "gsm8k"],
    "evaluated": ["math500", "gsm8k", "aime24"],
}
MATH_WITHOUT_AIME = {"train": "math-train", "test": ["math500", "gsm8k"]}
CODE = {"train": "deepcoder", "test": ["livecodebench-v2", "humaneval"]}
SAMPLES = {"aime24": 20}  # responses per problem; of all other sets 3
ALL_PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# As `tracerl data add NAME` writes them, the papers' instructions in the prompts; the chat form
# around is the checkpoint's own template.
TASK_FILES = {
    "math-train": {"num_train": 8000, "num_test": 0},
    "math500": {"num_train": 0, "num_test": 500},
    "gsm8k": {"num_train": 0, "num_test": 1319},
    "aime24": {"num_train": 0, "num_test": 30},
    "openthoughts": {"num_train": 100_000, "num_test": 0},
    "deepcoder": {"num_train": 6000, "num_test": 0},
    "livecodebench-v2": {"num_train": 0, "num_test": 511},
    "humaneval": {"num_train": 0, "num_test": 164},
}

STATIC = {"kind": "static"}
DYNAMIC = {"kind": "dynamic", "threshold": 0.9}
# Block models: static sampling is greedy, so that one response says it all; dynamic sampling draws
# from the model.
BLOCK_MODES = {
    "static": {"order": STATIC, "temperature": 1.0, "top_k": 1, "num_samples": 1},
    "dynamic": {"order": DYNAMIC, "temperature": 1.0, "top_k": 0},
}
# Full attention: one block size for each mode, a low temperature and a higher threshold.
FULL_MODES = {
    "static": {"order": STATIC, "temperature": 0.1, "block_size": 32, "steps_per_block": 32},
    "dynamic": {
        "order": {"kind": "dynamic", "threshold": 0.95},
        "temperature": 0.1,
        "block_size": 4,
        "steps_per_block": 4,
    },
}
LONG = 10_000  # tokens of a response from which on layers are computed again in training
DREAM_MATH_TOKENS = 1600  # limit of an evaluated response; training has 1024

BLOCK_SAMPLER = {
    "block_size": 4,
    "steps_per_block": 4,
    "order": DYNAMIC,
    "temperature": 1.0,
    "cache": {"kind": "exact"},
    "max_prompt_tokens": 1024,
    "max_new_tokens": 2000,
    "max_rows": 256,
}
FULL_SAMPLER = {
    "block_size": 32,
    "steps_per_block": 32,
    "order": STATIC,
    "temperature": 0.8,
    "cache": {"kind": "window", "horizon": 128, "refresh_every": None, "refresh_sees": "canvas"},
    "max_prompt_tokens": 1024,
    "max_new_tokens": 1024,
    "max_rows": 64,
}
RL: Tree = {
    "method": {"kind": "tracerl"},
    "pass_rate": [0.2, 0.8],
    "advantages": "group",
    "clip": [0.2, 0.2],
    "kl": "k3",
    "kl_to": "iteration",
    "kl_weight": 0.01,
    "reduction": "step",
    "updates": 1,
    "micro_batch_tokens": 16384,
    "save_every": 5,
    "iterations": 100,
    "optimizer": {
        "lr": 1e-6,
        "betas": [0.9, 0.999],
        "weight_decay": 0.0,
        "clip_norm": 1.0,
        "warmup": 0,
        "decay": 0.0,
    },
}
BLOCK_RL = {
    **RL,
    "groups": 128,
    "group_size": 32,
    "max_sampled_groups": 384,
    "min_groups": 32,
    "train_block_size": 4,
    "shrink": 1,
}
FULL_RL = {
    **RL,
    "groups": 56,
    "group_size": 8,
    "max_sampled_groups": 168,
    "min_groups": 14,
    "train_block_size": 32,
    "shrink": 8,
}
# Mask-aware policy gradients: N = 32 segments of 4 of the 128 steps, K = 12 of them scored, mu =
# 12, 48 responses in groups of 6.
PLACKETT_LUCE = {"kind": "plackett_luce", "temperature": 0.5, "score": "max_logit"}
GREEDY = {"order": STATIC, "temperature": 0.0}
MASK_AWARE_MODES = {"static": GREEDY, "plackett_luce": {"order": PLACKETT_LUCE}}
# The paper evaluates three lengths; 256 is that of training.
MASK_AWARE_EVALUATION = {
    "static-128": {**GREEDY, "max_new_tokens": 128},
    **MASK_AWARE_MODES,
    "static-512": {**GREEDY, "max_new_tokens": 512},
}
MASK_AWARE_SAMPLER = {
    "block_size": 32,
    "steps_per_block": 16,
    "order": PLACKETT_LUCE,
    "temperature": 0.9,
    "cache": {"kind": "none"},
    "max_prompt_tokens": 512,
    "max_new_tokens": 256,
    "max_rows": 64,
}
MASK_AWARE_RL = {
    **FULL_RL,
    "method": {
        "kind": "mask_aware",
        "segments": 12,
        "order_weight": 1.0,
        "order_clip": [3e-4, 4e-4],
    },
    "ratio": "sequence",
    "reduction": "response",
    "groups": 8,
    "group_size": 6,
    "max_sampled_groups": 8,
    "min_groups": 1,
    "pass_rate": [0.0, 1.0],
    "shrink": 4,
    "epochs": 12,
    "clip": [3e-4, 4e-4],
    "kl_weight": 0.0,
    "lora": {"rank": 128, "alpha": 64.0, "dropout": 0.05, "targets": ALL_PROJECTIONS},
    "optimizer": {
        "lr": 3e-6,
        "betas": [0.9, 0.99],
        "weight_decay": 0.1,
        "clip_norm": 0.2,
        "warmup": 0,
        "decay": 0.0,
    },
}
# TraDo-4B was trained with a value model.
VALUE = {
    "advantages": "gae",
    "value": {
        "start": "policy",
        "discount": 1.0,
        "trace": 1.0,
        "clip": 0.2,
        "every": 1,
        "updates": 1,
        "optimizer": {**RL["optimizer"], "lr": 5e-6},
    },
}
SFT = {
    "batch_size": 64,
    "micro_batch_tokens": 16384,
    "max_length": 4096,
    "save_every": 50,
    "optimizer": {
        "lr": 1e-6,
        "betas": [0.9, 0.999],
        "weight_decay": 0.0,
        "clip_norm": 1.0,
        "warmup": 20,
        "decay": 0.0,
    },
}
# A round of SFT on the model's own traces.
TRACE_ROUND = {
    "init": "base",
    "data": "traces",
    "objective": {"kind": "trace", "shrink": 1},
    "num_steps": 500,
    "optimizer": {"lr": 1e-6},
}

# Supervised fine-tuning on worked solutions that are long chains of thought: semi-autoregressive,
# which for block attention is a noise level per block. The length is that of responses.
THINKING_ROUND = {
    "init": "base",
    "data": "tasks",
    "tasks": {"openthoughts": 1},
    "objective": {"kind": "semi_ar", "noise": [0.1, 0.9], "weighting": "uniform"},
    "num_steps": 2000,
    "max_length": 31024,
    "micro_batch_tokens": 65536,
    "optimizer": {"lr": 1e-5},
}
THINKING_SAMPLER = {"max_new_tokens": 30000, "max_rows": 64, "opening": "<think>\n"}


def block(
    path: str,
    tasks: Mapping[str, Any] = MATH,
    sft: bool = False,
    enlarge: bool = False,
    sampler: Mapping[str, Any] | None = None,
    rl: Mapping[str, Any] | None = None,
    modes: Tree = BLOCK_MODES,
) -> Tree:
    """A block-diffusion checkpoint (SDAR, TraDo): block 4, dynamic at 0.9; with `enlarge`, on to
    block 8 in a round of two phases. rl: changes of BLOCK_RL."""
    rounds: dict[str, Tree] = {"math": {"init": "sft@trace" if sft else "base"}}
    if enlarge:
        small = {"block_size": 4, "steps_per_block": 4}
        wide = {"block_size": 8, "steps_per_block": 8}
        rounds["enlarge"] = {
            "init": "rl@math",
            "train_block_size": 8,
            "sampler": wide,
            # rollouts at 4, then at 8; training at 8
            "phases": [{"name": "small", "iterations": 60, "sampler": small}, {"name": "wide"}],
        }
    return profile(
        path,
        tasks,
        sampler={**BLOCK_SAMPLER, **(sampler or {})},
        traces={"block_size": 4, "pick": 2, "step_tokens": 2},
        rl={**BLOCK_RL, **(rl or {})},
        rounds={"sft": {"trace": TRACE_ROUND} if sft else {}, "rl": rounds},
        modes=modes,
    )


def long_cot(path: str) -> Tree:
    """The recipe of TraDo-8B-Thinking: supervised fine-tuning on long chains of thought between
    think tags, then TraceRL with responses that are made to begin with the opening tag."""
    return profile(
        path,
        {**MATH, "more": ["openthoughts"]},
        sampler={**BLOCK_SAMPLER, **THINKING_SAMPLER},
        traces={"block_size": 4, "pick": 2, "step_tokens": 2},
        rl=BLOCK_RL,
        rounds={"sft": {"thinking": THINKING_ROUND}, "rl": {"math": {"init": "sft@thinking"}}},
        modes={"dynamic": BLOCK_MODES["dynamic"]},
    )


def alternating(path: str) -> Tree:
    """The recipe of TraDo: math and code in turn, an iteration each, with a value model."""
    tasks = {
        "train": "math-train",
        "more": ["deepcoder"],
        "test": [*MATH["test"], *CODE["test"]],
        "evaluated": [*MATH["evaluated"], *CODE["test"]],
    }
    rounds = {
        "alternate": {
            "init": "base",
            "tasks": {"math-train": 1, "deepcoder": 1},
            "phases": [
                {"name": "math", "iterations": 1, "tasks": {"math-train": 1}},
                {"name": "code", "iterations": 1, "tasks": {"deepcoder": 1}},
            ],
        }
    }
    return profile(
        path,
        tasks,
        sampler=BLOCK_SAMPLER,
        traces={"block_size": 4, "pick": 2, "step_tokens": 2},
        rl={**BLOCK_RL, **VALUE},
        rounds={"sft": {}, "rl": rounds},
        modes=BLOCK_MODES,
    )


def full(
    path: str,
    tasks: Mapping[str, Any] = MATH,
    sft: bool = False,
    evaluated_tokens: int | None = None,
) -> Tree:
    """A full-attention checkpoint with TraceRL's settings for Dream: block 32, static, horizon 128,
    shrink 8, 16 tokens a trace step. evaluated_tokens: limit of a response in evaluations, if it is
    another one than in training."""
    name = "code" if tasks is CODE else "math"
    modes = copy.deepcopy(FULL_MODES)
    if evaluated_tokens is not None:
        for mode in modes.values():
            mode["max_new_tokens"] = evaluated_tokens
    return profile(
        path,
        tasks,
        sampler=FULL_SAMPLER,
        traces={"block_size": 32, "pick": 2, "step_tokens": 16},
        rl=FULL_RL,
        rounds={
            "sft": {"trace": TRACE_ROUND} if sft else {},
            "rl": {name: {"init": "sft@trace" if sft else "base"}},
        },
        modes=modes,
    )


def mask_aware(path: str) -> Tree:
    """LLaDA-8B with mask-aware policy gradients: an order drawn by Plackett-Luce, scored with the
    tokens."""
    return profile(
        path,
        MATH_WITHOUT_AIME,
        sampler=MASK_AWARE_SAMPLER,
        traces={"block_size": 32, "pick": 2, "step_tokens": 2},
        rl=MASK_AWARE_RL,
        rounds={"sft": {}, "rl": {"math": {"init": "base"}}},
        modes=MASK_AWARE_EVALUATION,
        held_out_modes=MASK_AWARE_MODES,
    )


def profile(
    path: str,
    tasks: Mapping[str, Any],
    *,
    sampler: Tree,
    traces: Tree,
    rl: Tree,
    rounds: dict[str, dict[str, Tree]],
    modes: Tree,
    held_out_modes: Tree | None = None,
) -> Tree:
    """params.yaml with a checkpoint, its task files and its rounds.

    rl: what all rounds of rl have in common. rounds: what each round of sft and of rl says.
    modes: of evaluations, and of held-out curves unless held_out_modes says otherwise.
    """
    params: Tree = yaml.safe_load((HERE.parent / "params.yaml").read_text())
    defaults = params["defaults"]
    evaluated = tasks.get("evaluated", tasks["test"])
    names = [tasks["train"], *tasks.get("more", []), *evaluated]
    share = {tasks["train"]: 1}
    block_sizes = {sampler["block_size"]: 1}
    held_out = {"tasks": list(tasks["test"]), "num_problems": 100}
    held_out["modes"] = modes if held_out_modes is None else held_out_modes
    params["compute"] = {
        "device": "cuda",
        "dtype": "bfloat16",
        "attention": "auto",
        # What all layers keep of a row of some 60,000 tokens does not fit any device.
        "checkpoint_layers": sampler["max_new_tokens"] > LONG,
        "vectors": "avx2",
    }
    params["tasks"]["sets"] = {
        name: {"source": "file", "path": f"data/raw/{name}.parquet", **TASK_FILES[name]}
        for name in names
    }
    defaults["sampler"] |= sampler
    defaults["sft"] |= {**SFT, "block_sizes": block_sizes}
    defaults["rl"] |= {**rl, "held_out": {**defaults["rl"]["held_out"], **held_out}}
    params["base"]["path"] = f"data/raw/{path}"
    params["base"]["train"].update(tasks=share, block_sizes=block_sizes)
    params["traces"].update(
        traces,
        preferred={tasks["train"]: 2000} if "trace" in rounds["sft"] else {},
        rollouts={},
        batch_size=32,
    )
    del params["traces"]["sampler"]
    params["sft"] = {name: {"tasks": share, **changes} for name, changes in rounds["sft"].items()}
    params["rl"] = {
        name: {"tasks": share, **changes, "optimizer": {"lr": rl["optimizer"]["lr"]}}
        for name, changes in rounds["rl"].items()
    }
    params["evaluation"].update(num_problems=1319, num_samples=3, batch_size=64, modes=modes)
    samples = {name: SAMPLES[name] for name in evaluated if name in SAMPLES}
    if samples:
        params["evaluation"]["samples"] = samples
    params["evaluate"] = {
        checkpoint.replace("@", "-"): {"checkpoint": checkpoint, "tasks": list(evaluated)}
        for checkpoint in (
            "base",
            *(f"sft@{name}" for name in rounds["sft"]),
            *(f"rl@{name}" for name in rounds["rl"]),
        )
    }
    for name, changes in rounds["rl"].items():
        if "sampler" in changes:
            params["evaluate"][f"rl-{name}"]["sampler"] = changes["sampler"]
    return params


@dataclass(frozen=True, kw_only=True)
class WordsBudget:
    """How much a run of `words` learns from; profiles/words.py starts it."""

    compute: Tree
    """Changes of the section compute."""
    ranks: int
    """Processes."""
    micro_batch_tokens: int
    """Tokens of a forward pass of training."""
    max_rows: int
    """Rows that are sampled together."""
    adapt_tokens: tuple[int, int, int]
    """Tokens of the phases with blocks of 1, 2 and 4."""
    sft_steps: int
    """Steps of 32 examples of each round on word problems."""
    gsm8k_steps: int
    """Steps of 32 examples of the round on GSM8K."""
    iterations: tuple[int, int, int, int]
    """Of the rounds short, gsm8k, enlarge and wide."""
    groups: int
    """Groups of an iteration."""
    gsm8k_problems: int
    """Evaluated problems of GSM8K."""


# Two cores, four hours at most, 8 GB. What it is made from: 135M parameters are 0.66 GFLOP a token
# of training (0.17 more for each predicted one: the head has 49,152 rows) and 0.22 of a forward
# pass; a core does 90 GFLOP/s in float32, of which ranks and small batches leave about 80. A word
# problem is 42 + 22 tokens, one of GSM8K about 65 + 130. By these figures, in minutes of both
# cores: adaptation 20 + 15 + 25, SFT 15, the autoregressive baseline 12, RL 32 x 110 s = 60,
# GSM8K 20 + 14, blocks of 8 16, evaluations and held-out curves 40: about 3 hours 55 minutes.
# Weights, gradients and moments are 2.2 GB a rank, what 384 tokens keep 0.6 GB: about 6.5 GB.
WORDS_ON_CPU = WordsBudget(
    compute={"device": "cpu", "dtype": "stored"},
    ranks=2,
    micro_batch_tokens=384,
    max_rows=64,
    adapt_tokens=(250_000, 130_000, 200_000),
    sft_steps=90,
    gsm8k_steps=26,
    iterations=(32, 4, 5, 5),
    groups=16,
    gsm8k_problems=200,
)
# One GPU, ten minutes at most: at 120,000 tokens a second (arithmetic, not measured) the
# adaptation is a minute, each round of SFT seconds; what RL takes is mostly sampling, a few
# seconds an iteration.
WORDS_ON_CUDA = WordsBudget(
    compute={"device": "cuda", "dtype": "bfloat16"},
    ranks=1,
    micro_batch_tokens=32_768,
    max_rows=512,
    adapt_tokens=(1_000_000, 800_000, 1_600_000),
    sft_steps=250,
    gsm8k_steps=400,
    iterations=(60, 15, 10, 10),
    groups=32,
    gsm8k_problems=400,
)


WORDS_MODEL = "SmolLM2-135M-Instruct"
WORDS_FILES = {
    "mawps": {"num_train": 4000, "num_test": 0},
    "svamp": {"num_train": 0, "num_test": 999},
    "gsm8k-train": {"num_train": 7473, "num_test": 0},
    "gsm8k": {"num_train": 0, "num_test": 1319},
}
WIDE = {"block_size": 8, "steps_per_block": 8}
LEFT_TO_RIGHT = {"block_size": 1, "steps_per_block": 1}
LONG_ANSWERS = {"max_prompt_tokens": 192, "max_new_tokens": 192}


def words(budget: WordsBudget) -> Tree:
    """SmolLM2-135M-Instruct to a block-diffusion model of word problems: adaptation in blocks of 1,
    2 and 4 with the shift kept, SFT on worked steps, TraceRL, GSM8K, blocks of 8; beside it the
    same weights trained left to right."""
    params: Tree = yaml.safe_load((HERE.parent / "params.yaml").read_text())
    defaults = params["defaults"]
    params["compute"] |= budget.compute
    params["launch"]["ranks"] = budget.ranks
    params["tasks"]["sets"] = {
        name: {"source": "file", "path": f"data/raw/{name}.parquet", **sizes}
        for name, sizes in WORDS_FILES.items()
    }
    params["tasks"]["sets"]["gsm8k"]["num_test"] = budget.gsm8k_problems
    training = {
        "micro_batch_tokens": budget.micro_batch_tokens,
        "max_length": 160,
        "save_every": 10,
    }
    optimizer = {"lr": 1e-4, "weight_decay": 0.0, "warmup": 10, "decay": 0.7}
    params["base"] |= {
        "path": f"data/raw/{WORDS_MODEL}",
        # <jupyter_script>, which no problem holds
        "token_ids": {"mask": 15, "end": None, "pad": None},
        "adapt": {
            "attention": "block_causal",
            "shift": True,
            "data": {"kind": "solutions", "tasks": {"mawps": 1}, "prompts": True},
            "objective": {
                "kind": "adapt",
                "noise": [0.0, 1.0],
                "weighting": "uniform",
                "complementary": True,
                "clean": 0.1,
            },
            "phases": [
                {"block_size": size, "tokens": tokens}
                for size, tokens in zip((1, 2, 4), budget.adapt_tokens, strict=True)
            ],
            "batch_size": 32,
            **training,
            "optimizer": optimizer,
        },
    }
    params["base"]["train"].update(tasks={"mawps": 1}, block_sizes={4: 1})
    defaults["sampler"] |= {"max_prompt_tokens": 128, "max_new_tokens": 48}
    defaults["sampler"]["max_rows"] = budget.max_rows
    defaults["sft"] |= {"block_sizes": {4: 1}, "batch_size": 32, "end_tokens": 1, **training}
    defaults["rl"]["micro_batch_tokens"] = budget.micro_batch_tokens
    defaults["rl"]["held_out"] |= {"tasks": ["svamp"], "every": 12, "num_problems": 100}
    params["traces"].update(preferred={}, rollouts={})
    params["sft"] = _words_sft(budget, optimizer)
    params["rl"] = _words_rl(budget)
    params["evaluation"].update(num_problems=999, num_samples=1, batch_size=100)
    params["evaluate"] = _words_evaluations()
    # The origin answers nothing, and never ends: that is a result here, no damage.
    params["validation"] |= {"pass_rate": [0.0, 1.0], "truncation": 1.0}
    return params


def _words_sft(budget: WordsBudget, optimizer: Tree) -> Tree:
    masked = {"kind": "random", "noise": [0.0, 1.0], "weighting": "uniform"}
    common = {"data": "tasks", "optimizer": optimizer}
    problems = {"tasks": {"mawps": 1}, "num_steps": budget.sft_steps}
    return {
        # What the same data teach left to right: the autoregressive baseline, in blocks of one.
        "ar": {"init": "base", "objective": {"kind": "ar"}, **problems, **common},
        "short": {"init": "base", "objective": masked, **problems, **common},
        "gsm8k": {
            "init": "rl@short",
            "objective": masked,
            "tasks": {"gsm8k-train": 3, "mawps": 1},
            "num_steps": budget.gsm8k_steps,
            **common,
            "max_length": 320,
        },
    }


def _words_rl(budget: WordsBudget) -> Tree:
    short, gsm8k, enlarge, wide = budget.iterations
    common = {
        "method": {"kind": "tracerl"},
        "tasks": {"mawps": 1},
        "groups": budget.groups,
        "max_sampled_groups": 3 * budget.groups // 2,
        "optimizer": {"lr": 1e-5},
    }
    return {
        "short": {"init": "sft@short", **common, "iterations": short},
        "gsm8k": {
            "init": "sft@gsm8k",
            **common,
            "iterations": gsm8k,
            "tasks": {"gsm8k-train": 1, "mawps": 1},
            "groups": budget.groups // 2,
            "max_sampled_groups": budget.groups,
            "sampler": LONG_ANSWERS,
        },
        "enlarge": {"init": "rl@short", **common, "iterations": enlarge, "train_block_size": 8},
        "wide": {
            "init": "rl@enlarge",
            **common,
            "iterations": wide,
            "train_block_size": 8,
            "sampler": WIDE,
        },
    }


def _words_evaluations() -> Tree:
    problems = {"tasks": ["svamp"]}
    return {
        "origin": {"checkpoint": "base/origin", **problems},
        "ar": {"checkpoint": "sft@ar", **problems, "sampler": LEFT_TO_RIGHT},
        "base": {"checkpoint": "base", **problems},
        "sft-short": {"checkpoint": "sft@short", **problems},
        "rl-short": {"checkpoint": "rl@short", **problems},
        "rl-short-k8": {"checkpoint": "rl@short", **problems, "sampler": WIDE},
        "wide-k8": {"checkpoint": "rl@wide", **problems, "sampler": WIDE},
        "sft-gsm8k": {"checkpoint": "sft@gsm8k", "tasks": ["gsm8k"], "sampler": LONG_ANSWERS},
        "rl-gsm8k": {"checkpoint": "rl@gsm8k", "tasks": ["gsm8k"], "sampler": LONG_ANSWERS},
    }


PROFILES: dict[str, Tree] = {
    "words": words(WORDS_ON_CPU),
    "words-cuda": words(WORDS_ON_CUDA),
    "sdar-1.7b": block("SDAR-1.7B-Chat"),
    "sdar-4b": block("SDAR-4B-Chat", sft=True, enlarge=True),
    "sdar-8b": block("SDAR-8B-Chat"),
    "sdar-4b-trado": alternating("SDAR-4B-Chat"),
    "trado-4b": block("TraDo-4B-Instruct", rl=VALUE),
    "trado-8b": block("TraDo-8B-Instruct"),
    "trado-8b-thinking": block(
        "TraDo-8B-Thinking",
        sampler=THINKING_SAMPLER,
        modes={"dynamic": BLOCK_MODES["dynamic"]},
    ),
    "trado-8b-long-cot": long_cot("TraDo-8B-Instruct"),
    "llada-8b": mask_aware("LLaDA-8B-Instruct"),
    "llada-1.5": full("LLaDA-1.5"),
    "mmada-8b": full("MMaDA-8B-MixCoT"),
    "dream-7b": full("Dream-v0-Instruct-7B", sft=True, evaluated_tokens=DREAM_MATH_TOKENS),
    "dream-coder-7b": full("Dream-Coder-v0-Instruct-7B", CODE),
    "diffucoder-7b": full("DiffuCoder-7B-Instruct", CODE),
}


def text_of(name: str) -> str:
    """The params file of a profile."""
    head = (
        f"# {name}: a whole params file, written by python -m profiles.make; change "
        "profiles/make.py or a copy of this file.\n"
    )
    plain = copy.deepcopy(PROFILES[name])
    return head + yaml.dump(plain, Dumper=_NoAnchors, sort_keys=False, width=130)


def config_text_of(checkpoint: str) -> str:
    """The config.json of a checkpoint."""
    return json.dumps(CONFIGS[checkpoint], indent=2) + "\n"


class _NoAnchors(yaml.SafeDumper):
    """Each section is written out, so that it can be changed alone."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main() -> None:
    for name in PROFILES:
        (HERE / f"{name}.yaml").write_text(text_of(name))
    (HERE / "configs").mkdir(exist_ok=True)
    for name in CONFIGS:
        (HERE / "configs" / f"{name}.json").write_text(config_text_of(name))


if __name__ == "__main__":
    main()
