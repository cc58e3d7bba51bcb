"""Which program of many calls an HTTP request is part of, as its headers say.

Owns the reading of ``x-program-id``, ``x-program-tokens-left`` and ``x-program-guess``, and since when each program
runs. They are headers because they say nothing about the answer: a server that does not know them loses nothing by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from headrace.core.errors import InvalidRequest
from headrace.core.program_place import ProgramPlace

ID_HEADER: Final = b"x-program-id"
TOKENS_LEFT_HEADER: Final = b"x-program-tokens-left"
GUESS_HEADER: Final = b"x-program-guess"

MAX_ID_CHARS: Final = 128
MAX_TOKENS_LEFT: Final = 2**31 - 1
MAX_REMEMBERED: Final = 4096
FORGET_AFTER_S: Final = 600.0
"""How many programs are remembered, the latest of them, and how long after their last request."""

_NAMES: Final = (ID_HEADER, TOKENS_LEFT_HEADER, GUESS_HEADER)
_ID: Final = re.compile(rf"[!-~]{{1,{MAX_ID_CHARS}}}")
_COUNT: Final = re.compile(r"[0-9]{1,10}")
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


class ProgramPlaces:
    """The programs of one server's clients. A program is known by its id and the tenant it belongs to."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, str], tuple[float, float]] = {}  # first and last request

    def of(self, headers: Iterable[tuple[bytes, bytes]], tenant: str, now: float) -> ProgramPlace | None:
        """Where a request stands; ``None`` if it is part of no program. A program began with its first request.

        Raises ``InvalidRequest`` naming the header, its value and what it must be.
        """
        given = {name: value.decode("latin-1") for name, value in headers if name in _NAMES}
        if not given:
            return None
        program_id = _checked_id(given)
        began, last = self._spans.pop((tenant, program_id), (now, now))
        if now - last > FORGET_AFTER_S:
            began = now
        self._spans[tenant, program_id] = (began, now)  # the latest used comes last
        if len(self._spans) > MAX_REMEMBERED:
            self._spans.pop(next(iter(self._spans)))
        return ProgramPlace(program_id, began, _num_tokens_left(given), _is_guess(given))


def _checked_id(given: Mapping[bytes, str]) -> str:
    program_id = given.get(ID_HEADER)
    if program_id is None:
        named = next(iter(given)).decode()
        raise InvalidRequest(f"the header {named} is about a program; send x-program-id as well", "x-program-id")
    if _ID.fullmatch(program_id) is None:
        raise _refusal(ID_HEADER, program_id, f"1 to {MAX_ID_CHARS} printable ASCII characters without spaces")
    return program_id


def _num_tokens_left(given: Mapping[bytes, str]) -> int:
    text = given.get(TOKENS_LEFT_HEADER, "0")
    if _COUNT.fullmatch(text) is None or int(text) > MAX_TOKENS_LEFT:
        raise _refusal(TOKENS_LEFT_HEADER, text, f"a number from 0 to {MAX_TOKENS_LEFT}")
    return int(text)


def _is_guess(given: Mapping[bytes, str]) -> bool:
    text = given.get(GUESS_HEADER, "false")
    if text.lower() not in _TRUTHS:
        raise _refusal(GUESS_HEADER, text, "true or false")
    return _TRUTHS[text.lower()]


def _refusal(header: bytes, value: str, rule: str) -> InvalidRequest:
    name = header.decode()
    return InvalidRequest(f"the header {name} is {value[:40]!r} but must be {rule}", name)
