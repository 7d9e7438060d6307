"""Tokenizers: a checkpoint directory's own, or the character tokenizer of the small default model. One prompt renderer for all stages.

Only `tokenizer.json` is read (no remote code); the chat template is the directory's `chat_template.jinja` or the one inside
`tokenizer_config.json`, and a directory without one gets the bare prompt.
"""

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFile

from tracerl.errors import CheckpointError, DataError

MASK, END = "<mask>", "<end>"
_CHARACTERS = string.printable[:95] + "\n"


class Tokenizer:
    """Text to ids and back. end_ids: ids that end a response; the first of them fills a finished block."""

    def __init__(self, file: TokenizerFile, end_ids: tuple[int, ...], mask_id: int, template: str | None) -> None:
        self.file, self.end_ids, self.mask_id, self.template = file, end_ids, mask_id, template
        self._render = ImmutableSandboxedEnvironment().from_string(template) if template else None

    @property
    def vocab_size(self) -> int:
        return self.file.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; what looks like a special token in it is text. Raises DataError for a character without a token."""
        return self._encode(text, special=False)

    def _encode(self, text: str, special: bool) -> list[int]:
        self.file.encode_special_tokens = not special
        try:
            ids: list[int] = self.file.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises plain Exception
            raise DataError("a text holds characters that the tokenizer has no token for", got=ascii(text[:80]),
                            do="the default model's tokenizer knows printable ASCII and line breaks; import a checkpoint with a larger one"
                            ) from error  # fmt: skip
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; end, mask and other special tokens are left out."""
        text: str = self.file.decode([int(i) for i in ids], skip_special_tokens=True)
        return text

    def prompt_ids(self, prompt: str) -> list[int]:
        """Ids of a user's prompt in the checkpoint's chat form, up to where the response starts."""
        if self._render is None:
            return self.encode(prompt)
        messages = [{"role": "user", "content": prompt}]
        return self._encode(self._render.render(messages=messages, add_generation_prompt=True), special=True)

    def save(self, directory: Path) -> None:
        """Writes tokenizer.json, tokenizer_config.json and, if there is one, the chat template."""
        self.file.save(str(directory / "tokenizer.json"))
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "mask_token": self.file.id_to_token(self.mask_id),
            "eos_token": self.file.id_to_token(self.end_ids[0]),
        }
        (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
        if self.template:
            (directory / "chat_template.jinja").write_text(self.template)


def character_tokenizer() -> Tokenizer:
    """One token per printable ASCII character, plus the mask and the end token (ids 0 and 1)."""
    vocabulary = {MASK: 0, END: 1} | {character: 2 + i for i, character in enumerate(_CHARACTERS)}
    file = TokenizerFile(models.WordLevel(vocabulary, unk_token="<unknown>"))  # not in the vocabulary: an unknown character is an error
    file.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    file.decoder = decoders.Fuse()
    file.add_special_tokens([AddedToken(MASK, special=True), AddedToken(END, special=True)])
    return Tokenizer(file, (vocabulary[END],), vocabulary[MASK], None)


def load_tokenizer(directory: Path, mask_id: int | None) -> Tokenizer:
    """The tokenizer of a checkpoint directory. mask_id comes from the model's config where the tokenizer does not name a mask token.

    Raises CheckpointError if a file is missing or no mask or end token can be found.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError("the checkpoint has no fast tokenizer", where=str(path), wanted="tokenizer.json",
                              do="save the tokenizer with transformers' save_pretrained into this directory")  # fmt: skip
    try:
        file = TokenizerFile.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError("the tokenizer file is damaged", where=str(path), got=error, do="copy it again") from error
    config = _read_json(directory / "tokenizer_config.json")
    generation = _read_json(directory / "generation_config.json")
    named_mask = _token_id(file, config.get("mask_token"))
    mask = named_mask if named_mask is not None else mask_id
    ends = generation.get("eos_token_id", _token_id(file, config.get("eos_token")))
    end_ids = tuple(ends) if isinstance(ends, list) else (ends,)
    if mask is None or None in end_ids:
        raise CheckpointError("no mask or end token is named", where=str(directory), got=f"mask {mask}, end {end_ids}",
                              wanted="mask_token and eos_token in tokenizer_config.json (or mask_token_id in config.json)")  # fmt: skip
    template_file = directory / "chat_template.jinja"
    template = template_file.read_text() if template_file.is_file() else config.get("chat_template")
    return Tokenizer(file, end_ids, mask, template)


def _token_id(file: TokenizerFile, token: Any) -> int | None:
    name = token.get("content") if isinstance(token, dict) else token
    return file.token_to_id(name) if name else None


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}
