"""One run in the JSON of other benchmarks, so that what reads theirs reads ours: vLLM, SGLang, TensorRT-LLM.

Names and units are theirs: milliseconds where they say ``_ms``. With several runs it is the one of median output
throughput: a run that happened, rather than a mean of runs of which none did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from headrace.bench.report import ServingReport
from headrace.bench.statistics import PERCENTILES, Spread
from headrace.bench.summary import RunSummary

Result = dict[str, object]


def median_run(report: ServingReport) -> RunSummary:
    return sorted(report.runs, key=lambda run: run.output_rate)[(len(report.runs) - 1) // 2]


def vllm_result(report: ServingReport) -> Result:
    """What ``vllm bench serve --save-result`` writes, with every metric and percentile that it could be asked for."""
    run, load = median_run(report), report.load
    result: Result = {
        "date": datetime.fromisoformat(report.date).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat" if report.endpoint == "chat" else "openai",
        "backend": "openai-chat" if report.endpoint == "chat" else "openai",
        "label": report.label or None,
        "model_id": report.server.model,
        "tokenizer_id": report.server.model,
        "num_prompts": run.num_offered,
        **report.metadata,
        "request_rate": load.request_rate if load.request_rate is not None else "inf",
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
    }
    if load.ramp_up_strategy is not None:
        result |= {
            "ramp_up_strategy": load.ramp_up_strategy,
            "ramp_up_start_rps": load.ramp_up_start_rps,
            "ramp_up_end_rps": load.ramp_up_end_rps,
        }
    result |= {
        "duration": run.duration_s,
        "completed": run.num_ok,
        "failed": run.num_failed,
        "total_input_tokens": run.num_input_tokens,
        "total_output_tokens": run.num_output_tokens,
        "request_throughput": run.request_rate,
        "request_goodput": run.goodput if run.slos else None,
        "output_throughput": run.output_rate,
        "total_token_throughput": run.total_rate,
        "max_output_tokens_per_s": run.timeline.peak_tokens_per_s,
        "max_concurrent_requests": run.timeline.peak_in_flight,
    }
    spreads = {"ttft": run.ttft, "tpot": run.tpot, "itl": run.itl, "e2el": run.e2e, "client_queue_time": run.queue}
    for name, spread in spreads.items():
        result |= _milliseconds(f"_{name}_ms", spread, PERCENTILES)
    return result


def sglang_result(report: ServingReport) -> Result:
    """One line of what ``sglang.bench_serving --output-file`` writes."""
    run, load = median_run(report), report.load
    result: Result = {
        "tag": report.label or None,
        "backend": "sglang" if report.endpoint == "generate" else "sglang-oai",
        "dataset_name": report.workload.name,
        "request_rate": load.request_rate if load.request_rate is not None else "inf",
        "max_concurrency": load.max_concurrency,
        "duration": run.duration_s,
        "completed": run.num_ok,
        "total_input_tokens": run.num_input_tokens,
        "total_input_text_tokens": run.num_input_tokens,
        "total_input_vision_tokens": 0,
        "total_output_tokens": run.num_output_tokens,
        "total_output_tokens_retokenized": run.num_output_tokens,
        "request_throughput": run.request_rate,
        "input_throughput": run.input_rate,
        "output_throughput": run.output_rate,
        "total_throughput": run.total_rate,
        "concurrency": run.concurrency,
        "max_output_tokens_per_s": run.timeline.peak_tokens_per_s,
        "max_concurrent_requests": run.timeline.peak_in_flight,
        "cache_report": {
            "total_prompt_tokens": run.num_input_tokens,
            "total_cached_tokens": run.num_cached_tokens,
            "cache_hit_rate_pct": 100 * run.cached_share,
        },
    }
    spreads = {"e2e_latency": run.e2e, "ttft": run.ttft, "tpot": run.tpot, "itl": run.itl}
    for name, spread in spreads.items():
        result |= _milliseconds(f"_{name}_ms", spread, (90, 95, 99))
    result["max_itl_ms"] = 1e3 * run.itl.maximum
    if run.slos:
        result |= {
            "goodput_slos_ms": {slo.metric: slo.limit_ms for slo in run.slos},
            "request_goodput": run.goodput,
            "slo_attainment": run.attainment,
            "slo_attainment_by_metric": {slo.metric: slo.attainment for slo in run.slos},
        }
    return result


def trtllm_result(report: ServingReport) -> Result:
    """The groups of ``trtllm-bench --report_json`` that a client can know."""
    run = median_run(report)
    num_ok = max(run.num_ok, 1)
    speeds = _inverted(run.tpot)
    return {
        "engine": {"model": report.server.model, "version": report.server.version, "backend": report.server.name},
        "request_info": {
            "num_requests": run.num_ok,
            "avg_num_concurrent_requests": run.concurrency,
            "avg_input_length": run.num_input_tokens / num_ok,
            "avg_output_length": run.num_output_tokens / num_ok,
        },
        "performance": {
            "total_latency_ms": 1e3 * run.duration_s,
            "avg_request_latency_ms": 1e3 * run.e2e.mean,
            "request_throughput_req_s": run.request_rate,
            "system_output_throughput_tok_s": run.output_rate,
            "system_total_throughput_tok_s": run.total_rate,
            "output_throughput_per_user_tok_s": run.num_output_tokens / num_ok / run.e2e.mean if run.e2e.mean else 0.0,
            "request_latency_percentiles_ms": _percentiles(run.e2e),
        },
        "streaming_metrics": {
            "token_output_speed_tok_s": speeds["average"],
            "avg_ttft_ms": 1e3 * run.ttft.mean,
            "avg_tpot_ms": 1e3 * run.tpot.mean,
            "ttft_percentiles": _percentiles(run.ttft),
            "tpot_percentiles": _percentiles(run.tpot),
            "gen_tps_percentiles": speeds,
        },
    }


RESULT_DIALECTS: dict[str, Callable[[ServingReport], Result]] = {
    "vllm": vllm_result,
    "sglang": sglang_result,
    "trtllm": trtllm_result,
}


def _milliseconds(suffix: str, spread: Spread, ranks: Sequence[float]) -> Result:
    figures = {"mean": spread.mean, "median": spread.median, "std": spread.std}
    figures |= {f"p{rank:g}": spread.percentile(rank) for rank in ranks}
    return {name + suffix: 1e3 * value for name, value in figures.items()}


def _percentiles(spread: Spread) -> Result:
    figures = {f"p{rank}": spread.percentile(rank) for rank in (50, 90, 95, 99)}
    figures |= {"minimum": spread.minimum, "maximum": spread.maximum, "average": spread.mean}
    return {name: 1e3 * value for name, value in figures.items()}


def _inverted(spread: Spread) -> Result:
    """Tokens per second of a user, from seconds per token: the fastest are the smallest."""

    def rate(seconds: float) -> float:
        return 1 / seconds if seconds else 0.0

    return {
        "p50": rate(spread.percentile(50)),
        "p90": rate(spread.percentile(10)),
        "p95": rate(spread.percentile(5)),
        "p99": rate(spread.percentile(1)),
        "minimum": rate(spread.maximum),
        "maximum": rate(spread.minimum),
        "average": rate(spread.mean),
    }
