"""Replies of ``/v1/chat/completions``, whole or streamed, from the engine's deltas.

A streamed choice is OpenAI's: the role first, then content, then one event with the finish reason and an
empty delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from headrace.core.request import FinishReason, Request, RequestOutput, TokenLogprobs
from headrace.engine.answer_parts import AnswerParts, Part, Reasoning
from headrace.engine.reasoning import ReasoningHabit
from headrace.engine.tool_formats import ToolFormat
from headrace.server.answer import new_answer, part_delta, whole_message
from headrace.server.generation import Delta
from headrace.server.logprobs import TokenView, chat_logprobs, prompt_logprobs
from headrace.server.protocol_chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatResponse,
)
from headrace.server.protocol_common import UsageBody
from headrace.server.reply import ReplyHead, ReplyOptions
from headrace.server.usage import UsageMeter

ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class ChatOptions(ReplyOptions):
    """``num_top_logprobs`` is ``None`` when log-probabilities were not asked for.

    ``tool_format`` is how the model calls tools, ``None`` if it may not; ``reasoning`` how it reasons,
    ``None`` if its reasoning is to stay in the text; with ``hides_reasoning`` it is left out.
    """

    num_top_logprobs: int | None = None
    shows_prompt_logprobs: bool = False
    tool_format: ToolFormat | None = None
    reasoning: ReasoningHabit | None = None
    hides_reasoning: bool = False


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
        self._warnings: list[str] = []
        self._answers: dict[int, AnswerParts] = {}

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
            warnings=self._warnings or UNSET,
        )

    def _observe(self, deltas: Sequence[Delta]) -> None:
        self.usage.observe(deltas)
        for delta in deltas:
            if delta.output.index == 0:
                self._prompt_logprobs.extend(delta.output.prompt_logprobs)
                self._warnings.extend(delta.output.warnings)
            if delta.output.finish_reason is not None:
                self.finish_reasons.append(delta.output.finish_reason.value)

    def _choice(self, output: RequestOutput) -> ChatChoice:
        assert output.finish_reason is not None, "a whole reply is made of finished sequences"
        answer = self._answer(output.index)
        parts = self._shown([*answer.push(output.text), *answer.finish()])
        return ChatChoice(
            index=output.index,
            message=whole_message(parts, ASSISTANT),
            logprobs=self._logprobs(output),
            finish_reason=_finish_reason(output, answer),
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
        answer = self._answer(output.index)
        parts = answer.push(output.text)
        if output.finish_reason is not None:
            parts += answer.finish()
        deltas = [part_delta(part) for part in self._shown(parts)]
        # what belongs to the tokens goes with the first delta, or with an empty one if no text came
        token_ids, logprobs = self._token_ids(output), self._logprobs(output)
        if not deltas and ((output.logprobs and logprobs is not None) or token_ids):
            deltas = [ChatDelta(content="")]
        for number, delta in enumerate(deltas):
            content = ChatChunkChoice(
                index=output.index,
                delta=delta,
                logprobs=logprobs if number == 0 else None,
                token_ids=token_ids if number == 0 else UNSET,
            )
            events.append(self._chunk([content], self._usage_of_event()))
        if output.finish_reason is not None:
            end = ChatChunkChoice(
                index=output.index,
                delta=ChatDelta(),
                finish_reason=_finish_reason(output, answer),
                stop_reason=output.stop_reason,
            )
            events.append(self._chunk([end], self._usage_of_event()))
        return events

    def _answer(self, index: int) -> AnswerParts:
        """The taking apart of one choice's text, begun when its first text comes."""
        if index not in self._answers:
            self._answers[index] = new_answer(
                self._options.reasoning, self._options.tool_format, self._prompt_token_ids
            )
        return self._answers[index]

    def _shown(self, parts: Sequence[Part]) -> list[Part]:
        hidden = Reasoning if self._options.hides_reasoning else ()
        return [part for part in parts if not isinstance(part, hidden)]

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
            warnings=(self._warnings if shows_prompt else None) or UNSET,
        )


def _finish_reason(output: RequestOutput, answer: AnswerParts) -> str:
    """OpenAI's word for why a choice ended: one that ended by itself and called tools ended to call them."""
    assert output.finish_reason is not None
    if output.finish_reason is FinishReason.STOP and answer.has_calls:
        return "tool_calls"
    return output.finish_reason.value
