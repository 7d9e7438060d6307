"""docs/params.md: every key of a params file with its type and meaning, from the records and their
docstrings."""

import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from tracerl.settings.base import Section
from tracerl.settings.params import Params

_HEAD = """# Keys of a params file

Every key with its type and meaning, written by `tracerl params` from `src/tracerl/settings/`. A key
without a default must be there. Under `defaults` a kind of section may say once what its sections
do not say themselves (see the head of `params.yaml`).
"""


def params_reference() -> str:
    """The page, as Markdown: a table for each section, in the order in which they are mentioned."""
    parts = [_HEAD]
    for section, place in _sections().items():
        doc = textwrap.fill(place + " ".join((section.__doc__ or "").split()), 100)
        rows = [_row(name, field) for name, field in section.model_fields.items()]
        table = "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])
        parts.append(f"## {section.__name__}\n\n{doc}\n\n{table}\n")
    return "\n".join(parts)


def _sections() -> dict[type[Section], str]:
    """Every section below `Params` and where it is used first."""
    places: dict[type[Section], str] = {Params: ""}
    pending: list[type[Section]] = [Params]
    while pending:
        section = pending.pop(0)
        for name, field in section.model_fields.items():
            for part in _sections_in(field.annotation):
                if part not in places:
                    owner = "the file" if section is Params else f"[{_link(section)}"
                    places[part] = f"`{name}` of {owner}. "
                    pending.append(part)
    return places


def _link(section: type[Section]) -> str:
    name = section.__name__
    return f"{name}](#{name.lower()})"


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
        return
    for part in get_args(annotation):
        yield from _sections_in(part)


def _row(name: str, field: FieldInfo) -> str:
    default = "" if field.is_required() else f"`{_value(field.get_default())}`"
    meaning = " ".join((field.description or "").split())
    cells = [f"`{name}`", _type(field.annotation) + _bounds(field), default, meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _value(value: object) -> str:
    return "null" if value is None else str(value)


def _bounds(field: FieldInfo) -> str:
    """What else the value must satisfy, such as "> 0"."""
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    bounds = []
    for constraint in field.metadata:
        for key, sign in signs.items():
            if getattr(constraint, key, None) is not None:
                bounds.append(f"{sign} {getattr(constraint, key)}")
    return " " + ", ".join(bounds) if bounds else ""


def _type(annotation: Any) -> str:
    """A type in the words of YAML."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "null"
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_type, arguments))
    if origin is tuple:
        return f"[{', '.join(map(_type, arguments))}]"
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"map of {_type(arguments[0])} to {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return f"[{_link(annotation)}"
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))
