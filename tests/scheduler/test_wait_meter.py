"""Waiting is counted by reason, in sequences and in seconds."""

from __future__ import annotations

from headrace.scheduler.wait_meter import WaitMeter
from tests.fakes import make_request
from tests.scheduler.harness import Harness


def test_the_line_waits_for_what_stopped_it_and_some_for_reasons_of_their_own():
    house = Harness(max_num_seqs=2, max_num_batched_tokens=16)
    meter = house.scheduler.meters.waits
    prompt = list(range(30))
    house.add(make_request(prompt, max_tokens=9, ignore_eos=True))
    house.step()
    house.add(make_request(prompt, max_tokens=1))
    for salt in (30, 31, 32):
        house.add(make_request([salt] * 4, max_tokens=1))
    house.step()
    assert meter.num_waiting == {"shared_prefix": 1, "max_num_seqs": 2}
    waited = dict(meter.waited_s)
    assert waited["max_num_seqs"] == 2 * waited["shared_prefix"] > 0
    house.run()
    assert meter.num_waiting == {}


def test_nobody_waits_before_the_first_plan():
    assert WaitMeter().num_waiting == {}
