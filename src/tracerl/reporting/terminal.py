"""What may reach a terminal: model output is hostile."""


def printable(text: str) -> str:
    """Text without anything that a terminal would obey; line breaks stay."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )
