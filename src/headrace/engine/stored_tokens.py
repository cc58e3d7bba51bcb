"""What an engine needs of a vocabulary: each token as text, and which tokens are control tokens.

A compiled model keeps it beside its tokenizer, since making a tokenizer takes longer than all else an engine does
before it is ready, and an engine encodes nothing unless a grammar asks for it. Does not know how tokens are made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.core.compiled_files import TOKENS_FILE, is_compiled
from headrace.core.errors import ConfigError
from headrace.engine.detokenizer import ByteDetokenizer, Detokenizer
from headrace.engine.token_table import TokenTable

if TYPE_CHECKING:
    from headrace.engine.tokenizer import Tokenizer

_MAX_TOKENS_BYTES = 1 << 28


class TextEncoder(Protocol):
    """The one thing for which the tokenizer itself is needed."""

    def encode_text(self, text: str) -> list[int]:
        """Tokens of a text in which spellings of control tokens are just text."""
        ...


class StoredTokens:
    """The tokens of a model as ``Tokenizer`` has them, from a table; ``load`` makes the tokenizer when it is needed."""

    has_token_bytes = True

    def __init__(self, table: TokenTable, load: Callable[[], TextEncoder]) -> None:
        self.table = table
        self.special_token_ids = frozenset(table.special_token_ids)
        self.eos_token_ids = frozenset(table.eos_token_ids)
        self._load = load

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """Return the detokenizer of one new sequence."""
        return ByteDetokenizer(self._spoken_bytes if skip_special_tokens else self.table.shown_bytes)

    def shown_bytes(self, token_id: int) -> bytes:
        """Bytes of one token by itself, control tokens included; none for ids past the end of the vocabulary."""
        return self.table.shown_bytes[token_id] if 0 <= token_id < len(self.table.shown_bytes) else b""

    def encode_text(self, text: str) -> list[int]:
        """See ``Tokenizer.encode_text``. Loads the tokenizer the first time. Raises ``ConfigError`` if it cannot."""
        return self._encoder.encode_text(text)

    @cached_property
    def _spoken_bytes(self) -> list[bytes]:
        spoken = list(self.table.shown_bytes)
        for token_id in self.special_token_ids:
            spoken[token_id] = b""
        return spoken

    @cached_property
    def _encoder(self) -> TextEncoder:
        return self._load()


def write_tokens(folder: Path, table: TokenTable) -> None:
    (folder / TOKENS_FILE).write_bytes(msgspec.msgpack.encode(table))


def read_tokens(folder: Path) -> TokenTable | None:
    """The table of a compiled folder; ``None`` if it has none. Raises ``ConfigError`` for one that is damaged."""
    path = folder / TOKENS_FILE
    try:
        if path.stat().st_size > _MAX_TOKENS_BYTES:
            raise ConfigError(f"{path} has more than {_MAX_TOKENS_BYTES} bytes; compile the model again", path.name)
        table = msgspec.msgpack.decode(path.read_bytes(), type=TokenTable)
    except FileNotFoundError:
        return None  # tokens that depend on their neighbours have no table, and early folders had none
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; compile the model again", path.name) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is damaged: {error}; compile the model again", path.name) from error
    size = len(table.shown_bytes)
    if not all(0 <= token_id < size for token_id in (*table.special_token_ids, *table.eos_token_ids)):
        raise ConfigError(f"{path} names tokens beyond its {size}; compile the model again", path.name)
    return table


def load_tokens(model_path: Path, override: str | None = None) -> Tokenizer | StoredTokens:
    """The tokens of a model for an engine: without the tokenizer where a compiled folder has them in a table.

    ``override`` is another tokenizer than the model's. Raises ``ConfigError``.
    """
    table = read_tokens(model_path) if override is None and is_compiled(model_path) else None
    if table is None:
        return _load_tokenizer(model_path, override)
    return StoredTokens(table, lambda: _load_tokenizer(model_path, None))


def _load_tokenizer(model_path: Path, override: str | None) -> Tokenizer:
    from headrace.engine.tokenizer import load_tokenizer  # with its library, which most engines start without

    return load_tokenizer(model_path, override)
