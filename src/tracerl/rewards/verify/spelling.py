"""One spelling for what LaTeX and Unicode write in several ways.

Law: nothing that tells two answers apart is dropped. Row breaks, currency signs, degree signs and
bases stay; of spaces only those go that separate nothing (`2 + 3`, but not `3 1/2`, nor the one
after a comma between digits).
"""

# ruff: noqa: RUF001

import itertools
import re

_SYMBOLS = {
    "−": "-",
    "–": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "⁄": "/",
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "≡": r"\equiv ",
    "°": r"^\circ ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∖": r"\setminus ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "ℝ": r"\mathbb{R}",
    "∨": r"\lor ",
    "∧": r"\land ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "√": r"\sqrt ",
    "θ": r"\theta ",
    "α": r"\alpha ",
    "β": r"\beta ",
    "⟨": "(",
    "⟩": ")",
    "…": "...",
    "\u00a0": " ",
    "\u202f": r"\,",
    "\u2009": r"\,",
}
_SYMBOL = re.compile("|".join(map(re.escape, _SYMBOLS)))
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")

# Names of functions and constants that are also written without a backslash.
FUNCTIONS = {
    "sqrt": r"\sqrt",
    "pi": r"\pi",
    "sin": r"\sin",
    "cos": r"\cos",
    "tan": r"\tan",
    "log": r"\log",
    "ln": r"\ln",
    "exp": r"\exp",
    "infinity": r"\infty",
    "inf": r"\infty",
    "oo": r"\infty",
}

_COMMANDS = {
    **dict.fromkeys(("displaystyle", "textstyle", "limits", "mathstrut"), ""),
    **dict.fromkeys(("left", "right", "big", "bigl", "bigr", "Big", "Bigl", "Bigr"), ""),
    **dict.fromkeys(("mathbf", "mathit", "boldsymbol", "mathsf", "mathtt", "bm"), ""),
    **dict.fromkeys(("quad", "qquad", "space"), " "),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), r"\frac "),
    **dict.fromkeys(("dbinom", "tbinom"), r"\binom "),
    **dict.fromkeys(("leq", "leqslant", "leqq"), r"\le "),
    **dict.fromkeys(("geq", "geqslant", "geqq"), r"\ge "),
    **dict.fromkeys(("neq",), r"\ne "),
    **dict.fromkeys(("vee",), r"\lor "),
    **dict.fromkeys(("wedge",), r"\land "),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(("colon",), ":"),
    **dict.fromkeys(("varnothing",), r"\emptyset "),
    **dict.fromkeys(("backslash", "smallsetminus"), r"\setminus "),
    **dict.fromkeys(("ldots", "dots", "cdots"), "..."),
    **dict.fromkeys(("degree", "textdegree"), r"^\circ "),
    **dict.fromkeys(("ast",), r"\cdot "),
    **dict.fromkeys(("pmod", "mod", "bmod"), r"\mod "),
    **dict.fromkeys(("R", "Reals", "reals"), r"\mathbb{R}"),
    **dict.fromkeys(("pounds", "textsterling"), "£"),
    **dict.fromkeys(("euro", "texteuro"), "€"),
    **dict.fromkeys(("cent", "textcent"), "¢"),
    **dict.fromkeys(("text", "textbf", "textit", "textrm", "mbox", "mathrm", "rm"), r"\text "),
    **dict.fromkeys(("textnormal", "operatorname", "operatorname*"), r"\text "),
    "dollar": r"\$",
    "textdollar": r"\$",
    "lt": "<",
    "gt": ">",
    "bar": r"\overline ",
    "lbrace": r"\{",
    "rbrace": r"\}",
    "lbrack": "[",
    "rbrack": "]",
    "langle": "(",
    "rangle": ")",
}
_SIGNS = {
    **dict.fromkeys((r"\!", r"\(", r"\)", r"\[", r"\]"), ""),
    **dict.fromkeys((r"\,", r"\;", r"\:", r"\>", r"\ ", "~"), " "),
    r"\%": "%",
    r"\-": "",
}
# A row break comes first, so that its second backslash begins nothing.
_TOKEN = re.compile(
    r"(?P<row>\\\\(?:\s*\[[\d. a-z-]{0,12}\])?)|\\(?P<command>[A-Za-z]+\*?)|(?P<sign>\\.|~)",
    re.DOTALL,
)
_THOUSANDS_SPACE = re.compile(r"(?<=\d)(?:\\,|\{\s*,\s*\}|,\s*\\!)\s*(?=\d{3}(?!\d))", re.ASCII)
_CHOOSE = re.compile(r"\{([^{}]{1,40}?)\\choose(?![A-Za-z])([^{}]{1,40})\}")
_WORD_GAP = re.compile(r"[A-Za-z0-9.][A-Za-z0-9.]", re.ASCII)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,]|\.\d*,)", re.ASCII)


