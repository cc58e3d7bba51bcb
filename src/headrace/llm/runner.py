"""Drives an engine from the caller's own thread until the caller's requests are done.

Owns the routing of outputs to requests and the cleaning up when a caller stops early: whatever happens, no
request is left behind in the engine. It does not know prompts or models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.core.errors import InvalidRequest, Overloaded
from headrace.core.request import OutputError, RequestOutput, refused_outputs
from headrace.engine.loop import DrivenEngine
from headrace.llm.interrupts import DeferredInterrupt
from headrace.llm.outputs import OutputCollector


class Runner:
    """Runs requests on one engine. Not thread-safe; several generators of one thread may be interleaved."""

    def __init__(self, engine: DrivenEngine) -> None:
        self._engine = engine
        self._collectors: dict[str, OutputCollector] = {}

    def run(self, collectors: Sequence[OutputCollector], on_finished: Callable[[], None]) -> None:
        """Run all to their end; ``on_finished`` is called once for each.

        Raises ``InvalidRequest`` if the engine cannot take one of them, and ``KeyboardInterrupt`` between
        two steps; then none of them is left in the engine. One that is refused because its targets cannot be
        met ends with an error, and the others run.
        """
        with DeferredInterrupt() as interrupt:
            try:
                self._submit(collectors)
                waiting = list(collectors)
                while waiting:
                    self._step(interrupt)
                    for _ in range(sum(collector.is_finished for collector in waiting)):
                        on_finished()
                    waiting = [collector for collector in waiting if not collector.is_finished]
            finally:
                self._abort(collectors)

    def stream(self, collector: OutputCollector) -> Iterator[RequestOutput]:
        """Run one request, yielding its outputs as they come; closing the iterator aborts it."""
        unread: list[RequestOutput] = []
        collector.listener = unread.append
        try:
            self._submit([collector])
            while not collector.is_finished or unread:
                yield from unread
                unread.clear()
                if not collector.is_finished:
                    with DeferredInterrupt() as interrupt:
                        self._step(interrupt)
        finally:
            self._abort([collector])

    def _submit(self, collectors: Sequence[OutputCollector]) -> None:
        for number, collector in enumerate(collectors):
            try:
                self._engine.submit(collector.request)
            except InvalidRequest as error:
                where = f"prompt {number} of {len(collectors)}: " if len(collectors) > 1 else ""
                raise InvalidRequest(where + error.message, error.param) from error
            except Overloaded as error:
                for output in refused_outputs(collector.request, OutputError.of(error)):
                    collector.add(output)
                continue
            self._collectors[collector.request.request_id] = collector

    def _step(self, interrupt: DeferredInterrupt) -> None:
        refusal: InvalidRequest | None = None
        for output in self._engine.step():
            collector = self._collectors[output.request_id]
            if output.error is not None and output.error.kind == InvalidRequest.__name__:
                refusal = InvalidRequest(output.error.message, output.error.param)
            collector.add(output)
            if collector.is_finished:
                del self._collectors[output.request_id]
        if interrupt.is_pending:
            raise KeyboardInterrupt
        if refusal is not None:
            raise refusal

    def _abort(self, collectors: Sequence[OutputCollector]) -> None:
        """End those still running; their last outputs are reported by the engine's next step."""
        running = [c.request.request_id for c in collectors if c.request.request_id in self._collectors]
        for request_id in running:
            self._engine.abort(request_id)
        while any(request_id in self._collectors for request_id in running):
            self._step(DeferredInterrupt())
