"""On what terms a request is served: from body, header and key to the request the engine gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.core.request import OutputError, Request
from headrace.core.service_level import NO_TARGETS, STANDARD_CLASSES, ServiceLevel
from tests.server.fakes import ScriptedClient
from tests.server.harness import RunningServer, error_of, running_server

CLASSES = ("gold ttft=300ms tpot=25ms",)
TENANTS = ("search key=k1 class=interactive weight=3", "crawl key=k2 class=batch")


@pytest.fixture(scope="module")
def open_server() -> Iterator[RunningServer]:
    with running_server(service_class=CLASSES) as server:
        yield server


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[RunningServer]:
    with running_server(service_class=CLASSES, tenant=TENANTS, api_key=("plain",)) as server:
        yield server


def served(server: RunningServer, body: dict[str, object] | None = None, **headers: str) -> Request:
    """The request the engine got for a completion with these fields."""
    reply = server.post("/v1/completions", {"prompt": "hi", "max_tokens": 1, **(body or {})}, **headers)
    assert reply.status_code == 200, reply.text
    assert isinstance(server.engine, ScriptedClient)
    return server.engine.seen[-1]


def test_without_anything_there_are_no_targets(open_server):
    request = served(open_server)
    assert request.service_level == NO_TARGETS
    assert (request.service_class, request.tenant, request.weight, request.priority) == ("default", "", 1.0, 0)


@pytest.mark.parametrize(
    ("tier", "service_class"),
    [
        ("gold", "gold"),
        ("standard", "standard"),
        ("flex", "batch"),
        ("priority", "interactive"),
        ("auto", "default"),
        ("default", "default"),
    ],
)
def test_a_tier_is_a_class_by_its_name_or_by_openais(open_server, tier, service_class):
    request = served(open_server, {"service_tier": tier})
    known = {**STANDARD_CLASSES, "gold": ServiceLevel(ttft_s=0.3, tpot_s=0.025)}
    assert (request.service_class, request.service_level) == (service_class, known[service_class])


def test_targets_in_the_body_stand_in_for_those_of_the_class(open_server):
    request = served(open_server, {"service_tier": "batch", "slo": {"ttft_ms": 1500, "may_be_late": False}})
    assert request.service_class == "batch"
    assert request.service_level == ServiceLevel(ttft_s=1.5, tpot_s=0.2)


def test_the_timeout_header_is_the_time_the_whole_answer_has(open_server):
    assert served(open_server, x_request_timeout="2.5").service_level.deadline_s == 2.5
    assert served(open_server, x_request_timeout="1500ms").service_level.deadline_s == 1.5
    sooner = served(open_server, {"slo": {"deadline_ms": 500}}, x_request_timeout="9s")
    assert sooner.service_level.deadline_s == 0.5


def test_without_keys_the_user_is_the_tenant_whatever_key_a_client_sends(open_server):
    assert served(open_server, {"user": "ann"}, authorization="Bearer EMPTY").tenant == "ann"


def test_a_key_has_its_owner_class_and_share(keyed_server):
    request = served(keyed_server, {"user": "ann"}, authorization="Bearer k1")
    assert (request.tenant, request.service_class, request.weight) == ("search", "interactive", 3.0)
    assert served(keyed_server, authorization="Bearer k2").service_class == "batch"
    assert served(keyed_server, {"service_tier": "gold"}, authorization="Bearer k2").service_class == "gold"


def test_a_key_nobody_is_named_for_is_a_tenant_of_its_own_that_does_not_show_it(keyed_server):
    tenant = served(keyed_server, authorization="Bearer plain").tenant
    assert tenant.startswith("key-")
    assert "plain" not in tenant


def test_chat_takes_the_same(open_server):
    reply = open_server.chat(max_tokens=1, slo={"ttft_ms": 100}, priority=-2)
    assert reply.status_code == 200
    request = open_server.engine.seen[-1]
    assert (request.service_level.ttft_s, request.priority) == (0.1, -2)


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"service_tier": "silver"}, "service_tier", "gold"),
        ({"slo": {"ttft_ms": 0}}, "slo", "must be from 0.001"),
        ({"slo": {"tpot_ms": -5}}, "slo", "must be from 0.001"),
        ({"slo": {"speed": 1}}, "slo", "speed"),
        ({"slo": {"ttft_ms": "fast"}}, "slo.ttft_ms", "float"),
    ],
)
def test_terms_that_make_no_sense_are_a_400_with_a_remedy(open_server, body, param, said):
    error = error_of(open_server.complete(**body), 400)
    assert error["param"] == param
    assert said in error["message"]


@pytest.mark.parametrize("value", ["soon", "-1", "0", "1e9", "٣"])
def test_a_timeout_that_is_no_time_is_a_400(open_server, value):
    reply = open_server.http.post(
        "/v1/completions", json={"prompt": "hi"}, headers={b"x-request-timeout": value.encode()}
    )
    assert error_of(reply, 400)["param"] == "x-request-timeout"


def test_what_was_refused_while_it_waited_is_a_429_that_says_when_to_come_back(open_server):
    client = open_server.engine
    client.fail_at, client.failure = 0, OutputError("Overloaded", "the first token cannot come", 3.2)
    try:
        reply = open_server.complete(stream=True)
    finally:
        client.fail_at = None
    assert error_of(reply, 429)["code"] == "overloaded"
    assert reply.headers["retry-after"] == "4"


def test_a_deadline_that_passed_is_a_408_that_is_not_sent_again(open_server):
    client = open_server.engine
    client.fail_at, client.failure = 0, OutputError("DeadlineExceeded", "not within 1 s")
    try:
        reply = open_server.complete()
    finally:
        client.fail_at = None
    assert error_of(reply, 408)["code"] == "deadline_exceeded"
    assert reply.headers["x-should-retry"] == "false"
