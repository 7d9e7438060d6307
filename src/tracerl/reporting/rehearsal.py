"""A rehearsal of a params file without the weights: one task goes through every stage, on a model
of the checkpoint's shape with random weights, in the precision of the params.

It shows before a run is paid for what the stages would refuse, and measures what they take. Layers,
widths and lengths may be smaller than the checkpoint's (rehearsal_inputs.py); figures are scaled to
all layers with what doctor.py counts. Responses of random weights are worth the same, so that their
gradients are zero; passes, memory and time are those of a training step.
"""

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import torch

from tracerl.errors import ParamsError, TracerlError
from tracerl.evaluation.evaluate import EvaluationPlan, evaluate
from tracerl.models.baselines import copy_baseline, load_policy
from tracerl.models.checkpoint import (
    apply_compute,
    device_of,
    load_checkpoint,
    load_for_training,
    policy_hash,
    save_checkpoint,
)
from tracerl.models.conversion import convert_checkpoint
from tracerl.models.cost import peak_memory, reset_peak_memory
from tracerl.models.directory import read_json
from tracerl.models.policy import Policy, new_model, shape_architecture
from tracerl.models.published_config import read_config
from tracerl.models.tokenizer import Tokenizer, character_tokenizer
from tracerl.models.transformer import Architecture
from tracerl.reporting.doctor import Need, memory_limit, readable, shape_of, stage_needs
from tracerl.reporting.rehearsal_inputs import (
    Reductions,
    byte_tokenizer,
    made_up_tasks,
    reduce_architecture,
    reduce_params,
    write_random_checkpoint,
    write_random_origin,
)
from tracerl.rollouts.responses import SampleContext, respond, rollouts_to_table
from tracerl.seeds import generator_for
from tracerl.settings.evaluation import samplers_of
from tracerl.settings.params import ORIGIN, Params
from tracerl.settings.training import Adapt, Training
from tracerl.store.files import read_trajectories, write_rollouts
from tracerl.training.adaptation import train_adaptation
from tracerl.training.collect import Judging
from tracerl.training.policy_update import check_rows
from tracerl.training.rl import TaskPools, load_models, train_rl
from tracerl.training.run_context import RunContext
from tracerl.training.scratch import Workspace
from tracerl.training.sft import task_trajectory, train_sft
from tracerl.training.traces import collect_solutions
from tracerl.types import Task, Trajectory

_PUBLISHED = "published"


@dataclass(frozen=True, kw_only=True)
class RehearsedStage:
    """What a rehearsal found out about a stage."""

    stage: str
    """Name of the stage."""
    refusal: str
    """The error that ended it; "" if it ran."""
    seconds: float
    """Time of its work, without loading and saving checkpoints; 0 if it was refused."""
    peak_bytes: int
    """The most memory it held at once, measured, beyond what the process had held before."""
    expected_bytes: int
    """What doctor.py expects of the rehearsed shape."""
    full_seconds: float
    """The time scaled to all layers, by floating-point operations; other reductions stay."""
    full_bytes: int
    """The measured peak scaled to all layers; other reductions stay."""
    run_bytes: int
    """What doctor.py expects of the params as they are."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What is rehearsed, and the shapes that its figures are scaled with."""

    params: Params
    """As they are, for a whole run."""
    small_params: Params
    """Of one task, with shorter sequences."""
    architecture: Architecture
    """The checkpoint's shape."""
    small_architecture: Architecture
    """With fewer layers and divided widths."""
    dtype: torch.dtype
    """Precision of the weights."""
    reductions: Reductions
    """What differs between the two."""
    origin: str | None
    """`model_type` of the autoregressive checkpoint that `base` adapts; None if it adapts none."""
    root: Path
    """Folder of the run, where relative paths of the params start."""

    @property
    def device(self) -> torch.device:
        return device_of(self.small_params.compute)

    @property
    def tokenizer(self) -> Tokenizer:
        if self.params.base.path is None:
            return character_tokenizer()
        return byte_tokenizer(self.small_architecture)

    def describe(self) -> str:
        """What is smaller than in a run, in a sentence or two."""
        reductions = self.reductions
        text = f"{self.small_architecture.num_layers} of {self.architecture.num_layers} layers"
        if reductions.width_divisor == 1:
            text += ", true widths"
        else:
            widths = []
            for name in ("vocab_size", "hidden_size", "intermediate_size", "num_heads"):
                sizes = f"{getattr(self.small_architecture, name):,}"
                widths.append(f"{name} {sizes} of {getattr(self.architecture, name):,}")
            text += f", widths divided by {reductions.width_divisor} ({', '.join(widths)})"
        return (
            f"{text}; prompts of {reductions.prompt_tokens} and responses of "
            f"{reductions.response_tokens} tokens; on {self.device} in "
            f"{str(self.dtype).removeprefix('torch.')}, one process; one task, group and optimizer "
            "step in each stage, without judges and process rewards"
        )


