"""What the replies of all dialects have in common: a head, options, and the two ways to be sent.

A reply is fed deltas and answers with events (a stream) or is fed everything and answers once. Both ways go
through the same code per choice, so that a stream's concatenation equals the whole reply by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headrace.server.generation import Delta
from headrace.server.usage import UsageMeter


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every body of one reply starts with; ``created`` is in Unix seconds."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """What the client wants to see besides the text."""

    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False


class Reply(Protocol):
    """One reply of some dialect, being written."""

    @property
    def usage(self) -> UsageMeter: ...

    @property
    def finish_reasons(self) -> Sequence[str]:
        """Of the choices that have ended, in the order in which they did."""
        ...

    def events(self, deltas: Sequence[Delta]) -> list[msgspec.Struct]:
        """The stream's next events."""
        ...

    def last_events(self) -> list[msgspec.Struct]:
        """What the stream says after all choices have ended."""
        ...

    def whole(self, deltas: Sequence[Delta]) -> msgspec.Struct | Sequence[msgspec.Struct]:
        """The reply in one piece, or several where the dialect answers with a list.

        ``deltas`` has exactly one per sequence.
        """
        ...
