"""Tokenizers: a checkpoint directory's own, or the character tokenizer of the small default model.
One prompt renderer for all stages.

A directory's files mean what transformers makes of them (tokenizer_files.py), and no code from it
is run. The chat template is the directory's `chat_template.jinja` or the one inside
`tokenizer_config.json` (chat_template.py); a directory without one gets the bare prompt. A loaded
tokenizer keeps its files' bytes and saves them as they were.
"""

import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFile

from tracerl.errors import CheckpointError, DataError
from tracerl.models.chat_template import ChatTemplate
from tracerl.models.directory import has_file, read_optional_json
from tracerl.models.tokenizer_files import (
    ADDED_TOKENS,
    CONFIG,
    SPECIAL_TOKENS,
    TOKENIZER,
    TokenizerFiles,
    read_tokenizer_files,
)
from tracerl.settings.models import TokenIds

MASK = "<mask>"
END = "<end>"
_CHARACTERS = string.printable[:95] + "\n"
_GENERATION = "generation_config.json"
_CHANGED = (("eos", "end"), ("pad", "pad"))  # of its ids: its name for them, and that of the params
_TEMPLATE = "chat_template.jinja"
_FILES = (
    TOKENIZER,
    "vocab.json",
    "merges.txt",
    CONFIG,
    SPECIAL_TOKENS,
    ADDED_TOKENS,
    _TEMPLATE,
    _GENERATION,
)


class Tokenizer:
    """Text to ids and back.

    Attributes:
        file: the `tokenizers` object.
        end_ids: ids that end a response; the first of them is the one that is learned.
        mask_id: id of the mask token; -1 for a baseline.
        template: source of the chat template, if there is one.
        pad_id: fills a finished block.
        names: texts of the special tokens by their names, for the template.
        files: the directory's own files, empty for a tokenizer made here.
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
        where: str = "chat template",
    ) -> None:
        self.file = file
        self.end_ids = end_ids
        self.mask_id = mask_id
        self.template = template
        self.pad_id = end_ids[0] if pad_id is None else pad_id
        self.names = names or {}
        self.files = files or {}
        self._template = ChatTemplate(template, self.names, where) if template else None
        self._prompt_ids: dict[str, tuple[int, ...]] = {}

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self.file.get_vocab().values()) + 1

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
                do=(
                    "the default model's tokenizer knows printable ASCII and line breaks; import a "
                    "checkpoint with a larger one"
                ),
            ) from error
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; end, mask and other special tokens are left out."""
        text: str = self.file.decode([int(i) for i in ids], skip_special_tokens=True)
        return text

    def prompt_ids(self, prompt: str) -> list[int]:
        """Ids of a user's prompt in the checkpoint's chat form, up to where the response starts.

        A prompt is rendered once: a stage measures all of its prompts first and then samples
        responses to some, again and again.
        """
        if prompt not in self._prompt_ids:
            ids = self.chat_ids([{"role": "user", "content": prompt}])
            self._prompt_ids[prompt] = tuple(ids)
        return list(self._prompt_ids[prompt])

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation (`role` and `content`) in the checkpoint's chat form, up to where
        the next response starts.

        Without a template it is the contents one after the other. Raises DataError for messages
        that the template cannot render.
        """
        if self._template is not None:
            return self._encode(self._template.render(messages), special=True)
        contents = [message.get("content") for message in messages]
        if not all(isinstance(content, str) for content in contents):
            raise DataError(
                "a message has no text",
                got=contents,
                wanted="content: a string (this checkpoint has no chat template)",
            )
        return self.encode("".join(map(str, contents)))

    def save(self, directory: Path) -> None:
        """Writes the tokenizer's files: those it was loaded from, or its own tokenizer.json,
        configs and chat template."""
        if self.files:
            for name, data in self.files.items():
                (directory / name).write_bytes(data)
            return
        self.file.save(str(directory / TOKENIZER))
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "mask_token": self.file.id_to_token(self.mask_id),
            "eos_token": self.file.id_to_token(self.end_ids[0]),
        }
        (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        generation = {"eos_token_id": list(self.end_ids), "pad_token_id": self.pad_id}
        (directory / _GENERATION).write_text(
            json.dumps(generation, indent=2, sort_keys=True) + "\n", "utf-8"
        )
        if self.template:
            (directory / _TEMPLATE).write_text(self.template, "utf-8")


def character_tokenizer() -> Tokenizer:
    """One token per printable ASCII character, plus the mask and the end token (ids 0 and 1)."""
    vocabulary = {MASK: 0, END: 1} | {character: 2 + i for i, character in enumerate(_CHARACTERS)}
    # Not in the vocabulary: an unknown character is an error.
    file = TokenizerFile(models.WordLevel(vocabulary, unk_token="<unknown>"))
    file.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    file.decoder = decoders.Fuse()
    file.add_special_tokens([AddedToken(MASK, special=True), AddedToken(END, special=True)])
    return Tokenizer(file, (vocabulary[END],), vocabulary[MASK], None)


def load_tokenizer(
    directory: Path,
    mask_id: int | None = None,
    end_tokens: Sequence[str] = (),
    replacements: TokenIds | None = None,
) -> Tokenizer:
    """The tokenizer of a checkpoint directory.

    mask_id comes from the model's config where the tokenizer does not name a mask token. End ids
    are those of generation_config.json if it has a list of them; else the one it, the tokenizer or
    config.json names, with those of `end_tokens` that are in the vocabulary. `replacements` (of the
    params) come before all of them and are written into the files that `save` will write.

    Raises CheckpointError if a file is missing or damaged, no mask or end token can be found, or
    the mask is an end or the pad.
    """
    files = _read_files(directory)
    config = read_optional_json(directory / CONFIG)
    generation = read_optional_json(directory / _GENERATION)
    template = _template_of(files, config, directory)
    parts = read_tokenizer_files(directory)
    names = dict(parts.names)
    changes = {} if replacements is None else replacements.model_dump(exclude_none=True)
    if changes:
        generation.update(
            {f"{kind}_token_id": changes[key] for kind, key in _CHANGED if key in changes}
        )
        if "mask" in changes:
            mask_id = changes["mask"]
            _rename_mask(parts.file.id_to_token(mask_id), names, config)
        for name, data in ((CONFIG, config), (_GENERATION, generation)):
            files[name] = (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
    ids = _SpecialIds(TokenizerFiles(file=parts.file, names=names), generation, directory)
    named_mask = ids.named("mask_token")
    mask = mask_id if named_mask is None else named_mask
    ends = ids.ends(end_tokens)
    pad = ids.pad()
    if mask is None or not ends:
        raise CheckpointError(
            "no mask or end token is named",
            where=str(directory),
            got=f"mask {mask}, end {list(ends)}",
            wanted=(
                "mask_token and eos_token in tokenizer_config.json (or mask_token_id in "
                "config.json)"
            ),
            do="add them there, or set base.token_ids in the params",
        )
    _check_mask(parts.file, mask, ends, pad, directory)
    return Tokenizer(
        parts.file,
        ends,
        mask,
        template,
        pad_id=pad,
        names=names,
        files=files,
        where=str(directory),
    )


def _read_files(directory: Path) -> dict[str, bytes]:
    """The tokenizer's files as they are, by name."""
    files = {}
    for name in _FILES:
        if has_file(directory, name):
            files[name] = (directory / name).read_bytes()
    return files


