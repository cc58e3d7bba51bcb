"""How a model reasons before it answers: read from its chat template, and what that means for one prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.core.constraint import Reasoning

TAGS: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""What stands around the reasoning of models that show it."""

_NUM_END_TOKENS: Final = 24
"""Tokens at a prompt's end that can hold both tags, spelled out, with blanks between and behind them."""


class TagTokenizer(Protocol):
    """What is needed of a tokenizer here."""

    def shown_bytes(self, token_id: int) -> bytes: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class ReasoningHabit:
    """The tags a model reasons between.

    ``is_hidden`` says that they are control tokens, which a text shows only when it shows all of them.
    """

    begin: str
    end: str
    is_hidden: bool
    tokens: TagTokenizer

    def opens_in(self, prompt_token_ids: Sequence[int]) -> bool:
        """Whether a prompt ends inside the reasoning, because its template opens it."""
        return self._end_of(prompt_token_ids).endswith(self.begin)

    def before_answer(self, prompt_token_ids: Sequence[int], max_tokens: int | None) -> Reasoning | None:
        """What the model may reason behind a prompt; ``None`` where the prompt says that it does not."""
        if self._end_of(prompt_token_ids).endswith(self.end):
            return None
        return Reasoning(self.begin, self.end, self.opens_in(prompt_token_ids), max_tokens)

    def _end_of(self, prompt_token_ids: Sequence[int]) -> str:
        data = b"".join(self.tokens.shown_bytes(token_id) for token_id in prompt_token_ids[-_NUM_END_TOKENS:])
        return data.decode("utf-8", "replace").rstrip()


def reasoning_habit(chat_template: str | None, tokens: TagTokenizer) -> ReasoningHabit | None:
    """The habit of a template's model; ``None`` for one that does not reason between tags."""
    template = chat_template or ""
    for begin, end in TAGS:
        if end in template:
            is_hidden = not tokens.decode(tokens.encode(end, add_special_tokens=False))
            return ReasoningHabit(begin, end, is_hidden, tokens)
    return None