def clean(text: str) -> str:
    """The text in one spelling. Linear in its length; safe on any text."""
    # Most answers are a few plain characters: a step is left out where it would find nothing.
    if not text.isascii():
        text = _SYMBOL.sub(lambda match: _SYMBOLS[match.group()], text)
        text = _SUPERSCRIPT.sub(_with_caret, text)
    if "\\," in text or ("," in text and ("{" in text or "\\!" in text)):
        text = _THOUSANDS_SPACE.sub("", text)
    if "$" in text:
        text = _without_delimiters(text)
    if "\\" in text or "~" in text:
        text = _TOKEN.sub(_spell, text)
    if "\\choose" in text:
        text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    text = _without_gaps(text)
    text = _trimmed(text)
    while (inner := _sole_group(text)) is not None:
        text = _trimmed(inner)
    return text


def _with_caret(match: re.Match[str]) -> str:
    return f"^{{{match.group().translate(_SUPERSCRIPTS)}}}"


def _trimmed(text: str) -> str:
    """Without the full stop or comma of the sentence around it."""
    return text.strip() if text.endswith("...") else text.rstrip("., \n\t").strip()


def thousands(text: str) -> list[tuple[int, int]]:
    """(start, end) of every number that is written with commas between groups of three digits."""
    return [match.span() for match in _THOUSANDS.finditer(text)]


def without_thousands(text: str) -> str:
    """The text with those commas left out."""
    if "," not in text:
        return text
    return _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)


def _without_delimiters(text: str) -> str:
    """The text without dollar signs that delimit mathematics. One before a number that no other
    closes is currency, and is written `\\$`."""
    if text[0] == text[-1] == "$" and text.count("$") == 2 and not text.endswith("\\$"):
        return text[1:-1]
    signs = [match.start() for match in re.finditer(r"(?<!\\)\$", text)]
    if not signs:
        return text
    bare = text.strip().rstrip(".")
    paired = len(signs) % 2 == 0
    if paired and not (
        all(re.match(r"\s*-?[\d.]", text[place + 1 :]) for place in signs)
        and not bare.endswith("$")
    ):
        return re.sub(r"(?<!\\)\$", "", text)
    return re.sub(r"(?<!\\)\$(\s*-?[\d.])?", lambda m: rf"\${m[1]}" if m[1] else "", text)


def _spell(match: re.Match[str]) -> str:
    if match["row"]:
        return r"\\"
    if match["command"]:
        name = match["command"]
        return _COMMANDS.get(name, match.group())
    return _SIGNS.get(match["sign"], match["sign"])


def _without_gaps(text: str) -> str:
    """Leaves out the spaces that separate nothing."""
    parts = text.split()
    if len(parts) < 2:
        return parts[0] if parts else ""
    out = [parts[0]]
    for left, right in itertools.pairwise(parts):
        pair = left[-1] + right[0]
        separates = _WORD_GAP.fullmatch(pair) or (pair[0] == "," and right[0].isdigit())
        out.append(f" {right}" if separates else right)
    return "".join(out)


def _sole_group(text: str) -> str | None:
    """The inside of braces or a \\text that hold everything; None if there are none."""
    if not text.endswith("}"):
        return None
    for opening in (r"\text{", r"\boxed{", r"\fbox{", "{"):
        if text.startswith(opening):
            inside = text[len(opening) : -1]
            return inside if _is_balanced(inside) else None
    return None


def _is_balanced(text: str) -> bool:
    """Whether no brace closes that was not opened."""
    level = 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        level += {"{": 1, "}": -1}.get(match.group(), 0)
        if level < 0:
            return False
    return level == 0
