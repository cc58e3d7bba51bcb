"""Every metric the server exports: name, unit, buckets and meaning, in one place.

Owns the definitions and nothing else; what feeds them is ``metrics.py``, other servers' names for them are
``metrics_compat.py``. Names are ``headrace_`` plus the field's usual word plus the unit. Labels take values
from closed sets only, so the number of series does not grow with traffic.

What counts as one: gauges and terminal counters count sequences (a request with ``n=4`` is four), because
that is what holds memory and ends on its own. Every sequence that was taken in ends in exactly one of
``request_success``, ``requests_aborted``, ``requests_expired``, ``requests_shed`` and ``requests_failed``; a request
that was never taken in, or refused while it waited, counts once in ``requests_rejected``. The histograms of finished
sequences leave out aborted, shed and failed ones; time to first token and inter-token latency are observed as tokens
come, whatever becomes of the request later.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX: Final = "headrace_"

_LATENCY_S: Final = tuple(
    factor * scale for scale, factor in product((0.001, 0.01, 0.1, 1.0, 10.0, 100.0), (1.0, 2.5, 5.0))
)
_TOKEN_GAP_S: Final = tuple(
    gap_ms / 1000
    for gap_ms in (1, 2.5, 5, 7.5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500, 10000)
)
_TOKENS: Final = tuple(factor * 10**power for power, factor in product(range(6), (1, 2, 5)))
_STEP_TOKENS: Final = tuple(2**power for power in range(15))
_N: Final = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """One line of the reference; ``name`` as it is exported, histograms without their suffixes."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


