"""Programs on a server that goes on with a message where it stopped: ours, and others with vLLM's extensions.

Owns the spelling of calls in that dialect. Choices are scored by our ``/v1/programs`` where the server has it, else by
the log-probabilities of prompts that hold each choice.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest, RequestFailed
from headrace.core.sampling import SamplingParams
from headrace.program.api_client import ApiClient, Headers, JsonObject, NoSuchRoute
from headrace.program.backend import Call, ChoiceScore, Form, Generated, OnText, Place, Scores
from headrace.program.document import Document
from headrace.program.ir import Node, Program, RoleBegin, RoleEnd, Select, Text
from headrace.program.runtime import Runtime
from headrace.program.scoring import continuation

_ALWAYS_SENT = ("max_tokens", "temperature")

_CONFIRM_AGAIN_S = 0.02
_MAX_CONFIRM_DELAY_S = 1.0
"""When what the server did not know yet is confirmed again: after the first, then twice that, at most the second."""


class RuntimeEndpoint(Runtime):
    """A server to run programs on, by its URL: SGLang's name for it.

    ``model`` is the name to ask for; by default the first that the server lists.
    """

    def __init__(self, base_url: str, api_key: str | None = None, model: str | None = None) -> None:
        async def opened() -> ServerBackend:
            client = ApiClient(base_url, api_key)
            return ServerBackend(client, model or await first_model(client))

        super().__init__(opened)


async def first_model(client: ApiClient) -> str:
    """The first model that a server lists."""
    models = (await client.get("/v1/models")).get("data") or []
    if not models:
        raise InvalidRequest(f"the server at {client.base_url} lists no models; name one with model=...")
    return str(models[0]["id"])


class ServerBackend:
    """Implements ``Backend`` over HTTP."""

    def __init__(self, client: ApiClient, model: str) -> None:
        self.client = client
        self._model = model
        self._scores_by_program = True
        self._num_running = 0

    async def generate(self, document: Document, call: Call, on_text: OnText | None) -> Generated:
        """See ``Backend.generate``."""
        path, prompt = prompt_fields(document)
        body = {"model": self._model, **prompt, **sampling_fields(call.sampling), **form_fields(call.form)}
        async with self._placed(call.place) as headers:
            return await ask(self.client, path, body, Answer(call.sampling.n, on_text), headers)

    async def score(self, document: Document, choices: Sequence[str], call: Call) -> Scores:
        """See ``Backend.score``."""
        if call.place.wanted is not None:
            await asyncio.wait((call.place.wanted,))  # a score cannot be asked for on a guess
        if self._scores_by_program:
            try:
                async with self._placed(call.place) as headers:
                    return await self._score_by_program(document, choices, headers)
            except NoSuchRoute:
                self._scores_by_program = False
        return await self._score_by_prompts(document, choices)

    def num_spare_calls(self) -> int:
        """See ``Backend.num_spare_calls``: what the server told with its latest answer, less what was sent since."""
        return max(self.client.num_spare_sequences - self._num_running, 0)

    def transcript(self, document: Document) -> str:
        """See ``Backend.transcript``; in ChatML, since a server does not tell its template."""
        return document.transcript()

    async def close(self) -> None:
        await self.client.close()

    @asynccontextmanager
    async def _placed(self, place: Place) -> AsyncGenerator[Headers, None]:
        """The headers that say where a call stands; one on a guess is confirmed while it runs, once it is wanted."""
        request_id = secrets.token_hex(8)
        confirming = None
        if place.wanted is not None and place.is_guess:
            confirming = asyncio.ensure_future(self._confirm(request_id, place.wanted))
        self._num_running += 1
        try:
            yield place_headers(place, request_id)
        finally:
            self._num_running -= 1
            if confirming is not None:
                confirming.cancel()

    async def _confirm(self, request_id: str, wanted: asyncio.Future[None]) -> None:
        """Tell the server that a call on a guess is wanted, until it knows, or the call is over and this cancelled."""
        await asyncio.wait((wanted,))
        delay_s = _CONFIRM_AGAIN_S
        while True:
            with suppress(HeadraceError):  # the call itself may still be on its way
                await self.client.post(f"/v1/requests/{request_id}/confirm", {})
                return
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_CONFIRM_DELAY_S)

    async def _score_by_program(self, document: Document, choices: Sequence[str], headers: Headers) -> Scores:
        body = (*_nodes(document), Select(choices=tuple(choices), name="choice"))
        program = msgspec.to_builtins(Program(body=body), str_keys=True)
        reply = await self.client.post("/v1/programs", {"model": self._model, "program": program}, headers)
        meta = reply["captures"]["choice"]["meta"]
        rows = meta["input_token_logprobs"]
        return Scores(
            tuple(ChoiceScore(tuple(i for _, i, _ in row), tuple(value for value, _, _ in row)) for row in rows),
            num_prompt_tokens=meta["prompt_tokens"],
            num_cached_tokens=meta["cached_tokens"],
        )

    async def _score_by_prompts(self, document: Document, choices: Sequence[str]) -> Scores:
        documents = [document, *(document.with_text(choice) for choice in choices)]
        rows = await asyncio.gather(*(self._prompt_logprobs(each) for each in documents))
        (prompt_ids, _), *scored = rows
        scores = []
        for token_ids, logprobs in scored:
            start = continuation(prompt_ids, token_ids).start
            scores.append(ChoiceScore(tuple(token_ids[start:]), tuple(logprobs[start:])))
        return Scores(tuple(scores), num_prompt_tokens=sum(len(token_ids) for token_ids, _ in rows))

    async def _prompt_logprobs(self, document: Document) -> tuple[list[int], list[float]]:
        """Ids of a document's tokens and their log-probabilities; the first token has none and counts 0."""
        path, prompt = prompt_fields(document)
        body = {"model": self._model, **prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        reply = await self.client.post(path, {**body, "return_token_ids": True})
        choice = reply["choices"][0]
        entries = reply.get("prompt_logprobs") or choice.get("prompt_logprobs")
        if entries is None:
            raise InvalidRequest("the server does not report prompt_logprobs, so it cannot score choices for select")
        token_ids = [0 if entry is None else int(next(iter(entry))) for entry in entries]
        return token_ids, [0.0 if entry is None else next(iter(entry.values()))["logprob"] for entry in entries]


class Answer:
    """The choices of an answer, chat or completion, being read: streamed if somebody reads along, else whole."""

    def __init__(self, num_choices: int, on_text: OnText | None) -> None:
        self._texts = [""] * num_choices
        self._on_text = on_text
        self._finish_reason: str | None = None
        self._stop_reason: str | int | None = None
        self._usage: JsonObject = {}
        self._id = ""

    @property
    def is_streamed(self) -> bool:
        return self._on_text is not None

    def take(self, event: JsonObject) -> None:
        """Take in an event of a stream, or the whole reply."""
        self._id = event.get("id") or self._id
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices", ()):
            index = choice.get("index", 0)
            message = choice.get("delta") or choice.get("message") or {}
            text = choice["text"] if "text" in choice else message.get("content")
            if text:
                self._texts[index] += text
                if index == 0 and self._on_text is not None:
                    self._on_text(text)
            if index == 0 and choice.get("finish_reason"):
                self._finish_reason, self._stop_reason = choice["finish_reason"], choice.get("stop_reason")

    def generated(self) -> Generated:
        """Everything, once the stream has ended. Raises ``RequestFailed`` if it ended too early."""
        if self._finish_reason is None:
            raise RequestFailed("the server ended its answer before it was complete")
        details = self._usage.get("prompt_tokens_details") or {}
        return Generated(
            texts=tuple(self._texts),
            call_id=self._id,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            num_prompt_tokens=self._usage.get("prompt_tokens", 0),
            num_output_tokens=self._usage.get("completion_tokens", 0),
            num_cached_tokens=details.get("cached_tokens") or 0,
        )


async def ask(
    client: ApiClient, path: str, body: JsonObject, answer: Answer, headers: Headers | None = None
) -> Generated:
    """Send a call and read its answer."""
    if not answer.is_streamed:  # an event for each token costs both sides more than the token's share of the reply
        answer.take(await client.post(path, body, headers))
        return answer.generated()
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with aclosing(client.events(path, streamed, headers)) as events:
        async for event in events:
            answer.take(event)
    return answer.generated()


def place_headers(place: Place, request_id: str) -> Headers:
    """What tells our server which program a call is of; others do not know the names, and lose nothing."""
    if not place.program_id:
        return {}
    headers = {"x-program-id": place.program_id, "x-program-tokens-left": str(place.num_tokens_left)}
    return {**headers, "x-program-guess": "true", "x-request-id": request_id} if place.is_guess else headers


def prompt_fields(document: Document) -> tuple[str, JsonObject]:
    """The route and the fields that continue a document."""
    if not document.is_chat:
        return "/v1/completions", {"prompt": document.text}
    messages = document.messages()
    if document.role == "assistant" and not document.content:
        messages.pop()
    elif document.role is not None:
        goes_on = {"continue_final_message": True, "add_generation_prompt": False}
        return "/v1/chat/completions", {"messages": messages, **goes_on}
    return "/v1/chat/completions", {"messages": messages}


def sampling_fields(sampling: SamplingParams) -> JsonObject:
    """What differs from the defaults, under vLLM's names."""
    plain = SamplingParams()
    sent: dict[str, Any] = {}
    for name in sampling.__struct_fields__:
        value = getattr(sampling, name)
        if value != getattr(plain, name) or name in _ALWAYS_SENT:
            sent[name] = list(value) if isinstance(value, tuple) else value
    return sent


def form_fields(form: Form) -> JsonObject:
    if form.regex is not None:
        return {"structured_outputs": {"regex": form.regex}}
    if form.json_schema is not None:
        return {"structured_outputs": {"json": msgspec.json.decode(form.json_schema)}}
    return {}


def _nodes(document: Document) -> list[Node]:
    """A document as the nodes that write it."""
    nodes: list[Node] = [Text(document.text)] if document.text else []
    for turn in document.turns:
        nodes += [RoleBegin(turn.role), Text(turn.content), RoleEnd()]
    if document.role is not None:
        nodes += [RoleBegin(document.role), Text(document.content)]
    return nodes
