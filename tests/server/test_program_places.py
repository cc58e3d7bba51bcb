"""Headers say which program of many calls a request is part of, and a guess is confirmed by its id."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.program_place import ProgramPlace
from headrace.server.program_places import FORGET_AFTER_S, MAX_REMEMBERED, ProgramPlaces
from tests.server.fakes import ScriptedClient
from tests.server.harness import RunningServer, error_of, eventually, running_server


@pytest.fixture(name="server", scope="module")
def serve() -> Iterator[RunningServer]:
    with running_server() as server:
        yield server


def headers(**values: str) -> list[tuple[bytes, bytes]]:
    return [(f"x-program-{name.replace('_', '-')}".encode(), value.encode()) for name, value in values.items()]


def test_a_program_began_with_its_first_request() -> None:
    places = ProgramPlaces()
    assert places.of([(b"accept", b"*/*")], "ann", 1.0) is None
    assert places.of(headers(id="a"), "ann", 2.0) == ProgramPlace("a", 2.0)
    assert places.of(headers(id="a", tokens_left="70"), "ann", 3.0) == ProgramPlace("a", 2.0, 70)
    assert places.of(headers(id="a", guess="True"), "bob", 4.0) == ProgramPlace("a", 4.0, 0, is_guess=True)


def test_a_program_that_nobody_goes_on_with_is_forgotten() -> None:
    places = ProgramPlaces()
    for now, began in ((0.0, 0.0), (FORGET_AFTER_S, 0.0), (2 * FORGET_AFTER_S, 0.0), (3 * FORGET_AFTER_S + 1, 1801.0)):
        assert places.of(headers(id="a"), "", now) == ProgramPlace("a", began)


def test_the_programs_used_last_are_remembered() -> None:
    places = ProgramPlaces()
    for number in range(MAX_REMEMBERED):
        places.of(headers(id=str(number)), "", number / MAX_REMEMBERED)
    places.of(headers(id="0"), "", 60.0)
    places.of(headers(id="new"), "", 60.0)
    assert places.of(headers(id="0"), "", 61.0) == ProgramPlace("0", 0.0)
    assert places.of(headers(id="1"), "", 61.0) == ProgramPlace("1", 61.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"id": ""}, "the header x-program-id is '' but must be 1 to 128 printable ASCII characters without spaces"),
        ({"id": "x" * 129}, "must be 1 to 128"),
        ({"id": "a b"}, "without spaces"),
        ({"id": "a", "tokens_left": "-1"}, "x-program-tokens-left is '-1' but must be a number from 0 to 2147483647"),
        ({"id": "a", "tokens_left": "2147483648"}, "from 0 to 2147483647"),
        ({"id": "a", "tokens_left": "9" * 5000}, "from 0 to 2147483647"),
        ({"id": "a", "tokens_left": ""}, "from 0 to 2147483647"),
        ({"id": "a", "guess": "maybe"}, "x-program-guess is 'maybe' but must be true or false"),
        ({"guess": "true"}, "the header x-program-guess is about a program; send x-program-id as well"),
    ],
)
def test_headers_that_make_no_sense_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ProgramPlaces().of(headers(**values), "", 0.0)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/generate", {"text": "x"}),
        ("/v1/score", {"query": "x", "items": ["y"], "label_token_ids": [65]}),
    ],
)
def test_every_kind_of_request_can_be_part_of_a_program(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    engine: ScriptedClient = server.engine
    engine.seen.clear()
    name = f"agent-7{path}"
    marks = {"x_program_id": name, "x_program_tokens_left": "300"}
    server.post(path, body, **marks)
    server.post(path, body, **marks)
    first, *_, last = [request.program for request in engine.seen]
    assert first is not None
    assert (first.program_id, first.num_tokens_left, first.is_guess) == (name, 300, False)
    assert last == first, "it began with its first request"
    error = error_of(server.post(path, body, x_program_id="two words"), 400)
    assert error["param"] == "x-program-id"


def test_what_consists_of_many_calls_cannot_be_a_guess(server: RunningServer) -> None:
    marks = {"x_program_id": "p", "x_program_guess": "true"}
    body = {"query": "x", "items": ["y"], "label_token_ids": [65]}
    assert "leave it out here" in error_of(server.post("/v1/score", body, **marks), 400)["message"]


def test_answers_tell_how_many_more_sequences_would_cost_nothing(server: RunningServer) -> None:
    server.engine.num_spare = 5
    for response in (
        server.complete(),
        server.post("/v1/completions", {"prompt": "x", "stream": True}),
        server.http.get("/v1/models"),
    ):
        assert response.headers["x-spare-sequences"] == "5"


def test_a_guess_is_confirmed_by_its_owner_while_it_runs() -> None:
    with running_server(tenant=("ann key=ka", "bob key=kb")) as server:
        engine: ScriptedClient = server.engine
        engine.hold_at = 3
        marks = {"x_program_id": "p", "x_program_guess": "true", "x_request_id": "mine", "authorization": "Bearer ka"}
        thread = threading.Thread(target=lambda: server.post("/v1/completions", {"prompt": "x"}, **marks))
        thread.start()
        eventually(lambda: len(engine.live) == 1)
        (request,) = engine.live.values()
        assert request.is_guess
        route = "/v1/requests/mine/confirm"
        assert (
            "no request 'mine' of yours runs"
            in error_of(server.post(route, {}, authorization="Bearer kb"), 404)["message"]
        )
        assert engine.confirmed == []
        reply = server.post(route, {}, authorization="Bearer ka")
        assert (reply.status_code, reply.json()) == (200, {"object": "request.confirmed", "id": "mine"})
        assert engine.confirmed == [request.request_id]
        engine.release()
        thread.join()
        error_of(server.post(route, {}, authorization="Bearer ka"), 404)
