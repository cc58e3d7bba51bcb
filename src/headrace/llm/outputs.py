"""What offline generation returns, in vLLM's shape, and how deltas are gathered into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.request import FinishReason, Request, RequestOutput, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of one token; ``rank`` counts from 1, the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


PositionLogprobs = dict[int, Logprob]
"""One position's log-probabilities by token id: the chosen token first, then the likeliest."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated sequence.

    ``finish_reason`` is ``None`` while it runs, then ``"stop"``, ``"length"``, ``"abort"`` or ``"error"``;
    ``error`` says what failed in the last case. ``stop_reason`` is the stop string or stop token id that
    ended it. ``logprobs`` has one entry per token, or is ``None`` when none were asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[PositionLogprobs] | None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """A prompt and its ``n`` generated sequences, whole, or as far as they are.

    ``prompt`` is ``None`` when the prompt came as token ids. ``prompt_logprobs`` has one entry per prompt
    token, ``None`` for the first, and is itself ``None`` when not asked for. ``num_cached_tokens`` of the
    prompt were found in the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[PositionLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class ScoreOutput:
    """How likely a continuation is after its prompt.

    ``logprobs[i]`` is the log-probability of ``token_ids[i]`` given everything before it and
    ``total_logprob`` their sum. ``is_greedy`` says that each was the likeliest token at its place.
    """

    token_ids: list[int]
    logprobs: list[float]
    total_logprob: float
    is_greedy: bool


class _SequenceCollector:
    """The deltas of one sequence so far."""

    __slots__ = ("error", "finish_reason", "logprobs", "stop_reason", "text", "token_ids")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.error: str | None = None

    def add(self, output: RequestOutput) -> None:
        self.text.append(output.text)
        self.token_ids.extend(output.token_ids)
        self.logprobs.extend(output.logprobs)
        self.finish_reason = output.finish_reason
        self.stop_reason = output.stop_reason
        self.error = output.error.message if output.error else None


class OutputCollector:
    """Gathers the deltas of one request; ``snapshot`` is the state so far.

    ``decode`` gives the text of one token, for log-probabilities. ``listener`` hears of each delta.
    """

    def __init__(self, request: Request, prompt: str | None, decode: Callable[[int], str]) -> None:
        self.request = request
        self.listener: Callable[[RequestOutput], None] | None = None
        self._prompt = prompt
        self._decode = decode
        self._sequences = [_SequenceCollector() for _ in range(request.sampling.n)]
        self._prompt_logprobs: list[TokenLogprobs | None] = []
        self._num_unfinished = request.sampling.n
        self._num_cached_tokens = 0

    @property
    def is_finished(self) -> bool:
        return self._num_unfinished == 0

    def add(self, output: RequestOutput) -> None:
        self._sequences[output.index].add(output)
        if output.index == 0:  # every sequence reports the same prompt
            self._prompt_logprobs.extend(output.prompt_logprobs)
            self._num_cached_tokens = output.usage.num_cached_tokens
        if output.finish_reason is not None:
            self._num_unfinished -= 1
        if self.listener is not None:
            self.listener(output)

    def snapshot(self) -> GenerationOutput:
        """Costs O(tokens so far)."""
        wants_prompt = self.request.sampling.prompt_logprobs is not None
        return GenerationOutput(
            request_id=self.request.request_id,
            prompt=self._prompt,
            prompt_token_ids=list(self.request.prompt_token_ids),
            prompt_logprobs=[self._position(entry) for entry in self._prompt_logprobs] if wants_prompt else None,
            outputs=[self._completion(index, sequence) for index, sequence in enumerate(self._sequences)],
            finished=self.is_finished,
            num_cached_tokens=self._num_cached_tokens,
        )

    def _completion(self, index: int, sequence: _SequenceCollector) -> CompletionOutput:
        wants_logprobs = self.request.sampling.logprobs is not None
        return CompletionOutput(
            index=index,
            text="".join(sequence.text),
            token_ids=list(sequence.token_ids),
            cumulative_logprob=sum(entry.logprob for entry in sequence.logprobs) if wants_logprobs else None,
            logprobs=[self._chosen(entry) for entry in sequence.logprobs] if wants_logprobs else None,
            finish_reason=sequence.finish_reason.value if sequence.finish_reason else None,
            stop_reason=sequence.stop_reason,
            error=sequence.error,
        )

    def _position(self, entry: TokenLogprobs | None) -> PositionLogprobs | None:
        return None if entry is None else self._chosen(entry)

    def _chosen(self, entry: TokenLogprobs) -> PositionLogprobs:
        position = {entry.token_id: Logprob(entry.logprob, entry.rank, self._decode(entry.token_id))}
        for rank, (token_id, logprob) in enumerate(entry.top, start=1):
            if token_id != entry.token_id:
                position[token_id] = Logprob(logprob, rank, self._decode(token_id))
        return position
