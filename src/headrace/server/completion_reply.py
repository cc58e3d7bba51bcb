"""Replies of ``/v1/completions``, whole or streamed, from the engine's deltas.

Choices are numbered ``prompt_index * n + index``, as OpenAI numbers them. An echoed prompt is the first piece
of its choice; when its log-probabilities are wanted, the choice's output waits until all of them have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from headrace.core.request import FinishReason, Request, RequestOutput, TokenLogprobs
from headrace.engine.streams import merge_outputs
from headrace.server.generation import Delta
from headrace.server.logprobs import (
    CompletionLogprobWriter,
    TokenView,
    new_completion_logprobs,
    prompt_logprobs,
)
from headrace.server.protocol_common import PromptLogprobs, UsageBody
from headrace.server.protocol_completions import (
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
    CompletionResponse,
)
from headrace.server.reply import ReplyHead, ReplyOptions
from headrace.server.usage import UsageMeter


@dataclass(frozen=True, slots=True)
class CompletionOptions(ReplyOptions):
    """``echo_texts`` holds the text of each prompt if prompts are echoed, else nothing.

    ``is_echo_only`` drops the output: only the prompt was asked for. ``shows_logprobs`` and
    ``shows_prompt_logprobs`` are OpenAI's and vLLM's form of log-probabilities.
    """

    echo_texts: tuple[str, ...] = ()
    is_echo_only: bool = False
    shows_logprobs: bool = False
    shows_prompt_logprobs: bool = False


class _Prompt:
    """One prompt and the log-probabilities of it that have come; those of the first sequence are as good as any's."""

    def __init__(self, request: Request, echo_text: str | None) -> None:
        self.token_ids = request.prompt_token_ids
        self.echo_text = echo_text
        self.logprobs: list[TokenLogprobs | None] = []

    @property
    def is_scored(self) -> bool:
        return len(self.logprobs) >= len(self.token_ids)


class _Choice:
    """One choice: what it holds back, and whether its prompt has been shown."""

    def __init__(self, index: int, prompt: _Prompt, writer: CompletionLogprobWriter | None) -> None:
        self.index = index
        self.prompt = prompt
        self.writer = writer
        self.is_begun = False
        self._held: list[RequestOutput] = []

    def hold(self, output: RequestOutput) -> None:
        self._held.append(output)

    @property
    def is_ready(self) -> bool:
        needs_scores = self.writer is not None and self.prompt.echo_text is not None and not self.is_begun
        return bool(self._held) and (not needs_scores or self.prompt.is_scored)

    def take(self) -> RequestOutput:
        held, self._held = self._held, []
        return merge_outputs(held)


