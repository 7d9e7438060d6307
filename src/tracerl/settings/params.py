"""The params file as frozen records: strict, complete, with no default for a number that changes
results.

`load_params` is the one reader. Every key must be known and of the right type; what is wrong is
reported with its path, the value got and the keys that exist. Checks that need two keys at once (a
block size that does not divide, a round without its parent) are here too."""

import difflib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tracerl.errors import ParamsError
from tracerl.settings.base import Name, Positive, Section
from tracerl.settings.evaluation import Evaluation, EvaluationDefaults, Report, Validation
from tracerl.settings.models import Compute, Launch
from tracerl.settings.rewards import Verification
from tracerl.settings.tasks import STEP_SOURCES, Tasks
from tracerl.settings.training import Base, RlRound, SftRound, Traces


class Params(Section):
    """A whole run. threads: OpenMP threads of every stage; part of what a result depends on, bit
    for bit.

    truncated_is_wrong: whether a response cut at the length limit is wrong whatever it holds: in
    traces, RL and every evaluation.
    """

    seed: int = Field(ge=0)
    threads: int = Positive
    truncated_is_wrong: bool
    compute: Compute
    launch: Launch
    verification: Verification
    tasks: Tasks
    base: Base
    traces: Traces
    sft: dict[Name, SftRound]
    rl: dict[Name, RlRound]
    evaluation: EvaluationDefaults
    evaluate: dict[Name, Evaluation]
    validation: Validation
    report: Report

    @property
    def parents(self) -> dict[str, str]:
        """The checkpoint that each round starts from, by stage, in the order of the params."""
        return {f"sft@{name}": one.init for name, one in self.sft.items()} | {
            f"rl@{name}": one.init for name, one in self.rl.items()
        }

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        checkpoints = {
            "base",
            *(f"sft@{name}" for name in self.sft),
            *(f"rl@{name}" for name in self.rl),
        }
        users: list[tuple[str, str, list[str]]] = [
            ("traces", self.traces.checkpoint, [*self.traces.preferred, *self.traces.rollouts])
        ]
        users += [(f"sft.{name}", item.init, list(item.tasks)) for name, item in self.sft.items()]
        users += [(f"rl.{name}", item.init, list(item.tasks)) for name, item in self.rl.items()]
        users += [
            (f"rl.{name}.phases", item.init, [*one.tasks])
            for name, item in self.rl.items()
            for one in item.phases or ()
            if one.tasks
        ]
        users += [
            (f"rl.{name}.held_out", item.init, item.held_out.tasks or [])
            for name, item in self.rl.items()
        ]
        users += [
            (f"evaluate.{name}", item.checkpoint, item.tasks)
            for name, item in self.evaluate.items()
        ]
        users += [("base.train", "base", list(self.base.train.tasks))]
        for place, checkpoint, sets in users:
            if checkpoint not in checkpoints:
                raise ValueError(
                    f"{place}: no checkpoint {checkpoint!r}; there are {', '.join(sorted(checkpoints))}"
                )
            for name in sets:
                if name not in self.tasks.sets:
                    raise ValueError(
                        f"{place}: no task set {name!r}; there are {', '.join(sorted(self.tasks.sets))}"
                    )
        for name, evaluation in self.evaluate.items():
            if missing := {
                key
                for mode in self.evaluation.remasking
                for key in evaluation.sampler.missing(mode)
            }:
                raise ValueError(
                    f"evaluate.{name}: evaluation.remasking {self.evaluation.remasking} needs sampler keys {sorted(missing)}"
                )
        self._check_judges(users)
        traced = {*self.traces.preferred, *self.traces.rollouts}
        for name, item in self.sft.items():
            if item.data == "traces" and not traced.issuperset(item.tasks):
                raise ValueError(
                    f"sft.{name}: no traces are collected of {sorted(set(item.tasks) - traced)}; add them to traces"
                )
        for name, item in self.sft.items():
            if self.compute.checkpoint_layers and item.lora is not None and item.lora.dropout:
                raise ValueError(
                    f"sft.{name}: checkpoint_layers computes a layer twice, and its dropout would not be the same"
                )
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

    def _check_judges(self, users: Sequence[tuple[str, str, list[str]]]) -> None:
        """users: (place, checkpoint, task sets) of every place that uses task sets; training on
        solutions asks for no response."""
        known, judge = self.verification.judges or {}, self.verification.judge
        named = [("verification.judge", judge)] if judge is not None else []
        named += [
            (f"rl.{name}.process.judge", one.process.judge)
            for name, one in self.rl.items()
            if one.process is not None
        ]
        for place, wanted in named:
            if wanted not in known:
                raise ValueError(
                    f"{place}: no judge {wanted!r}; verification.judges has {', '.join(sorted(known)) or 'none'}"
                )
        users = [user for user in users if not user[0].startswith(("sft.", "base.", "traces"))]
        users += [("traces", "", list(self.traces.rollouts))]
        asking = [
            (place, name)
            for place, _, sets in users
            for name in sets
            if self.tasks.sets[name].source == "open"
        ]
        asking += [
            (f"rl.{name}.reward", "judge") for name, one in self.rl.items() if "judge" in one.reward
        ]
        if asking and judge is None:
            raise ValueError(
                f"{asking[0][0]}: {asking[0][1]} is decided by a judge: name one in verification.judge"
            )
        if (
            judge is not None
            and known[judge].kind == "steps"
            and (unjudged := [asked for asked in asking if asked[1] != "judge"])
        ):
            raise ValueError(
                f"{unjudged[0][0]}: a judge of kind 'steps' has no rule for {unjudged[0][1]}, whose source is 'open'"
            )
        for name, one in self.rl.items():
            if one.process is not None and known[one.process.judge].kind == "steps":
                drawn = dict.fromkeys(
                    task_set for stretch in one.stretches for task_set in stretch.tasks
                )
                sets = [
                    task_set
                    for task_set in drawn
                    if self.tasks.sets[task_set].source not in STEP_SOURCES
                ]
                if sets or one.process.separators is None:
                    raise ValueError(
                        f"rl.{name}.process: a judge of kind 'steps' needs separators and task sets of source "
                        f"{' or '.join(STEP_SOURCES)} (got {sets or 'chunk_tokens'})"
                    )


