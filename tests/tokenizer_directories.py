"""Tokenizer directories as they are published, built in as many ways as their files can differ."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as TokenizerFile

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
CORPUS = ["the cat sat on the mat and the other cats sat there, 46 of 640 hats"] * 3
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES: dict[str, Any] = {
    "eos_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
    "mask_token": "<|mask|>",
}


def byte_level(special: tuple[str, ...] = SPECIAL) -> TokenizerFile:
    """A small byte-level BPE with added special tokens."""
    file = TokenizerFile(models.BPE())
    file.normalizer = normalizers.NFC()
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    file.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    file.train_from_iterator(CORPUS, trainer)
    file.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return file


def metaspace() -> TokenizerFile:
    """A small BPE of words that begin with a visible space, as Llama's."""
    file = TokenizerFile(models.BPE(unk_token="<unk>", byte_fallback=False))
    file.pre_tokenizer = pre_tokenizers.Metaspace()
    file.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=["<unk>", *SPECIAL], show_progress=False
    )
    file.train_from_iterator(CORPUS, trainer)
    return file


def write(
    folder: Path, file: TokenizerFile, tokenizer_config: dict[str, Any], **others: object
) -> None:
    """tokenizer.json, tokenizer_config.json, and other files by the stem of their name."""
    folder.mkdir(parents=True)
    file.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    for name, content in others.items():
        write_json(folder / f"{name}.json", content)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def plain(folder: Path) -> None:
    write(folder, byte_level(), {**NAMES, "chat_template": CHAT})


def truncated(folder: Path) -> None:
    file = byte_level()
    file.enable_truncation(6)
    write(folder, file, {**NAMES, "chat_template": CHAT})


def padded(folder: Path) -> None:
    file = byte_level()
    file.enable_padding(length=40, pad_id=300, pad_token="<|endoftext|>")
    write(folder, file, NAMES)


def truncated_and_padded(folder: Path) -> None:
    file = byte_level()
    file.enable_truncation(16)
    file.enable_padding(length=40, direction="left", pad_id=300, pad_token="<|endoftext|>")
    write(folder, file, NAMES)


def added_in_config(folder: Path) -> None:
    file = byte_level()
    size = file.get_vocab_size()
    described = {}
    for i, text in enumerate(SPECIAL):
        described[str(size - len(SPECIAL) + i)] = token(text)
    described[str(size)] = token("<|role|>")
    template = CHAT.replace("<|im_start|>", "<|role|>")
    write(folder, file, {**NAMES, "added_tokens_decoder": described, "chat_template": template})


def mask_in_config_alone(folder: Path) -> None:
    file = byte_level(SPECIAL[:3])
    described = {str(file.get_vocab_size()): token("<|mask|>")}
    write(folder, file, {**NAMES, "added_tokens_decoder": described})


def flags_in_config(folder: Path) -> None:
    """Tokens that swallow the spaces beside them, one of them a word of the vocabulary."""
    file = byte_level()
    size = file.get_vocab_size()
    described = {
        str(size): {**token("<think>"), "lstrip": True, "rstrip": True},
        str(size + 1): {**token("</think>"), "special": False, "single_word": True},
    }
    write(folder, file, {**NAMES, "added_tokens_decoder": described})


def special_in_config(folder: Path) -> None:
    """tokenizer.json has the token as plain, tokenizer_config.json as special."""
    file = byte_level()
    file.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    described = {str(file.get_vocab_size() - 1): token("<think>")}
    write(folder, file, {**NAMES, "added_tokens_decoder": described})


def extra_list(folder: Path) -> None:
    write(folder, byte_level(), {**NAMES, "extra_special_tokens": ["<|tool|>", "<|call|>"]})


def extra_names(folder: Path) -> None:
    template = "{{ boi_token }}" + CHAT + "{{ eoi_token }}"
    extra = {"boi_token": "<|boi|>", "eoi_token": "<|im_end|>"}
    config = {**NAMES, "extra_special_tokens": extra, "chat_template": template}
    write(folder, byte_level(), config)


def additional(folder: Path) -> None:
    write(folder, byte_level(), {**NAMES, "additional_special_tokens": ["<|tool|>"]})


def added_tokens_file(folder: Path) -> None:
    file = byte_level()
    size = file.get_vocab_size()
    write(folder, file, NAMES, added_tokens={"<|tool|>": size, "<|call|>": size + 1})


def special_tokens_file(folder: Path) -> None:
    """eos, pad and mask are named in special_tokens_map.json alone, one with its flags."""
    names = {**NAMES, "mask_token": {"content": "<|mask|>", "lstrip": False, "rstrip": False}}
    write(folder, byte_level(), {}, special_tokens_map=names)


def words(folder: Path) -> None:
    write(folder, metaspace(), {**NAMES, "unk_token": "<unk>"})


def everything_in_a_template(folder: Path) -> None:
    template = (
        "{% if tools is not none %}TOOLS{% endif %}{% if documents is not none %}DOCS{% endif %}"
        "{{ strftime_now('%Y') }}{% set ns = namespace(n=0) %}{% for m in messages %}"
        "{% if loop.index > 9 %}{% break %}{% endif %}{% generation %}{{ m['content'] }}"
        "{% endgeneration %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
        "{{ dict(a=1) | tojson }}{{ eos_token }}{{ mask_token }}"
    )
    write(folder, byte_level(), {**NAMES, "chat_template": template})


def template_file(folder: Path) -> None:
    """A template in a file of its own counts before the one in the config."""
    write(folder, byte_level(), {**NAMES, "chat_template": "no"})
    (folder / "chat_template.jinja").write_text(CHAT)


def merges(folder: Path) -> None:
    """vocab.json and merges.txt, added tokens in the config, as Qwen's and Dream's."""
    folder.mkdir(parents=True)
    file = byte_level(())
    file.model.save(str(folder))
    size = file.get_vocab_size()
    described = {str(size + i): token(text) for i, text in enumerate(SPECIAL)}
    config = {**NAMES, "tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": described}
    write_json(folder / "tokenizer_config.json", {**config, "chat_template": CHAT})


def merges_and_added_tokens_file(folder: Path) -> None:
    folder.mkdir(parents=True)
    file = byte_level(())
    file.model.save(str(folder))
    size = file.get_vocab_size()
    write_json(folder / "added_tokens.json", {text: size + i for i, text in enumerate(SPECIAL)})
    write_json(folder / "tokenizer_config.json", {**NAMES, "tokenizer_class": "Qwen2Tokenizer"})


def token(text: str) -> dict[str, Any]:
    return {
        "content": text,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
        "special": True,
    }


MAKERS: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker
    for maker in (
        plain,
        truncated,
        padded,
        truncated_and_padded,
        added_in_config,
        mask_in_config_alone,
        flags_in_config,
        special_in_config,
        extra_list,
        extra_names,
        additional,
        added_tokens_file,
        special_tokens_file,
        words,
        everything_in_a_template,
        template_file,
        merges,
        merges_and_added_tokens_file,
    )
}
