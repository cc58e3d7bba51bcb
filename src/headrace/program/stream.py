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
from headrace.program.ir import (
    Gen,
    JoinMode,
    Leaf,
    Node,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    Text,
    Value,
    captured_names,
    num_path_tokens,
)
from headrace.program.reasoning import REASONING_SUFFIX, split_all
from headrace.program.run import Run

Promise = asyncio.Future[Capture]
T = TypeVar("T")


class Stream:
    """One growing text of a run. ``path`` stands before the names of its captures where others see them.

    ``onward`` is the text that goes on once this one is done, as far as is known: the parent of a fork.
    """

    def __init__(
        self,
        run: Run,
        tail: asyncio.Future[Document],
        captures: Mapping[str, Promise],
        path: str = "",
        onward: Stream | None = None,
    ) -> None:
        self.run = run
        self.path = path
        self._onward = onward
        self._num_own_tokens_left = 0
        self.feed = Feed()
        self._start = tail
        self._tail = tail
        self._captures = dict(captures)
        self._own: dict[str, Promise] = {}
        self._forks: list[Stream] = []
        self._forks_before: list[Stream] = [] if onward is None else [*onward._forks_before, *onward._forks]
        self._scopes: dict[str, asyncio.Future[Document]] = {}

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

    @property
    def num_tokens_left(self) -> int:
        """Most tokens that are still to be generated here and after it, of what has been appended so far."""
        return self._num_own_tokens_left + (0 if self._onward is None else self._onward.num_tokens_left)

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
            case ScopeBegin():
                self._scopes[node.name] = self._tail
            case ScopeEnd():
                self._end_scope(node.name, where)
            case Gen():
                promise, thoughts = self._promise(node.name), self._promise_of_thoughts(node)
                self._num_own_tokens_left += num_path_tokens([node])
                self._extend(lambda document: self._generate(node, document, promise, thoughts), where)
            case Select():
                self.select(node, where)

    def select(self, node: Select, where: str) -> Promise:
        """Append a selection and return the promise of its choice."""
        promise = self._promise(node.name)
        self._extend(lambda document: self._select(node, document, promise), where)
        return promise

    def fork(self, path: str) -> Stream:
        """Another text that goes on from here, and whose captures others see under ``path``."""
        child = Stream(self.run, self._tail, self._captures, f"{self.path}{path}.", self)
        self._forks.append(child)
        return child

    def continuation(self) -> Stream:
        """The same text once more, from here, to be written later than what is appended to this one."""
        again = Stream(self.run, self._tail, self._captures, self.path, self)
        again.feed = self.feed
        return again

    def supposing(self, run: Run, text: str, known: Mapping[str, Capture]) -> Stream:
        """The same text once more, from here, in a run of its own, as if it went on with ``text`` and captured
        ``known``."""
        tail = run.promise()

        async def keep() -> None:
            document = (await self.document()).with_text(text)
            if not tail.done():
                tail.set_result(document)

        run.spawn(keep, "")
        captures = {**self._captures, **{name: kept_promise(run, capture) for name, capture in known.items()}}
        return Stream(run, tail, captures, self.path, self)

    def join(self, children: Sequence[Stream], mode: JoinMode, where: str) -> None:
        """Bring back what branches captured, as lists, or append their texts."""
        if mode is JoinMode.CONCATE_AND_APPEND:
            self._extend(lambda document: self._show_texts(document, children), where)
            return
        for name in dict.fromkeys(name for child in children for name in child._own):
            promises = [child._own[name] for child in children if name in child._own]
            self._promise_kept_by(self._promise(name), partial(_gathered, promises), where)

    def go_on_as(
        self, choose_case: Callable[[], Awaitable[Stream]], cases: Sequence[Sequence[Node]], where: str
    ) -> None:
        """Go on as another text, which ``choose_case`` makes of this one as it is now by one of ``cases``.

        What another of them would have captured becomes ``None``.
        """
        num_tokens = max(map(num_path_tokens, cases), default=0)
        self._num_own_tokens_left += num_tokens

        async def chosen() -> Stream:
            stream = await choose_case()
            self._num_own_tokens_left -= num_tokens  # from here on its own count says more
            return stream

        case: asyncio.Future[Stream] = self.run.promise()
        self._promise_kept_by(case, chosen, where)
        names = dict.fromkeys(name for body in cases for name in captured_names(body))
        for name in names:
            self._promise_kept_by(self._promise(name), partial(_capture_of, case, name), where)
        self._extend(lambda _: _document_of(case), where)

    def promised(self, name: str) -> Promise:
        """The promise of one capture. Raises ``InvalidRequest`` for a name that nothing captures."""
        promise = self._find(name)
        if promise is None:
            known = ", ".join(map(repr, self._captures)) or "none"
            raise InvalidRequest(f"nothing captures {name!r} before this; the names so far are {known}")
        return promise

    async def capture(self, name: str) -> Capture:
        """Wait for one capture."""
        return await _kept(self.promised(name))

    async def document(self) -> Document:
        """Wait for everything appended so far."""
        return await _kept(self._tail)

    def end_feed(self) -> None:
        """Let readers of the text come to an end after what was appended so far."""
        self._tail.add_done_callback(lambda tail: self.feed.end(tail.exception()))

    # -- doing ---------------------------------------------------------------------------------------

    def _extend(self, work: Callable[[Document], Awaitable[Document]], where: str) -> None:
        before, after = self._tail, self.run.promise()
        self._tail = after
        self._promise_kept_by(after, partial(_then, before, work), where)

    def _find(self, name: str) -> Promise | None:
        """A promise by its name here, or by its path in a fork of this text or one that was before it.

        What is captured later by a text that waits for this one is not found: each would wait for the other.
        """
        return self._captures.get(name) or _found_in([*self._forks, *self._forks_before], name)

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

    def _end_scope(self, name: str, where: str) -> None:
        """Promise the text since the scope's begin as a capture."""
        begin, end = self._scopes.pop(name, None), self._tail
        if begin is None:
            raise InvalidRequest(f"the scope {name!r} ends but none of that name was begun in this text")
        promise = self._promise(name)

        async def written() -> Capture:
            capture = Capture((await _kept(end)).since(await _kept(begin)))
            self.run.keep(self.path + name, capture)
            return capture

        self._promise_kept_by(promise, written, where)

    async def _show(self, document: Document, text: str) -> Document:
        extended = document.with_text(text)
        self.feed.put(None, text)
        return extended

    async def _show_value(self, document: Document, promise: Promise) -> Document:
        return await self._show(document, shown_text((await _kept(promise)).value))

    async def _show_texts(self, document: Document, children: Sequence[Stream]) -> Document:
        for child in children:
            document = await self._show(document, (await child._tail).since(await child._start))
        return document

    def _promise_of_thoughts(self, node: Gen) -> Promise | None:
        if node.name is None or node.reasoning is None:
            return None
        return self._promise(node.name + REASONING_SUFFIX)

    async def _generate(self, node: Gen, document: Document, promise: Promise, thoughts: Promise | None) -> Document:
        path = self.path + (node.name or "")

        def on_text(text: str) -> None:
            self.feed.put(node.name, text)
            if node.name is not None:
                self.run.hear_text(path, text)

        heard = on_text if self.run.is_read_along and node.reasoning is None else None
        generated = await calls.generate(self.run, node, document, self.num_tokens_left, heard)
        self._num_own_tokens_left -= num_path_tokens([node])
        thought, texts = split_all(generated.texts, node.reasoning)
        if thoughts is not None:
            self._keep(f"{node.name}{REASONING_SUFFIX}", thoughts, Capture(_one_or_all(thought)))
        values = [read_value(text, node.value_type) for text in texts]
        self._keep(node.name, promise, Capture(_one_or_all(values), calls.generation_meta(generated)))
        if heard is None:
            self.feed.put(node.name, texts[0])
        return document.with_text(texts[0])

    async def _select(self, node: Select, document: Document, promise: Promise) -> Document:
        selection = await calls.select(self.run, node, document, self.num_tokens_left)
        self._keep(node.name, promise, Capture(selection.choice, selection.meta))
        self.feed.put(node.name, selection.choice)
        return document.with_text(selection.choice)

    def _keep(self, name: str | None, promise: Promise, capture: Capture) -> None:
        if not promise.done():
            promise.set_result(capture)
        if name is not None:
            self.run.keep(self.path + name, capture)


def _found_in(forks: Sequence[Stream], name: str) -> Promise | None:
    """A promise by its path in one of some forks, or in theirs."""
    for fork in forks:
        if name.startswith(fork.path):
            return fork._captures.get(name) or _found_in(fork._forks, name)
    return None


def kept_promise(run: Run, value: T) -> asyncio.Future[T]:
    """A promise that is kept already."""
    future: asyncio.Future[T] = run.promise()
    if not future.done():
        future.set_result(value)
    return future


def _one_or_all(values: Sequence[object]) -> object:
    return values[0] if len(values) == 1 else list(values)


async def _kept(promise: asyncio.Future[T]) -> T:
    """Wait for a promise that others wait for too: giving up waiting does not break it."""
    return await asyncio.shield(promise)


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
