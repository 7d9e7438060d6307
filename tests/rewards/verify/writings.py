"""Rules that write one mathematical answer in many ways, and rules that make wrong ones of it."""

import re
from collections.abc import Iterator
from fractions import Fraction


def layouts(text: str) -> list[str]:
    """The same text as LaTeX lays it out otherwise: delimiters, spacing, sizes, fraction styles."""
    spaced = re.sub(r"(?<=[{(\[&=<>+])(?! )|(?=[})\]&=<>+])(?<![ \\])", " ", text)
    texts = [
        text,
        f"${text}$",
        f" ${text}$.",
        f"\\({text}\\)",
        f"\\[{text}\\]",
        f"\\boxed{{{text}}}",
        f"{{{text}}}",
        f"\\displaystyle {text}",
        f"~{text}\\,",
        text.replace("\\frac", "\\dfrac"),
        text.replace("\\frac", "\\tfrac"),
        re.sub(r"(?<!\\left)\((.*)\)", r"\\left(\1\\right)", text),
    ]
    # Spaces inside words, units, subscripts and environments are not the layout of mathematics.
    if not re.search(r"[A-Za-z]{2}|_|:|%", text):
        texts.append(spaced)
    return list(dict.fromkeys(texts))


def number_writings(value: Fraction) -> list[str]:
    """Exact writings of a rational number."""
    top, bottom, sign = abs(value.numerator), value.denominator, "-" if value < 0 else ""
    texts = [
        f"{sign}\\frac{{{top}}}{{{bottom}}}",
        f"{sign}\\dfrac{{{3 * top}}}{{{3 * bottom}}}",
        f"\\frac{{{sign}{top}}}{{{bottom}}}",
        f"{sign}{2 * top}/{2 * bottom}",
        f"{sign}{top} / {bottom}",
    ]
    if top > bottom > 1:
        whole, rest = divmod(top, bottom)
        texts += [f"{sign}{whole}\\frac{{{rest}}}{{{bottom}}}", f"{sign}{whole} {rest}/{bottom}"]
    if bottom == 1:
        texts += [
            f"{sign}{top}",
            f"{sign}{top}.0",
            f"{sign}{top}.00",
            f"{sign}{top:,}",
            f"{sign}{top:,}".replace(",", "{,}"),
            f"{sign}{top:,}".replace(",", ",\\!"),
            f"{sign}{top}\\times 10^0",
            f"{sign}{top}e0",
            f"({sign}{top})",
            f"{sign}{top}".replace("-", "\N{MINUS SIGN}"),
        ]
    if 10**6 % bottom == 0:
        digits = f"{float(abs(value)):.6f}".rstrip("0")
        if Fraction(digits) == abs(value):
            texts += [f"{sign}{digits}0", f"{sign}{digits}", f"{sign}{digits}e0"]
    return list(dict.fromkeys(texts))


def neighbours(text: str, count: int) -> list[str]:
    """`count` wrong answers near a right one: a number in it changed, or a word replaced."""
    found: dict[str, None] = {}
    for candidate in _changed(text):
        if candidate != text:
            found.setdefault(candidate)
        if len(found) == count:
            break
    return list(found)


_NUMBER = re.compile(r"(?<![\d.,!])\d+(?:,\d{3})*(?:\.\d+)?(?![\d.])")


def _changed(text: str) -> Iterator[str]:
    numbers = list(_NUMBER.finditer(text))
    for step in (
        1,
        2,
        3,
        5,
        7,
        10,
        11,
        13,
        20,
        30,
        50,
        99,
        100,
        101,
        1000,
        1001,
        2000,
        3000,
        4000,
        7000,
    ):
        for match in numbers:
            value = Fraction(match.group().replace(",", "")) + step
            places = len(match.group().partition(".")[2])
            yield f"{text[: match.start()]}{float(value):.{places}f}{text[match.end() :]}"
    for word in ("north", "odd", "Robin", "circle", "line", "7", "0", "-1", "x", "2k+1"):
        yield f"\\text{{{word}}}" if word.isalpha() and len(word) > 1 else word
        yield f"{word}+k" if word.isdigit() else f"\\text{{not {word}}}"
        yield f"\\text{{{word} {word}}}"
