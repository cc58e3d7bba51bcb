"""From a config to a running engine: the one place where settings are resolved and concrete parts are named.

Nothing is written back into the config; what was decided is in the engine's ``EngineInfo``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cache.kv_cache import KVCacheManager
from headrace.cache.tiers import BlockTiers
from headrace.checkpoint.checkpoint import Checkpoint
from headrace.checkpoint.open import open_checkpoint
from headrace.checkpoint.reference import cache_folder, resolve_model
from headrace.core.client import EngineInfo
from headrace.core.clock import WallClock
from headrace.core.compiled_files import is_compiled
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.model_config import ModelConfig
from headrace.core.progress import Progress
from headrace.core.sampling import SamplingParams
from headrace.core.step import Executor
from headrace.engine.compiled_cache import LEAST_BYTES, Unhurried, compiled_cache
from headrace.engine.constraints import GrammarSource
from headrace.engine.engine import Engine
from headrace.engine.grammars import TokenizerGrammars
from headrace.engine.heap import HeapReserve
from headrace.engine.limits import Limits, resolve_limits, wanted_len
from headrace.engine.memory_plan import MemoryPlan, check_fits, plan_memory
from headrace.engine.memory_pressure import MemoryWatch
from headrace.engine.memory_tiers import TierSizes, resolve_tiers, with_tiers
from headrace.engine.step_profile import StepCostFile, StepProfile
from headrace.engine.stop_matcher import StopStrings
from headrace.engine.stored_tokens import StoredTokens, load_tokens
from headrace.engine.text_stream import TextStream
from headrace.executor.kv_format import kv_format, kv_token_bytes
from headrace.executor.machine_memory import MachineMemory, available_memory_bytes
from headrace.executor.tiered_executor import BlockMemory
from headrace.grammar.limits import GrammarLimits
from headrace.model.config_parser import parse_model_config
from headrace.native.compiled import CompiledModel, open_compiled
from headrace.native.host import this_host
from headrace.native.packed_model import PackedModel
from headrace.native.program import NativeProgram
from headrace.native.tuning import TuningTable
from headrace.scheduler.build import BatchLimits, build_scheduler
from headrace.scheduler.cost_model import StepCostModel
from headrace.scheduler.policy import SchedulerListener

if TYPE_CHECKING:
    from headrace.engine.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class TokenizerTexts:
    """Makes the text side of sequences from a model's tokens, their grammars included."""

    def __init__(self, tokens: Tokenizer | StoredTokens, grammars: GrammarSource) -> None:
        self._tokens = tokens
        self.grammars = grammars

    def text_streams(self, sampling: SamplingParams) -> list[TextStream]:
        stops = StopStrings(sampling.stop)  # compiled once for all sequences of the request
        return [
            TextStream(
                self._tokens.detokenizer(sampling.skip_special_tokens),
                stops,
                sampling.include_stop_str_in_output,
                sampling.min_tokens,
            )
            for _ in range(sampling.n)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class FoundModel:
    """What ``path`` holds, or what was compiled from it, with the facts about the model."""

    path: Path
    source: Checkpoint | CompiledModel
    model: ModelConfig


def build_engine(config: EngineConfig, progress: Progress, listeners: Sequence[SchedulerListener] = ()) -> Engine:
    """Load what ``config.model`` names and build the engine around it; ``listeners`` hear its scheduler.

    Raises ``ConfigError`` for a reference, file or setting that does not work out.
    """
    stages = _Stages()
    with stages.timed("resolve"):
        path = resolve_model(config.model, progress)
        found = compiled_cache(config).opened(path, config.dtype, open_model)
        model = found.model
        wanted_len(config, model)  # one the model cannot have is refused before the weights are loaded
        check_fits(plan_memory(config, found.source, model, available_memory_bytes()))
    with ThreadPoolExecutor(1, "tokens") as beside:
        loading = beside.submit(_load_tokens, path, config, stages)
        backend = _BACKENDS[config.backend](config, found, progress, stages)
        tokens = loading.result()
    backend.keep(tokens)
    limits = backend.limits
    if limits.is_shortened:
        logger.warning(
            "max_model_len is %d and not the model's %d: that is what the KV cache holds; raise --kv-cache-bytes",
            limits.max_model_len,
            model.max_position,
        )
    sizes = resolve_tiers(config, backend.memory.block_bytes, available_memory_bytes() - limits.kv_cache_bytes)
    executor = with_tiers(backend.executor, backend.memory, sizes, config.disk_kv_cache)
    tiers = BlockTiers(sizes.num_host_blocks, sizes.num_disk_blocks)
    kv = KVCacheManager(limits.num_blocks, config.block_size, config.enable_prefix_caching, tiers)
    batch = BatchLimits(config.max_num_seqs, config.max_num_batched_tokens, limits.max_model_len)
    costs_file = StepCostFile(cache_folder() / "step_costs", _step_identity(config, model, backend))
    costs = StepCostModel(costs_file.load())
    scheduler = build_scheduler(config.scheduling_policy, kv, batch, costs, listeners)
    scheduler.meters.transfers.assume(sizes.block_bytes)
    info = _info(config, model, backend, sizes, tokens, stages.times_s)
    grammars = TokenizerGrammars(
        tokens,
        model.vocab_size,
        info.eos_token_ids,
        _mask_threads(config),
        config.max_forced_tokens,
        _grammar_limits(config),
    )
    engine = Engine(scheduler, kv, executor, TokenizerTexts(tokens, grammars), WallClock(), info)
    if config.enable_timelines:
        engine.record_timelines()
    engine.idle = StepProfile(executor, kv, costs, batch, costs_file)
    return engine


def watch_memory(engine: Engine) -> None:
    """Have an engine that serves others give way when this machine, or its container, runs short of memory."""
    engine.relieve(MemoryWatch(MachineMemory(), engine.untaken_cache_bytes), [HeapReserve()])


def plan_of(config: EngineConfig, progress: Progress) -> MemoryPlan:
    """What ``build_engine`` would take of this machine's memory; loads nothing. Raises ``ConfigError``."""
    path = resolve_model(config.model, progress)
    found = compiled_cache(config).opened(path, config.dtype, open_model)
    return plan_memory(config, found.source, found.model, available_memory_bytes())


def open_model(path: Path) -> FoundModel:
    """Open a checkpoint or a compiled folder. Raises ``ConfigError``."""
    if is_compiled(path):
        compiled = open_compiled(path)
        return FoundModel(path, compiled, compiled.manifest.model)
    checkpoint = open_checkpoint(path)
    return FoundModel(path, checkpoint, parse_model_config(checkpoint))


def _load_tokens(path: Path, config: EngineConfig, stages: _Stages) -> Tokenizer | StoredTokens:
    with stages.timed("tokens"):
        return compiled_cache(config).opened(path, config.dtype, lambda found: load_tokens(found, config.tokenizer))


@dataclass(frozen=True, slots=True)
class _Backend:
    """An executor with what there is to say about it; ``keep`` lets the next start find what this one has made."""

    name: str
    executor: Executor
    memory: BlockMemory
    limits: Limits
    dtype: str
    kv_cache_dtype: str
    weight_bytes: int
    kernels: str = ""
    keep: Callable[[Tokenizer | StoredTokens], None] = lambda _tokens: None


def _step_identity(config: EngineConfig, model: ModelConfig, backend: _Backend) -> tuple[str, ...]:
    """Everything that the time of a step depends on."""
    host = this_host()
    sizes = (model.architecture, model.num_parameters, model.vocab_size, num_threads(config), config.block_size)
    formats = (backend.name, backend.dtype, backend.kv_cache_dtype, backend.weight_bytes)
    return (host.cpu, host.kernels, host.build, *map(str, sizes), *map(str, formats))


def num_threads(config: EngineConfig) -> int:
    """CPU threads to compute with: the setting, else the cores this process may use."""
    return config.threads or len(os.sched_getaffinity(0))


def _grammar_limits(config: EngineConfig) -> GrammarLimits:
    return GrammarLimits(
        max_source_bytes=config.max_grammar_bytes,
        max_depth=config.max_grammar_depth,
        cpu_s=config.grammar_compile_s,
        wall_s=max(GrammarLimits().wall_s, 4 * config.grammar_compile_s),
    )


def _mask_threads(config: EngineConfig) -> int:
    """Threads that fill token masks while the others compute; masks are short work, so one goes a long way."""
    return max(1, min(4, num_threads(config) // 4))


def _build_native(config: EngineConfig, found: FoundModel, progress: Progress, stages: _Stages) -> _Backend:
    from headrace.executor.native_executor import NativeExecutor, runtime_sizes
    from headrace.executor.native_model import build_program, choose_tuning, load_weights
    from headrace.native.cpu_affinity import cpus_for

    model = found.model
    threads = num_threads(config)
    cpus = cpus_for(threads) if config.pin_threads else []  # too few are refused before the weights are loaded
    with stages.timed("weights"), reported(progress, "weights") as report:
        weights = load_weights(found.source, model, config.dtype, threads, report)
    with stages.timed("tuning"):
        tuning = choose_tuning(weights, this_host(), threads, cache_folder())
    program = build_program(model, weights, tuning)
    cache = kv_format(config.kv_cache_dtype, weights.choice)
    limits = resolve_limits(config, model, kv_token_bytes(model, cache), available_memory_bytes())
    executor = NativeExecutor(program, runtime_sizes(config, limits.num_blocks, limits.max_model_len, threads), cache)
    if cpus:
        executor.pin_threads(cpus)
    return _Backend(
        name="native",
        executor=executor,
        memory=executor.block_memory,
        limits=limits,
        dtype=weights.packed.formats,
        kv_cache_dtype=cache.label,
        weight_bytes=weights.packed.num_bytes,
        kernels=program.kernels,
        keep=lambda tokens: _keep_compiled(config, found, tokens, weights.packed, program, tuning),
    )


def _keep_compiled(
    config: EngineConfig,
    found: FoundModel,
    tokens: Tokenizer | StoredTokens,
    packed: PackedModel,
    program: NativeProgram,
    tuning: TuningTable,
) -> None:
    """Let the next start map what this one has packed, unless packing is as fast."""
    checkpoint = found.source
    if isinstance(checkpoint, CompiledModel) or packed.num_bytes < LEAST_BYTES:
        return

    def write(folder: Path) -> None:
        from headrace.engine.compiled_folder import Compilation, write_compiled
        from headrace.engine.tokenizer import read_spec

        spec = read_spec(found.path)
        table = tokens.table if config.tokenizer is None else None  # another tokenizer's is not the model's
        made = Compilation(config.model, config.dtype, checkpoint, spec, table, packed, program, tuning)
        write_compiled(folder, made, Unhurried())

    compiled_cache(config).keep(found.path, config.dtype, write)


def _build_torch(config: EngineConfig, found: FoundModel, progress: Progress, stages: _Stages) -> _Backend:
    source, model = found.source, found.model
    if isinstance(source, CompiledModel):
        raise ConfigError(
            f"{source.folder} is compiled for the native backend; leave --backend out, or give what it was made from",
            "backend",
        )
    if config.pin_threads:
        raise ConfigError("pin_threads is for the native backend; torch places its threads itself", "pin_threads")
    if find_spec("torch") is None:
        raise ConfigError("the torch backend needs torch; install it with: pip install 'headrace[torch]'", "backend")
    # torch's threads busy-wait for each other by default; where cores are shared, that stalls a step tenfold
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from headrace.executor.torch_executor import create_torch_executor, torch_dtype
    from headrace.model.weights import load_weights

    dtype = torch_dtype(config.dtype)
    name = str(dtype).removeprefix("torch.")
    if config.kv_cache_dtype != "auto" and torch_dtype(config.kv_cache_dtype) is not dtype:
        raise ConfigError(
            f"kv_cache_dtype is {config.kv_cache_dtype!r}, but torch keeps keys and values in the weights' {name}; "
            "leave --kv-cache-dtype out, or choose --backend native",
            "kv_cache_dtype",
        )
    with stages.timed("weights"), reported(progress, "weights") as report:
        weights = load_weights(source, model, dtype, report)
    limits = resolve_limits(config, model, model.kv_bytes_per_token(dtype.itemsize), available_memory_bytes())
    executor = create_torch_executor(model, weights, limits.num_blocks, config.block_size, num_threads(config))
    num_bytes = sum(weight.nbytes for weight in weights.values())
    return _Backend("torch", executor, executor.block_memory, limits, name, name, num_bytes)


_BACKENDS = {"auto": _build_native, "native": _build_native, "torch": _build_torch}


def _info(
    config: EngineConfig,
    model: ModelConfig,
    backend: _Backend,
    tiers: TierSizes,
    tokens: Tokenizer | StoredTokens,
    times_s: dict[str, float],
) -> EngineInfo:
    return EngineInfo(
        model=config.model,
        architecture=model.architecture,
        dtype=backend.dtype,
        backend=backend.name,
        num_parameters=model.num_parameters,
        vocab_size=model.vocab_size,
        max_model_len=backend.limits.max_model_len,
        block_size=config.block_size,
        num_blocks=backend.limits.num_blocks,
        kv_cache_bytes=backend.limits.kv_cache_bytes,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_queued_reqs=config.max_num_queued_reqs,
        kv_cache_dtype=backend.kv_cache_dtype,
        num_host_blocks=tiers.num_host_blocks,
        num_disk_blocks=tiers.num_disk_blocks,
        kernels=backend.kernels,
        weight_bytes=backend.weight_bytes,
        eos_token_ids=sorted(tokens.eos_token_ids.union(model.eos_token_ids)),
        stage_times_s=times_s,
    )


@contextmanager
def reported(progress: Progress, label: str) -> Iterator[Callable[[int, int], None]]:
    """Turn "so much of so much" into a progress task that begins with the first report."""
    num_reported: int | None = None

    def report(num_done: int, num_total: int) -> None:
        nonlocal num_reported
        if num_reported is None:
            progress.start(label, num_total, "parameters")
            num_reported = 0
        progress.advance(num_done - num_reported)
        num_reported = num_done

    try:
        yield report
    finally:
        if num_reported is not None:
            progress.finish()


class _Stages:
    """How long each part of starting took."""

    def __init__(self) -> None:
        self.times_s: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.times_s[name] = time.perf_counter() - started
