"""Chunks of a response, which judges score one by one: runs of tokens up to a separator, or of a
fixed number of tokens.

Law: the chunks are consecutive, none is empty, and together they are the response up to and
including its first end token. A chunk ends with the token that completes a separator; what that
token holds beyond the separator belongs to the same chunk. Blank text is no chunk: it joins the one
after it, or the one before if it is the last.
"""

from collections.abc import Callable, Sequence

from tracerl.settings.rewards import Process


def split(
    ids: Sequence[int], decode: Callable[[Sequence[int]], str], settings: Process
) -> tuple[list[int], list[str]]:
    """(ends, texts) of a response's chunks; `ids` are its counted tokens. Chunk k holds the tokens
    ends[k - 1] to ends[k]."""
    if settings.chunk_tokens is not None:
        cuts = [*range(settings.chunk_tokens, len(ids), settings.chunk_tokens), len(ids)]
    else:
        cuts = _cut_at_separators(ids, decode, settings.separators or [])
    ends: list[int] = []
    begun = False
    for start, cut in zip([0, *cuts[:-1]], cuts, strict=True):
        begun = begun or bool(decode(ids[start:cut]).strip())
        if begun or (cut == cuts[-1] and not ends):
            ends.append(cut)
            begun = False
    ends[-1] = cuts[-1]
    if len(ends) > settings.max_chunks:
        ends = [*ends[: settings.max_chunks - 1], ends[-1]]
    return ends, [decode(ids[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _cut_at_separators(
    ids: Sequence[int], decode: Callable[[Sequence[int]], str], separators: Sequence[str]
) -> list[int]:
    """Ends after the tokens that complete a separator, and the last one. Tokens are decoded one at
    a time, so that it takes linear time."""
    longest, tail, ends = max(map(len, separators)), "", []
    for place, token in enumerate(ids, start=1):
        piece = decode([token])
        text = tail + piece
        # Complete in this token: the separator's last character lies in its piece.
        if any(
            text.find(separator, max(0, len(tail) - len(separator) + 1)) >= 0
            for separator in separators
        ):
            ends.append(place)
        tail = text[-(longest - 1) :] if longest > 1 else ""
    return ends if ends and ends[-1] == len(ids) else [*ends, len(ids)]
