"""Programs of many calls: a language in Python, its meaning as data, and what runs it.

The language is SGLang's: ``from headrace import program as sgl`` runs its programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import ConfigError, ProgramError
from headrace.program.backends import set_default_backend
from headrace.program.expressions import (
    Expression,
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from headrace.program.function import Function, function, program
from headrace.program.ir import ChoiceMethod, Limits, Program
from headrace.program.runtime import Runtime
from headrace.program.state import ProgramState, ProgramStateGroup

if TYPE_CHECKING:
    from headrace.program.chat_only_backend import OpenAI
    from headrace.program.server_backend import RuntimeEndpoint

token_length_normalized = ChoiceMethod.TOKEN_LENGTH_NORMALIZED
greedy_token_selection = ChoiceMethod.GREEDY_TOKEN_SELECTION
unconditional_likelihood_normalized = ChoiceMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED

__all__ = [
    "ChoiceMethod",
    "Expression",
    "Function",
    "Limits",
    "OpenAI",
    "Program",
    "ProgramError",
    "ProgramState",
    "ProgramStateGroup",
    "Runtime",
    "RuntimeEndpoint",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "greedy_token_selection",
    "program",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
]

_REMOTE = {"OpenAI": "headrace.program.chat_only_backend", "RuntimeEndpoint": "headrace.program.server_backend"}
"""Names that need httpx, imported when first used."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _REMOTE:
        raise AttributeError(f"module 'headrace.program' has no attribute {name!r}")
    try:
        return getattr(import_module(_REMOTE[name]), name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{name} needs {error.name}; install it with: pip install 'headrace[program]'") from error
