"""What is measured, and when: the one registry of a server.

Owns the registry and the translation of engine states and request outputs into metrics. It does not know
HTTP routes, processes or schedulers; the client over an engine (``streams.py``) feeds it, so every surface is
measured alike. What the metrics mean is written in ``metric_families.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from headrace.core.client import EngineInfo, GrammarUse, StepStats
from headrace.core.errors import (
    DeadlineExceeded,
    EngineDead,
    HeadraceError,
    InvalidRequest,
    Overloaded,
    RequestShed,
    ShuttingDown,
)
from headrace.core.memory_pressure import MemoryState
from headrace.core.request import FinishReason, OutputError, Request, RequestOutput, RequestTimes
from headrace.engine.goodput import Goodput, RequestVerdict
from headrace.engine.metric_families import MetricFamilies
from headrace.engine.metrics_compat import VllmNames
from headrace.engine.scheduling_metrics import observe_tiers, observe_waits

_MAX_ENDPOINTS = 64
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER = "other"
_OPENMETRICS = "application/openmetrics-text"

_NOTHING_YET: Final = StepStats(
    num_running=0,
    num_waiting=0,
    num_blocks=0,
    num_free_blocks=0,
    num_cached_blocks=0,
    num_step_tokens=0,
    num_step_samples=0,
    step_s=0.0,
    prefix_query_tokens=0,
    prefix_hit_tokens=0,
    num_preemptions=0,
    num_evicted_blocks=0,
)


class Metrics:
    """Counters, gauges and histograms of one server. Not thread-safe against itself; ``render`` may run anywhere.

    An engine's own counters start at zero with each engine process; only their growth is added here, so the
    exported ones never fall.
    """

    def __init__(self, model_name: str, compat: tuple[Literal["vllm"], ...] = ()) -> None:
        self._registry = CollectorRegistry()
        self._families = MetricFamilies(self._registry)
        ProcessCollector(registry=self._registry)
        if "vllm" in compat:
            self._registry.register(VllmNames(self._families, model_name))
        self._last = _NOTHING_YET
        self._success: dict[FinishReason, Counter] = {
            reason: self._families.success.labels(reason.value) for reason in (FinishReason.STOP, FinishReason.LENGTH)
        }
        self._rejected = {
            reason: self._families.rejected.labels(reason)
            for reason in ("invalid_request", "overloaded", "unavailable")
        }
        self._blocks = {state: self._families.kv_blocks.labels(state) for state in ("free", "cached", "used")}
        self._goodput = Goodput(self._families)
        self._http_requests = _BoundedChildren(self._families.http_requests)
        self._http_responses = _BoundedChildren(self._families.http_responses)

    def open_meter(self, request: Request) -> RequestMeter:
        """Begin to measure a request that the engine was given."""
        return RequestMeter(self._families, self._success, RequestVerdict(self._goodput, request), request)

    def observe_refused(self, request: Request, error: HeadraceError) -> None:
        """A request that could have been served was refused with ``error`` before it had a meter."""
        self.observe_rejected(error)
        if not isinstance(error, InvalidRequest):
            self._goodput.judge(request.service_class, is_good=False)

    def observe_rejected(self, error: HeadraceError) -> None:
        """A request was refused with ``error`` before any work was done for it."""
        if isinstance(error, EngineDead | ShuttingDown):
            reason = "unavailable"
        else:
            reason = "overloaded" if isinstance(error, Overloaded) else "invalid_request"
        self._rejected[reason].inc()

    def engine_started(self, info: EngineInfo) -> None:
        """An engine is ready: its counters start at zero."""
        self._last = _NOTHING_YET
        self._families.cache_config.clear()
        self._families.cache_config.labels(info.block_size, info.num_blocks, info.dtype).set(1)
        self._set_blocks(free=info.num_blocks, cached=0, total=info.num_blocks)
        self._families.engine_up.set(1)

    def engine_lost(self) -> None:
        """The engine is gone, and with it whatever ran or waited."""
        self._families.engine_up.set(0)
        self._families.running.set(0)
        self._families.waiting.set(0)
        observe_waits(self._families, _NOTHING_YET, self._last)
        self._set_blocks(free=0, cached=0, total=0)

    def engine_restarted(self) -> None:
        self._families.restarts.inc()

    def request_resumed(self) -> None:
        """A request was handed to the engine after the one it ran in."""
        self._families.resumed.inc()

    def request_quarantined(self) -> None:
        self._families.quarantined.inc()

    def observe_memory(self, memory: MemoryState) -> None:
        self._families.memory_pressure.set(memory.level)
        self._families.memory_available.set(memory.available_bytes)

    def observe_step(self, stats: StepStats) -> None:
        """Take over the engine's state after a step."""
        families, last = self._families, self._last
        families.running.set(stats.num_running)
        families.waiting.set(stats.num_waiting)
        self._set_blocks(stats.num_free_blocks, stats.num_cached_blocks, stats.num_blocks)
        families.jain_index.set(stats.jain_index)
        families.step_cost_error.set(stats.step_cost_error)
        if stats.num_step_tokens > 0:
            families.iteration_tokens.observe(stats.num_step_tokens)
            families.step_time.observe(stats.step_s)
        _add(families.prefix_queries, stats.prefix_query_tokens - last.prefix_query_tokens)
        _add(families.prefix_hits, stats.prefix_hit_tokens - last.prefix_hit_tokens)
        _add(families.preemptions, stats.num_preemptions - last.num_preemptions)
        _add(families.evicted_blocks, stats.num_evicted_blocks - last.num_evicted_blocks)
        _add(families.prefix_restored, stats.prefix_restored_tokens - last.prefix_restored_tokens)
        observe_waits(families, stats, last)
        observe_tiers(families, stats.tiers, last.tiers)
        _observe_grammars(families, stats.grammars, last.grammars)
        self._last = stats

    def observe_event_loop_lag(self, lag_s: float) -> None:
        self._families.event_loop_lag.set(lag_s)

    def observe_http_request(self, endpoint: str, method: str) -> None:
        """``endpoint`` is the route's pattern, never the path as it came; beyond 64 of them all are "other"."""
        self._http_requests.get((endpoint, method if method in _METHODS else _OTHER)).inc()

    def observe_http_response(self, endpoint: str, status_code: int) -> None:
        self._http_responses.get((endpoint, str(status_code) if 100 <= status_code <= 599 else _OTHER)).inc()

    def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type of a scrape: OpenMetrics 1.0.0 where ``accept`` asks for it, else text 0.0.4."""
        if any(part.split(";")[0].strip() == _OPENMETRICS for part in accept.split(",")):
            body: bytes = openmetrics.generate_latest(self._registry, version="1.0.0")  # type: ignore[no-untyped-call]
            return body, f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def _set_blocks(self, free: int, cached: int, total: int) -> None:
        used = total - free - cached
        self._blocks["free"].set(free)
        self._blocks["cached"].set(cached)
        self._blocks["used"].set(used)
        self._families.kv_usage.set(used / total if total else 0.0)


class RequestMeter:
    """Follows one request from its submission to the end of its last sequence.

    Costs a few microseconds per output: no label look-up, no clock reading.
    """

    __slots__ = ("_families", "_last_token_time", "_num_open", "_request", "_success", "_verdict")

    def __init__(
        self,
        families: MetricFamilies,
        success: dict[FinishReason, Counter],
        verdict: RequestVerdict,
        request: Request,
    ) -> None:
        self._families = families
        self._success = success
        self._verdict = verdict
        self._request = request
        self._num_open = request.sampling.n
        self._last_token_time: list[float] | None = None  # per sequence; None before the request's first token

    def observe(self, output: RequestOutput, now: float) -> None:
        """Take in an output that arrived at ``now``, seconds on the clock of ``Request.arrival_time``."""
        self._verdict.observe(output, now)
        if output.token_ids:
            self._observe_tokens(output, now)
        if output.finish_reason is not None:
            self._observe_end(output, now)

    def abort(self) -> None:
        """The client ended the request: sequences still open count as aborted."""
        self._verdict.withdraw()
        self._families.aborted.inc(self._num_open)
        self._num_open = 0

    def refuse(self, error: HeadraceError) -> None:
        """The engine did not take the request; that it was rejected is counted elsewhere."""
        if isinstance(error, InvalidRequest):
            self._verdict.withdraw()
        else:
            self._verdict.miss()

    def fail(self) -> None:
        """The engine lost the request: sequences still open count as failed."""
        self._verdict.miss()
        self._families.failed.inc(self._num_open)
        self._num_open = 0

    def _observe_tokens(self, output: RequestOutput, now: float) -> None:
        num_tokens = len(output.token_ids)
        self._families.generation_tokens.inc(num_tokens)
        if self._last_token_time is None:
            self._observe_first_token(output, now)
            self._last_token_time = [math.nan] * self._request.sampling.n
        last = self._last_token_time[output.index]
        self._last_token_time[output.index] = now
        if math.isnan(last):
            return
        gap_s = (now - last) / num_tokens  # tokens that came together share their gap evenly
        for _ in range(num_tokens):
            self._families.inter_token.observe(gap_s)

    def _observe_first_token(self, output: RequestOutput, now: float) -> None:
        families, request = self._families, self._request
        families.ttft.observe(now - request.arrival_time)
        families.prompt_tokens.inc(output.usage.num_prompt_tokens)
        families.cached_tokens.inc(output.usage.num_cached_tokens)
        families.request_params_n.observe(request.sampling.n)
        if request.sampling.max_tokens is not None:
            families.request_params_max_tokens.observe(request.sampling.max_tokens)

    def _observe_end(self, output: RequestOutput, now: float) -> None:
        self._num_open -= 1
        families, reason = self._families, output.finish_reason
        if reason is FinishReason.ABORT:
            families.aborted.inc()
        elif reason is FinishReason.ERROR:
            _error_counter(families, output.error).inc()
        elif reason is not None:
            self._success[reason].inc()
            families.e2e.observe(now - self._request.arrival_time)
            families.request_prompt_tokens.observe(output.usage.num_prompt_tokens)
            families.request_generation_tokens.observe(output.usage.num_output_tokens)
            if output.times is not None:
                self._observe_times(output.times, output.usage.num_output_tokens)

    def _observe_times(self, times: RequestTimes, num_tokens: int) -> None:
        families = self._families
        _observe_span(families.queue_time.observe, times.arrival, times.first_scheduled)
        _observe_span(families.prefill_time.observe, times.first_scheduled, times.first_token)
        _observe_span(families.decode_time.observe, times.first_token, times.finished)
        _observe_span(families.inference_time.observe, times.first_scheduled, times.finished)
        if num_tokens > 1 and not math.isnan(times.first_token):
            families.per_output_token.observe((times.finished - times.first_token) / (num_tokens - 1))


class _BoundedChildren:
    """Children of a counter by label values; values beyond the bound share one child, so series stay few."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._endpoints: set[str] = set()
        self._children: dict[Hashable, Counter] = {}

    def get(self, labels: tuple[str, str]) -> Counter:
        child = self._children.get(labels)
        if child is not None:
            return child
        endpoint, detail = labels
        if endpoint not in self._endpoints:
            if len(self._endpoints) >= _MAX_ENDPOINTS:
                return self._counter.labels(_OTHER, detail)
            self._endpoints.add(endpoint)
        child = self._children[labels] = self._counter.labels(endpoint, detail)
        return child


