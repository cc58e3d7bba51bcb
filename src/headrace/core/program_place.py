"""Where in a program of many calls a request stands."""

from __future__ import annotations

import msgspec


class ProgramPlace(msgspec.Struct, frozen=True, array_like=True):
    """The program of many calls that a request is part of, and where in it the request stands.

    The program began with its first call, at ``began``. ``num_tokens_left`` is how much is to be generated from this
    call on along the longest chain of calls that wait for each other, as far as is known. A call on a guess is made
    before it is certain that its answer is wanted: it is computed with what the others leave.
    """

    program_id: str
    began: float
    num_tokens_left: int = 0
    is_guess: bool = False
