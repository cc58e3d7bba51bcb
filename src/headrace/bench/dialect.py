"""How requests are put to a server and its chunks are read: completions, chat, SGLang's native generate.

Owns bodies and the meaning of one chunk. It knows nothing of connections, time or load. What counts as output
of a chunk is text, reasoning or tool call arguments that are not empty: a chunk with a role, a finish reason or
usage alone brings no token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headrace.bench.workload import Message, Session, Turn
from headrace.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server gives them; 0 where it gives none."""

    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What a chunk says of one choice; ``text`` is what is new, whatever the dialect."""

    choice: int
    text: str
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of a stream, or a whole reply."""

    pieces: Sequence[Piece] = ()
    usage: Usage | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class BodyOptions:
    """What goes into every body. ``sampling`` are fields of OpenAI's API, in the dialect's place."""

    model: str
    is_streamed: bool = True
    ignore_eos: bool = False
    sampling: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """What a session has said so far, with the server's answers. *Mutable.*"""

    messages: list[Message] = field(default_factory=list)

    @classmethod
    def of(cls, session: Session) -> History:
        system: list[Message] = [{"role": "system", "content": session.system}] if session.system is not None else []
        return cls(system)

    def ask(self, turn: Turn) -> None:
        self.messages += turn.messages
        if turn.text is not None:
            self.messages.append({"role": "user", "content": turn.text})

    def answer(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})


class Dialect(Protocol):
    """One way to talk to a server. ``reader`` is made for each request: some dialects send the text so far."""

    name: str
    path: str

    def body(self, turn: Turn, history: History, options: BodyOptions) -> bytes:
        """Raises ``ConfigError`` for a turn that cannot be said in this dialect."""
        ...

    def reader(self) -> ChunkReader: ...


class ChunkReader(Protocol):
    """Reads the chunks of one reply."""

    def read(self, data: bytes) -> Chunk:
        """Raises ``msgspec.DecodeError`` for what is no chunk."""
        ...


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None

    def text(self) -> str:
        text = (self.reasoning_content or self.reasoning or "") + (self.content or "")
        for call in self.tool_calls or ():
            if call.function is not None:
                text += (call.function.name or "") + (call.function.arguments or "")
        return text


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None

    def piece(self) -> Piece:
        body = self.delta or self.message
        text = self.text or (body.text() if body is not None else "")
        return Piece(self.index, text, self.finish_reason)


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None

    def counts(self) -> Usage:
        cached = self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0
        return Usage(self.prompt_tokens or 0, self.completion_tokens or 0, cached or 0)


class _OpenAIChunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: object = None


class OpenAIReader:
    """Chunks and whole replies of completions and chat."""

    def __init__(self) -> None:
        self._decode = _OPENAI.decode

    def read(self, data: bytes) -> Chunk:
        chunk = self._decode(data)
        if chunk.error is not None:
            return Chunk(error=error_text(chunk.error))
        pieces = [choice.piece() for choice in chunk.choices or ()]
        return Chunk(pieces, chunk.usage.counts() if chunk.usage is not None else None)


_OPENAI = msgspec.json.Decoder(_OpenAIChunk)


class Completions:
    """``/v1/completions``; a later turn is sent as all text so far with the new text behind it."""

    name = "completions"
    path = "/v1/completions"

    def body(self, turn: Turn, history: History, options: BodyOptions) -> bytes:
        return msgspec.json.encode({**_openai_fields(turn, options), "prompt": plain_prompt(turn, history, self.name)})

    def reader(self) -> ChunkReader:
        return OpenAIReader()


class Chat:
    """``/v1/chat/completions``."""

    name = "chat"
    path = "/v1/chat/completions"

    def body(self, turn: Turn, history: History, options: BodyOptions) -> bytes:
        if isinstance(turn.text, list):
            raise ConfigError(
                "this workload has prompts of token ids, which chat does not take; use --endpoint completions"
            )
        return msgspec.json.encode({**_openai_fields(turn, options), "messages": history.messages})

    def reader(self) -> ChunkReader:
        return OpenAIReader()


class _FinishReason(msgspec.Struct):
    type: str = ""


