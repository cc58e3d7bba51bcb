"""The text of one stream as it comes, for whoever reads along.

Owns the pieces so far and the waiting for more. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class Feed:
    """Pieces of text, each with the name of the capture it belongs to. Ends once, with an error or without."""

    def __init__(self) -> None:
        self._pieces: list[tuple[str | None, str]] = []
        self._is_over = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self._onward: Feed | None = None

    def put(self, name: str | None, text: str) -> None:
        if text:
            self._pieces.append((name, text))
            self._wake()
            if self._onward is not None:
                self._onward.put(name, text)

    def flow_into(self, other: Feed) -> None:
        """Put everything into ``other`` too: what there is now, and what comes."""
        for name, text in self._pieces:
            other.put(name, text)
        self._onward = other

    def end(self, error: BaseException | None = None) -> None:
        """Nothing comes any more; readers get ``error`` once they have read what there is."""
        if not self._is_over:
            self._is_over, self._error = True, error
            self._wake()

    async def read(self, name: str | None = None) -> AsyncGenerator[str, None]:
        """Every piece from the beginning, or those of one capture."""
        position = 0
        while True:
            while position < len(self._pieces):
                owner, text = self._pieces[position]
                position += 1
                if name is None or owner == name:
                    yield text
            if self._is_over:
                break
            changed = self._changed
            await changed.wait()
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
