"""Log-probabilities as the three shapes clients know: completions, chat, and vLLM's ``prompt_logprobs``.

Owns how a token is shown. In a completion, a token's string is exactly what it adds to the text, so the
strings concatenate to the text and ``text_offset`` is true even where one character spans tokens. (What ends
the text otherwise than by a token does not count: a stop string cut off, the U+FFFD of a broken last character.)
In chat and among alternatives, a token stands alone: bytes that are no text by themselves are shown as ``\\xNN``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.core.request import TokenLogprobs
from headrace.engine.detokenizer import Detokenizer
from headrace.server.protocol_chat import ChatLogprobs, ChatTokenLogprob, TopLogprob
from headrace.server.protocol_common import PromptLogprob, PromptLogprobs
from headrace.server.protocol_completions import CompletionLogprobs

LOWEST_LOGPROB = -9999.0
"""What is reported for less, since JSON has no infinity (vLLM's number)."""


class TokenView(Protocol):
    """What showing tokens needs of a tokenizer."""

    def shown_bytes(self, token_id: int) -> bytes:
        """Bytes of one token by itself, control tokens included; none for ids without text."""
        ...

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer: ...


class CompletionLogprobWriter:
    """Writes the log-probabilities of one choice piece by piece; offsets count from the start of its text.

    ``detokenizer`` must treat control tokens as the text does: a token that adds nothing is shown as nothing.
    """

    def __init__(self, tokens: TokenView, detokenizer: Detokenizer) -> None:
        self._tokens = tokens
        self._detokenizer = detokenizer
        self._offset = 0

    def write(
        self, token_ids: Iterable[int], logprobs: Iterable[TokenLogprobs | None], into: CompletionLogprobs
    ) -> str:
        """Append one entry per token to ``into`` and return the text the tokens add."""
        start = len(into.tokens)
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            token = self._detokenizer.push(token_id)
            into.tokens.append(token)
            into.text_offset.append(self._offset)
            into.token_logprobs.append(None if entry is None else _finite(entry.logprob))
            into.top_logprobs.append(None if entry is None else self._top(token, entry))
            self._offset += len(token)
        return "".join(into.tokens[start:])

    def _top(self, token: str, entry: TokenLogprobs) -> dict[str, float]:
        """The alternatives by their strings, likeliest first; the chosen token under the string it has here.

        Where two tokens look alike the likelier one is kept, except that the chosen one always is.
        """
        top: dict[str, float] = {}
        for token_id, logprob in entry.top:
            name = token if token_id == entry.token_id else shown_token(self._tokens, token_id)
            top.setdefault(name, _finite(logprob))
        top[token] = _finite(entry.logprob)
        return top


def shown_token(tokens: TokenView, token_id: int) -> str:
    """A token standing alone; bytes that are no text by themselves as ``\\xNN``."""
    return tokens.shown_bytes(token_id).decode("utf-8", "backslashreplace")


def new_completion_logprobs() -> CompletionLogprobs:
    return CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])


def chat_logprobs(logprobs: Sequence[TokenLogprobs], num_top: int, tokens: TokenView) -> ChatLogprobs:
    """Chat's shape; ``num_top`` alternatives each."""
    return ChatLogprobs(
        [
            ChatTokenLogprob(
                token=shown_token(tokens, entry.token_id),
                logprob=_finite(entry.logprob),
                bytes=list(tokens.shown_bytes(entry.token_id)),
                top_logprobs=[
                    TopLogprob(shown_token(tokens, token_id), _finite(logprob), list(tokens.shown_bytes(token_id)))
                    for token_id, logprob in entry.top[:num_top]
                ],
            )
            for entry in logprobs
        ]
    )


def prompt_logprobs(logprobs: Sequence[TokenLogprobs | None], tokens: TokenView) -> PromptLogprobs:
    """vLLM's shape: per prompt token a map from token id to its entry, ``None`` for the first."""
    return [None if entry is None else _prompt_entry(entry, tokens) for entry in logprobs]


def _prompt_entry(entry: TokenLogprobs, tokens: TokenView) -> dict[str, PromptLogprob]:
    entries = {
        str(token_id): PromptLogprob(_finite(logprob), rank, shown_token(tokens, token_id))
        for rank, (token_id, logprob) in enumerate(entry.top, 1)
    }
    entries.setdefault(
        str(entry.token_id), PromptLogprob(_finite(entry.logprob), entry.rank, shown_token(tokens, entry.token_id))
    )
    return entries


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
