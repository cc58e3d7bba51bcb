"""The token masks of a step, computed on other threads while the forward pass runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import llguidance
import numpy as np

from headrace.core.step import TokenMask
from headrace.grammar.builder import mask_words
from headrace.grammar.matcher import RowFiller


@dataclass(frozen=True, slots=True)
class MaskRows:
    """Which matcher fills which row of a step's mask; rows without one allow everything."""

    num_rows: int
    matchers: Sequence[tuple[int, RowFiller]]


class FillingMask:
    """A mask that is being computed; see ``core.step.PendingMask``."""

    def __init__(self, future: Future[tuple[TokenMask, float]]) -> None:
        self._future = future
        self.waited_s = 0.0
        self.fill_s = 0.0

    def wait(self) -> TokenMask:
        """The finished mask. ``waited_s`` is how long the step had to wait, ``fill_s`` how long the work took."""
        started = time.perf_counter()
        mask, self.fill_s = self._future.result()
        self.waited_s += time.perf_counter() - started
        return mask


class MaskFiller:
    """Fills masks for one vocabulary: one call into the library for all rows of a step, on its own threads."""

    def __init__(self, vocab_size: int, num_threads: int) -> None:
        self._num_words = mask_words(vocab_size)
        self._library = llguidance.LLExecutor(num_threads)
        self._thread = ThreadPoolExecutor(1, "token-mask")

    def start(self, rows: MaskRows) -> FillingMask:
        """Begin. Until the mask has been waited for, its matchers belong to the filler."""
        return FillingMask(self._thread.submit(self._fill, rows))

    def close(self) -> None:
        self._thread.shutdown()

    def _fill(self, rows: MaskRows) -> tuple[TokenMask, float]:
        started = time.perf_counter()
        mask = np.full((rows.num_rows, self._num_words), -1, np.int32)
        live = [(matcher.library, row) for row, matcher in rows.matchers if matcher.library is not None]
        if live:
            self._library.unsafe_compute_mask_ptr(live, mask.ctypes.data, 4 * self._num_words, rows.num_rows)
        for row, matcher in rows.matchers:
            matcher.finish_row(mask[row])
        return mask, time.perf_counter() - started
