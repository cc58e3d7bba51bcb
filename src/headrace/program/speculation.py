"""Which cases of a branch are worth beginning before it is known which is the one.

Owns the choice: the likeliest first, by what was chosen at the same branch before, within a budget of tokens and as
many calls as have room. It does not know how a case is begun, nor when there is room.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Final

from headrace.program.ir import Branch, num_calls_at_once, num_generated_tokens, walk

DEFAULT_GUESS_TOKENS: Final = 256
"""Most tokens that the cases begun at one branch may generate."""

_MAX_REMEMBERED_BRANCHES: Final = 1024

_BranchKey = tuple[tuple[str, ...], str, tuple[str, ...]]
_Choices = OrderedDict[_BranchKey, Counter[str]]


class Speculation:
    """Remembers choices, over all runs that share it. With ``max_tokens`` 0 nothing is begun on a guess.

    A branch is known again by the name of what it depends on and the names of its cases. What one owner's programs
    chose tells nothing to another's, though all share the room to remember it.
    """

    def __init__(
        self, max_tokens: int = DEFAULT_GUESS_TOKENS, owner: tuple[str, ...] = (), choices: _Choices | None = None
    ) -> None:
        self._max_tokens = max_tokens
        self._owner = owner
        self._choices: _Choices = OrderedDict() if choices is None else choices

    def of(self, *owner: str) -> Speculation:
        """For the programs of one owner."""
        return Speculation(self._max_tokens, owner, self._choices)

    def cases(self, branch: Branch, num_spare_calls: int) -> Iterator[str]:
        """The cases to begin, the likeliest first; of equally likely ones the first in the program."""
        if self._max_tokens <= 0 or num_spare_calls <= 0:
            return
        counts = self._choices.get(self._key(branch), Counter())
        num_tokens = 0
        for case in sorted(branch.cases, key=lambda case: -counts[case]):
            body = branch.cases[case]
            num_tokens += sum(num_generated_tokens(node) for node, _ in walk(body))
            num_spare_calls -= num_calls_at_once(body)
            if num_tokens > self._max_tokens or num_spare_calls < 0:
                return
            if num_calls_at_once(body) > 0:
                yield case

    def note(self, branch: Branch, choice: str) -> None:
        """Remember what was chosen."""
        key = self._key(branch)
        self._choices.setdefault(key, Counter())[choice] += 1
        self._choices.move_to_end(key)
        if len(self._choices) > _MAX_REMEMBERED_BRANCHES:
            self._choices.popitem(last=False)

    def _key(self, branch: Branch) -> _BranchKey:
        return self._owner, branch.on.name or "", tuple(branch.cases)
