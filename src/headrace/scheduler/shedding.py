"""Who is given up first when not everybody can be kept.

Pure, of the sequences alone; when that is so, and how many must go, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.sequence import Sequence

_Rank = tuple[float, ...]


def to_shed(sequences: Iterable[Sequence]) -> Sequence | None:
    """The one to give up: of the lowest tier one that has not begun, and of those the latest.

    ``None`` where there is only one request: whatever happens, something must move.
    """
    candidates = list(sequences)
    if len({seq.request.request_id for seq in candidates}) < 2:
        return None
    return max(candidates, key=_rank)


def _rank(seq: Sequence) -> _Rank:
    """Tier first: explicit priority, then who may be late, then how much time its first token has."""
    request, level = seq.request, seq.request.service_level
    tier = (request.priority, level.may_be_late, level.ttft_s)
    return (*tier, not seq.has_begun, request.order_time, seq.seq_id)
