"""Routes that do not generate."""

from __future__ import annotations

import re

import msgspec
import pytest

import headrace.server.routes as table
from headrace.server.model_names import default_model_name
from tests.server.fakes import END, START
from tests.server.harness import MODEL, RunningServer, error_of, running_server


def test_models_are_listed_with_their_length(server: RunningServer) -> None:
    (card,) = server.http.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["owned_by"], card["max_model_len"]) == (MODEL, "model", "headrace", 512)
    assert server.http.get(f"/v1/models/{MODEL}").json() == card


def test_several_names_may_be_served() -> None:
    with running_server(served_model_name=("org/big", "small")) as server:
        assert [card["id"] for card in server.http.get("/v1/models").json()["data"]] == ["org/big", "small"]
        assert server.http.get("/v1/models/org/big").json()["id"] == "org/big"
        assert server.complete(model="small", max_tokens=1).json()["model"] == "small"
        assert server.complete(max_tokens=1).json()["model"] == "org/big"


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("smollm2", "smollm2"),
        ("hf:org/name", "org/name"),
        ("pypi:pkg==1", "pypi:pkg==1"),
        ("/srv/models/tiny.gguf", "tiny"),
        ("models/tiny/", "tiny"),
    ],
)
def test_a_models_default_name_has_no_path(reference: str, name: str) -> None:
    assert default_model_name(reference) == name


def test_tokenize_and_detokenize_are_inverse(server: RunningServer) -> None:
    body = server.post("/tokenize", {"prompt": "héllo<|end|>", "model": MODEL}).json()
    assert body == {"count": 7, "max_model_len": 512, "tokens": [*"héllo".encode(), END], "token_strs": None}
    assert server.post("/detokenize", {"tokens": body["tokens"]}).json() == {"prompt": "héllo<|end|>"}


def test_tokenizer_routes_name_what_they_ignore(server: RunningServer) -> None:
    assert server.post("/tokenize", {"prompt": "x", "foo": 1}).headers["x-ignored-fields"] == "foo"
    assert server.post("/detokenize", {"tokens": [], "bar": 1}).headers["x-ignored-fields"] == "bar"


def test_tokenize_shows_tokens_when_asked(server: RunningServer) -> None:
    body = server.post("/tokenize", {"prompt": "é", "add_special_tokens": False, "return_token_strs": True}).json()
    assert body["token_strs"] == ["\\xc3", "\\xa9"]


def test_tokenize_takes_conversations(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "<|end|>"}]
    tokens = server.post("/tokenize", {"messages": messages}).json()["tokens"]
    assert tokens == [START, *b"user:<|end|>", END, START, *b"assistant:"]
    tokens = server.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json()["tokens"]
    assert tokens[-1] == END


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": []}, {"prompt": 5}, {"messages": [], "model": MODEL}])
def test_tokenize_refuses_what_it_cannot_read(server: RunningServer, body: dict[str, object]) -> None:
    error_of(server.post("/tokenize", body), 400)


def test_tokenizer_info_tells_evaluation_tools_what_they_ask(server: RunningServer) -> None:
    info = server.http.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|end|>"
    assert info["bos_token"] is None
    assert info["model_max_length"] == 512
    assert info["chat_template"] == "{{ messages }}"


def test_health_routes_tell_live_from_ready(server: RunningServer) -> None:
    probes = ["/health", "/readyz", "/ping"]
    assert all(server.http.get(path).status_code == 200 for path in [*probes, "/livez"])
    assert server.http.post("/ping").status_code == 200
    assert server.http.head("/health").status_code == 200
    server.engine.is_ready = False
    assert all(server.http.get(path).status_code == 503 for path in probes)
    assert server.http.get("/livez").status_code == 200


def test_version(server: RunningServer) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", server.http.get("/version").json()["version"])


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
def test_metrics_come_as_text_or_openmetrics(server: RunningServer, path: str) -> None:
    text = server.http.get(path)
    assert text.status_code == 200
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    openmetrics = server.http.get(path, headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")


def test_http_traffic_and_rejections_are_counted(server: RunningServer) -> None:
    server.complete(max_tokens=1)
    server.complete(max_tokens=10**6)
    server.http.get("/nowhere/at/all")
    text = server.http.get("/metrics").text
    assert 'endpoint="/v1/completions"' in text
    assert 'endpoint="unmatched"' in text
    assert "nowhere" not in text
    assert re.search(r'rejected\w*\{reason="invalid_request"\} [1-9]', text)


def test_openapi_describes_every_route_with_the_servers_own_types(server: RunningServer) -> None:
    document = server.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {re.sub(r":\w+", "", route.path) for route in table.ROUTES}
    schemas = document["components"]["schemas"]
    properties = schemas["ChatRequest"]["properties"]
    assert {"messages", "max_completion_tokens", "top_k", "stream_options"} <= set(properties)
    assert schemas["ChatRequest"]["required"] == ["messages"]
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert chat["summary"]
    for path, first, second in (
        (
            "/v1/score",
            {"$ref": "#/components/schemas/ScoreResponse"},
            {"$ref": "#/components/schemas/PairScoreResponse"},
        ),
        (
            "/generate",
            {"$ref": "#/components/schemas/NativeResponse"},
            {"type": "array", "items": {"$ref": "#/components/schemas/NativeResponse"}},
        ),
    ):
        given = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert given == {"anyOf": [first, second]}
    references = re.findall(r'"#/components/schemas/(\w+)"', msgspec.json.encode(document).decode())
    assert set(references) <= set(schemas)
