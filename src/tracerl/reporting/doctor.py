"""What this machine has, and what a params file will need of it before anything is launched.

Parameters, optimizer state and key/value caches are counted exactly; activations and logits are
estimated from what a pass keeps, so a total is a guide and not a promise. Allocator overhead (10 to
20% on CUDA) is not in it, nor what Python and its libraries take.

Forwards and FLOPs (models/cost.py) are those of a run in which everything is as large as its limits
allow: every prompt and response as long as they may be, one token a step where the order is
dynamic, every sampled group needed. A run takes less, and stages write down how much (`measured`).
All of it is for one process: `launch` takes off what it says.
"""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tracerl.errors import ParamsError
from tracerl.models.attention import flash_installed
from tracerl.models.conversion import converted_architecture
from tracerl.models.cost import training_state_bytes
from tracerl.models.directory import read_json
from tracerl.models.families import FAMILIES
from tracerl.models.lora import Adapters, LoraExpertLinear, LoraLinear, adapt_layers
from tracerl.models.nf4 import packed_bytes
from tracerl.models.policy import empty_model, shape_architecture
from tracerl.models.published_config import architecture_of, read_config
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.transformer import LOGITS_AT_ONCE, Architecture
from tracerl.models.weights import DTYPES, stored_dtype
from tracerl.reporting.work import (
    Work,
    evaluation_work,
    rl_work,
    sampling_work,
    sft_work,
    trace_work,
)
from tracerl.rewards.judges.server import server_state
from tracerl.rewards.verify.control_groups import accounting
from tracerl.sampling.caches import cache_for
from tracerl.settings.base import Section
from tracerl.settings.models import Compute, Lora
from tracerl.settings.params import Params
from tracerl.settings.rewards import Judge, ModelJudge, ServerJudge, StepsJudge
from tracerl.settings.rounds import RlRound
from tracerl.settings.sampling import Sampler
from tracerl.settings.training import Training
from tracerl.training.policy_update import check_rows, longest_rl_row
from tracerl.training.sft import longest_sft_row
from tracerl.training.trainer import check_trainable

_PACKAGES = (
    "tracerl",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "duckdb",
    "pyarrow",
    "dvc",
    "prefect",
    "great-expectations",
    "math-verify",
    "deepspeed",
    "flash-attn",
    "peft",
    "reasoning-gym",
    "datasets",
)


@dataclass(frozen=True)
class Need:
    """Bytes a stage needs at its peak. state: gradients and optimizer moments. passes: activations,
    logits and caches.

    forwards, flops: of all its passes, at most."""

    stage: str
    weights: int
    state: int
    passes: int
    forwards: int = 0
    flops: float = 0.0

    @property
    def total(self) -> int:
        return self.weights + self.state + self.passes


def machine() -> list[tuple[str, str]]:
    """(what, value) of the machine, its devices, the attention back ends and the packages."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rows = [
        ("python", platform.python_version()),
        ("system", platform.platform()),
        ("processors", str(os.cpu_count())),
    ]
    rows.append(("memory", readable(memory)))
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        rows.append(
            (
                f"cuda:{i}",
                f"{torch.cuda.get_device_name(i)}, {readable(free)} free of {readable(total)}",
            )
        )
    if not torch.cuda.is_available():
        rows.append(("cuda", "none"))
    rows.append(("attention sdpa", "everywhere"))
    rows.append(
        (
            "attention flex",
            "training and sampling"
            if torch.cuda.is_available()
            else "forward passes only, slow: no CUDA",
        )
    )
    flash = "installed" if torch.cuda.is_available() else "installed, but there is no CUDA"
    missing = "not installed: pip install --no-build-isolation 'tracerl[flash]'"
    rows.append(("attention flash", flash if flash_installed() else missing))
    rows.append(("programs' use counted by", accounting()))
    for name in _PACKAGES:
        rows.append((name, _version(name)))
    return rows


def judges(
    params: Params, root: Path, environment: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """(name, kind, state in words) of every judge of the params. Servers are asked whether they are
    there."""
    rows: list[tuple[str, str, str]] = []
    for name, judge in params.verification.judges.items():
        state = _JUDGE_STATES[type(judge)](judge, root, environment)
        rows.append((name, judge.kind, state))
    return rows


def _steps_judge_state(judge: StepsJudge, root: Path, environment: Mapping[str, str]) -> str:
    return "ready"


def _model_judge_state(judge: ModelJudge, root: Path, environment: Mapping[str, str]) -> str:
    size = _judge_bytes(judge, root)
    return f"{judge.path}: {readable(size) if size else 'no safetensors there'}"


def _server_judge_state(judge: ServerJudge, root: Path, environment: Mapping[str, str]) -> str:
    variable = judge.api_key_variable
    key = None if variable is None else environment.get(variable)
    state = f"{judge.url} {server_state(judge, key)}"
    return state if variable is None or key else f"{state}; {variable} is not set"


_JUDGE_STATES: dict[type[Section], Callable[[Any, Path, Mapping[str, str]], str]] = {
    StepsJudge: _steps_judge_state,
    ModelJudge: _model_judge_state,
    ServerJudge: _server_judge_state,
}


def memory_limit(compute: Compute) -> int:
    """Bytes of the memory that models of these params live in: the first CUDA device's, or the
    machine's."""
    if compute.device != "cpu" and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info(0)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def needs(params: Params, root: Path, config: Path | None = None) -> list[Need]:
    """What every stage with a model needs.

    root: where a relative base.path starts. config: a published config.json to take the shape from
    instead of base.path's. Raises CheckpointError if base.path is no checkpoint directory.
    """
    return list(stage_needs(params, root, *shape_of(params, root, config)))


