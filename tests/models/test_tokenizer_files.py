"""Ids of a directory are those that transformers makes of it, however it was built; special ids do
not contradict each other; a template cannot harm or stop a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from tests.tokenizer_directories import MAKERS, NAMES, byte_level, token, write
from tracerl.errors import CheckpointError, DataError
from tracerl.models.tokenizer import Tokenizer, load_tokenizer

TEXTS = [
    "the cat's 12 hats\n\n  sat on the other mat, 46 of 640",
    "na\u0069\u0308ve caf\u00e9 \u00fcber x = 3*(4+5)\t# \u4f60\u597d",
    "<|im_end|> the <think> cat </think> sat <|tool|><|role|><|mask|>",
]
MESSAGES = [
    {"role": "user", "content": "the cat sat on the mat and the other cats sat there"},
    {"role": "assistant", "content": "46 <think> hats"},
    {"role": "user", "content": "of 640"},
]


@pytest.fixture(scope="module", params=MAKERS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizers") / str(request.param)
    MAKERS[request.param](folder)
    return folder


def transformers_tokenizer(directory: Path) -> Any:
    if (directory / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
    return Qwen2Tokenizer.from_pretrained(directory, local_files_only=True)


def test_ids_and_names_are_those_of_transformers(directory):
    ours = load_tokenizer(directory)
    theirs = transformers_tokenizer(directory)
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.vocab_size == len(theirs)
    assert (ours.mask_id, ours.end_ids, ours.pad_id) == (
        theirs.mask_token_id,
        (theirs.eos_token_id,),
        theirs.pad_token_id,
    )
    special = theirs(TEXTS[2], add_special_tokens=False)["input_ids"]
    assert ours.decode(special) == theirs.decode(special, skip_special_tokens=True)


def test_ids_are_those_of_the_class_that_transformers_chooses(directory):
    theirs = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    ids = theirs(TEXTS[0], add_special_tokens=False)["input_ids"]
    assert load_tokenizer(directory).encode(TEXTS[0]) == ids


def test_conversations_have_the_ids_that_transformers_gives_them(directory):
    theirs = transformers_tokenizer(directory)
    if theirs.chat_template is None:
        assert load_tokenizer(directory).template is None
        return
    ids = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    ours = load_tokenizer(directory)
    assert ours.chat_ids(MESSAGES) == ids
    assert (
        ours.prompt_ids("the cat")
        == (
            theirs.apply_chat_template(
                [{"role": "user", "content": "the cat"}], add_generation_prompt=True
            )["input_ids"]
        )
    )


# Special ids


@pytest.mark.parametrize(
    ("config", "generation", "part"),
    [
        ({"pad_token": "<|mask|>"}, {}, "pad"),
        ({"eos_token": "<|mask|>"}, {}, "end"),
        ({}, {"eos_token_id": [301, 303]}, "end"),
        ({}, {"pad_token_id": 303}, "pad"),
    ],
)
def test_a_mask_that_is_an_end_or_the_pad_is_refused(tmp_path, config, generation, part):
    write(tmp_path / "x", byte_level(), {**NAMES, **config}, generation_config=generation)
    size = byte_level().get_vocab_size()
    text = (tmp_path / "x" / "generation_config.json").read_text()
    text = text.replace("301", str(size - 3)).replace("303", str(size - 1))
    (tmp_path / "x" / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"mask token is also .*{part}") as raised:
        load_tokenizer(tmp_path / "x")
    assert "<|mask|>" in str(raised.value)


@pytest.mark.parametrize("value", [["<|im_end|>"], 2.0, True, [True], [2, None], {"a": 1}, -1])
@pytest.mark.parametrize("name", ["generation_config", "config"])
def test_an_end_that_is_no_id_is_refused(tmp_path, name, value):
    names = {"mask_token": "<|mask|>"}
    others: dict[str, object] = {name: {"eos_token_id": value}}
    write(tmp_path / "x", byte_level(), names, **others)
    with pytest.raises(CheckpointError, match="eos_token_id"):
        load_tokenizer(tmp_path / "x")


def test_ends_and_pad_that_only_the_models_config_names_are_used(tmp_path):
    names = {"mask_token": "<|mask|>"}
    write(tmp_path / "x", byte_level(), names, config={"eos_token_id": [5, 6], "pad_token_id": 7})
    ours = load_tokenizer(tmp_path / "x")
    assert (ours.end_ids, ours.pad_id) == ((5, 6), 7)


def test_an_added_token_that_cannot_have_its_id_is_named(tmp_path):
    described = {"999": token("<|far|>")}
    write(tmp_path / "x", byte_level(), {**NAMES, "added_tokens_decoder": described})
    with pytest.raises(CheckpointError, match=r"999.*<\|far\|>"):
        load_tokenizer(tmp_path / "x")
    write(tmp_path / "y", byte_level(), NAMES, added_tokens={"<|far|>": 999})
    with pytest.raises(CheckpointError, match=r"999.*<\|far\|>"):
        load_tokenizer(tmp_path / "y")


# Templates of strangers


def with_template(folder: Path, template: str) -> Path:
    write(folder, byte_level(), {**NAMES, "chat_template": template})
    return folder


HOSTILE = {
    "{{ 1/0 }}": "ZeroDivisionError",
    "{{ messages + 1 }}": "TypeError",
    "{{ range(10**9) | list }}": "Overflow",
    "{{ ('a' * 10**11) | length }}": "MemoryError",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "RecursionError",
    "{% include 'x' %}": "TypeError",
    "{{ messages.__class__.__mro__ }}": "unsafe",
    "{{ 'long' * 10000000 }}": "characters",
    "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}": "too much time",
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A template that does, for a message of that number, what no template should."""
    branches = [
        f"{{% if messages[0]['content'] == '{i}' %}}{body}{{% endif %}}"
        for i, body in enumerate(HOSTILE)
    ]
    folder = tmp_path_factory.mktemp("templates") / "x"
    return load_tokenizer(with_template(folder, "fine" + "".join(branches)))


