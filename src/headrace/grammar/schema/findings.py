"""What became of each keyword of a schema, with its place: for errors, warnings and the lint."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from headrace.core.errors import InvalidRequest


class Outcome(enum.Enum):
    """``ENFORCED`` by the library as it stands, ``REWRITTEN`` exactly into what it enforces, ``ANNOTATION`` by
    definition no condition, ``REFUSED`` a condition that cannot be enforced.
    """

    ENFORCED = "enforced"
    REWRITTEN = "rewritten"
    ANNOTATION = "annotation"
    REFUSED = "refused"


class Finding(msgspec.Struct, frozen=True):
    """``place`` is a JSON pointer to the keyword, in the schema as it was given."""

    place: str
    outcome: Outcome
    note: str = ""


class Findings:
    """Collects findings; the first word on a place stands, except that a refusal outranks all."""

    def __init__(self) -> None:
        self._by_place: dict[str, Finding] = {}

    def add(self, place: str, outcome: Outcome, note: str = "") -> None:
        known = self._by_place.get(place)
        if known is None or outcome is Outcome.REFUSED:
            self._by_place[place] = Finding(place, outcome, note)

    def all(self) -> list[Finding]:
        return sorted(self._by_place.values(), key=lambda each: each.place)

    def refused(self) -> list[Finding]:
        return [each for each in self._by_place.values() if each.outcome is Outcome.REFUSED]


def refusal(refused: Sequence[Finding]) -> InvalidRequest:
    """The error that names every keyword that cannot be enforced, the first with its reason."""
    first = refused[0]
    others = f"; also {', '.join('#' + each.place for each in refused[1:6])}" if len(refused) > 1 else ""
    more = f" and {len(refused) - 6} more" if len(refused) > 6 else ""
    return InvalidRequest(f"#{first.place} cannot be enforced: {first.note}{others}{more}")