def plan_rehearsal(
    params: Params, root: Path, config: Path | None, reductions: Reductions
) -> Rehearsal:
    """Everything that a rehearsal needs to know before it starts.

    config: a published config.json to take the shape from; None for that of base.path. Raises
    CheckpointError for a shape that is not supported, ParamsError for reductions that do not fit it
    and where the rehearsal itself would need more memory than there is.
    """
    architecture, dtype = shape_of(params, root, config)
    small_params = reduce_params(params, reductions)
    if params.base.path is None and reductions.width_divisor != 1:
        raise ParamsError(
            "a new model is rehearsed in its true widths",
            where="--width-divisor",
            got=reductions.width_divisor,
            do="leave it out, or lower base.model",
        )
    rehearsal = Rehearsal(
        params=params,
        small_params=small_params,
        architecture=architecture,
        small_architecture=reduce_architecture(architecture, reductions),
        dtype=dtype,
        reductions=reductions,
        origin=_origin(params, root, config),
        root=root,
    )
    _check_fits(rehearsal)
    return rehearsal


def _origin(params: Params, root: Path, config: Path | None) -> str | None:
    if params.base.path is None or params.base.adapt is None:
        return None
    published = read_json(config) if config else read_config(root / params.base.path)
    return str(published["model_type"])


def rehearse(
    rehearsal: Rehearsal, folder: Path, on_stage: Callable[[str], None]
) -> list[RehearsedStage]:
    """Runs every stage in turn in an empty folder. on_stage is called with a stage's name before it
    starts. A stage that is refused leaves its checkpoint out, and stages that need it are said to
    be not run."""
    work = _Work(rehearsal=rehearsal, folder=folder)
    work.prepare()
    needs = {need.stage: need for need in _small_needs(rehearsal)}
    deep_needs = {need.stage: need for need in _deep_needs(rehearsal)}
    run_needs = stage_needs(
        rehearsal.params, rehearsal.root, rehearsal.architecture, rehearsal.dtype
    )
    run_bytes = {need.stage: need.total for need in run_needs}
    stages = []
    refused: set[str] = set()
    for stage, parents in _parents(rehearsal.small_params).items():
        on_stage(stage)
        missing = [parent for parent in parents if parent in refused]
        if missing:
            refusal, seconds, peak = f"not run: {missing[0]} was refused", 0.0, 0
        else:
            refusal, seconds, peak = _measure(work, stage)
        if refusal:
            refused.add(stage)
        need, deep = needs[stage], deep_needs[stage]
        depth = deep.flops / need.flops if need.flops else 1.0
        rehearsed = RehearsedStage(
            stage=stage,
            refusal=refusal,
            seconds=seconds,
            peak_bytes=peak,
            expected_bytes=need.total,
            full_seconds=seconds * depth,
            full_bytes=0 if refusal else peak + deep.total - need.total,
            run_bytes=run_bytes[stage],
        )
        stages.append(rehearsed)
    return stages


def _small_needs(rehearsal: Rehearsal) -> list[Need]:
    return list(
        stage_needs(
            rehearsal.small_params, rehearsal.root, rehearsal.small_architecture, rehearsal.dtype
        )
    )


def _deep_needs(rehearsal: Rehearsal) -> list[Need]:
    """As what is rehearsed, with all layers."""
    deep = replace(rehearsal.small_architecture, num_layers=rehearsal.architecture.num_layers)
    return list(stage_needs(rehearsal.small_params, rehearsal.root, deep, rehearsal.dtype))


