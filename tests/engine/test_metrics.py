from __future__ import annotations

import asyncio
import math

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from headrace.core.client import StepStats
from headrace.core.errors import EngineDead, HeadraceError, InvalidRequest, Overloaded
from headrace.core.memory_pressure import MemoryState, PressureLevel
from headrace.core.request import FinishReason, OutputError, RequestOutput, RequestTimes, Usage
from headrace.engine.inprocess import InProcessClient
from headrace.engine.metrics import Metrics
from tests.fakes_engine import INFO, INVALID, STEP_BUG, FakeEngine, make_request

Labels = frozenset[tuple[str, str]]

STATS = StepStats(
    num_running=3,
    num_waiting=2,
    num_blocks=100,
    num_free_blocks=60,
    num_cached_blocks=15,
    num_step_tokens=40,
    num_step_samples=3,
    step_s=0.02,
    prefix_query_tokens=1000,
    prefix_hit_tokens=250,
    num_preemptions=2,
    num_evicted_blocks=7,
    jain_index=0.75,
    step_cost_error=0.04,
)


def samples(metrics: Metrics) -> list[Sample]:
    body, _ = metrics.render("text/plain")
    return [sample for family in parse_text(body.decode()) for sample in family.samples]


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """Sum of the samples of that name that have these labels."""
    wanted = set(labels.items())
    found = [
        sample.value for sample in samples(metrics) if sample.name == name and wanted <= set(sample.labels.items())
    ]
    assert found, f"no sample {name} {labels}"
    return sum(found)


def delta(tokens: int, index: int = 0, reason: FinishReason | None = None, **fields: object) -> RequestOutput:
    return RequestOutput(
        request_id="r",
        index=index,
        token_ids=tuple(range(tokens)),
        usage=fields.pop("usage", Usage(10, 4, 1)),  # type: ignore[arg-type]
        finish_reason=reason,
        **fields,  # type: ignore[arg-type]
    )


def test_a_step_sets_gauges_and_adds_to_counters() -> None:
    metrics = Metrics("m")
    metrics.engine_started(INFO)
    metrics.observe_step(STATS)
    assert value(metrics, "headrace_num_requests_running") == 3
    assert value(metrics, "headrace_num_requests_waiting") == 2
    assert value(metrics, "headrace_kv_cache_usage_ratio") == 0.25
    assert value(metrics, "headrace_kv_cache_blocks", state="free") == 60
    assert value(metrics, "headrace_kv_cache_blocks", state="cached") == 15
    assert value(metrics, "headrace_kv_cache_blocks", state="used") == 25
    assert value(metrics, "headrace_prefix_cache_query_tokens_total") == 1000
    assert value(metrics, "headrace_prefix_cache_hit_tokens_total") == 250
    assert value(metrics, "headrace_preemptions_total") == 2
    assert value(metrics, "headrace_tenant_fairness_jain_index") == 0.75
    assert value(metrics, "headrace_step_cost_error_ratio") == 0.04
    assert value(metrics, "headrace_kv_cache_evicted_blocks_total") == 7
    assert value(metrics, "headrace_iteration_tokens_sum") == 40
    assert value(metrics, "headrace_step_duration_seconds_sum") == 0.02
    assert value(metrics, "headrace_engine_up") == 1


def test_counters_never_fall_when_the_engine_starts_again_at_zero() -> None:
    metrics = Metrics("m")
    metrics.engine_started(INFO)
    metrics.observe_step(STATS)
    metrics.engine_lost()
    assert value(metrics, "headrace_engine_up") == 0
    assert value(metrics, "headrace_num_requests_running") == 0
    assert value(metrics, "headrace_kv_cache_usage_ratio") == 0
    metrics.engine_restarted()
    metrics.engine_started(INFO)
    metrics.observe_step(msgspec.structs.replace(STATS, prefix_query_tokens=30, num_preemptions=1))
    metrics.observe_step(msgspec.structs.replace(STATS, prefix_query_tokens=50, num_preemptions=1))
    assert value(metrics, "headrace_prefix_cache_query_tokens_total") == 1050
    assert value(metrics, "headrace_preemptions_total") == 3
    assert value(metrics, "headrace_engine_restarts_total") == 1


