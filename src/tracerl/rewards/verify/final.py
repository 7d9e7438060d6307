"""What a response says in the end: the one place that strips a chain of thought and answer tags,
and finds boxes. Linear in the length."""

import re
from collections.abc import Iterator

_BOXES = re.compile(r"\\(?:boxed|fbox)\s*\{|[{}]|\\[{}\\]")
_BARE_BOX = re.compile(r"\\boxed\s+([^\s${}\\]+)")


def final_part(response: str) -> tuple[str, bool]:
    """The text after the last `</think>` (if anything follows it), of that the inside of the last
    `<answer>` block (if there is one), and whether there was one."""
    rest = response.rpartition("</think>")[2]
    text = rest if rest.strip() else response
    _, tag, inside = text.rpartition("<answer>")
    return (inside.partition("</answer>")[0], True) if tag else (text, False)


def short_answer(response: str) -> str:
    """The answer to a puzzle: of the final part the last box, else all of an answer block, else
    what follows the last `#`, else the last line. Empty if there is none."""
    return _find_answer(response, 1, "#")


def gym_answer(response: str, known: str) -> str:
    """The same for an answer like the known one: as many last lines, and a `#` marks nothing where
    the known answer holds one."""
    return _find_answer(
        response,
        sum(bool(line.strip()) for line in known.splitlines()) or 1,
        "" if "#" in known else "#",
    )


def _find_answer(response: str, num_lines: int, sign: str) -> str:
    text, tagged = final_part(response)
    if (boxed := last_boxed(text)) is not None:
        return boxed.strip()
    if tagged:
        return text.strip()
    if sign and sign in text:
        return text.rpartition(sign)[2].strip()
    return "\n".join([line for line in text.splitlines() if line.strip()][-num_lines:]).strip()


def last_boxed(text: str) -> str | None:
    """The inside of the last complete `\\boxed{...}` or `\\fbox{...}`, braces nested at will, else
    the word after a bare `\\boxed`."""
    last: tuple[int, int] | None = None
    for start, end in _find_boxes(text):
        # Of nested boxes the outer one, which closes later; otherwise the later one.
        last = (start, end) if last is None or end > last[1] else last
    if last is not None:
        return text[slice(*last)]
    bare = _BARE_BOX.findall(text)
    return bare[-1].rstrip(".,") if bare else None


def _find_boxes(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of the inside of every box whose brace closes, in one pass."""
    open_groups: list[int | None] = []
    for match in _BOXES.finditer(text):
        token = match.group()
        if token.endswith("{") and token != r"\{":
            open_groups.append(match.end() if token != "{" else None)
        elif token == "}" and open_groups and (start := open_groups.pop()) is not None:
            yield start, match.start()