def _check_fits(rehearsal: Rehearsal) -> None:
    """Raises ParamsError if the rehearsal would need more memory than there is."""
    limit = memory_limit(rehearsal.small_params.compute)
    largest = max(_small_needs(rehearsal), key=lambda need: need.total)
    if largest.total > limit:
        raise ParamsError(
            "the rehearsal needs more memory than there is",
            where=largest.stage,
            got=readable(limit),
            wanted=readable(largest.total),
            do="set --layers to 1, or divide the widths with --width-divisor",
        )


def _parents(params: Params) -> dict[str, list[str]]:
    """Every stage with the stages whose outputs it reads, parents first."""
    parents: dict[str, list[str]] = {"base": [], "traces": [params.traces.checkpoint]}
    for name, sft in params.sft.items():
        parents[f"sft@{name}"] = [sft.init, *(["traces"] if sft.data == "traces" else [])]
    for name, rl in params.rl.items():
        parents[f"rl@{name}"] = [rl.init]
    for name, evaluation in params.evaluate.items():
        parent = "base" if evaluation.checkpoint == ORIGIN else evaluation.checkpoint
        parents[f"evaluate@{name}"] = [parent]
    return {stage: parents[stage] for stage in TopologicalSorter(parents).static_order()}


def _measure(work: "_Work", stage: str) -> tuple[str, float, int]:
    """Runs a stage: the error that ended it or "", seconds of its work, bytes of its peak."""
    device = work.rehearsal.device
    _release_memory(device)
    reset_peak_memory(device)
    held = peak_memory(device)
    try:
        work.run(stage)
    except (TracerlError, MemoryError, torch.OutOfMemoryError) as error:
        return str(error) or "out of memory", 0.0, 0
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        return str(error).splitlines()[0], 0.0, 0
    return "", work.seconds, peak_memory(device) - held


