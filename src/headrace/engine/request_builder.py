"""From tokens and sampling parameters to a ``Request``: the checks that need to know the model.

Owns the limits a prompt is held to, the length rule of ``max_tokens``, the tokenized forms of bad words
and the drawing of seeds. The HTTP server and the offline API build every request here, so both refuse the
same things in the same words. It does not know text prompts, templates or the engine's load.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import InvalidRequest
from headrace.core.request import Request
from headrace.core.request_limits import BOUNDS, RequestLimits
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import DEFAULT_TERMS, ServiceTerms
from headrace.engine.reasoning import ReasoningHabit

MAX_PRIORITY = (1 << 31) - 1
_SEED_BITS = 63


class TextEncoder(Protocol):
    """The one thing needed of a tokenizer."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Builds requests for one model; immutable, safe to share between threads.

    ``default_seed`` is the seed of requests that bring none; ``None`` draws a fresh one for each. ``limits`` are what
    a client may ask for; where there are no clients, the bounds of ``SamplingParams`` are enough. ``reasoning`` is how
    the model reasons before it answers, if it does.
    """

    max_model_len: int
    vocab_size: int
    encoder: TextEncoder
    default_seed: int | None = None
    limits: RequestLimits = BOUNDS
    reasoning: ReasoningHabit | None = None

    def build(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        arrival_time: float,
        terms: ServiceTerms = DEFAULT_TERMS,
        cache_salt: str = "",
    ) -> Request:
        """Check everything and return the request, with ``max_tokens`` and ``seed`` always set.

        Raises ``InvalidRequest`` naming the field, the value and the limit. Costs O(prompt).
        """
        self._check_prompt(prompt_token_ids)
        sampling.check_token_ids(self.vocab_size)
        constraint = None if sampling.structured_outputs is None else sampling.structured_outputs.constraint()
        self.limits.check(sampling, cache_salt)
        _check_priority(terms.priority)
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(prompt_token_ids),
            sampling=self._with_max_tokens(_without_form(sampling), len(prompt_token_ids)),
            seed=self._seed(sampling),
            arrival_time=arrival_time,
            priority=terms.priority,
            cache_salt=cache_salt,
            bad_word_token_ids=self._bad_word_token_ids(sampling.bad_words),
            service_level=terms.level,
            service_class=terms.service_class,
            tenant=terms.tenant,
            weight=terms.weight,
            program=terms.program,
        )
        return self.held_to(request, constraint)

    def held_to(self, request: Request, constraint: Constraint | None) -> Request:
        """``request`` with the form its answer must have; what the model reasons before that stays free.

        Raises ``InvalidRequest`` for a budget of a model that does not reason.
        """
        budget = request.sampling.thinking_token_budget
        if self.reasoning is None:
            if budget is not None:
                raise InvalidRequest(
                    f"thinking_token_budget is {budget} but this model does not reason between tags; leave it out",
                    "thinking_token_budget",
                )
            return msgspec.structs.replace(request, constraint=constraint)
        reasoning = self.reasoning.before_answer(request.prompt_token_ids, budget)
        if constraint is None and (reasoning is None or budget is None):
            return request
        form = Constraint(ConstraintKind.ANY_TEXT, param="thinking_token_budget") if constraint is None else constraint
        return msgspec.structs.replace(request, constraint=msgspec.structs.replace(form, reasoning=reasoning))

    def _check_prompt(self, token_ids: Sequence[int]) -> None:
        num_tokens = len(token_ids)
        if num_tokens == 0:
            raise InvalidRequest("the prompt is empty; it needs at least one token", "prompt")
        if num_tokens >= self.max_model_len:
            raise InvalidRequest(
                f"the prompt has {num_tokens} tokens but max_model_len is {self.max_model_len} and at least one "
                f"token must be left for the output; shorten the prompt to {self.max_model_len - 1} tokens",
                "prompt",
            )
        for token_id in token_ids:
            if type(token_id) is not int:
                raise InvalidRequest(f"prompt token ids must be integers; got {type(token_id).__name__}", "prompt")
            if not 0 <= token_id < self.vocab_size:
                raise InvalidRequest(
                    f"the prompt has token id {token_id} but the vocabulary has {self.vocab_size} tokens "
                    f"(ids 0 to {self.vocab_size - 1})",
                    "prompt",
                )

    def _with_max_tokens(self, sampling: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """``sampling`` with a ``max_tokens`` that fits: none given means up to the end of the context."""
        room = self.max_model_len - num_prompt_tokens
        if sampling.max_tokens is not None:
            if sampling.max_tokens > room:
                raise InvalidRequest(
                    f"max_tokens {sampling.max_tokens} + prompt {num_prompt_tokens} = "
                    f"{sampling.max_tokens + num_prompt_tokens} > max_model_len {self.max_model_len}; "
                    f"lower max_tokens to {room}",
                    "max_tokens",
                )
            return sampling
        if sampling.min_tokens > room:
            raise InvalidRequest(
                f"min_tokens {sampling.min_tokens} + prompt {num_prompt_tokens} = "
                f"{sampling.min_tokens + num_prompt_tokens} > max_model_len {self.max_model_len}; "
                f"lower min_tokens to {room}",
                "min_tokens",
            )
        return msgspec.structs.replace(sampling, max_tokens=room)

    def _seed(self, sampling: SamplingParams) -> int:
        if sampling.seed is not None:
            return sampling.seed
        if self.default_seed is not None:
            return self.default_seed
        return secrets.randbits(_SEED_BITS)

    def _bad_word_token_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Token rows that spell each word at the start of a text and after a space, without repeats."""
        rows: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.lstrip(" ")
            for text in (bare, " " + bare):
                row = tuple(self.encoder.encode(text, add_special_tokens=False)) if bare else ()
                if not row:
                    raise InvalidRequest(f"the bad word {word!r} has no tokens; leave it out", "bad_words")
                rows[row] = None
        return tuple(rows)


def _without_form(sampling: SamplingParams) -> SamplingParams:
    """``sampling`` without its structured outputs, which travel as the request's constraint."""
    if sampling.structured_outputs is None:
        return sampling
    return msgspec.structs.replace(sampling, structured_outputs=None)


def _check_priority(priority: int) -> None:
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequest(
            f"priority is {priority} but must be between {-MAX_PRIORITY} and {MAX_PRIORITY}", "priority"
        )
