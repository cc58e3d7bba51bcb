from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from headrace.core.request import FinishReason, RequestOutput, RequestTimes, Usage
from headrace.engine.metrics import Metrics
from tests.engine.test_metrics import STATS
from tests.fakes_engine import INFO, make_request

COUNTERS = {
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
}
GAUGES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:cache_config_info",
}
HISTOGRAMS = {
    "vllm:iteration_tokens_total",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
}


def scrape(compat: bool) -> list[Sample]:
    metrics = Metrics("smol", ("vllm",) if compat else ())
    metrics.engine_started(INFO)
    metrics.observe_step(STATS)
    meter = metrics.open_meter(make_request(max_tokens=2, arrival_time=0.0))
    meter.observe(RequestOutput(request_id="r", token_ids=(1,), usage=Usage(9, 3, 1)), 1.0)
    times = RequestTimes(0.0, 0.5, 1.0, 2.0)
    meter.observe(
        RequestOutput(
            request_id="r", token_ids=(1,), usage=Usage(9, 3, 2), finish_reason=FinishReason.STOP, times=times
        ),
        2.0,
    )
    metrics.open_meter(make_request()).abort()
    body, _ = metrics.render("")
    return [sample for family in parse_text(body.decode()) for sample in family.samples]


def test_every_name_a_vllm_dashboard_reads_is_there_with_its_model_label() -> None:
    found = scrape(compat=True)
    names = {sample.name for sample in found if sample.labels.get("model_name") == "smol"}
    assert names >= GAUGES
    assert {f"{name}_total" for name in COUNTERS} <= names
    for suffix in ("_bucket", "_sum", "_count"):
        assert {name + suffix for name in HISTOGRAMS} <= names


def test_values_under_both_names_are_equal() -> None:
    values = {sample.name: sample.value for sample in scrape(compat=True) if "le" not in sample.labels}
    assert values["vllm:num_requests_running"] == values["headrace_num_requests_running"] == 3
    assert values["vllm:kv_cache_usage_perc"] == values["headrace_kv_cache_usage_ratio"] == 0.25
    assert values["vllm:generation_tokens_total"] == values["headrace_generation_tokens_total"] == 2
    assert values["vllm:prompt_tokens_cached_total"] == values["headrace_prompt_tokens_cached_total"] == 3
    assert values["vllm:iteration_tokens_total_sum"] == values["headrace_iteration_tokens_sum"] == 40
    assert values["vllm:request_decode_time_seconds_sum"] == values["headrace_request_decode_time_seconds_sum"] == 1.0


def test_finish_reasons_include_abort_as_they_do_there() -> None:
    reasons = {
        sample.labels["finished_reason"]: sample.value
        for sample in scrape(compat=True)
        if sample.name == "vllm:request_success_total"
    }
    assert reasons == {"stop": 1, "length": 0, "abort": 1, "error": 0}


def test_the_cache_geometry_is_told_in_its_labels() -> None:
    (sample,) = [sample for sample in scrape(compat=True) if sample.name == "vllm:cache_config_info"]
    assert sample.value == 1
    assert sample.labels["block_size"] == "16"
    assert sample.labels["num_gpu_blocks"] == "64"


def test_without_the_option_no_foreign_name_is_exported() -> None:
    assert not [sample.name for sample in scrape(compat=False) if sample.name.startswith("vllm:")]
