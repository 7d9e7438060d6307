"""The params file as frozen records: strict, complete, with no default for a number that changes results.

`load_params` is the one reader. Every key must be known and of the right type; what is wrong is reported with its path, the value got
and the keys that exist. Checks that need two keys at once (a block size that does not divide, a round without its parent) are here too.
"""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tracerl.errors import ParamsError


class Section(BaseModel):
    """A part of the params tree."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


# Names become file names and stage names.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Shares = Annotated[dict[str, Annotated[float, Field(gt=0.0)]], Field(min_length=1)]
Fraction = Field(ge=0.0, le=1.0)
Positive = Field(gt=0)


class TaskSet(Section):
    """A set of problems: generated (`source` names a generator), from reasoning-gym (`source: gym`, `task` names one of its tasks), or read
    from a file (`source: file`): the user's own, or one that `tracerl data add` wrote."""

    source: Literal["sums", "arithmetic", "countdown", "sudoku", "gym", "file"]
    difficulty: tuple[int, int] | None = None
    num_train: int = Field(ge=0)
    num_test: int = Field(ge=0)
    path: str | None = None
    task: str | None = None

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> Self:
        if self.source == "file" and not self.path:
            raise ValueError("source 'file' needs a path to a .jsonl or .parquet file with columns prompt, answer and optionally solution")
        if (self.source == "gym") != (self.task is not None):
            raise ValueError("source 'gym' and no other needs task, the name of a reasoning-gym task")
        if self.source not in ("file", "gym") and (
            self.difficulty is None or self.difficulty[0] > self.difficulty[1] or self.difficulty[0] < 1
        ):
            raise ValueError("a generated set needs difficulty: [lowest, highest], at least 1")
        highest = {"countdown": 4, "sudoku": 12}.get(self.source)
        if highest and self.difficulty and (self.difficulty[1] > highest or (self.source == "countdown" and self.difficulty[0] < 2)):
            raise ValueError("difficulty of countdown is 2 to 4 numbers, of sudoku 1 to 12 blanks")
        return self


class Tasks(Section):
    """held_out: the share of all possible problems, by a hash of the problem, that belong to the test split."""

    held_out: float = Field(gt=0.0, lt=1.0)
    sets: dict[Name, TaskSet]


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
            raise ValueError("num_heads must be a multiple of num_kv_heads, and head_dim even (rotary positions pair its halves)")
        return self


class Optimizer(Section):
    """AdamW. warmup: steps of linear rise. decay: the last share of steps over which the rate falls linearly to zero."""

    lr: float = Field(gt=0.0)
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]]
    weight_decay: float = Field(ge=0.0)
    clip_norm: float = Field(gt=0.0)
    warmup: int = Field(ge=0)
    decay: float = Fraction


class Sampler(Section):
    """How responses are sampled; see sampling/sampler.py.

    max_new_tokens: response limit, rounded up to whole blocks. max_prompt_tokens: tasks with a longer prompt are left out and counted.
    steps_per_block: of static sampling. confidence: of the drawn token, under the raw or the tempered distribution.
    temperature 0 takes the most likely token. top_k 0 and top_p 1 are off. max_rows: responses sampled at once.
    """

    block_size: int = Positive
    steps_per_block: int = Positive
    remasking: Literal["static", "dynamic", "sequential"]
    threshold: float = Fraction
    confidence: Literal["raw", "tempered"]
    temperature: float = Field(ge=0.0)
    top_k: int = Field(ge=0)
    top_p: float = Field(gt=0.0, le=1.0)
    max_prompt_tokens: int = Positive
    max_new_tokens: int = Positive
    cache: bool
    max_rows: int = Positive

    @model_validator(mode="after")
    def _block_is_finished(self) -> Self:
        if self.steps_per_block > self.block_size:
            raise ValueError(f"steps_per_block {self.steps_per_block} is larger than block_size {self.block_size}")
        return self


