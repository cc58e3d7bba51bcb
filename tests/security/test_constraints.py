"""SEC-06 to SEC-08: constraints that are broken, that cost too much, and that are too many."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import InvalidRequest
from headrace.grammar.cache import GrammarCache
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.service import GrammarService
from headrace.grammar.worker_process import WorkerProcess
from tests.grammar.vocabulary import TABLE, encode
from tests.hostile.sources import source
from tests.server.harness import RunningServer, error_of
from tests.server.harness import encode as json_bytes

NUM_SOURCES = 2000
SLOW_REGEX = "|".join(f"{number:05d}{number * 7919 % 65521:05d}" for number in range(20_000))


def test_sec_06_two_thousand_broken_sources_are_compiled_or_refused_in_words() -> None:
    worker = WorkerProcess(TABLE, GrammarLimits())
    messages = []
    with contextlib.closing(worker):
        for seed in range(NUM_SOURCES):
            try:
                worker.compile(source(seed))
            except InvalidRequest as error:
                messages.append(error.message)
        assert worker.compile(Constraint(ConstraintKind.REGEX, "ok")).text
    assert NUM_SOURCES // 3 < len(messages) < NUM_SOURCES
    assert not [message for message in messages if not 10 < len(message) < 3000]


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "stsring"}}},
            "type",
        ),
        ("guided_json", {"type": "stsring"}, "type"),
        ("guided_json", {"properties": {"a": {"pattern": "\\d{"}}}, "#/properties/a/pattern"),
        ("guided_json", {"$ref": "#/nowhere"}, "#/nowhere"),
        ("guided_json", {"$ref": "http://127.0.0.1/x.json"}, "$ref"),
        ("guided_regex", "[", "["),
        ("guided_regex", "(a", "("),
        ("guided_grammar", "start: (", "start"),
        ("ebnf", "root ::= missing", "missing"),
        ("structured_outputs", {"json": "{"}, "line 1"),
    ],
)
def test_sec_06_a_broken_source_is_a_400_that_names_its_place(
    server: RunningServer, field: str, value: object, named: str
) -> None:
    error = error_of(server.complete(max_tokens=2, **{field: value}), 400)
    assert error["param"].startswith(field)
    assert named in error["message"]


def nested_one_of(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for level in range(depth):
        schema = {"oneOf": [{"type": "object", "properties": {f"{name}{level}": schema}} for name in "ab"]}
    return schema


COSTLY = {
    "nested_quantifiers": {"guided_regex": "(a+)+b"},
    "nested_choices": {"guided_json": nested_one_of(14)},
    "a_rule_that_is_itself": {"ebnf": "root ::= root"},
    "rules_in_a_circle": {"guided_grammar": "start: a\na: b\nb: a"},
    "a_huge_enum": {"guided_json": {"enum": [f"value {index}" for index in range(20_000)]}},
    "thirty_thousand_parentheses": {"guided_regex": "(" * 30_000 + "a" + ")" * 30_000},
    "thirty_thousand_parentheses_in_ebnf": {"ebnf": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "counted_repetitions": {"guided_regex": "((a{1,900}){1,900}){1,900}"},
    "deep_arrays": {"guided_json": json.loads('{"items":' * 50 + "{}" + "}" * 50)},
    "many_words": {"guided_regex": SLOW_REGEX},
}


@pytest.mark.parametrize("name", COSTLY)
def test_sec_07_a_costly_constraint_is_bounded_and_other_streams_go_on(server: RunningServer, name: str) -> None:
    num_chunks = [0]
    first_seen, is_over = threading.Event(), threading.Event()

    def read_stream() -> None:
        body = {"prompt": "x", "stream": True, "max_tokens": 500, "ignore_eos": True}
        while not is_over.is_set():
            with server.http.stream("POST", "/v1/completions", json=body) as response:
                for _ in response.iter_lines():
                    num_chunks[0] += 1
                    first_seen.set()
                    if is_over.is_set():
                        return

    thread = threading.Thread(target=read_stream)
    thread.start()
    try:
        assert first_seen.wait(20)
        before = num_chunks[0]
        response = server.http.post(
            "/v1/completions",
            content=json_bytes({"prompt": "x", "max_tokens": 4, **COSTLY[name]}),
            headers={"content-type": "application/json"},
        )
        during = num_chunks[0] - before
    finally:
        is_over.set()
        thread.join()
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert len(error_of(response, 400)["message"]) < 1000
        assert response.elapsed.total_seconds() < 15
    assert during > 0, "a stream stood still while the constraint was compiled"


def test_sec_07_the_worker_is_held_to_its_limits() -> None:
    limits = GrammarLimits()
    assert limits.cpu_s <= 2
    with contextlib.closing(WorkerProcess(TABLE, limits)) as worker:
        worker.compile(Constraint(ConstraintKind.REGEX, "a"))
        text = Path(f"/proc/{worker.pid}/limits").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("Max address space")]
        assert line.split()[3] == str(limits.memory_bytes)


def test_sec_08_a_hundred_thousand_constraints_stay_within_the_caches_budget() -> None:
    budget = 8 << 20
    cache: GrammarCache[str] = GrammarCache(budget)
    for number in range(100_000):
        constraint = Constraint(ConstraintKind.REGEX, f"{number}[a-z]")
        cache.put(constraint, Future())
        if number % 2:
            cache.settle(constraint, 1 << 19)
        assert cache.num_bytes <= budget
    assert 0 < len(cache) <= budget >> 16


def test_sec_08_what_is_compiled_is_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outlines pickled its cache into a folder (CVE-2025-69872); ours is memory alone."""
    for variable in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "HEADRACE_CACHE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    limits = GrammarLimits(cache_bytes=2 << 20)
    with contextlib.closing(GrammarService(TABLE, encode, limits)) as service:
        for number in range(40):
            service.compile(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps({"const": number}))).result(60)
        assert service.counts.num_compiled == 40
        assert service.cache_bytes <= limits.cache_bytes
    assert os.listdir(tmp_path) == []