def _observe_grammars(families: MetricFamilies, use: GrammarUse, last: GrammarUse) -> None:
    _add(families.grammars_compiled, use.num_compiled - last.num_compiled)
    _add(families.grammars_cached, use.num_cached - last.num_cached)
    _add(families.grammar_compile_s, use.compile_s - last.compile_s)
    _add(families.mask_s, use.mask_s - last.mask_s)
    _add(families.mask_wait_s, use.mask_wait_s - last.mask_wait_s)
    _add(families.masks, use.num_masks - last.num_masks)
    _add(families.masked_mass, use.masked_mass - last.masked_mass)
    _add(families.forced_tokens, use.num_forced_tokens - last.num_forced_tokens)


def _add(counter: Counter, growth: float) -> None:
    if growth > 0:
        counter.inc(growth)


def _observe_span(observe: Callable[[float], None], start: float, end: float) -> None:
    """Observe ``end - start`` unless one of them never happened (NaN)."""
    span_s = end - start
    if not math.isnan(span_s):
        observe(span_s)


def _error_counter(families: MetricFamilies, error: OutputError | None) -> Counter:
    """Where a sequence that ended in an error counts: not every one is the engine's."""
    match None if error is None else error.kind:
        case InvalidRequest.__name__:
            return families.rejected.labels("invalid_request")
        case Overloaded.__name__:
            return families.rejected.labels("overloaded")
        case DeadlineExceeded.__name__:
            return families.expired
        case RequestShed.__name__:
            return families.shed
        case _:
            return families.failed
