"""Typed questions over HTTP on a real engine with a tiny model, by OpenAI's client and as plain bodies."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from headrace.program.decisions import Option, Question, softmax
from tests.server.harness import MODEL, RunningServer, encode, error_of, eventually, post_bytes, running_server
from tests.server.real_engine import metric, tiny_backend
from tests.tiny_model import write_tiny_model

INPUT = "The parcel came late and the box was wet."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def real_server(folder: Path) -> Iterator[RunningServer]:
    with running_server(tiny_backend(folder)) as server:
        yield server


@pytest.fixture
def server(real_server: RunningServer) -> Iterator[RunningServer]:
    yield real_server
    eventually(lambda: metric(real_server, 'headrace_kv_cache_blocks{state="used"}') == 0)


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def rescored(server: RunningServer, content: str, labels: tuple[str, ...]) -> tuple[float, ...]:
    """Probabilities of labels from the whole vocabulary's log-probabilities, by prompts that hold each label."""
    totals = []
    for label in labels:
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": label}]
        body = {"messages": messages, "continue_final_message": True, "max_tokens": 1, "prompt_logprobs": 0}
        entries = server.post("/v1/chat/completions", body).json()["prompt_logprobs"]
        totals.append(sum(next(iter(entry.values()))["logprob"] for entry in entries[-len(label) :]))
    return softmax(totals)


def test_openais_client_asks_all_kinds_of_questions(client: openai.OpenAI, server: RunningServer) -> None:
    decision = client.decisions.create(
        model=MODEL,
        input=INPUT,
        questions=[
            {"type": "predicate", "name": "late", "instructions": "Was it late?"},
            {
                "type": "choice",
                "instructions": "What about?",
                "choices": [{"value": "delivery"}, {"value": True, "description": "yes"}, {"value": "true"}],
            },
            {"type": "score", "instructions": "How angry?", "levels": [{"label": "calm"}, {"label": "cross"}]},
        ],
    )
    late, about, angry = decision.answers
    assert late.type == "predicate"
    assert late.name == "late"
    yes_no = rescored(server, f"{INPUT}\n\n{Question.yes_or_no('Was it late?').text()}", ("Yes", "No"))
    assert late.probability == pytest.approx(yes_no[0], abs=1e-4)
    assert about.type == "choice"
    options = [Option("delivery"), Option("true", "yes"), Option("true")]
    expected = rescored(server, f"{INPUT}\n\n{Question.one_of('What about?', options).text()}", ("A", "B", "C"))
    assert [each.probability for each in about.probabilities] == pytest.approx(expected, abs=1e-4)
    assert about.choice == ["delivery", True, "true"][expected.index(max(expected))]
    assert [each.value for each in about.probabilities] == ["delivery", True, "true"]
    assert angry.type == "score"
    assert angry.score == pytest.approx(angry.probabilities[1].probability)
    assert [(each.value, each.label) for each in angry.probabilities] == [(0, "calm"), (1, "cross")]
    assert decision.usage.output_tokens == 0
    assert decision.usage.total_tokens == decision.usage.input_tokens > 0
    details = decision.usage.input_tokens_details
    assert details.cached_tokens + details.cache_write_tokens == decision.usage.input_tokens


