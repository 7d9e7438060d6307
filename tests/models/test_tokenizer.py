"""Text goes through the tokenizers whole or not at all."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import models, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from tracerl.errors import CheckpointError, DataError
from tracerl.models.tokenizer import END, Tokenizer, character_tokenizer, load_tokenizer


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
    assert (loaded.mask_id, loaded.end_ids, loaded.vocab_size) == (
        tokenizer.mask_id,
        tokenizer.end_ids,
        tokenizer.vocab_size,
    )
    assert loaded.encode("1+2=") == tokenizer.encode("1+2=")
    with pytest.raises(DataError):
        loaded.encode("\u00d7")


def test_a_chat_template_is_rendered_with_its_special_tokens(tmp_path):
    tokenizer = character_tokenizer()
    tokenizer.template = "{{ messages[0]['content'] }}" + END
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path, None)
    assert loaded.prompt_ids("1+2=") == [*tokenizer.encode("1+2="), *tokenizer.end_ids]


class CountingTokenizer(Tokenizer):
    """Counts the conversations that it renders."""

    num_renders = 0

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        self.num_renders += 1
        return super().chat_ids(messages)


def test_a_prompt_is_rendered_once_and_its_ids_belong_to_the_caller():
    plain = character_tokenizer()
    tokenizer = CountingTokenizer(plain.file, plain.end_ids, plain.mask_id, None)
    ids = tokenizer.prompt_ids("1+2=")
    ids.append(5)
    assert tokenizer.prompt_ids("1+2=") == plain.encode("1+2=")
    assert tokenizer.prompt_ids("1+3=") == plain.encode("1+3=")
    assert tokenizer.num_renders == 2


# Published forms

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
TEXTS = [
    "the cat's 12 hats\n\n  sat",
    "na\u0069\u0308ve caf\u00e9 \u00fcber",
    "x = 3*(4+5)\t# \u4f60\u597d",
    "<|im_end|> is text",
]
TEMPLATE = """{% for message in messages %}
    {% if message.role not in ['user', 'assistant', 'system'] %}
        {{ raise_exception('no such role') }}
    {% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + eos_token + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{% endif %}"""


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A directory as Dream and SDAR are published: vocab.json, merges.txt, added tokens in
    tokenizer_config.json, and no tokenizer.json."""
    file = TokenizerFile(models.BPE())
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    file.train_from_iterator(["the cat sat on the mat and the other cats sat there"] * 3, trainer)
    file.model.save(str(tmp_path))
    size = file.get_vocab_size()
    added = {
        str(size + i): {"content": text, "special": True, "normalized": False}
        for i, text in enumerate(SPECIAL)
    }
    config = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": added,
        "eos_token": "<|endoftext|>",
        "mask_token": {"content": "<|mask|>"},
        "pad_token": "<|endoftext|>",
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": TEMPLATE},
        ],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenization_dream.py").write_text("raise SystemExit('remote code was run')")
    return tmp_path


def test_vocab_and_merges_give_what_transformers_own_class_gives(published):
    ours = load_tokenizer(published)
    config = json.loads((published / "tokenizer_config.json").read_text())
    del config["auto_map"], config["chat_template"]
    config.update(tokenizer_class="Qwen2Tokenizer", mask_token="<|mask|>")
    (published / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = Qwen2Tokenizer.from_pretrained(published, local_files_only=True)
    assert ours.vocab_size == len(theirs)
    for text in TEXTS[:-1]:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    assert ours.decode(ours.encode(TEXTS[-1])) == TEXTS[-1], "a user's text cannot end a turn"
    ids = [theirs.convert_tokens_to_ids(name) for name in SPECIAL]
    assert (ours.end_ids, ours.mask_id, ours.pad_id) == ((ids[0],), ids[3], ids[0])
    assert load_tokenizer(
        published, None, ("<|endoftext|>", "<|im_end|>", "<|eot_id|>")
    ).end_ids == (ids[0], ids[2])


def test_files_come_back_as_they_were(published, tmp_path):
    (tmp_path / "again").mkdir()
    load_tokenizer(published).save(tmp_path / "again")
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (published / name).read_bytes()
    assert len(list((tmp_path / "again").iterdir())) == 3


def test_templates_are_rendered_as_transformers_renders_them(published):
    ours = load_tokenizer(published)
    messages = [
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": " sat"},
        {"role": "user", "content": "mat"},
    ]
    theirs = render_jinja_template(
        [messages], chat_template=TEMPLATE, add_generation_prompt=True, eos_token="<|endoftext|>"
    )[0][0]
    ids = ours.chat_ids(messages)
    assert ours.file.decode(ids, skip_special_tokens=False) == theirs
    assert [ours.file.id_to_token(i) for i in ids].count("<|im_start|>") == 4
    assert ours.prompt_ids("mat") == ours.chat_ids(messages[-1:])
    with pytest.raises(DataError, match="no such role"):
        ours.chat_ids([{"role": "hacker", "content": ""}])


def test_a_template_that_is_none_and_code_in_a_template_are_refused(published):
    (published / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(CheckpointError, match="chat template"):
        load_tokenizer(published)
    (published / "chat_template.jinja").write_text(
        "{{ messages.__class__.__base__.__subclasses__() }}"
    )
    with pytest.raises(DataError, match="unsafe"):
        load_tokenizer(published).prompt_ids("mat")


def test_an_added_token_with_a_gap_before_it_is_named(published):
    config = json.loads((published / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {"999": {"content": "<|far|>"}}
    (published / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="999"):
        load_tokenizer(published)


def test_a_tokenizer_of_another_kind_needs_its_tokenizer_json(published):
    config = json.loads((published / "tokenizer_config.json").read_text())
    (published / "tokenizer_config.json").write_text(
        json.dumps({**config, "tokenizer_class": "GPT2Tokenizer"})
    )
    with pytest.raises(CheckpointError, match="GPT2Tokenizer"):
        load_tokenizer(published)
    (published / "tokenizer_config.json").write_text(json.dumps(config))
    (published / "vocab.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"vocab\.json"):
        load_tokenizer(published)
