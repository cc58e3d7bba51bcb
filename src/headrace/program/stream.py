"""A text that grows while its program runs: nodes go in at once, and are done one after the other.

Owns the order within one text and the sharing between texts. A text is a chain of promises: appending a node promises
the document after it, and its work waits for the document before it. So a fork is two chains with a common start, a
join waits for the ends of several, and nothing waits for what it does not need. Belongs to one event loop. It does
not know Python's side of a program, engines or servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from headrace.core.errors import InvalidRequest
from headrace.program import calls
from headrace.program.captures import NOT_TAKEN, Capture, read_value, shown_text
from headrace.program.document import Document
from headrace.program.feed import Feed
from headrace.program.ir import Gen, JoinMode, RoleBegin, RoleEnd, Select, Text, Value
from headrace.program.run import Run

Leaf = Text | Value | RoleBegin | RoleEnd | Gen | Select
"""The nodes that have no bodies of their own."""

Promise = asyncio.Future[Capture]
T = TypeVar("T")


class Stream:
    """One growing text of a run. ``path`` stands before the names of its captures where others see them."""

    def __init__(
        self, run: Run, tail: asyncio.Future[Document], captures: Mapping[str, Promise], path: str = ""
    ) -> None:
        self.run = run
        self.path = path
        self.feed = Feed()
        self._start = tail
        self._tail = tail
        self._captures = dict(captures)
        self._own: dict[str, Promise] = {}

    @classmethod
    def root(cls, run: Run, arguments: Mapping[str, object]) -> Stream:
        """The text a run begins with: empty, with the program's arguments as captures."""
        return cls(
            run,
            kept_promise(run, Document()),
            {name: kept_promise(run, Capture(value)) for name, value in arguments.items()},
        )

    @property
    def own_names(self) -> list[str]:
        """Names captured by this text itself, not by those it forked from."""
        return list(self._own)

    def append(self, node: Leaf, where: str) -> None:
        """Promise what ``node`` will append and capture."""
        match node:
            case Text():
                self._extend(lambda document: self._show(document, node.text), where)
            case Value():
                promise = self.promised(node.name)
                self._extend(lambda document: self._show_value(document, promise), where)
            case RoleBegin():
                self._extend(lambda document: _done(document.begin(node.role)), where)
            case RoleEnd():
                self._extend(lambda document: _done(document.end()), where)
            case Gen():
                promise = self._promise(node.name)
                self._extend(lambda document: self._generate(node, document, promise), where)
            case Select():
                self.select(node, where)

    def select(self, node: Select, where: str) -> Promise:
        """Append a selection and return the promise of its choice."""
        promise = self._promise(node.name)
        self._extend(lambda document: self._select(node, document, promise), where)
        return promise

    def fork(self, path: str) -> Stream:
        """Another text that goes on from here, and whose captures others see under ``path``."""
        return Stream(self.run, self._tail, self._captures, f"{self.path}{path}.")

    def continuation(self) -> Stream:
        """The same text once more, from here, to be written later than what is appended to this one."""
        again = Stream(self.run, self._tail, self._captures, self.path)
        again.feed = self.feed
        return again

    def adopt(self, child: Stream) -> None:
        """Make what ``child`` and its own forks capture readable here under their paths."""
        self._captures |= {name: promise for name, promise in child._captures.items() if name.startswith(child.path)}

    def join(self, children: Sequence[Stream], mode: JoinMode, where: str) -> None:
        """Bring back what branches captured, as lists, or append their texts."""
        if mode is JoinMode.CONCATE_AND_APPEND:
            self._extend(lambda document: self._show_texts(document, children), where)
            return
        for name in dict.fromkeys(name for child in children for name in child._own):
            promises = [child._own[name] for child in children if name in child._own]
            self._promise_kept_by(self._promise(name), partial(_gathered, promises), where)

    def go_on_as(self, choose_case: Callable[[], Awaitable[Stream]], names: Sequence[str], where: str) -> None:
        """Go on as another text, which ``choose_case`` makes of this one as it is now.

        ``names`` are all that it may capture; those it does not become ``None``.
        """
        case: asyncio.Future[Stream] = self.run.promise()
        self._promise_kept_by(case, choose_case, where)
        for name in names:
            self._promise_kept_by(self._promise(name), partial(_capture_of, case, name), where)
        self._extend(lambda _: _document_of(case), where)

    def promised(self, name: str) -> Promise:
        """The promise of one capture. Raises ``InvalidRequest`` for a name that nothing captures."""
        promise = self._captures.get(name)
        if promise is None:
            known = ", ".join(map(repr, self._captures)) or "none"
            raise InvalidRequest(f"nothing captures {name!r} before this; the names so far are {known}")
        return promise

    async def capture(self, name: str) -> Capture:
        """Wait for one capture."""
        return await self.promised(name)

    async def document(self) -> Document:
        """Wait for everything appended so far."""
        return await self._tail

    def end_feed(self) -> None:
        """Let readers of the text come to an end after what was appended so far."""
        self._tail.add_done_callback(lambda tail: self.feed.end(tail.exception()))

    # -- doing ---------------------------------------------------------------------------------------

    def _extend(self, work: Callable[[Document], Awaitable[Document]], where: str) -> None:
        before, after = self._tail, self.run.promise()
        self._tail = after
        self._promise_kept_by(after, partial(_then, before, work), where)

    def _promise(self, name: str | None) -> Promise:
        promise: Promise = self.run.promise()
        if name is not None:
            self._captures[name] = self._captures[self.path + name] = self._own[name] = promise
        return promise

    def _promise_kept_by(self, promise: asyncio.Future[T], work: Callable[[], Awaitable[T]], where: str) -> None:
        async def keep() -> None:
            value = await work()
            if not promise.done():  # it is when the run failed meanwhile
                promise.set_result(value)

        self.run.spawn(keep, where)

    async def _show(self, document: Document, text: str) -> Document:
        extended = document.with_text(text)
        self.feed.put(None, text)
        return extended

    async def _show_value(self, document: Document, promise: Promise) -> Document:
        return await self._show(document, shown_text((await promise).value))

    async def _show_texts(self, document: Document, children: Sequence[Stream]) -> Document:
        for child in children:
            document = await self._show(document, (await child._tail).since(await child._start))
        return document

    async def _generate(self, node: Gen, document: Document, promise: Promise) -> Document:
        path = self.path + (node.name or "")

        def on_text(text: str) -> None:
            self.feed.put(node.name, text)
            if node.name is not None:
                self.run.hear_text(path, text)

        generated = await calls.generate(self.run, node, document, on_text)
        values = [read_value(text, node.value_type) for text in generated.texts]
        capture = Capture(values[0] if len(values) == 1 else values, calls.generation_meta(generated))
        self._keep(node.name, promise, capture)
        return document.with_text(generated.texts[0])

    async def _select(self, node: Select, document: Document, promise: Promise) -> Document:
        selection = await calls.select(self.run, node, document)
        self._keep(node.name, promise, Capture(selection.choice, selection.meta))
        self.feed.put(node.name, selection.choice)
        return document.with_text(selection.choice)

    def _keep(self, name: str | None, promise: Promise, capture: Capture) -> None:
        if not promise.done():
            promise.set_result(capture)
        if name is not None:
            self.run.keep(self.path + name, capture)


def kept_promise(run: Run, value: T) -> asyncio.Future[T]:
    """A promise that is kept already."""
    future: asyncio.Future[T] = run.promise()
    if not future.done():
        future.set_result(value)
    return future


async def _then(before: asyncio.Future[Document], work: Callable[[Document], Awaitable[Document]]) -> Document:
    return await work(await before)


async def _done(document: Document) -> Document:
    return document


async def _gathered(promises: Sequence[Promise]) -> Capture:
    return Capture([(await promise).value for promise in promises])


async def _capture_of(case: asyncio.Future[Stream], name: str) -> Capture:
    stream = await case
    return await stream.capture(name) if name in stream.own_names else NOT_TAKEN


async def _document_of(case: asyncio.Future[Stream]) -> Document:
    return await (await case).document()
