"""Raw HTTP requests, sound and broken in every way we can think of. One seed, one connection's bytes."""

from __future__ import annotations

import json
import random
from typing import Any

from headrace.server.routes import ROUTES
from tests.checkpoint.mutations import mutant
from tests.hostile.sources import ODD_VALUES, source

HOSTS = ("localhost", "127.0.0.1:8000", "[::1]", "evil.example", "", "localhost:99999", "a\\b", "localhost\x00")
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get", "", "G" * 300)
PATHS = (
    *(route.path.replace("{model:path}", "alphabet").replace("{request_id:path}", "x") for route in ROUTES),
    "/openapi.json",
    "/",
    "*",
    "/../../etc/passwd",
    "/v1/models/../../../etc/passwd",
    "/v1/models/%2e%2e%2fetc%2fpasswd",
    "//v1/completions",
    "/v1/completions?" + "a=b&" * 50,
    "/%00",
    "/v1/requests/%ff/timeline",
    "http://evil.example/v1/models",
    "/" + "x" * 9000,
)
VERSIONS = ("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "HTTP", "", "http/1.1")
ODD_HEADERS = (
    "content-length: 5",
    "content-length: -1",
    "content-length: 99999999999999999999",
    "content-length: 5, 5",
    "content-length: 0x10",
    "transfer-encoding: chunked",
    "transfer-encoding: gzip, chunked",
    "transfer-encoding: identity",
    "transfer-encoding : chunked",
    "content-encoding: gzip",
    "content-type: multipart/form-data; boundary=x",
    "content-type: application/json; charset=utf-16",
    "expect: 100-continue",
    "upgrade: websocket",
    "upgrade: h2c",
    "connection: upgrade",
    "connection: keep-alive, close, close",
    "authorization: Bearer " + "k" * 5000,
    "authorization: Basic eDp4",
    "x-api-key: \xff\xfe",
    "x-long: " + "l" * 20_000,
    "x-request-id: ../../../tmp/x",
    "x-request-id: " + "i" * 5000,
    "x-request-timeout: nan",
    "x-request-timeout: -1",
    "x-request-timeout: 1e999",
    'accept: \xc3\xa9/*;q="',
    "range: bytes=" + "0-1," * 200,
    "cookie: " + "c=1; " * 1000,
    " folded: yes",
    ": no name",
    "no colon",
    "x\x00y: z",
    "x: y\rz: w",
    "proxy: http://127.0.0.1:9",
)
FIELDS = (
    "prompt", "messages", "max_tokens", "n", "temperature", "top_p", "top_k", "stop", "stream", "logprobs",
    "logit_bias", "seed", "tools", "tool_choice", "response_format", "structured_outputs", "stream_options",
    "cache_salt", "slo", "priority", "text", "input_ids", "sampling_params", "tokens", "query", "documents", "program",
    "questions", "state", "model", "user", "echo", "best_of", "suffix", "prompt_logprobs", "guided_json", "regex",
    "ebnf", "request_id", "prompt_embeds", "chat_template", "chat_template_kwargs", "min_tokens", "allowed_token_ids",
    "truncate_prompt_tokens",
)  # fmt: skip
SOUND: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/generate": {"text": "x", "sampling_params": {"max_new_tokens": 2}},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [97]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/rerank": {"query": "a", "documents": ["b", "c"]},
    "/v1/programs": {"program": {"body": [{"type": "text", "text": "x"}, {"type": "gen", "name": "g"}]}},
}


def request_bytes(seed: int) -> bytes:
    """What a client of this seed sends over its connection."""
    rng = random.Random(seed)
    data = b"".join(_request(rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))
    match rng.randrange(10):
        case 0:
            return mutant(data, rng)
        case 1:
            return data[: rng.randrange(len(data) + 1)]
        case 2:
            return rng.randbytes(rng.randrange(1, 200))
        case _:
            return data


def _request(rng: random.Random) -> bytes:
    path = rng.choice(PATHS)
    body = _body(path, rng)
    is_plain = rng.random() < 0.7
    method = "POST" if is_plain and body else rng.choice(METHODS)
    lines = [
        f"{method} {path} {'HTTP/1.1' if is_plain or rng.random() < 0.7 else rng.choice(VERSIONS)}",
        f"host: {'localhost' if is_plain or rng.random() < 0.7 else rng.choice(HOSTS)}",
        "connection: close" if rng.random() < 0.5 else "connection: keep-alive",
    ]
    if body or rng.random() < 0.2:
        lines.append("content-type: application/json")
    chunked = bool(body) and rng.random() < 0.3
    lines.append("transfer-encoding: chunked" if chunked else f"content-length: {len(body)}")
    if not is_plain:
        lines += rng.choices(ODD_HEADERS, k=rng.choice((1, 1, 2, 6)))
        rng.shuffle(lines)
        lines = lines if rng.random() < 0.3 else sorted(lines, key=lambda line: " HTTP" not in line)
    head = "\r\n".join(lines).encode("latin-1") + (b"\r\n\r\n" if rng.random() < 0.97 else b"\n\n")
    return head + (_chunks(body, rng) if chunked else body)


def _body(path: str, rng: random.Random) -> bytes:
    if rng.random() < 0.25:
        return b""
    value: Any = dict(rng.choice(list(SOUND.values())) if rng.random() < 0.2 else SOUND.get(path, {}))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        value[rng.choice(FIELDS)] = _odd(rng)
    if rng.random() < 0.2:
        value |= {"stream": True, "n": rng.choice((1, 2))}
    match rng.randrange(12):
        case 0:
            return mutant(json.dumps(value).encode(), rng)
        case 1:
            return b"[" * rng.choice((10, 70, 5000, 1 << 20)) + json.dumps(value).encode()
        case 2:
            return (
                json.dumps(value).encode().replace(b'"x"', rng.choice((b'"\\ud83d"', b'"\xff"', b'"\\u0000"', b"NaN")))
            )
        case _:
            return json.dumps(value).encode()


def _odd(rng: random.Random) -> Any:
    match rng.randrange(6):
        case 0:
            constraint = source(rng.randrange(1 << 30))
            return rng.choice(
                (constraint.source, {"type": "json_schema", "json_schema": {"schema": constraint.source}})
            )
        case 1:
            return {rng.choice(FIELDS): rng.choice(ODD_VALUES) for _ in range(3)}
        case 2:
            return [rng.choice(ODD_VALUES) for _ in range(rng.randrange(6))]
        case 3:
            return rng.choice((float("nan"), float("inf"), -(2**63), 2**64, "x" * 5000, "../" * 20, "{{ 7 * 7 }}"))
        case _:
            return rng.choice(ODD_VALUES)


def _chunks(body: bytes, rng: random.Random) -> bytes:
    size = rng.choice((1, 7, 100, 5000))
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    sent = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    match rng.randrange(8):
        case 0:
            return sent + b"0\r\ntrailer: x\r\n\r\n"
        case 1:
            return sent + rng.choice((b"-1\r\n", b"ffffffffffffffffff\r\nx", b"zz\r\n\r\n", b"0;ext=" + b"e" * 20_000))
        case _:
            return sent + b"0\r\n\r\n"
