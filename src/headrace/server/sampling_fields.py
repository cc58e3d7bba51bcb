"""From the dialect's sampling fields to ``SamplingParams``: pure, and the only place that knows the aliases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from headrace.core.errors import InvalidRequest
from headrace.core.sampling import MAX_LOGPROBS, SamplingParams
from headrace.server.protocol_chat import ChatRequest
from headrace.server.protocol_common import GenerationFields
from headrace.server.protocol_completions import CompletionRequest

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default of ``max_tokens`` for completions."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the two routes ask for under different names."""

    max_tokens: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    thinking_token_budget: int | None


def completion_sampling(body: CompletionRequest) -> SamplingParams:
    """Sampling of a completion. ``max_tokens`` is 1 for a pure echo, whose one token is not shown.

    Raises ``InvalidRequest`` naming the field.
    """
    _check_best_of(body)
    echoed_logprobs = body.logprobs if body.echo else None
    asked = _Asked(
        max_tokens=1 if is_echo_only(body) else _given(body.max_tokens, DEFAULT_COMPLETION_TOKENS),
        logprobs=body.logprobs,
        prompt_logprobs=body.prompt_logprobs if body.prompt_logprobs is not None else echoed_logprobs,
        thinking_token_budget=_budget(body),
    )
    return _sampling(body, asked)


def is_echo_only(body: CompletionRequest) -> bool:
    """Whether only the prompt is wanted back: ``echo`` with ``max_tokens`` 0, as evaluation tools ask."""
    return bool(body.echo) and body.max_tokens == 0


def chat_sampling(body: ChatRequest) -> SamplingParams:
    """Sampling of a chat answer; without a limit it may run to the end of the context."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true; set logprobs or leave it out", "top_logprobs")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs is {body.top_logprobs} but must be between 0 and {MAX_LOGPROBS}", "top_logprobs"
        )
    if body.max_completion_tokens is not None and body.max_completion_tokens < 1:
        raise InvalidRequest(
            f"max_completion_tokens is {body.max_completion_tokens} but must be at least 1", "max_completion_tokens"
        )
    asked = _Asked(
        max_tokens=_agreed("max_completion_tokens", body.max_completion_tokens, "max_tokens", body.max_tokens),
        logprobs=_given(body.top_logprobs, 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        thinking_token_budget=_agreed(
            "thinking_token_budget",
            _budget(body),
            "reasoning.max_tokens",
            None if body.reasoning is None else body.reasoning.max_tokens,
        ),
    )
    return _sampling(body, asked)


def _sampling(fields: GenerationFields, asked: _Asked) -> SamplingParams:
    return SamplingParams(
        n=_given(fields.n, 1),
        temperature=_given(fields.temperature, 1.0),
        top_p=_given(fields.top_p, 1.0),
        top_k=_given(fields.top_k, 0),
        min_p=_given(fields.min_p, 0.0),
        presence_penalty=_given(fields.presence_penalty, 0.0),
        frequency_penalty=_given(fields.frequency_penalty, 0.0),
        repetition_penalty=_given(fields.repetition_penalty, 1.0),
        logit_bias=token_biases(fields.logit_bias or {}),
        seed=_agreed("seed", fields.seed, "sampling_seed", fields.sampling_seed),
        max_tokens=asked.max_tokens,
        min_tokens=_given(fields.min_tokens, 0),
        ignore_eos=bool(fields.ignore_eos),
        stop=_stop(fields.stop),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        include_stop_str_in_output=bool(
            _agreed(
                "include_stop_str_in_output", fields.include_stop_str_in_output, "no_stop_trim", fields.no_stop_trim
            )
        ),
        allowed_token_ids=_allowed(fields.allowed_token_ids),
        bad_words=tuple(fields.bad_words or ()),
        logprobs=asked.logprobs,
        prompt_logprobs=_prompt_logprobs(fields, asked.prompt_logprobs),
        skip_special_tokens=_given(fields.skip_special_tokens, True),
        thinking_token_budget=asked.thinking_token_budget,
    )


def _budget(fields: GenerationFields) -> int | None:
    return _agreed("thinking_token_budget", fields.thinking_token_budget, "thinking_budget", fields.thinking_budget)


def _check_best_of(body: CompletionRequest) -> None:
    if body.best_of is not None and body.best_of != _given(body.n, 1):
        raise InvalidRequest(
            f"best_of is {body.best_of} but n is {_given(body.n, 1)}; ranking more choices than are returned is "
            "not available, so leave best_of out",
            "best_of",
        )
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens is 0, which asks for nothing; use at least 1, or echo", "max_tokens")


def _prompt_logprobs(fields: GenerationFields, asked: int | None) -> int | None:
    if fields.prompt_logprobs is not None and fields.stream:
        raise InvalidRequest("prompt_logprobs are not given in a stream; set stream to false", "prompt_logprobs")
    return asked


def token_biases(bias: dict[str, float]) -> dict[int, float]:
    """Biases by token id. Raises ``InvalidRequest`` for keys that are none."""
    return {_token_id(key): value for key, value in bias.items()}


def _token_id(key: str) -> int:
    """A token id written as an object key. Only plain digits count: ``int`` itself would take ``" ٣"``."""
    if len(key) <= 19 and key.isascii() and key.lstrip("-").isdigit() and key.count("-") <= 1:
        return int(key)
    shown = key if len(key) <= 40 else key[:40] + "..."
    raise InvalidRequest(f"logit_bias has the key {shown!r}, which is not a token id", "logit_bias")


def _allowed(token_ids: list[int] | None) -> tuple[int, ...]:
    if token_ids is not None and not token_ids:
        raise InvalidRequest("allowed_token_ids is empty, which allows nothing; leave it out", "allowed_token_ids")
    return tuple(token_ids or ())


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _agreed(name: str, value: T | None, alias: str, alias_value: T | None) -> T | None:
    """The value of a field that has two names; both may be given only if they agree."""
    if value is not None and alias_value is not None and value != alias_value:
        raise InvalidRequest(f"{name} is {value} but {alias} is {alias_value}; send one of them", alias)
    return alias_value if value is None else value