def test_a_step_without_tokens_is_no_iteration() -> None:
    metrics = Metrics("m")
    metrics.observe_step(msgspec.structs.replace(STATS, num_step_tokens=0))
    assert value(metrics, "headrace_iteration_tokens_count") == 0


def test_a_finished_request_is_measured_on_paper() -> None:
    metrics = Metrics("m")
    meter = metrics.open_meter(make_request(max_tokens=5, arrival_time=100.0))
    meter.observe(delta(1), 100.5)
    meter.observe(delta(1), 100.6)
    meter.observe(delta(2), 100.8)
    times = RequestTimes(arrival=100.0, first_scheduled=100.2, first_token=100.45, finished=100.95)
    meter.observe(delta(1, reason=FinishReason.LENGTH, usage=Usage(10, 4, 5), times=times), 101.0)
    expected = {
        "headrace_time_to_first_token_seconds": (1, 0.5),
        "headrace_inter_token_latency_seconds": (4, 0.5),
        "headrace_e2e_request_latency_seconds": (1, 1.0),
        "headrace_request_queue_time_seconds": (1, 0.2),
        "headrace_request_prefill_time_seconds": (1, 0.25),
        "headrace_request_decode_time_seconds": (1, 0.5),
        "headrace_request_inference_time_seconds": (1, 0.75),
        "headrace_request_time_per_output_token_seconds": (1, 0.125),
        "headrace_request_prompt_tokens": (1, 10),
        "headrace_request_generation_tokens": (1, 5),
        "headrace_request_params_n": (1, 1),
        "headrace_request_params_max_tokens": (1, 5),
    }
    for name, (count, total) in expected.items():
        assert value(metrics, f"{name}_count") == count, name
        assert value(metrics, f"{name}_sum") == pytest.approx(total), name
    assert value(metrics, "headrace_prompt_tokens_total") == 10
    assert value(metrics, "headrace_prompt_tokens_cached_total") == 4
    assert value(metrics, "headrace_generation_tokens_total") == 5
    assert value(metrics, "headrace_request_success_total", finished_reason="length") == 1
    assert value(metrics, "headrace_request_success_total", finished_reason="stop") == 0


def test_b35_every_sequence_ends_in_exactly_one_counter() -> None:
    metrics = Metrics("m")
    meter = metrics.open_meter(make_request(n=4, arrival_time=0.0))
    meter.observe(delta(1, index=0, reason=FinishReason.STOP), 1.0)
    meter.observe(delta(0, index=1, reason=FinishReason.ERROR, error=OutputError("RequestFailed", "x")), 1.0)
    meter.observe(delta(0, index=2, reason=FinishReason.ABORT), 1.0)
    meter.abort()
    metrics.open_meter(make_request(n=3)).fail()
    assert value(metrics, "headrace_request_success_total") == 1
    assert value(metrics, "headrace_requests_failed_total") == 1 + 3
    assert value(metrics, "headrace_requests_aborted_total") == 2
    meter.fail()
    meter.abort()
    assert value(metrics, "headrace_requests_failed_total") == 1 + 3


@pytest.mark.parametrize(
    ("kind", "name", "labels"),
    [
        ("DeadlineExceeded", "headrace_requests_expired_total", {}),
        ("RequestShed", "headrace_requests_shed_total", {}),
        ("Overloaded", "headrace_requests_rejected_total", {"reason": "overloaded"}),
        ("InvalidRequest", "headrace_requests_rejected_total", {"reason": "invalid_request"}),
        ("RequestFailed", "headrace_requests_failed_total", {}),
    ],
)
def test_b35_an_error_counts_where_it_belongs(kind: str, name: str, labels: dict[str, str]) -> None:
    metrics = Metrics("m")
    metrics.open_meter(make_request("r")).observe(delta(0, 0, FinishReason.ERROR, error=OutputError(kind, "")), 1.0)
    assert value(metrics, name, **labels) == 1


