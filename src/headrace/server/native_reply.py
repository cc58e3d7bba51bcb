"""Replies of SGLang's ``/generate`` from the engine's deltas: every event holds the whole answer so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from headrace.core.request import FinishReason, Request, RequestOutput, TokenLogprobs
from headrace.engine.streams import merge_outputs
from headrace.server.generation import Delta
from headrace.server.logprobs import TokenView
from headrace.server.protocol_native import MetaInfo, NativeResponse, TokenLogprob
from headrace.server.usage import UsageMeter


@dataclass(frozen=True, slots=True)
class NativeAnswer:
    """How one prompt is answered. ``rid`` is the client's name for it.

    ``logprob_start`` is where the reported part of the prompt begins, ``None`` if no log-probabilities are wanted.
    ``is_prompt_only`` hides the one token that the engine makes where none was asked for.
    """

    rid: str
    logprob_start: int | None
    shows_text: bool
    num_top: int
    shows_named: bool
    is_prompt_only: bool


@dataclass(slots=True)
class _Written:
    """One sequence so far."""

    output: RequestOutput | None = None
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)


class NativeReply:
    """Implements ``Reply``. With one prompt and one answer the reply is an object, else a list."""

    def __init__(
        self, requests: Sequence[Request], answers: Sequence[NativeAnswer], tokens: TokenView, usage: UsageMeter
    ) -> None:
        self._requests = requests
        self._answers = answers
        self._tokens = tokens
        self._usage = usage
        self._written: dict[tuple[int, int], _Written] = {}
        self._is_list = len(requests) > 1 or requests[0].sampling.n > 1

    @property
    def usage(self) -> UsageMeter:
        return self._usage

    @property
    def finish_reasons(self) -> Sequence[str]:
        outputs = [written.output for written in self._written.values()]
        return [output.finish_reason.value for output in outputs if output is not None and output.finish_reason]

    def events(self, deltas: Sequence[Delta]) -> list[msgspec.Struct]:
        self._take(deltas)
        return [self._response(delta.prompt_index, delta.output.index) for delta in deltas]

    def last_events(self) -> list[msgspec.Struct]:
        return []

    def whole(self, deltas: Sequence[Delta]) -> msgspec.Struct | Sequence[msgspec.Struct]:
        self._take(deltas)
        responses = [self._response(*key) for key in sorted(self._written)]
        return responses if self._is_list else responses[0]

    def _take(self, deltas: Sequence[Delta]) -> None:
        self._usage.observe(deltas)
        for delta in deltas:
            written = self._written.setdefault((delta.prompt_index, delta.output.index), _Written())
            earlier = [] if written.output is None else [written.output]
            written.output = merge_outputs([*earlier, delta.output])
            written.prompt_logprobs += delta.output.prompt_logprobs

    def _response(self, prompt_index: int, index: int) -> NativeResponse:
        written = self._written[prompt_index, index]
        request, answer = self._requests[prompt_index], self._answers[prompt_index]
        output = written.output
        assert output is not None
        return NativeResponse(
            text="" if answer.is_prompt_only else output.text,
            output_ids=[] if answer.is_prompt_only else list(output.token_ids),
            meta_info=self._meta(request, answer, written, output),
            index=prompt_index * request.sampling.n + index if self._is_list else UNSET,
        )

    def _meta(self, request: Request, answer: NativeAnswer, written: _Written, output: RequestOutput) -> MetaInfo:
        times = output.times
        meta = MetaInfo(
            id=answer.rid,
            finish_reason=_finish_reason(output, answer),
            prompt_tokens=output.usage.num_prompt_tokens,
            completion_tokens=0 if answer.is_prompt_only else output.usage.num_output_tokens,
            cached_tokens=output.usage.num_cached_tokens,
            e2e_latency=UNSET if times is None else times.finished - times.arrival,
        )
        if answer.logprob_start is None:
            return meta
        return msgspec.structs.replace(meta, **self._logprobs(request, answer, written, output))

    def _logprobs(
        self, request: Request, answer: NativeAnswer, written: _Written, output: RequestOutput
    ) -> dict[str, object]:
        """SGLang's lists: the first reported token of a prompt has no log-probability, whatever stands before it.

        What could follow the prompt is told where no token is wanted, too.
        """
        start = answer.logprob_start or 0
        first = request.prompt_token_ids[start : start + 1]
        given = [entry for entry in written.prompt_logprobs if entry is not None]
        made = () if answer.is_prompt_only else output.logprobs
        unknown = [(None, token_id, self._text(answer, token_id)) for token_id in first]
        lists: dict[str, object] = {
            "input_token_logprobs": [*unknown, *self._tokens_of(answer, given)],
            "output_token_logprobs": self._tokens_of(answer, made),
            "output_token_logprobs_length": len(made),
        }
        if answer.num_top > 0:
            lists["input_top_logprobs"] = [*(None for _ in first), *self._tops_of(answer, given)]
            lists["output_top_logprobs"] = self._tops_of(answer, output.logprobs)
        if answer.shows_named:
            lists["output_token_ids_logprobs"] = self._tops_of(answer, output.logprobs)
        return lists

    def _tokens_of(self, answer: NativeAnswer, entries: Sequence[TokenLogprobs]) -> list[TokenLogprob]:
        return [self._entry(answer, entry.token_id, entry.logprob) for entry in entries]

    def _tops_of(self, answer: NativeAnswer, entries: Sequence[TokenLogprobs]) -> list[list[TokenLogprob]]:
        return [self._top(answer, entry) for entry in entries]

    def _top(self, answer: NativeAnswer, entry: TokenLogprobs) -> list[TokenLogprob]:
        return [self._entry(answer, token_id, logprob) for token_id, logprob in entry.top]

    def _entry(self, answer: NativeAnswer, token_id: int, logprob: float) -> TokenLogprob:
        return (logprob, token_id, self._text(answer, token_id))

    def _text(self, answer: NativeAnswer, token_id: int) -> str | None:
        return self._tokens.shown_bytes(token_id).decode("utf-8", "replace") if answer.shows_text else None


def _finish_reason(output: RequestOutput, answer: NativeAnswer) -> dict[str, object] | None:
    match output.finish_reason:
        case None:
            return None
        case FinishReason.LENGTH:
            return {"type": "length", "length": 0 if answer.is_prompt_only else output.usage.num_output_tokens}
        case FinishReason.STOP:
            matched = output.token_ids[-1] if output.stop_reason is None and output.token_ids else output.stop_reason
            return {"type": "stop", "matched": matched}
        case _:
            return {"type": "abort", "message": "Aborted"}
