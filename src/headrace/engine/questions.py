"""What a client has asked its engine and not been told yet. Everything here runs on the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.core.errors import HeadraceError
from headrace.core.timeline import SequenceTimeline
from headrace.engine.messages import AskTimeline


class Questions:
    """Pairs answers with those who wait for them."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[list[SequenceTimeline]]] = {}
        self._next_id = 0

    async def ask_timeline(self, request_id: str, send: Callable[[AskTimeline], None]) -> list[SequenceTimeline]:
        """The engine's answer. Raises what ``send`` raises, and what ``fail_all`` is given meanwhile."""
        question_id, self._next_id = self._next_id, self._next_id + 1
        answer: asyncio.Future[list[SequenceTimeline]] = asyncio.get_running_loop().create_future()
        self._waiting[question_id] = answer
        try:
            send(AskTimeline(question_id, request_id))
            return await answer
        finally:
            del self._waiting[question_id]

    def answer(self, question_id: int, answer: list[SequenceTimeline]) -> None:
        """Tell who asked, if he still waits."""
        waiting = self._waiting.get(question_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail_all(self, error: HeadraceError) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
