"""Prompts of a wanted number of tokens, as text or as token ids, from nothing but a seed.

A text is ordinary words that are one token each in usual vocabularies. With something that counts, words are
added or taken away until the count is right, or as near as whole words come; without, the number of words is the
length, and reports say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

_WORDS = (
    "the river town school music garden letter winter market story bridge island captain paper morning village "
    "teacher silver window forest engine summer doctor mountain kitchen station police travel number picture "
    "family animal question answer history science weather ocean planet camera coffee dinner library museum "
    "street hotel ticket train orange yellow purple green simple early quiet large narrow ancient modern "
    "time year people way day man thing woman life child world state student group country problem hand part "
    "place case week company system program work government night point home water room mother area money fact "
    "month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea body information back parent face "
    "level office door health person art war party result change reason research girl guy moment air force"
)
WORDS = tuple(_WORDS.split())
MAX_CORRECTIONS = 8
DEFAULT_IDS = (1000, 30000)
"""Where random token ids are taken from, ``[low, high)``: ordinary tokens in every vocabulary of today."""

Prompt = str | list[int]


class PromptWriter(Protocol):
    """Makes prompts."""

    @property
    def lengths(self) -> str:
        """How lengths are counted."""
        ...

    def write(self, num_tokens: int, rng: np.random.Generator) -> Prompt: ...

    def join(self, parts: list[Prompt]) -> Prompt:
        """One prompt out of several, in order."""
        ...

    def cut(self, prompt: Prompt, num_tokens: int) -> Prompt:
        """The beginning of a prompt."""
        ...


@dataclass(frozen=True, slots=True)
class WordWriter:
    """Texts of as many words; ``count`` makes the number of tokens exact where words are not tokens."""

    count: Callable[[str], int] | None = None

    @property
    def lengths(self) -> str:
        return "words" if self.count is None else "tokenizer"

    def write(self, num_tokens: int, rng: np.random.Generator) -> Prompt:
        words = self._draw(num_tokens, rng)
        if self.count is None:
            return " ".join(words)
        best, best_missing = words, num_tokens
        for _ in range(MAX_CORRECTIONS):
            count = self.count(" ".join(words))
            missing = num_tokens - count
            if abs(missing) < best_missing:
                best, best_missing = list(words), abs(missing)
            if missing == 0:
                break
            num_words = max(1, abs(missing) * len(words) // max(count, 1))
            if missing > 0:
                words += self._draw(num_words, rng)
            else:
                del words[max(1, len(words) - num_words) :]
        return " ".join(best)

    def _draw(self, num_words: int, rng: np.random.Generator) -> list[str]:
        return [WORDS[index] for index in rng.integers(len(WORDS), size=num_words)]

    def join(self, parts: list[Prompt]) -> Prompt:
        return " ".join(part for part in parts if isinstance(part, str))

    def cut(self, prompt: Prompt, num_tokens: int) -> Prompt:
        assert isinstance(prompt, str)
        return " ".join(prompt.split(" ")[:num_tokens])


@dataclass(frozen=True, slots=True)
class IdWriter:
    """Token ids of ``[low, high)``, for endpoints that take them: lengths are exact, whatever the vocabulary."""

    low: int = DEFAULT_IDS[0]
    high: int = DEFAULT_IDS[1]

    @property
    def lengths(self) -> str:
        return "tokens"

    def write(self, num_tokens: int, rng: np.random.Generator) -> Prompt:
        ids: list[int] = rng.integers(self.low, self.high, size=num_tokens).tolist()
        return ids

    def join(self, parts: list[Prompt]) -> Prompt:
        return [token_id for part in parts if isinstance(part, list) for token_id in part]

    def cut(self, prompt: Prompt, num_tokens: int) -> Prompt:
        return prompt[:num_tokens]
