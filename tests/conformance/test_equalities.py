"""What must not change a request's tokens: the cache, the company it keeps, chunking, preemption."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.progress import NullProgress
from headrace.core.request import FinishReason, Request
from headrace.core.sampling import SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.factory import build_engine
from tests.tiny_model import VOCAB_SIZE, write_tiny_model

NUM_REQUESTS = 12


@dataclass(frozen=True)
class Answer:
    """All of one sequence's output."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


BACKENDS = {
    "torch": {"backend": "torch", "threads": 1},
    "native": {"backend": "native", "threads": 2, "dtype": "float32"},
    "native int8": {"backend": "native", "threads": 2, "dtype": "int8", "kv_cache_dtype": "int8"},
    "native int4": {"backend": "native", "threads": 1, "dtype": "int4", "kv_cache_dtype": "float16"},
    "native bf16": {"backend": "native", "threads": 2, "dtype": "int4", "kv_cache_dtype": "bfloat16"},
}


@pytest.fixture(scope="module", params=BACKENDS)
def base_config(request: pytest.FixtureRequest, model_path: Path) -> EngineConfig:
    return EngineConfig(model=str(model_path), kv_cache_bytes=16 << 20, **BACKENDS[request.param])


def requests() -> list[Request]:
    """Prompts of many lengths, some with a common beginning; greedy and seeded sampling in turn."""
    shared = [(5 * i + 7) % 250 + 3 for i in range(70)]
    made = []
    for number in range(NUM_REQUESTS):
        own = [(31 * number + 11 * i) % 250 + 3 for i in range(3 + 9 * number)]
        prompt = shared[: 13 * (number % 6)] + own  # they depart in the middle of a block, most of them
        temperature = 0.0 if number % 2 == 0 else 0.8
        sampling = SamplingParams(
            max_tokens=12 + 3 * number,
            temperature=temperature,
            top_p=0.95,
            repetition_penalty=1.1 if number % 3 == 0 else 1.0,
            ignore_eos=True,
        )
        made.append(
            Request(
                request_id=f"r{number}",
                prompt_token_ids=prompt,
                sampling=sampling,
                seed=1000 + number,
                arrival_time=float(number),
            )
        )
    return made


def answers(engine: Engine, submitted: Sequence[Request]) -> dict[str, Answer]:
    """Run requests to their end, all at once."""
    token_ids: dict[str, tuple[int, ...]] = {}
    texts: dict[str, str] = {}
    reasons: dict[str, FinishReason] = {}
    for request in submitted:
        engine.submit(request)
    while engine.has_work:
        for output in engine.step():
            token_ids[output.request_id] = token_ids.get(output.request_id, ()) + output.token_ids
            texts[output.request_id] = texts.get(output.request_id, "") + output.text
            if output.finish_reason is not None:
                reasons[output.request_id] = output.finish_reason
    return {key: Answer(token_ids[key], texts[key], reason) for key, reason in reasons.items()}


@pytest.fixture(scope="module")
def alone(base_config: EngineConfig) -> dict[str, Answer]:
    """Each request by itself, in one chunk, without a prefix cache: the truth the others are held to."""
    config = msgspec.structs.replace(base_config, enable_prefix_caching=False)
    engine = build_engine(config, NullProgress())
    found: dict[str, Answer] = {}
    for request in requests():
        found |= answers(engine, [request])
    engine.close()
    assert all(len(set(answer.token_ids)) > 3 for answer in found.values()), "the model repeats itself too much"
    return found


VARIATIONS = {
    "all at once": {},
    "without the prefix cache": {"enable_prefix_caching": False},
    "in chunks of 7 tokens": {"max_num_batched_tokens": 7, "max_num_seqs": 3},
    "two at a time": {"max_num_seqs": 2},
    "in blocks of 32": {"block_size": 32},
}


@pytest.mark.parametrize("variation", VARIATIONS)
def test_tokens_do_not_depend_on(variation, base_config, alone):
    engine = build_engine(msgspec.structs.replace(base_config, **VARIATIONS[variation]), NullProgress())
    assert answers(engine, requests()) == alone
    engine.close()


def test_tokens_do_not_depend_on_threads_being_kept_on_cpus(base_config, alone):
    config = msgspec.structs.replace(base_config, pin_threads=True)
    if base_config.backend == "torch":
        with pytest.raises(ConfigError, match="pin_threads is for the native backend"):
            build_engine(config, NullProgress())
        return
    if len(os.sched_getaffinity(0)) < config.threads:
        pytest.skip("this process has one CPU")
    engine = build_engine(config, NullProgress())
    assert answers(engine, requests()) == alone
    engine.close()


