"""The check of the KV cache's books while an engine has nothing else to do."""

from __future__ import annotations

import logging
import math
from typing import Final

from headrace.cache.kv_cache import KVCacheManager

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 10.0
"""How often at most: on a large pool it takes tens of milliseconds."""


class IdleAudit:
    """With nothing running every block is free or cached; says so if not, and mends it."""

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._next_time = -math.inf

    def check(self, now: float) -> None:
        """To be called when nothing runs; most calls do nothing."""
        if now < self._next_time:
            return
        self._next_time = now + CHECK_INTERVAL_S
        violations = self._kv.check()
        if violations:
            logger.error("KV blocks lost or shared while idle: %s", "; ".join(violations))
            for repair in self._kv.heal([]):
                logger.error("KV cache repaired: %s", repair)
