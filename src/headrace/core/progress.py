"""How long work reports its advance; what is drawn from it is the command line's business."""

from __future__ import annotations

from typing import Literal, Protocol

ProgressUnit = Literal["bytes", "parameters", "tensors", "items"]


class Progress(Protocol):
    """One task at a time: ``start``, any number of ``advance``, ``finish``; then the next ``start``.

    ``finish`` is owed after every ``start``, also when the work failed, and may come before ``total``.
    """

    def start(self, label: str, total: int | None, unit: ProgressUnit) -> None:
        """Begin a task of ``total`` units, or of unknown size."""
        ...

    def advance(self, amount: int) -> None: ...

    def finish(self) -> None: ...


class NullProgress:
    """Shows nothing."""

    def start(self, label: str, total: int | None, unit: ProgressUnit) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def finish(self) -> None:
        pass