def expert_memory(params: Params, root: Path, config: Path | None = None) -> str:
    """What the experts of a run's model take, in words; empty for a model without experts. root,
    config: as of `needs`."""
    arch, dtype = shape_of(params, root, config)
    experts = arch.experts
    if experts is None:
        return ""
    num_layers = arch.num_layers - len(experts.dense_layers)
    size = num_layers * experts.num_experts * 3 * arch.hidden_size * experts.intermediate_size
    whole = _num_parameters(arch, None)
    return (
        f"experts: {readable(size * dtype.itemsize)} of the weights' "
        f"{readable(whole * dtype.itemsize)}, in {num_layers} of {arch.num_layers} layers; a token "
        f"goes through {experts.per_token} of {experts.num_experts} and its layer reads them alone"
    )


def refusals(params: Params, root: Path, config: Path | None = None) -> dict[str, str]:
    """Training stages that will end with an error before their first step, whatever the data, with
    the error. root, config: as of `needs`."""
    arch, dtype = shape_of(params, root, config)
    stages = [f"sft@{name}" for name in params.sft] + [f"rl@{name}" for name in params.rl]
    if params.base.path is None:
        stages.insert(0, "base")
    errors = {}
    for stage in stages:
        try:
            check_trainable(dtype)
            kind, _, name = stage.partition("@")
            for phase in params.rl[name].phase_rounds if kind == "rl" else []:
                check_rows(phase, FAMILIES[arch.family], stage)
        except ParamsError as error:
            errors[stage] = str(error)
    return errors


def measured(root: Path) -> dict[str, dict[str, int]]:
    """By stage, what the last run of each wrote down: peak_bytes of the process, forwards, tokens,
    predicted, flops."""
    figures = {}
    for path in sorted((root / "logs" / "measured").glob("*.json")):
        figures[path.stem] = json.loads(path.read_text("utf-8"))
    return figures


def readable(size: int) -> str:
    """Bytes in the unit that suits them."""
    for unit, power in (("GB", 1e9), ("MB", 1e6)):
        if size >= power:
            return f"{size / power:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def stage_needs(
    params: Params, root: Path, arch: Architecture, dtype: torch.dtype
) -> Iterator[Need]:
    """What every stage with a model needs for a model of this shape, in the stages' order."""
    for need in _memory(params, root, arch, dtype):
        work = _work(params, need.stage, arch)
        yield replace(need, forwards=work.forwards, flops=work.flops)


def _work(params: Params, stage: str, arch: Architecture) -> Work:
    """The passes of a stage."""
    kind, _, name = stage.partition("@")
    if kind == "base":
        total = Work()
        for training in _base_trainings(params):
            total += sft_work(training, arch)
        return total
    if kind == "sft":
        return sft_work(params.sft[name], arch)
    if kind == "rl":
        round_ = params.rl[name]
        largest = rl_work(round_, arch)
        for phase in round_.phase_rounds:
            work = rl_work(phase, arch)
            largest = Work(max(largest.forwards, work.forwards), max(largest.flops, work.flops))
        return largest
    if kind == "evaluate":
        evaluation, common = params.evaluate[name], params.evaluation
        num_responses = {}
        for mode in common.modes:
            samples = sum(common.samples_of(task_set, mode) for task_set in evaluation.tasks)
            num_responses[mode] = common.num_problems * samples
        return evaluation_work(evaluation.sampler, common.modes, num_responses, arch)
    traces = params.traces
    own = sampling_work(traces.sampler, arch, sum(traces.rollouts.values()) * traces.group_size)
    return own + trace_work(traces, arch)


