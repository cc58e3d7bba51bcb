"""What a client asked, and what it gets back. These types cross the process boundary.

A ``Request`` never changes after it is built. Everything the engine says about it is a ``RequestOutput``,
always a delta: concatenating the deltas of one ``(request_id, index)`` gives the whole answer.
"""

from __future__ import annotations

import enum

import msgspec

from headrace.core.constraint import Constraint
from headrace.core.errors import (
    DeadlineExceeded,
    EngineDead,
    HeadraceError,
    InvalidRequest,
    Overloaded,
    RequestFailed,
    RequestShed,
)
from headrace.core.program_place import ProgramPlace
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import DEFAULT_CLASS, NO_TARGETS, ServiceLevel


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One generation request, tokenized and validated.

    ``seed`` is always set (drawn by the front end when the caller gave none): with it, a request is a
    pure function of its fields and the model. ``cache_salt`` separates the prefix cache: only requests
    with the same salt may share KV blocks. ``priority`` is vLLM's: lower values are served first.
    ``bad_word_token_ids`` are the tokenized forms of ``sampling.bad_words``. ``arrival_time`` is in
    seconds on the machine's monotonic clock. ``constraint`` is the form that every output must have.

    ``service_level`` holds the targets this request is held to, ``service_class`` the name they are reported
    under. ``tenant`` is whose share of the machine it uses and ``weight`` how large that share is, relative to
    other tenants'. ``program`` is set for a call of a program.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    seed: int
    arrival_time: float
    priority: int = 0
    cache_salt: str = ""
    bad_word_token_ids: tuple[tuple[int, ...], ...] = ()
    service_level: ServiceLevel = NO_TARGETS
    service_class: str = DEFAULT_CLASS
    tenant: str = ""
    weight: float = 1.0
    constraint: Constraint | None = None
    program: ProgramPlace | None = None

    @property
    def order_time(self) -> float:
        """Since when its caller waits: a program from its first call on, so that those begun are finished first."""
        return self.arrival_time if self.program is None else self.program.began

    @property
    def is_guess(self) -> bool:
        """Whether it was made before it is certain that its answer is wanted."""
        return self.program is not None and self.program.is_guess

    @property
    def num_tokens_left(self) -> int:
        """What its program has left to generate; 0 for a request that is part of none."""
        return 0 if self.program is None else self.program.num_tokens_left


class SequenceProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far one sequence of a request had come when its engine ended: what its caller already has.

    With the request it determines everything that follows, text included, because sampling is a function of the
    tokens, the seed and the position. ``first_output_time`` is in seconds on the clock of ``arrival_time``.
    """

    token_ids: list[int]
    is_finished: bool
    num_cached_tokens: int
    num_prompt_logprobs: int
    first_output_time: float

    @property
    def has_begun(self) -> bool:
        return bool(self.token_ids) or self.num_prompt_logprobs > 0


class FinishReason(enum.Enum):
    """Why a sequence ended; the values are OpenAI's ``finish_reason`` plus ``abort`` and ``error``."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token and the likeliest alternatives at its position.

    ``rank`` counts from 1 (the likeliest token). ``top`` holds ``(token_id, logprob)`` in falling order.
    Values are taken from the logits as the model gave them, before temperature, penalties and masks, as
    vLLM reports them.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Token counts so far; ``num_cached_tokens`` of the prompt came from the prefix cache."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int


class RequestTimes(msgspec.Struct, frozen=True, array_like=True):
    """Moments in a sequence's life, seconds on the engine's clock; sent with its first token and with its last output.

    What has not happened is NaN. ``preempted_s`` went into waiting and computing again after preemptions, if the
    engine records that.
    """

    arrival: float
    first_scheduled: float
    first_token: float
    finished: float
    num_preemptions: int = 0
    preempted_s: float = 0.0


class OutputError(msgspec.Struct, frozen=True, array_like=True):
    """Why a sequence ended with ``FinishReason.ERROR``: the error class's name, its message, when to try again.

    ``param`` is the field at fault of an ``InvalidRequest``.
    """

    kind: str
    message: str
    retry_after_s: float = 0.0
    param: str | None = None

    @classmethod
    def of(cls, error: HeadraceError) -> OutputError:
        """What to send of an error that ends a sequence."""
        retry_after_s = error.retry_after_s if isinstance(error, Overloaded) else 0.0
        param = error.param if isinstance(error, InvalidRequest) else None
        return cls(type(error).__name__, error.message, retry_after_s, param)

    def failure(self) -> HeadraceError:
        """The exception this tells of, for whoever waits for the sequence."""
        match self.kind:
            case "InvalidRequest":
                return InvalidRequest(self.message, self.param)
            case "Overloaded":
                return Overloaded(self.message, self.retry_after_s)
            case "RequestShed":
                return RequestShed(self.message, self.retry_after_s)
            case "DeadlineExceeded":
                return DeadlineExceeded(self.message)
            case "EngineDead":
                return EngineDead(self.message)
            case _:
                return RequestFailed(self.message)


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened to one sequence of a request since its previous output.

    ``index`` in ``[0, n)`` names the sequence. ``token_ids`` and ``logprobs`` cover the new tokens;
    ``text`` may lag behind them while a character or a possible stop string is incomplete, and is
    flushed with the last output. ``prompt_logprobs`` has one entry per prompt token computed since the
    last output, ``None`` for the very first. ``stop_reason`` is the stop string or stop token id that
    ended the sequence. ``warnings`` say what of the request is not done as asked. A sequence's last
    output, and only it, has a ``finish_reason``.
    """

    request_id: str
    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    usage: Usage
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    times: RequestTimes | None = None
    error: OutputError | None = None
    warnings: tuple[str, ...] = ()


def refused_outputs(request: Request, error: OutputError) -> list[RequestOutput]:
    """The last outputs of a request that the engine did not take in, one for each of its sequences."""
    usage = Usage(len(request.prompt_token_ids), 0, 0)
    return [
        RequestOutput(
            request_id=request.request_id, index=index, usage=usage, finish_reason=FinishReason.ERROR, error=error
        )
        for index in range(request.sampling.n)
    ]
