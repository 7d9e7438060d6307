"""What claims.yaml asks for, as params files and as DVC pipelines.

    python -m replication.plan               writes replication/dvc.yaml, and dvc.yaml and
                                             params.yaml of every folder below runs/
    python -m replication.plan --estimate    prints what each plan will take

A *world* is one family trained with one seed in a folder of its own,
replication/runs/<plan>/<family>-<seed>, laid out as the project's root is: the stages run there
unchanged, started in it. Its params file is ../params.yaml with the family's changes, and
the family's cells in place of the rounds. What code a stage depends on is read from the project's
own dvc.yaml, so that the two cannot differ. Each world is a pipeline with a lock of its own: DVC
reads and writes the whole lock for every stage, and with 225 stages in one lock that took longer
than many of the stages. replication/dvc.yaml judges them.
"""

import argparse
import copy
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tracerl.disk import write_text
from tracerl.settings.defaults import resolve
from tracerl.settings.params import Params, load_params, parse_params

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
Tree = dict[str, Any]

KINDS = ("tasks", "base", "traces", "sft", "rl", "evaluate")
ROUNDS = KINDS[3:]
PATHS = "PYTHONPATH=../../../..:$PYTHONPATH"  # where a world finds stages/ and replication/
OWN_CODE = ("__init__.py", "cell.py", "grid.py")
# What the judging runs of the library, through the link .src: outside of its own root DVC ignores
# nothing, and would count what Python compiles there.
JUDGE_CODE = (
    ".src/tracerl/disk.py",
    ".src/tracerl/distributed.py",
    ".src/tracerl/errors.py",
    ".src/tracerl/models",
    ".src/tracerl/reporting",
    ".src/tracerl/seeds.py",
    ".src/tracerl/settings",
    ".src/tracerl/store",
    ".src/tracerl/types.py",
)
_UP = "../../.."  # from a world to replication/
HEAD = (
    "# Written by `python -m replication.plan` from replication/claims.yaml and the project's "
    "dvc.yaml; do not edit.\n"
)


@dataclass(frozen=True, kw_only=True)
class World:
    """A family with a seed."""

    plan: str
    """Name of the plan: "full" or "fast"."""
    family: str
    """Name of the family in claims.yaml."""
    seed: int
    """Random seed of all its stages."""
    params: Tree
    """Its params.yaml as plain data."""
    grids: Mapping[str, str]
    """Stage ("rl@tracerl") -> the grid it trains on: "sampler" or "response"."""

    @property
    def name(self) -> str:
        return f"{self.plan}-{self.family}-{self.seed}"

    @property
    def folder(self) -> str:
        """Below replication/."""
        return f"runs/{self.plan}/{self.family}-{self.seed}"


def read_table() -> Tree:
    """claims.yaml as plain data."""
    table: Tree = yaml.safe_load((HERE / "claims.yaml").read_text())
    return table


def default_params() -> Tree:
    """The shipped params as plain data, every default written out."""
    params: Tree = resolve(yaml.safe_load((ROOT / "params.yaml").read_text()))
    return params


def worlds(table: Tree, plan: str, defaults: Tree) -> list[World]:
    """The worlds of a plan, the first seed of every family first. Raises ParamsError if a cell's
    changes do not fit."""
    seeds = table["plans"][plan]["seeds"]
    return [
        make_world(table, plan, family, seed, defaults)
        for seed in seeds
        for family in table["families"]
    ]


def make_world(table: Tree, plan: str, family: str, seed: int, defaults: Tree) -> World:
    """One world of a plan. Raises ParamsError if a cell's changes do not fit."""
    about = table["families"][family]
    size = table["plans"][plan]
    ablations = size["ablations"] and seed == size["seeds"][0]
    params = copy.deepcopy(defaults)
    grids: dict[str, str] = {}
    change(params, {**about["changes"], **size["changes"], "seed": seed})
    rounds: dict[str, dict[str, Tree]] = {"sft": {}, "rl": {}}
    evaluations: dict[str, Tree] = {}
    for kind, cells in rounds.items():
        for name, cell in about[kind].items():
            section, _, default = cell["like"].rpartition(".")
            settings = copy.deepcopy(params[section][default] if section else cells[default])
            change(settings, cell["changes"])
            cells[name] = settings
            grids[f"{kind}@{name}"] = cell.get("grid", "sampler")
            for suffix, spec in cell.get("evaluations", {"": about["evaluation"]}).items():
                evaluation = copy.deepcopy(params["evaluate"][spec["like"]])
                change(evaluation, {**spec["changes"], "checkpoint": f"{kind}@{name}"})
                evaluations["-".join(filter(None, (kind, name, suffix)))] = evaluation
    for kind, cells in rounds.items():
        for name in [name for name in cells if about[kind][name].get("one_seed") and not ablations]:
            del cells[name]
            evaluations = {
                key: evaluation
                for key, evaluation in evaluations.items()
                if evaluation["checkpoint"] != f"{kind}@{name}"
            }
    params |= {**rounds, "evaluate": evaluations}
    _shrink(params, size)
    parse_params(params, where=f"replication/claims.yaml: {plan}, {family}, seed {seed}")
    return World(plan=plan, family=family, seed=seed, params=params, grids=grids)


