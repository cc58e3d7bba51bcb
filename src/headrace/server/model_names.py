"""What the served model is called."""

from __future__ import annotations

from headrace.core.config import ServeConfig


def model_names(config: ServeConfig) -> tuple[str, ...]:
    """The names that clients may use, the one they are shown first."""
    return config.served_model_name or (default_model_name(config.model),)


def default_model_name(reference: str) -> str:
    """The name of a model that was given none: its reference, or the last part of a path.

    Clients see this name, and where a file lies on the server is not theirs to know.
    """
    if reference.startswith("hf:"):
        return reference.removeprefix("hf:")
    return reference.rstrip("/").rpartition("/")[2].removesuffix(".gguf") or reference
