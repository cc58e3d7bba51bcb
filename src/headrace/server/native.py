"""SGLang's native routes: ``/generate`` and what its programs ask of a runtime besides.

Owns the reading of its one-or-many fields. Everything behind is what OpenAI's dialect uses too.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from headrace.core.config import ServeConfig
from headrace.core.constraint import StructuredOutputsParams
from headrace.core.errors import InvalidRequest
from headrace.core.request import Request
from headrace.core.request_limits import check_limit
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import ServiceTerms
from headrace.program.backend import Call
from headrace.program.document import Document
from headrace.server.access_log import App, record_of, sound_request_id
from headrace.server.auth import check_operator, is_operator
from headrace.server.context import ServerContext
from headrace.server.limits import read_body
from headrace.server.native_reply import NativeAnswer, NativeReply
from headrace.server.protocol_common import GenerationFields
from headrace.server.protocol_native import (
    ABORT_BODY,
    NATIVE_BODY,
    ModelInfo,
    NativeRequest,
    NativeSampling,
    ServerInfo,
)
from headrace.server.respond import cache_salt, stream_response, whole_response
from headrace.server.root_routes import json_response
from headrace.server.sampling_fields import token_biases
from headrace.server.usage import UsageMeter
from headrace.server.work import backend_for

DEFAULT_NEW_TOKENS = 128
"""SGLang's default of ``max_new_tokens``."""

_SECRETS = frozenset({"api_key", "admin_key", "tenant"})

T = TypeVar("T")


async def create_native(context: ServerContext, http: HttpRequest) -> App:
    """Continue one prompt or several, in SGLang's own dialect."""
    context.check_serving()
    data = await read_body(http.receive, context.config.max_body_bytes)
    with context.counted_rejections():
        body = NATIVE_BODY.decode(data, context.config.max_json_depth)
        fields = GenerationFields(
            priority=body.value.priority, cache_salt=body.value.cache_salt, extra_key=body.value.extra_key
        )
        terms = context.terms(fields, http.scope["headers"])
        job = _Job(body.value, cache_salt(fields, context.limits), record_of(http.scope).request_id)
        requests, answers = await context.in_worker(_prepare, context, job, terms)
    reply = NativeReply(requests, answers, context.tokens, UsageMeter(requests, shows_cached_tokens=True))
    answering = stream_response if body.value.stream else whole_response
    return answering(context, requests, reply, body.ignored_fields)


async def show_model_info(context: ServerContext, http: HttpRequest) -> Response:
    """The model, under the names SGLang gives its facts."""
    context.check_serving()
    name = context.model_names[0]
    return json_response(ModelInfo(model_path=name, tokenizer_path=name, served_model_name=name))


async def show_server_info(context: ServerContext, http: HttpRequest) -> Response:
    """The server's settings and the engine's facts."""
    context.check_serving()
    info = context.client.info
    return json_response(
        ServerInfo(
            version=version("headrace"),
            served_model_name=context.model_names[0],
            settings=_shown_settings(context.config),
            engine={**msgspec.to_builtins(info), "model": context.model_names[0]},
            max_total_num_tokens=info.num_kv_tokens,
        )
    )


async def health_generate(context: ServerContext, http: HttpRequest) -> Response:
    """200 once the engine has made a token."""
    context.check_serving()
    backend = backend_for(context, ServiceTerms(), None)
    call = Call(SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True))
    await backend.generate(Document(), call, lambda text: None)
    return Response(status_code=200)


async def flush_cache(context: ServerContext, http: HttpRequest) -> Response:
    """Forget every cached prefix that no running request uses. For the operator."""
    check_operator(context.keys, context.operators, http.scope["headers"])
    await context.client.clear_prefix_cache()
    return PlainTextResponse("Cache flushed.\n")


async def abort_request(context: ServerContext, http: HttpRequest) -> Response:
    """End the caller's requests that were sent with an id, or all of everybody; their clients get what there is."""
    data = await read_body(http.receive, context.config.max_body_bytes)
    body = ABORT_BODY.decode(data, context.config.max_json_depth).value
    if not body.rid and not body.abort_all:
        raise InvalidRequest("rid is empty; name a request, or set abort_all", "rid")
    headers = http.scope["headers"]
    if body.abort_all:
        check_operator(context.keys, context.operators, headers)
        live = list(context.traffic.owners)
    else:
        tenant = None if is_operator(context.operators, headers) else context.desk.viewer(headers)
        live = context.traffic.sent_as(body.rid, tenant)
    await asyncio.gather(*(context.client.abort(each) for each in live))
    return Response(status_code=200)


@dataclass(frozen=True, slots=True)
class _Job:
    body: NativeRequest
    cache_salt: str
    request_id: str


def _prepare(context: ServerContext, job: _Job, terms: ServiceTerms) -> tuple[list[Request], list[NativeAnswer]]:
    """The engine's requests, and how each is answered. May take long: it tokenizes."""
    prompts = _prompts(context, job.body)
    samplings = _each("sampling_params", job.body.sampling_params or NativeSampling(), len(prompts))
    answers = _answers(job, prompts, samplings)
    requests = [
        context.builder.build(
            f"gen-{answer.rid}-{secrets.token_hex(6)}",
            token_ids,
            _sampling(asked, job.body, answer),
            arrival_time=context.clock.now(),
            terms=terms,
            cache_salt=job.cache_salt,
        )
        for token_ids, asked, answer in zip(prompts, samplings, answers, strict=True)
    ]
    return requests, answers


