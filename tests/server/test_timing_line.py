"""The line that sums a reply's times up, fed by hand."""

from __future__ import annotations

from headrace.core.request import RequestOutput, RequestTimes, Usage
from headrace.server.generation import Delta
from headrace.server.timing_line import TimingLine


def first_delta(index: int, num_cached: int) -> Delta:
    times = RequestTimes(1.0, 1.5, 2.0, 3.0)
    return Delta(0, RequestOutput(request_id="r", index=index, usage=Usage(8, num_cached, 1), times=times))


def test_any_of_several_answers_may_be_the_first_to_say_something() -> None:
    line = TimingLine()
    line.observe([first_delta(index=2, num_cached=4)])
    assert line.text().endswith("cached=4/8")
    line.observe([first_delta(index=0, num_cached=0)])
    assert line.text().endswith("cached=0/8"), "the first answer computes the prompt that the others share"