class CompletionReply:
    """One completion reply being written; see ``reply.Reply``."""

    def __init__(
        self,
        head: ReplyHead,
        options: CompletionOptions,
        requests: Sequence[Request],
        tokens: TokenView,
        usage: UsageMeter,
    ) -> None:
        self.usage = usage
        self.finish_reasons: list[str] = []
        self._head = head
        self._options = options
        self._tokens = tokens
        echo_texts = options.echo_texts or (None,) * len(requests)
        self._prompts = [_Prompt(request, echo) for request, echo in zip(requests, echo_texts, strict=True)]
        self._num_choices_per_prompt = requests[0].sampling.n
        self._choices = [
            _Choice(index, self._prompts[index // self._num_choices_per_prompt], self._writer(requests[0]))
            for index in range(len(requests) * self._num_choices_per_prompt)
        ]
        self._holding: set[int] = set()
        self._warnings: dict[str, None] = {}

    def events(self, deltas: Sequence[Delta]) -> list[msgspec.Struct]:
        pieces = self._pieces(deltas)
        return [self._chunk([piece], self._usage_of_event()) for piece in pieces if self._is_visible(piece)]

    def last_events(self) -> list[msgspec.Struct]:
        return [self._chunk([], self.usage.body())] if self._options.include_usage else []

    def whole(self, deltas: Sequence[Delta]) -> CompletionResponse:
        head, choices = self._head, self._pieces(deltas)
        return CompletionResponse(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=self.usage.body(),
            warnings=list(self._warnings) or UNSET,
        )

    def _pieces(self, deltas: Sequence[Delta]) -> list[CompletionChoice]:
        """What can be shown now, in the order of the choices."""
        if self._options.is_echo_only:
            deltas = [Delta(delta.prompt_index, _without_output(delta.output)) for delta in deltas]
        self.usage.observe(deltas)
        for delta in deltas:
            if delta.output.index == 0:
                self._prompts[delta.prompt_index].logprobs.extend(delta.output.prompt_logprobs)
                self._warnings.update(dict.fromkeys(delta.output.warnings))
            index = delta.prompt_index * self._num_choices_per_prompt + delta.output.index
            self._choices[index].hold(delta.output)
            self._holding.add(index)
        ready = [index for index in sorted(self._holding) if self._choices[index].is_ready]
        self._holding.difference_update(ready)
        return [self._piece(self._choices[index]) for index in ready]

    def _piece(self, choice: _Choice) -> CompletionChoice:
        output = choice.take()
        is_first, choice.is_begun = not choice.is_begun, True
        text, logprobs = self._shown(choice, output, is_first)
        finish_reason = None if output.finish_reason is None else output.finish_reason.value
        if finish_reason is not None:
            self.finish_reasons.append(finish_reason)
        shows_ids = self._options.return_token_ids
        return CompletionChoice(
            index=choice.index,
            text=text,
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=output.stop_reason,
            token_ids=list(output.token_ids) if shows_ids else UNSET,
            prompt_token_ids=choice.prompt.token_ids if shows_ids and is_first else UNSET,
            prompt_logprobs=self._prompt_logprobs(choice.prompt),
        )

    def _shown(self, choice: _Choice, output: RequestOutput, is_first: bool) -> tuple[str, CompletionLogprobs | None]:
        """The text of an output, behind the echo if it is a choice's first, and its log-probabilities.

        With log-probabilities the echo is what its tokens spell, so that they concatenate to the text.
        """
        echo = choice.prompt.echo_text if is_first else None
        if choice.writer is None:
            return (echo or "") + output.text, None
        logprobs = new_completion_logprobs()
        if echo is not None:
            echo = choice.writer.write(choice.prompt.token_ids, choice.prompt.logprobs, logprobs)
        choice.writer.write([entry.token_id for entry in output.logprobs], output.logprobs, logprobs)
        return (echo or "") + output.text, logprobs

    def _prompt_logprobs(self, prompt: _Prompt) -> PromptLogprobs | UnsetType | None:
        return prompt_logprobs(prompt.logprobs, self._tokens) if self._options.shows_prompt_logprobs else UNSET

    def _writer(self, request: Request) -> CompletionLogprobWriter | None:
        if not self._options.shows_logprobs:
            return None
        return CompletionLogprobWriter(self._tokens, self._tokens.detokenizer(request.sampling.skip_special_tokens))

    def _is_visible(self, piece: CompletionChoice) -> bool:
        has_logprobs = piece.logprobs is not None and bool(piece.logprobs.tokens)
        has_ids = bool(piece.token_ids) or bool(piece.prompt_token_ids)
        return bool(piece.text) or piece.finish_reason is not None or has_logprobs or has_ids

    def _usage_of_event(self) -> UsageBody | UnsetType | None:
        if self._options.continuous_usage:
            return self.usage.body()
        return None if self._options.include_usage else UNSET

    def _chunk(self, choices: list[CompletionChoice], usage: UsageBody | UnsetType | None) -> CompletionChunk:
        head = self._head
        return CompletionChunk(id=head.id, created=head.created, model=head.model, choices=choices, usage=usage)


def _without_output(output: RequestOutput) -> RequestOutput:
    """The output of a pure echo, of which the engine had to compute one token."""
    usage = msgspec.structs.replace(output.usage, num_output_tokens=0)
    is_last = output.finish_reason is not None
    return msgspec.structs.replace(
        output,
        text="",
        token_ids=(),
        logprobs=(),
        usage=usage,
        finish_reason=FinishReason.LENGTH if is_last else None,
        stop_reason=None,
    )