def _prompts(context: ServerContext, body: NativeRequest) -> list[list[int]]:
    if (body.text is None) == (body.input_ids is None):
        raise InvalidRequest("send either text or input_ids", "text")
    if body.text is not None:
        texts: str | list[str | int | list[int]] = body.text if isinstance(body.text, str) else [*body.text]
        read = context.prompts.prompts(texts, add_special_tokens=True, is_truncated=False)
        return [prompt.token_ids for prompt in read]
    rows = body.input_ids or []
    token_ids = [each for each in rows if isinstance(each, int)]
    if token_ids and len(token_ids) == len(rows):
        return [token_ids]
    prompts = [each for each in rows if not isinstance(each, int)]
    if token_ids or not prompts:
        raise InvalidRequest("input_ids must be a list of token ids or of such lists, not a mixture", "input_ids")
    check_limit("input_ids", "input_ids has {} prompts", len(prompts), "max_prompts", context.limits.max_prompts)
    return prompts


def _answers(job: _Job, prompts: list[list[int]], samplings: Sequence[NativeSampling]) -> list[NativeAnswer]:
    body, count = job.body, len(prompts)
    wants = _each("return_logprob", _given(body.return_logprob, False), count)
    starts = _each("logprob_start_len", -1 if body.logprob_start_len is None else body.logprob_start_len, count)
    tops = _each("top_logprobs_num", body.top_logprobs_num or 0, count)
    answers = []
    for index, (rid, token_ids) in enumerate(zip(_rids(body.rid, job.request_id, count), prompts, strict=True)):
        if not -1 <= starts[index] <= len(token_ids):
            raise InvalidRequest(
                f"logprob_start_len is {starts[index]} but the prompt has {len(token_ids)} tokens; use -1 for its end",
                "logprob_start_len",
            )
        start = len(token_ids) if starts[index] == -1 else starts[index]
        answers.append(
            NativeAnswer(
                rid=rid,
                logprob_start=start if wants[index] else None,
                shows_text=bool(body.return_text_in_logprobs),
                num_top=tops[index],
                shows_named=bool(body.token_ids_logprob),
                is_prompt_only=samplings[index].max_new_tokens == 0,
            )
        )
    return answers


def _sampling(asked: NativeSampling, body: NativeRequest, answer: NativeAnswer) -> SamplingParams:
    if asked.stop_regex:
        raise InvalidRequest("stop_regex is not supported here; use stop strings", "sampling_params.stop_regex")
    max_tokens = _given(asked.max_new_tokens, DEFAULT_NEW_TOKENS)
    start = answer.logprob_start
    return SamplingParams(
        n=_given(asked.n, 1),
        temperature=_given(asked.temperature, 1.0),
        top_p=_given(asked.top_p, 1.0),
        top_k=_given(asked.top_k, -1),
        min_p=_given(asked.min_p, 0.0),
        frequency_penalty=_given(asked.frequency_penalty, 0.0),
        presence_penalty=_given(asked.presence_penalty, 0.0),
        repetition_penalty=_given(asked.repetition_penalty, 1.0),
        logit_bias=token_biases(asked.logit_bias or {}),
        seed=asked.sampling_seed,
        max_tokens=max(max_tokens, 1),
        min_tokens=_given(asked.min_new_tokens, 0),
        ignore_eos=bool(asked.ignore_eos),
        stop=_stops(asked.stop),
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        include_stop_str_in_output=bool(asked.no_stop_trim),
        logprobs=None if start is None else answer.num_top,
        prompt_logprobs=None if start is None else answer.num_top,
        prompt_logprobs_start=0 if start is None else start + 1,  # the first reported token has none
        logprob_token_ids=tuple(body.token_ids_logprob or ()) if start is not None else (),
        skip_special_tokens=_given(asked.skip_special_tokens, True),
        structured_outputs=_form(asked),
    )


def _form(asked: NativeSampling) -> StructuredOutputsParams | None:
    if asked.json_schema is None and asked.regex is None and asked.ebnf is None:
        return None
    return StructuredOutputsParams(json=asked.json_schema, regex=asked.regex, grammar=asked.ebnf)


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _rids(rid: str | list[str] | None, request_id: str, count: int) -> list[str]:
    """What the answers are called: as the client named them, or after the HTTP request."""
    if isinstance(rid, list):
        _check_length("rid", len(rid), count)
        return [sound_request_id(each) or f"{request_id}-{index}" for index, each in enumerate(rid)]
    name = sound_request_id(rid or "") or request_id
    return [name] if count == 1 else [f"{name}-{index}" for index in range(count)]


def _each(name: str, value: T | list[T], count: int) -> list[T]:
    """One value for each of ``count`` prompts."""
    if not isinstance(value, list):
        return [value] * count
    _check_length(name, len(value), count)
    return value


def _check_length(name: str, length: int, count: int) -> None:
    if length != count:
        raise InvalidRequest(f"{name} has {length} entries for {count} prompts; send one for each", name)


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _shown_settings(config: ServeConfig) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(config).items() if name not in _SECRETS}