def _base_trainings(params: Params) -> list[Training]:
    """The training of a new model, the phases of an adaptation, or nothing for an import."""
    base = params.base
    if base.path is None:
        return [base.train]
    return [] if base.adapt is None else base.adapt.phase_trainings(base.adapt.max_length)


def _memory(params: Params, root: Path, arch: Architecture, dtype: torch.dtype) -> Iterator[Need]:
    weights = _num_parameters(arch, None) * dtype.itemsize
    checkpoint_layers = params.compute.checkpoint_layers
    base = Need("base", weights, 0, 0)
    for training in _base_trainings(params):
        need = _training("base", training, None, arch, dtype, checkpoint_layers)
        base = max(base, need, key=lambda need: need.total)
    yield base
    judging = _judging(params, root, list(params.traces.rollouts), [], False)
    yield Need("traces", weights + judging, 0, _sampling(params.traces.sampler, arch, dtype))
    for name, sft in params.sft.items():
        yield _training(f"sft@{name}", sft, sft.lora, arch, dtype, checkpoint_layers)
    for name, rl in params.rl.items():
        phases = []
        for phase in rl.phase_rounds:
            phases.append(_training(f"rl@{name}", phase, rl.lora, arch, dtype, checkpoint_layers))
        need = max(phases, key=lambda need: need.passes)
        spared = _bytes_spared(arch, rl.lora, dtype)
        reference = weights - spared if rl.kl_to != "iteration" else 0
        value, value_state = _value_model(arch, rl.lora) if rl.value is not None else (0, 0)
        asked = [rl.process.judge] if rl.process is not None else []
        drawn: list[str] = []
        for phase in rl.phase_rounds:
            drawn += phase.tasks
        judging = _judging(
            params, root, [*drawn, *(rl.held_out.tasks or [])], asked, "judge" in rl.reward
        )
        own, state = (
            need.weights + reference + value * dtype.itemsize + judging,
            need.state + training_state_bytes(value_state, dtype),
        )
        sampling = max(_sampling(one.sampler, arch, dtype) for one in (rl, *rl.phase_rounds))
        yield Need(need.stage, own, state, max(need.passes, sampling))
    for name, one in params.evaluate.items():
        judging = _judging(params, root, one.tasks, [], False)
        yield Need(f"evaluate@{name}", weights + judging, 0, _sampling(one.sampler, arch, dtype))


def _judging(
    params: Params, root: Path, sets: Sequence[str], asked: Sequence[str], part: bool
) -> int:
    """Bytes of the local judges of a stage: those asked by name, and that of outcomes if a task set
    or a part of the reward needs it."""
    verification = params.verification
    names = set(asked)
    needs_judge = part or any(params.tasks.sets[name].needs_judge for name in sets)
    if verification.judge is not None and needs_judge:
        names.add(verification.judge)
    total = 0
    for name, judge in verification.judges.items():
        if name in names:
            total += _judge_bytes(judge, root)
    return total


def _judge_bytes(judge: Judge, root: Path) -> int:
    """Bytes of a local judge's weights as they are stored; 0 for other kinds and where there are
    none."""
    directory = judge.checkpoint_path
    if directory is None:
        return 0
    return sum(path.stat().st_size for path in (root / directory).glob("*.safetensors"))


def shape_of(
    params: Params, root: Path, config: Path | None = None
) -> tuple[Architecture, torch.dtype]:
    """Shape and precision of the models of a run; `needs` says what root and config are."""
    dtype = params.compute.dtype
    if params.base.path is None:
        arch = shape_architecture(params.base.model, character_tokenizer())
        return arch, torch.float32 if dtype == "stored" else DTYPES[dtype]
    directory = root / params.base.path if config is None else config.parent
    published = read_config(directory) if config is None else read_json(config)
    if params.base.adapt is not None:
        arch = converted_architecture(published, params.base.adapt, directory)
    else:
        arch = architecture_of(published, directory, params.base.model.family)
    return arch, stored_dtype(published, directory) if dtype == "stored" else DTYPES[dtype]


