"""Replies of ``/v1/chat/completions``, whole or streamed, from the engine's deltas.

A streamed choice is OpenAI's: the role first, then content, then one event with the finish reason and an
empty delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from headrace.core.request import Request, RequestOutput, TokenLogprobs
from headrace.server.generation import Delta
from headrace.server.logprobs import TokenView, chat_logprobs, prompt_logprobs
from headrace.server.protocol_chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
)
from headrace.server.protocol_common import UsageBody
from headrace.server.reply import ReplyHead, ReplyOptions
from headrace.server.usage import UsageMeter

ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class ChatOptions(ReplyOptions):
    """``num_top_logprobs`` is ``None`` when log-probabilities were not asked for."""

    num_top_logprobs: int | None = None
    shows_prompt_logprobs: bool = False


class ChatReply:
    """One chat reply being written; see ``reply.Reply``. It has one prompt and ``n`` choices."""

    def __init__(
        self, head: ReplyHead, options: ChatOptions, request: Request, tokens: TokenView, usage: UsageMeter
    ) -> None:
        self.usage = usage
        self.finish_reasons: list[str] = []
        self._head = head
        self._options = options
        self._prompt_token_ids = request.prompt_token_ids
        self._tokens = tokens
        self._prompt_logprobs: list[TokenLogprobs | None] = []
        self._begun: set[int] = set()

    def events(self, deltas: Sequence[Delta]) -> list[msgspec.Struct]:
        self._observe(deltas)
        return [event for delta in deltas for event in self._events_of(delta.output)]

    def last_events(self) -> list[msgspec.Struct]:
        return [self._chunk([], self.usage.body())] if self._options.include_usage else []

    def whole(self, deltas: Sequence[Delta]) -> ChatResponse:
        self._observe(deltas)
        outputs = sorted((delta.output for delta in deltas), key=lambda output: output.index)
        head, options = self._head, self._options
        return ChatResponse(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[self._choice(output) for output in outputs],
            usage=self.usage.body(),
            prompt_token_ids=self._prompt_token_ids if options.return_token_ids else UNSET,
            prompt_logprobs=(
                prompt_logprobs(self._prompt_logprobs, self._tokens) if options.shows_prompt_logprobs else UNSET
            ),
        )

    def _observe(self, deltas: Sequence[Delta]) -> None:
        self.usage.observe(deltas)
        for delta in deltas:
            if delta.output.index == 0:
                self._prompt_logprobs.extend(delta.output.prompt_logprobs)
            if delta.output.finish_reason is not None:
                self.finish_reasons.append(delta.output.finish_reason.value)

    def _choice(self, output: RequestOutput) -> ChatChoice:
        assert output.finish_reason is not None, "a whole reply is made of finished sequences"
        return ChatChoice(
            index=output.index,
            message=ChatMessage(ASSISTANT, output.text),
            logprobs=self._logprobs(output),
            finish_reason=output.finish_reason.value,
            stop_reason=output.stop_reason,
            token_ids=self._token_ids(output),
        )

    def _events_of(self, output: RequestOutput) -> list[msgspec.Struct]:
        events: list[msgspec.Struct] = []
        if output.index not in self._begun:
            is_first = not self._begun
            self._begun.add(output.index)
            role = ChatChunkChoice(index=output.index, delta=ChatDelta(role=ASSISTANT, content=""))
            events.append(self._chunk([role], self._usage_of_event(), shows_prompt=is_first))
        token_ids = self._token_ids(output)
        if output.text or (output.logprobs and self._options.num_top_logprobs is not None) or token_ids:
            content = ChatChunkChoice(
                index=output.index,
                delta=ChatDelta(content=output.text),
                logprobs=self._logprobs(output),
                token_ids=token_ids,
            )
            events.append(self._chunk([content], self._usage_of_event()))
        if output.finish_reason is not None:
            end = ChatChunkChoice(
                index=output.index,
                delta=ChatDelta(),
                finish_reason=output.finish_reason.value,
                stop_reason=output.stop_reason,
            )
            events.append(self._chunk([end], self._usage_of_event()))
        return events

    def _logprobs(self, output: RequestOutput) -> ChatLogprobs | None:
        num_top = self._options.num_top_logprobs
        return None if num_top is None else chat_logprobs(output.logprobs, num_top, self._tokens)

    def _token_ids(self, output: RequestOutput) -> list[int] | UnsetType:
        return list(output.token_ids) if self._options.return_token_ids else UNSET

    def _usage_of_event(self) -> UsageBody | UnsetType | None:
        if self._options.continuous_usage:
            return self.usage.body()
        return None if self._options.include_usage else UNSET

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: UsageBody | UnsetType | None, shows_prompt: bool = False
    ) -> ChatChunk:
        head = self._head
        return ChatChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=usage,
            prompt_token_ids=self._prompt_token_ids if shows_prompt and self._options.return_token_ids else UNSET,
        )
