"""Sequences for cache tests: what the cache reads of a request is its tokens and its salt."""

from __future__ import annotations

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.core.sequence import Sequence


def make_sequence(seq_id: int, token_ids: list[int], cache_salt: str = "") -> Sequence:
    request = Request(
        request_id=f"request-{seq_id}",
        prompt_token_ids=token_ids,
        sampling=SamplingParams(),
        seed=0,
        arrival_time=0.0,
        cache_salt=cache_salt,
    )
    return Sequence(seq_id, request, 0, frozenset())


def admit(kv: KVCacheManager, seq: Sequence) -> None:
    """Acquire with all the cache has, as a scheduler does."""
    kv.acquire(seq, seq.num_tokens - 1)


def compute(kv: KVCacheManager, seq: Sequence, num_tokens: int) -> None:
    """Pretend that a step computed the next tokens; there must be room."""
    has_room = kv.extend(seq, num_tokens)
    assert has_room
    seq.num_computed_tokens += num_tokens
    kv.commit(seq)


def leave_cached(kv: KVCacheManager, seq: Sequence) -> None:
    """Run a sequence from admission to its end, so that all its full blocks stay in the cache."""
    admit(kv, seq)
    compute(kv, seq, seq.num_pending_tokens)
    kv.release(seq)