class Training(Section):
    """Supervised training on trajectories; see training/sft.py.

    objective: "random" (fresh noise, per block or per sequence) or "trace" (views of the step map).
    noise: range of the noise level t. weighting: "inverse_t" or "uniform". block_sizes: block size -> share of the batches.
    tasks: task set -> share of the examples.
    """

    objective: Literal["random", "trace"]
    noise: tuple[float, float]
    weighting: Literal["inverse_t", "uniform"]
    shrink: int = Positive
    block_sizes: Annotated[dict[Annotated[int, Field(gt=0)], Annotated[float, Field(gt=0.0)]], Field(min_length=1)]
    tasks: Shares
    num_steps: int = Positive
    batch_size: int = Positive
    micro_batch_tokens: int = Positive
    max_length: int = Positive
    save_every: int = Positive
    optimizer: Optimizer

    @model_validator(mode="after")
    def _noise_is_a_range(self) -> Self:
        low, high = self.noise
        if not 0.0 <= low < high <= 1.0:
            raise ValueError(f"noise must be a range inside [0, 1], got {self.noise}")
        return self


class SftRound(Training):
    """Supervised fine-tuning from checkpoint `init` on `data`: "tasks" (the task sets' worked solutions) or "traces" (with step maps)."""

    init: str
    data: Literal["tasks", "traces"]

    @model_validator(mode="after")
    def _traces_have_steps(self) -> Self:
        if self.objective == "trace" and self.data != "traces":
            raise ValueError("objective 'trace' needs data 'traces': worked solutions have no step map")
        return self


class Base(Section):
    """The first checkpoint: imported from `path`, or, if that is null, a new `model` trained by `train` on worked solutions."""

    path: str | None
    model: ModelShape
    train: Training

    @model_validator(mode="after")
    def _solutions_have_no_steps(self) -> Self:
        if self.train.objective != "random":
            raise ValueError("train.objective must be 'random': worked solutions have no step map")
        return self


class Traces(Section):
    """Trace collection from `checkpoint` (algorithms: docs/algorithm.md section 4).

    preferred: known solutions per task set in the model's own preferred order; pick at a time, merged to `step_tokens` tokens a step.
    rollouts: tasks per set whose responses are sampled `group_size` times; verified ones are kept.
    """

    checkpoint: str
    block_size: int = Positive
    pick: int = Positive
    step_tokens: int = Positive
    preferred: dict[str, Annotated[int, Field(ge=0)]]
    rollouts: dict[str, Annotated[int, Field(ge=0)]]
    group_size: int = Positive
    batch_size: int = Positive
    sampler: Sampler

    @model_validator(mode="after")
    def _selections_merge(self) -> Self:
        if self.step_tokens % self.pick:
            raise ValueError(f"step_tokens {self.step_tokens} is not a multiple of pick {self.pick}")
        return self


class HeldOut(Section):
    """Held-out accuracy during a round: `num_problems` per task set at iteration 0 and every `every` iterations, in each mode."""

    every: int = Positive
    num_problems: int = Positive
    bootstrap: int = Positive
    remasking: Annotated[list[Literal["static", "dynamic", "sequential"]], Field(min_length=1)]


RewardPart = Literal[
    "correct", "boxed_format", "xml_count", "soft_format", "strict_format", "integer_answer", "right_numbers", "filled_blanks", "brevity"
]


