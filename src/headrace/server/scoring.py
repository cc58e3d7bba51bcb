"""``POST /v1/score`` and ``POST /rerank``: how likely given tokens are after texts, and how relevant texts are.

A score is SGLang's: the probability of each label token after a query with an item. A rerank asks the model whether
each document is relevant to the query and takes the probability of yes; no model trained for ranking is needed.
"""

from __future__ import annotations

import math

import msgspec
from starlette.requests import Request as HttpRequest

from headrace.core.errors import InvalidRequest
from headrace.program.decisions import Decider, Question, softmax
from headrace.program.document import Turn
from headrace.program.engine_backend import EngineBackend
from headrace.program.scoring import Continuation
from headrace.server.access_log import App
from headrace.server.context import ServerContext
from headrace.server.json_body import BodyType
from headrace.server.limits import read_body
from headrace.server.protocol_common import GenerationFields, UsageBody
from headrace.server.work import WorkResponse, backend_for

MAX_ITEMS = 1024
MAX_LABELS = 1024

TokensOrText = str | list[int]


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /v1/score``: SGLang's."""

    query: TokensOrText
    items: str | list[str | int | list[int]]
    label_token_ids: list[int]
    apply_softmax: bool | None = None
    item_first: bool | None = None
    model: str | None = None
    cache_salt: str | None = None
    user: str | None = None


class ScoreResponse(msgspec.Struct, frozen=True, kw_only=True):
    """``scores[i][j]`` is the probability of label ``j`` after item ``i``; among the labels with ``apply_softmax``."""

    scores: list[list[float]]
    model: str
    usage: UsageBody
    object: str = "scoring"


class RankedText(msgspec.Struct, frozen=True):
    text: str


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /rerank``: Jina's and Cohere's."""

    query: str
    documents: list[str | RankedText]
    top_n: int | None = None
    return_documents: bool | None = None
    model: str | None = None
    cache_salt: str | None = None
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
    """Probabilities of label tokens after a query with each of some items."""
    context.check_serving()
    data = await read_body(http.receive, context.config.max_body_bytes)
    with context.counted_rejections():
        body = SCORE_BODY.decode(data, context.config.max_json_depth)
        model = context.served_name(body.value.model)
        terms = context.desk.terms(GenerationFields(user=body.value.user), http.scope["headers"])
        _check_count("label_token_ids", len(body.value.label_token_ids), MAX_LABELS)
        items = _items(body.value.items)
        prompts = await context.in_worker(_prompts, context, body.value, items)
    backend = backend_for(context, terms, body.value.cache_salt)

    async def work() -> ScoreResponse:
        return await _score(backend, model, body.value, prompts)

    return WorkResponse(work, body.ignored_fields)


async def create_rerank(context: ServerContext, http: HttpRequest) -> App:
    """Documents by how likely the model finds each relevant to a query."""
    context.check_serving()
    data = await read_body(http.receive, context.config.max_body_bytes)
    with context.counted_rejections():
        body = RERANK_BODY.decode(data, context.config.max_json_depth)
        model = context.served_name(body.value.model)
        terms = context.desk.terms(GenerationFields(user=body.value.user), http.scope["headers"])
        _check_count("documents", len(body.value.documents), MAX_ITEMS)
        if body.value.top_n is not None and body.value.top_n < 1:
            raise InvalidRequest(f"top_n is {body.value.top_n} but must be at least 1", "top_n")
    decider = Decider(backend_for(context, terms, body.value.cache_salt), context.documents)

    async def work() -> RerankResponse:
        return await _rerank(decider, model, body.value)

    return WorkResponse(work, body.ignored_fields)


def _items(items: str | list[str | int | list[int]]) -> list[TokensOrText]:
    """The items one by one; a list of token ids is one item."""
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


def _prompts(context: ServerContext, body: ScoreRequest, items: list[TokensOrText]) -> list[list[int]]:
    """Tokens of the query with each item. Texts are encoded as one piece, tokens joined as they are."""
    encode = context.prompts.tokenizer.encode
    prompts = []
    for item in items:
        first, second = (item, body.query) if body.item_first else (body.query, item)
        if isinstance(first, str) and isinstance(second, str):
            prompts.append(encode(first + second))
            continue
        if isinstance(first, str) or isinstance(second, str):
            raise InvalidRequest("query and items must both be text or both be token ids", "items")
        prompts.append([*first, *second])
    return prompts


async def _score(backend: EngineBackend, model: str, body: ScoreRequest, prompts: list[list[int]]) -> ScoreResponse:
    labels = body.label_token_ids
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
    start = Turn("system", "You judge whether a document is relevant to a query.")
    question = Question.yes_or_no("Is the document relevant to the query?")
    asked = [([start, Turn("user", f"Query: {body.query}\n\nDocument: {text}")], question) for text in texts]
    decisions = await decider.decide_each(asked)
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
