"""Requests are judged once, against all of their targets, refused ones included."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headrace.core.client import TierUse
from headrace.core.errors import EngineDead, InvalidRequest, Overloaded
from headrace.core.request import FinishReason, OutputError, Request, RequestOutput, Usage
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import ServiceLevel
from headrace.engine.inprocess import InProcessClient
from headrace.engine.metrics import Metrics
from tests.engine.test_metrics import STATS, value
from tests.fakes_engine import INVALID, OVERLOAD, FakeEngine, make_request

LEVEL = ServiceLevel(ttft_s=1.0, tpot_s=0.1, deadline_s=5.0)


def request(n: int = 1, level: ServiceLevel = LEVEL, service_class: str = "fast") -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=[1],
        sampling=SamplingParams(n=n),
        seed=0,
        arrival_time=100.0,
        service_level=level,
        service_class=service_class,
    )


def output(num_so_far: int, index: int = 0, reason: FinishReason | None = None, error: str = "") -> RequestOutput:
    return RequestOutput(
        request_id="r",
        index=index,
        token_ids=(7,),
        usage=Usage(1, 0, num_so_far),
        finish_reason=reason,
        error=OutputError(error, "") if error else None,
    )


def verdicts(metrics: Metrics, service_class: str = "fast") -> tuple[float, float]:
    """Offered, and on target."""
    names = ("headrace_requests_offered_total", "headrace_requests_on_target_total")
    found = []
    for name in names:
        try:
            found.append(value(metrics, name, service_class=service_class))
        except AssertionError:
            found.append(0.0)
    return found[0], found[1]


def run(first: float, last: float, num_tokens: int, level: ServiceLevel = LEVEL) -> tuple[float, float]:
    metrics = Metrics("m")
    meter = metrics.open_meter(request(level=level))
    meter.observe(output(1), first)
    meter.observe(output(num_tokens, reason=FinishReason.LENGTH), last)
    return verdicts(metrics)


@pytest.mark.parametrize(
    ("first", "last", "num_tokens", "is_good"),
    [
        (101.0, 102.0, 11, True),  # just in time: 1 s, ten gaps of 0.1 s
        (101.01, 101.5, 11, False),  # the first token is late
        (100.5, 101.6, 11, False),  # the tokens after it are slow
        (100.5, 105.1, 100, False),  # the whole is too late
        (100.5, 100.5, 1, True),  # one token has no gaps
    ],
)
def test_a_request_is_good_if_it_meets_all_targets(first, last, num_tokens, is_good):
    assert run(first, last, num_tokens) == (1.0, float(is_good))


def test_without_targets_finishing_is_enough():
    assert run(900.0, 5000.0, 2, ServiceLevel()) == (1.0, 1.0)


def test_a_request_of_several_sequences_is_as_good_as_its_worst():
    metrics = Metrics("m")
    meter = metrics.open_meter(request(n=2))
    for index, first in enumerate((100.5, 103.0)):
        meter.observe(output(1, index), first)
        meter.observe(output(2, index, FinishReason.STOP), first + 0.05)
    assert verdicts(metrics) == (1.0, 0.0)


def test_what_the_engine_lost_or_refused_is_missed():
    metrics = Metrics("m")
    metrics.open_meter(request()).fail()
    metrics.open_meter(request()).refuse(Overloaded("full", 1.0))
    metrics.open_meter(request()).observe(output(0, reason=FinishReason.ERROR, error="RequestFailed"), 101.0)
    metrics.observe_refused(request(), EngineDead("starting"))
    assert verdicts(metrics) == (4.0, 0.0)


def test_what_was_wrong_or_given_up_is_not_judged():
    metrics = Metrics("m")
    metrics.open_meter(request()).abort()
    metrics.open_meter(request()).refuse(InvalidRequest("too long", "prompt"))
    metrics.open_meter(request()).observe(output(1, reason=FinishReason.ABORT), 101.0)
    metrics.open_meter(request()).observe(output(0, reason=FinishReason.ERROR, error="InvalidRequest"), 101.0)
    metrics.observe_refused(request(), InvalidRequest("twice", "request_id"))
    assert verdicts(metrics) == (0.0, 0.0)


def test_the_ratio_is_that_of_the_latest_requests_of_each_class():
    metrics = Metrics("m")
    for number in range(300):
        meter = metrics.open_meter(request(service_class="fast" if number % 2 else "slow"))
        meter.observe(output(1, reason=FinishReason.STOP), 100.5 if number % 2 else 200.0)
    assert value(metrics, "headrace_goodput_ratio", service_class="fast") == 1.0
    assert value(metrics, "headrace_goodput_ratio", service_class="slow") == 0.0


def test_refusals_at_the_door_and_by_the_engine_count_as_offered():
    async def main() -> None:
        metrics = Metrics("m")
        client = InProcessClient(FakeEngine(), metrics)
        await client.start()
        for first, expected in ((OVERLOAD, Overloaded), (INVALID, InvalidRequest)):
            with pytest.raises(expected):
                await anext(client.generate(make_request(prompt=(first,))))
        assert [o async for o in client.generate(make_request("good"))]
        assert verdicts(metrics, "default") == (2.0, 1.0)
        await client.close()

    asyncio.run(main())


# -- what waits, and what is below the KV cache --------------------------------------------------------


def test_waits_are_shown_by_reason_and_add_up():
    metrics = Metrics("m")
    metrics.observe_step(
        msgspec.structs.replace(STATS, num_waiting_by_reason={"kv_blocks": 3}, waited_s={"kv_blocks": 1.5})
    )
    metrics.observe_step(
        msgspec.structs.replace(STATS, num_waiting_by_reason={"disk": 1}, waited_s={"kv_blocks": 2.0, "disk": 0.5})
    )
    assert value(metrics, "headrace_num_requests_waiting_by_reason", reason="kv_blocks") == 0
    assert value(metrics, "headrace_num_requests_waiting_by_reason", reason="disk") == 1
    assert value(metrics, "headrace_requests_waiting_seconds_total", reason="kv_blocks") == 2.0
    metrics.engine_lost()
    assert value(metrics, "headrace_num_requests_waiting_by_reason", reason="disk") == 0


def test_tiers_show_what_they_hold_and_what_was_moved():
    metrics = Metrics("m")
    metrics.observe_step(msgspec.structs.replace(STATS, tiers=TierUse(5, 2, 9, 4, 3, 1, 0, 0)))
    metrics.observe_step(msgspec.structs.replace(STATS, tiers=TierUse(6, 3, 12, 5, 4, 2, 1, 1)))
    assert value(metrics, "headrace_kv_tier_blocks", tier="host") == 6
    assert value(metrics, "headrace_kv_tier_blocks", tier="disk") == 3
    moved = {kind: value(metrics, "headrace_kv_tier_transfers_total", kind=kind) for kind in ("offload", "fetch")}
    assert moved == {"offload": 12, "fetch": 2}
    assert value(metrics, "headrace_kv_tier_losses_total", cause="damage") == 1
