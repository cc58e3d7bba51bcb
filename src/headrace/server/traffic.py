"""What the server has done so far, and the one line about it that is logged while there is work.

Owns counters that only grow and the arithmetic between two readings of them. It does not know how requests
are served or when the line is due.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace.core.client import StepStats
from headrace.core.clock import Clock
from headrace.core.request import Request

STATUS_PERIOD_S = 10.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Traffic:
    """Counters of one server, kept by whoever generates. ``num_live`` engine requests run now.

    ``owners`` are their tenants by their ids.
    """

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_live: int = 0
    owners: dict[str, str] = field(default_factory=dict)

    def begin(self, request: Request) -> None:
        self.num_requests += 1
        self.num_live += 1
        self.owners[request.request_id] = request.tenant
        self.num_prompt_tokens += len(request.prompt_token_ids)

    def end(self, request: Request) -> None:
        self.num_live -= 1
        self.owners.pop(request.request_id, None)

    def sent_as(self, request_id: str, tenant: str | None) -> list[str]:
        """The live engine requests that a client sent as ``request_id``, by whatever dialect; of one tenant or any."""
        engine_id = re.compile(rf"[a-z]+-{re.escape(request_id)}-[0-9a-f]{{12}}(-[0-9]+)?")
        owned = (each for each, owner in self.owners.items() if tenant in (None, owner))
        return [each for each in owned if engine_id.fullmatch(each) is not None]


@dataclass(frozen=True, slots=True)
class Reading:
    """The server's and the engine's counters at one moment, seconds on the server's clock."""

    time: float
    traffic: Traffic
    stats: StepStats | None


def status_line(before: Reading, after: Reading) -> str | None:
    """What happened between two readings; ``None`` if nothing did."""
    requests = after.traffic.num_requests - before.traffic.num_requests
    outputs = after.traffic.num_output_tokens - before.traffic.num_output_tokens
    if requests == 0 and outputs == 0 and after.traffic.num_live == 0:
        return None
    elapsed_s = max(after.time - before.time, 1e-9)
    prompts = after.traffic.num_prompt_tokens - before.traffic.num_prompt_tokens
    line = f"prompt {prompts / elapsed_s:.1f} tokens/s, output {outputs / elapsed_s:.1f} tokens/s, {requests} requests"
    return line if after.stats is None else f"{_engine_part(before.stats, after.stats)}, {line}"


def _engine_part(before: StepStats | None, after: StepStats) -> str:
    used = after.num_blocks - after.num_free_blocks - after.num_cached_blocks
    queries = after.prefix_query_tokens - (0 if before is None else before.prefix_query_tokens)
    hits = after.prefix_hit_tokens - (0 if before is None else before.prefix_hit_tokens)
    if queries <= 0:  # nothing looked up, or another engine with counters that start anew
        queries, hits = after.prefix_query_tokens, after.prefix_hit_tokens
    return (
        f"running {after.num_running}, waiting {after.num_waiting}, "
        f"KV {100 * used / max(after.num_blocks, 1):.1f} % used, "
        f"prefix hits {100 * hits / max(queries, 1):.1f} %"
    )


async def log_status(clock: Clock, traffic: Traffic, engine_stats: Callable[[], StepStats | None]) -> None:
    """Log one line every ``STATUS_PERIOD_S`` in which there was work, until cancelled."""

    def read() -> Reading:
        return Reading(clock.now(), replace(traffic), engine_stats())

    before = read()
    while True:
        await asyncio.sleep(STATUS_PERIOD_S)
        after = read()
        line = status_line(before, after)
        if line is not None:
            logger.info("%s", line)
        before = after