def _release_memory(device: torch.device) -> None:
    """Gives memory that nothing uses back to the system, so that the next stage's is counted."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


@dataclass
class _Work:
    """The stages at work in a folder."""

    rehearsal: Rehearsal
    folder: Path
    seconds: float = 0.0

    @property
    def params(self) -> Params:
        return self.rehearsal.small_params

    def checkpoint(self, stage: str) -> Path:
        return self.folder / "checkpoints" / stage

    def prepare(self) -> None:
        """Writes the published directory that `base` imports."""
        if self.params.base.path is None:
            return
        arch, tokenizer = self.rehearsal.small_architecture, self.rehearsal.tokenizer
        dtype, seed, folder = self.rehearsal.dtype, self.params.seed, self.folder / _PUBLISHED
        if self.rehearsal.origin is None:
            write_random_checkpoint(arch, tokenizer, dtype, seed, folder)
        else:
            write_random_origin(arch, self.rehearsal.origin, tokenizer, dtype, seed, folder)

    def run(self, stage: str) -> None:
        kind, _, name = stage.partition("@")
        runs: dict[str, Callable[[], None]] = {
            "base": self.base,
            "traces": self.traces,
            "sft": lambda: self.sft(name),
            "rl": lambda: self.rl(name),
            "evaluate": lambda: self.evaluate(name),
        }
        self.seconds = 0.0
        runs[kind]()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measures `seconds`, up to the end of what a GPU was given to do."""
        start = time.perf_counter()
        yield
        if self.rehearsal.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - start

    def base(self) -> None:
        if self.params.base.path is None:
            tokenizer = character_tokenizer()
            shape = self.params.base.model
            policy = new_model(
                shape_architecture(shape, tokenizer), generator_for(self.params.seed, "base")
            )
            policy = apply_compute(policy, self.params.compute)
            self.train("base", policy, tokenizer, self.params.base.train, "tasks")
            return
        if self.params.base.adapt is not None:
            self.adapt(self.params.base.adapt)
            return
        with self.timed():
            policy, tokenizer = load_checkpoint(self.folder / _PUBLISHED)
            save_checkpoint(policy, tokenizer, self.checkpoint("base"))

    def adapt(self, adapt: Adapt) -> None:
        origin = self.folder / _PUBLISHED
        policy, tokenizer = convert_checkpoint(
            origin, adapt, self.params.base.token_ids, self.params.compute
        )
        examples = {}
        for name in adapt.data.shares:
            tasks = self.tasks(Path(name).stem, "train")
            examples[name] = [task_trajectory(task, tokenizer) for task in tasks]
        with self.timed():
            train_adaptation(policy, tokenizer, examples, adapt, self.context("base"))
        save_checkpoint(policy, tokenizer, self.checkpoint("base"))
        copy_baseline(origin, self.checkpoint(ORIGIN))

    def traces(self) -> None:
        settings = self.params.traces
        policy, tokenizer = load_checkpoint(
            self.checkpoint(settings.checkpoint), self.params.compute
        )
        context = SampleContext(
            stage="traces",
            iteration=0,
            policy_hash=policy_hash(policy),
            seed=self.params.seed,
            truncated_is_wrong=self.params.truncated_is_wrong,
        )
        with self.timed():
            for name in settings.preferred:
                train = self.tasks(name, "train")
                rollouts = collect_solutions(policy, tokenizer, train, settings, context, _ignore)
                if settings.rollouts.get(name):
                    rollouts += respond(
                        policy, tokenizer, train, settings.group_size, settings.sampler, context
                    )
                path = self.folder / "traces" / f"{name}.parquet"
                write_rollouts(path, rollouts_to_table(rollouts))

    def sft(self, name: str) -> None:
        settings = self.params.sft[name]
        stage = f"sft@{name}"
        policy, tokenizer = load_for_training(
            self.checkpoint(settings.init),
            self.params.compute,
            settings.lora,
            generator_for(self.params.seed, stage, "lora"),
        )
        self.train(stage, policy, tokenizer, settings, settings.data)

    def train(
        self, stage: str, policy: Policy, tokenizer: Tokenizer, settings: Training, data: str
    ) -> None:
        examples: dict[str, list[Trajectory]] = {}
        for name in settings.tasks:
            if data == "tasks":
                tasks = self.tasks(name, "train")
                examples[name] = [task_trajectory(task, tokenizer) for task in tasks]
            else:
                path = self.folder / "traces" / f"{name}.parquet"
                examples[name] = read_trajectories(path, verdict="correct")
        with self.timed():
            train_sft(policy, tokenizer, examples, settings, self.context(stage))
        save_checkpoint(policy, tokenizer, self.checkpoint(stage))

    def rl(self, name: str) -> None:
        settings = self.params.rl[name]
        stage = f"rl@{name}"
        models = load_models(
            self.checkpoint(settings.init),
            self.params.compute,
            settings,
            self.params.seed,
            stage,
        )
        for phase in self.rehearsal.params.rl[name].phase_rounds:
            check_rows(phase, models.policy.family, stage)
        drawn = {task_set for phase in settings.phase_rounds for task_set in phase.tasks}
        pools = TaskPools(
            train={task_set: self.tasks(task_set, "train") for task_set in sorted(drawn)},
            held_out={
                task_set: self.tasks(task_set, "test")
                for task_set in settings.held_out.tasks or settings.tasks
            },
        )
        judging = Judging(truncated_is_wrong=self.params.truncated_is_wrong)
        with self.timed():
            train_rl(models, pools, settings, judging, self.context(stage))
        models.save(self.checkpoint(stage), self.checkpoint(stage))

    def evaluate(self, name: str) -> None:
        settings = self.params.evaluate[name]
        policy, tokenizer = load_policy(self.checkpoint(settings.checkpoint), self.params.compute)
        modes = samplers_of(self.params.evaluation.modes, settings.sampler, "evaluation.modes")
        plan = EvaluationPlan(
            stage=f"evaluate@{name}",
            problems={task_set: self.tasks(task_set, "test") for task_set in settings.tasks},
            modes=modes,
            num_samples={task_set: dict.fromkeys(modes, 1) for task_set in settings.tasks},
            batch_size=self.params.evaluation.batch_size,
            policy_hash=policy_hash(policy),
            seed=self.params.seed,
            truncated_is_wrong=self.params.truncated_is_wrong,
            num_resamples=1,
        )
        with self.timed():
            evaluate(policy, tokenizer, plan, self.folder / "evals" / name, _ignore)

    def tasks(self, task_set: str, split: str) -> list[Task]:
        tasks = made_up_tasks(task_set, self.rehearsal.reductions)
        return [task for task in tasks if task.split == split]

    def context(self, stage: str) -> RunContext:
        return RunContext(
            seed=self.params.seed,
            stage=stage,
            workspace=Workspace(self.folder / "scratch" / stage),
            on_progress=_ignore,
        )


def _ignore(*progress: Any) -> None:
    """Nobody watches the progress of a rehearsed stage."""