class RlRound(Section):
    """TraceRL from checkpoint `init`; see training/rl.py.

    reward: weight of each part of the reward (rewards/parts.py); "correct" is the verifier's.
    groups: prompts per iteration after the filter, group_size: responses per prompt. max_sampled_groups: cap of the resampling.
    pass_rate: groups outside this range of pass rates are dropped. updates: optimizer steps per iteration.
    kl: estimator of the penalty, to the policy of the iteration's start or the initial one. block_size of the sampler may be smaller
    than train_block_size (enlargement). optimizer.warmup and decay count optimizer steps.
    """

    init: str
    method: Literal["tracerl"]
    reward: Annotated[Mapping[RewardPart, float], Field(min_length=1)]
    tasks: Shares
    iterations: int = Positive
    groups: int = Positive
    group_size: int = Field(ge=2)
    max_sampled_groups: int = Positive
    min_groups: int = Positive
    pass_rate: tuple[float, float]
    advantages: Literal["group", "mean", "rloo"]
    train_block_size: int = Positive
    shrink: int = Positive
    updates: int = Positive
    clip: tuple[Annotated[float, Field(gt=0.0, lt=1.0)], Annotated[float, Field(gt=0.0)]]
    kl: Literal["k1", "k2", "k3"]
    kl_to: Literal["iteration", "initial"]
    kl_weight: float = Field(ge=0.0)
    reduction: Literal["step", "token", "fixed"]
    micro_batch_tokens: int = Positive
    save_every: int = Positive
    held_out: HeldOut
    optimizer: Optimizer
    sampler: Sampler

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.train_block_size % self.sampler.block_size:
            raise ValueError(
                f"train_block_size {self.train_block_size} is not a multiple of the sampler's block_size {self.sampler.block_size}, "
                "so the views would not hold whole blocks of the rollout"
            )
        if self.sampler.top_k or self.sampler.top_p < 1.0:
            raise ValueError("RL on filtered samples is off-policy: set sampler.top_k to 0 and sampler.top_p to 1.0")
        if self.sampler.temperature <= 0:
            raise ValueError("RL needs sampler.temperature above 0")
        if self.max_sampled_groups < self.groups or self.min_groups > self.groups:
            raise ValueError("needs min_groups <= groups <= max_sampled_groups")
        if not 0.0 <= self.pass_rate[0] <= self.pass_rate[1] <= 1.0:
            raise ValueError(f"pass_rate must be a range inside [0, 1], got {self.pass_rate}")
        return self


class Verification(Section):
    """How responses are judged; see rewards/. None of it touches sums, arithmetic and text.

    num_workers: judging processes at once; no verdict depends on it. math_cpu_seconds: CPU time to compare two answers.
    sandbox: where model programs run; "unconfined" isolates nothing and must be chosen by name. The rest are a program's limits:
    CPU time a process, idle time a test, memory a process, processes, file size, open files, output a test.
    """

    num_workers: int = Positive
    math_cpu_seconds: float = Field(gt=0.0)
    sandbox: Literal["bubblewrap", "unconfined"]
    code_cpu_seconds: float = Field(gt=0.0)
    code_idle_seconds: float = Field(gt=0.0)
    memory_mib: int = Positive
    processes: int = Positive
    file_kib: int = Positive
    open_files: int = Field(ge=16)
    output_kib: int = Positive


class Evaluation(Section):
    """A checkpoint on task sets' test splits, once per remasking mode of `evaluation` (which replaces the sampler's own)."""

    checkpoint: str
    tasks: Annotated[list[str], Field(min_length=1)]
    sampler: Sampler


class EvaluationDefaults(Section):
    """What all evaluations share: problems per task set, responses per problem, problems per saved batch, bootstrap resamples."""

    num_problems: int = Positive
    num_samples: int = Positive
    batch_size: int = Positive
    remasking: Annotated[list[Literal["static", "dynamic", "sequential"]], Field(min_length=1)]
    bootstrap: int = Positive


class Report(Section):
    """num_traces: responses shown per round in the order in which they were unmasked."""

    num_traces: int = Field(ge=0)


