"""``@function``: a Python function over a state as a program that can be run, streamed, mapped and traced.

Owns the ways to run one and how its run options are told from its own arguments. It does not know how a program is
carried out.
"""

from __future__ import annotations

import functools
import inspect
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import InvalidRequest, ProgramError
from headrace.core.progress import NullProgress
from headrace.core.terminal_progress import terminal_progress
from headrace.program.backends import default_runtime
from headrace.program.ir import Program, SamplingChoice
from headrace.program.names import Names
from headrace.program.placeholders import Placeholder
from headrace.program.places import place_of
from headrace.program.run import Listeners, Run
from headrace.program.running import RunningSink
from headrace.program.runtime import Runtime
from headrace.program.state import ProgramState
from headrace.program.stream import Stream
from headrace.program.tracer import TraceSink

MAX_THREADS = 64
"""Programs of a batch that run at the same time, unless the caller says otherwise."""

_SAMPLING = {name: name for name in SamplingChoice.__struct_fields__} | {"max_new_tokens": "max_tokens"}
_OPTIONS = {*_SAMPLING, "backend", "stream"}


@dataclass(frozen=True, slots=True)
class _Invocation:
    """One run that was asked for: the function's arguments, and how to run it."""

    arguments: inspect.BoundArguments
    runtime: Runtime
    defaults: SamplingChoice
    is_streamed: bool


