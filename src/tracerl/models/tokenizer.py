"""Tokenizers: a checkpoint directory's own, or the character tokenizer of the small default model.
One prompt renderer for all stages.

Read are `tokenizer.json`, or `vocab.json` with `merges.txt` as the Qwen-based families publish them
(no remote code). The chat template is the directory's `chat_template.jinja` or the one inside
`tokenizer_config.json`, rendered as transformers does; a directory without one gets the bare
prompt. A loaded tokenizer keeps its files' bytes and saves them as they were.
"""

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFile

from tracerl.errors import CheckpointError, DataError
from tracerl.models.directory import has_file, read_optional_json
from tracerl.settings.models import TokenIds

MASK, END = "<mask>", "<end>"
_CHARACTERS = string.printable[:95] + "\n"
_CONFIG, _GENERATION, _TEMPLATE = (
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    _CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    _TEMPLATE,
    _GENERATION,
)
# Classes whose vocab.json and merges.txt mean what transformers' Qwen2Tokenizer makes of them.
_QWEN_LIKE = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer")
_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")


class Tokenizer:
    """Text to ids and back.

    end_ids: ids that end a response; the first of them is the one that is learned. pad_id: fills a
    finished block.
    names: the special tokens' texts, for the template. files: the directory's own files, empty for
    a tokenizer made here.
    """

    def __init__(
        self,
        file: TokenizerFile,
        end_ids: tuple[int, ...],
        mask_id: int,
        template: str | None,
        *,
        pad_id: int | None = None,
        names: dict[str, str] | None = None,
        files: dict[str, bytes] | None = None,
    ) -> None:
        self.file, self.end_ids, self.mask_id, self.template = file, end_ids, mask_id, template
        self.pad_id = end_ids[0] if pad_id is None else pad_id
        self.names, self.files = names or {}, files or {}
        self._render = _environment().from_string(template) if template else None

    @property
    def vocab_size(self) -> int:
        return self.file.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; what looks like a special token in it is text. Raises DataError for a
        character without a token."""
        return self._encode(text, special=False)

    def _encode(self, text: str, special: bool) -> list[int]:
        self.file.encode_special_tokens = not special
        try:
            ids: list[int] = self.file.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises plain Exception
            raise DataError(
                "a text holds characters that the tokenizer has no token for",
                got=ascii(text[:80]),
                do="the default model's tokenizer knows printable ASCII and line breaks; import a checkpoint with a larger one",
            ) from error
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; end, mask and other special tokens are left out."""
        text: str = self.file.decode([int(i) for i in ids], skip_special_tokens=True)
        return text

    def prompt_ids(self, prompt: str) -> list[int]:
        """Ids of a user's prompt in the checkpoint's chat form, up to where the response starts."""
        return self.chat_ids([{"role": "user", "content": prompt}])

    def chat_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of a conversation (`role` and `content`) in the checkpoint's chat form, up to where
        the next response starts.

        Without a template it is the contents one after the other.
        """
        if self._render is None:
            return self.encode("".join(message["content"] for message in messages))
        try:
            text = self._render.render(
                messages=list(messages), add_generation_prompt=True, **self.names
            )
        except TemplateError as error:
            raise DataError(
                "the chat template cannot render these messages",
                got=error,
                do="correct the checkpoint's chat_template.jinja",
            ) from error
        return self._encode(text, special=True)

    def save(self, directory: Path) -> None:
        """Writes the tokenizer's files: those it was loaded from, or its own tokenizer.json,
        configs and chat template."""
        if self.files:
            for name, data in self.files.items():
                (directory / name).write_bytes(data)
            return
        self.file.save(str(directory / "tokenizer.json"))
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "mask_token": self.file.id_to_token(self.mask_id),
            "eos_token": self.file.id_to_token(self.end_ids[0]),
        }
        (directory / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        generation = {"eos_token_id": list(self.end_ids), "pad_token_id": self.pad_id}
        (directory / _GENERATION).write_text(
            json.dumps(generation, indent=2, sort_keys=True) + "\n"
        )
        if self.template:
            (directory / _TEMPLATE).write_text(self.template)


def character_tokenizer() -> Tokenizer:
    """One token per printable ASCII character, plus the mask and the end token (ids 0 and 1)."""
    vocabulary = {MASK: 0, END: 1} | {character: 2 + i for i, character in enumerate(_CHARACTERS)}
    file = TokenizerFile(
        models.WordLevel(vocabulary, unk_token="<unknown>")
    )  # not in the vocabulary: an unknown character is an error
    file.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    file.decoder = decoders.Fuse()
    file.add_special_tokens([AddedToken(MASK, special=True), AddedToken(END, special=True)])
    return Tokenizer(file, (vocabulary[END],), vocabulary[MASK], None)


def load_tokenizer(
    directory: Path,
    mask_id: int | None = None,
    end_tokens: Sequence[str] = (),
    replaced: TokenIds | None = None,
) -> Tokenizer:
    """The tokenizer of a checkpoint directory.

    mask_id comes from the model's config where the tokenizer does not name a mask token. End ids
    are those of generation_config.json if it has a list of them; else the one it or the tokenizer
    names, with those of `end_tokens` that are in the vocabulary. `replaced` (of the params) comes
    before all of them and is written into the files that `save` will write.

    Raises CheckpointError if a file is missing or damaged or no mask or end token can be found.
    """
    files = {}
    for name in _FILES:
        if has_file(directory, name):
            files[name] = (directory / name).read_bytes()
    file = _token_file(directory)
    config = read_optional_json(directory / _CONFIG)
    generation = read_optional_json(directory / _GENERATION)
    if replaced is not None and any(value is not None for value in replaced.model_dump().values()):
        config, generation = _with_ids(file, config, generation, replaced)
        for name, data in ((_CONFIG, config), (_GENERATION, generation)):
            files[name] = (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
        mask_id = mask_id if replaced.mask is None else replaced.mask
    names = {name: text for name in _NAMED if (text := _text(config.get(name)))}
    named_mask = _token_id(file, names.get("mask_token"))
    mask = named_mask if named_mask is not None else mask_id
    ends = _end_ids(file, generation, names, end_tokens)
    if mask is None or not ends:
        raise CheckpointError(
            "no mask or end token is named",
            where=str(directory),
            got=f"mask {mask}, end {list(ends)}",
            wanted="mask_token and eos_token in tokenizer_config.json (or mask_token_id in config.json)",
            do="add them there, or set base.token_ids in the params",
        )
    pad = generation.get("pad_token_id")
    pad = _token_id(file, names.get("pad_token")) if pad is None else pad
    try:
        return Tokenizer(
            file, ends, mask, _template(files, config), pad_id=pad, names=names, files=files
        )
    except TemplateError as error:
        raise CheckpointError(
            "the chat template is not one",
            where=str(directory),
            got=error,
            do="correct or remove it",
        ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    """Templates are rendered as transformers renders them: no code, block lines leave no trace, and
    a template may refuse a message."""

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    return environment


def _token_file(directory: Path) -> TokenizerFile:
    path = directory / "tokenizer.json"
    if not has_file(directory, path.name):
        return _from_merges(directory)
    try:
        return TokenizerFile.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(
            "the tokenizer file is damaged", where=str(path), got=error, do="copy it again"
        ) from error


def _from_merges(directory: Path) -> TokenizerFile:
    """A Qwen-like byte-level BPE from vocab.json, merges.txt and the added tokens of
    tokenizer_config.json or added_tokens.json."""
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    config = read_optional_json(directory / _CONFIG)
    kind = config.get("tokenizer_class", _QWEN_LIKE[0])
    if not (vocab.is_file() and merges.is_file() and kind in _QWEN_LIKE):
        raise CheckpointError(
            "the checkpoint has no tokenizer that can be read",
            where=str(directory / "tokenizer.json"),
            got=f"no such file; tokenizer_class {kind}",
            wanted=f"tokenizer.json, or vocab.json and merges.txt of {', '.join(_QWEN_LIKE)}",
            do="save the tokenizer with transformers' save_pretrained into this directory",
        )
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    try:
        file = TokenizerFile(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(
            "the tokenizer files are damaged", where=str(vocab), got=error, do="copy them again"
        ) from error
    file.normalizer, file.decoder = normalizers.NFC(), decoders.ByteLevel()
    words = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated")
    file.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    for token_id, token in sorted(_added_tokens(directory, config).items()):
        file.add_tokens([token])
        if file.token_to_id(token.content) != token_id:
            raise CheckpointError(
                "an added token cannot have its id",
                where=str(directory / _CONFIG),
                got=file.token_to_id(token.content),
                wanted=f"{token_id} for {token.content!r}: ids without a gap after the vocabulary",
            )
    return file


def _added_tokens(directory: Path, config: dict[str, Any]) -> dict[int, AddedToken]:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    described = config.get("added_tokens_decoder")
    if described is not None:
        return {
            int(key): AddedToken(t["content"], **{flag: bool(t.get(flag, False)) for flag in flags})
            for key, t in described.items()
        }
    return {
        int(value): AddedToken(text, special=True)
        for text, value in read_optional_json(directory / "added_tokens.json").items()
    }


def _end_ids(
    file: TokenizerFile,
    generation: dict[str, Any],
    names: dict[str, str],
    end_tokens: Sequence[str],
) -> tuple[int, ...]:
    published = generation.get("eos_token_id")
    if isinstance(published, list):
        return tuple(published)
    named = published if published is not None else _token_id(file, names.get("eos_token"))
    ids = [named, *(file.token_to_id(token) for token in end_tokens)]
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _with_ids(
    file: TokenizerFile, config: dict[str, Any], generation: dict[str, Any], ids: TokenIds
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tokenizer and generation config that name the ids of the params."""
    if ids.mask is not None:
        text = file.id_to_token(ids.mask)
        config = {
            **{key: value for key, value in config.items() if key != "mask_token"},
            **({"mask_token": text} if text else {}),
        }
    changed = {"eos_token_id": ids.end, "pad_token_id": ids.pad}
    return config, {
        **generation,
        **{key: value for key, value in changed.items() if value is not None},
    }


def _template(files: dict[str, bytes], config: dict[str, Any]) -> str | None:
    if _TEMPLATE in files:
        return files[_TEMPLATE].decode()
    inside = config.get("chat_template")
    if isinstance(inside, list):  # several named ones
        inside = {item["name"]: item["template"] for item in inside}.get("default")
    return inside


def _text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _token_id(file: TokenizerFile, name: str | None) -> int | None:
    return file.token_to_id(name) if name else None
