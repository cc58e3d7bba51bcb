"""Counting the tokens of one reply: every prompt once, every sequence's output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.core.request import Request, Usage
from headrace.server.generation import Delta
from headrace.server.protocol_common import PromptTokensDetails, UsageBody


class UsageMeter:
    """Keeps the latest counts of every sequence behind a reply.

    The cached tokens of a prompt are those of its first sequence: its siblings find the prompt in the cache
    because the first one just put it there.
    """

    def __init__(self, requests: Sequence[Request], shows_cached_tokens: bool) -> None:
        self.num_prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
        self._shows_cached_tokens = shows_cached_tokens
        self._usages: dict[tuple[int, int], Usage] = {}

    def observe(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            self._usages[delta.prompt_index, delta.output.index] = delta.output.usage

    @property
    def num_output_tokens(self) -> int:
        return sum(usage.num_output_tokens for usage in self._usages.values())

    @property
    def num_cached_tokens(self) -> int:
        return sum(usage.num_cached_tokens for (_, index), usage in self._usages.items() if index == 0)

    def body(self) -> UsageBody:
        counts = (self.num_prompt_tokens, self.num_output_tokens, self.num_prompt_tokens + self.num_output_tokens)
        if not self._shows_cached_tokens:
            return UsageBody(*counts)
        return UsageBody(*counts, PromptTokensDetails(self.num_cached_tokens))
