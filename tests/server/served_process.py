"""``headrace serve`` as a process of its own, for tests of what only processes can show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True)
class ServedProcess:
    """A server that said it is ready; ``url`` ends with ``/v1`` and ``lines`` are what it printed."""

    process: subprocess.Popen[str]
    url: str
    lines: list[str]

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    def engine_pid(self) -> int | None:
        """Process id of its one child, ``None`` while there is none."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) <= 1, children
        return int(children[0]) if children else None


@contextmanager
def served(
    model: Path, *flags: str, program: str = "headrace.cli.main", stderr: int | TextIO = subprocess.PIPE
) -> Iterator[ServedProcess]:
    """Serve ``model`` on a free port until the block ends; the process is killed if it is still there then."""
    command = [sys.executable, "-m", program, "serve", str(model)]
    settings = ["--port", "0", "--kv-cache-bytes", "1MiB", "--threads", "1"]
    child = subprocess.Popen([*command, *settings, *flags], stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert child.stdout is not None
    lines: list[str] = []
    try:
        for line in child.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("ready in"):
                break
        else:
            raise AssertionError("no start" if child.stderr is None else child.stderr.read())
        url = next(line.split()[1] for line in lines if line.strip().startswith("URL"))
        yield ServedProcess(child, url, lines)
    finally:
        child.kill()
        child.communicate()
