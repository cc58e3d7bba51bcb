"""Goodput as it happens: which of the requests offered met all their targets, by class.

A request is offered when it comes, and judged once: when its last sequence ends, or when it is refused for want of
capacity. It is good if every sequence of it finished with its first token, its mean time per token and its end in time
(Zhong et al., "DistServe", OSDI 2024, section 2.3); without targets, if it finished. Requests that were wrong, or that
their clients gave up, say nothing about the server and are left out.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from headrace.core.errors import InvalidRequest
from headrace.core.request import FinishReason, Request, RequestOutput
from headrace.engine.metric_families import MetricFamilies

WINDOW: Final = 256
"""Requests of a class, the latest ones, that the ratio is taken over."""


class Goodput:
    """The verdicts of all classes. Classes are those of the config, so their number is bounded."""

    def __init__(self, families: MetricFamilies) -> None:
        self._families = families
        self._latest: dict[str, deque[bool]] = {}

    def judge(self, service_class: str, is_good: bool) -> None:
        """Count one request."""
        self._families.offered.labels(service_class).inc()
        if is_good:
            self._families.on_target.labels(service_class).inc()
        latest = self._latest.setdefault(service_class, deque(maxlen=WINDOW))
        latest.append(is_good)
        self._families.goodput_ratio.labels(service_class).set(sum(latest) / len(latest))


class RequestVerdict:
    """Whether one request meets its targets; measured where its tokens leave the engine's client."""

    __slots__ = ("_first_token_times", "_goodput", "_is_good", "_num_open", "_request")

    def __init__(self, goodput: Goodput, request: Request) -> None:
        self._goodput = goodput
        self._request = request
        self._is_good = True
        self._num_open = request.sampling.n
        self._first_token_times: dict[int, float] = {}

    def observe(self, output: RequestOutput, now: float) -> None:
        """Take in an output that arrived at ``now``."""
        if output.token_ids:
            self._first_token_times.setdefault(output.index, now)
        if output.finish_reason is FinishReason.ABORT or _is_callers_fault(output):
            self.withdraw()
        elif output.finish_reason is not None:
            self._end(output, now)

    def miss(self) -> None:
        """The request was refused, or the engine lost it."""
        if self._num_open:
            self._num_open = 0
            self._goodput.judge(self._request.service_class, is_good=False)

    def withdraw(self) -> None:
        """The client gave it up: it is not judged."""
        self._num_open = 0

    def _end(self, output: RequestOutput, now: float) -> None:
        if not self._num_open:
            return
        self._num_open -= 1
        self._is_good = self._is_good and self._is_on_target(output, now)
        if not self._num_open:
            self._goodput.judge(self._request.service_class, self._is_good)

    def _is_on_target(self, output: RequestOutput, now: float) -> bool:
        if output.finish_reason is FinishReason.ERROR:
            return False
        level, arrival = self._request.service_level, self._request.arrival_time
        first = self._first_token_times.get(output.index, math.inf)
        num_gaps = output.usage.num_output_tokens - 1
        tpot_s = (now - first) / num_gaps if num_gaps > 0 else 0.0
        return first - arrival <= level.ttft_s and tpot_s <= level.tpot_s and now - arrival <= level.deadline_s


def _is_callers_fault(output: RequestOutput) -> bool:
    return output.error is not None and output.error.kind == InvalidRequest.__name__
