"""Records of requests as a test wants them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

from headrace.bench.record import Outcome, RequestRecord


def record(
    intended_s: float = 0.0,
    arrivals_s: Sequence[float] = (0.5, 0.6),
    num_output_tokens: int | None = None,
    group: str = "",
    outcome: Outcome = Outcome.OK,
    turn: int = 0,
) -> RequestRecord:
    """A request whose chunks came at these moments and that ended with the last."""
    made = RequestRecord(0, 0, turn, group, intended_s, intended_s, intended_s)
    made.arrivals_s = array("d", arrivals_s)
    made.gaps_s = array("d", [b - a for a, b in pairwise(arrivals_s)])
    made.end_s = arrivals_s[-1]
    made.outcome = outcome
    made.num_input_tokens = 100
    made.num_output_tokens = len(arrivals_s) if num_output_tokens is None else num_output_tokens
    return made