def _num_parameters(arch: Architecture, lora: Lora | None) -> int:
    """All parameters, or with `lora` those that are trained."""
    model = empty_model(arch)
    with torch.device("meta"):
        if lora is not None:
            adapt_layers(model, Adapters(settings=lora, base=Path(), base_hash=""))
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _bytes_spared(arch: Architecture, lora: Lora | None, dtype: torch.dtype) -> int:
    """Bytes that weights in 4 bits take less than in `dtype`."""
    if lora is None or lora.quantise is None:
        return 0
    model = empty_model(arch)
    with torch.device("meta"):
        adapt_layers(model, Adapters(settings=lora, base=Path(), base_hash=""))
    spared = 0
    for layer in model.modules():
        if isinstance(layer, LoraLinear | LoraExpertLinear):
            count = layer.weight.numel()
            spared += count * dtype.itemsize - packed_bytes(count)
    return spared


def _value_model(arch: Architecture, lora: Lora | None) -> tuple[int, int]:
    """All parameters of a value model, which has a scalar head for the LM head, and those that are
    trained."""
    vocabulary = 0 if arch.tie_embeddings else arch.vocab_size * arch.hidden_size
    head, adapters = arch.hidden_size + 1, _num_parameters(arch, lora) if lora is not None else 0
    whole = _num_parameters(arch, None) - vocabulary + head + adapters
    return whole, whole if lora is None else adapters + head


def _training(
    stage: str,
    settings: Training | RlRound,
    lora: Lora | None,
    arch: Architecture,
    dtype: torch.dtype,
    checkpoint_layers: bool,
) -> Need:
    """Gradients, moments and masters of every trained parameter; what a micro-batch, or a single
    row if that is longer, keeps for its backward pass."""
    trained, whole = _num_parameters(arch, lora), _num_parameters(arch, None)
    spared = _bytes_spared(arch, lora, dtype)
    weights = (whole + (trained if lora is not None else 0)) * dtype.itemsize - spared
    tokens = max(settings.micro_batch_tokens, _longest_row(settings, arch))
    # float32 logits, their log-softmax and its gradient, were every token predicted, in parts
    logits = min(tokens * arch.vocab_size, LOGITS_AT_ONCE) * 4 * 3
    return Need(
        stage,
        weights,
        training_state_bytes(trained, dtype),
        # Before any pass, the weights are loaded as they are stored.
        max(spared, tokens * _activations(arch, checkpoint_layers) * dtype.itemsize + logits),
    )


def _longest_row(settings: Training | RlRound, arch: Architecture) -> int:
    family = FAMILIES[arch.family]
    if isinstance(settings, RlRound):
        return longest_rl_row(settings, family)
    return longest_sft_row(settings, family)


def _activations(arch: Architecture, checkpoint_layers: bool) -> int:
    """Numbers that all layers keep of one token for the backward pass: inputs of norms and
    projections, queries, keys, values, and the three of the MLP. With `checkpoint_layers` the
    inputs of all layers, and the rest of the one that is computed again."""
    heads = (2 * arch.num_heads + 2 * arch.num_kv_heads) * arch.head_dim
    of_layer = 6 * arch.hidden_size + 2 * heads + _mlp_activations(arch, 4)
    if checkpoint_layers:
        return arch.num_layers * arch.hidden_size + of_layer
    return arch.num_layers * of_layer


def _mlp_activations(arch: Architecture, num_inner: int) -> int:
    """Numbers of one token in the larger kind of MLP: `num_inner` of the inner width, and of a
    mixture of experts also a copy of input and output for each expert of the token."""
    dense = num_inner * arch.intermediate_size
    experts = arch.experts
    if experts is None:
        return dense
    inner = num_inner * (experts.per_token * experts.intermediate_size + experts.shared_size)
    return max(dense, inner + 2 * experts.per_token * arch.hidden_size + experts.num_experts)


def _sampling(settings: Sampler, arch: Architecture, dtype: torch.dtype) -> int:
    """Keys and values of all rows, or the activations of whole canvases without a cache; and the
    distributions tokens are drawn from."""
    length = settings.max_prompt_tokens + settings.max_new_tokens
    cached = cache_for(FAMILIES[arch.family].attention, settings).stores_keys
    rows = (
        settings.max_rows
        if not cached or settings.cache_tokens is None
        else max(1, min(settings.max_rows, settings.cache_tokens // length))
    )
    passed = rows * (settings.block_size if cached else length)
    one_layer = passed * (4 * arch.hidden_size + _mlp_activations(arch, 3)) * dtype.itemsize
    keys = (
        rows * length * arch.num_layers * 2 * arch.num_kv_heads * arch.head_dim * dtype.itemsize
        if cached
        else 0
    )
    distributions = rows * settings.block_size * arch.vocab_size * (3 * 4 + 2 * 8)
    return one_layer + keys + distributions


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
