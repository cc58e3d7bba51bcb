"""API keys: who is let in, and that nothing about a request but its key matters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.server.harness import RunningServer, error_of, running_server
from tests.server.test_limits import status_of

KEYS = ("key-one", "key-two-ü")


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    with running_server(api_key=KEYS) as server:
        yield server


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}"])
def test_each_key_opens(guarded: RunningServer, key: str, form: str) -> None:
    headers = {"authorization": form.format(key).encode()}
    assert guarded.http.get("/v1/models", headers=headers).status_code == 200
    assert guarded.http.get("/v1/models", headers={"x-api-key": key.encode()}).status_code == 200


WRONG = [
    {},
    {"authorization": "Bearer"},
    {"authorization": "key-one"},
    {"authorization": "Basic key-one"},
    {"authorization": "Bearer key-onE"},
    {"authorization": "Bearer key-one-more"},
    {"authorization": "Bearer key-on"},
    {"x-api-key": ""},
    {"x-api-key": "nope"},
    {"authorization": "Bearer key-one", "x-api-key": "nope"},
]


@pytest.mark.parametrize("headers", WRONG)
def test_sec_14_anything_else_does_not(guarded: RunningServer, headers: dict[str, str]) -> None:
    response = guarded.http.get("/v1/models", headers=headers)
    error = error_of(response, 401)
    assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
    assert response.headers["www-authenticate"] == "Bearer"
    assert not any(key in response.text for key in KEYS)


def test_two_keys_that_disagree_are_refused(guarded: RunningServer) -> None:
    head = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    twice = "authorization: Bearer key-one\r\nauthorization: Bearer nope\r\n\r\n"
    assert status_of(guarded.send_raw((head + twice).encode())) == 401


PATHS = [
    "/v1/models",
    "/v1//models",
    "//v1/models",
    "/health/../v1/models",
    "/health/%2e%2e/v1/models",
    "/%76%31/models",
    "/v1/models%3f/health",
    "/v1/models;/health",
    "/health%00",
    "/health/",
    "/HEALTH",
    "/livez/x",
    "/v1/completions",
    "/tokenize",
    "/version",
    "/openapi.json",
    "/",
    "/nothing",
    "*",
    "http://localhost/v1/models",
]
HOSTS = ["localhost", "localhost/health?x=", "127.0.0.1:8000", "/health", "a/health", "evil.example", "localhost#", ""]


def test_sec_15_no_variant_of_path_host_or_method_opens_without_a_key(guarded: RunningServer) -> None:
    num_tried = 0
    for path, host, method in itertools.product(PATHS, HOSTS, ["GET", "POST", "OPTIONS", "HEAD", "DELETE"]):
        request = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
        answer = guarded.send_raw(request.encode())
        status = int(answer.split()[1])
        assert status == 401 or (status == 400 and path == "*"), (method, path, host, answer)
        num_tried += 1
    assert num_tried >= 200


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/ping", "/metrics", "/metrics/"])
def test_probes_and_scrapes_need_no_key(guarded: RunningServer, path: str) -> None:
    assert guarded.http.get(path).status_code == 200


def test_without_keys_everyone_is_let_in(server: RunningServer) -> None:
    assert server.http.get("/v1/models").status_code == 200
    assert server.http.get("/v1/models", headers={"authorization": "Bearer anything"}).status_code == 200
