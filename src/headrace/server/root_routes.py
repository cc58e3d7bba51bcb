"""Routes that do not generate: models, tokenizer, health, version, metrics.

Health comes in three words. Live: this process answers. Ready: a request sent now would be served. Healthy:
as ready, under the name load balancers of other servers look for.
"""

from __future__ import annotations

from importlib.metadata import version

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.core.errors import InvalidRequest
from headrace.server.context import ServerContext
from headrace.server.errors import unknown_model
from headrace.server.json_body import ignored_fields_headers
from headrace.server.limits import read_body
from headrace.server.logprobs import shown_token
from headrace.server.prompts import Conversation
from headrace.server.protocol_chat import Message
from headrace.server.protocol_root import (
    DETOKENIZE_BODY,
    TOKENIZE_BODY,
    DetokenizeResponse,
    Health,
    ModelCard,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
    Version,
)

MAX_TOKENIZE_BYTES = 4 << 20
MAX_DETOKENIZE_IDS = 1 << 20


async def list_models(context: ServerContext, http: HttpRequest) -> Response:
    """The names this server answers to. Not before it can serve: clients take this list for readiness."""
    context.check_serving()
    reply = json_response(ModelList(data=[_card(context, name) for name in context.model_names]))
    reply.raw_headers += context.room_headers()
    return reply


async def show_model(context: ServerContext, http: HttpRequest) -> Response:
    """One of the names."""
    context.check_serving()
    name = str(http.path_params["model"])
    if name not in context.model_names:
        raise unknown_model(name, context.model_names)
    return json_response(_card(context, name))


async def tokenize(context: ServerContext, http: HttpRequest) -> Response:
    """Tokens of a text or of a conversation."""
    data = await read_body(http.receive, context.config.max_body_bytes)
    body = TOKENIZE_BODY.decode(data, context.config.max_json_depth)
    context.served_name(body.value.model)
    return json_response(await context.in_worker(_tokenize, context, body.value), body.ignored_fields)


async def detokenize(context: ServerContext, http: HttpRequest) -> Response:
    """Text of tokens."""
    data = await read_body(http.receive, context.config.max_body_bytes)
    body = DETOKENIZE_BODY.decode(data, context.config.max_json_depth)
    context.served_name(body.value.model)
    return json_response(await context.in_worker(_detokenize, context, body.value.tokens), body.ignored_fields)


async def tokenizer_info(context: ServerContext, http: HttpRequest) -> Response:
    """What evaluation tools ask of a remote tokenizer."""
    facts = context.tokenizer_facts
    info = TokenizerInfo(
        tokenizer_class="headrace",
        vocab_size=context.builder.vocab_size,
        model_max_length=context.builder.max_model_len,
        bos_token=facts.bos_token,
        eos_token=facts.eos_token,
        chat_template=facts.chat_template,
    )
    return json_response(info)


async def livez(context: ServerContext, http: HttpRequest) -> Response:
    """200 while this process answers at all."""
    return json_response(Health("live"))


async def readyz(context: ServerContext, http: HttpRequest) -> Response:
    """200 if a request sent now would be served, else 503."""
    context.check_serving()
    return json_response(Health("ready"))


async def server_version(context: ServerContext, http: HttpRequest) -> Response:
    """Version of this server."""
    return json_response(Version(version("headrace")))


async def metrics(context: ServerContext, http: HttpRequest) -> Response:
    """Prometheus metrics, as text or OpenMetrics by the Accept header."""
    body, media_type = await context.in_worker(context.metrics.render, http.headers.get("accept", ""))
    return Response(body, headers={"content-type": media_type})


def json_response(body: msgspec.Struct, ignored_fields: tuple[str, ...] = ()) -> Response:
    response = Response(msgspec.json.encode(body), media_type="application/json")
    response.raw_headers.extend(ignored_fields_headers(ignored_fields))
    return response


def _card(context: ServerContext, name: str) -> ModelCard:
    return ModelCard(
        id=name, created=context.created, root=context.model_names[0], max_model_len=context.builder.max_model_len
    )


def _tokenize(context: ServerContext, body: TokenizeRequest) -> TokenizeResponse:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("send either prompt or messages", "prompt")
    token_ids = _text_ids(context, body) if body.messages is None else _chat_ids(context, body, body.messages)
    shown = [shown_token(context.tokens, token_id) for token_id in token_ids] if body.return_token_strs else None
    return TokenizeResponse(
        count=len(token_ids), max_model_len=context.builder.max_model_len, tokens=token_ids, token_strs=shown
    )


def _text_ids(context: ServerContext, body: TokenizeRequest) -> list[int]:
    text = body.prompt or ""
    num_bytes = len(text.encode())
    if num_bytes > MAX_TOKENIZE_BYTES:
        raise InvalidRequest(
            f"prompt has {num_bytes} bytes but at most {MAX_TOKENIZE_BYTES} are tokenized at once; split it", "prompt"
        )
    return context.prompts.tokenizer.encode(text, add_special_tokens=body.add_special_tokens is not False)


def _chat_ids(context: ServerContext, body: TokenizeRequest, messages: list[Message]) -> list[int]:
    if body.add_special_tokens:
        raise InvalidRequest(
            "add_special_tokens is not for messages; the chat template writes them", "add_special_tokens"
        )
    conversation = Conversation(
        messages=messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        template_kwargs=body.chat_template_kwargs or {},
    )
    return context.prompts.conversation(conversation, is_truncated=False)


def _detokenize(context: ServerContext, token_ids: list[int]) -> DetokenizeResponse:
    if len(token_ids) > MAX_DETOKENIZE_IDS:
        raise InvalidRequest(
            f"tokens has {len(token_ids)} ids but at most {MAX_DETOKENIZE_IDS} are taken at once; split it", "tokens"
        )
    vocab_size = context.builder.vocab_size
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"tokens has the id {token_id} but the vocabulary has {vocab_size} tokens (ids 0 to {vocab_size - 1})",
                "tokens",
            )
    return DetokenizeResponse(context.prompts.tokenizer.decode(token_ids, skip_special_tokens=False))
