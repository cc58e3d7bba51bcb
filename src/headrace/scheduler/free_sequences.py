"""How many sequences decode together in about the time of one.

Owns what was seen of it. The cost model tells how steps grow over hundreds of tokens; here it is a few tokens that
count, where kernels take the next row along for nothing, or do not.
"""

from __future__ import annotations

from typing import Final

from headrace.core.step import StepResult
from headrace.scheduler.cost_model import StepCosts, StepFeatures

MAX_FREE_SEQUENCES: Final = 16

FREE_SHARE: Final = 0.2
"""A step that takes longer than another by at most this share of it counts as long as the other."""

_MIN_SEEN: Final = 4
_SMOOTHING: Final = 0.9
_OUTLIER: Final = 2.0
"""A step this many times slower than usual was disturbed by something else, and counts as so many times slower."""


class FreeSequences:
    """Durations of steps that only decode, by how many sequences are in them."""

    def __init__(self) -> None:
        self._seconds = [0.0] * (MAX_FREE_SEQUENCES + 1)
        self._num_seen = [0] * (MAX_FREE_SEQUENCES + 1)

    def observe(self, features: StepFeatures, result: StepResult) -> None:
        """Take in a step. Cheap: O(1)."""
        count = features.num_decodes
        if features.num_new_tokens > 0 or not 1 <= count <= MAX_FREE_SEQUENCES:
            return
        seconds = result.elapsed_s - result.transfer_s
        usual = self._seconds[count]
        if self._num_seen[count] > 0:
            seconds = _SMOOTHING * usual + (1 - _SMOOTHING) * min(seconds, _OUTLIER * usual)
        self._seconds[count] = seconds
        self._num_seen[count] += 1

    def count(self, costs: StepCosts) -> int:
        """How many there are; ``costs`` tells of numbers that were not seen yet."""
        alone_s = self._decodes_s(1, costs)
        for count in range(2, MAX_FREE_SEQUENCES + 1):
            if self._decodes_s(count, costs) > (1 + FREE_SHARE) * alone_s:
                return count - 1
        return MAX_FREE_SEQUENCES

    def _decodes_s(self, count: int, costs: StepCosts) -> float:
        is_known = min(self._num_seen[1], self._num_seen[count]) >= _MIN_SEEN
        return self._seconds[count] if is_known else costs.decodes_s(count, 0)
