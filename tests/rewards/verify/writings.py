"""Rules that write one mathematical answer in many ways, and rules that make wrong ones of it."""

import random
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


def random_number(rng: random.Random) -> Fraction:
    kind = rng.choice(["whole", "decimal", "fraction"])
    if kind == "whole":
        return Fraction(rng.randint(-2000, 2000))
    if kind == "decimal":
        return Fraction(rng.randint(-99999, 99999), 10 ** rng.randint(1, 4))
    return Fraction(rng.randint(-40, 40), rng.randint(1, 40))


def number_pairs(seed: str, count: int) -> Iterator[tuple[str, str, bool]]:
    """Two writings of numbers, and whether the numbers are equal."""
    rng = random.Random(seed)
    for _ in range(count):
        value = random_number(rng)
        other = rng.choice([value, -value, value + 1, value * 10, value + Fraction(1, 7)])
        gold, answer = (rng.choice(number_writings(number)) for number in (value, other))
        yield gold, answer, value == other


_BRACKETS = ("()", "()", "[]", "(]", "[)", "{}", "  ")


def list_pairs(seed: str, count: int) -> Iterator[tuple[str, str]]:
    """Two tuples, intervals, sets or bare lists of a few numbers, some of them equal: with and
    without spaces after commas, with commas between thousands, items in another order."""
    rng = random.Random(seed)
    for _ in range(count):
        values = [random_number(rng) for _ in range(rng.choice([2, 2, 3, 4]))]
        others = list(values)
        change = rng.choice(["none", "none", "order", "value", "length", "repeat"])
        if change == "order":
            rng.shuffle(others)
        elif change == "value":
            others[rng.randrange(len(others))] += rng.choice([Fraction(1), Fraction(-1, 3)])
        elif change == "length":
            others.pop()
        elif change == "repeat":
            others.append(others[0])
        brackets = rng.choice(_BRACKETS)
        other_brackets = brackets if rng.random() < 0.7 else rng.choice(_BRACKETS)
        yield _list_text(rng, values, brackets), _list_text(rng, others, other_brackets)


def _list_text(rng: random.Random, values: list[Fraction], brackets: str) -> str:
    items = [rng.choice(number_writings(value)) for value in values]
    if rng.random() < 0.6:  # the plainest writing of each
        items = [str(value) for value in values]
    text = items[0]
    comma = rng.choice([",", ", ", " , "])
    for item in items[1:]:
        text += (comma if rng.random() < 0.9 else rng.choice([",", ", "])) + item
    left = brackets[0]
    right = brackets[1]
    if brackets == "{}":
        return rf"\{{{text}\}}"
    if brackets == "  ":
        return text
    return rng.choice([f"{left}{text}{right}", rf"\left{left}{text}\right{right}"])


_ATOMS = ("x", "y", "n", r"\pi", r"\sqrt{2}", r"\sqrt{12}", "i", r"\sqrt3", "2", "3", "7")

_DIVISORS = ("2", "3", "6", r"2\sqrt{2}", r"5\pi")


def _product_text(rng: random.Random) -> str:
    """A product of a few factors, among them sums in brackets and fractions."""
    factors = [rng.choice(_ATOMS[-3:])] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 2)):
        factor = rng.choice(_ATOMS[:8])
        if rng.random() < 0.25:
            factor = f"({factor}{rng.choice('+-')}{rng.randint(1, 9)})"
        if rng.random() < 0.2:
            factor += rng.choice(["^2", "^{3}"])
        factors.append(factor)
    text = rng.choice(["", r"\cdot "]).join(factors)
    kind = rng.random()
    if kind < 0.15:
        return rf"\frac{{{text}}}{{{rng.choice(_DIVISORS)}}}"
    return f"{text}/{rng.randint(2, 6)}" if kind < 0.25 else text


def expression_pairs(seed: str, count: int) -> Iterator[tuple[str, str]]:
    """Two sums of products; half of the pairs are equal, by their terms in another order, one of
    them divided, or a square multiplied out."""
    rng = random.Random(seed)
    for _ in range(count):
        terms = [_product_text(rng) for _ in range(rng.randint(1, 3))]
        gold = "+".join(terms)
        change = rng.choice(["order", "half", "square", "term", "sign", "factor"])
        if change == "order":
            answer = "+".join(reversed(terms))
        elif change == "half":
            answer = "+".join(rf"\frac{{2({term})}}{{2}}" for term in terms)
        elif change == "square":
            letter, k = rng.choice("xyn"), rng.randint(1, 9)
            gold = f"({letter}-{k})^2+{gold}"
            answer = f"{letter}^2-{2 * k}{letter}+{k * k}+" + "+".join(terms)
        elif change == "term":
            answer = f"{gold}+{rng.choice(_ATOMS)}"
        elif change == "sign":
            answer = f"-({gold})"
        else:
            answer = f"{rng.choice(_ATOMS[5:])}({gold})"
        yield gold, answer


_PIECES = (
    *(*_ATOMS, "xy", "ab", "0", "10", "12", "1.5"),
    *("+", "-", "*", r"\cdot ", "/", "^", "^2", "(", ")", "{", "}", " "),
    *(r"\frac{1}{2}", r"\frac", r"\sqrt"),
)


def expression_fragments(seed: str, count: int) -> Iterator[str]:
    """Texts of a few pieces of expressions side by side, most of them no expression."""
    rng = random.Random(seed)
    for _ in range(count):
        yield "".join(rng.choice(_PIECES) for _ in range(rng.randint(1, 6)))
