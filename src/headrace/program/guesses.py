"""Cases of a branch that run before it is known which is the one.

Owns their beginning and their end: each runs as a run of its own, whose effects are held back until it turns out to be
the one, and which is called off, with everything it started, if it does not. What the program gives is the same either
way. It does not know which cases are worth it (``speculation.py``), nor how calls on a guess are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from headrace.core.errors import HeadraceError, ProgramError
from headrace.program.captures import Capture
from headrace.program.feed import Feed
from headrace.program.ir import Branch, Select
from headrace.program.run import Listeners
from headrace.program.stream import Promise, Stream

AppendCase = Callable[[Stream, str], None]
"""Appends the case of a choice to a text."""


class Guesses:
    """The guesses at one branch. ``before`` is the text up to it. Belongs to the event loop of its run."""

    def __init__(self, before: Stream, branch: Branch, append_case: AppendCase) -> None:
        self._before = before
        self._run = before.run
        self._branch = branch
        self._append_case = append_case
        self._guesses: dict[str, _Guess] = {}

    async def while_waiting(self, chosen: Promise) -> Capture:
        """Wait for the choice; meanwhile, once the text before the branch is there, begin what is worth it."""
        beginning = asyncio.ensure_future(self._begin())
        try:
            return await asyncio.shield(chosen)
        finally:
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)

    def settle(self, choice: str, feed: Feed) -> Stream | None:
        """The text of the case that was begun for ``choice``, part of the program from now on, if there is one.

        What the case writes goes to ``feed``. The others end.
        """
        run = self._run
        run.speculation.note(self._branch, choice)
        right = self._guesses.pop(choice, None)
        if right is not None and right.run.has_failed:  # in order it may be another matter: a guess can be refused
            self._guesses[choice] = right
            right = None
        run.usage.num_guesses += len(self._guesses) + (right is not None)
        for other in self._guesses.values():
            other.run.end()
        if right is None:
            return None
        run.usage.num_right_guesses += 1
        right.become_certain(feed)
        run.spawn(right.run.wait, "")
        return right.stream

    async def _begin(self) -> None:
        await self._before.document()
        if self._run.is_guess:
            return  # one thing at a time
        await asyncio.to_thread(_nothing)  # what the choice itself takes has its turn first
        num_spare = self._run.backend.num_spare_calls()
        for choice in self._run.speculation.cases(self._branch, num_spare):
            guess = self._guesses[choice] = _Guess(self._before, *self._supposed(choice))
            try:
                self._append_case(guess.stream, choice)
            except HeadraceError as error:
                guess.run.fail(ProgramError(error.message))

    def _supposed(self, choice: str) -> tuple[str, Mapping[str, Capture]]:
        """What the choice itself appends and captures."""
        on = self._branch.on
        known = {on.name: Capture(choice)} if on.name is not None else {}
        return (choice if isinstance(on, Select) else ""), known


class _Guess:
    """One case in a run of its own."""

    def __init__(self, before: Stream, text: str, known: Mapping[str, Capture]) -> None:
        self._parent = parent = before.run
        self._held: list[Callable[[], None]] | None = []
        wanted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        hear_text = self._hear_text if parent.is_read_along else None
        self.run = parent.guess(Listeners(hear_text, self._keep), wanted)
        self._wanted = wanted
        self.stream = before.supposing(self.run, text, known)

    def become_certain(self, feed: Feed) -> None:
        """It is the one: what it has made is the program's, and what it makes from now on."""
        held, self._held = self._held, None
        for effect in held or ():
            effect()
        self.stream.feed.flow_into(feed)
        self._parent.usage.absorb(self.run.usage)
        self.run.usage = self._parent.usage
        self._wanted.set_result(None)

    def _hear_text(self, path: str, text: str) -> None:
        self._do(lambda: self._parent.hear_text(path, text))

    def _keep(self, path: str, capture: Capture) -> None:
        self._do(lambda: self._parent.keep(path, capture))

    def _do(self, effect: Callable[[], None]) -> None:
        if self._held is None:
            effect()
        else:
            self._held.append(effect)


def _nothing() -> None:
    pass
