"""How every torture tells what it found: one table on the terminal, the same figures as JSON, and an exit code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def print_report(figures: Mapping[str, object], path: Path | None, *, is_good: bool) -> int:
    """Print ``figures``, write them to ``path`` if there is one, and return the exit code."""
    width = max(map(len, figures))
    print("\n".join(f"{name:<{width}}  {_shown(value)}" for name, value in figures.items()))
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if is_good else 1


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
