"""Loads the model's own tokenizer and chat template through transformers."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from instrumented_engine.model.download import kept
from instrumented_engine.model.errors import ModelError


def _byte_letters() -> dict[str, int]:
    """The letter that byte-level tokenizers write for each byte: itself if it is printable, else one beyond U+00FF."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_letters()


class Tokenizer:
    """Text ↔ token ids. Thread-safe, like the Rust tokenizer below it."""

    def __init__(self, tokenizer: Any, eos_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_padding()
        self._backend.no_truncation()
        of_tokenizer = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.eos_ids = tuple(dict.fromkeys([*eos_ids, *of_tokenizer]))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt, with the special tokens that the model expects around it."""
        # Alone among its calls, this one lets Python's other threads go on: the engine's and the server's.
        [encoded] = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoded.ids
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation and the start of an answer. Raises ValueError if the chat template refuses it."""
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise ValueError("this model has no chat template; use /v1/completions")
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise ValueError(f"the model's chat template refused the messages: {error}") from error
        return self.encode(text, add_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; several tokens may be one character. A special token is its name."""
        text: str = self._backend.decode([token_id], skip_special_tokens=False)
        if "\ufffd" not in text:
            return text.encode()
        name = self._backend.id_to_token(token_id) or ""
        if match := re.fullmatch("<0x([0-9A-F]{2})>", name):
            return bytes([int(match[1], 16)])
        try:
            return bytes(_BYTES[letter] for letter in name)
        except KeyError:
            return text.encode()

    def token_name(self, token_id: int) -> str:
        """One token as OpenAI's completions spell it: its text, or `bytes:` and its bytes if it is a part of one."""
        raw = self.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids without special tokens."""
        text: str = self._backend.decode(ids, skip_special_tokens=True)
        return text


def load_tokenizer(model: Path, cache: Path, eos_ids: Sequence[int] = ()) -> Tokenizer:
    """The tokenizer of a GGUF file or a model folder.

    Converting a GGUF tokenizer takes seconds, so the result is kept in `cache` under the file's identity.
    """
    folder = model if model.is_dir() else _converted(model, cache)
    return Tokenizer(_from_folder(folder), eos_ids)


def _from_folder(folder: Path, **options: Any) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder} has no usable tokenizer: {error}") from error
    if not tokenizer.is_fast:
        raise ModelError(f"{folder}: only fast tokenizers (tokenizer.json) are supported")
    return tokenizer


def _converted(gguf_file: Path, cache: Path) -> Path:
    stat = gguf_file.stat()
    identity = f"{gguf_file.resolve()}:{stat.st_size}:{stat.st_mtime_ns}".encode()
    folder = cache / f"tokenizer-{hashlib.sha256(identity).hexdigest()[:16]}"
    if not folder.exists():
        with kept(cache), tempfile.TemporaryDirectory(dir=cache) as temporary:
            made = Path(temporary) / "tokenizer"
            _from_folder(gguf_file.parent, gguf_file=gguf_file.name).save_pretrained(made)
            try:
                os.rename(made, folder)  # noqa: PTH104  # atomic; when another process was faster, its complete folder is there
            except OSError:
                if not folder.exists():
                    raise
    return folder