def load_params(path: Path) -> Params:
    """Reads and checks a params file. Raises ParamsError naming every wrong key with its path."""
    try:
        data = YAML(typ="safe", pure=True).load(
            path.read_text()
        )  # as DVC reads it; a key given twice is refused
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ParamsError("the params file cannot be read", where=str(path), got=error) from error
    return parse_params(data, where=str(path))


def parse_params(data: Any, where: str) -> Params:
    """Params from plain data, as YAML gives it."""
    try:
        # JSON rules of strictness: a list may be a tuple, a whole number a float, and nothing else
        # is converted.
        return Params.model_validate_json(json.dumps(data, default=str))
    except TypeError as error:
        raise ParamsError(
            "a key of the params is neither text nor number", where=where, got=error
        ) from error
    except ValidationError as error:
        problems = "\n    ".join(_explain(problem, data) for problem in error.errors())
        raise ParamsError(
            f"{error.error_count()} wrong entries in the params",
            where=where,
            got="\n    " + problems,
            do="correct these keys; src/tracerl/settings says what each means",
        ) from None


def _explain(problem: Any, data: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"]) or "(whole file)"
    text = f"{path}: {problem['msg']}"
    if problem["type"] == "extra_forbidden":
        siblings = _known_keys(problem["loc"])
        near = difflib.get_close_matches(str(problem["loc"][-1]), siblings, n=1)
        return f"{path}: unknown key" + (
            f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(siblings)}"
        )
    if problem["type"] != "value_error" and problem["type"] != "missing":
        text += f" (got {problem['input']!r})"
    return text


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    """Keys of the section that holds `location`."""
    section: Any = Params
    for part in location[:-1]:
        fields = getattr(section, "model_fields", None)
        annotation = fields[part].annotation if fields and part in fields else section
        section = next(_sections_in(annotation), annotation)
    return list(getattr(section, "model_fields", {}))


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    """The sections that an annotation names, however deep: `Phase` in `list[Phase] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)
