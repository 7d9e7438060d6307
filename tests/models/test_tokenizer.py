"""Text goes through the tokenizers whole or not at all."""

import pytest

from tracerl.errors import DataError
from tracerl.models.tokenizer import END, character_tokenizer, load_tokenizer


def test_every_printable_character_comes_back():
    tokenizer = character_tokenizer()
    text = "".join(map(chr, range(32, 127))) + "\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text) == tokenizer.vocab_size - 2


def test_a_character_without_a_token_is_an_error_not_another_character():
    with pytest.raises(DataError, match=r"2\\xd73"):
        character_tokenizer().prompt_ids("2\u00d73=")


def test_the_name_of_a_special_token_in_a_text_is_text():
    tokenizer = character_tokenizer()
    ids = tokenizer.encode(f"a{END}b")
    assert not {*tokenizer.end_ids, tokenizer.mask_id} & set(ids)
    assert tokenizer.decode(ids) == f"a{END}b"


def test_a_saved_tokenizer_does_the_same(tmp_path):
    tokenizer = character_tokenizer()
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path, None)
    assert (loaded.mask_id, loaded.end_ids, loaded.vocab_size) == (tokenizer.mask_id, tokenizer.end_ids, tokenizer.vocab_size)
    assert loaded.encode("1+2=") == tokenizer.encode("1+2=")
    with pytest.raises(DataError):
        loaded.encode("\u00d7")


def test_a_chat_template_is_rendered_with_its_special_tokens(tmp_path):
    tokenizer = character_tokenizer()
    tokenizer.template = "{{ messages[0]['content'] }}" + END
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path, None)
    assert loaded.prompt_ids("1+2=") == [*tokenizer.encode("1+2="), *tokenizer.end_ids]
