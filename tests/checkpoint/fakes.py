"""Stand-ins for the network and for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.checkpoint.catalog import Wheel
from headrace.core.progress import Progress, ProgressUnit
from tests.checkpoint.builders import write_wheel


@dataclass
class RecordedTask:
    label: str
    total: int | None
    unit: ProgressUnit
    done: int = 0
    is_finished: bool = False


@dataclass
class RecordedProgress:
    """Remembers every task, and that they were reported in order."""

    tasks: list[RecordedTask] = field(default_factory=list)

    def start(self, label: str, total: int | None, unit: ProgressUnit) -> None:
        assert all(task.is_finished for task in self.tasks)
        self.tasks.append(RecordedTask(label, total, unit))

    def advance(self, amount: int) -> None:
        assert amount > 0
        self.tasks[-1].done += amount

    def finish(self) -> None:
        assert not self.tasks[-1].is_finished
        self.tasks[-1].is_finished = True


@dataclass
class FakeIndex:
    """A package index in memory: requirement -> members of its wheel; counts what is asked for."""

    packages: Mapping[str, Mapping[str, bytes]]
    before: Callable[[], None] = lambda: None
    asked: list[str] = field(default_factory=list)

    def __call__(self, wheel: Wheel, folder: Path, progress: Progress) -> None:
        self.asked.append(wheel.requirement)
        self.before()
        path = write_wheel(folder / f"{wheel.name}-{wheel.version}-py3-none-any.whl", self.packages[wheel.requirement])
        progress.advance(path.stat().st_size)
