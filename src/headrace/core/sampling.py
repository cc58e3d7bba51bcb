"""What to sample: the one validated description of how a request's tokens are chosen.

Names and meanings are vLLM's ``SamplingParams``. Every field is bounded and finite-checked here, once, so
that no later stage (scheduler, kernels) has to distrust it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from headrace.core.constraint import StructuredOutputsParams
from headrace.core.errors import InvalidRequest

MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 4096
MAX_STOP_TOKEN_IDS = 256
MAX_LOGPROBS = 100
MAX_LOGIT_BIAS = 1024
MAX_LOGPROB_TOKEN_IDS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256
MAX_ALLOWED_TOKEN_IDS = 1 << 20
MAX_TOKEN_ID = (1 << 31) - 1
MAX_TOKENS = (1 << 31) - 1
MAX_SEED = (1 << 63) - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose tokens; immutable, validated on construction.

    ``max_tokens=None`` means "up to the end of the context". ``seed=None`` lets the engine's front end
    draw one, so that a request is reproducible after a restart even when the caller did not care.
    ``logprobs`` and ``prompt_logprobs`` are the number of alternatives to report besides the chosen
    token; ``0`` reports the chosen token alone and ``None`` reports nothing. ``structured_outputs`` says what
    form the output must have. After ``thinking_token_budget`` tokens of reasoning a model that reasons before it
    answers has to begin its answer; ``None`` lets it reason as long as it likes.

    Raises ``InvalidRequest`` naming the field, the value and the limit.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    logprob_token_ids: tuple[int, ...] = ()
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    thinking_token_budget: int | None = None

    def __post_init__(self) -> None:
        self._canonicalise()
        self._check_shape()
        self._check_stops()
        self._check_token_sets()

    def _canonicalise(self) -> None:
        """Take what Python callers of vLLM write: ``stop="x"``, lists, and ``None`` for nothing."""
        for name in ("stop", "stop_token_ids", "allowed_token_ids", "bad_words", "logprob_token_ids"):
            value = getattr(self, name)
            if isinstance(value, tuple):
                continue
            if value is not None and not isinstance(value, str | list):
                raise InvalidRequest(f"{name} must be a list; got {_shown(value)}", name)
            items = () if value is None else (value,) if isinstance(value, str) else tuple(value)
            msgspec.structs.force_setattr(self, name, items)
        if self.logprob_token_ids and self.logprobs is None:
            msgspec.structs.force_setattr(self, "logprobs", 0)
        bias: object = self.logit_bias
        if bias is None:
            msgspec.structs.force_setattr(self, "logit_bias", {})
        elif not isinstance(bias, dict):
            raise InvalidRequest(f"logit_bias must map token ids to numbers; got {_shown(bias)}", "logit_bias")

    def _check_shape(self) -> None:
        _check_int("n", self.n, 1, MAX_N)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequest("top_p is 0 but must be in (0, 1]; use temperature 0 for greedy", "top_p")
        _check_int("top_k", self.top_k, -1, MAX_TOKENS)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if self.seed is not None:
            _check_int("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _check_int("min_tokens", self.min_tokens, 0, MAX_TOKENS)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens} but max_tokens is {self.max_tokens}; lower min_tokens",
                "min_tokens",
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _check_int(name, value, 0, MAX_LOGPROBS)
        if self.thinking_token_budget is not None:
            _check_int("thinking_token_budget", self.thinking_token_budget, 0, MAX_TOKENS)
        _check_int("prompt_logprobs_start", self.prompt_logprobs_start, 0, MAX_TOKENS)

    def _check_stops(self) -> None:
        _check_count("stop", len(self.stop), MAX_STOP_STRINGS)
        for text in self.stop:
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARS:
                raise InvalidRequest(
                    f"each stop string must have 1 to {MAX_STOP_CHARS} characters; got {_shown(text)}", "stop"
                )
        _check_count("stop_token_ids", len(self.stop_token_ids), MAX_STOP_TOKEN_IDS)
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, MAX_TOKEN_ID)

    def _check_token_sets(self) -> None:
        _check_count("logit_bias", len(self.logit_bias), MAX_LOGIT_BIAS)
        for token_id, bias in self.logit_bias.items():
            _check_int("logit_bias", token_id, 0, MAX_TOKEN_ID)
            _check_float("logit_bias", bias, -100.0, 100.0)
        _check_count("allowed_token_ids", len(self.allowed_token_ids), MAX_ALLOWED_TOKEN_IDS)
        for token_id in self.allowed_token_ids:
            _check_int("allowed_token_ids", token_id, 0, MAX_TOKEN_ID)
        _check_count("logprob_token_ids", len(self.logprob_token_ids), MAX_LOGPROB_TOKEN_IDS)
        for token_id in self.logprob_token_ids:
            _check_int("logprob_token_ids", token_id, 0, MAX_TOKEN_ID)
        _check_count("bad_words", len(self.bad_words), MAX_BAD_WORDS)
        for word in self.bad_words:
            if not isinstance(word, str) or not 1 <= len(word) <= MAX_BAD_WORD_CHARS:
                raise InvalidRequest(
                    f"each bad word must have 1 to {MAX_BAD_WORD_CHARS} characters; got {_shown(word)}", "bad_words"
                )

    @property
    def is_greedy(self) -> bool:
        """Whether the token is the arg max of the adjusted logits."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def needs_history(self) -> bool:
        """Whether sampling a token depends on the tokens before it, beyond the logits."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
            or bool(self.bad_words)
        )

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise ``InvalidRequest`` if a token id lies outside ``[0, vocab_size)``."""
        named: Mapping[str, object] = {
            "logit_bias": self.logit_bias,
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids,
            "logprob_token_ids": self.logprob_token_ids,
        }
        for name, ids in named.items():
            for token_id in ids:  # type: ignore[attr-defined]
                if token_id >= vocab_size:
                    raise InvalidRequest(
                        f"{name} names token {token_id} but the vocabulary has {vocab_size} tokens "
                        f"(ids 0 to {vocab_size - 1})",
                        name,
                    )


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer; got {_shown(value)}", name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} is {value} but must be between {low} and {high}", name)


def _check_float(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number; got {_shown(value)}", name)
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequest(f"{name} is {value} but must be between {low:g} and {high:g}", name)


def _check_count(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise InvalidRequest(f"{name} has {count} entries but at most {limit} are allowed", name)


def _shown(value: object) -> str:
    """A short, address-free rendering of a caller's value."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "...")
    return repr(value) if isinstance(value, int | float | bool | None) else type(value).__name__
