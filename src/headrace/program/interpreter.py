"""Running a program that is given as data: walks its nodes and appends them to streams.

Owns the meaning of the nodes that have bodies: forks, joins and branches. Everything is appended at once; the streams
wait for what they need. Belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.core.errors import InvalidRequest
from headrace.program.captures import shown_text
from headrace.program.guesses import Guesses
from headrace.program.ir import Branch, Fork, Join, Node, Program, Select
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
    """Append a selection, if it is one that is made here, and what follows for what is chosen."""
    _check_cases(node)
    before = stream.continuation()
    chosen = stream.select(node.on, where) if isinstance(node.on, Select) else stream.promised(node.on.name)
    case = stream.continuation()

    def append_case(stream: Stream, choice: str) -> None:
        Interpreter(stream).append(node.cases.get(choice, ()), f"{where} case {choice!r}")

    guesses = Guesses(before, node, append_case)

    async def choose_case() -> Stream:
        choice = shown_text((await guesses.while_waiting(chosen)).value)
        guessed = guesses.settle(choice, case.feed)
        if guessed is not None:
            return guessed
        append_case(case, choice)
        return case

    stream.go_on_as(choose_case, list(node.cases.values()), where)


def _check_cases(node: Branch) -> None:
    if isinstance(node.on, Select):
        unknown = [case for case in node.cases if case not in node.on.choices]
        if unknown:
            raise InvalidRequest(f"the branch has a case {unknown[0]!r} that is not one of its choices")


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
