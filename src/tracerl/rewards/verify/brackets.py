"""Splitting an answer outside its brackets, and at the commas that separate items."""

import re

from tracerl.rewards.verify.nodes import NotReadableError
from tracerl.rewards.verify.spelling import thousands


def split_items(text: str, bracketed: bool) -> list[str]:
    """Split at commas outside all brackets, without those that group thousands.

    Which those are: in a list that has spaces after its commas, the ones without a space. In one
    that has none, inside brackets none; outside, either all of them or none.
    """
    inside = {
        place for start, end in thousands(text) for place in range(start, end) if text[place] == ","
    }
    commas = [match.start() for match in _top_matches(text, re.compile(","))]
    has_spaces = any(text[place + 1 : place + 2] == " " for place in commas)
    if not has_spaces and (bracketed or not all(place in inside for place in commas)):
        inside = set()
    parts, start = [], 0
    for place in commas:
        if place not in inside:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def split_top(text: str, separator: re.Pattern[str], keep: bool = False) -> list[str]:
    """Split outside all brackets and braces; with `keep` the separators stay between the parts."""
    parts, start = [], 0
    for match in _top_matches(text, separator):
        parts.append(text[start : match.start()])
        if keep:
            parts.append(match.group())
        start = match.end()
    return [*parts, text[start:]]


def _top_matches(text: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Matches outside all brackets. Half-open intervals mean that kinds of brackets need not
    match."""
    levels, level = [], 0
    for char in text:
        level -= char in ")]}"
        if level < 0:
            raise NotReadableError(text[:80])
        levels.append(level)
        level += char in "([{"
    if level:
        raise NotReadableError(text[:80])
    return [match for match in pattern.finditer(text) if levels[match.start()] == 0]


def closes_at_end(text: str) -> bool:
    """Whether the bracket that opens the text closes with its last character."""
    level = 0
    for place, char in enumerate(text):
        level += (char in "([{") - (char in ")]}")
        if level == 0 and place >= (1 if text.startswith("\\") else 0):
            return place == len(text) - 1
    return False