def _rename_mask(text: str | None, names: dict[str, str], config: dict[str, Any]) -> None:
    """Names another mask token, or, without a text, none."""
    for table in (names, config):
        table.pop("mask_token", None)
        if text:
            table["mask_token"] = text


def _check_mask(
    file: TokenizerFile, mask: int, ends: Sequence[int], pad: int | None, directory: Path
) -> None:
    """Raises CheckpointError if the mask is also an end or the pad: a response would be trained, or
    filled up, with what is still to be predicted."""
    for kind, values in (("an end", ends), ("the pad", [pad])):
        if mask in values:
            raise CheckpointError(
                f"the mask token is also {kind}",
                where=str(directory),
                got=f"id {mask}, {file.id_to_token(mask) if mask >= 0 else None!r}",
                wanted="a token of its own",
                do="name another in tokenizer_config.json or generation_config.json, or set "
                "base.token_ids in the params",
            )


class _SpecialIds:
    """Ends and pad of a directory, from generation_config.json, the tokenizer's names, and
    config.json, in this order."""

    def __init__(
        self, parts: TokenizerFiles, generation: Mapping[str, Any], directory: Path
    ) -> None:
        self.parts = parts
        self.generation = generation
        self.config = read_optional_json(directory / "config.json")
        self.directory = directory

    def named(self, name: str) -> int | None:
        """Id of a special token by its name."""
        text = self.parts.names.get(name)
        token_id: int | None = self.parts.file.token_to_id(text) if text else None
        return token_id

    def ends(self, end_tokens: Sequence[str]) -> tuple[int, ...]:
        """Ids that end a response, each once."""
        published = self._ids_in_config(_GENERATION, "eos_token_id")
        if isinstance(self.generation.get("eos_token_id"), list):
            return tuple(published)
        ids: list[int | None] = list(published)
        if not ids:
            ids = [self.named("eos_token")]
        if ids == [None]:
            ids = list(self._ids_in_config("config.json", "eos_token_id"))
        ids += [self.parts.file.token_to_id(token) for token in end_tokens]
        return tuple(dict.fromkeys(i for i in ids if i is not None))

    def pad(self) -> int | None:
        """Id of the pad token, if any file names one."""
        published = self._ids_in_config(_GENERATION, "pad_token_id")
        named = self.named("pad_token")
        if published or named is not None:
            return published[0] if published else named
        return next(iter(self._ids_in_config("config.json", "pad_token_id")), None)

    def _ids_in_config(self, name: str, key: str) -> list[int]:
        """The ids that a config has under a key; empty if it has none. Raises CheckpointError for
        anything that is no id."""
        value = (self.generation if name == _GENERATION else self.config).get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int and i >= 0 for i in ids):
            raise CheckpointError(
                "a token id is not a whole number",
                where=f"{self.directory / name}: {key}",
                got=repr(value),
                wanted="ids of the vocabulary",
                do="write the token's id",
            )
        return ids


def _template_of(
    files: Mapping[str, bytes], config: Mapping[str, Any], directory: Path
) -> str | None:
    """Source of the chat template, if there is one."""
    if _TEMPLATE in files:
        try:
            return files[_TEMPLATE].decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(
                "invalid chat template",
                where=str(directory / _TEMPLATE),
                got=error,
                wanted="UTF-8",
                do="correct or remove it",
            ) from error
    inside = config.get("chat_template")
    if isinstance(inside, list):  # several, by name
        inside = _default_template(inside, directory)
    return inside


def _default_template(templates: list[Any], directory: Path) -> Any:
    """The template named "default", None if there is none. Raises CheckpointError for a list of
    something else."""
    found = None
    for item in templates:
        if not isinstance(item, dict) or not {"name", "template"} <= item.keys():
            raise CheckpointError(
                "invalid chat template",
                where=str(directory / CONFIG),
                got=item,
                wanted="a text, or a list of objects with name and template",
                do="correct or remove it",
            )
        if item["name"] == "default":
            found = item["template"]
    return found
