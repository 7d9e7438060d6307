"""What is wrong with a params file, in words: the path, the value, and the keys that exist."""

import difflib
from typing import Any

from tracerl.settings.base import Section
from tracerl.settings.structure import item, section_with_tag, sections, tag_of

# Keys of params files of version 0.1 and older, by the section that had them, and what to write.
_OLD_KEYS = {
    ("Sampler", "remasking"): "order: {kind: ...}",
    ("Sampler", "threshold"): "order: {kind: dynamic, threshold: ...}",
    ("Sampler", "entropy_bound"): "order: {kind: entropy, bound: ...}",
    ("Sampler", "order_temperature"): "order: {kind: plackett_luce, temperature: ...}",
    ("Sampler", "order_score"): "order: {kind: plackett_luce, score: ...}",
    ("Sampler", "horizon"): "cache: {kind: window, horizon: ...}",
    ("Sampler", "refresh_every"): "cache: {kind: ..., refresh_every: ...}",
    ("Sampler", "refresh_sees"): "cache: {kind: window, refresh_sees: ...}",
    ("HeldOut", "remasking"): "modes: {static: {order: {kind: static}}}",
    ("EvaluationDefaults", "remasking"): "modes: {static: {order: {kind: static}}}",
    ("RlRound", "copies"): "method: {kind: ..., copies: ...}",
    ("RlRound", "noise"): "method: {kind: ..., noise: ...}",
    ("RlRound", "prompt_masking"): "method: {kind: ..., prompt_masking: ...}",
    ("RlRound", "nodes"): "method: {kind: ..., nodes: ...}",
    ("RlRound", "bound_exponent"): "method: {kind: ..., bound_exponent: ...}",
    ("RlRound", "bound_share"): "method: {kind: ..., bound_share: ...}",
    ("RlRound", "segments"): "method: {kind: ..., segments: ...}",
    ("RlRound", "order_weight"): "method: {kind: ..., order_weight: ...}",
    ("RlRound", "order_clip"): "method: {kind: ..., order_clip: ...}",
    ("Training", "noise"): "objective: {kind: ..., noise: ...}",
    ("Training", "weighting"): "objective: {kind: ..., weighting: ...}",
    ("Training", "shrink"): "objective: {kind: ..., shrink: ...}",
    ("SftRound", "noise"): "objective: {kind: ..., noise: ...}",
    ("SftRound", "weighting"): "objective: {kind: ..., weighting: ...}",
    ("SftRound", "shrink"): "objective: {kind: ..., shrink: ...}",
}


def describe(problem: Any, root: type[Section]) -> str:
    """One error of pydantic as a line that begins with the path of the key."""
    parts, section = _locate(problem["loc"], root)
    path = ".".join(parts) or "(whole file)"
    if problem["type"] == "extra_forbidden":
        return f"{path}: {_unknown_key(section, str(problem['loc'][-1]))}"
    if problem["type"] == "union_tag_invalid":
        context = problem["ctx"]
        return (
            f"{path}.{context['discriminator'].strip(chr(39))}: must be one of "
            f"{context['expected_tags']} (got {context['tag']!r})"
        )
    kinds = _kinds_at(problem["loc"], root)
    if kinds and not isinstance(problem["input"], dict):
        return (
            f"{path}: must be a section with a kind, such as {{kind: {kinds[0]}, ...}}; kinds are "
            f"{', '.join(kinds)} (got {problem['input']!r})"
        )
    text = f"{path}: {problem['msg']}"
    if problem["type"] not in ("value_error", "missing"):
        text += f" (got {problem['input']!r})"
    return text


def _unknown_key(section: type[Section], key: str) -> str:
    if (section.__name__, key) in _OLD_KEYS:
        return f"is no longer a key here; write {_OLD_KEYS[section.__name__, key]}"
    keys = list(section.model_fields)
    near = difflib.get_close_matches(key, keys, n=1)
    if near:
        return f"unknown key; did you mean {near[0]!r}?"
    return f"unknown key; known here: {', '.join(keys)}"


def _locate(location: tuple[Any, ...], root: type[Section]) -> tuple[list[str], type[Section]]:
    """The path of a key without the kinds that pydantic puts into it, and the section it is in."""
    annotation: Any = root
    path: list[str] = []
    section = root
    for part in location:
        found = sections(annotation)
        if found and tag_of(found[0]) is not None and part in [tag_of(one) for one in found]:
            annotation = section_with_tag(annotation, part)  # a kind, not a key
            section = annotation
            continue
        if found:
            section = found[0]
            field = section.model_fields.get(part)
            annotation = None if field is None else field.annotation
        else:
            annotation = item(annotation)
        path.append(str(part))
    return path, section


def _kinds_at(location: tuple[Any, ...], root: type[Section]) -> list[str]:
    """The kinds that a key can have; [] if it has none."""
    annotation: Any = root
    for part in location:
        found = sections(annotation)
        if found:
            field = found[0].model_fields.get(part)
            annotation = None if field is None else field.annotation
        else:
            annotation = item(annotation)
    return [tag for tag in map(tag_of, sections(annotation)) if tag is not None]
