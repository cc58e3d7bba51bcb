"""SEC-20, SEC-26 and SEC-28: what requests may not bring, spend, or name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.server.routes import ROUTES
from tests.server.harness import RunningServer, error_of

TENSOR = "UEsDBAAACAgAAAAAAAAAAAAAAAAAAAAAAAA="
"""How a torch file begins, in base64, as vLLM's clients send embeddings."""


@pytest.mark.parametrize("value", [TENSOR, [TENSOR], [[0.1, 0.2]], {"data": TENSOR, "shape": [1, -1]}, "", 0])
def test_sec_20_a_clients_tensor_is_refused(server: RunningServer, value: object) -> None:
    assert error_of(server.complete(prompt_embeds=value), 400)["param"] == "prompt_embeds"
    assert error_of(server.chat("x", prompt_embeds=value), 400)["param"] == "prompt_embeds"


@pytest.mark.parametrize("kind", ["image_url", "image_embeds", "input_audio", "video_url", "image_pil", "file"])
def test_sec_20_parts_other_than_text_are_refused_by_name(server: RunningServer, kind: str) -> None:
    error = error_of(server.chat([{"type": kind, kind: TENSOR}], max_tokens=1), 400)
    assert kind in error["message"]


def program(*body: dict[str, object]) -> dict[str, object]:
    return {"program": {"body": list(body)}, "temperature": 0}


def gen(max_tokens: int, **more: object) -> dict[str, object]:
    return {"type": "gen", "name": "g", "sampling": {"max_tokens": max_tokens, "ignore_eos": True}, **more}


TEXT = {"type": "text", "text": "x"}


def test_sec_26_a_program_spends_what_its_calls_may_and_no_more(server: RunningServer) -> None:
    body = program(TEXT, gen(5), {**gen(7), "name": "h"})
    usage = server.post("/v1/programs", body).json()["usage"]
    assert (usage["calls"], usage["completion_tokens"]) == (2, 12)


@pytest.mark.parametrize(
    "body",
    [
        [TEXT, *[gen(2**31 - 1)]],
        [TEXT, *[gen(100_000)] * 3000],
        [TEXT] * 500_000,
        [{"type": "text", "text": "x" * (5 << 20)}],
    ],
    ids=["tokens", "calls", "nodes", "text"],
)
def test_sec_26_a_program_without_bounds_is_refused_before_it_runs(
    server: RunningServer, body: list[dict[str, object]]
) -> None:
    error_of(server.post("/v1/programs", program(*body)), 400)


def test_sec_26_tokens_that_a_grammar_forces_count_like_any_others(server: RunningServer) -> None:
    forced = "a" * 200
    body = server.complete(max_tokens=10, guided_choice=[forced], return_token_ids=True).json()
    assert body["usage"]["completion_tokens"] == 10
    assert body["choices"][0]["finish_reason"] == "length"
    assert forced.startswith(body["choices"][0]["text"])


NAMES = (
    "../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "/etc/passwd",
    "....//....//etc/passwd",
    "C:\\windows\\win.ini",
    "file:///etc/passwd",
    "x\0y",
    "~root",
    "-rf",
    "a" * 5000,
    "$(id)",
    "`id`",
    ";id",
    "\u202e\u2066",
)


@pytest.mark.parametrize("name", NAMES)
def test_sec_28_no_name_from_a_request_becomes_a_path(
    server: RunningServer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for body in ({"model": name}, {"cache_salt": name}, {"request_id": name}, {"user": name}, {"service_tier": name}):
        response = server.complete(max_tokens=1, **body)
        assert response.status_code in (200, 400, 404)
        assert "root:" not in response.text
        identity = response.headers["x-request-id"]
        assert len(identity) <= 64
        assert identity.replace(".", "").replace("_", "").replace("-", "").isalnum()
    url_safe = name.replace("\0", "%00").replace("\\", "%5C").replace("\u202e\u2066", "%E2%80%AE")
    for path in (f"/v1/models/{url_safe}", f"/v1/requests/{url_safe}/timeline"):
        response = server.http.get(path)
        assert response.status_code in (200, 400, 404, 431), "a sound id has a timeline"
        assert "root:" not in response.text
    assert os.listdir(tmp_path) == []


def test_sec_28_nothing_takes_a_file() -> None:
    """No route takes a form, a file or a name to load from: bodies are JSON, and their types are these."""
    methods = {method for route in ROUTES for method in route.methods}
    assert methods <= {"GET", "POST", "PUT"}
    words = ("upload", "file", "pull", "push", "load", "adapter", "weights", "static", "profile")
    assert not [route.path for route in ROUTES if any(word in route.path for word in words)]
