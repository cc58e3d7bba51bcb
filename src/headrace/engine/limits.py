"""How long a sequence may be and how many KV blocks there are: settled once, from config, model and memory.

Pure arithmetic on numbers it is given; allocates nothing and reads nothing of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.model_config import ModelConfig
from headrace.executor.memory_budget import FREE_MEMORY_SHARE, choose_num_blocks


@dataclass(frozen=True, slots=True)
class Limits:
    """``is_shortened`` says that memory, not the model or the caller, set ``max_model_len``."""

    max_model_len: int
    num_blocks: int
    kv_cache_bytes: int
    is_shortened: bool


def resolve_limits(config: EngineConfig, model: ModelConfig, token_bytes: int, available_bytes: int) -> Limits:
    """Settle lengths and blocks so that one sequence of the longest kind always fits the pool.

    ``token_bytes`` are the bytes of one token's keys and values in all layers. A length that was asked for is
    kept or refused; one that was not is shortened to what memory holds. Raises ``ConfigError`` with the
    numbers and the flags that would fix it.
    """
    budget_bytes = config.kv_cache_bytes or available_bytes // FREE_MEMORY_SHARE
    size = token_bytes * config.block_size
    affordable_tokens = budget_bytes // size * config.block_size
    wanted = wanted_len(config, model)
    may_shorten = config.max_model_len is None and affordable_tokens > 0
    max_model_len = min(wanted, affordable_tokens) if may_shorten else wanted
    num_blocks = choose_num_blocks(config, max_model_len, token_bytes, available_bytes)
    if num_blocks * config.block_size < max_model_len:
        raise ConfigError(
            f"kv_cache_bytes {budget_bytes} holds {num_blocks * config.block_size} tokens, but one sequence of "
            f"max_model_len {max_model_len} needs {-(-max_model_len // config.block_size) * size} bytes; "
            "raise --kv-cache-bytes or lower --max-model-len",
            "kv_cache_bytes",
        )
    return Limits(max_model_len, num_blocks, num_blocks * size, is_shortened=max_model_len < wanted)


def wanted_len(config: EngineConfig, model: ModelConfig) -> int:
    """How long a sequence may be if memory allows. Raises ``ConfigError`` for more than the model was trained for."""
    if config.max_model_len is None:
        return model.max_position
    if config.max_model_len > model.max_position:
        raise ConfigError(
            f"max_model_len is {config.max_model_len} but the model was trained for {model.max_position} tokens; "
            "lower --max-model-len",
            "max_model_len",
        )
    return config.max_model_len
