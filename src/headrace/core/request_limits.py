"""How much one request may ask for: the operator's limits, below the bounds of ``core/sampling.py``.

Those bounds hold for everyone, also offline, and keep every later stage safe; these are what a server lets its
clients do. Does not know how a request came, nor the model.
"""

from __future__ import annotations

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.sampling import MAX_LOGPROBS, MAX_N, MAX_STOP_CHARS, MAX_STOP_STRINGS, SamplingParams

MAX_CACHE_SALT_CHARS = 4096
MAX_LISTED = 1 << 16
"""Bound of the limits on lists that a body may hold."""


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Inclusive limits, by default the bounds themselves. Each is a setting of the same name (``core/config.py``)."""

    max_n: int = MAX_N
    max_logprobs: int = MAX_LOGPROBS
    max_stop_strings: int = MAX_STOP_STRINGS
    max_stop_chars: int = MAX_STOP_CHARS
    max_cache_salt_chars: int = MAX_CACHE_SALT_CHARS
    max_prompts: int = MAX_LISTED
    max_messages: int = MAX_LISTED
    max_tools: int = MAX_LISTED

    def check(self, sampling: SamplingParams, cache_salt: str) -> None:
        """Raise ``InvalidRequest`` naming the field, the value, the limit and the setting that moves it."""
        check_limit("n", "n is {}", sampling.n, "max_n", self.max_n)
        for name, count in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
            check_limit(name, name + " is {}", count or 0, "max_logprobs", self.max_logprobs)
        check_limit("stop", "stop has {} entries", len(sampling.stop), "max_stop_strings", self.max_stop_strings)
        longest = max(map(len, sampling.stop), default=0)
        check_limit("stop", "stop has a string of {} characters", longest, "max_stop_chars", self.max_stop_chars)
        check_limit(
            "cache_salt",
            "cache_salt has {} characters",
            len(cache_salt),
            "max_cache_salt_chars",
            self.max_cache_salt_chars,
        )


BOUNDS = RequestLimits()
"""The limits of a request that nobody else sent."""


def check_limit(param: str, what: str, value: int, setting: str, limit: int) -> None:
    """Refuse a ``value`` above ``limit``. ``what`` is how the value is told, ``setting`` what the limit is called."""
    if value > limit:
        flag = "--" + setting.replace("_", "-")
        raise InvalidRequest(
            f"{what.format(value)} but at most {limit} are allowed here; send less, or let the operator raise {flag}",
            param,
        )