def change(tree: Tree, changes: Mapping[str, Any]) -> None:
    """Sets dotted keys, in order, so that a later one can change a part of what an earlier one
    set."""
    for key, value in changes.items():
        *path, last = key.split(".")
        place = tree
        for part in path:
            place = place[part]
        place[last] = copy.deepcopy(value)


def _shrink(params: Tree, size: Tree) -> None:
    """A plan's share of every round's steps and iterations, the same for all, so that budgets stay
    equal."""
    for training in (params["base"]["train"], *params["sft"].values()):
        training["num_steps"] = max(1, round(training["num_steps"] * size["steps"]))
    for settings in params["rl"].values():
        for part in (settings, settings["held_out"], *(settings.get("phases") or [])):
            for key in {"iterations", "every"} & set(part):
                part[key] = max(1, round(part[key] * size["iterations"]))


def write(folder: Path = HERE) -> None:
    """Params and pipeline of every world, and the pipeline that judges them."""
    table, defaults = read_table(), default_params()
    for plan in table["plans"]:
        for world in worlds(table, plan, defaults):
            _write(
                folder / world.folder / "params.yaml", yaml.safe_dump(world.params, sort_keys=False)
            )
            _write(
                folder / world.folder / "dvc.yaml",
                HEAD + yaml.safe_dump(pipeline(world), sort_keys=False, width=140),
            )
    _write(
        folder / "dvc.yaml",
        HEAD + yaml.safe_dump(judge_pipeline(table), sort_keys=False, width=140),
    )


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def pipeline(world: World) -> Tree:
    """dvc.yaml of a world: its code and params, and a stage for each kind over its cells."""
    stages = _project_stages()
    entries: Tree = {}
    for kind in ("code", "params"):
        deps = [
            f"{_UP}/.{dep}" if dep.startswith(("src", "stages")) else dep
            for dep in stages[kind]["deps"]
        ]
        entries[kind] = {
            "cmd": f"{PATHS} {stages[kind]['cmd']}",
            "deps": deps,
            "outs": stages[kind]["outs"],
        }
    for kind in KINDS:
        if kind in ROUNDS:
            entry = _cell_stage(kind, "${key}", "${item.grid}")
            entries[kind] = {"foreach": cells(world, kind), "do": entry}
        else:
            entries[kind] = _cell_stage(kind, "-", "sampler")
    return {"stages": entries}


def _cell_stage(kind: str, name: str, grid: str) -> Tree:
    """A stage of dvc.yaml that runs a cell."""
    stage = kind if name == "-" else f"{kind}@{name}"
    own_code = [f"{_UP}/{path}" for path in OWN_CODE]
    outputs = [path.format(stage=stage, name=name) for path in OUTPUTS[kind]]
    return {
        "cmd": f"{PATHS} python -m replication.cell {kind} {name} {grid}",
        "deps": [
            f"data/code/{kind}.txt",
            f"data/params/{stage}.yaml",
            *INPUTS[kind],
            *own_code,
        ],
        "outs": [*outputs, f"reports/records/{stage}.json"],
    }


def cells(world: World, kind: str) -> Tree:
    """What the stages of a kind go over: name of the cell -> what it needs, and on which grid it
    trains."""
    return {
        name: {
            "grid": world.grids.get(f"{kind}@{name}", "sampler"),
            **{key: section[key] for key in ("init", "checkpoint", "data") if key in section},
        }
        for name, section in world.params[kind].items()
    }


@functools.cache
def _project_stages() -> Tree:
    """The stages of the project's dvc.yaml."""
    stages: Tree = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    return stages


