"""Refusals: one body, the right status, the field, the numbers, the remedy; and nothing that leaks."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx
import pytest

from headrace.core.request import OutputError
from tests.server.fakes import letters
from tests.server.harness import MODEL, RunningServer, encode, error_of

LEAKS = re.compile(
    r"0x[0-9a-f]{4,}|(?<![\w.:/])/(?:home|root|tmp|usr|work|opt|etc|proc)/|Traceback|<[\w.]+ object|\.py\b"
)


def post_body(server: RunningServer, body: bytes, path: str = "/v1/completions") -> httpx.Response:
    return server.http.post(path, content=body, headers={"content-type": "application/json"})


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "status"),
    [(511, 1, 200), (511, None, 200), (512, 1, 400), (513, 1, 400), (420, 92, 200), (420, 93, 400), (5, 10000, 400)],
)
def test_b15_lengths_at_the_edge_of_the_context(
    server: RunningServer, num_prompt_tokens: int, max_tokens: int | None, status: int
) -> None:
    response = server.complete(prompt=[97] * num_prompt_tokens, max_tokens=max_tokens)
    if status == 200:
        choice = response.json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (letters(512 - num_prompt_tokens), "length")
        return
    message = error_of(response, status)["message"]
    assert "512" in message
    assert str(num_prompt_tokens) in message


def test_b15_a_limit_that_does_not_fit_says_what_would(server: RunningServer) -> None:
    error = error_of(server.complete(prompt=[97] * 420, max_tokens=600), 400)
    assert error["message"] == "max_tokens 600 + prompt 420 = 1020 > max_model_len 512; lower max_tokens to 92"
    assert error["param"] == "max_tokens"
    error = error_of(server.chat("x" * 600), 400)
    assert error["param"] == "messages"


def test_b16_generation_without_an_end_stops_at_the_context(server: RunningServer) -> None:
    body = server.chat("x").json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 512


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], ["a", ""], [""], [[1], []], None, {}, [None], [["a"]], [1, "a"], True]
)
def test_sec_01_an_empty_or_odd_prompt_is_refused_and_the_next_request_works(
    server: RunningServer, prompt: object
) -> None:
    error = error_of(server.complete(prompt=prompt), 400)
    assert error["param"] is None or error["param"].startswith("prompt")
    assert server.complete(max_tokens=1).status_code == 200


def test_sec_01_a_missing_prompt_is_refused(server: RunningServer) -> None:
    assert error_of(server.post("/v1/completions", {}), 400)["param"] == "prompt"
    assert error_of(server.post("/v1/chat/completions", {}), 400)["param"] == "messages"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 17),
        ("n", 10**9),
        ("n", 0),
        ("n", -1),
        ("best_of", 17),
        ("logprobs", 21),
        ("logprobs", -1),
        ("prompt_logprobs", 21),
        ("stop", ["x"] * 17),
        ("stop", ["x" * 257]),
        ("stop", [""]),
        ("stop_token_ids", list(range(257))),
        ("bad_words", ["x"] * 129),
        ("max_tokens", 10**12),
        ("max_tokens", -1),
        ("max_tokens", 2**63),
        ("min_tokens", 10**12),
        ("min_tokens", 17),
        ("min_tokens", -1),
        ("top_k", -2),
        ("top_k", 2**40),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("priority", 2**40),
        ("cache_salt", "x" * 129),
        ("logit_bias", {str(i): 1.0 for i in range(1025)}),
        ("prompt", ["x"] * 1025),
        ("prompt", [97] * 1_000_000),
        ("allowed_token_ids", []),
    ],
)
def test_sec_02_every_count_has_a_limit(server: RunningServer, field: str, value: object) -> None:
    body = encode({"prompt": "hello", field: value})
    server.complete(max_tokens=1)
    before, start = resident_bytes(), time.monotonic()
    error = error_of(post_body(server, body), 400)
    assert time.monotonic() - start < 2.0
    assert error["param"] == field
    assert resident_bytes() - before < 100 << 20


def test_sec_02_detokenize_and_tokenize_have_limits(server: RunningServer) -> None:
    assert (
        error_of(post_body(server, encode({"tokens": [1] * (1 << 20) + [1]}), "/detokenize"), 400)["param"] == "tokens"
    )
    assert error_of(post_body(server, encode({"prompt": "x" * (5 << 20)}), "/tokenize"), 400)["param"] == "prompt"


FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


@pytest.mark.parametrize("field", [*FLOATS, "logit_bias"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", '"0.5"', "true", "[]", "1e308"])
def test_sec_03_every_float_is_finite_or_refused(server: RunningServer, field: str, value: str) -> None:
    text = f'{{"97": {value}}}' if field == "logit_bias" else value
    response = post_body(server, f'{{"prompt":"x","max_tokens":1,"{field}":{text}}}'.encode())
    error = error_of(response, 400)
    assert error["param"] is None or error["param"].startswith(field)


@pytest.mark.parametrize("field", ["temperature", "min_p", "presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("value", ["-0.0", "1e-45", "0", "1"])
def test_sec_03_tiny_and_whole_floats_are_numbers(server: RunningServer, field: str, value: str) -> None:
    assert post_body(server, f'{{"prompt":"x","max_tokens":1,"{field}":{value}}}'.encode()).status_code == 200


@pytest.mark.parametrize("token_id", [-1, 259, 2**31, 2**63, 2**70, -(2**63)])
@pytest.mark.parametrize("field", ["prompt", "stop_token_ids", "allowed_token_ids", "logit_bias", "tokens"])
def test_sec_04_token_ids_outside_the_vocabulary_are_refused(server: RunningServer, field: str, token_id: int) -> None:
    value: object = {str(token_id): 1} if field == "logit_bias" else [token_id]
    path = "/detokenize" if field == "tokens" else "/v1/completions"
    assert error_of(server.post(path, {"prompt": "x", field: value}), 400)["param"] == field


@pytest.mark.parametrize(
    ("bias", "named"),
    [({"999999": 5}, "999999"), ({"-1": 1}, "-1"), ({"abc": 1}, "'abc'"), ({"97": 1e30}, "1e+30"), ({"9٣": 1}, "9٣")],
)
def test_b27_a_bad_logit_bias_is_named(server: RunningServer, bias: dict[str, float], named: str) -> None:
    error = error_of(server.complete(logit_bias=bias), 400)
    assert error["param"] == "logit_bias"
    assert named in error["message"]


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        (rb'{"prompt":"\ud83d"}', 11),
        (rb'{"prompt":"a\ude00b"}', 12),
        (rb'{"prompt":"\ud83d\ud83d"}', 11),
        (rb'{"prompt":"x","stop":"\ud83d"}', 22),
        (rb'{"prompt":"x\u0000"}', 12),
        (b'\xef\xbb\xbf{"prompt":"x"}', 0),
        (b'{"prompt":"\xff"}', 11),
        (b'{"prompt":"\xed\xa0\xbd"}', 11),
        (b'{"prompt":"x","user":"\xc3"}', 22),
    ],
)
@pytest.mark.parametrize("stream", [b"", b',"stream":true'])
def test_b28_text_that_is_none_is_refused_with_its_offset(
    server: RunningServer, body: bytes, offset: int, stream: bytes
) -> None:
    error = error_of(post_body(server, body[:-1] + stream + b"}"), 400)
    assert f"byte {offset}" in error["message"]


@pytest.mark.parametrize(
    "message",
    [
        rb'{"role":"user","content":"\ud83d"}',
        rb'{"role":"user","content":"x","name":"\udc00"}',
        rb'{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"\ud83d"}}]}',
        rb'{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":\"\\ud83d\"}"}}]}',
    ],
)
def test_b28_lone_surrogates_in_messages_are_refused(server: RunningServer, message: bytes) -> None:
    body = b'{"stream":true,"messages":[' + message + b"]}"
    error_of(post_body(server, body, "/v1/chat/completions"), 400)


def test_b28_paired_surrogates_are_text(server: RunningServer) -> None:
    assert post_body(server, rb'{"prompt":"\ud83d\ude00 \\u0000 \\ud83d","max_tokens":1}').status_code == 200
    assert bytes(server.engine.seen[-1].prompt_token_ids).decode() == "😀 \\u0000 \\ud83d"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"{} x", b"{'a':1}", b'{"prompt":"x",}', b"\x00"])
def test_a_body_that_is_no_json_object_is_refused(server: RunningServer, body: bytes) -> None:
    error_of(post_body(server, body), 400)


def test_deep_nesting_is_refused(server: RunningServer) -> None:
    for depth, status in ((60, 200), (65, 400), (64_000, 400)):
        body = b'{"prompt":"x","max_tokens":1,"extra":' + b"[" * depth + b"]" * depth + b"}"
        assert post_body(server, body).status_code == status
    brackets = encode({"prompt": "[" * 100, "max_tokens": 1})
    assert post_body(server, brackets).status_code == 200, "brackets in text are text"


def test_a_million_keys_cost_little(server: RunningServer) -> None:
    body = b'{"prompt":"x","max_tokens":1,' + b",".join(b'"k%d":0' % i for i in range(1_000_000)) + b"}"
    start = time.monotonic()
    assert post_body(server, body).status_code == 200
    assert time.monotonic() - start < 15.0


def test_an_unknown_model_is_a_404_that_names_the_right_one(server: RunningServer) -> None:
    error = error_of(server.complete(model="gpt-9"), 404)
    assert (error["code"], error["param"], error["type"]) == ("model_not_found", "model", "invalid_request_error")
    assert MODEL in error["message"]
    assert server.complete(model=MODEL, max_tokens=1).status_code == 200


def test_unknown_routes_and_methods_are_refused_in_the_same_shape(server: RunningServer) -> None:
    assert error_of(server.http.get("/v1/nothing"), 404)["code"] == "not_found"
    response = server.http.get("/v1/completions")
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"
    assert server.http.get("/health/").status_code == 404, "no redirects"


def test_an_overloaded_engine_is_a_429_with_retry_after(server: RunningServer) -> None:
    server.engine.max_queued = 3
    response = server.complete(n=4)
    assert error_of(response, 429)["code"] == "overloaded"
    assert response.headers["retry-after"] == "1"
    assert error_of(server.complete(n=4, stream=True), 429)["type"] == "rate_limit_error"


def test_an_engine_that_is_not_there_is_a_503_with_retry_after(server: RunningServer) -> None:
    server.engine.is_ready = False
    for response in (server.complete(), server.chat(), server.http.get("/v1/models"), server.http.get("/readyz")):
        assert error_of(response, 503)["type"] == "server_error"
        assert int(response.headers["retry-after"]) >= 1
    assert server.http.get("/livez").status_code == 200


def test_b29_a_failed_sequence_fails_its_request_alone(server: RunningServer) -> None:
    server.engine.fail_at = 0
    assert error_of(server.complete(), 500)["message"] == "the logits are not finite"
    server.engine.fail_at = None
    assert server.complete(max_tokens=1).status_code == 200


def test_b29_a_failure_before_the_first_byte_of_a_stream_is_a_status(server: RunningServer) -> None:
    server.engine.fail_at = 0
    error_of(server.complete(stream=True), 500)
    server.engine.failure = OutputError("InvalidRequest", "the pool is too small")
    try:
        error_of(server.complete(stream=True), 400)
    finally:
        server.engine.failure = OutputError("RequestFailed", "the logits are not finite")


def test_a_request_that_is_shed_for_lack_of_memory_may_come_again(server: RunningServer) -> None:
    server.engine.fail_at = 0
    server.engine.failure = OutputError("RequestShed", "the server ran out of memory", 5.0)
    try:
        response = server.complete()
    finally:
        server.engine.failure = OutputError("RequestFailed", "the logits are not finite")
    assert error_of(response, 503)["code"] == "service_unavailable"
    assert response.headers["retry-after"] == "5"


def test_b33_a_failure_after_the_first_byte_is_an_event_and_the_end(server: RunningServer) -> None:
    server.engine.fail_at = 3
    for stream in (server.stream_chat(max_tokens=9), server.stream_completion(max_tokens=9)):
        assert stream.texts[0] == "abc"
        assert stream.error is not None
        assert stream.error["message"] == "the logits are not finite"
        assert stream.finish_reasons == {}


def test_b33_a_dying_engine_ends_a_stream_with_an_error(server: RunningServer) -> None:
    server.engine.hold_at = 2
    with server.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        lines = response.iter_lines()
        assert '"a"' in next(lines)
        server.engine.dies = True
        server.engine.release()
        rest = [line for line in lines if line]
    assert '"code":"engine_dead"' in rest[-1]
    assert not any("[DONE]" in line for line in rest)


def test_b34_usage_comes_once_and_only_when_asked(server: RunningServer) -> None:
    for stream in (server.stream_chat(max_tokens=2), server.stream_completion(max_tokens=2)):
        assert stream.usage is None
    asked = {"stream_options": {"include_usage": True}, "max_tokens": 2}
    for stream in (server.stream_chat(**asked), server.stream_completion(**asked)):
        assert stream.usage is not None
        assert stream.usage["completion_tokens"] == 2
        assert sum(bool(chunk.get("usage")) for chunk in stream.chunks) == 1


def test_an_unexpected_exception_says_nothing(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: object, index: int, position: int) -> int:
        if position == 2:
            raise KeyError("/home/operator/secret at 0x7f0011223344")
        return 97

    server.engine.script = broken
    error = error_of(server.complete(), 500)
    assert (error["code"], error["type"]) == ("internal_error", "server_error")
    assert not LEAKS.search(error["message"])
    stream = server.stream_completion()
    assert stream.error is not None
    assert not LEAKS.search(stream.error["message"])
    assert "secret" in caplog.text, "the operator sees it"


WRONG_BODIES = [
    b"",
    b"\xff",
    b"[" * 100_000,
    b'{"prompt":{}}',
    b'{"prompt":"x","model":"/etc/passwd"}',
    b'{"prompt":"x","model":"' + b"m" * 10_000 + b'"}',
    b'{"prompt":"x","n":"/home/x"}',
    b'{"prompt":"x","logit_bias":{"/home/x":1}}',
    b'{"prompt":"x","suffix":"/home/x"}',
    b'{"messages":[{"role":"user","content":[{"type":"/home/x"}]}]}',
    b'{"messages":"x"}',
    b'{"tokens":["a"]}',
]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/nowhere"])
@pytest.mark.parametrize("body", WRONG_BODIES)
def test_sec_16_error_texts_leak_nothing(server: RunningServer, path: str, body: bytes) -> None:
    response = post_body(server, body, path)
    if response.status_code == 200:
        assert path == "/tokenize", "it takes any fields beside a prompt"
        return
    assert 400 <= response.status_code < 500
    message = error_of(response, response.status_code)["message"]
    assert len(message) < 1000
    own_words = message
    for given in ("/etc/passwd", "/home/x"):
        own_words = own_words.replace(given, "")
    assert not LEAKS.search(own_words)


def test_sec_24_a_salt_reaches_the_cache_key_and_is_bounded(server: RunningServer) -> None:
    server.complete(max_tokens=1, cache_salt="a" * 128)
    assert server.engine.seen[-1].cache_salt == "a" * 128
    assert error_of(server.complete(cache_salt="a" * 129), 400)["param"] == "cache_salt"
    server.complete(max_tokens=1)
    assert server.engine.seen[-1].cache_salt == ""
