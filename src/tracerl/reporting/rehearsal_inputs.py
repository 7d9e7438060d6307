"""What a rehearsal runs on: a params file made small, a checkpoint of random weights with a
tokenizer of its vocabulary size, and one made-up task of each set.

What is made smaller is said by `Reductions`; everything else is as in the params: dtype, families,
attention, orders, caches, methods, adapters, value models, phases, modes and the chain of rounds.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFile
from torch import nn

from tracerl.disk import write_json
from tracerl.errors import ParamsError
from tracerl.models.checkpoint import save_checkpoint
from tracerl.models.conversion import origin_family
from tracerl.models.directory import read_json
from tracerl.models.families import ATTENTION_KEY, AUTOREGRESSIVE, FAMILIES
from tracerl.models.mlp import Experts
from tracerl.models.policy import Policy, empty_model
from tracerl.models.tokenizer import Tokenizer
from tracerl.models.transformer import Architecture
from tracerl.settings.params import Params, parse_params
from tracerl.types import Task

_GROUP_SIZE = 2
_BATCH_SIZE = 4
_MAX_ROWS = 4
_NUM_BYTES = 256
# A published tokenizer names its mask; a made-up one is called so.
_MASK = "<|mask|>"


@dataclass(frozen=True, kw_only=True)
class Reductions:
    """What a rehearsal makes smaller."""

    num_layers: int
    """Layers of the rehearsed model, at most those of the checkpoint."""
    width_divisor: int
    """By what vocabulary, residual stream, MLP and heads are divided; 1 for the true widths."""
    prompt_tokens: int
    """Length of a prompt, tokens."""
    response_tokens: int
    """Limit of a response, tokens."""


def usual_layers() -> int:
    """Layers of a rehearsal that does not say how many: one on a CPU, on a GPU more than any model
    has."""
    return 1_000_000 if torch.cuda.is_available() else 1


def reduce_architecture(arch: Architecture, reductions: Reductions) -> Architecture:
    """The shape with fewer layers and divided widths, in which every ratio is as it was.

    Query and key heads are divided as far as both stay whole, and the rest of the divisor divides
    the width of a head. Raises ParamsError for a divisor that leaves a width without a whole
    number.
    """
    divisor = reductions.width_divisor
    head_divisor = max(
        number
        for number in range(1, divisor + 1)
        if divisor % number == arch.num_heads % number == arch.num_kv_heads % number == 0
    )
    head_dim_divisor = divisor // head_divisor
    widths = {
        "vocab_size": divisor,
        "hidden_size": divisor,
        "intermediate_size": divisor,
        "num_heads": head_divisor,
        "num_kv_heads": head_divisor,
        "head_dim": 2 * head_dim_divisor,  # rotary positions pair its halves
    }
    broken = {name: getattr(arch, name) for name, by in widths.items() if getattr(arch, name) % by}
    if broken:
        raise ParamsError(
            "the widths of the model cannot be divided",
            where="--width-divisor",
            got=f"{divisor} for {broken}",
            wanted="a divisor of all widths, after which a head has an even width",
            do="use a power of two that is smaller",
        )
    vocab_size = arch.vocab_size // divisor
    return replace(
        arch,
        num_layers=min(arch.num_layers, reductions.num_layers),
        vocab_size=vocab_size,
        hidden_size=arch.hidden_size // divisor,
        intermediate_size=arch.intermediate_size // divisor,
        num_heads=arch.num_heads // head_divisor,
        num_kv_heads=arch.num_kv_heads // head_divisor,
        head_dim=arch.head_dim // head_dim_divisor,
        mask_id=vocab_size - 1 if arch.mask_id < 0 else arch.mask_id // divisor,
        experts=_reduce_experts(arch, reductions.num_layers, divisor),
    )


def _reduce_experts(arch: Architecture, num_layers: int, divisor: int) -> Experts | None:
    """As many experts, each narrower."""
    if arch.experts is None:
        return None
    return replace(
        arch.experts,
        intermediate_size=max(1, arch.experts.intermediate_size // divisor),
        shared_size=arch.experts.shared_size // divisor,
        dense_layers=tuple(i for i in arch.experts.dense_layers if i < num_layers),
    )


def byte_tokenizer(arch: Architecture) -> Tokenizer:
    """A tokenizer with a token for every id of the shape: the 256 bytes, the mask, the family's end
    token, and tokens that no text has.

    Raises ParamsError for a vocabulary that is too small for that.
    """
    end = FAMILIES[arch.family].end_tokens[0]
    if arch.vocab_size < _NUM_BYTES + 2 or arch.mask_id < _NUM_BYTES:
        raise ParamsError(
            "the vocabulary is too small for a tokenizer of bytes",
            where="--width-divisor",
            got=f"{arch.vocab_size} ids, mask {arch.mask_id}",
            wanted=f"more than {_NUM_BYTES + 1} ids, the mask behind the bytes",
            do="use a smaller divisor",
        )
    end_id = _NUM_BYTES if arch.mask_id != _NUM_BYTES else _NUM_BYTES + 1
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: token_id for token_id, text in enumerate(alphabet)}
    for token_id in range(_NUM_BYTES, arch.vocab_size):
        names = {arch.mask_id: _MASK, end_id: end}
        vocabulary[names.get(token_id, f"<|{token_id}|>")] = token_id
    file = TokenizerFile(models.BPE(vocabulary, []))
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    file.decoder = decoders.ByteLevel()
    file.add_special_tokens([AddedToken(text, special=True) for text in (_MASK, end)])
    return Tokenizer(file, (end_id,), arch.mask_id, None)


def write_random_checkpoint(
    arch: Architecture, tokenizer: Tokenizer, dtype: torch.dtype, seed: int, directory: Path
) -> None:
    """Writes a checkpoint directory in the family's published format: weights of a normal
    distribution with deviation 0.02, biases of zero, norms of one."""
    generator = torch.Generator().manual_seed(seed)
    policy: Policy = empty_model(arch)
    for module in policy.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            values = torch.empty(parameter.shape, dtype=dtype)
            if parameter.dim() == 2:
                values.normal_(0.0, 0.02, generator=generator)
            else:
                values.fill_(0.0 if name == "bias" else 1.0)
            setattr(module, name, nn.Parameter(values))
    policy.tie()
    save_checkpoint(policy, tokenizer, directory)


def write_random_origin(
    arch: Architecture,
    model_type: str,
    tokenizer: Tokenizer,
    dtype: torch.dtype,
    seed: int,
    directory: Path,
) -> None:
    """Writes an autoregressive checkpoint directory, which names no mask, with random weights as
    `write_random_checkpoint` draws them.

    arch: shape of what it is adapted to. model_type: that of its config.json.
    """
    family = FAMILIES[origin_family({"model_type": model_type})]
    write_random_checkpoint(replace(arch, family=family.name), tokenizer, dtype, seed, directory)
    config = read_json(directory / "config.json")
    for key in ("auto_map", ATTENTION_KEY, family.config_keys["mask_id"]):
        config.pop(key, None)
    config |= {"model_type": model_type, "architectures": [AUTOREGRESSIVE[model_type]]}
    write_json(directory / "config.json", config)
    names = read_json(directory / "tokenizer_config.json")
    names.pop("mask_token")
    write_json(directory / "tokenizer_config.json", names)


def made_up_tasks(task_set: str, reductions: Reductions) -> list[Task]:
    """A training and a test problem of a set, with a worked solution. Prompt and solution are as
    long as they may be, a byte a token."""
    tasks = []
    for split in ("train", "test"):
        prompt = f"{split} {task_set} ".ljust(reductions.prompt_tokens, "+")
        task = Task(
            task_id=f"{task_set}/{split}",
            task_set=task_set,
            kind="text",
            split=split,
            difficulty=1,
            prompt=prompt[: reductions.prompt_tokens],
            answer="1",
            solution="1".rjust(reductions.response_tokens - 1, "+"),
        )
        tasks.append(task)
    return tasks


def reduce_params(params: Params, reductions: Reductions) -> Params:
    """The params with every stage and kind of stage, and one task, group and step in each.

    Left out: processes (`launch`), judges, process rewards and parts of the reward, which do not
    depend on the model's shape. All groups count, since a model of random weights solves nothing.
    """
    tree = params.model_dump(mode="json")
    base = tree["base"]
    base["token_ids"] = dict.fromkeys(base["token_ids"])  # ids of the true vocabulary
    base["model"]["num_layers"] = min(base["model"]["num_layers"], reductions.num_layers)
    tree["launch"] |= {"ranks": 1, "hosts": [], "zero": 0, "offload": False}
    if not torch.cuda.is_available():
        tree["compute"]["device"] = "cpu"
    _reduce_training(base["train"], reductions)
    adapt = base.get("adapt")
    if adapt is not None:
        _reduce_adapt(adapt, reductions)
    for sft in tree["sft"].values():
        _reduce_training(sft, reductions)
    for rl in tree["rl"].values():
        _reduce_rl(rl, reductions)
    traces = tree["traces"]
    traces["group_size"] = _GROUP_SIZE
    _reduce_sampler(traces["sampler"], reductions)
    traced = {*traces["preferred"], *traces["rollouts"]}
    traces["preferred"] = dict.fromkeys(sorted(traced), 1)
    traces["rollouts"] = {name: min(1, count) for name, count in traces["rollouts"].items()}
    tree["evaluation"] |= {"num_problems": 1, "num_samples": 1, "batch_size": 1, "bootstrap": 1}
    tree["evaluation"].pop("samples", None)
    _reduce_modes(tree["evaluation"]["modes"], reductions)
    for evaluation in tree["evaluate"].values():
        _reduce_sampler(evaluation["sampler"], reductions)
    return parse_params(tree, where="rehearsal")


def _reduce_training(training: dict[str, Any], reductions: Reductions) -> None:
    training["num_steps"] = 1
    _reduce_batches(training, reductions)


def _reduce_adapt(adapt: dict[str, Any], reductions: Reductions) -> None:
    """A step in each phase."""
    for phase in adapt["phases"]:
        phase["tokens"] = 1
    _reduce_batches(adapt, reductions)


def _reduce_batches(training: dict[str, Any], reductions: Reductions) -> None:
    length = reductions.prompt_tokens + reductions.response_tokens
    training.update(save_every=1, max_length=length)
    training["batch_size"] = min(training["batch_size"], _BATCH_SIZE)
    training["micro_batch_tokens"] = _micro_batch(training["micro_batch_tokens"], reductions)
    if training["row_tokens"] is not None:
        training["row_tokens"] = min(training["row_tokens"], training["micro_batch_tokens"])


def _reduce_rl(rl: dict[str, Any], reductions: Reductions) -> None:
    phases = rl["phases"] or []
    rl.update(
        iterations=max(1, len(phases)),
        groups=1,
        group_size=_GROUP_SIZE,
        max_sampled_groups=1,
        min_groups=1,
        pass_rate=[0.0, 1.0],
        reward={"correct": 1.0},
        process=None,
        updates=1,
        epochs=min(rl["epochs"], 2),
        save_every=1,
    )
    rl["micro_batch_tokens"] = _micro_batch(rl["micro_batch_tokens"], reductions)
    if rl["group_tokens"] is not None:
        rl["group_tokens"] = min(rl["group_tokens"], rl["micro_batch_tokens"])
    if rl["value"] is not None:
        rl["value"].update(every=1, updates=1)
    _reduce_sampler(rl["sampler"], reductions)
    held_out = {"every": rl["iterations"], "num_problems": 1, "num_samples": 1, "bootstrap": 1}
    rl["held_out"] |= held_out
    _reduce_modes(rl["held_out"]["modes"], reductions)
    for phase in phases:
        _reduce_phase(phase, reductions)


def _reduce_phase(phase: dict[str, Any], reductions: Reductions) -> None:
    phase.update(iterations=1, until=None, pass_rate=None)
    for key in ("groups", "max_sampled_groups", "min_groups"):
        phase[key] = None
    if phase["micro_batch_tokens"] is not None:
        phase["micro_batch_tokens"] = _micro_batch(phase["micro_batch_tokens"], reductions)
    if phase["sampler"] is not None:
        _reduce_changes(phase["sampler"], reductions)


def _micro_batch(micro_batch_tokens: int, reductions: Reductions) -> int:
    """So many tokens that several rows fit, and few enough that micro-batches are full."""
    length = reductions.prompt_tokens + reductions.response_tokens
    return min(micro_batch_tokens, _BATCH_SIZE * length)


def _reduce_sampler(sampler: dict[str, Any], reductions: Reductions) -> None:
    sampler.update(
        max_prompt_tokens=reductions.prompt_tokens + len(sampler["opening"].encode()),
        max_new_tokens=reductions.response_tokens,
        max_rows=min(sampler["max_rows"], _MAX_ROWS),
        cache_tokens=None,
    )


def _reduce_modes(modes: dict[str, dict[str, Any]], reductions: Reductions) -> None:
    for mode in modes.values():
        mode["num_samples"] = None
        _reduce_changes(mode, reductions)


def _reduce_changes(changes: dict[str, Any], reductions: Reductions) -> None:
    """Changes of a sampler; a key that is None changes nothing."""
    for key in ("max_new_tokens", "max_rows", "max_prompt_tokens", "cache_tokens"):
        if key in changes:
            changes[key] = None
