"""Chunks partition a response, end where a separator does, and are never blank."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracerl.models.tokenizer import character_tokenizer
from tracerl.rewards.judges.chunks import split
from tracerl.settings.rewards import Process

TOKENIZER = character_tokenizer()
END = TOKENIZER.end_ids[0]


def process(max_chunks: int = 100, **how) -> Process:
    return Process(judge="j", weight=1.0, max_chunks=max_chunks, **how)


def texts(text: str, **how) -> list[str]:
    return split([*TOKENIZER.encode(text), END], TOKENIZER.decode, process(**how))[1]


@pytest.mark.parametrize(
    ("text", "how", "wanted"),
    [
        ("11;16;#16", {"separators": [";"]}, ["11;", "16;", "#16"]),
        ("11;16;", {"separators": [";"]}, ["11;", "16;"]),  # the end token joins the last step
        ("a\n\n\nb\n", {"separators": ["\n"]}, ["a\n", "\n\nb\n"]),
        ("a\n\nb c\nd\n\ne", {"separators": ["\n\n"]}, ["a\n\n", "b c\nd\n\n", "e"]),
        ("a;b\nc", {"separators": [";", "\n"]}, ["a;", "b\n", "c"]),
        ("abcde", {"separators": [";"]}, ["abcde"]),
        ("abcde", {"chunk_tokens": 2}, ["ab", "cd", "e"]),
        ("abcd", {"chunk_tokens": 2}, ["ab", "cd"]),
        ("a;b;c;d", {"separators": [";"], "max_chunks": 2}, ["a;", "b;c;d"]),
        ("a;b;c;d", {"separators": [";"], "max_chunks": 1}, ["a;b;c;d"]),
        ("", {"separators": [";"]}, [""]),
        (" \n ", {"separators": ["\n"]}, [" \n "]),
    ],
)
def test_chunks(text, how, wanted):
    assert texts(text, **how) == wanted


@given(
    text=st.text("ab;\n ", max_size=40),
    end=st.booleans(),
    number=st.integers(1, 5),
    size=st.integers(1, 6),
    by=st.booleans(),
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_chunks_are_a_partition(text, end, number, size, by):
    ids = [*TOKENIZER.encode(text), *([END] if end or not text else [])]
    how = {"separators": [";", "\n\n"]} if by else {"chunk_tokens": size}
    ends, found = split(ids, TOKENIZER.decode, process(number, **how))
    assert ends == sorted(set(ends))
    assert ends[-1] == len(ids)
    assert ends[0] > 0
    assert len(ends) <= number
    assert "".join(found) == text
    assert all(one.strip() for one in found) or not text.strip()


def test_a_token_that_holds_more_than_a_separator_ends_its_chunk():
    pieces = {1: "11;\n#", 2: "16", 3: "a\n", 4: "\nb"}

    def decode(ids):
        return "".join(pieces[i] for i in ids)

    assert split([1, 2], decode, process(separators=[";"])) == ([1, 2], ["11;\n#", "16"])
    assert split([3, 4, 2], decode, process(separators=["\n\n"])) == ([2, 3], ["a\n\nb", "16"])
