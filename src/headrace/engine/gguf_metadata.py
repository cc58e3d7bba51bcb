"""Typed, checked reading of a GGUF file's key/value metadata.

Owns the rule that nothing a file says about itself is believed: every value is checked for its type, every
array for its length, every token id for its range, and the error names the key. Does not know what the keys
mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headrace.core.errors import ConfigError


class GgufMetadata:
    """Reads one file's metadata. Every method raises ``ConfigError`` naming the key it was asked for."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str) -> str:
        value = self._required(key)
        if not isinstance(value, str):
            raise _wrong(key, "a string", value)
        return value

    def texts(self, key: str) -> list[str]:
        return [self._text_item(key, index, item) for index, item in enumerate(self._items(key))]

    def integers(self, key: str, length: int) -> list[int]:
        return [int(value) for value in self._numbers(key, length, "iu").tolist()]

    def floats(self, key: str, length: int) -> list[float]:
        values = self._numbers(key, length, "f")
        if not np.isfinite(values).all():
            raise ConfigError(f"{key} has entries that are not finite numbers", key)
        return [float(value) for value in values.tolist()]

    def token_id(self, key: str, vocab_size: int) -> int | None:
        """Token id in ``[0, vocab_size)``, or ``None`` if the file has no such key."""
        if key not in self._values:
            return None
        value = self._values[key]
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise _wrong(key, "a token id", value)
        if not 0 <= value < vocab_size:
            raise ConfigError(f"{key} is {value} but the vocabulary has {vocab_size} tokens", key)
        return int(value)

    def flag(self, key: str) -> bool | None:
        """Boolean, or ``None`` if the file has no such key."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool | np.bool_):
            raise _wrong(key, "true or false", value)
        return None if value is None else bool(value)

    def _required(self, key: str) -> object:
        if key not in self._values:
            raise ConfigError(f"the file has no {key}; it has no usable tokenizer", key)
        return self._values[key]

    def _items(self, key: str) -> Iterable[object]:
        value = self._required(key)
        if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray):
            raise _wrong(key, "an array", value)
        return value

    def _numbers(self, key: str, length: int, kinds: str) -> np.ndarray:
        values = np.asarray(self._items(key))
        if values.ndim != 1 or values.dtype.kind not in kinds:
            raise _wrong(key, "an array of numbers", values)
        if len(values) != length:
            raise ConfigError(f"{key} has {len(values)} entries but there are {length} tokens", key)
        return values

    def _text_item(self, key: str, index: int, item: object) -> str:
        if not isinstance(item, str):
            raise _wrong(f"{key}[{index}]", "a string", item)
        return item


def _wrong(key: str, wanted: str, value: object) -> ConfigError:
    return ConfigError(f"{key} must be {wanted}; it is of type {type(value).__name__}", key.partition("[")[0])
