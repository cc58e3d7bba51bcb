"""What an engine may do while it has no work: the seam, and nothing.

A module of its own because the engine process imports it before anything heavy.
"""

from __future__ import annotations

from typing import Protocol


class IdleWork(Protocol):
    """Something useful to do while an engine has no work."""

    def advance(self) -> bool:
        """Do a short piece; whether there may be more."""
        ...

    def close(self) -> None: ...


class NoIdleWork:
    """Nothing to do."""

    def advance(self) -> bool:
        return False

    def close(self) -> None:
        pass