@pytest.mark.parametrize("number", range(len(HOSTILE)), ids=list(HOSTILE.values()))
def test_whatever_a_template_does_is_an_error_of_ours_and_the_next_one_renders(hostile, number):
    with pytest.raises(DataError, match=list(HOSTILE.values())[number]):
        hostile.prompt_ids(str(number))
    assert hostile.prompt_ids("go") == hostile.encode("fine")


@pytest.mark.parametrize("template", ["{% if %}", "{{ x", "{% frobnicate %}"])
def test_a_template_that_is_none_is_refused_when_it_is_loaded(tmp_path, template):
    with pytest.raises(CheckpointError, match="invalid chat template"):
        load_tokenizer(with_template(tmp_path / "x", template))


@pytest.mark.parametrize(
    "templates", [5, [1], ["default"], [{"name": "default"}], [{"name": "default", "template": 5}]]
)
def test_templates_of_another_type_are_refused(tmp_path, templates):
    write(tmp_path / "x", byte_level(), {**NAMES, "chat_template": templates})
    with pytest.raises(CheckpointError, match="invalid chat template"):
        load_tokenizer(tmp_path / "x")


def test_a_template_that_is_not_text_is_refused(tmp_path):
    write(tmp_path / "x", byte_level(), NAMES)
    (tmp_path / "x" / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        load_tokenizer(tmp_path / "x")


def test_a_message_that_is_no_text_is_an_error_of_ours(tmp_path):
    write(tmp_path / "x", byte_level(), NAMES)
    with pytest.raises(DataError, match="no text"):
        load_tokenizer(tmp_path / "x").chat_ids([{"role": "user", "content": ["a"]}])


def test_a_tokenizer_that_this_package_wrote_needs_nothing_else(tmp_path):
    """The short way of reading, without transformers, gives the same."""
    write(tmp_path / "x", byte_level(), {"eos_token": "<|endoftext|>", "mask_token": "<|mask|>"})
    short = load_tokenizer(tmp_path / "x")
    config = {**json.loads((tmp_path / "x" / "tokenizer_config.json").read_text()), "x": 1}
    (tmp_path / "x" / "tokenizer_config.json").write_text(json.dumps(config))
    long = load_tokenizer(tmp_path / "x")
    assert str(short.file.get_added_tokens_decoder()) == str(long.file.get_added_tokens_decoder())
    assert [short.encode(text) for text in TEXTS] == [long.encode(text) for text in TEXTS]
    assert (short.names, short.end_ids, short.mask_id) == (long.names, long.end_ids, long.mask_id)
