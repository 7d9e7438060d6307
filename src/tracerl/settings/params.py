"""The params file as frozen records: strict, complete, with no default for a number that changes
results.

`load_params` is the one reader. Defaults of a kind of section stand once, in `defaults`, and a
section says what differs (`resolve`). Every key must be known and of the right type; what is wrong
is reported with its path, the value got and the keys that exist. Checks that need two sections at
once (a round without its parent) are here too.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tracerl.errors import ParamsError
from tracerl.settings.base import Name, Positive, Section
from tracerl.settings.defaults import resolve
from tracerl.settings.evaluation import (
    Evaluation,
    EvaluationDefaults,
    Report,
    Validation,
    samplers_of,
)
from tracerl.settings.models import Compute, Launch
from tracerl.settings.problems import describe
from tracerl.settings.rewards import Judge, Verification
from tracerl.settings.rounds import RlRound
from tracerl.settings.tasks import Tasks
from tracerl.settings.training import Base, SftRound, Traces

_MAX_VALUES = 1_000_000
_MAX_DEPTH = 100
ORIGIN = "base/origin"
"""Name of the autoregressive checkpoint that an adaptation started from, for evaluations."""


class _Use(NamedTuple):
    """A place of the params that names a checkpoint and task sets."""

    place: str
    checkpoint: str
    sets: list[str]
    samples: bool  # whether responses are sampled there, which something must judge


class Params(Section):
    """A whole run."""

    seed: int = Field(ge=0)
    """Random seed of everything."""
    threads: int = Positive
    """OpenMP threads of every stage; part of what a result depends on, bit for bit."""
    truncated_is_wrong: bool
    """Whether a response cut at the length limit is wrong whatever it holds."""
    compute: Compute
    """Where models run."""
    launch: Launch
    """The processes of a stage."""
    verification: Verification
    """How responses are judged."""
    tasks: Tasks
    """Sets of problems."""
    base: Base
    """The first checkpoint."""
    traces: Traces
    """Trace collection."""
    sft: dict[Name, SftRound]
    """Rounds of supervised fine-tuning by name."""
    rl: dict[Name, RlRound]
    """Rounds of reinforcement learning by name."""
    evaluation: EvaluationDefaults
    """What all evaluations share."""
    evaluate: dict[Name, Evaluation]
    """Evaluations by name."""
    validation: Validation
    """What must be true of the data of a run."""
    report: Report
    """What the report shows."""

    @property
    def parents(self) -> dict[str, str]:
        """The checkpoint that each round starts from, by stage, in the order of the params."""
        parents = {}
        for name, sft in self.sft.items():
            parents[f"sft@{name}"] = sft.init
        for name, rl in self.rl.items():
            parents[f"rl@{name}"] = rl.init
        return parents

    def judge_of(self, name: str) -> Judge:
        """A judge of `verification.judges`."""
        return self.verification.judges[name]

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        trained = {"base", *self.parents}
        origin = set() if self.base.adapt is None else {ORIGIN}
        for use in self._uses():
            checkpoints = trained | origin if use.place.startswith("evaluate.") else trained
            if use.checkpoint not in checkpoints:
                raise ValueError(
                    f"{use.place}: no checkpoint {use.checkpoint!r}; "
                    f"there are {', '.join(sorted(checkpoints))}"
                )
            for name in use.sets:
                if name not in self.tasks.sets:
                    raise ValueError(
                        f"{use.place}: no task set {name!r}; "
                        f"there are {', '.join(sorted(self.tasks.sets))}"
                    )
        return self

    @model_validator(mode="after")
    def _samples_name_evaluated_sets(self) -> Self:
        evaluated: set[str] = set()
        for evaluation in self.evaluate.values():
            evaluated.update(evaluation.tasks)
        unknown = sorted(set(self.evaluation.samples or {}) - evaluated)
        if unknown:
            raise ValueError(
                f"evaluation.samples: no evaluation has the task set {', '.join(unknown)}; "
                f"evaluated are {', '.join(sorted(evaluated))}"
            )
        return self

    @model_validator(mode="after")
    def _modes_fit(self) -> Self:
        for name, evaluation in self.evaluate.items():
            try:
                samplers_of(self.evaluation.modes, evaluation.sampler, "evaluation.modes")
            except ValueError as error:
                raise ValueError(f"evaluate.{name}: {error}") from None
        return self

    @model_validator(mode="after")
    def _judges_exist(self) -> Self:
        named = [("verification.judge", self.verification.judge)]
        for name, rl in self.rl.items():
            if rl.process is not None:
                named.append((f"rl.{name}.process.judge", rl.process.judge))
        for place, judge in named:
            if judge is not None and judge not in self.verification.judges:
                known = ", ".join(sorted(self.verification.judges)) or "none"
                raise ValueError(f"{place}: no judge {judge!r}; verification.judges has {known}")
        return self

    @model_validator(mode="after")
    def _judge_decides_what_needs_one(self) -> Self:
        sets = []
        for use in self._uses():
            for name in use.sets:
                if use.samples and self.tasks.sets[name].needs_judge:
                    sets.append((use.place, name))
        parts = []
        for name, rl in self.rl.items():
            if "judge" in rl.reward:
                parts.append((f"rl.{name}.reward", "judge"))
        judge = self.verification.judge
        if judge is None:
            for place, name in sets + parts:
                raise ValueError(
                    f"{place}: {name} is decided by a judge: name one in verification.judge"
                )
        elif self.judge_of(judge).needs_step_rules:
            for place, name in sets:
                raise ValueError(
                    f"{place}: a judge of kind {self.judge_of(judge).kind!r} has no rule for "
                    f"{name}, whose source is {self.tasks.sets[name].source!r}"
                )
        return self

    @model_validator(mode="after")
    def _step_rules_exist(self) -> Self:
        for name, rl in self.rl.items():
            if rl.process is None or not self.judge_of(rl.process.judge).needs_step_rules:
                continue
            drawn: dict[str, None] = {}
            for part in rl.phase_rounds:
                drawn |= dict.fromkeys(part.tasks)
            without = [name for name in drawn if not self.tasks.sets[name].has_step_rules]
            if without or rl.process.separators is None:
                kind = self.judge_of(rl.process.judge).kind
                raise ValueError(
                    f"rl.{name}.process: a judge of kind {kind!r} needs separators and task sets "
                    f"whose steps have rules (got {without or 'chunk_tokens'})"
                )
        return self

    @model_validator(mode="after")
    def _sft_rounds_fit(self) -> Self:
        traced = {*self.traces.preferred, *self.traces.rollouts}
        for name, sft in self.sft.items():
            if sft.data == "traces" and not traced.issuperset(sft.tasks):
                raise ValueError(
                    f"sft.{name}: no traces are collected of {sorted(set(sft.tasks) - traced)}; "
                    "add them to traces"
                )
            if self.compute.checkpoint_layers and sft.lora is not None and sft.lora.dropout:
                raise ValueError(
                    f"sft.{name}: checkpoint_layers computes a layer twice, and its dropout would "
                    "not be the same"
                )
        return self

    @model_validator(mode="after")
    def _parents_end_at_the_base(self) -> Self:
        for name in self.parents:
            line = [name]
            while (parent := self.parents.get(line[-1])) is not None:
                if parent in line:
                    circle = " <- ".join([*line, parent])
                    raise ValueError(
                        f"{parent.replace('@', '.')}: its parents go round in a circle ({circle})"
                    )
                line.append(parent)
        return self

    def _uses(self) -> Iterator[_Use]:
        """Every place that names a checkpoint or task sets."""
        traces = self.traces
        yield _Use("traces", traces.checkpoint, list(traces.preferred), False)
        yield _Use("traces", traces.checkpoint, list(traces.rollouts), True)
        yield _Use("base.train", "base", list(self.base.train.tasks), False)
        if self.base.adapt is not None:
            yield _Use("base.adapt.data", "base", self.base.adapt.data.task_sets, False)
        for name, sft in self.sft.items():
            yield _Use(f"sft.{name}", sft.init, list(sft.tasks), False)
        for name, rl in self.rl.items():
            yield _Use(f"rl.{name}", rl.init, list(rl.tasks), True)
            for phase in rl.phases or ():
                yield _Use(f"rl.{name}.phases", rl.init, list(phase.tasks or ()), True)
            yield _Use(f"rl.{name}.held_out", rl.init, rl.held_out.tasks or [], True)
        for name, evaluation in self.evaluate.items():
            yield _Use(f"evaluate.{name}", evaluation.checkpoint, evaluation.tasks, True)


def load_params(path: Path) -> Params:
    """Reads and checks a params file. Raises ParamsError naming every wrong key with its path."""
    try:
        text = path.read_text("utf-8")
        _check_depth(text)
        # As DVC reads it; a key given twice is refused.
        data = YAML(typ="safe", pure=True).load(text)
        num_values = _count_values(data, {})
    except (OSError, ValueError, YAMLError) as error:
        raise ParamsError("the params file cannot be read", where=str(path), got=error) from error
    except RecursionError:
        raise ParamsError(
            "the params file cannot be read",
            where=str(path),
            got="brackets nested too deeply, or an anchor that holds itself",
        ) from None
    if num_values > _MAX_VALUES:
        raise ParamsError(
            "the params file cannot be read",
            where=str(path),
            got=f"{num_values:,} values once its anchors are written out",
            wanted=f"at most {_MAX_VALUES:,}",
            do="use fewer anchors, or lists without anchors in them",
        )
    return parse_params(data, where=str(path))


def _check_depth(text: str) -> None:
    """Raises RecursionError for brackets so deep that reading them takes seconds."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        if depth > _MAX_DEPTH:
            raise RecursionError


def _count_values(data: Any, sizes: dict[int, int]) -> int:
    """Values in plain data, a shared one each time it is used, without walking it twice.

    sizes: the counts of the maps and lists so far, by their id. Raises RecursionError for data that
    hold themselves.
    """
    if not isinstance(data, (dict, list)):
        return 1
    if id(data) not in sizes:
        parts = data.values() if isinstance(data, dict) else data
        sizes[id(data)] = 1 + sum(_count_values(part, sizes) for part in parts)
    return sizes[id(data)]


def parse_params(data: Any, where: str) -> Params:
    """Params from plain data, as YAML gives it, with or without `defaults`."""
    try:
        tree = resolve(data)
        # JSON rules of strictness: a list may be a tuple, a whole number a float, and nothing else
        # is converted.
        return Params.model_validate_json(json.dumps(tree, default=str))
    except TypeError as error:
        raise ParamsError(
            "a key of the params is neither text nor number", where=where, got=error
        ) from error
    except ValidationError as error:
        problems = "\n    ".join(describe(problem, Params) for problem in error.errors())
        raise ParamsError(
            f"{error.error_count()} wrong entries in the params",
            where=where,
            got="\n    " + problems,
            do="correct these keys; src/tracerl/settings says what each means",
        ) from None
