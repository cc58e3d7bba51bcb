"""Servers over the real engine: a tiny random Llama, or the same engine over an executor that can be told to fail."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.client import EngineInfo
from headrace.core.clock import WallClock
from headrace.core.config import EngineConfig
from headrace.core.progress import NullProgress
from headrace.core.step import Executor, PendingMask, StepPlan, StepResult
from headrace.engine.chat_prompt import load_chat_encoder
from headrace.engine.constraints import NoGrammars
from headrace.engine.engine import Engine
from headrace.engine.factory import TokenizerTexts, build_engine
from headrace.engine.inprocess import InProcessClient
from headrace.engine.metrics import Metrics
from headrace.engine.tokenizer import Tokenizer, load_tokenizer
from headrace.scheduler.policy import FcfsPolicy
from headrace.scheduler.scheduler import BatchLimits, Scheduler
from tests.fakes import ContentExecutor
from tests.server.harness import MODEL, PATIENCE_S, Backend, RunningServer
from tests.tiny_model import VOCAB_SIZE

BLOCK_SIZE = 16
NUM_BLOCKS = 64
MAX_MODEL_LEN = 512
KV_BYTES_PER_TOKEN = 512  # 2 layers x keys and values x 2 heads x 16 x float32


TINY_SETTINGS: Mapping[str, Any] = {
    "max_model_len": MAX_MODEL_LEN,
    "block_size": BLOCK_SIZE,
    "kv_cache_dtype": "float32",
    "kv_cache_bytes": NUM_BLOCKS * BLOCK_SIZE * KV_BYTES_PER_TOKEN,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 16,
    "threads": 1,
}
"""Engine settings for the tiny model: a pool of 64 blocks of 16 tokens."""


def tiny_backend(folder: Path, **settings: object) -> Backend:
    """The whole engine over the model in ``folder``, with ``TINY_SETTINGS``."""
    config = EngineConfig(**{"model": str(folder), **TINY_SETTINGS, **settings})
    engine = build_engine(config, NullProgress())
    return _backend(engine, load_tokenizer(folder))


class GatedExecutor(ContentExecutor):
    """A ``ContentExecutor`` that takes a step only when it is allowed one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._permits = threading.Semaphore(0)

    def allow(self, num_steps: int) -> None:
        self._permits.release(num_steps)

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        is_allowed = self._permits.acquire(timeout=PATIENCE_S)
        assert is_allowed
        return super().execute(plan, token_mask)


def executor_backend(
    executor: Executor, folder: Path, max_num_seqs: int = 16, max_num_queued_reqs: int = 256
) -> Backend:
    """The engine over ``executor``, with the tokenizer in ``folder``."""
    tokenizer = load_tokenizer(folder)
    kv = KVCacheManager(executor.num_blocks, BLOCK_SIZE, enable_prefix_caching=True)
    info = EngineInfo(
        model=MODEL,
        architecture="none",
        dtype="float32",
        backend="none",
        num_parameters=0,
        vocab_size=VOCAB_SIZE,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        num_blocks=executor.num_blocks,
        kv_cache_bytes=0,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=64,
        max_num_queued_reqs=max_num_queued_reqs,
    )
    scheduler = Scheduler(kv, FcfsPolicy(64), BatchLimits(max_num_seqs, 64, MAX_MODEL_LEN))
    return _backend(
        Engine(scheduler, kv, executor, TokenizerTexts(tokenizer, NoGrammars()), WallClock(), info), tokenizer
    )


def _backend(engine: Engine, tokenizer: Tokenizer) -> Backend:
    metrics = Metrics(MODEL)
    client = InProcessClient(engine, metrics)
    return Backend(client, tokenizer, load_chat_encoder(tokenizer), metrics, client.start, client.close)


def metric(server: RunningServer, name: str) -> float:
    """The value of a sample, named as in the exposition (``name{label="value"}``)."""
    text = server.http.get("/metrics").text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])
