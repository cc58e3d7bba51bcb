"""An event loop on a thread of its own with a backend on it, for programs written as plain Python.

Owns that thread and the way from the program's thread to it. It does not know programs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

from headrace.core.errors import EngineDead
from headrace.program.backend import Backend
from headrace.program.speculation import Speculation

T = TypeVar("T")

OpenBackend = Callable[[], Awaitable[Backend]]


class Runtime:
    """Runs programs on a backend. Use it as a context manager, or call ``close``.

    ``open_backend`` is awaited on the runtime's own loop when the first program runs. All methods may be called from
    any thread but the loop's own. ``speculation`` is what its programs begin on a guess.
    """

    def __init__(self, open_backend: OpenBackend) -> None:
        self._open_backend = open_backend
        self.speculation = Speculation()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="program", daemon=True)
        self._lock = threading.Lock()
        self._backend: Backend | None = None
        self._is_closed = False

    @property
    def backend(self) -> Backend:
        """The backend, opened if it is not yet. Raises what opening it raises."""
        with self._lock:
            if self._is_closed:
                raise EngineDead("the runtime was closed; make a new one")
            if self._thread.ident is None:
                self._thread.start()
            if self._backend is None:
                self._backend = self.wait(_awaited(self._open_backend()))
            return self._backend

    def call_soon(self, action: Callable[[], None]) -> None:
        """Do something on the loop, after everything asked before."""
        self._loop.call_soon_threadsafe(action)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work on the loop and wait for its result; an interrupt ends the work too."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def wait_async(self, work: Coroutine[Any, Any, T]) -> T:
        """As ``wait``, for callers on an event loop of their own."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of an asynchronous generator of the loop, none of them ``None``, one by one."""
        try:
            while True:
                item = self.wait(_next(items))
                if item is None:
                    return
                yield item
        finally:
            self.wait(items.aclose())

    def close(self) -> None:
        """Close the backend and end the thread; programs that still run fail."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._thread.ident is not None:
                if self._backend is not None:
                    self.wait(self._backend.close())
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
            self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _next(items: AsyncGenerator[T, None]) -> T | None:
    return await anext(items, None)
