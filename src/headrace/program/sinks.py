"""Where a program's state puts what the program appends: into streams that run, or into nodes that are recorded.

Owns the protocols only, so that states need not know which of the two they write to.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Protocol

from headrace.program.captures import Capture
from headrace.program.document import Document
from headrace.program.ir import JoinMode, Node, Select, Value
from headrace.program.placeholders import Placeholder
from headrace.program.run import RunUsage


class AsyncView(Protocol):
    """``View`` for readers on an event loop."""

    async def capture(self, name: str) -> Capture: ...

    async def document(self) -> tuple[Document, str]: ...

    def pieces(self, name: str | None) -> AsyncGenerator[str, None]: ...


class View(Protocol):
    """Reading one text. Waits for just what is read."""

    def capture(self, name: str) -> Capture: ...

    def document(self) -> tuple[Document, str]:
        """The document so far and its transcript."""
        ...

    def pieces(self, name: str | None) -> Iterator[str]:
        """The text, or that of one capture, as it comes."""
        ...

    def usage(self) -> RunUsage: ...

    def on_loop(self) -> AsyncView: ...


class Sink(Protocol):
    """Takes one text's nodes. ``where`` is the program's line; everything raises ``ProgramError`` that names it."""

    def append(self, nodes: Sequence[Node], where: str) -> None: ...

    def fork(self, number: int, where: str) -> Sequence[Sink]: ...

    def join(self, children: Sequence[Sink], mode: JoinMode, where: str) -> None:
        """Join what ``fork`` gave."""
        ...

    def case(self, on: Select | Value) -> Recorder:
        """A recorder of what may follow from here once it is known what ``on`` says."""
        ...

    def ref(self, name: str, where: str) -> Placeholder:
        """A capture that need not be there yet."""
        ...

    def view(self, where: str) -> View: ...


class Recorder(Sink, Protocol):
    """A sink that keeps the nodes."""

    def body(self) -> tuple[Node, ...]: ...
