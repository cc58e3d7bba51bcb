"""What ``headrace serve`` prints when it is ready: everything a user needs next, aligned. Pure."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import version

from headrace.core.client import EngineInfo
from headrace.core.config import ServeConfig
from headrace.core.units import format_bytes, format_count


def start_block(info: EngineInfo, config: ServeConfig, model_name: str, url: str, has_chat: bool) -> str:
    """The block, without a final newline. ``url`` has no path."""
    rows = {
        "model": _names(config, model_name),
        "architecture": info.architecture,
        "dtype": f"{info.dtype}, {format_bytes(info.weight_bytes)}",
        "backend": f"{info.backend} ({info.kernels} kernels)" if info.kernels else info.backend,
        "parameters": format_count(info.num_parameters),
        "KV cache": (
            f"{info.num_blocks} blocks of {info.block_size} = {info.num_kv_tokens} tokens, "
            f"{format_bytes(info.kv_cache_bytes)} of {info.kv_cache_dtype}"
        ),
        **_tiers(info),
        "concurrency": (
            f"{info.num_kv_tokens / info.max_model_len:.1f} requests at the full length of {info.max_model_len} tokens"
        ),
        "limits": (
            f"{info.max_num_seqs} sequences, {info.max_num_batched_tokens} tokens per step, "
            f"{info.max_num_queued_reqs} queued"
        ),
        "stages": ", ".join(f"{name} {seconds:.1f} s" for name, seconds in info.stage_times_s.items()) or "-",
        "keys": _keys(config),
        "URL": f"{url}/v1",
    }
    width = max(map(len, rows))
    lines = [f"headrace {version('headrace')}", *(f"  {name:<{width}}  {value}" for name, value in rows.items())]
    return "\n".join([*lines, "", _curl(config, model_name, url, has_chat)])


def _curl(config: ServeConfig, model_name: str, url: str, has_chat: bool) -> str:
    """A command to paste; for a model without a chat template it completes a text."""
    path = "/v1/chat/completions" if has_chat else "/v1/completions"
    asked: dict[str, object] = {"model": model_name}
    if has_chat:
        asked["messages"] = [{"role": "user", "content": "Hello!"}]
    else:
        asked["prompt"] = "Once upon a time"
    words = ["curl", url + path, "-H", "content-type: application/json"]
    if config.has_keys:
        words += ["-H", "authorization: Bearer $HEADRACE_API_KEY"]
    quoted = [shlex.quote(word) if "$" not in word else f'"{word}"' for word in words]
    return " ".join([*quoted, "-d", shlex.quote(json.dumps(asked, ensure_ascii=False))])


def _tiers(info: EngineInfo) -> dict[str, str]:
    """The row that says where blocks go that have to leave the KV cache, if there is such a place."""
    block_bytes = info.kv_cache_bytes // info.num_blocks
    tiers = {"host memory": info.num_host_blocks, "disk": info.num_disk_blocks}
    sizes = [f"{format_bytes(count * block_bytes)} of {name}" for name, count in tiers.items() if count]
    return {"below it": ", ".join(sizes)} if sizes else {}


def _keys(config: ServeConfig) -> str:
    if not config.has_keys:
        return "none needed"
    settings = f"{len(config.all_keys)} API keys" if config.all_keys else ""
    file = f"those in {config.api_key_file}" if config.api_key_file else ""
    return " and ".join(filter(None, (settings, file)))


def _names(config: ServeConfig, model_name: str) -> str:
    """All names of the model, and what was loaded where that is called otherwise."""
    names = ", ".join((model_name, *config.served_model_name[1:]))
    return names if config.model == model_name else f"{names} ({config.model})"
