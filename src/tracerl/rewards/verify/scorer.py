"""Scorers of reasoning-gym on what a model wrote: in the sandbox, one process per answer: they were
not written for hostile text.

Which tasks have a scorer that may be used at all is decided where the items are made
(`tracerl/gym.py`).
"""

import importlib.util
from pathlib import Path
from typing import Any

from tracerl.errors import ParamsError
from tracerl.rewards.verify.sandbox import GuestEndedError, SandboxError, SandboxPool

_IMPORT_SECONDS = 5.0  # of CPU time, on top of the limit for the scoring itself
_SEEN = ("reasoning_gym", "numpy", "sympy", "yaml", "matplotlib")

# Importing the package imports a hundred generators with everything they need; with empty parents
# only the task's own module is imported. numpy would start a thread with a stack of 64 MB for every
# core.
_PROGRAM = """
import os
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
import ast, importlib, importlib.util, sys, types

def score(module, task, options, entry, answer):
    package = importlib.util.find_spec("reasoning_gym")
    root = package.submodule_search_locations[0].rpartition("/")[0]
    parts = module.split(".")
    for end in range(1, len(parts)):
        parent = types.ModuleType(".".join(parts[:end]))
        parent.__path__ = [root + "/" + "/".join(parts[:end])]
        sys.modules[parent.__name__] = parent
    try:
        # It imports its part of the circle in the right order.
        importlib.import_module("reasoning_gym.coaching")
        importlib.import_module(module)
    except ImportError:
        for name in [name for name in sys.modules if name.split(".")[0] == "reasoning_gym"]:
            del sys.modules[name]
        import reasoning_gym
    made, config = importlib.import_module("reasoning_gym.factory").DATASETS[task]
    dataset = made(config=config(**options))
    try:
        return bool(dataset.score_answer(answer, ast.literal_eval(entry)) >= 1.0)
    except Exception:
        return False
"""


def visible_packages() -> tuple[str, ...]:
    """The folders in which reasoning-gym and what it imports are installed. Raises ParamsError if
    it is not."""
    places = []
    for name in _SEEN:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            places.append(str(Path(spec.submodule_search_locations[0]).parent))
        elif name == _SEEN[0]:
            raise ParamsError(
                "answers to this task of reasoning-gym cannot be scored",
                got=f"no package {name}",
                do="pip install 'tracerl[gym]'",
            )
    return tuple(dict.fromkeys(places))


def pays(pool: SandboxPool, spec: dict[str, Any], answer: str) -> bool | None:
    """Whether the scorer of an item pays the answer in full; None if it died or took too long over
    it.

    Raises SandboxError if a sandbox breaks twice.
    """
    try:
        return _ask(pool, spec, answer)
    except SandboxError:
        return _ask(pool, spec, answer)


def _ask(pool: SandboxPool, spec: dict[str, Any], answer: str) -> bool | None:
    wall = pool.limits.wall_seconds
    try:
        with pool.sandbox(
            {"role": "solution", "program": _PROGRAM}, pool.limits.cpu_seconds + _IMPORT_SECONDS
        ) as scorer:
            scorer.receive(wall)
            options = [[name, value] for name, value in spec["options"].items()]
            arguments = [spec["module"], spec["task"], {"dict": options}, spec["entry"], answer]
            scorer.send({"call": "score", "args": arguments}, wall)
            reply = scorer.receive(wall)
    except GuestEndedError:
        return None
    return (
        {"True": True, "False": False}.get(str(reply.get("value")))
        if isinstance(reply, dict)
        else None
    )
