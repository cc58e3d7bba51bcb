"""``POST /v1/completions``."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.requests import Request as HttpRequest

from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import ServiceTerms
from headrace.server.access_log import App, record_of
from headrace.server.completion_reply import CompletionOptions, CompletionReply
from headrace.server.constraint_fields import constraint_of
from headrace.server.context import ServerContext
from headrace.server.limits import read_body
from headrace.server.prompts import PromptTokens, truncated
from headrace.server.protocol_completions import COMPLETION_BODY, CompletionRequest
from headrace.server.respond import Identity, cache_salt, check_stream_options, identify, response
from headrace.server.sampling_fields import completion_sampling, is_echo_only
from headrace.server.usage import UsageMeter


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Engine requests, one per prompt, and the texts to echo (none if nothing is echoed)."""

    requests: tuple[Request, ...]
    echo_texts: tuple[str, ...]


async def create_completion(context: ServerContext, http: HttpRequest) -> App:
    """Generate a completion for each prompt, ``n`` times."""
    context.check_serving()
    data = await read_body(http.receive, context.config.max_body_bytes)
    with context.counted_rejections():
        body = COMPLETION_BODY.decode(data, context.config.max_json_depth)
        check_stream_options(body.value)
        identity = identify("cmpl", context.served_name(body.value.model), body.value, record_of(http.scope))
        terms = context.terms(body.value, http.scope["headers"])
        prepared = await context.in_worker(_prepare, context, body.value, identity, terms)
    reply = CompletionReply(
        identity.head,
        _options(body.value, prepared.echo_texts),
        prepared.requests,
        context.tokens,
        UsageMeter(prepared.requests, context.config.enable_prompt_tokens_details),
    )
    return response(context, prepared.requests, reply, body)


def _prepare(context: ServerContext, body: CompletionRequest, identity: Identity, terms: ServiceTerms) -> _Prepared:
    sampling = completion_sampling(body)
    constraint = constraint_of(body)
    prompts = context.prompts.prompts(
        body.prompt,
        add_special_tokens=body.add_special_tokens is not False,
        is_truncated=body.truncate_prompt_tokens is not None,
    )
    requests = []
    for index, prompt in enumerate(prompts):
        token_ids = _truncated(prompt, body, sampling, context.builder.max_model_len)
        request = context.builder.build(
            f"{identity.engine_id}-{index}",
            token_ids,
            _clipped(sampling, body, context.builder.max_model_len - len(token_ids)),
            arrival_time=context.clock.now(),
            terms=terms,
            cache_salt=cache_salt(body, context.limits),
        )
        requests.append(context.builder.held_to(request, constraint))
    return _Prepared(tuple(requests), _echo_texts(context, body, prompts, requests))


def _truncated(
    prompt: PromptTokens, body: CompletionRequest, sampling: SamplingParams, max_model_len: int
) -> list[int]:
    return truncated(prompt.token_ids, body.truncate_prompt_tokens, max_model_len - (sampling.max_tokens or 1))


def _clipped(sampling: SamplingParams, body: CompletionRequest, num_free_tokens: int) -> SamplingParams:
    """OpenAI's default of ``max_tokens`` yields to the context; what the client asked for is never changed."""
    if body.max_tokens is not None or sampling.max_tokens is None or sampling.max_tokens <= num_free_tokens:
        return sampling
    return msgspec.structs.replace(sampling, max_tokens=max(num_free_tokens, 1, sampling.min_tokens))


def _echo_texts(
    context: ServerContext, body: CompletionRequest, prompts: list[PromptTokens], requests: list[Request]
) -> tuple[str, ...]:
    """What to echo: the text as it was sent, or that of the ids where there was none or only part of it is used."""
    if not body.echo:
        return ()
    skips_special = body.skip_special_tokens is not False
    return tuple(
        prompt.text
        if prompt.text is not None and len(prompt.token_ids) == len(request.prompt_token_ids)
        else context.prompts.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=skips_special)
        for prompt, request in zip(prompts, requests, strict=True)
    )


def _options(body: CompletionRequest, echo_texts: tuple[str, ...]) -> CompletionOptions:
    options = body.stream_options
    return CompletionOptions(
        include_usage=options is not None and bool(options.include_usage),
        continuous_usage=options is not None and bool(options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        echo_texts=echo_texts,
        is_echo_only=is_echo_only(body),
        shows_logprobs=body.logprobs is not None,
        shows_prompt_logprobs=body.prompt_logprobs is not None,
    )