class _MetaInfo(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: _FinishReason | str | None = None


class _GenerateChunk(msgspec.Struct):
    text: str | None = None
    index: int = 0
    meta_info: _MetaInfo | None = None
    error: object = None


class GenerateReader:
    """Chunks of ``/generate``: each brings the whole text so far of its choice."""

    def __init__(self) -> None:
        self._num_chars: dict[int, int] = {}
        self._num_output_tokens: dict[int, int] = {}

    def read(self, data: bytes) -> Chunk:
        if data.lstrip().startswith(b"["):  # n answers at once, not streamed
            chunks = msgspec.json.decode(data, type=list[_GenerateChunk])
            pieces = [self._piece(chunk, index) for index, chunk in enumerate(chunks)]
            return Chunk(pieces, self._usage(chunks[-1].meta_info) if chunks else None)
        chunk = _GENERATE.decode(data)
        if chunk.error is not None:
            return Chunk(error=error_text(chunk.error))
        piece = self._piece(chunk, chunk.index)
        return Chunk([piece], self._usage(chunk.meta_info))

    def _piece(self, chunk: _GenerateChunk, choice: int) -> Piece:
        text = chunk.text or ""
        new = text[self._num_chars.get(choice, 0) :]
        self._num_chars[choice] = len(text)
        meta = chunk.meta_info
        if meta is not None:
            self._num_output_tokens[choice] = meta.completion_tokens or 0
        reason = meta.finish_reason if meta is not None else None
        return Piece(choice, new, reason.type if isinstance(reason, _FinishReason) else reason)

    def _usage(self, meta: _MetaInfo | None) -> Usage | None:
        if meta is None:
            return None
        return Usage(meta.prompt_tokens or 0, sum(self._num_output_tokens.values()), meta.cached_tokens or 0)


_GENERATE = msgspec.json.Decoder(_GenerateChunk)


class Generate:
    """SGLang's native ``/generate``."""

    name = "generate"
    path = "/generate"

    def body(self, turn: Turn, history: History, options: BodyOptions) -> bytes:
        prompt = plain_prompt(turn, history, self.name)
        sampling = {"max_new_tokens": turn.max_tokens, **options.sampling}
        if options.ignore_eos:
            sampling["ignore_eos"] = True
        if "n" in turn.fields:
            sampling["n"] = turn.fields["n"]
        others = {name: value for name, value in turn.fields.items() if name != "n"}
        key = "input_ids" if isinstance(prompt, list) else "text"
        body = {key: prompt, "sampling_params": sampling, "stream": options.is_streamed, **options.extra, **others}
        return msgspec.json.encode(body)

    def reader(self) -> ChunkReader:
        return GenerateReader()


DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (Completions(), Chat(), Generate())}


def plain_prompt(turn: Turn, history: History, name: str) -> str | list[int]:
    """Everything said so far as one text. Raises ``ConfigError`` where that cannot be."""
    if isinstance(turn.text, list):
        if len(history.messages) > 1:
            raise ConfigError(
                f"a conversation over {name} needs text, but this workload has token ids; use --endpoint chat"
            )
        return turn.text
    contents = [message.get("content") for message in history.messages]
    if not all(isinstance(content, str) for content in contents):
        raise ConfigError(f"this workload has messages that are not plain text; use --endpoint chat instead of {name}")
    return "\n".join(str(content) for content in contents)


def error_text(error: object) -> str:
    """The message of an error in any of the forms servers give it."""
    if isinstance(error, Mapping):
        inner = error.get("error", error)
        if isinstance(inner, Mapping):
            return str(inner.get("message") or inner.get("detail") or dict(inner))
        return str(inner)
    return str(error)


def _openai_fields(turn: Turn, options: BodyOptions) -> dict[str, object]:
    fields: dict[str, object] = {"model": options.model, "max_tokens": turn.max_tokens, "stream": options.is_streamed}
    if options.is_streamed:
        fields["stream_options"] = {"include_usage": True}
    if options.ignore_eos:
        fields["ignore_eos"] = True
    return {**fields, **options.sampling, **options.extra, **turn.fields}
