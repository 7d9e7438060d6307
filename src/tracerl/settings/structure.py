"""What the annotations of sections say: which keys hold sections, and which kinds."""

import types
from typing import Annotated, Any, Union, get_args, get_origin

from tracerl.settings.base import Section

TAGS = ("kind", "source")


def members(annotation: Any) -> list[Any]:
    """The alternatives of an annotation but None: [A, B] of `Annotated[A | B, ...] | None`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        found = []
        for part in get_args(annotation):
            found += members(part)
        return found
    return [] if annotation is type(None) else [annotation]


def sections(annotation: Any) -> list[type[Section]]:
    """The sections among the alternatives of an annotation; [] if the key holds anything else."""
    return [part for part in members(annotation) if _is_section(part)]


def tag_of(section: type[Section]) -> str | None:
    """The kind that a section of a union stands for; None if it is no part of one."""
    for name in TAGS:
        if name in section.model_fields:
            return str(get_args(section.model_fields[name].annotation)[0])
    return None


def section_with_tag(annotation: Any, tag: Any) -> type[Section] | None:
    """The section that a value with this kind is; the only one where there are no kinds."""
    found = sections(annotation)
    for section in found:
        if tag_of(section) in (None, tag):
            return section
    return None


def item(annotation: Any) -> Any:
    """The annotation of a value of a map, or of an entry of a list."""
    for part in members(annotation):
        if get_args(part):
            return get_args(part)[-1]
    return None


def tag_in(tree: Any) -> Any:
    """The kind that plain data name."""
    if isinstance(tree, dict):
        for name in TAGS:
            if name in tree:
                return tree[name]
    return None


def _is_section(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, Section)