INPUTS = {
    "tasks": [],
    "base": ["data/tasks"],
    "traces": ["data/checkpoints/base", "data/tasks"],
    "sft": ["data/checkpoints/${item.init}", "data/${item.data}"],
    "rl": ["data/checkpoints/${item.init}", "data/tasks"],
    "evaluate": ["data/checkpoints/${item.checkpoint}", "data/tasks"],
}
OUTPUTS = {
    "tasks": ["data/tasks", "reports/metrics/tasks.json"],
    "base": ["data/checkpoints/base", "reports/metrics/base.json", "reports/curves/base.tsv"],
    "traces": ["data/traces", "reports/metrics/traces.json"],
    "sft": [
        "data/checkpoints/{stage}",
        "reports/metrics/{stage}.json",
        "reports/curves/{stage}.tsv",
    ],
    "rl": [
        "data/checkpoints/{stage}",
        "data/rollouts/{stage}",
        "reports/metrics/{stage}.json",
        "reports/curves/{stage}.tsv",
        "reports/curves/{stage}-held-out.tsv",
    ],
    "evaluate": ["data/evals/{name}", "reports/metrics/evaluate/{name}.json"],
}


def judge_pipeline(table: Tree) -> Tree:
    """replication/dvc.yaml: the stages that read a plan's cells and write its verdicts."""
    own_code = (
        "__init__.py",
        "claims.yaml",
        "judge.py",
        "page.html.j2",
        "page.py",
        "plan.py",
        "rule.py",
    )
    parts = ("data/evals", "data/rollouts", "reports/records", "reports/curves")
    files = ("replication.html", "replication.json")
    entries = {}
    for plan, size in table["plans"].items():
        folders = [
            f"runs/{plan}/{family}-{seed}" for seed in size["seeds"] for family in table["families"]
        ]
        entries[f"judge-{plan}"] = {
            "cmd": f"cd .. && python -m replication.judge {plan}",
            "deps": [
                *(f"{folder}/{part}" for folder in folders for part in parts),
                *own_code,
                *JUDGE_CODE,
            ],
            "outs": [{f"verdicts/{plan}/{file}": {"cache": False}} for file in files],
        }
    return {"stages": entries}


def rounds_of(world: World) -> list[tuple[str, str]]:
    """Kind and name of a world's rounds and evaluations."""
    return [(kind, name) for kind in KINDS[3:] for name in world.params[kind]]


def estimate_seconds(table: Tree, world: World) -> float:
    """Seconds that a world takes on one quiet core, from the rates of its family and the plan's
    share of them."""
    rates = table["families"][world.family]["seconds"]
    start = table["start_seconds"]
    speed = table["plans"][world.plan]["seconds"]
    params: Params = parse_params(world.params, where=world.name)
    total = rates["base_step"] * params.base.train.num_steps
    total += sum(
        rates["sft_step"][settings.objective.kind] * settings.num_steps
        for settings in params.sft.values()
    )
    responses = sum(params.traces.rollouts.values()) * params.traces.group_size + 2 * sum(
        params.traces.preferred.values()
    )
    for settings in params.rl.values():
        total += (
            rates["iteration"] * settings.iterations * (1.5 if settings.value is not None else 1.0)
        )
        held_out = settings.held_out
        samples = sum(mode.samples(held_out.num_samples) for mode in held_out.modes.values())
        per_measurement = held_out.num_problems * len(settings.tasks) * samples
        responses += per_measurement * (1 + -(-settings.iterations // settings.held_out.every))
    for evaluation in params.evaluate.values():
        common = params.evaluation
        for task_set in evaluation.tasks:
            samples = sum(common.samples_of(task_set, mode) for mode in common.modes)
            responses += common.num_problems * samples
    return start * (3 + len(rounds_of(world))) + speed * (total + rates["response"] * responses)


def estimate(plan: str, jobs: int) -> Iterator[str]:
    """What a plan will take, world by world."""
    table = read_table()
    all_worlds = worlds(table, plan, default_params())
    seconds = {world.name: estimate_seconds(table, world) for world in all_worlds}
    for world in all_worlds:
        count = 3 + len(rounds_of(world))
        minutes = seconds[world.name] / 60
        yield f"{world.name:16} {count:4} stages {minutes:7.0f} minutes of one core"
    total, count = sum(seconds.values()), sum(3 + len(rounds_of(world)) for world in all_worlds)
    hours = max(total / jobs, *seconds.values()) / 3600
    yield (
        f"{plan:16} {count:4} stages {total / 60:7.0f} minutes of one core, "
        f"about {hours:.1f} hours with {jobs} jobs"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--estimate", action="store_true", help="write nothing, say how long each plan takes"
    )
    options = parser.parse_args()
    if options.estimate:
        load_params(ROOT / "params.yaml")
        print("\n".join(line for plan in read_table()["plans"] for line in estimate(plan, 2)))
    else:
        write()


if __name__ == "__main__":
    main()
