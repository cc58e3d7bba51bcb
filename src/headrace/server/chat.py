"""``POST /v1/chat/completions``."""

from __future__ import annotations

import msgspec
from starlette.requests import Request as HttpRequest

from headrace.core.constraint import Constraint
from headrace.core.errors import InvalidRequest
from headrace.core.request import Request
from headrace.core.service_level import ServiceTerms
from headrace.engine.reasoning import ReasoningHabit
from headrace.server.access_log import App, record_of
from headrace.server.chat_reply import ChatOptions, ChatReply
from headrace.server.constraint_fields import constraint_of
from headrace.server.context import ServerContext
from headrace.server.limits import read_body
from headrace.server.prompts import Conversation, truncated
from headrace.server.protocol_chat import CHAT_BODY, ChatRequest
from headrace.server.respond import Identity, cache_salt, check_stream_options, identify, response
from headrace.server.sampling_fields import chat_sampling
from headrace.server.tools import ToolUse, tool_use
from headrace.server.usage import UsageMeter

_CHAT_WORDS = {"prompt": "messages", "logprobs": "top_logprobs"}
"""The request builder's names of fields, and what a chat calls them."""


async def create_chat_completion(context: ServerContext, http: HttpRequest) -> App:
    """Answer a conversation, ``n`` times."""
    context.check_serving()
    data = await read_body(http.receive, context.config.max_body_bytes)
    with context.counted_rejections():
        body = CHAT_BODY.decode(data, context.config.max_json_depth)
        check_stream_options(body.value)
        model = context.served_name(body.value.model)
        identity = identify("chatcmpl", model, body.value, record_of(http.scope))
        terms = context.terms(body.value, http.scope["headers"])
        tools = tool_use(body.value, context.tool_habit, context.limits.max_tools)
        request = await context.in_worker(_prepare, context, body.value, tools, identity, terms)
    usage = UsageMeter([request], context.config.enable_prompt_tokens_details)
    reply = ChatReply(identity.head, _options(body.value, context, tools), request, context.tokens, usage)
    return response(context, [request], reply, body)


def _prepare(
    context: ServerContext, body: ChatRequest, tools: ToolUse | None, identity: Identity, terms: ServiceTerms
) -> Request:
    sampling = chat_sampling(body)
    constraint = _constraint(body, tools)
    habit = _shown_apart(body, context)
    if tools is not None or (habit is not None and habit.is_hidden):  # what announces them may be control tokens
        sampling = msgspec.structs.replace(sampling, skip_special_tokens=False)
    truncate_to = body.truncate_prompt_tokens
    token_ids = context.prompts.conversation(_conversation(body, tools), is_truncated=truncate_to is not None)
    try:
        request = context.builder.build(
            identity.engine_id,
            truncated(token_ids, truncate_to, context.builder.max_model_len - (sampling.max_tokens or 1)),
            sampling,
            arrival_time=context.clock.now(),
            terms=terms,
            cache_salt=cache_salt(body, context.limits),
        )
    except InvalidRequest as error:
        if error.param in _CHAT_WORDS:
            raise InvalidRequest(error.message, _CHAT_WORDS[error.param]) from None
        raise
    return context.builder.held_to(request, constraint)


def _hides_reasoning(body: ChatRequest) -> bool:
    return body.include_reasoning is False or (body.reasoning is not None and bool(body.reasoning.exclude))


def _shown_apart(body: ChatRequest, context: ServerContext) -> ReasoningHabit | None:
    """How the model reasons, if its reasoning is to be told apart from its answer."""
    return None if body.separate_reasoning is False else context.reasoning


def _constraint(body: ChatRequest, tools: ToolUse | None) -> Constraint | None:
    """The form of the answer: what the client asks of it, or what its tools do."""
    asked = constraint_of(body)
    if tools is None or tools.constraint is None:
        return asked
    if asked is not None:
        raise InvalidRequest(
            f"{asked.param} and {tools.constraint.param} both say what form the answer must have; send one", asked.param
        )
    return tools.constraint


def _conversation(body: ChatRequest, tools: ToolUse | None) -> Conversation:
    kwargs = dict(body.chat_template_kwargs or {})
    effort = body.reasoning.effort if body.reasoning is not None else None
    if body.reasoning_effort is not None or effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort or effort)
    return Conversation(
        messages=body.messages if tools is None else tools.messages(body.messages),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        tools=None if tools is None else tools.template_tools(),
        template_kwargs=kwargs,
    )


def _options(body: ChatRequest, context: ServerContext, tools: ToolUse | None) -> ChatOptions:
    options = body.stream_options
    return ChatOptions(
        include_usage=options is not None and bool(options.include_usage),
        continuous_usage=options is not None and bool(options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        num_top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        shows_prompt_logprobs=body.prompt_logprobs is not None,
        tool_format=None if tools is None else tools.habit.format,
        reasoning=_shown_apart(body, context),
        hides_reasoning=_hides_reasoning(body),
    )
