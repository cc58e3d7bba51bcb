"""``POST /v1/score`` and ``POST /rerank``: how likely given tokens are after texts, and how relevant texts are.

A score is SGLang's: the probability of each label token after a query with an item. A rerank asks the model whether
each document is relevant to the query and takes the probability of yes; no model trained for ranking is needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec
from starlette.requests import Request as HttpRequest

from headrace.core.errors import InvalidRequest
from headrace.program.decisions import Decider, Decisions, Question, softmax
from headrace.program.document import Turn
from headrace.program.engine_backend import EngineBackend
from headrace.program.scoring import Continuation
from headrace.server.access_log import App, record_of
from headrace.server.context import ServerContext
from headrace.server.json_body import BodyType
from headrace.server.protocol_common import GenerationFields, UsageBody, WorkBody
from headrace.server.work import Asked, Work, WorkResponse, asked

MAX_ITEMS = 1024
MAX_LABELS = 1024

TokensOrText = str | list[int]


class ScoreRequest(WorkBody, frozen=True, kw_only=True):
    """Body of ``POST /v1/score``: SGLang's ``query``, ``items`` and ``label_token_ids``, or vLLM's two texts."""

    query: TokensOrText | None = None
    items: str | list[str | int | list[int]] | None = None
    label_token_ids: list[int] | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    apply_softmax: bool | None = None
    item_first: bool | None = None
    user: str | None = None


class ScoreResponse(msgspec.Struct, frozen=True, kw_only=True):
    """``scores[i][j]`` is the probability of label ``j`` after item ``i``; among the labels with ``apply_softmax``."""

    scores: list[list[float]]
    model: str
    usage: UsageBody
    object: str = "scoring"


class PairScore(msgspec.Struct, frozen=True, kw_only=True):
    """How relevant the second text of pair ``index`` is to the first, from 0 to 1."""

    index: int
    score: float
    object: str = "score"


class PairScoreResponse(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's reply to two texts, or to two lists of them."""

    id: str
    created: int
    model: str
    data: list[PairScore]
    usage: UsageBody
    object: str = "list"


class RankedText(msgspec.Struct, frozen=True):
    text: str


class RerankRequest(WorkBody, frozen=True, kw_only=True):
    """Body of ``POST /rerank``: Jina's and Cohere's."""

    query: str
    documents: list[str | RankedText]
    top_n: int | None = None
    return_documents: bool | None = None
    user: str | None = None


class RerankResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    index: int
    relevance_score: float
    document: RankedText | None = None


class RerankUsage(msgspec.Struct, frozen=True):
    total_tokens: int


class RerankResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Documents from the most relevant on."""

    model: str
    results: list[RerankResult]
    usage: RerankUsage


SCORE_BODY = BodyType(ScoreRequest)
RERANK_BODY = BodyType(RerankRequest)


async def create_score(context: ServerContext, http: HttpRequest) -> App:
    """Probabilities of label tokens after a query with each of some items, or how relevant texts are to others."""
    async with asked(context, http, SCORE_BODY) as body:
        backend = body.backend(GenerationFields(user=body.value.user))
        if body.value.text_1 is not None or body.value.text_2 is not None:
            return WorkResponse(_pair_work(body, backend), body.ignored_fields)
        labels = body.value.label_token_ids or []
        _check_count("label_token_ids", len(labels), MAX_LABELS)
        prompts = await context.in_worker(_prompts, context, body.value)

    async def work() -> ScoreResponse:
        return await _score(backend, body.model, body.value, prompts)

    return WorkResponse(work, body.ignored_fields)


async def create_rerank(context: ServerContext, http: HttpRequest) -> App:
    """Documents by how likely the model finds each relevant to a query."""
    async with asked(context, http, RERANK_BODY) as body:
        _check_count("documents", len(body.value.documents), MAX_ITEMS)
        if body.value.top_n is not None and body.value.top_n < 1:
            raise InvalidRequest(f"top_n is {body.value.top_n} but must be at least 1", "top_n")
        backend = body.backend(GenerationFields(user=body.value.user))
    decider = Decider(backend, context.documents)

    async def work() -> RerankResponse:
        return await _rerank(decider, body.model, body.value)

    return WorkResponse(work, body.ignored_fields)


def _pair_work(body: Asked[ScoreRequest], backend: EngineBackend) -> Work:
    pairs = _pairs(body.value.text_1, body.value.text_2)
    decider = Decider(backend, body.context.documents)

    async def work() -> PairScoreResponse:
        relevance = await _relevance(decider, pairs)
        num_tokens = relevance.num_input_tokens
        return PairScoreResponse(
            id=f"score-{record_of(body.http.scope).request_id}",
            created=int(time.time()),
            model=body.model,
            data=[PairScore(index=i, score=answer.probabilities[0]) for i, answer in enumerate(relevance.answers)],
            usage=UsageBody(num_tokens, 0, num_tokens),
        )

    return work


def _pairs(first: str | list[str] | None, second: str | list[str] | None) -> list[tuple[str, str]]:
    """Each of ``first`` with its counterpart; one text goes with all of the other side. Raises ``InvalidRequest``."""
    if first is None or second is None:
        raise InvalidRequest("send both text_1 and text_2, or query, items and label_token_ids", "text_1")
    firsts, seconds = ([side] if isinstance(side, str) else side for side in (first, second))
    _check_count("text_1", len(firsts), MAX_ITEMS)
    _check_count("text_2", len(seconds), MAX_ITEMS)
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    if len(firsts) != len(seconds):
        raise InvalidRequest(
            f"text_1 has {len(firsts)} texts and text_2 has {len(seconds)}; send as many of both, or one text_1",
            "text_2",
        )
    return list(zip(firsts, seconds, strict=True))


async def _relevance(decider: Decider, pairs: Sequence[tuple[str, str]]) -> Decisions:
    """How likely the model finds it that the second of each pair, a document, is relevant to the first, a query."""
    start = Turn("system", "You judge whether a document is relevant to a query.")
    question = Question.yes_or_no("Is the document relevant to the query?")
    asked_of = [([start, Turn("user", f"Query: {query}\n\nDocument: {text}")], question) for query, text in pairs]
    return await decider.decide_each(asked_of)


def _items(items: str | list[str | int | list[int]] | None) -> list[TokensOrText]:
    """The items one by one; a list of token ids is one item."""
    if items is None:
        raise InvalidRequest("items is missing; send the texts to be scored after query", "items")
    if isinstance(items, str):
        return [items]
    token_ids = [item for item in items if isinstance(item, int)]
    if token_ids and len(token_ids) == len(items):
        return [token_ids]
    _check_count("items", len(items), MAX_ITEMS)
    if token_ids:
        raise InvalidRequest("items mixes token ids with texts or lists; send one kind", "items")
    return [item for item in items if not isinstance(item, int)]


def _check_count(name: str, count: int, limit: int) -> None:
    if not 1 <= count <= limit:
        raise InvalidRequest(f"{name} has {count} entries but must have between 1 and {limit}", name)


def _prompts(context: ServerContext, body: ScoreRequest) -> list[list[int]]:
    """Tokens of the query with each item. Texts are encoded as one piece, tokens joined as they are."""
    if body.query is None:
        raise InvalidRequest("query is missing; send what stands before the items", "query")
    encode = context.prompts.tokenizer.encode
    prompts = []
    for item in _items(body.items):
        first, second = (item, body.query) if body.item_first else (body.query, item)
        if isinstance(first, str) and isinstance(second, str):
            prompts.append(encode(first + second))
            continue
        if isinstance(first, str) or isinstance(second, str):
            raise InvalidRequest("query and items must both be text or both be token ids", "items")
        prompts.append([*first, *second])
    return prompts


async def _score(backend: EngineBackend, model: str, body: ScoreRequest, prompts: list[list[int]]) -> ScoreResponse:
    labels = body.label_token_ids or []
    rows = [Continuation((*prompt, label), len(prompt)) for prompt in prompts for label in labels]
    scored = await backend.score_tokens(rows)
    totals = iter(score.total for score in scored.choices)
    scores = []
    for _ in prompts:
        logprobs = [next(totals) for _ in labels]
        scores.append(list(softmax(logprobs)) if body.apply_softmax else [math.exp(value) for value in logprobs])
    num_tokens = sum(map(len, prompts))
    return ScoreResponse(scores=scores, model=model, usage=UsageBody(num_tokens, 0, num_tokens))


async def _rerank(decider: Decider, model: str, body: RerankRequest) -> RerankResponse:
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    decisions = await _relevance(decider, [(body.query, text) for text in texts])
    relevance = [answer.probabilities[0] for answer in decisions.answers]
    order = sorted(range(len(texts)), key=lambda index: (-relevance[index], index))[: body.top_n]
    shows = body.return_documents is not False
    return RerankResponse(
        model=model,
        results=[
            RerankResult(
                index=index,
                relevance_score=relevance[index],
                document=RankedText(texts[index]) if shows else None,
            )
            for index in order
        ],
        usage=RerankUsage(decisions.num_input_tokens),
    )
