"""Which backend a program runs on that names none."""

from __future__ import annotations

from contextvars import ContextVar

from headrace.core.errors import ProgramError
from headrace.program.runtime import Runtime

_DEFAULT: ContextVar[Runtime | None] = ContextVar("default_backend", default=None)


def set_default_backend(backend: Runtime) -> None:
    """Let programs of this thread, or task, run on ``backend`` unless they are told otherwise."""
    _DEFAULT.set(backend)


def default_runtime() -> Runtime:
    """Raises ``ProgramError`` if there is none."""
    runtime = _DEFAULT.get()
    if runtime is None:
        raise ProgramError(
            "the program has nothing to run on; use set_default_backend(RuntimeEndpoint('http://127.0.0.1:8000')), "
            "backend=..., or LLM(...).run(program, ...)"
        )
    return runtime
