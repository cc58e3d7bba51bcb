"""The documentation is true: every shell and Python block runs, in order, as a reader would run it.

A document is one session in an empty folder. The words after a block's language say how it is run:

- ``bash`` and ``python`` blocks must end with exit code 0.
- ``bash server`` starts a server that stays up until the next such block or the end of the document; the
  following blocks find it at the address they name.
- ``toml`` blocks must be valid settings files; those with a file name (``toml headrace.toml``) are written.
- ``text`` and ``mermaid`` blocks are only shown. Any other language is an error.

The commands ``headrace``, ``make`` and ``python`` are those of this checkout, port 8000 is replaced by a free
one, and ``make`` takes the running environment for an up-to-date ``.venv``.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.core.settings import file_values

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_LANGUAGES = {"bash", "python", "toml"}
SHOWN_LANGUAGES = {"text", "mermaid"}

DOCUMENTED_ADDRESS = re.compile(r"(127\.0\.0\.1|localhost):8000")
START_TIMEOUT_S = 240
BLOCK_TIMEOUT_S = 240
STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class Block:
    """A fenced code block: its language, the words after it, its text and its line."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int


def blocks_of(markdown: str) -> list[Block]:
    """Every fenced block of a document, nested ones belonging to the outer."""
    blocks = []
    lines = enumerate(markdown.splitlines(), start=1)
    for number, line in lines:
        fence = re.match(r"\s*(`{3,}|~{3,})(.*)$", line)
        if fence is None:
            continue
        language, *words = fence[2].split() or [""]
        body = []
        for _, inner in lines:
            if inner.strip() == fence[1]:
                break
            body.append(inner)
        else:
            raise AssertionError(f"line {number}: a block is never closed")
        blocks.append(Block(language, tuple(words), "\n".join(body) + "\n", number))
    return blocks


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Session:
    """An empty folder, the commands of this checkout on the path, and at most one server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self._log = folder / "server.log"
        commands = folder / "bin"
        commands.mkdir()
        stamps = [f"{sys.prefix}/.installed", f"{sys.prefix}/.installed-test"]
        olds = " ".join(f"-o {stamp}" for stamp in stamps)
        _write_command(commands / "python", f'exec {sys.executable} "$@"')
        _write_command(commands / "headrace", f'exec {sys.executable} -m headrace.cli.main "$@"')
        _write_command(commands / "make", f'exec {shutil.which("make")} -C {ROOT} {olds} VENV={sys.prefix} "$@"')
        # under ``make test`` these hand its own arguments, ``ARGS`` above all, to every ``make`` of a block
        ours = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "ARGS")}
        self.environ = {**ours, "PATH": f"{commands}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}

    def run(self, block: Block) -> None:
        """Run one block; a failure shows its output."""
        if block.language == "toml":
            self._check_settings(block)
        elif block.words == ("server",):
            self.stop_server()
            self._start_server(block)
        else:
            command = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else ["python", "-c"]
            result = subprocess.run(
                [*command, self._localized(block)],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=BLOCK_TIMEOUT_S,
            )
            assert result.returncode == 0, f"exit code {result.returncode}\n{block.text}\n{result.stdout}"

    def stop_server(self) -> None:
        """Stop the server as Ctrl-C does; it must end by itself and in order."""
        if self._server is None:
            return
        server, self._server = self._server, None
        assert server.poll() is None, f"the server died\n{self._log.read_text()}"
        os.killpg(server.pid, signal.SIGINT)
        try:
            code = server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            raise AssertionError(
                f"the server did not stop within {STOP_TIMEOUT_S} s\n{self._log.read_text()}"
            ) from None
        assert code in (0, 2, 130, -signal.SIGINT), f"exit code {code}\n{self._log.read_text()}"  # 2 is make's

    def _start_server(self, block: Block) -> None:
        environ = {**self.environ, "HEADRACE_PORT": str(self.port)}
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", self._localized(block)],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if self._server.poll() is not None:
                self._server = None
                raise AssertionError(f"the server ended\n{block.text}\n{self._log.read_text()}")
            assert time.monotonic() < deadline, f"the server is not ready\n{self._log.read_text()}"
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _localized(self, block: Block) -> str:
        return DOCUMENTED_ADDRESS.sub(f"127.0.0.1:{self.port}", block.text)

    def _check_settings(self, block: Block) -> None:
        file = self.folder / (block.words[0] if block.words else "block.toml")
        file.write_text(block.text, encoding="utf-8")
        file_values(file)


def _write_command(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@pytest.fixture(name="session")
def open_session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path)
    try:
        yield session
    finally:
        session.stop_server()


RUNNABLE = [path for path in DOCUMENTS if any(b.language in RUN_LANGUAGES for b in blocks_of(path.read_text()))]


@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", RUNNABLE, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_runs(document: Path, session: Session) -> None:
    for block in blocks_of(document.read_text()):
        if block.language in RUN_LANGUAGES:
            session.run(block)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_says_what_it_is(document: Path) -> None:
    for block in blocks_of(document.read_text()):
        assert block.language in RUN_LANGUAGES | SHOWN_LANGUAGES, f"{document}:{block.line}: {block.language!r}"


@pytest.mark.parametrize(
    "document",
    [*DOCUMENTS, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_link_into_the_repository_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", document.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (document.parent / target).exists(), f"{document}: {target}"


def test_blocks_are_found_with_their_words_and_text() -> None:
    markdown = "a\n```bash server\nx\n\n```\n~~~python\n```\n~~~\n  ````\n```\n  ````\n"
    assert blocks_of(markdown) == [
        Block("bash", ("server",), "x\n\n", 2),
        Block("python", (), "```\n", 6),
        Block("", (), "```\n", 9),
    ]
    with pytest.raises(AssertionError, match="line 1: a block is never closed"):
        blocks_of("```bash\nx\n")


def test_a_block_that_fails_is_a_failure(session: Session) -> None:
    session.run(Block("bash", (), "headrace version | grep headrace\n", 1))
    session.run(Block("python", (), "import headrace\n", 1))
    for language, text in (("bash", "false | true\n"), ("python", "1 / 0\n"), ("bash", "headrace serv\n")):
        with pytest.raises(AssertionError, match="exit code"):
            session.run(Block(language, (), text, 1))
    with pytest.raises(Exception, match="unknown setting 'prt'"):
        session.run(Block("toml", (), "prt = 1\n", 1))
    with pytest.raises(AssertionError, match="the server ended"):
        session.run(Block("bash", ("server",), "headrace serve --prt 1\n", 1))
