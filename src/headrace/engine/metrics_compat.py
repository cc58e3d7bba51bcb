"""Our metrics under the names dashboards already know.

Owns the mapping to vLLM's names and labels. It measures nothing: every scrape reads our own families and
renames their samples, so the two can never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from headrace.engine.metric_families import MetricFamilies

_Source = Counter | Gauge | Histogram


class VllmNames(Collector):
    """Exports the families under ``vllm:`` with vLLM's ``model_name`` and ``engine`` labels.

    ``vllm:kv_cache_usage_perc`` is a ratio in [0, 1] there too. ``gpu_cache_usage_perc`` and
    ``time_per_output_token_seconds`` are the names that older dashboards use for the same things.
    """

    def __init__(self, families: MetricFamilies, model_name: str) -> None:
        self._families = families
        self._labels = {"model_name": model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        families = self._families
        for name, source in _same_meaning(families).items():
            yield from self._renamed(name, source)
        yield self._request_success()
        yield self._cache_config()

    def describe(self) -> Iterable[Metric]:
        """Names are fixed at construction: an empty answer keeps the registry from collecting to learn them."""
        return ()

    def _renamed(self, name: str, source: _Source) -> Iterator[Metric]:
        for metric in source.collect():
            renamed = Metric(name, metric.documentation, metric.type)
            renamed.samples = [
                self._sample(name + sample.name[len(metric.name) :], sample.labels, sample.value)
                for sample in metric.samples
            ]
            yield renamed

    def _request_success(self) -> Metric:
        """vLLM counts aborted and failed ends as finish reasons of the same counter."""
        name = "vllm:request_success"
        metric = Metric(name, "Sequences that ended, by reason", "counter")
        families = self._families
        reasons = {sample.labels["finished_reason"]: sample.value for sample in _totals(families.success)}
        reasons["abort"] = sum(sample.value for sample in _totals(families.aborted))
        reasons["error"] = sum(sample.value for sample in _totals(families.failed))
        metric.samples = [
            self._sample(f"{name}_total", {"finished_reason": reason}, value) for reason, value in reasons.items()
        ]
        return metric

    def _cache_config(self) -> Metric:
        name = "vllm:cache_config_info"
        metric = Metric(name, "KV cache geometry; the value is always 1", "gauge")
        for source in self._families.cache_config.collect():
            for sample in source.samples:
                labels = {
                    "block_size": sample.labels["block_size"],
                    "num_gpu_blocks": sample.labels["num_blocks"],
                    "cache_dtype": sample.labels["dtype"],
                }
                metric.samples.append(self._sample(name, labels, sample.value))
        return metric

    def _sample(self, name: str, labels: dict[str, str], value: float) -> Sample:
        return Sample(name, {**self._labels, **labels}, value)


def _totals(counter: Counter) -> list[Sample]:
    return [sample for metric in counter.collect() for sample in metric.samples if sample.name.endswith("_total")]


def _same_meaning(families: MetricFamilies) -> dict[str, _Source]:
    """vLLM's name -> ours, where nothing but the name differs."""
    names: dict[str, _Source] = {
        "num_requests_running": families.running,
        "num_requests_waiting": families.waiting,
        "kv_cache_usage_perc": families.kv_usage,
        "gpu_cache_usage_perc": families.kv_usage,
        "prefix_cache_queries": families.prefix_queries,
        "prefix_cache_hits": families.prefix_hits,
        "num_preemptions": families.preemptions,
        "prompt_tokens": families.prompt_tokens,
        "prompt_tokens_cached": families.cached_tokens,
        "generation_tokens": families.generation_tokens,
        "iteration_tokens_total": families.iteration_tokens,
        "time_to_first_token_seconds": families.ttft,
        "inter_token_latency_seconds": families.inter_token,
        "time_per_output_token_seconds": families.inter_token,
        "request_time_per_output_token_seconds": families.per_output_token,
        "e2e_request_latency_seconds": families.e2e,
        "request_queue_time_seconds": families.queue_time,
        "request_inference_time_seconds": families.inference_time,
        "request_prefill_time_seconds": families.prefill_time,
        "request_decode_time_seconds": families.decode_time,
        "request_prompt_tokens": families.request_prompt_tokens,
        "request_generation_tokens": families.request_generation_tokens,
        "request_params_n": families.request_params_n,
        "request_params_max_tokens": families.request_params_max_tokens,
    }
    return {f"vllm:{name}": source for name, source in names.items()}
