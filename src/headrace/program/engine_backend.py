"""Programs on an engine of ours: documents become tokens, calls become requests.

Owns the tokens of a document: a plain text is encoded whole, a conversation goes through the model's template, so
that a program's call is the very call a client would make by hand, and finds the same cached prefix. It does not know
programs, nor where the engine runs.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from headrace.core.client import EngineClient
from headrace.core.clock import Clock
from headrace.core.errors import InvalidRequest, RequestAborted
from headrace.core.request import FinishReason, ProgramPlace, Request, RequestOutput
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import DEFAULT_TERMS, ServiceTerms
from headrace.engine.request_builder import RequestBuilder
from headrace.program.backend import Call, Generated, OnText, Scores
from headrace.program.document import Document
from headrace.program.forms import structured_outputs
from headrace.program.scoring import Continuation, ScoreCall, ScoreReply, continuation, plan_calls, read_scores

T = TypeVar("T")

_MAX_REMEMBERED_PROGRAMS = 4096


class ProgramTokenizer(Protocol):
    """What programs need of a tokenizer; safe to use from several threads."""

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str: ...


class ProgramChat(Protocol):
    """A chat template with its tokenizer."""

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Mapping[str, object],
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class DocumentEncoder:
    """Documents as the tokens a model sees. Immutable; its methods may take long and are for worker threads."""

    tokenizer: ProgramTokenizer
    chat: ProgramChat | None

    def encode(self, document: Document) -> list[int]:
        """Tokens of a document up to where it goes on. Raises ``InvalidRequest``."""
        if document.is_chat:
            return self._encode_chat(document)
        if document.text:
            return self.tokenizer.encode(document.text)
        return [self._first_id()]

    def continuations(self, document: Document, choices: Sequence[str]) -> list[Continuation]:
        """Each choice as a continuation of a document."""
        prompt_ids = self.encode(document)
        if document == Document():  # a text of its own would begin with the begin token only where models have one
            return [
                Continuation((*prompt_ids, *self.tokenizer.encode(choice, add_special_tokens=False)), len(prompt_ids))
                for choice in choices
            ]
        return [continuation(prompt_ids, self.encode(document.with_text(choice))) for choice in choices]

    def _encode_chat(self, document: Document) -> list[int]:
        if self.chat is None:
            raise InvalidRequest(
                "this model has no chat template, so a program for it cannot use system(), user() and assistant(); "
                "append plain text, or give the model a template with --chat-template"
            )
        messages = document.messages()
        answers = document.role is None or (document.role == "assistant" and not document.content)
        if document.role is not None and answers:
            messages.pop()
        return self.chat.encode_chat(
            messages, add_generation_prompt=answers, continue_final_message=not answers, template_kwargs={}
        )

    def _first_id(self) -> int:
        """A token to begin a text with: the model's own, or the one that ends the text before."""
        for token_id in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token_id is not None:
                return token_id
        raise InvalidRequest("the program generates before it has any text; append some first")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose calls these are: on what terms they are served, and what keeps their cached prefixes apart."""

    terms: ServiceTerms = DEFAULT_TERMS
    cache_salt: str = ""


NOBODY = Owner()


class EngineBackend:
    """Implements ``Backend`` over an ``EngineClient`` of the same event loop.

    ``on_close`` closes what belongs to the backend, if anything does; the client is somebody else's otherwise.
    """

    def __init__(
        self,
        client: EngineClient,
        encoder: DocumentEncoder,
        builder: RequestBuilder,
        clock: Clock,
        owner: Owner = NOBODY,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._client = client
        self._owner = owner
        self._on_close = on_close
        self._encoder = encoder
        self._builder = builder
        self._clock = clock
        self._numbers = itertools.count()
        self._began: dict[str, float] = {}
        self._token = secrets.token_hex(6)
        self._slots = asyncio.Semaphore(2 * client.info.max_num_seqs)  # no program fills the queue for all others

    async def generate(self, document: Document, call: Call, on_text: OnText) -> Generated:
        """See ``Backend.generate``."""
        request = await asyncio.to_thread(self._request, document, call)
        texts = [""] * call.sampling.n
        num_output_tokens = 0
        last: RequestOutput | None = None
        async with self._slots, aclosing(self._client.generate(request)) as outputs:
            async for output in outputs:
                _check(output)
                texts[output.index] += output.text
                num_output_tokens += len(output.token_ids)
                if output.index == 0:
                    on_text(output.text)
                    last = output
        assert last is not None
        assert last.finish_reason is not None
        return Generated(
            texts=tuple(texts),
            call_id=request.request_id,
            finish_reason=last.finish_reason.value,
            stop_reason=last.stop_reason,
            num_prompt_tokens=last.usage.num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            num_cached_tokens=last.usage.num_cached_tokens,
        )

    async def score(self, document: Document, choices: Sequence[str], call: Call) -> Scores:
        """See ``Backend.score``."""
        continuations = await asyncio.to_thread(self._encoder.continuations, document, choices)
        return await self.score_tokens(continuations, call.program_id)

    async def score_tokens(self, continuations: Sequence[Continuation], program_id: str = "") -> Scores:
        """Score rows of tokens, all at once."""
        calls = plan_calls(continuations)
        outcomes = await all_or_none([self._score(call, program_id) for call in calls])
        return Scores(
            choices=read_scores(continuations, calls, [reply for reply, _ in outcomes]),
            num_prompt_tokens=sum(len(call.token_ids) for call in calls),
            num_cached_tokens=sum(num_cached for _, num_cached in outcomes),
            num_cached_before=min(num_cached for _, num_cached in outcomes),
        )

    def transcript(self, document: Document) -> str:
        """See ``Backend.transcript``."""
        if not document.is_chat:
            return document.text
        return self._encoder.tokenizer.decode(self._encoder.encode(document), skip_special_tokens=False)

    async def close(self) -> None:
        """See ``Backend.close``."""
        if self._on_close is not None:
            await self._on_close()

    def _request(self, document: Document, call: Call) -> Request:
        sampling = structured_outputs(call.sampling, call.form)
        return self._built(self._encoder.encode(document), sampling, call.program_id)

    def _built(self, token_ids: Sequence[int], sampling: SamplingParams, program_id: str) -> Request:
        now = self._clock.now()
        request = self._builder.build(
            f"program-{self._token}-{next(self._numbers)}",
            token_ids,
            sampling,
            arrival_time=now,
            terms=self._owner.terms,
            cache_salt=self._owner.cache_salt,
        )
        return msgspec.structs.replace(request, program=self._place(program_id, now)) if program_id else request

    def _place(self, program_id: str, now: float) -> ProgramPlace:
        """Where a call stands: its program began with the first call that was made for it."""
        began = self._began.setdefault(program_id, now)
        if len(self._began) > _MAX_REMEMBERED_PROGRAMS:
            self._began.pop(next(iter(self._began)))
        return ProgramPlace(program_id, began)

    async def _score(self, call: ScoreCall, program_id: str) -> tuple[ScoreReply, int]:
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            prompt_logprobs=0 if call.start < len(call.token_ids) else None,
            prompt_logprobs_start=call.start,
            logprob_token_ids=call.next_ids,
        )
        request = self._built(call.token_ids, sampling, program_id)
        logprobs: list[float] = []
        following: dict[int, float] = {}
        num_cached = 0
        async with self._slots, aclosing(self._client.generate(request)) as outputs:
            async for output in outputs:
                _check(output)
                logprobs += [entry.logprob for entry in output.prompt_logprobs if entry is not None]
                following |= {token_id: logprob for entry in output.logprobs for token_id, logprob in entry.top}
                num_cached = output.usage.num_cached_tokens
        return ScoreReply(tuple(logprobs), following), num_cached


async def all_or_none(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Do all of it at the same time; if one fails, end the others and raise its error."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _check(output: RequestOutput) -> None:
    """Raise what a sequence failed with."""
    if output.error is not None:
        raise output.error.failure()
    if output.finish_reason is FinishReason.ABORT:
        raise RequestAborted("the request was ended before its answer was complete")
