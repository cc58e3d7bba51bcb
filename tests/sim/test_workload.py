"""Requests from traces: rates, shares, classes, and prompts that share what the trace says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.core.service_level import STANDARD_CLASSES
from headrace.sim.trace import TraceRequest
from headrace.sim.workload import TraceSource, offered_requests, prompt_tokens


def write_trace(folder: Path, count: int, name: str = "t.jsonl") -> Path:
    """One request a second, of 10 + i tokens."""
    path = folder / name
    rows = [{"arrival_s": i, "input_tokens": 10 + i, "output_tokens": 2} for i in range(count)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_prompts_agree_just_as_far_as_their_leading_block_ids() -> None:
    first = prompt_tokens(TraceRequest(0, 20, 1, (1, 2), 8), 0)
    second = prompt_tokens(TraceRequest(0, 30, 1, (1, 3, 4), 8), 1)
    same_ids = prompt_tokens(TraceRequest(0, 20, 1, (1, 2), 8), 2)
    assert (len(first), len(second)) == (20, 30)
    assert first[:8] == second[:8]
    assert not set(first[8:]) & set(second[8:])
    assert first[:16] == same_ids[:16]
    assert not set(first[16:]) & set(same_ids[16:]), "what no id covers is shared with nobody"
    assert len(prompt_tokens(TraceRequest(0, 10, 1, (1, 2), 8), 0)) == 10


def test_the_load_brings_requests_closer_and_more_of_them_into_the_time(tmp_path: Path) -> None:
    source = TraceSource(write_trace(tmp_path, 10))
    assert [r.arrival_s for r in offered_requests([source], load=2.0, duration_s=2.0)] == [0.0, 0.5, 1.0, 1.5]
    steady = TraceSource(source.path, is_steady=True)
    assert [r.arrival_s for r in offered_requests([steady], load=2.0, duration_s=2.0)] == [0.0, 1.0]


def test_traces_are_mixed_by_arrival_and_kept_apart_in_the_prefix_cache(tmp_path: Path) -> None:
    one = TraceSource(write_trace(tmp_path, 3))
    two = TraceSource(write_trace(tmp_path, 3, "two.jsonl"), "batch", max_input_tokens=11)
    offered = offered_requests([one, two])
    assert [r.service_class for r in offered] == ["interactive", "batch"] * 3
    assert [r.index for r in offered] == list(range(6))
    requests = [r.request() for r in offered]
    assert [len(r.prompt_token_ids) for r in requests] == [10, 10, 11, 11, 12, 11]
    assert requests[1].service_level == STANDARD_CLASSES["batch"]
    assert requests[0].cache_salt != requests[1].cache_salt


def test_a_share_is_drawn_by_the_seed_and_jitter_moves_the_others_not(tmp_path: Path) -> None:
    path = write_trace(tmp_path, 200)

    def arrivals(seed: int, share: float, jitter_s: float = 0.0) -> list[float]:
        return [r.arrival_s for r in offered_requests([TraceSource(path, share=share, jitter_s=jitter_s)], seed=seed)]

    assert arrivals(1, 0.3) == arrivals(1, 0.3) != arrivals(2, 0.3)
    assert 35 < len(arrivals(1, 0.3)) < 85
    assert set(arrivals(1, 0.3)) < set(arrivals(1, 0.6)), "a larger share adds requests and drops none"
    moved = arrivals(1, 0.3, jitter_s=0.5)
    assert [int(moment) for moment in moved] == arrivals(1, 0.3)
    assert moved != arrivals(1, 0.3)


def test_nothing_to_play_and_unknown_classes_are_said(tmp_path: Path) -> None:
    path = write_trace(tmp_path, 3)
    with pytest.raises(ConfigError, match="no request comes within 5 s; take a longer duration or a larger share"):
        offered_requests([TraceSource(path, share=0.0)], duration_s=5.0)
    with pytest.raises(ConfigError, match="no service class 'bacth'; did you mean batch"):
        offered_requests([TraceSource(path, "bacth")])
