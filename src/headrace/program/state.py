"""What a program holds in its hand while it runs: the text it appends to, and what has been captured.

Owns SGLang's methods of it. The same state records a program (tracing) or runs it; its sink makes the difference.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from headrace.core.errors import InvalidRequest, ProgramError
from headrace.program.expressions import Appendable, Expression, expression, role, role_begin, role_end
from headrace.program.forms import as_kind
from headrace.program.ir import Branch, JoinMode, Node, ScopeBegin, ScopeEnd, Select
from headrace.program.placeholders import Placeholder
from headrace.program.places import caller_place
from headrace.program.run import RunUsage
from headrace.program.sinks import Sink

MAX_FORKS = 1024

Subprogram = Callable[["ProgramState"], object]


class ProgramState:
    """One growing text. ``s += ...`` appends without waiting; ``s["name"]`` waits for just that capture."""

    def __init__(self, sink: Sink, arguments: Mapping[str, object], kinds: Mapping[str, type] | None = None) -> None:
        self._sink = sink
        self._arguments = dict(arguments)
        self._kinds = dict(kinds or {})
        self.ret_value: object = None

    def __iadd__(self, other: Appendable) -> ProgramState:
        where = caller_place()
        appended = _checked(other, where)
        self._kinds |= dict(appended.kinds)
        self._sink.append(appended.nodes, where)
        return self

    # -- roles -----------------------------------------------------------------------------------------

    def system(self, content: Appendable = None) -> AbstractContextManager[None] | None:
        """Append a system message; without content, a ``with`` block writes it."""
        return self._role("system", content)

    def user(self, content: Appendable = None) -> AbstractContextManager[None] | None:
        """Append a user's message; without content, a ``with`` block writes it."""
        return self._role("user", content)

    def assistant(self, content: Appendable = None) -> AbstractContextManager[None] | None:
        """Append an assistant's message; without content, a ``with`` block writes it."""
        return self._role("assistant", content)

    def _role(self, name: str, content: Appendable) -> AbstractContextManager[None] | None:
        if content is None:
            return self._message(name)
        self += role(name, content)
        return None

    @contextmanager
    def _message(self, name: str) -> Iterator[None]:
        self._append(role_begin(name))
        yield
        self._append(role_end())

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """Capture what a ``with`` block appends as ``s[name]``; messages may not begin or end in it."""
        self._append(Expression((ScopeBegin(name),)))
        yield
        self._append(Expression((ScopeEnd(name),)))

    # -- forks and branches ----------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: Sequence[int] | None = None) -> ProgramStateGroup:
        """``size`` texts that go on from here at the same time. ``position_ids_offset`` is SGLang's and unused."""
        where = caller_place()
        if not 1 <= size <= MAX_FORKS:
            raise ProgramError(f"fork({size}) must make between 1 and {MAX_FORKS} branches", where)
        sinks = self._sink.fork(size, where)
        return ProgramStateGroup([ProgramState(sink, self._arguments, self._kinds) for sink in sinks], self)

    @contextmanager
    def copy(self, size: int = 1) -> Iterator[ProgramStateGroup]:
        """A fork for a ``with`` block, joined at its end."""
        group = self.fork(size)
        yield group
        group.join()

    def branch(self, on: Expression | Placeholder, cases: Mapping[str, Subprogram]) -> None:
        """Go on as ``cases`` says for what ``on`` turns out to be; a choice without a case goes on with nothing.

        ``on`` is a ``select(...)``, which becomes part of the text, or what ``ref`` gives, which does not: the choice
        is made elsewhere, in a fork that thinks about it, say. Each case is a function of a state. It appends, and may
        branch again, but cannot use values it reads for anything but text, so that it may be run before the choice is
        made; that is done where it costs nobody anything.
        """
        where = caller_place()
        chosen_by = on.value if isinstance(on, Placeholder) else _only_select(on, where)
        bodies: dict[str, tuple[Node, ...]] = {}
        for choice, subprogram in cases.items():
            recorder = self._sink.case(chosen_by)
            state = ProgramState(recorder, self._arguments, self._kinds)
            subprogram(state)
            self._kinds |= state._kinds
            bodies[choice] = recorder.body()
        self._sink.append([Branch(chosen_by, bodies)], where)

    # -- reading ---------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """A capture's value. Waits for it; on an event loop use ``await s.get(name)``."""
        where = caller_place()
        if name in self._arguments:
            return self._arguments[name]
        return self._typed(name, self._sink.view(where).capture(name).value)

    def ref(self, name: str) -> Placeholder:
        """A capture without waiting for it: to be appended to any text of the program, or to branch on."""
        return self._sink.ref(name, caller_place())

    def get_var(self, name: str) -> Any:
        """SGLang's long form of ``s[name]``."""
        return self[name]

    def set_var(self, name: str, value: object) -> None:
        """Keep a value of the program's own beside the captures."""
        self._arguments[name] = value

    async def get(self, name: str) -> Any:
        """A capture's value, for programs that are coroutines."""
        where = caller_place()
        return self._typed(name, (await self._sink.view(where).on_loop().capture(name)).value)

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """SGLang's ``meta_info`` of a capture: tokens, cached tokens, why it ended."""
        return cast("dict[str, Any]", self._sink.view(caller_place()).capture(name).meta)

    @property
    def usage(self) -> RunUsage:
        """What the calls of the whole run have cost so far."""
        return self._sink.view(caller_place()).usage()

    def text(self) -> str:
        """Everything so far as one text."""
        return self._sink.view(caller_place()).document()[1]

    async def text_async(self) -> str:
        """Everything so far as one text, for programs that are coroutines."""
        return (await self._sink.view(caller_place()).on_loop().document())[1]

    def messages(self) -> list[dict[str, str]]:
        """The conversation so far, as OpenAI's clients write it."""
        return self._sink.view(caller_place()).document()[0].messages()

    def sync(self) -> None:
        """Wait for everything appended so far."""
        self._sink.view(caller_place()).document()

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text, or that of one capture, piece by piece as it comes: by tokens if the program is streamed."""
        return self._sink.view(caller_place()).pieces(var_name)

    def text_async_iter(self, var_name: str | None = None) -> AsyncGenerator[str, None]:
        """As ``text_iter``, for coroutines."""
        return self._sink.view(caller_place()).on_loop().pieces(var_name)

    def _append(self, appended: Expression) -> None:
        self._sink.append(appended.nodes, caller_place())

    def _typed(self, name: str, value: object) -> object:
        kind = self._kinds.get(name)
        if kind is None or isinstance(value, Placeholder):
            return value
        try:
            return as_kind(value, kind)
        except InvalidRequest as error:
            raise ProgramError(error.message, caller_place(), {name: value}) from error


class ProgramStateGroup:
    """The texts of one fork: a sequence of states."""

    def __init__(self, states: list[ProgramState], parent: ProgramState) -> None:
        self.states = states
        self._parent = parent

    def join(self, mode: JoinMode | str = JoinMode.GATHER_VARIABLE) -> None:
        """Bring the branches back: their captures as lists (``gather_variable``), or their texts, appended one
        after the other (``concate_and_append``)."""
        where = caller_place()
        try:
            checked = JoinMode(mode)
        except ValueError:
            known = ", ".join(each.value for each in JoinMode)
            raise ProgramError(f"join's mode is {mode!r} but must be one of {known}", where) from None
        for state in self.states:
            self._parent._kinds |= state._kinds
        self._parent._sink.join([state._sink for state in self.states], checked, where)

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: int) -> ProgramState:
        return self.states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """So that ``forks[i] += ...`` may be written."""
        if state is not self.states[index]:
            raise ProgramError("a branch of a fork can be appended to, not replaced", caller_place())

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    def __iadd__(self, other: Appendable | Callable[[int], Appendable] | list[Appendable]) -> ProgramStateGroup:
        """Append to every branch: the same, what a function gives for its index, or one of a list each."""
        if isinstance(other, list) and len(other) != len(self.states):
            raise ProgramError(f"{len(other)} texts for {len(self.states)} branches; give one for each", caller_place())
        for index in range(len(self.states)):
            if isinstance(other, list):
                self[index] += other[index]
            else:
                self[index] += other(index) if callable(other) else other
        return self


def _checked(value: object, where: str) -> Expression:
    try:
        return expression(value)
    except InvalidRequest as error:
        raise ProgramError(error.message, where) from None


def _only_select(selection: Expression, where: str) -> Select:
    match selection.nodes:
        case (Select() as select,):
            return select
    raise ProgramError("branch takes one select(...), or s.ref(name), and the cases of its choices", where)
