"""Text in streams: whole characters, no stop string leaking, nothing held back for longer than needed."""

from __future__ import annotations

import pytest

from tests.server.fakes import spelling
from tests.server.harness import RunningServer
from tests.server.sse import check_stream

TEXTS = {
    "emoji": "a😀b".encode(),
    "cjk": "漢字かな".encode(),
    "flag": "🇫🇷 🇯🇵".encode(),
    "an invalid byte": b"a\xffb",
    "an end inside a character": "ab😀".encode()[:-2],
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("logprobs", [None, 1])
def test_b19_characters_are_never_broken(server: RunningServer, name: str, logprobs: int | None) -> None:
    data = TEXTS[name]
    server.engine.script = spelling(data)
    expected = data.decode("utf-8", "replace")
    for stream in (
        server.stream_completion(max_tokens=50, logprobs=logprobs),
        server.stream_chat(max_tokens=50, logprobs=logprobs is not None),
    ):
        assert stream.texts[0] == expected
        if "\ufffd" not in expected:
            assert not any("\ufffd" in str(chunk["choices"]) for chunk in stream.chunks)
    assert server.complete(max_tokens=50).json()["choices"][0]["text"] == expected
    assert server.chat(max_tokens=50).json()["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("text", "stop", "before"),
    [("ABCDEFGHIJK", ["DEFGHIJ"], "ABC"), ("hi\nUser: you", ["\nUser:"], "hi"), ("xxAB", ["AB", "xA"], "x")],
)
def test_b20_stop_text_never_leaks(
    server: RunningServer, text: str, stop: list[str], before: str, include: bool
) -> None:
    server.engine.script = spelling(text)
    body = {"max_tokens": 50, "stop": stop, "include_stop_str_in_output": include}
    found = next(s for s in stop if text.startswith(before + s))
    expected = before + found if include else before
    for stream in (server.stream_completion(**body), server.stream_chat(**body)):
        assert (stream.texts[0], stream.finish_reasons[0], stream.stop_reasons[0]) == (expected, "stop", found)
    assert server.complete(**body).json()["choices"][0]["text"] == expected
    assert server.chat(**body).json()["choices"][0]["message"]["content"] == expected


def test_b20_a_near_miss_is_released_at_once(server: RunningServer) -> None:
    server.engine.script = spelling("ABCDEFX tail")
    server.engine.hold_at = 7
    body = {"prompt": "x", "stream": True, "stop": ["DEFGHIJ"], "max_tokens": 50}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        seen = b""
        for part in response.iter_bytes():
            seen += part
            if b"X" in seen:
                break
        assert b"GHIJ" not in seen, "the X came although nothing after it was generated"
        server.engine.release()


def test_the_checker_catches_what_it_is_for() -> None:
    def event(choice: str, extra: str = "") -> bytes:
        head = '{"id":"i","object":"text_completion","created":1,"model":"m"'
        return f'data: {head},"choices":[{choice}]{extra}}}\n\n'.encode()

    piece = '{"index":0,"text":"a","finish_reason":null}'
    end = '{"index":0,"text":"","finish_reason":"stop"}'
    done = b"data: [DONE]\n\n"
    assert check_stream(event(piece) + event(end) + done).texts == {0: "a"}
    bad = {
        "no end": event(piece) + done,
        "two ends": event(end) + event(end) + done,
        "text after the end": event(end) + event(piece) + done,
        "no [DONE]": event(piece) + event(end),
        "two [DONE]s": event(piece) + event(end) + done + done,
        "something after [DONE]": event(end) + done + event(piece),
        "usage nobody asked for": event(end, ',"usage":{}') + done,
        "[DONE] after an error": b'data: {"error":{"message":"m","type":"t","param":null,"code":null}}\n\n' + done,
        "half an event": event(end) + done[:-1],
    }
    let_through = []
    for name, body in bad.items():
        try:
            check_stream(body)
        except AssertionError:
            continue
        let_through.append(name)
    assert let_through == []
