"""The random simulations: a few here, ten thousand by ``make simulations``. They cover all ends, and can fail."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.sequence import Sequence
from headrace.scheduler.waiting_queue import KeyedQueue
from headrace.sim.record import Outcome
from headrace.sim.simulator import Simulator
from tests.sim import random_simulations
from tests.sim.workloads import random_case


def test_every_promise_holds_for_some_seeds() -> None:
    assert random_simulations.failures(range(100_000, 100_060)) == []


def test_the_seeds_cover_every_end_and_every_pressure() -> None:
    seen: Counter[object] = Counter()
    for seed in range(120):
        case = random_case(seed)
        simulator = Simulator(case.requests, case.replica)
        simulator.run()
        seen.update(record.outcome for record in simulator.records)
        seen["preempted"] += simulator.scheduler.num_preemptions
        seen["hits"] += simulator.kv.stats.hit_tokens
        seen["evicted"] += simulator.kv.stats.evicted_blocks
        seen["restored"] += simulator.kv.stats.restored_tokens
        seen[case.replica.policy] += 1
    expected = {Outcome.SERVED, Outcome.REJECTED, Outcome.EXPIRED, "preempted", "hits", "evicted", "restored"}
    assert expected | {"fcfs", "priority", "slo"} <= {what for what, count in seen.items() if count > 0}


def test_a_leak_is_found_and_its_seed_reproduces_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(KVCacheManager, "release", lambda self, seq: None)
    seed, message = random_simulations.failures(range(40))[0]
    line = random_simulations.reproduction(seed, message)
    command = line.splitlines()[-1].removeprefix("  reproduce with: python -m tests.sim.random_simulations ")
    assert random_simulations.main([command]) == 1
    assert line in capsys.readouterr().out
    monkeypatch.undo()
    assert random_simulations.main([command]) == 0


def test_a_line_that_never_calls_somebody_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pop = KeyedQueue.pop

    def pop_but_the_first(self: KeyedQueue, urgency: float, now: float) -> Sequence | None:
        seq = pop(self, urgency, now)
        if seq is None or seq.seq_id > 0:
            return seq
        self.push(seq)
        return None

    monkeypatch.setattr(KeyedQueue, "pop", pop_but_the_first)
    assert any("work stands still" in message for _, message in random_simulations.failures(range(10)))
