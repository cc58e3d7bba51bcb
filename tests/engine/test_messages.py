from __future__ import annotations

import random

import msgspec
import pytest

from headrace.core.errors import ConfigError, EngineDead, InvalidRequest, Overloaded
from headrace.core.memory_pressure import MemoryState, PressureLevel
from headrace.core.request import (
    FinishReason,
    OutputError,
    Request,
    RequestOutput,
    RequestTimes,
    SequenceProgress,
    TokenLogprobs,
    Usage,
)
from headrace.core.sampling import SamplingParams
from headrace.engine.messages import (
    Abort,
    Failed,
    FromEngine,
    Hello,
    MalformedMessage,
    Outputs,
    Ping,
    Pong,
    ProgressStarted,
    Ready,
    Refused,
    Resume,
    Shutdown,
    Submit,
    ToEngine,
    decode_from_engine,
    decode_to_engine,
    encode,
)
from tests.fakes_engine import INFO, FakeEngine, make_request

RICH_REQUEST = Request(
    request_id="r",
    prompt_token_ids=[0, 1, 2**31 - 1],
    sampling=SamplingParams(n=2, logit_bias={5: -100.0}, stop=("a", "\n"), stop_token_ids=(1,), logprobs=3, seed=-1),
    seed=2**64 - 1,
    arrival_time=1.5,
    cache_salt="s",
    bad_word_token_ids=((1, 2), (3,)),
)
RICH_OUTPUT = RequestOutput(
    request_id="r",
    index=1,
    text="é🙂",
    token_ids=(1, 2),
    logprobs=(TokenLogprobs(1, -0.25, 1, ((1, -0.25), (2, -3.0))),),
    prompt_logprobs=(None, TokenLogprobs(1, -0.25, 1)),
    usage=Usage(3, 2, 1),
    finish_reason=FinishReason.ERROR,
    stop_reason=7,
    times=RequestTimes(0.0, 1.0, 2.0, 3.0, 1),
    error=OutputError("RequestFailed", "why"),
)
RESUME = Resume(RICH_REQUEST, [SequenceProgress([1, 2], False, 2, 1, 1.5), SequenceProgress([], True, 0, 0, 0.0)])
TO_ENGINE: list[ToEngine] = [Submit(RICH_REQUEST), Submit(make_request()), RESUME, Abort("r"), Ping(), Shutdown()]
FROM_ENGINE: list[FromEngine] = [
    Hello("t"),
    ProgressStarted("weights", None, "bytes"),
    Ready(INFO),
    Outputs([RICH_OUTPUT], FakeEngine().stats()),
    Refused("r", "Overloaded", "full", retry_after_s=1.0),
    Pong(0.5),
    Pong(0.5, 2.0, MemoryState(PressureLevel.TIGHT, 7)),
    Failed("ConfigError", "no", "model"),
]


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_messages_to_the_engine_survive_the_wire(message: ToEngine) -> None:
    assert decode_to_engine(encode(message)) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_messages_from_the_engine_survive_the_wire(message: FromEngine) -> None:
    assert decode_from_engine(encode(message)) == message


def test_a_hundred_thousand_garbage_bodies_are_refused_and_raise_nothing_else() -> None:
    chance = random.Random(11)
    valid = [encode(message) for message in (*TO_ENGINE, *FROM_ENGINE)]
    num_refused = 0
    for i in range(100_000):
        body = bytearray(chance.choice(valid)) if i % 2 else bytearray(chance.randbytes(chance.randrange(40)))
        for _ in range(chance.randrange(1, 4)):
            if body:
                body[chance.randrange(len(body))] = chance.randrange(256)
        for decode in (decode_to_engine, decode_from_engine):
            try:
                decode(bytes(body))
            except MalformedMessage:
                num_refused += 1
    assert num_refused > 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        encode(Abort("r")) + b"\x00",
        msgspec.msgpack.encode(["submit", {**msgspec.to_builtins(make_request()), "sampling": {"temperature": -1.0}}]),
        msgspec.msgpack.encode(["abort", 5]),
        msgspec.msgpack.encode(["unknown", 5]),
        msgspec.msgpack.encode({"type": "abort"}),
    ],
    ids=["empty", "deep", "huge array", "trailing", "bad sampling", "wrong type", "unknown tag", "map"],
)
def test_bodies_that_lie_are_malformed(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_to_engine(body)


def test_refusals_and_failures_keep_their_errors_fields() -> None:
    overloaded = Refused.of("r", Overloaded("full", 2.5)).error()
    assert isinstance(overloaded, Overloaded)
    assert (overloaded.message, overloaded.retry_after_s) == ("full", 2.5)
    invalid = Refused.of("r", InvalidRequest("bad", "top_p")).error()
    assert isinstance(invalid, InvalidRequest)
    assert (invalid.message, invalid.param) == ("bad", "top_p")
    config = Failed.of(ConfigError("no such file", "model")).error()
    assert isinstance(config, ConfigError)
    assert (config.message, config.field) == ("no such file", "model")
    assert isinstance(Failed.of(ValueError("x")).error(), EngineDead)
    assert Failed.of(EngineDead("x")).error().message == "x"
