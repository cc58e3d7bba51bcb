"""Bodies nobody thought of: never a 500, never a hang, always an answer in one of two shapes."""

from __future__ import annotations

import json

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.server.protocol_chat import CHAT_BODY
from headrace.server.protocol_completions import COMPLETION_BODY
from headrace.server.protocol_root import DETOKENIZE_BODY, TOKENIZE_BODY
from tests.server.harness import RunningServer
from tests.server.sse import check_stream

BODIES = {
    "/v1/completions": COMPLETION_BODY,
    "/v1/chat/completions": CHAT_BODY,
    "/tokenize": TOKENIZE_BODY,
    "/detokenize": DETOKENIZE_BODY,
}
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 30),
    st.sampled_from([2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e-45, 1e308]),
    st.sampled_from(
        ["", "x", "auto", "none", "text", "user", "assistant", "alphabet", "\ud800", "\x00", "é😀", "x" * 300]
    ),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "97", "-1", "include_usage", "name"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "robot"])},
        optional={"content": VALUES, "name": VALUES, "tool_calls": VALUES, "tool_call_id": VALUES},
    ),
    max_size=3,
)
PROMPTS = st.one_of(
    st.text(max_size=20),
    st.lists(st.text(max_size=5), max_size=3),
    st.lists(st.integers(-1, 260), max_size=5),
    st.lists(st.lists(st.integers(0, 258), max_size=4), max_size=3),
    VALUES,
)


def bodies(path: str) -> st.SearchStrategy[dict[str, object]]:
    names = sorted(field.encode_name for field in msgspec.structs.fields(BODIES[path].struct))
    given_well = st.fixed_dictionaries({"prompt": PROMPTS, "messages": MESSAGES, "max_tokens": st.integers(0, 5)})
    given_badly = st.dictionaries(st.sampled_from(names) | st.text(max_size=6), VALUES, max_size=4)
    return st.builds(lambda well, badly: well | badly, given_well, given_badly)


@pytest.mark.parametrize("path", sorted(BODIES))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_body_causes_a_500(server: RunningServer, path: str, data: st.DataObject) -> None:
    body = data.draw(bodies(path))
    check(server, path, json.dumps(body).encode())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200), path=st.sampled_from(sorted(BODIES)))
def test_no_bytes_cause_a_500(server: RunningServer, path: str, body: bytes) -> None:
    check(server, path, body)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_no_raw_request_breaks_the_server(server: RunningServer, data: bytes) -> None:
    with server.connect() as sock:
        sock.sendall(data)
    assert server.http.get("/livez").status_code == 200


def check(server: RunningServer, path: str, body: bytes) -> None:
    response: httpx.Response = server.http.post(path, content=body, headers={"content-type": "application/json"})
    if response.status_code != 200:
        assert 400 <= response.status_code < 500, (body, response.text)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        return
    if response.headers["content-type"].startswith("text/event-stream"):
        asked = json.loads(body)
        options = asked.get("stream_options") or {}
        prompt = asked.get("prompt")
        num_prompts = len(prompt) if path == "/v1/completions" and isinstance(prompt, list) else 1
        if num_prompts and isinstance(prompt, list) and path == "/v1/completions" and isinstance(prompt[0], int):
            num_prompts = 1
        check_stream(
            response.content,
            include_usage=bool(options.get("include_usage")),
            continuous_usage=bool(options.get("continuous_usage_stats")),
            num_choices=(asked.get("n") or 1) * num_prompts,
        )
    else:
        json.loads(response.content)
