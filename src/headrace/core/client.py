"""The door to generation that every surface uses: in-process engine, engine process, router alike."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec

from headrace.core.request import Request, RequestOutput
from headrace.core.timeline import SequenceTimeline


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a started engine says about itself; enough for limits, ``/v1/models`` and the start block.

    ``num_host_blocks`` and ``num_disk_blocks`` lie below the KV cache's own. ``dtype`` names the formats of the
    weights, ``kernels`` the instruction set that was chosen, if there was one to choose.
    """

    model: str
    architecture: str
    dtype: str
    backend: str
    num_parameters: int
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    kv_cache_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_reqs: int = 256
    kv_cache_dtype: str = "float32"
    num_host_blocks: int = 0
    num_disk_blocks: int = 0
    kernels: str = ""
    weight_bytes: int = 0
    eos_token_ids: list[int] = []
    stage_times_s: dict[str, float] = {}

    @property
    def num_kv_tokens(self) -> int:
        return self.num_blocks * self.block_size


class TierUse(msgspec.Struct, frozen=True, array_like=True):
    """Blocks in the tiers below the KV cache, and those moved so far; ``num_failed`` fetches brought nothing back."""

    num_host_blocks: int
    num_disk_blocks: int
    num_offloaded: int
    num_restored: int
    num_spilled: int
    num_fetched: int
    num_dropped: int
    num_failed: int


class GrammarUse(msgspec.Struct, frozen=True, array_like=True):
    """What constraints have taken so far: grammars compiled or found in the cache, masks filled, tokens forced.

    Seconds are added up. ``mask_wait_s`` is the part of the masks' time that steps had to wait for. ``masked_mass``
    adds up, over ``num_masks`` rows, how likely a token was that the mask forbade.
    """

    num_compiled: int = 0
    num_cached: int = 0
    num_forced_tokens: int = 0
    compile_s: float = 0.0
    mask_s: float = 0.0
    mask_wait_s: float = 0.0
    num_masks: int = 0
    masked_mass: float = 0.0


class StepStats(msgspec.Struct, frozen=True, array_like=True):
    """The engine's state after a step, with counters that only grow since the engine started.

    ``jain_index`` says how evenly tenants were served of late, ``step_cost_error`` by how much the cost model
    misses the duration of a step, as the median of relative errors. ``num_waiting_by_reason`` and ``waited_s`` tell
    what waiting sequences wait for and how long they did so far, added up over sequences. ``num_free_seqs`` decode
    together in about the time of one; 0 while that is not known.
    """

    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_step_tokens: int
    num_step_samples: int
    step_s: float
    prefix_query_tokens: int
    prefix_hit_tokens: int
    num_preemptions: int
    num_evicted_blocks: int
    prefix_restored_tokens: int = 0
    tiers: TierUse | None = None
    jain_index: float = 1.0
    step_cost_error: float = 0.0
    num_waiting_by_reason: dict[str, int] = {}
    waited_s: dict[str, float] = {}
    grammars: GrammarUse = GrammarUse()
    num_free_seqs: int = 0


class EngineClient(Protocol):
    """Generates for many requests at once.

    ``generate`` yields deltas of all ``n`` sequences as they come and ends after each has had its last
    output; an output with ``finish_reason`` ERROR is data, not an exception. It raises ``InvalidRequest``
    for what the engine cannot take (longer than the pool), ``Overloaded`` when the queue is full and
    ``EngineDead`` when the engine is gone. Closing the iterator early aborts the request.
    """

    @property
    def info(self) -> EngineInfo: ...

    @property
    def is_ready(self) -> bool: ...

    def generate(self, request: Request) -> AsyncGenerator[RequestOutput, None]: ...

    async def abort(self, request_id: str) -> None:
        """End a request; unknown or finished ids are ignored."""
        ...


class ExplainingClient(EngineClient, Protocol):
    """An ``EngineClient`` that also tells where the time of its requests went."""

    async def timeline(self, request_id: str) -> list[SequenceTimeline]:
        """Where the time of a request's sequences went, of a running or a recent one; empty if it is not known.

        Raises ``EngineDead`` when there is no engine to ask.
        """
        ...


class GuessingClient(EngineClient, Protocol):
    """An ``EngineClient`` that also takes requests on a guess, and says whether there is room for any."""

    @property
    def num_spare_seqs(self) -> int:
        """How many more sequences would now decode beside those that run at no cost to them."""
        ...

    async def confirm(self, request_id: str) -> None:
        """Say that a guess was right: the request is served like any other from now on. Unknown ids are ignored."""
        ...


class ServedClient(ExplainingClient, GuessingClient, Protocol):
    """An ``EngineClient`` with what a server offers its operator besides."""

    async def clear_prefix_cache(self) -> None:
        """Forget every cached prefix that no sequence uses, before anything asked for after this.

        Raises ``EngineDead`` when there is no engine.
        """
        ...
