"""Whether answers under load are the answers a request gets alone: greedy ones are asked again when all is quiet."""

from __future__ import annotations

from headrace.bench.load_generator import Target
from headrace.bench.record import RequestRecord
from headrace.bench.server_probe import ask_once
from headrace.bench.summary import VerifyResult
from headrace.bench.workload import Session
from headrace.core.errors import RequestFailed

_SHOWN_CHARS = 40


class AnswerCheck:
    """Keeps the answers of the first turns of ``num_wanted`` sessions, spread over the run. *Mutable.*"""

    def __init__(self, num_wanted: int, num_sessions: int) -> None:
        step = max(num_sessions // num_wanted, 1) if num_wanted else 0
        self._wanted = set(range(0, step * num_wanted, step)) if step else set()
        self._texts: dict[int, list[str]] = {}

    def hear(self, record: RequestRecord) -> None:
        """Keep the answer if it is wanted; one that failed or was cut off says nothing."""
        if record.session in self._wanted and record.turn == 0 and record.is_ok:
            self._texts[record.session] = record.texts

    def wants(self, session: int) -> bool:
        return session in self._texts

    async def compare(self, target: Target, number: int, session: Session, result: VerifyResult) -> VerifyResult:
        """Ask one session's first turn again, alone, and add what came of it to ``result``."""
        try:
            again = (await ask_once(target, session)).texts
        except RequestFailed as error:
            again = [f"({error.message})"]
        under_load = self._texts[number]
        if again == under_load:
            return VerifyResult(result.num_checked + 1, result.num_equal + 1, result.first_difference)
        difference = result.first_difference or f"session {number}: {_difference(under_load, again)}"
        return VerifyResult(result.num_checked + 1, result.num_equal, difference)


def _difference(under_load: list[str], alone: list[str]) -> str:
    left, right = "".join(under_load), "".join(alone)
    at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    return (
        f"from character {at}, {left[at : at + _SHOWN_CHARS]!r} under load and {right[at : at + _SHOWN_CHARS]!r} alone"
    )