class Function:
    """A program. Calling it with a state appends it there, as part of another program; otherwise runs it.

    ``run(*arguments, temperature=0, backend=...)``: keywords that the function does not have are run options:
    ``backend``, ``stream`` and the sampling (``max_new_tokens``, ``temperature``, ``stop``, ...) where a ``gen`` says
    nothing itself.
    """

    def __init__(self, function: Callable[..., object], bound: Mapping[str, object] | None = None) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._bound = dict(bound or {})
        self._signature = _signature_without_state(function)
        self.name = function.__name__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if arguments and isinstance(arguments[0], ProgramState):
            return self._function(*arguments, **{**self._bound, **named})
        return self.run(*arguments, **named)

    def bind(self, **arguments: Any) -> Function:
        """This program with some of its arguments given."""
        unknown = [name for name in arguments if name not in self._signature.parameters]
        if unknown:
            raise ProgramError(f"{self.name} has no argument {unknown[0]!r} to bind")
        return Function(self._function, {**self._bound, **arguments})

    def run(self, *arguments: Any, **named: Any) -> ProgramState:
        """Run to the end and return the state; with ``stream=True`` at once, to be read as it comes.

        Raises ``ProgramError`` with the line and what was captured; then everything it started has ended.
        """
        invocation = self._invocation(arguments, named)
        execution = _Execution.begin(self, invocation)
        if invocation.is_streamed:
            threading.Thread(target=execution.run_quietly, name=self.name, daemon=True).start()
        else:
            execution.run()
        return execution.state

    def stream(self, *arguments: Any, **named: Any) -> ProgramState:
        """Start running; ``text_iter`` of the state gives the text as it comes."""
        return self.run(*arguments, **{**named, "stream": True})

    async def run_async(self, *arguments: Any, **named: Any) -> ProgramState:
        """Run on the caller's event loop: a coroutine function there, a plain one in a thread beside it."""
        import asyncio

        if not inspect.iscoroutinefunction(self._function):
            return await asyncio.to_thread(self.run, *arguments, **named)
        invocation = self._invocation(arguments, named)
        execution = await asyncio.to_thread(_Execution.begin, self, invocation)
        await execution.run_async()
        return execution.state

    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **named: Any,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run once for each entry, many at a time, and return the states in order.

        An entry holds arguments by name, or in order. The first failure is raised once its turn comes.
        """
        if named.get("backend") is None:  # the pool's threads do not know this one's default
            named["backend"] = default_runtime()
        states = self._states(batch, _num_threads(num_threads, len(batch)), progress_bar, named)
        return states if generator_style else list(states)

    def trace(self, **arguments: Any) -> Program:
        """The program as data, without running it; arguments without a value or a default stay open.

        Raises ``ProgramError`` where the program does with a value what cannot be recorded.
        """
        defaults = {name: p.default for name, p in self._signature.parameters.items() if p.default is not p.empty}
        given = {**defaults, **self._bound, **arguments}
        open_names = tuple(name for name in self._signature.parameters if name not in given)
        sink = TraceSink(Names({name: name for name in open_names}))
        values = {**given, **{name: Placeholder(name) for name in open_names}}
        state = ProgramState(sink, {})
        try:
            self._function(state, **values)
        except InvalidRequest as error:
            raise ProgramError(error.message, place_of(error, self._function)) from error
        return Program(name=self.name, arguments=open_names, body=sink.body())

    def _states(
        self,
        batch: Sequence[Mapping[str, Any] | Sequence[Any]],
        num_threads: int,
        progress_bar: bool,
        named: Mapping[str, Any],
    ) -> Iterator[ProgramState]:
        progress = terminal_progress() if progress_bar else NullProgress()
        progress.start(self.name, len(batch), "items")
        pool = ThreadPoolExecutor(num_threads, thread_name_prefix=self.name)
        try:
            for future in [pool.submit(self._run_entry, entry, named) for entry in batch]:
                yield future.result()
                progress.advance(1)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            progress.finish()

    def _run_entry(self, entry: Mapping[str, Any] | Sequence[Any], named: Mapping[str, Any]) -> ProgramState:
        if isinstance(entry, Mapping):
            return self.run(**{**named, **entry})
        return self.run(*entry, **named)

    def _invocation(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> _Invocation:
        own = self._signature.parameters
        mine = {**self._bound, **{name: value for name, value in named.items() if name in own}}
        options = {name: value for name, value in named.items() if name not in own}
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown:
            raise ProgramError(
                f"{unknown[0]!r} is neither an argument of {self.name} ({', '.join(own) or 'it has none'}) nor a way "
                f"to run it ({', '.join(sorted(_OPTIONS))})"
            )
        try:
            bound = self._signature.bind(*arguments, **mine)
        except TypeError as error:
            raise ProgramError(f"{self.name}: {error}") from None
        bound.apply_defaults()
        runtime = options.get("backend") or default_runtime()
        return _Invocation(bound, runtime, _defaults(options), bool(options.get("stream")))


class _Execution:
    """One run of a function: its run on the loop, its state in the program's hand."""

    def __init__(self, function: Function, invocation: _Invocation, run: Run) -> None:
        self._function = function._function
        self._invocation = invocation
        self._run = run
        self._runtime = invocation.runtime
        self._sink = RunningSink(self._runtime, run, Names({}), lambda: Stream.root(run, {}))
        self.state = ProgramState(self._sink, invocation.arguments.arguments)

    @classmethod
    def begin(cls, function: Function, invocation: _Invocation) -> _Execution:
        runtime = invocation.runtime
        backend = runtime.backend

        async def make() -> Run:
            program_id = f"{function.name}-{secrets.token_hex(6)}"
            listeners = Listeners(reads_feeds=invocation.is_streamed)
            return Run(backend, invocation.defaults, program_id, listeners, runtime.speculation)

        return cls(function, invocation, runtime.wait(make()))

    def run(self) -> None:
        try:
            self.state.ret_value = self._call()
            self._sink.end()
            self._runtime.wait(self._run.wait())
        except BaseException as error:
            self._runtime.wait(self._run.cancel())
            self._explain(error)
            raise

    def run_quietly(self) -> None:
        """Run for a reader of the stream, who gets the failure."""
        try:
            self.run()
        except ProgramError as error:
            self._fail(error)
        except Exception as error:
            failure = ProgramError(f"{type(error).__name__}: {error}", captures=self._run.captured)
            failure.__cause__ = error
            self._fail(failure)

    async def run_async(self) -> None:
        try:
            self.state.ret_value = await self._call()  # type: ignore[misc]
            self._sink.end()
            await self._runtime.wait_async(self._run.wait())
        except BaseException as error:
            await self._runtime.wait_async(self._run.cancel())
            self._explain(error)
            raise

    def _explain(self, error: BaseException) -> None:
        """Raise the program's own wrong use of the language as an error with its line."""
        if isinstance(error, InvalidRequest):
            raise ProgramError(error.message, place_of(error, self._function), self._run.captured) from error

    def _fail(self, error: ProgramError) -> None:
        self._runtime.call_soon(lambda: self._run.fail(error))
        self._sink.end()

    def _call(self) -> object:
        arguments = self._invocation.arguments
        return self._function(self.state, *arguments.args, **arguments.kwargs)


def function(function: Callable[..., object]) -> Function:
    """Make a program of a function whose first parameter is a state."""
    return Function(function)


program = function


def _signature_without_state(function: Callable[..., object]) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters:
        raise ProgramError(f"{function.__name__} needs a first parameter, the state it appends to: def f(s, ...)")
    taken = [parameter.name for parameter in parameters[1:] if parameter.name in ("backend", "stream")]
    if taken:
        raise ProgramError(f"{function.__name__} has a parameter {taken[0]!r}, which says how to run it; rename it")
    return signature.replace(parameters=parameters[1:])


def _defaults(options: Mapping[str, Any]) -> SamplingChoice:
    given = {_SAMPLING[name]: value for name, value in options.items() if name in _SAMPLING and value is not None}
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    return SamplingChoice(**given)


def _num_threads(asked: int | str, num_entries: int) -> int:
    if asked == "auto":
        return max(1, min(MAX_THREADS, num_entries))
    if isinstance(asked, int) and asked >= 1:
        return asked
    raise ProgramError(f"num_threads is {asked!r} but must be 'auto' or at least 1")
