"""Running a program that is given as data: walks its nodes and appends them to streams.

Owns the meaning of the nodes that have bodies: forks, joins and branches. Everything is appended at once; the streams
wait for what they need. Belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.core.errors import InvalidRequest
from headrace.program.ir import Branch, Fork, Gen, Join, JoinMode, Node, Program, Select
from headrace.program.run import Run
from headrace.program.stream import Stream


class Interpreter:
    """Appends bodies to one stream, and remembers its forks by name."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._forks: dict[str, list[Stream]] = {}

    def append(self, body: Sequence[Node], where: str) -> None:
        """Append every node. Raises ``InvalidRequest`` for a name that nothing captures or forks before it."""
        for node in body:
            match node:
                case Fork():
                    self._fork(node, where)
                case Join():
                    self.stream.join(self._branches(node.fork), node.mode, where)
                case _:
                    append_node(self.stream, node, where)

    def _fork(self, node: Fork, where: str) -> None:
        branches = [self.stream.fork(f"{node.name}.{index}") for index in range(len(node.branches))]
        self._forks[node.name] = branches
        for index, (branch, body) in enumerate(zip(branches, node.branches, strict=True)):
            Interpreter(branch).append(body, f"{where} {node.name}.{index}")
            self.stream.adopt(branch)

    def _branches(self, name: str) -> list[Stream]:
        if name not in self._forks:
            raise InvalidRequest(f"there is no fork {name!r} before the join that names it")
        return self._forks[name]


def append_node(stream: Stream, node: Node, where: str) -> None:
    """Append a node that stands by itself: any but a fork and its join."""
    match node:
        case Branch():
            _append_branch(stream, node, where)
        case Fork() | Join():
            raise InvalidRequest("a fork and its join are appended as one body")
        case _:
            stream.append(node, where)


def _append_branch(stream: Stream, node: Branch, where: str) -> None:
    """Append a selection, and what follows for what it selects."""
    unknown = [case for case in node.cases if case not in node.select.choices]
    if unknown:
        raise InvalidRequest(f"the branch has a case {unknown[0]!r} that is not one of its choices")
    chosen = stream.select(node.select, where)
    case = stream.continuation()

    async def choose_case() -> Stream:
        choice = str((await chosen).value)
        Interpreter(case).append(node.cases.get(choice, ()), f"{where} case {choice!r}")
        return case

    names = [name for body in node.cases.values() for name in captured_names(body)]
    stream.go_on_as(choose_case, list(dict.fromkeys(names)), where)


def captured_names(body: Sequence[Node]) -> Iterator[str]:
    """Names that a body may capture for the text it is appended to."""
    forks: dict[str, list[str]] = {}
    for node in body:
        match node:
            case Gen(name=str(name)) | Select(name=str(name)):
                yield name
            case Fork():
                forks[node.name] = [name for branch in node.branches for name in captured_names(branch)]
            case Join(mode=JoinMode.GATHER_VARIABLE):
                yield from forks.get(node.fork, ())
            case Branch():
                yield from captured_names([node.select])
                for case in node.cases.values():
                    yield from captured_names(case)


def start(program: Program, run: Run, arguments: Mapping[str, object]) -> Stream:
    """Begin a program: everything runs from here on; ``run.wait`` waits for its end.

    Raises ``InvalidRequest`` for arguments that the program does not have, or lacks.
    """
    _check_arguments(program, arguments)
    stream = Stream.root(run, arguments)
    Interpreter(stream).append(program.body, program.name)
    stream.end_feed()
    return stream


def _check_arguments(program: Program, arguments: Mapping[str, object]) -> None:
    missing = [name for name in program.arguments if name not in arguments]
    if missing:
        raise InvalidRequest(f"the program's argument {missing[0]!r} is missing", "arguments")
    unknown = [name for name in arguments if name not in program.arguments]
    if unknown:
        known = ", ".join(program.arguments) or "none"
        raise InvalidRequest(
            f"{unknown[0]!r} is not an argument of the program; its arguments are {known}", "arguments"
        )
