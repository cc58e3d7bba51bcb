"""Typed, checked reading of a checkpoint's metadata; every complaint names the file's own key.

Knows nothing of what a key means. A JSON ``null`` counts as absent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from headrace.core.errors import ConfigError
from headrace.core.model_config import check_count


class Metadata:
    """Key-values of a file under an optional ``prefix``, with ``defaults`` for absent keys."""

    def __init__(
        self, values: Mapping[str, object], prefix: str = "", defaults: Mapping[str, object] | None = None
    ) -> None:
        self._values = values
        self._prefix = prefix
        self._defaults = defaults or {}

    def value(self, key: str) -> object:
        """The value as it is in the file, its default, or ``None``."""
        found = self._values.get(self._prefix + key)
        return self._defaults.get(key) if found is None else found

    def has(self, key: str) -> bool:
        """Whether the file itself has the key."""
        return self._values.get(self._prefix + key) is not None

    def count(self, key: str, fact: str) -> int:
        """A required positive integer within the bounds of ``fact``."""
        found = self.optional_count(key, fact)
        if found is None:
            raise ConfigError(f"{self._prefix}{key} is missing from the model's configuration", self._prefix + key)
        return found

    def optional_count(self, key: str, fact: str) -> int | None:
        found = self.value(key)
        return None if found is None else check_count(fact, found, self._prefix + key)

    def number(self, key: str, default: float) -> float:
        """A finite number."""
        found = self.value(key)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) <= sys.float_info.max:
            raise self.refusal(key, "must be a finite number")
        return float(found)

    def required_number(self, key: str) -> float:
        if self.value(key) is None:
            raise ConfigError(f"{self._prefix}{key} is missing from the model's configuration", self._prefix + key)
        return self.number(key, math.nan)

    def numbers(self, keys: Mapping[str, str]) -> dict[str, float]:
        """The numbers at those of ``keys`` (by what they are) that are there."""
        return {fact: self.required_number(key) for fact, key in keys.items() if self.value(key) is not None}

    def flag(self, key: str, default: bool) -> bool:
        found = self.value(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self.refusal(key, "must be true or false")
        return found

    def text(self, key: str) -> str | None:
        found = self.value(key)
        if found is not None and not isinstance(found, str):
            raise self.refusal(key, "must be a string")
        return found

    def section(self, key: str) -> Metadata | None:
        """A nested object, its complaints prefixed with ``key.``."""
        found = self.value(key)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise self.refusal(key, "must be an object")
        path = f"{self._prefix}{key}."
        return Metadata({path + str(name): value for name, value in found.items()}, path)

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One id or a list of them; ids outside the vocabulary can never be produced and are left out."""
        found = self.value(key)
        if found is None:
            return ()
        ids = []
        for token_id in found if isinstance(found, list) else [found]:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise self.refusal(key, "must be a token id or a list of them")
            if 0 <= token_id < vocab_size:
                ids.append(token_id)
        return tuple(ids)

    def refusal(self, key: str, reason: str) -> ConfigError:
        """The error to raise about the value of ``key``."""
        name = self._prefix + key
        return ConfigError(f"{name} is {_shown(self.value(key))}: {reason}", name)


def _shown(value: object) -> str:
    """A short rendering of a value that may be anything."""
    if isinstance(value, str):
        return repr(value[:60])
    return repr(value) if isinstance(value, bool | int | float | None) else type(value).__name__
