from __future__ import annotations

from headrace.core.sequence import Sequence
from headrace.core.service_level import STANDARD_CLASSES
from headrace.scheduler.shedding import to_shed
from tests.fakes import make_request

INTERACTIVE, STANDARD, BATCH = (STANDARD_CLASSES[name] for name in ("interactive", "standard", "batch"))


def sequence(name: str, **request: object) -> Sequence:
    return Sequence(len(name), make_request([1, 2], name, **request), 0, frozenset())  # type: ignore[arg-type]


def begun(seq: Sequence) -> Sequence:
    seq.first_scheduled_time = 1.0
    return seq


def shed(*sequences: Sequence) -> str:
    victim = to_shed(sequences)
    assert victim is not None
    return victim.request.request_id


def test_the_tier_with_the_loosest_targets_goes_first() -> None:
    tiers = [
        sequence("interactive", service_level=INTERACTIVE),
        sequence("standard", service_level=STANDARD),
        sequence("none"),
        sequence("batch", service_level=BATCH),
    ]
    order = []
    while len(tiers) > 1:
        order.append(shed(*tiers))
        tiers = [seq for seq in tiers if seq.request.request_id != order[-1]]
    assert order == ["batch", "none", "standard"]


def test_explicit_priority_counts_more_than_targets() -> None:
    assert shed(sequence("batch", service_level=BATCH), sequence("low", priority=5)) == "low"


def test_within_a_tier_those_that_have_not_begun_go_first_and_of_them_the_latest() -> None:
    early, late = sequence("early", arrival_time=1.0), sequence("late!", arrival_time=2.0)
    running = begun(sequence("running", arrival_time=3.0))
    assert shed(early, late, running) == "late!"
    assert shed(early, running) == "early"
    assert shed(begun(early), running) == "running"


def test_the_last_request_is_never_given_up() -> None:
    request = make_request([1], "twins", n=2)
    assert to_shed([]) is None
    assert to_shed([Sequence(0, request, 0, frozenset()), Sequence(1, request, 1, frozenset())]) is None
