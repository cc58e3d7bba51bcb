"""Which captures may be read at a point of a program, and under which path each is found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.core.errors import ProgramError
from headrace.program.ir import Node, Select, Value, captured_names


class Names:
    """The names known to one text; ``path`` stands before those it captures itself, in the eyes of other texts."""

    def __init__(self, known: Mapping[str, str], path: str = "") -> None:
        self.path = path
        self._known = dict(known)
        self._own: list[str] = []
        self._num_forks = 0

    def path_of(self, name: str, where: str) -> str:
        """Raises ``ProgramError`` for a name that nothing captures."""
        if name not in self._known:
            known = ", ".join(map(repr, self._known)) or "none"
            raise ProgramError(f"nothing captures {name!r} before this; the names so far are {known}", where)
        return self._known[name]

    def learn(self, nodes: Sequence[Node]) -> None:
        """Take in what appended nodes capture."""
        self._add(captured_names(nodes))

    def learn_joined(self, branches: Iterable[Names]) -> None:
        """Take in what the branches of a fork have captured."""
        self._add(dict.fromkeys(name for branch in branches for name in branch._own))

    def new_fork(self) -> str:
        """Name of the next fork of this text."""
        self._num_forks += 1
        return f"fork{self._num_forks}"

    def branch(self, fork: str, index: int) -> Names:
        """The names known to a branch of a fork."""
        return Names(self._known, f"{self.path}{fork}.{index}.")

    def case(self, on: Select | Value) -> Names:
        """The names known to what may follow from here once it is known what ``on`` says."""
        names = Names(self._known, self.path)
        names.learn([on])
        return names

    def _add(self, names: Iterable[str]) -> None:
        for name in names:
            self._known[name] = self.path + name
            self._own.append(name)
