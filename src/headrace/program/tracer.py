"""Recording a program as nodes without running it. It does not know what runs programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from headrace.core.errors import ProgramError
from headrace.program.captures import Capture
from headrace.program.document import Document
from headrace.program.ir import Fork, Join, JoinMode, Node, Select, Text, Value
from headrace.program.names import Names
from headrace.program.placeholders import Placeholder, split_nodes
from headrace.program.run import RunUsage
from headrace.program.sinks import AsyncView, Recorder, Sink, View


class TraceSink:
    """Records one text's nodes; ``names`` are those that may be read from the start."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._nodes: list[Node] = []
        self._forks: dict[str, list[TraceSink]] = {}

    def body(self) -> tuple[Node, ...]:
        """Everything recorded, with the branches of forks in their places."""
        return tuple(_merged_text(self._filled()))

    def append(self, nodes: Sequence[Node], where: str) -> None:
        self._nodes += split_nodes(nodes)
        self.names.learn(nodes)

    def fork(self, number: int, where: str) -> Sequence[Sink]:
        name = self.names.new_fork()
        branches = [TraceSink(self.names.branch(name, index)) for index in range(number)]
        self._forks[name] = branches
        self._nodes.append(Fork(name, ()))
        return branches

    def join(self, children: Sequence[Sink], mode: JoinMode, where: str) -> None:
        name = next((name for name, branches in self._forks.items() if list(children) == branches), None)
        if name is None:
            raise ProgramError("what is joined here was not forked here", where)
        self._nodes.append(Join(name, mode))
        if mode is JoinMode.GATHER_VARIABLE:
            self.names.learn_joined(branch.names for branch in self._forks[name])

    def case(self, on: Select | Value) -> Recorder:
        return TraceSink(self.names.case(on))

    def ref(self, name: str, where: str) -> Placeholder:
        return Placeholder(self.names.path_of(name, where))

    def view(self, where: str) -> View:
        return _TraceView(self.names, where)

    def _filled(self) -> Iterator[Node]:
        for node in self._nodes:
            if isinstance(node, Fork):
                yield Fork(node.name, tuple(branch.body() for branch in self._forks[node.name]))
            else:
                yield node


@dataclass(frozen=True, slots=True)
class _TraceView:
    """Names can be read, as placeholders; the text cannot."""

    names: Names
    where: str

    def capture(self, name: str) -> Capture:
        return Capture(Placeholder(self.names.path_of(name, self.where)))

    def document(self) -> tuple[Document, str]:
        self._refuse()

    def pieces(self, name: str | None) -> Iterator[str]:
        self._refuse()

    def usage(self) -> RunUsage:
        self._refuse()

    def on_loop(self) -> AsyncView:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ProgramError(
            "this is not known while a program is traced; run the program instead of tracing it", self.where
        )


def _merged_text(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes with neighbouring texts in one."""
    held = ""
    for node in nodes:
        if isinstance(node, Text):
            held += node.text
            continue
        if held:
            yield Text(held)
            held = ""
        yield node
    if held:
        yield Text(held)
