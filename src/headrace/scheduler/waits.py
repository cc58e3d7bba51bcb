"""Why those who wait were not served in a step, in a few words that timelines and metrics share."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from headrace.core.sequence import Sequence


class WaitReason(enum.Enum):
    """What stood between a waiting sequence and a step; the values are labels of metrics."""

    KV_BLOCKS = "kv_blocks"
    """The KV cache has no room for the next in line, or room was just taken from somebody who ran."""
    MAX_NUM_SEQS = "max_num_seqs"
    """As many sequences run as may."""
    BUDGET = "token_budget"
    """The step is as long as it may be."""
    SHARED_PREFIX = "shared_prefix"
    """Another sequence is computing a prefix that this one will take over."""
    DISK = "disk"
    """Blocks of it are being read from disk."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Who waited in a step and why.

    ``reason`` is why the line as a whole went no further; ``None`` if everybody in it had a turn. ``held`` had their
    turn and were passed over, each for a reason of its own. ``num_waiting`` counts both.
    """

    reason: WaitReason | None = None
    held: tuple[tuple[Sequence, WaitReason], ...] = ()
    num_waiting: int = 0