def test_400_questions_compute_their_input_once(server: RunningServer) -> None:
    before = metric(server, "headrace_prompt_tokens_total"), metric(server, "headrace_prefix_cache_hit_tokens_total")
    questions = [{"type": "predicate", "instructions": f"Is it {number}?"} for number in range(400)]
    body = server.post("/v1/decisions", {"input": "x" * 300, "questions": questions}).json()
    assert "answers" in body, body
    assert len(body["answers"]) == 400
    assert all(0.0 < answer["probability"] < 1.0 for answer in body["answers"])
    # the input, whole blocks of it, is there for every question but the first
    hits = metric(server, "headrace_prefix_cache_hit_tokens_total") - before[1]
    assert hits >= 399 * (300 // 16) * 16
    assert body["usage"]["input_tokens"] < metric(server, "headrace_prompt_tokens_total") - before[0]


def test_conversations_with_tools_and_parts_are_judged(client: openai.OpenAI) -> None:
    decision = client.decisions.create(
        model=MODEL,
        input=[
            {"role": "developer", "content": "Be fair."},
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "found"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Done"}]},
        ],
        questions=[
            {"type": "predicate", "instructions": [{"type": "input_json", "data": {"claim": "it was found"}}]},
        ],
    )
    assert decision.answers[0].type == "predicate"


@pytest.mark.parametrize(
    ("change", "message", "param"),
    [
        ({"questions": []}, "0 questions but there must be between 1 and 400", "questions"),
        ({"questions": [{"type": "riddle"}]}, "questions[0].type: Invalid value", None),
        (
            {"questions": [{"type": "choice", "instructions": "?", "choices": [{"value": "a"}]}]},
            "1 options",
            "questions",
        ),
        (
            {"questions": [{"type": "choice", "instructions": "?", "choices": [{"value": "a"}] * 2}]},
            "the same value twice",
            "questions[0].choices",
        ),
        ({"input": []}, "input is an empty list", "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "role must be one of", "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "'input_image', but this model reads only text",
            "input[0].content[0]",
        ),
        ({"model": "other"}, "is not served here", "model"),
        ({"stream": True}, "stream is not supported here; answers come all at once", "stream"),
        ({"input": "x" * 600}, "the prompt has", "prompt"),
    ],
)
def test_what_cannot_be_answered_says_why(
    server: RunningServer, change: dict[str, Any], message: str, param: str | None
) -> None:
    body = {"input": "x", "questions": [{"type": "predicate", "instructions": "?"}], **change}
    error = error_of(server.post("/v1/decisions", body), 404 if "model" in change else 400)
    assert message in error["message"]
    if param is not None:
        assert error["param"] == param


def test_a_client_that_leaves_ends_its_questions(server: RunningServer) -> None:
    questions = [{"type": "predicate", "instructions": f"Is it {number}?"} for number in range(400)]
    aborted = metric(server, "headrace_requests_aborted_total")
    sock: socket.socket = server.connect()
    sock.sendall(post_bytes("/v1/decisions", encode({"input": "y" * 300, "questions": questions})))
    eventually(lambda: metric(server, "headrace_num_requests_running") > 0)
    sock.close()
    eventually(lambda: metric(server, "headrace_requests_aborted_total") > aborted)
    eventually(lambda: metric(server, "headrace_num_requests_running") == 0)


# -- the sibling dialect ---------------------------------------------------------------------------------


def test_systemone_answers_by_name(server: RunningServer) -> None:
    body = server.post(
        "/v1/systemone",
        {
            "model": MODEL,
            "state": {"message": INPUT},
            "questions": {
                "late": {"type": "noul", "instructions": "Was it late?", "criteria": {"true": "after noon"}},
                "topic": {"type": "choice", "instructions": "About?", "criteria": {"box": "the box", "time": None}},
                "mood": {"type": "score", "instructions": "Mood?", "criteria": ["bad", "fair", "good"]},
            },
        },
    ).json()
    answers = body["answers"]
    assert list(answers) == ["late", "topic", "mood"]
    assert answers["late"]["type"] == "noul"
    assert 0.0 < answers["late"]["noul"] < 1.0
    assert sum(answers["topic"]["probabilities"].values()) == pytest.approx(1.0)
    assert answers["topic"]["choice"] == max(
        answers["topic"]["probabilities"], key=answers["topic"]["probabilities"].get
    )
    assert answers["mood"]["legend"] == {"0": "bad", "1": "fair", "2": "good"}
    assert answers["mood"]["score"] == pytest.approx(
        sum(int(index) * p for index, p in answers["mood"]["probabilities"].items())
    )
    assert 0.0 <= answers["mood"]["confidence"] <= 1.0
    assert body["usage"]["output_tokens"] == 0


def test_systemone_refuses_criteria_that_mean_nothing(server: RunningServer) -> None:
    question = {"type": "noul", "instructions": "?", "criteria": {"perhaps": "x"}}
    error = error_of(server.post("/v1/systemone", {"state": "x", "questions": {"q": question}}), 400)
    assert "questions.q.criteria has 'perhaps'" in error["message"]
    assert "ask at least one" in error_of(server.post("/v1/systemone", {"state": "x", "questions": {}}), 400)["message"]


# -- scores and ranks ------------------------------------------------------------------------------------


def test_scores_are_probabilities_of_label_tokens(server: RunningServer) -> None:
    asked = {"query": "Is it so? ", "items": ["a", "bc"], "label_token_ids": [70, 80, 90]}
    plain = server.post("/v1/score", asked).json()
    assert plain["object"] == "scoring"
    for item, row in zip(asked["items"], plain["scores"], strict=True):
        for label, score in zip(asked["label_token_ids"], row, strict=True):
            token_ids = server.post("/tokenize", {"prompt": asked["query"] + item}).json()["tokens"]
            body = {"prompt": [*token_ids, label], "max_tokens": 1, "prompt_logprobs": 0}
            entry = server.post("/v1/completions", body).json()["choices"][0]["prompt_logprobs"][-1]
            assert math.log(score) == pytest.approx(entry[str(label)]["logprob"], abs=1e-4)
    soft = server.post("/v1/score", {**asked, "apply_softmax": True}).json()["scores"]
    assert [sum(row) for row in soft] == pytest.approx([1.0, 1.0])


def test_scores_take_tokens_and_items_first(server: RunningServer) -> None:
    tokens = {"query": [70, 71], "items": [[72], [73]], "label_token_ids": [5]}
    first = server.post("/v1/score", {**tokens, "item_first": True}).json()["scores"]
    swapped = server.post("/v1/score", {"query": [72], "items": [[70, 71]], "label_token_ids": [5]}).json()["scores"]
    assert first[0] == pytest.approx(swapped[0])
    error = error_of(server.post("/v1/score", {**tokens, "query": "text"}), 400)
    assert "both be text or both be token ids" in error["message"]


def test_pairs_of_texts_are_scored_as_vllms_clients_send_them(server: RunningServer) -> None:
    one_with_all = server.post("/v1/score", {"text_1": "tea", "text_2": ["the history of tea", "boats"]}).json()
    assert one_with_all["object"] == "list"
    assert [entry["index"] for entry in one_with_all["data"]] == [0, 1]
    ranked = server.post("/rerank", {"query": "tea", "documents": ["the history of tea", "boats"]}).json()["results"]
    relevance = {result["index"]: result["relevance_score"] for result in ranked}
    assert [entry["score"] for entry in one_with_all["data"]] == pytest.approx([relevance[0], relevance[1]])
    paired = server.post("/v1/score", {"text_1": ["tea", "sea"], "text_2": ["the history of tea", "boats"]}).json()
    assert paired["data"][0]["score"] == pytest.approx(relevance[0])
    error = error_of(server.post("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}), 400)
    assert "text_1 has 2 texts and text_2 has 1" in error["message"]
    assert "send both" in error_of(server.post("/v1/score", {"text_2": "c"}), 400)["message"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_by_relevance(server: RunningServer, path: str) -> None:
    documents = ["tea", {"text": "the history of tea"}, "boats"]
    body = server.post(path, {"query": "tea", "documents": documents, "top_n": 2}).json()
    assert len(body["results"]) == 2
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores == sorted(scores, reverse=True)
    texts = ["tea", "the history of tea", "boats"]
    assert all(result["document"]["text"] == texts[result["index"]] for result in body["results"])
    bare = server.post(path, {"query": "tea", "documents": documents, "return_documents": False}).json()["results"]
    assert len(bare) == 3
    assert all("document" not in result for result in bare)
