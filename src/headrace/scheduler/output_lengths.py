"""How long answers tend to be, so that room in the KV cache can be kept for them.

Owns the recent output lengths of each class and tenant, and the share of them that is reserved. What a request
will really generate is unknown to every policy, also in simulations.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from headrace.core.sequence import Sequence

PERCENTILE: Final = 0.70
FIRST_GUESS: Final = 128.0
MIN_SHARE: Final = 0.5
MAX_SHARE: Final = 2.0
_SHARE_GROWTH: Final = 1.2
_SHARE_DECAY: Final = 0.999
_NUM_REMEMBERED: Final = 64
_MAX_GROUPS: Final = 4096

_Group = tuple[str, str]


class OutputLengths:
    """The 70th percentile of the latest outputs, by class and tenant; bounded in groups and in lengths."""

    def __init__(self) -> None:
        self._lengths: OrderedDict[_Group, deque[int]] = OrderedDict()
        self._expected: dict[_Group, float] = {}

    def observe(self, seq: Sequence) -> None:
        """A sequence finished by itself."""
        group = _group(seq)
        lengths = self._lengths.get(group)
        if lengths is None:
            lengths = self._lengths[group] = deque(maxlen=_NUM_REMEMBERED)
            if len(self._lengths) > _MAX_GROUPS:
                del self._expected[self._lengths.popitem(last=False)[0]]
        else:
            self._lengths.move_to_end(group)
        lengths.append(seq.num_output_tokens)
        self._expected[group] = float(sorted(lengths)[int(PERCENTILE * (len(lengths) - 1))])

    def expected(self, seq: Sequence) -> float:
        """Output tokens a sequence is expected to have in the end; at most what it may have."""
        expected = self._expected.get(_group(seq), FIRST_GUESS)
        max_tokens = seq.request.sampling.max_tokens
        return expected if max_tokens is None else min(expected, max_tokens)


class OutputReserve:
    """The share of expected outputs for which room is kept: more after each preemption, less as steps pass."""

    def __init__(self, lengths: OutputLengths) -> None:
        self._lengths = lengths
        self.share = MIN_SHARE

    def num_tokens(self, seq: Sequence) -> int:
        """Room to keep for what ``seq`` will generate yet."""
        remaining = self._lengths.expected(seq) - seq.num_output_tokens
        return int(self.share * max(remaining, 0.0))

    def on_step(self) -> None:
        self.share = max(self.share * _SHARE_DECAY, MIN_SHARE)

    def on_preempted(self) -> None:
        self.share = min(self.share * _SHARE_GROWTH, MAX_SHARE)


def _group(seq: Sequence) -> _Group:
    return (seq.request.service_class, seq.request.tenant)
