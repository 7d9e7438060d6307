"""Defaults of a kind of section, which stand once in the params file, and what differs in each.

    defaults:
      optimizer: {lr: 1.4e-3, ...}           # of every optimizer
      sampler: {block_size: 4, ...}          # of every sampler
      sft: {num_steps: 250, ...}             # of every round of sft
      rl: {optimizer: {lr: 2.0e-4}, ...}     # of every round of rl
      evaluate: {}                           # of every evaluation
    rl:
      short: {init: sft@short, optimizer: {lr: 1.0e-4}}

The nearest one holds: the round's own key, then that of its kind, then that of optimizers and
samplers. Sections are merged key by key; a map, a list and a section of another kind are replaced.
"""

import copy
from typing import Any

from tracerl.errors import ParamsError
from tracerl.settings.base import Section
from tracerl.settings.evaluation import Evaluation
from tracerl.settings.rounds import RlRound
from tracerl.settings.structure import section_with_tag, tag_in
from tracerl.settings.training import Adapt, SftRound, Traces, Training

_KINDS: dict[str, type[Section]] = {"sft": SftRound, "rl": RlRound, "evaluate": Evaluation}
_PARTS = ("optimizer", "sampler")


def resolve(tree: Any) -> Any:
    """Plain data of a params file with every default written out and `defaults` gone.

    What is not a mapping where one belongs is left as it is, for the check that follows. Raises
    ParamsError for defaults of something that has none.
    """
    if not isinstance(tree, dict) or "defaults" not in tree:
        return tree
    defaults = tree["defaults"]
    known = [*_PARTS, *_KINDS]
    unknown = sorted(str(key) for key in defaults or () if key not in known)
    if not isinstance(defaults, dict) or unknown:
        raise ParamsError(
            "the params have defaults of something that has none",
            where="defaults",
            got=", ".join(unknown) or defaults,
            wanted=", ".join(known),
        )
    resolved = {key: copy.deepcopy(value) for key, value in tree.items() if key != "defaults"}
    for kind, section in _KINDS.items():
        if isinstance(resolved.get(kind), dict):
            of_kind = defaults.get(kind, {})
            entries = {}
            for name, value in resolved[kind].items():
                entries[name] = _with_defaults(value, section, defaults, of_kind)
            resolved[kind] = entries
    if "traces" in resolved:
        resolved["traces"] = _with_defaults(resolved["traces"], Traces, defaults, {})
    base = resolved.get("base")
    if isinstance(base, dict) and "train" in base:
        base["train"] = _with_defaults(base["train"], Training, defaults, {})
    if isinstance(base, dict) and isinstance(base.get("adapt"), dict):
        base["adapt"] = _with_defaults(base["adapt"], Adapt, defaults, {})
    return resolved


def merge(
    default: dict[str, Any], change: dict[str, Any], section: type[Section]
) -> dict[str, Any]:
    """The plain data of a section with some keys changed, inner sections key by key. A section of
    another kind, a map and a list are replaced."""
    merged = copy.deepcopy(default)
    for key, value in change.items():
        before = default.get(key)
        inner = None
        if key in section.model_fields and isinstance(value, dict) and isinstance(before, dict):
            tag = tag_in(value) or tag_in(before)
            if tag == tag_in(before):
                inner = section_with_tag(section.model_fields[key].annotation, tag)
        merged[key] = copy.deepcopy(value) if inner is None else merge(default[key], value, inner)
    return merged


def _with_defaults(
    value: Any, section: type[Section], defaults: dict[str, Any], of_kind: Any
) -> Any:
    """One section over the defaults of its kind, and those over the defaults of its parts."""
    if not isinstance(value, dict) or not isinstance(of_kind, dict):
        return value
    parts = {
        name: defaults[name] for name in _PARTS if name in defaults and name in section.model_fields
    }
    return merge(merge(parts, of_kind, section), value, section)
