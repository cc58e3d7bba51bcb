"""A tokenizer and an engine client whose answers can be computed on paper.

``ByteTokenizer``: a token is a byte; three control tokens follow. ``ScriptedClient``: the answer to every
prompt is the alphabet, starting at the letter of the sequence's index: ``abc...``, ``bcd...``; the token at
output position ``i`` has log-probability ``-(i % 4) / 4``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.core.client import EngineInfo
from headrace.core.errors import EngineDead, InvalidRequest, Overloaded
from headrace.core.request import (
    FinishReason,
    OutputError,
    Request,
    RequestOutput,
    RequestTimes,
    TokenLogprobs,
    Usage,
)
from headrace.core.timeline import SequenceTimeline
from headrace.engine.chat_messages import MessageStyle, template_messages
from headrace.engine.detokenizer import ByteDetokenizer
from headrace.engine.stop_matcher import StopStrings
from headrace.engine.text_stream import TextStream

START, END, TOOL = 256, 257, 258
SPECIALS = {"<|start|>": START, "<|end|>": END, "<|tool|>": TOOL}
VOCAB_SIZE = 259
ALPHABET = b"abcdefghijklmnopqrstuvwxyz"


class ByteTokenizer:
    """One token per byte of UTF-8. Control tokens have text only when it is asked for."""

    vocab_size = VOCAB_SIZE
    bos_token_id = None
    eos_token_id = END
    special_token_ids = frozenset(SPECIALS.values())
    chat_template = "{{ messages }}"

    def __init__(self) -> None:
        self._shown = [bytes([byte]) for byte in range(256)] + [text.encode() for text in SPECIALS]
        self.token_bytes = self._shown[:256] + [b""] * len(SPECIALS)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Spellings of control tokens are control tokens."""
        ids: list[int] = []
        while text:
            for spelling, token_id in SPECIALS.items():
                if text.startswith(spelling):
                    ids.append(token_id)
                    text = text[len(spelling) :]
                    break
            else:
                end = min((at for at in (text.find(s) for s in SPECIALS) if at > 0), default=len(text))
                ids.extend(text[:end].encode())
                text = text[end:]
        return ids

    def encode_text(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        table = self.token_bytes if skip_special_tokens else self._shown
        return b"".join(table[token_id] for token_id in token_ids).decode("utf-8", "replace")

    def detokenizer(self, skip_special_tokens: bool = True) -> ByteDetokenizer:
        return ByteDetokenizer(self.token_bytes if skip_special_tokens else self._shown)

    def shown_bytes(self, token_id: int) -> bytes:
        return self._shown[token_id] if 0 <= token_id < VOCAB_SIZE else b""


class BracketChat:
    """A chat template: ``<|start|>role:content<|end|>`` per message, then ``<|start|>assistant:``."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self._tokenizer = tokenizer

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        template_kwargs: Mapping[str, object],
    ) -> list[int]:
        ids: list[int] = []
        for message in template_messages(messages, MessageStyle()):
            if message["content"] == "!raise":
                raise InvalidRequest("the template refuses this conversation: roles must alternate", "messages")
            ids += [START, *self._tokenizer.encode_text(f"{message['role']}:{message['content']}"), END]
        if continue_final_message:
            ids.pop()
        if add_generation_prompt:
            ids += [START, *b"assistant:"]
        return ids


def letters(count: int, index: int = 0) -> str:
    """The first ``count`` characters of the scripted answer of sequence ``index``."""
    return bytes(ALPHABET[(index + i) % 26] for i in range(count)).decode()


def alphabet(request: Request, index: int, position: int) -> int:
    """The default script."""
    return ALPHABET[(index + position) % 26]


def spelling(*texts: str | bytes, then: int = END) -> Callable[[Request, int, int], int]:
    """A script that spells ``texts[index]`` and then repeats ``then``."""
    rows = [text.encode() if isinstance(text, str) else text for text in texts]

    def script(request: Request, index: int, position: int) -> int:
        row = rows[index % len(rows)]
        return row[position] if position < len(row) else then

    return script


@dataclass
class ScriptedClient:
    """An ``EngineClient`` without an engine. Everything public may be set by a test, before or while it runs.

    ``hold_at``: every request stops before its output position ``hold_at`` until ``release`` is called.
    ``fail_at``: the sequence ends with an error at that output position. ``cached`` is what usage says.
    """

    script: Callable[[Request, int, int], int] = alphabet
    max_model_len: int = 512
    max_queued: int = 256
    is_ready: bool = True
    hold_at: int | None = None
    fail_at: int | None = None
    failure: OutputError = field(default_factory=lambda: OutputError("RequestFailed", "the logits are not finite"))
    cached: int = 0
    live: dict[str, Request] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    dies: bool = False
    num_cleared: int = 0
    num_spare: int = 0
    confirmed: list[str] = field(default_factory=list)
    timelines: dict[str, list[SequenceTimeline]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._gate = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tokenizer = ByteTokenizer()

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            model="scripted",
            architecture="alphabet",
            dtype="float32",
            backend="none",
            num_parameters=26,
            vocab_size=VOCAB_SIZE,
            max_model_len=self.max_model_len,
            block_size=16,
            num_blocks=64,
            kv_cache_bytes=1 << 20,
            max_num_seqs=8,
            max_num_batched_tokens=512,
            eos_token_ids=[END],
        )

    def release(self) -> None:
        """Let held requests go on; may be called from any thread."""
        self.hold_at = None
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._gate.set)

    @property
    def num_spare_seqs(self) -> int:
        return self.num_spare

    async def confirm(self, request_id: str) -> None:
        self.confirmed.append(request_id)

    async def clear_prefix_cache(self) -> None:
        self.num_cleared += 1

    async def timeline(self, request_id: str) -> list[SequenceTimeline]:
        return self.timelines.get(request_id, [])

    async def abort(self, request_id: str) -> None:
        if self.live.pop(request_id, None) is not None:
            self.aborted.append(request_id)

    async def generate(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        self._loop = asyncio.get_running_loop()
        self._check_admission(request)
        self.live[request.request_id] = request
        self.seen.append(request)
        sequences = [_ScriptedSequence(self, request, index) for index in range(request.sampling.n)]
        try:
            for output in self._prompt_outputs(request):
                yield output
            position = 0
            while any(not sequence.is_finished for sequence in sequences):
                await self._pause(position)
                for sequence in sequences:
                    if not sequence.is_finished:
                        yield sequence.step()
                position += 1
        finally:
            if self.live.pop(request.request_id, None) and not all(each.is_finished for each in sequences):
                self.aborted.append(request.request_id)

    def _check_admission(self, request: Request) -> None:
        if not self.is_ready:
            raise EngineDead("the engine is starting; try again in a few seconds")
        waiting = sum(live.sampling.n for live in self.live.values())
        if waiting + request.sampling.n > self.max_queued:
            raise Overloaded(f"{waiting} sequences wait already and at most {self.max_queued} may; try again", 1.0)

    async def _pause(self, position: int) -> None:
        await asyncio.sleep(0)
        if self.hold_at is not None and position >= self.hold_at:
            self._gate.clear()
            await self._gate.wait()
        if self.dies:
            raise EngineDead("the engine process ended while this request was running; try again")

    def _prompt_outputs(self, request: Request) -> list[RequestOutput]:
        """Prompt log-probabilities in chunks of 16, for every sequence as an engine would."""
        num_top = request.sampling.prompt_logprobs
        if num_top is None:
            return []
        ids = request.prompt_token_ids
        entries = [None, *(scripted_logprobs(ids[i], i, num_top) for i in range(1, len(ids)))]
        return [
            RequestOutput(
                request_id=request.request_id,
                index=index,
                prompt_logprobs=tuple(entries[start : start + 16]),
                usage=Usage(len(ids), self.cached, 0),
            )
            for start in range(0, len(ids), 16)
            for index in reversed(range(request.sampling.n))
        ]


def scripted_logprobs(token_id: int, position: int, num_top: int) -> TokenLogprobs:
    """The token first, then the next ids, each 1 less likely."""
    logprob = -(position % 4) / 4
    top = tuple(((token_id + rank) % VOCAB_SIZE, logprob - rank) for rank in range(num_top))
    return TokenLogprobs(token_id, logprob, 1, top)


class _ScriptedSequence:
    """One sequence's script, stop rules and text."""

    def __init__(self, client: ScriptedClient, request: Request, index: int) -> None:
        self._client = client
        self._request = request
        self._index = index
        self._num_tokens = 0
        self.is_finished = False
        sampling = request.sampling
        self._text = TextStream(
            ByteTokenizer().detokenizer(sampling.skip_special_tokens),
            StopStrings(sampling.stop),
            sampling.include_stop_str_in_output,
            sampling.min_tokens,
        )

    def step(self) -> RequestOutput:
        if self._client.fail_at == self._num_tokens:
            return self._output("", (), FinishReason.ERROR, None, self._client.failure)
        sampling, position = self._request.sampling, self._num_tokens
        token_id = self._client.script(self._request, self._index, position)
        self._num_tokens += 1
        may_end = self._num_tokens > sampling.min_tokens
        if may_end and token_id in sampling.stop_token_ids:
            return self._output(self._text.finish(), (token_id,), FinishReason.STOP, token_id)
        if may_end and token_id == END and not sampling.ignore_eos:
            return self._output(self._text.finish(), (token_id,), FinishReason.STOP, None)
        delta = self._text.push(token_id)
        if delta.stop is not None:
            return self._output(delta.text, (token_id,), FinishReason.STOP, delta.stop)
        if self._num_tokens == sampling.max_tokens:
            return self._output(delta.text + self._text.finish(), (token_id,), FinishReason.LENGTH, None)
        return self._output(delta.text, (token_id,), None, None)

    def _output(
        self,
        text: str,
        token_ids: tuple[int, ...],
        finish_reason: FinishReason | None,
        stop_reason: str | int | None,
        error: OutputError | None = None,
    ) -> RequestOutput:
        self.is_finished = finish_reason is not None
        num_top = self._request.sampling.logprobs
        position = self._num_tokens - 1
        return RequestOutput(
            request_id=self._request.request_id,
            index=self._index,
            text=text,
            token_ids=token_ids,
            logprobs=tuple(scripted_logprobs(t, position, num_top) for t in token_ids) if num_top is not None else (),
            usage=Usage(len(self._request.prompt_token_ids), self._client.cached, self._num_tokens),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            times=RequestTimes(0.0, 0.0, 0.0, 0.0) if self.is_finished else None,
            error=error,
        )
