"""Constrained output through HTTP on the real engine, with a tiny model whose taste is random."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.server.harness import RunningServer, error_of, eventually, running_server
from tests.server.real_engine import metric, tiny_backend
from tests.tiny_model import write_tiny_model

pytest.importorskip("torch")

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    with running_server(tiny_backend(folder, backend="torch")) as running:
        yield running


def schema_format(schema: object, **fields: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, **fields}}


def answers(server: RunningServer, **body: Any) -> list[str]:
    response = server.chat(max_tokens=200, **body)
    assert response.status_code == 200, response.text
    assert [choice["finish_reason"] for choice in response.json()["choices"]] == ["stop"] * body.get("n", 1)
    return [choice["message"]["content"] for choice in response.json()["choices"]]


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": schema_format(PERSON, strict=True)},
        {"structured_outputs": {"json": PERSON}},
        {"structured_outputs": {"json": json.dumps(PERSON)}},
        {"guided_json": PERSON},
        {"guided_json": json.dumps(PERSON)},
        {"json_schema": json.dumps(PERSON)},
    ],
)
def test_every_dialect_of_a_schema_is_obeyed(server: RunningServer, body: dict[str, Any]) -> None:
    for text in answers(server, seed=3, **body):
        jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ({"structured_outputs": {"regex": r"\d{3}-\d{4}"}}, r"[0-9]{3}-[0-9]{4}"),
        ({"guided_regex": "[ab]{5}"}, "[ab]{5}"),
        ({"regex": "(yes|no)!"}, "(yes|no)!"),
        ({"structured_outputs": {"choice": ["left", 'ri"ght\n']}}, 'left|ri"ght\n'),
        ({"guided_choice": ["x", "y"]}, "[xy]"),
        ({"structured_outputs": {"lark": 'start: "a" ("b" | "c")'}}, "a[bc]"),
        ({"structured_outputs": {"json": {"type": "integer", "maximum": 9, "minimum": 1}}}, "[1-9]"),
    ],
)
def test_every_kind_is_obeyed(server: RunningServer, body: dict[str, Any], pattern: str) -> None:
    for text in answers(server, n=2, **body):
        assert re.fullmatch(pattern, text)


def test_any_json_object(server: RunningServer) -> None:
    body = {"response_format": {"type": "json_object"}, "max_tokens": 64, "seed": 1}
    choice = server.chat(**body).json()["choices"][0]
    assert choice["message"]["content"].startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_g21_samples_of_one_request_do_not_share_a_matcher(server: RunningServer) -> None:
    texts = answers(server, n=3, structured_outputs={"json": PERSON})
    assert len(set(texts)) == 3
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)


def test_streams_carry_the_same_text(server: RunningServer) -> None:
    body = {"structured_outputs": {"json": PERSON}, "seed": 11}
    assert server.stream_chat(max_tokens=200, **body).texts[0] == answers(server, **body)[0]


def test_g18_the_grammar_wins_over_min_tokens_and_ignore_eos(server: RunningServer) -> None:
    for extra in ({"min_tokens": 64}, {"ignore_eos": True}, {"min_tokens": 64, "ignore_eos": True}):
        assert answers(server, structured_outputs={"json": {"type": "boolean"}}, **extra)[0] in ("true", "false")


def test_completions_are_constrained_too(server: RunningServer) -> None:
    response = server.complete(prompt=["a", "b"], structured_outputs={"regex": "[xy]{4}"}, max_tokens=20)
    assert [re.fullmatch("[xy]{4}", choice["text"]) is not None for choice in response.json()["choices"]] == [True] * 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"regex": '(["'}, "regex", "unclosed character class"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "line 1"),
        ({"structured_outputs": {"lark": "root: a"}}, "structured_outputs.lark", "start:"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " ?"}, None, ""),
    ],
)
def test_b32_what_cannot_be_enforced_is_a_400_before_the_stream(
    server: RunningServer, body: dict[str, Any], param: str | None, words: str, stream: bool
) -> None:
    response = server.chat(stream=stream, max_tokens=4, **body)
    if param is None:
        assert response.status_code == 200
        return
    error = error_of(response, 400)
    assert error["param"] == param
    assert words in error["message"]


STOPS = {"0": 100, "1": 100, "2": 100}
"""Biases with which every control token of the tiny model is what it would like best."""


def test_g19_no_stop_token_comes_before_the_answer_is_complete_and_any_one_ends_it(server: RunningServer) -> None:
    for stop_token_ids in ([], [0, 1], [1]):
        body = {"stop_token_ids": stop_token_ids, "logit_bias": STOPS, "seed": 2}
        for text in answers(server, n=2, structured_outputs={"json": PERSON}, **body):
            jsonschema.validate(json.loads(text), PERSON)
        assert len(answers(server, structured_outputs={"regex": "[0-9]{1,30}"}, **body)[0]) == 1


def test_b30_a_model_that_prefers_blanks_still_ends(server: RunningServer) -> None:
    blanks = {str(server.post("/tokenize", {"prompt": each}).json()["tokens"][0]): 60 for each in (" ", "\n", "\t")}
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    (text,) = answers(server, response_format=schema_format(schema), logit_bias=blanks, temperature=0)
    jsonschema.validate(json.loads(text), schema)
    assert re.search(r"\s\s", text) is None
    assert text.count(" ") == 3


def test_b31_hostile_constraints_are_refused_and_hold_up_nobody(server: RunningServer) -> None:
    nested: dict[str, Any] = {"type": "string"}
    for level in range(12):
        nested = {"oneOf": [{"type": "object", "properties": {name + str(level): nested}} for name in "ab"]}
    chain = "start: r0\n" + "\n".join(f"r{index}: r{index + 1}" for index in range(3000)) + '\nr3000: "a"'
    hostile: list[dict[str, Any]] = [
        {"json": nested},
        {"json": "[" * 20_000},
        {"regex": "(" * 50_000 + ")" * 50_000},
        {"lark": chain},
        {"json": {"$ref": "#"}},
    ]
    statuses: list[int] = []

    def attack(form: dict[str, Any]) -> None:
        statuses.append(server.chat(structured_outputs=form, max_tokens=4).status_code)

    threads = [threading.Thread(target=attack, args=(form,)) for form in hostile]
    for thread in threads:
        thread.start()
    assert server.chat(max_tokens=20).status_code == 200
    assert server.http.get("/health").status_code == 200
    for thread in threads:
        thread.join()
    assert statuses == [400] * len(hostile)
    assert answers(server, structured_outputs={"regex": "a|b"})[0] in ("a", "b")


def test_g11_one_bad_grammar_harms_no_other_request(server: RunningServer) -> None:
    rejected = metric(server, 'headrace_requests_rejected_total{reason="invalid_request"}')
    failed = metric(server, "headrace_requests_failed_total")
    assert answers(server, structured_outputs={"regex": "a|b"})[0] in ("a", "b")
    error_of(server.chat(structured_outputs={"lark": "start: x\nstart: y"}), 400)
    error_of(server.chat(structured_outputs={"regex": "["}), 400)
    assert server.chat(max_tokens=2).status_code == 200
    assert metric(server, 'headrace_requests_rejected_total{reason="invalid_request"}') == rejected + 2
    assert metric(server, "headrace_requests_failed_total") == failed
    assert server.http.get("/health").status_code == 200


def test_constrained_and_free_requests_share_steps(server: RunningServer) -> None:
    free = server.complete(temperature=0, max_tokens=40, ignore_eos=True).json()["choices"][0]["text"]
    texts: list[str] = []

    def constrain(seed: int) -> None:
        texts.extend(answers(server, seed=seed, structured_outputs={"json": PERSON}))

    threads = [threading.Thread(target=constrain, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    beside = server.complete(temperature=0, max_tokens=40, ignore_eos=True).json()["choices"][0]["text"]
    for thread in threads:
        thread.join()
    assert beside == free
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)
    eventually(lambda: metric(server, "headrace_num_requests_running") == 0)


def test_best_effort_answers_carry_a_warning(server: RunningServer) -> None:
    schema = {
        "type": "array",
        "items": {"type": "integer", "maximum": 9, "minimum": 0},
        "maxItems": 2,
        "uniqueItems": True,
    }
    error = error_of(server.chat(response_format=schema_format(schema, strict=True), max_tokens=20), 400)
    assert "#/uniqueItems cannot be enforced" in error["message"]
    body = {"response_format": schema_format(schema, strict=False), "max_tokens": 40}
    whole = server.chat(**body).json()
    (warning,) = whole["warnings"]
    assert warning.startswith("response_format.json_schema.schema: #/uniqueItems is not enforced")
    assert server.stream_chat(**body).chunks[0]["warnings"] == [warning]
    lax = {"json": schema, "enforcement": "best_effort"}
    assert server.complete(structured_outputs=lax, max_tokens=40).json()["warnings"][0].startswith("structured_outputs")
    assert "warnings" not in server.chat(structured_outputs={"json": PERSON}, max_tokens=4).json()


def test_grammars_are_measured(server: RunningServer) -> None:
    names = (
        "grammars_compiled",
        "grammar_cache_hits",
        "grammar_compile_seconds",
        "token_mask_seconds",
        "forced_tokens",
    )
    before = {name: metric(server, f"headrace_{name}_total") for name in names}
    for _ in range(2):
        answers(server, structured_outputs={"regex": "measured (a|b)"})
    eventually(lambda: metric(server, "headrace_grammar_cache_hits_total") == before["grammar_cache_hits"] + 1)
    assert metric(server, "headrace_grammars_compiled_total") == before["grammars_compiled"] + 1
    assert all(metric(server, f"headrace_{name}_total") > before[name] for name in names)


def test_the_answer_does_not_depend_on_company(server: RunningServer) -> None:
    alone = answers(server, seed=9, structured_outputs={"json": PERSON})[0]
    with_others = answers(server, seed=9, n=4, structured_outputs={"json": PERSON})
    assert with_others[0] == alone
