"""The `tokenizers` object of a checkpoint directory, as transformers makes it of all its files.

The vocabulary is described by up to five files (`tokenizer.json`, or `vocab.json` with
`merges.txt`; `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`), which may
disagree. transformers' own classes read them; which one is fixed here, so that no code of the
directory is run. Truncation and padding that a file brings along are switched off: a text is
encoded whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as TokenizerFile

from tracerl.errors import CheckpointError
from tracerl.models.directory import has_file, read_json, read_optional_json

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
# Classes whose vocab.json and merges.txt mean what transformers' Qwen2Tokenizer makes of them.
_QWEN_LIKE = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
# Keys of a tokenizer_config.json that this package writes beside a tokenizer.json.
_WRITTEN_KEYS = {"tokenizer_class", "mask_token", "eos_token"}


@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """What the files of a directory make."""

    file: TokenizerFile
    """with all added tokens, without truncation and padding"""
    names: dict[str, str]
    """text of each special token by its name (`eos_token`, `mask_token`, ...)"""


def read_tokenizer_files(directory: Path) -> TokenizerFiles:
    """Reads a directory's tokenizer.

    Raises CheckpointError if there is none that can be read, a file is damaged, or a token cannot
    have the id that a file gives it.
    """
    config = read_optional_json(directory / CONFIG)
    written = _read_written(directory, config)
    if written is not None:
        return written
    from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

    has_tokenizer = has_file(directory, TOKENIZER)
    if not has_tokenizer:
        _check_merges(directory, config)
    kind = PreTrainedTokenizerFast if has_tokenizer else Qwen2Tokenizer
    try:
        loaded = kind.from_pretrained(directory, local_files_only=True, **_tokens_in_config(config))
        file: TokenizerFile = loaded.backend_tokenizer
        names = {name: str(token) for name, token in loaded.special_tokens_map.items()}
    except Exception as error:  # the libraries raise whatever they meet
        raise _damage_error(directory, has_tokenizer, error) from error
    file.no_truncation()
    file.no_padding()
    _check_ids(file, directory, config)
    return TokenizerFiles(file=file, names=names)


def _tokens_in_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Named tokens that a config describes by their content and flags but does not mark as added
    tokens, which transformers now asks for and once did not."""
    tokens = {}
    for name, value in config.items():
        if name.endswith("_token") and isinstance(value, dict) and "__type" not in value:
            flags = {key: bool(value[key]) for key in _FLAGS if key in value}
            tokens[name] = AddedToken(str(value.get("content")), **{"special": True, **flags})
    return tokens


def _read_written(directory: Path, config: Mapping[str, Any]) -> TokenizerFiles | None:
    """The tokenizer of a directory that this package wrote, without transformers, whose import
    takes a second; None if there may be more to it."""
    has_more = has_file(directory, SPECIAL_TOKENS) or has_file(directory, ADDED_TOKENS)
    if has_more or not config or not config.keys() <= _WRITTEN_KEYS:
        return None
    path = directory / TOKENIZER
    if not has_file(directory, TOKENIZER):
        return None
    content = read_json(path)
    if content.get("truncation") is not None or content.get("padding") is not None:
        return None
    names = {key: value for key, value in config.items() if key != "tokenizer_class"}
    try:
        file = TokenizerFile.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise _damage_error(directory, True, error) from error
    added = {token.content for token in file.get_added_tokens_decoder().values()}
    for text in names.values():
        if not isinstance(text, str) or text not in added:
            return None
    return TokenizerFiles(file=file, names=names)


def _damage_error(directory: Path, has_tokenizer: bool, error: Exception) -> CheckpointError:
    name = TOKENIZER if has_tokenizer else "vocab.json"
    return CheckpointError(
        "the tokenizer files are damaged",
        where=str(directory / name),
        got=f"{type(error).__name__}: {error}",
        do="copy them again",
    )


def _check_merges(directory: Path, config: Mapping[str, Any]) -> None:
    """Raises CheckpointError unless vocab.json and merges.txt are those of a Qwen-like class."""
    kind = config.get("tokenizer_class", _QWEN_LIKE[0])
    has_files = has_file(directory, "vocab.json") and has_file(directory, "merges.txt")
    if has_files and kind in _QWEN_LIKE:
        return
    raise CheckpointError(
        "the checkpoint has no tokenizer that can be read",
        where=str(directory / TOKENIZER),
        got=f"no such file; tokenizer_class {kind}",
        wanted=f"tokenizer.json, or vocab.json and merges.txt of {', '.join(_QWEN_LIKE)}",
        do="save the tokenizer with transformers' save_pretrained into this directory",
    )


def _check_ids(file: TokenizerFile, directory: Path, config: Mapping[str, Any]) -> None:
    """Raises CheckpointError if an added token has another id than a file says."""
    described = config.get("added_tokens_decoder")
    if described is None:
        path = directory / ADDED_TOKENS
        ids = dict(read_optional_json(path))
    else:
        path = directory / CONFIG
        ids = {token["content"]: int(key) for key, token in described.items()}
    for text, token_id in ids.items():
        if file.token_to_id(text) != token_id:
            raise CheckpointError(
                "an added token cannot have its id",
                where=str(path),
                got=file.token_to_id(text),
                wanted=f"{token_id} for {text!r}: ids without a gap after the vocabulary",
                do="save the tokenizer with transformers' save_pretrained into this directory",
            )
