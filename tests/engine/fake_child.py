"""An engine process with a fake engine: the real ``run_child``, with a builder that obeys ``config.model``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.progress import Progress
from headrace.engine.process import run_child
from tests.fakes_engine import FakeEngine

_ROOT = Path(__file__).parents[2]

FAKE_CHILD = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from tests.engine.fake_child import main; sys.exit(main())",
)


def main() -> int:
    return run_child(build)


def build(config: EngineConfig, progress: Progress) -> FakeEngine:
    match config.model:
        case "config-error":
            raise ConfigError("no such model: config-error", "model")
        case "bug":
            raise ZeroDivisionError("a bug in loading")
        case "killed-while-loading":
            os.kill(os.getpid(), signal.SIGKILL)
        case "endless-loading":
            threading.Event().wait()
        case "foretells-long-steps":
            return FakeEngine(expected_step_s=60.0)
        case "fast":
            return FakeEngine()
    progress.start("weights", 3, "tensors")
    for _ in range(3):
        progress.advance(1)
    progress.finish()
    return FakeEngine(step_s=0.002)