def test_more_pinned_threads_than_cpus_are_refused_before_anything_is_loaded(base_config):
    class NothingLoaded(NullProgress):
        def start(self, label: str, total: int | None, unit: object) -> None:
            raise AssertionError("the weights are being loaded")

    config = msgspec.structs.replace(base_config, pin_threads=True, threads=1000)
    with pytest.raises(ConfigError, match="pin_threads"):
        build_engine(config, NothingLoaded())


def test_tokens_do_not_depend_on_what_the_cache_already_holds(base_config, alone):
    engine = build_engine(base_config, NullProgress())
    first = answers(engine, requests())
    again = answers(engine, requests())
    assert engine.stats().prefix_hit_tokens % base_config.block_size > 0, "no beginning of a block was copied"
    assert first == again == alone
    engine.close()


def test_tokens_do_not_depend_on_who_computes_what_is_in_common(base_config, alone):
    engine = build_engine(base_config, NullProgress())
    for request in requests():
        twins = [msgspec.structs.replace(request, request_id=f"{request.request_id} {twin}") for twin in range(3)]
        num_hits = engine.stats().prefix_hit_tokens
        assert set(answers(engine, twins).values()) == {alone[request.request_id]}
        assert engine.stats().prefix_hit_tokens - num_hits >= 2 * (len(request.prompt_token_ids) - 1)
        engine.clear_prefix_cache()
    engine.close()


CARELESS = {"scheduling_policy": "fcfs"}
"""A policy that keeps no room for what running sequences will need, so that some are preempted."""


def test_tokens_do_not_depend_on_being_preempted(base_config, alone):
    longest = max(len(r.prompt_token_ids) + (r.sampling.max_tokens or 0) for r in requests())
    small = msgspec.structs.replace(base_config, max_model_len=longest, max_num_batched_tokens=64, **CARELESS)
    block_bytes = _kv_cache_bytes_per_block(small)
    num_blocks = -(-longest // small.block_size) + 3
    engine = build_engine(msgspec.structs.replace(small, kv_cache_bytes=num_blocks * block_bytes), NullProgress())
    assert answers(engine, requests()) == alone
    assert engine.stats().num_preemptions > 0
    engine.close()


SWAPS = {
    "prefixes in the host tier": {"swap_space_bytes": 1 << 20},
    "prefixes on disk": {"swap_space_bytes": 1 << 17, "disk_kv_cache_bytes": 1 << 20},
    "private blocks": {"swap_space_bytes": 1 << 20, "enable_prefix_caching": False},
}


@pytest.mark.parametrize("swap", SWAPS)
def test_tokens_do_not_depend_on_being_swapped(swap, base_config, alone, tmp_path):
    longest = max(len(r.prompt_token_ids) + (r.sampling.max_tokens or 0) for r in requests())
    small = msgspec.structs.replace(
        base_config, max_model_len=longest, max_num_batched_tokens=64, **CARELESS, **SWAPS[swap]
    )
    if "disk_kv_cache_bytes" in SWAPS[swap]:
        small = msgspec.structs.replace(small, disk_kv_cache=str(tmp_path / "kv"))
    num_blocks = -(-longest // small.block_size) + 3
    kv_cache_bytes = num_blocks * _kv_cache_bytes_per_block(small)
    engine = build_engine(msgspec.structs.replace(small, kv_cache_bytes=kv_cache_bytes), NullProgress())
    assert [answers(engine, requests()), answers(engine, requests())] == [alone, alone]
    moved = engine.stats().tiers
    assert engine.stats().num_preemptions > 0
    assert moved is not None
    assert moved.num_restored > 0
    assert (moved.num_fetched > 0) == ("disk_kv_cache_bytes" in SWAPS[swap])
    assert moved.num_failed == 0
    engine.close()


def _kv_cache_bytes_per_block(config: EngineConfig) -> int:
    with contextlib.closing(build_engine(config, NullProgress())) as engine:
        info = engine.info
    return info.kv_cache_bytes // info.num_blocks


def test_the_order_of_arrival_does_not_change_tokens(base_config, alone):
    engine = build_engine(base_config, NullProgress())
    backwards = [
        msgspec.structs.replace(request, arrival_time=-request.arrival_time) for request in reversed(requests())
    ]
    assert answers(engine, backwards) == alone
    engine.close()


def test_every_token_is_in_the_vocabulary(alone):
    assert all(0 <= token < VOCAB_SIZE for answer in alone.values() for token in answer.token_ids)
