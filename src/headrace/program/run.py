"""One run of a program: its tasks, its one end, and what it has captured when that comes.

Owns the rule that a program fails as a whole: the first failure ends every call that is still running, so that
nothing is computed and no memory held for a program nobody will get. It does not know nodes or states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any

from headrace.core.errors import HeadraceError, ProgramError, RequestAborted
from headrace.program.backend import Backend, Place
from headrace.program.captures import Capture
from headrace.program.ir import SamplingChoice
from headrace.program.speculation import Speculation

Work = Callable[[], Awaitable[None]]
OnCapture = Callable[[str, Capture], None]
OnText = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who hears what a run makes, by the names of captures; names of forks' captures are paths.

    ``on_text`` hears of generated text as it comes, ``on_capture`` of captures when they are whole. ``reads_feeds``
    if somebody reads the feeds of texts while they are generated.
    """

    on_text: OnText | None = None
    on_capture: OnCapture | None = None
    reads_feeds: bool = False


NOBODY_LISTENS = Listeners()


@dataclass(slots=True)
class RunUsage:
    """What the calls of a run have cost; ``num_cached_tokens`` of the prompts came from the prefix cache.

    ``num_guesses`` cases of branches were begun before it was known which is the one, ``num_right_guesses`` of them
    were. What the others cost is not counted.
    """

    num_calls: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_guesses: int = 0
    num_right_guesses: int = 0

    def add(self, num_prompt_tokens: int, num_cached_tokens: int, num_output_tokens: int = 0) -> None:
        self.num_calls += 1
        self.num_prompt_tokens += num_prompt_tokens
        self.num_cached_tokens += num_cached_tokens
        self.num_output_tokens += num_output_tokens

    def absorb(self, other: RunUsage) -> None:
        """Add all that another run has cost."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Run:
    """What the streams of one run share. Everything here belongs to one event loop.

    ``defaults`` is the sampling where a program says nothing. ``speculation`` says which cases of branches are begun
    on a guess. ``wanted`` is for a run that is such a guess: see ``backend.Place``.
    """

    def __init__(
        self,
        backend: Backend,
        defaults: SamplingChoice,
        program_id: str,
        listeners: Listeners = NOBODY_LISTENS,
        speculation: Speculation | None = None,
        wanted: asyncio.Future[None] | None = None,
    ) -> None:
        self.backend = backend
        self.defaults = defaults
        self.program_id = program_id
        self.usage = RunUsage()
        self.speculation = Speculation(0) if speculation is None else speculation
        self.wanted = wanted
        self._listeners = listeners
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._promises: set[asyncio.Future[Any]] = set()
        self._captured: dict[str, object] = {}
        self._failure: ProgramError | None = None
        self._guesses: list[Run] = []

    @property
    def is_guess(self) -> bool:
        return self.wanted is not None and not self.wanted.done()

    @property
    def is_read_along(self) -> bool:
        """Whether it matters to anybody that text is told of before it is whole."""
        return self._listeners.on_text is not None or self._listeners.reads_feeds

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def place(self, num_tokens_left: int) -> Place:
        """Where a call of this run stands."""
        return Place(self.program_id, num_tokens_left, self.wanted)

    @property
    def captured(self) -> dict[str, object]:
        """Every capture so far by its path."""
        return dict(self._captured)

    def guess(self, listeners: Listeners, wanted: asyncio.Future[None]) -> Run:
        """A run of what may turn out to be no part of the program; it ends with this one at the latest."""
        guess = Run(self.backend, self.defaults, self.program_id, listeners, self.speculation, wanted)
        self._guesses = [each for each in self._guesses if each._unfinished()]
        self._guesses.append(guess)
        if self._failure is not None:
            guess.fail(self._failure)
        return guess

    def promise(self) -> asyncio.Future[Any]:
        """A future that fails with the run."""
        future = self._loop.create_future()
        if self._failure is not None:
            _break(future, self._failure)
            return future
        self._promises.add(future)
        future.add_done_callback(self._promises.discard)
        return future

    def spawn(self, work: Work, where: str) -> None:
        """Do some of the program's work; if it fails, the run fails and ``where`` says where."""
        if self._failure is not None:
            return
        task = self._loop.create_task(self._guarded(work, where))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hear_text(self, path: str, text: str) -> None:
        if self._listeners.on_text is not None and text:
            self._listeners.on_text(path, text)

    def keep(self, path: str, capture: Capture) -> None:
        """Remember a capture for whoever listens and for the words of a failure."""
        self._captured[path] = capture.value
        if self._listeners.on_capture is not None:
            self._listeners.on_capture(path, capture)

    def fail(self, error: ProgramError) -> None:
        """End the run and its guesses: what waits gets ``error``, what runs is cancelled. The first failure counts."""
        if self._failure is not None:
            return
        self._failure = error
        for future in list(self._promises):
            _break(future, error)
        for task in list(self._tasks):
            task.cancel()
        for guess in self._guesses:  # here and not in a task of theirs: one that has yet to begin would never run
            guess.fail(error)

    async def wait(self) -> None:
        """Wait for all work. Raises ``ProgramError`` if the run failed."""
        while tasks := self._unfinished():
            await asyncio.wait(tasks)
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Let what still runs end, if something does."""
        if self._unfinished():
            self.fail(ProgramError("the program was cancelled", captures=self.captured))

    async def cancel(self) -> None:
        """End what still runs and wait until it has; a run that is over is left as it is."""
        self.end()
        while tasks := self._unfinished():
            await asyncio.wait(tasks)

    def _unfinished(self) -> set[asyncio.Task[None]]:
        return self._tasks.union(*(guess._unfinished() for guess in self._guesses))

    async def _guarded(self, work: Work, where: str) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except ProgramError as error:
            self.fail(error)
        except RequestAborted as error:
            self.fail(self._wrapped(error, "a call was ended from outside", where))
        except HeadraceError as error:
            self.fail(self._wrapped(error, error.message, where))
        except Exception as error:  # a backend's bug must end the run too, or its readers would wait for ever
            self.fail(self._wrapped(error, f"{type(error).__name__}: {error}", where))

    def _wrapped(self, error: Exception, message: str, where: str) -> ProgramError:
        failure = ProgramError(message, where, self.captured)
        failure.__cause__ = error
        return failure


def _break(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # marks it as seen: not every promise of a failed run has a reader
