"""headrace: an LLM server that keeps latency promises.

The public names, the heavy ones imported when first used, so that ``import headrace`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import (
    ConfigError,
    DeadlineExceeded,
    EngineDead,
    HeadraceError,
    InvalidRequest,
    Overloaded,
    RequestAborted,
    RequestFailed,
)

if TYPE_CHECKING:
    from headrace.core.sampling import SamplingParams
    from headrace.core.service_level import ServiceLevel
    from headrace.llm.async_llm import AsyncLLM
    from headrace.llm.offline import LLM
    from headrace.llm.outputs import CompletionOutput, GenerationOutput, Logprob, ScoreOutput
    from headrace.llm.outputs import GenerationOutput as RequestOutput

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "ConfigError",
    "DeadlineExceeded",
    "EngineDead",
    "GenerationOutput",
    "HeadraceError",
    "InvalidRequest",
    "Logprob",
    "Overloaded",
    "RequestAborted",
    "RequestFailed",
    "RequestOutput",
    "SamplingParams",
    "ScoreOutput",
    "ServiceLevel",
    "__version__",
]

_HOMES = {
    "LLM": ("headrace.llm.offline", "LLM"),
    "AsyncLLM": ("headrace.llm.async_llm", "AsyncLLM"),
    "CompletionOutput": ("headrace.llm.outputs", "CompletionOutput"),
    "GenerationOutput": ("headrace.llm.outputs", "GenerationOutput"),
    "Logprob": ("headrace.llm.outputs", "Logprob"),
    "RequestOutput": ("headrace.llm.outputs", "GenerationOutput"),  # what vLLM calls it
    "SamplingParams": ("headrace.core.sampling", "SamplingParams"),
    "ScoreOutput": ("headrace.llm.outputs", "ScoreOutput"),
    "ServiceLevel": ("headrace.core.service_level", "ServiceLevel"),
}


def __getattr__(name: str) -> object:
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("headrace")
    if name in _HOMES:
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