def test_b35_aborted_and_failed_sequences_are_left_out_of_the_histograms_of_finished_ones() -> None:
    metrics = Metrics("m")
    for reason in (FinishReason.ABORT, FinishReason.ERROR):
        meter = metrics.open_meter(make_request(arrival_time=0.0))
        meter.observe(delta(1), 1.0)
        times = RequestTimes(0.0, 0.5, math.nan, 1.0)
        meter.observe(delta(0, reason=reason, times=times), 2.0)
    assert value(metrics, "headrace_e2e_request_latency_seconds_count") == 0
    assert value(metrics, "headrace_request_queue_time_seconds_count") == 0
    assert value(metrics, "headrace_time_to_first_token_seconds_count") == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InvalidRequest("x"), "invalid_request"),
        (Overloaded("x", 1.0), "overloaded"),
        (EngineDead("x"), "unavailable"),
    ],
)
def test_a_rejected_request_counts_once_by_reason(error: HeadraceError, reason: str) -> None:
    metrics = Metrics("m")
    metrics.observe_rejected(error)
    assert value(metrics, "headrace_requests_rejected_total", reason=reason) == 1
    assert value(metrics, "headrace_requests_rejected_total") == 1


def test_http_labels_stay_few_whatever_is_asked_for() -> None:
    metrics = Metrics("m")
    for i in range(10_000):
        metrics.observe_http_request(f"/{i}", f"VERB{i}")
        metrics.observe_http_response(f"/{i}", i)
    metrics.observe_http_request("/0", "GET")
    assert value(metrics, "headrace_http_requests_total", endpoint="other", method="other") == 10_000 - 64
    assert value(metrics, "headrace_http_requests_total", endpoint="/0", method="GET") == 1
    assert value(metrics, "headrace_http_responses_total") == 10_000
    series = [sample for sample in samples(metrics) if sample.name.startswith("headrace_http")]
    assert len(series) < 2 * (3 * 64 + 600)


def test_the_accept_header_chooses_between_text_and_openmetrics_and_never_fails() -> None:
    metrics = Metrics("m", ("vllm",))
    metrics.engine_started(INFO)
    metrics.observe_step(STATS)
    for accept in (
        "",
        "*/*",
        "text/plain;version=0.0.4",
        "application/openmetrics",
        ";;,,q=",
        "text/plain;version=zzz",
    ):
        body, content_type = metrics.render(accept)
        assert content_type == "text/plain; version=0.0.4; charset=utf-8"
        assert list(parse_text(body.decode()))
    for accept in (
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain",
        "application/openmetrics-text; version=x",
    ):
        body, content_type = metrics.render(accept)
        assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert body.endswith(b"# EOF\n")
        assert list(parse_openmetrics(body.decode()))


def test_two_servers_in_one_process_do_not_share_a_registry() -> None:
    first, second = Metrics("a"), Metrics("b")
    first.observe_step(STATS)
    assert value(second, "headrace_num_requests_running") == 0


def test_a_whole_life_of_requests_is_counted_through_the_client() -> None:
    async def main() -> Metrics:
        metrics = Metrics("m")
        client = InProcessClient(FakeEngine(step_s=0.001), metrics)
        await client.start()
        for i in range(3):
            _ = [output async for output in client.generate(make_request(f"ok{i}", max_tokens=5))]
        with pytest.raises(InvalidRequest):
            await anext(client.generate(make_request("bad", prompt=(INVALID,))))
        left = client.generate(make_request("left", max_tokens=1_000_000, n=2))
        await anext(left)
        await left.aclose()
        with pytest.raises(EngineDead):
            _ = [output async for output in client.generate(make_request("dead", prompt=(STEP_BUG,)))]
        with pytest.raises(EngineDead):
            await anext(client.generate(make_request("late")))
        await client.close()
        return metrics

    metrics = asyncio.run(main())
    assert value(metrics, "headrace_request_success_total", finished_reason="length") == 3
    assert value(metrics, "headrace_requests_rejected_total", reason="invalid_request") == 1
    assert value(metrics, "headrace_requests_rejected_total", reason="unavailable") == 1
    assert value(metrics, "headrace_requests_aborted_total") == 2
    assert value(metrics, "headrace_requests_failed_total") == 1
    assert value(metrics, "headrace_time_to_first_token_seconds_count") == 4
    assert value(metrics, "headrace_prompt_tokens_total") == 12
    assert value(metrics, "headrace_num_requests_running") == 0
    assert value(metrics, "headrace_engine_up") == 0


def test_how_short_memory_is_shows() -> None:
    metrics = Metrics("m")
    metrics.observe_memory(MemoryState(PressureLevel.SCARCE, 5 << 20))
    assert value(metrics, "headrace_memory_pressure_level") == 2
    assert value(metrics, "headrace_memory_available_bytes") == 5 << 20
