"""Programs on an engine of ours: calls become requests.

Owns the requests of programs and the reading of what comes of them. It does not know programs, nor where the engine
runs.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from headrace.core.client import GuessingClient
from headrace.core.clock import Clock
from headrace.core.errors import RequestAborted
from headrace.core.program_place import ProgramPlace
from headrace.core.request import FinishReason, Request, RequestOutput
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import DEFAULT_TERMS, ServiceTerms
from headrace.engine.request_builder import RequestBuilder
from headrace.program.backend import NOWHERE, Call, Generated, OnText, Place, Scores
from headrace.program.document import Document
from headrace.program.encoding import DocumentEncoder
from headrace.program.forms import structured_outputs
from headrace.program.scoring import Continuation, ScoreCall, ScoreReply, plan_calls, read_scores

T = TypeVar("T")

_MAX_REMEMBERED_PROGRAMS = 4096


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose calls these are: on what terms they are served, and what keeps their cached prefixes apart."""

    terms: ServiceTerms = DEFAULT_TERMS
    cache_salt: str = ""


NOBODY = Owner()


class EngineBackend:
    """Implements ``Backend`` over a ``GuessingClient`` of the same event loop.

    ``on_close`` closes what belongs to the backend, if anything does; the client is somebody else's otherwise.
    """

    def __init__(
        self,
        client: GuessingClient,
        encoder: DocumentEncoder,
        builder: RequestBuilder,
        clock: Clock,
        owner: Owner = NOBODY,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._client = client
        self.owner = owner
        self._on_close = on_close
        self._encoder = encoder
        self._builder = builder
        self._clock = clock
        self._numbers = itertools.count()
        self._began: dict[str, float] = {}
        self._preparing: set[asyncio.Future[Any]] = set()
        self._token = secrets.token_hex(6)
        self._slots = asyncio.Semaphore(2 * client.info.max_num_seqs)  # no program fills the queue for all others

    async def generate(self, document: Document, call: Call, on_text: OnText | None) -> Generated:
        """See ``Backend.generate``."""
        request = await self._prepared(call.place, lambda: self._request(document, call))
        texts = [""] * call.sampling.n
        num_output_tokens = 0
        last: RequestOutput | None = None
        async with aclosing(self._outputs(request, call.place)) as outputs:
            async for output in outputs:
                texts[output.index] += output.text
                num_output_tokens += len(output.token_ids)
                if output.index == 0:
                    last = output
                    if on_text is not None:
                        on_text(output.text)
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
        continuations = await self._prepared(call.place, lambda: self._encoder.continuations(document, choices))
        return await self.score_tokens(continuations, call.place)

    async def score_tokens(self, continuations: Sequence[Continuation], place: Place = NOWHERE) -> Scores:
        """Score rows of tokens, all at once."""
        calls = plan_calls(continuations)
        requests = [self._scoring_request(call, place) for call in calls]  # first, so that they arrive together
        outcomes = await all_or_none([self._score(request, place) for request in requests])
        return Scores(
            choices=read_scores(continuations, calls, [reply for reply, _ in outcomes]),
            num_prompt_tokens=sum(len(call.token_ids) for call in calls),
            num_cached_tokens=sum(num_cached for _, num_cached in outcomes),
            num_cached_before=min(num_cached for _, num_cached in outcomes),
        )

    def num_spare_calls(self) -> int:
        """See ``Backend.num_spare_calls``."""
        return self._client.num_spare_seqs

    def transcript(self, document: Document) -> str:
        """See ``Backend.transcript``."""
        if not document.is_chat:
            return document.text
        return self._encoder.tokenizer.decode(self._encoder.encode(document), skip_special_tokens=False)

    async def close(self) -> None:
        """See ``Backend.close``."""
        if self._on_close is not None:
            await self._on_close()

    async def _prepared(self, place: Place, work: Callable[[], T]) -> T:
        """Do what may take long in a thread; a guess is ready only when everything is that was asked before it."""
        earlier = tuple(self._preparing)
        preparing = asyncio.get_running_loop().run_in_executor(None, work)
        self._preparing.add(preparing)
        preparing.add_done_callback(self._preparing.discard)
        if place.is_guess and earlier:
            await asyncio.wait(earlier)
        return await preparing

    def _request(self, document: Document, call: Call) -> Request:
        sampling = structured_outputs(call.sampling, call.form)
        return self._built(self._encoder.encode(document), sampling, call.place)

    def _built(self, token_ids: Sequence[int], sampling: SamplingParams, place: Place) -> Request:
        now = self._clock.now()
        request = self._builder.build(
            f"program-{self._token}-{next(self._numbers)}",
            token_ids,
            sampling,
            arrival_time=now,
            terms=self.owner.terms,
            cache_salt=self.owner.cache_salt,
        )
        return msgspec.structs.replace(request, program=self._place(place, now)) if place.program_id else request

    def _place(self, place: Place, now: float) -> ProgramPlace:
        """Where a call stands; its program began with its first call, or with what it is itself part of."""
        outer = self.owner.terms.program
        began = self._began.setdefault(place.program_id, now if outer is None else outer.began)
        if len(self._began) > _MAX_REMEMBERED_PROGRAMS:
            self._began.pop(next(iter(self._began)))
        return ProgramPlace(place.program_id, began, place.num_tokens_left, place.is_guess)

    async def _outputs(self, request: Request, place: Place) -> AsyncGenerator[RequestOutput, None]:
        """What comes of a request, once it is its turn. Raises what it failed with."""
        async with self._slots, aclosing(self._client.generate(request)) as outputs:
            confirming = None if place.wanted is None else asyncio.ensure_future(self._confirm(request, place.wanted))
            try:
                async for output in outputs:
                    _check(output)
                    yield output
            finally:
                if confirming is not None:
                    confirming.cancel()

    async def _confirm(self, request: Request, wanted: asyncio.Future[None]) -> None:
        """Tell the engine once a request that is a guess is wanted."""
        if request.is_guess:
            await asyncio.wait((wanted,))
            await self._client.confirm(request.request_id)

    def _scoring_request(self, call: ScoreCall, place: Place) -> Request:
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            prompt_logprobs=0 if call.start < len(call.token_ids) else None,
            prompt_logprobs_start=call.start,
            logprob_token_ids=call.next_ids,
        )
        return self._built(call.token_ids, sampling, place)

    async def _score(self, request: Request, place: Place) -> tuple[ScoreReply, int]:
        """What the request of a scoring call says, and how much of it was cached."""
        logprobs: list[float] = []
        following: dict[int, float] = {}
        num_cached = 0
        async with aclosing(self._outputs(request, place)) as outputs:
            async for output in outputs:
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
