"""vLLM's ``stream_interval``: fewer, larger events for clients that ask for them.

Owns which deltas wait. A sequence's first delta and its last never do; in between they are sent once
``interval`` tokens have come together. Nothing is lost: what waits when the generation fails is sent before the
failure is told. It does not know events or replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.engine.streams import merge_outputs
from headrace.server.generation import Delta


class DeltaSource(Protocol):
    """Where deltas come from; ``generation.Generation`` says what ``next`` promises."""

    async def next(self, timeout_s: float) -> list[Delta] | None: ...


class SpacedDeltas:
    """The deltas of ``source``, each sequence's at least ``interval`` tokens apart."""

    def __init__(self, source: DeltaSource, interval: int) -> None:
        self._source = source
        self._interval = interval
        self._held: dict[tuple[int, int], Delta] = {}
        self._begun: set[tuple[int, int]] = set()
        self._failure: Exception | None = None

    async def next(self, timeout_s: float) -> list[Delta] | None:
        """See ``Generation.next``; an empty list means that for ``timeout_s`` seconds nothing came at all."""
        while self._failure is None:
            try:
                deltas = await self._source.next(timeout_s)
            except Exception as error:
                self._failure = error
                break
            if not deltas:
                return deltas
            if ready := self._take(deltas):
                return ready
        if held := list(self._held.values()):
            self._held = {}
            return held
        raise self._failure

    def _take(self, deltas: Sequence[Delta]) -> list[Delta]:
        ready = []
        for delta in deltas:
            key = delta.prompt_index, delta.output.index
            held = self._held.pop(key, None)
            joined = delta if held is None else Delta(key[0], merge_outputs([held.output, delta.output]))
            if self._may_go(key, joined):
                ready.append(joined)
            else:
                self._held[key] = joined
        return ready

    def _may_go(self, key: tuple[int, int], delta: Delta) -> bool:
        output = delta.output
        if key not in self._begun and output.token_ids:
            self._begun.add(key)
            return True
        return output.finish_reason is not None or len(output.token_ids) >= self._interval