class Params(Section):
    """A whole run. threads: OpenMP threads of every stage; part of what a result depends on, bit for bit.

    truncated_is_wrong: whether a response cut at the length limit is wrong whatever it holds: in traces, RL and every evaluation.
    """

    seed: int = Field(ge=0)
    threads: int = Positive
    truncated_is_wrong: bool
    verification: Verification
    tasks: Tasks
    base: Base
    traces: Traces
    sft: dict[Name, SftRound]
    rl: dict[Name, RlRound]
    evaluation: EvaluationDefaults
    evaluate: dict[Name, Evaluation]
    report: Report

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        checkpoints = {"base", *(f"sft@{name}" for name in self.sft), *(f"rl@{name}" for name in self.rl)}
        users: list[tuple[str, str, list[str]]] = [("traces", self.traces.checkpoint, [*self.traces.preferred, *self.traces.rollouts])]
        users += [(f"sft.{name}", item.init, list(item.tasks)) for name, item in self.sft.items()]
        users += [(f"rl.{name}", item.init, list(item.tasks)) for name, item in self.rl.items()]
        users += [(f"evaluate.{name}", item.checkpoint, item.tasks) for name, item in self.evaluate.items()]
        users += [("base.train", "base", list(self.base.train.tasks))]
        for place, checkpoint, sets in users:
            if checkpoint not in checkpoints:
                raise ValueError(f"{place}: no checkpoint {checkpoint!r}; there are {', '.join(sorted(checkpoints))}")
            for name in sets:
                if name not in self.tasks.sets:
                    raise ValueError(f"{place}: no task set {name!r}; there are {', '.join(sorted(self.tasks.sets))}")
        traced = {*self.traces.preferred, *self.traces.rollouts}
        for name, item in self.sft.items():
            if item.data == "traces" and not traced.issuperset(item.tasks):
                raise ValueError(f"sft.{name}: no traces are collected of {sorted(set(item.tasks) - traced)}; add them to traces")
        parents = {f"sft@{name}": item.init for name, item in self.sft.items()} | {
            f"rl@{name}": item.init for name, item in self.rl.items()
        }
        for name in parents:
            line = [name]
            while (parent := parents.get(line[-1])) is not None:
                if parent in line:
                    circle = " <- ".join([*line, parent])
                    raise ValueError(f"{parent.replace('@', '.')}: its parents go round in a circle ({circle})")
                line.append(parent)
        return self


def load_params(path: Path) -> Params:
    """Reads and checks a params file. Raises ParamsError naming every wrong key with its path."""
    try:
        data = YAML(typ="safe", pure=True).load(path.read_text())  # the parser DVC uses; it refuses a key given twice
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ParamsError("the params file cannot be read", where=str(path), got=error) from error
    return parse_params(data, where=str(path))


def parse_params(data: Any, where: str) -> Params:
    """Params from plain data, as YAML gives it."""
    try:
        # JSON rules of strictness: a list may be a tuple, a whole number a float, and nothing else is converted.
        return Params.model_validate_json(json.dumps(data, default=str))
    except TypeError as error:
        raise ParamsError("a key of the params is neither text nor number", where=where, got=error) from error
    except ValidationError as error:
        problems = "\n    ".join(_explain(problem, data) for problem in error.errors())
        raise ParamsError(f"{error.error_count()} wrong entries in the params", where=where, got="\n    " + problems,
                          do="correct these keys; src/tracerl/config.py says what each means") from None  # fmt: skip


def _explain(problem: Any, data: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"]) or "(whole file)"
    text = f"{path}: {problem['msg']}"
    if problem["type"] == "extra_forbidden":
        siblings = _known_keys(problem["loc"])
        near = difflib.get_close_matches(str(problem["loc"][-1]), siblings, n=1)
        return f"{path}: unknown key" + (f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(siblings)}")
    if problem["type"] != "value_error" and problem["type"] != "missing":
        text += f" (got {problem['input']!r})"
    return text


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    """Keys of the section that holds `location`."""
    section: Any = Params
    for part in location[:-1]:
        fields = getattr(section, "model_fields", None)
        annotation = fields[part].annotation if fields and part in fields else section
        arguments = [a for a in getattr(annotation, "__args__", ()) if isinstance(a, type) and issubclass(a, Section)]
        section = arguments[0] if arguments else annotation
    return list(getattr(section, "model_fields", {}))