class MetricFamilies:
    """The families of one registry; attributes are the prometheus-client objects."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.descriptions: list[MetricDescription] = []
        self._define_engine_state()
        self._define_counters()
        self._define_grammars()
        self._define_latencies()
        self._define_sizes()
        self._define_http()

    def _define_engine_state(self) -> None:
        self.running = self._gauge("num_requests_running", "Sequences in the running batch")
        self.waiting = self._gauge("num_requests_waiting", "Sequences waiting to be scheduled")
        self.waiting_for = self._gauge(
            "num_requests_waiting_by_reason",
            "Waiting sequences by what stood in their way in the last step",
            "reason",
        )
        self.goodput_ratio = self._gauge(
            "goodput_ratio", "Share of the latest 256 offered requests of a class that met all targets", "service_class"
        )
        self.tier_blocks = self._gauge("kv_tier_blocks", "KV blocks kept below the KV cache", "tier")
        self.kv_usage = self._gauge("kv_cache_usage_ratio", "Share of KV blocks held by running sequences, 0 to 1")
        self.kv_blocks = self._gauge("kv_cache_blocks", "KV blocks by state; their sum is the pool", "state")
        self.jain_index = self._gauge(
            "tenant_fairness_jain_index", "Jain's index of the tenants' weighted service of late, 1/tenants to 1"
        )
        self.step_cost_error = self._gauge(
            "step_cost_error_ratio", "Median error of foretold step durations, relative to the measured ones"
        )
        self.cache_config = self._gauge(
            "cache_config_info", "KV cache geometry; the value is always 1", "block_size", "num_blocks", "dtype"
        )
        self.engine_up = self._gauge("engine_up", "Whether an engine is loaded, 0 or 1")
        self.memory_pressure = self._gauge(
            "memory_pressure_level",
            "How short memory is: 0 not, 1 caches grow no further, 2 new requests are refused, 3 requests are ended",
        )
        self.memory_available = self._gauge("memory_available_bytes", "Memory that the machine or container has left")
        self.event_loop_lag = self._gauge(
            "event_loop_lag_seconds", "How late the API event loop ran a timer, the worst of the last ten seconds"
        )

    def _define_counters(self) -> None:
        self.prefix_queries = self._counter("prefix_cache_query_tokens", "Prompt tokens looked up in the prefix cache")
        self.prefix_hits = self._counter("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache")
        self.prefix_restored = self._counter(
            "prefix_cache_restored_tokens", "Prompt tokens brought back from the tiers below the KV cache"
        )
        self.tier_transfers = self._counter(
            "kv_tier_transfers", "KV blocks copied between tiers: offload, restore, spill, fetch", "kind"
        )
        self.tier_losses = self._counter(
            "kv_tier_losses", "KV blocks lost below the KV cache: dropped for room, or damaged", "cause"
        )
        self.preemptions = self._counter("preemptions", "Sequences preempted because KV blocks ran out")
        self.evicted_blocks = self._counter("kv_cache_evicted_blocks", "Cached KV blocks given to new tokens")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that began to answer")
        self.cached_tokens = self._counter("prompt_tokens_cached", "Those prompt tokens that the prefix cache saved")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated")
        self.success = self._counter("request_success", "Sequences that finished, by reason", "finished_reason")
        self.aborted = self._counter("requests_aborted", "Sequences ended by their client before they finished")
        self.failed = self._counter("requests_failed", "Sequences that ended in an error of the engine")
        self.offered = self._counter(
            "requests_offered", "Requests judged against their targets, refused ones included", "service_class"
        )
        self.on_target = self._counter("requests_on_target", "Those that met all of their targets", "service_class")
        self.wait_time = self._counter(
            "requests_waiting_seconds", "Seconds that sequences waited, added up, by what stood in their way", "reason"
        )
        self.rejected = self._counter("requests_rejected", "Requests refused before any work was done", "reason")
        self.expired = self._counter("requests_expired", "Sequences ended because their own time was up")
        self.shed = self._counter("requests_shed", "Sequences ended because memory ran out")
        self.resumed = self._counter("requests_resumed", "Times a request carried on in the engine after its own")
        self.quarantined = self._counter("requests_quarantined", "Requests ended because the engine died of them twice")
        self.restarts = self._counter("engine_restarts", "Times the engine process was started again")

    def _define_grammars(self) -> None:
        self.grammars_compiled = self._counter("grammars_compiled", "Constraints compiled into grammars")
        self.grammars_cached = self._counter("grammar_cache_hits", "Constraints whose grammar was known already")
        self.grammar_compile_s = self._counter(
            "grammar_compile_seconds", "Time spent compiling constraints, in seconds"
        )
        self.mask_s = self._counter(
            "token_mask_seconds", "Time spent filling token masks, beside the steps, in seconds"
        )
        self.mask_wait_s = self._counter("token_mask_wait_seconds", "Time steps waited for token masks, in seconds")
        self.masks = self._counter("token_masks", "Tokens chosen under a mask")
        self.masked_mass = self._counter(
            "masked_probability_mass",
            "How likely forbidden tokens were, added up over token_masks: how far constraints bend the model",
        )
        self.forced_tokens = self._counter("forced_tokens", "Tokens a grammar forced, each a step saved")

    def _define_latencies(self) -> None:
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From arrival of a request to its first token", _LATENCY_S
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Gap between a sequence's consecutive tokens", _TOKEN_GAP_S
        )
        self.per_output_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean gap between the tokens of a finished sequence",
            _TOKEN_GAP_S,
        )
        self.e2e = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the last token of a finished sequence", _LATENCY_S
        )
        self.queue_time = self._histogram(
            "request_queue_time_seconds", "From arrival to the first step of a finished sequence", _LATENCY_S
        )
        self.prefill_time = self._histogram(
            "request_prefill_time_seconds", "From the first step to the first token of a finished sequence", _LATENCY_S
        )
        self.decode_time = self._histogram(
            "request_decode_time_seconds", "From the first to the last token of a finished sequence", _LATENCY_S
        )
        self.inference_time = self._histogram(
            "request_inference_time_seconds", "From the first step to the end of a finished sequence", _LATENCY_S
        )
        self.step_time = self._histogram("step_duration_seconds", "Time the executor took for a step", _TOKEN_GAP_S)

    def _define_sizes(self) -> None:
        self.iteration_tokens = self._histogram("iteration_tokens", "Tokens computed in a step", _STEP_TOKENS)
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a finished sequence", _TOKENS
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Tokens generated for a finished sequence", _TOKENS
        )
        self.request_params_n = self._histogram("request_params_n", "The n of requests that began to answer", _N)
        self.request_params_max_tokens = self._histogram(
            "request_params_max_tokens", "The max_tokens of requests that began to answer", _TOKENS
        )

    def _define_http(self) -> None:
        self.http_requests = self._counter("http_requests", "HTTP requests received", "endpoint", "method")
        self.http_responses = self._counter("http_responses", "HTTP responses sent", "endpoint", "status_code")

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        self._describe(name, "gauge", labels, meaning)
        return Gauge(PREFIX + name, meaning, labels, registry=self._registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        self._describe(f"{name}_total", "counter", labels, meaning)
        return Counter(PREFIX + name, meaning, labels, registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        self._describe(name, "histogram", (), meaning)
        return Histogram(PREFIX + name, meaning, buckets=buckets, registry=self._registry)

    def _describe(self, name: str, kind: str, labels: tuple[str, ...], meaning: str) -> None:
        self.descriptions.append(MetricDescription(PREFIX + name, kind, labels, meaning))
