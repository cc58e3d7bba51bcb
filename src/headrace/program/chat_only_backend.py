"""Programs on an endpoint that only answers conversations, such as OpenAI's: it cannot go on with half a message.

Where a message is written in several parts, one call writes past the first part's end, and later parts are served from
what it wrote as long as that agrees with the program's own text: SGLang calls it API speculation. Owns that matching.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.program.api_client import ApiClient
from headrace.program.backend import FREE, Call, ChoiceScore, Generated, OnText, Scores
from headrace.program.document import Document, Turn
from headrace.program.runtime import Runtime
from headrace.program.server_backend import Answer, ask, form_fields, sampling_fields

DEFAULT_SPEC_TOKENS = 256
_MAX_AHEAD = 1024


class OpenAI(Runtime):
    """A model behind OpenAI's chat API. ``num_spec_tokens`` is how far a call may write past its own end."""

    def __init__(
        self,
        model: str,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        num_spec_tokens: int = DEFAULT_SPEC_TOKENS,
    ) -> None:
        async def opened() -> ChatOnlyBackend:
            return ChatOnlyBackend(ApiClient(base_url, api_key), model, num_spec_tokens)

        super().__init__(opened)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What an answer holds beyond what has been used of it. ``is_whole`` if the model ended it itself."""

    text: str
    is_whole: bool
    generated: Generated


class ChatOnlyBackend:
    """Implements ``Backend`` over ``/v1/chat/completions`` without any extension."""

    def __init__(self, client: ApiClient, model: str, num_spec_tokens: int) -> None:
        self._client = client
        self._model = model
        self._num_spec_tokens = num_spec_tokens
        self._ahead: OrderedDict[tuple[str, tuple[Turn, ...]], _Ahead] = OrderedDict()

    async def generate(self, document: Document, call: Call, on_text: OnText | None) -> Generated:
        """See ``Backend.generate``."""
        if not document.is_chat or document.role not in (None, "assistant"):
            raise InvalidRequest("this endpoint answers conversations only; put gen into assistant(), after user()")
        if document.content and (call.place.program_id, document.turns) in self._ahead:
            return self._served(document, call, on_text)
        is_cut = bool(call.sampling.stop) and self._num_spec_tokens > 0
        if (document.content or is_cut) and call.sampling.n == 1:
            return await self._speculate(document, call, on_text)
        return await self._ask(document, call, on_text)

    async def score(self, document: Document, choices: Sequence[str], call: Call) -> Scores:
        """Ask for one of the choices. Nothing is known but which: it gets 0, the others minus infinity."""
        ahead = self._ahead.get((call.place.program_id, document.turns))
        if document.content and ahead is not None and ahead.text.startswith(document.content):
            rest = ahead.text[len(document.content) :]
            for choice in sorted(choices, key=len, reverse=True):
                if rest.startswith(choice):
                    return _only(choices, choice)
        chosen = await self._ask_choice(document, choices)
        return _only(choices, chosen)

    def num_spare_calls(self) -> int:
        """See ``Backend.num_spare_calls``; a server does not tell."""
        return 0

    def transcript(self, document: Document) -> str:
        """See ``Backend.transcript``; in ChatML, since the endpoint does not tell its template."""
        return document.transcript()

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, document: Document, call: Call, on_text: OnText | None) -> Generated:
        body = {"model": self._model, "messages": _asked(document), **sampling_fields(call.sampling)}
        body |= form_fields(call.form)
        return await ask(self._client, "/v1/chat/completions", body, Answer(call.sampling.n, on_text))

    async def _speculate(self, document: Document, call: Call, on_text: OnText | None) -> Generated:
        """Let the model write the message past where the program wants it cut, and keep the rest for what follows."""
        max_tokens = (call.sampling.max_tokens or 0) + self._num_spec_tokens
        sampling = msgspec.structs.replace(call.sampling, stop=(), max_tokens=max_tokens)
        begun = Document(turns=document.turns, role="assistant")
        whole = await self._ask(begun, Call(sampling, FREE, call.place), None)
        while len(self._ahead) >= _MAX_AHEAD:
            self._ahead.popitem(last=False)
        ahead = _Ahead(whole.texts[0], whole.finish_reason == "stop", whole)
        self._ahead[call.place.program_id, document.turns] = ahead
        return self._served(document, call, on_text)

    def _served(self, document: Document, call: Call, on_text: OnText | None) -> Generated:
        """The next part of a message from what was written ahead. Raises ``InvalidRequest`` where that disagrees."""
        ahead = self._ahead.get((call.place.program_id, document.turns))
        if ahead is None or not ahead.text.startswith(document.content):
            raise InvalidRequest(
                "this endpoint cannot go on with a message that the program has begun, and what it wrote by itself "
                "does not agree with the program's text; ask for that form in the user's message, or use "
                "RuntimeEndpoint with a server that can go on"
            )
        rest = ahead.text[len(document.content) :]
        cuts = [(rest.index(stop), stop) for stop in call.sampling.stop if stop in rest]
        if not cuts and not ahead.is_whole:
            raise InvalidRequest(
                f"what was written ahead ended before any of the stop strings {list(call.sampling.stop)!r}; raise "
                "num_spec_tokens"
            )
        end, stop = min(cuts) if cuts else (len(rest), None)
        if on_text is not None:
            on_text(rest[:end])
        return replace(ahead.generated, texts=(rest[:end],), finish_reason="stop", stop_reason=stop)

    async def _ask_choice(self, document: Document, choices: Sequence[str]) -> str:
        schema = {
            "type": "object",
            "properties": {"choice": {"type": "string", "enum": list(choices)}},
            "required": ["choice"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "choice", "strict": True, "schema": schema}}
        body = {"model": self._model, "messages": _asked(document), "temperature": 0, "response_format": form}
        reply = await self._client.post("/v1/chat/completions", body)
        answer = reply["choices"][0]["message"]["content"]
        try:
            chosen = str(json.loads(answer)["choice"])
        except (ValueError, KeyError, TypeError):
            chosen = ""
        if chosen not in choices:
            raise InvalidRequest(f"the endpoint was asked for one of {list(choices)!r} and answered {answer[:80]!r}")
        return chosen


def _asked(document: Document) -> list[dict[str, str]]:
    messages = document.messages()
    if document.role == "assistant" and not document.content:
        messages.pop()
    return messages


def _only(choices: Sequence[str], chosen: str) -> Scores:
    return Scores(tuple(ChoiceScore((0,), (0.0 if choice == chosen else float("-inf"),)) for choice in choices))
