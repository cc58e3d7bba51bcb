"""SEC-17: a server connects to nobody, whatever requests come in.

Asked of the kernel where that is allowed (strace), and everywhere of Python itself, whose audit events (PEP 578) tell
of every connection and name look-up that Python code begins, in the server and in its engine.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.hostile.http_fuzz import fuzz
from tests.server.harness import PATIENCE_S
from tests.server.served_process import served
from tests.tiny_model import write_tiny_model

URLS = (
    "http://169.254.169.254/latest/meta-data",
    "http://a\\@example.com/x.png",
    "file:///etc/passwd",
    "//example.com",
)
NUM_CONNECTIONS = 200
"""Of hostile ones; the long run is ``python -m tests.torture.hostile http``."""

STRACE = shutil.which("strace")


def can_trace() -> bool:
    """Some containers forbid tracing even of one's own children."""
    if STRACE is None:
        return False
    return subprocess.run([STRACE, "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0


def tempt(url: str) -> None:
    """Give a server whatever might make it look elsewhere, then hostile connections."""
    for address in URLS:
        image = {"type": "image_url", "image_url": {"url": address}}
        for content in (f"![]({address})", [{"type": "text", "text": address}], [image]):
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
            assert httpx.post(f"{url}/chat/completions", json=body, timeout=PATIENCE_S).status_code in (200, 400)
    report = asyncio.run(fuzz("127.0.0.1", int(url.split("/")[2].rpartition(":")[2]), 0, NUM_CONNECTIONS))
    assert report.failures == []


@pytest.mark.skipif(not can_trace(), reason="needs strace, and the right to trace")
def test_sec_17_no_request_makes_the_server_connect_to_anybody(tmp_path: Path) -> None:
    folder, trace = write_tiny_model(tmp_path / "tiny"), tmp_path / "trace"
    assert STRACE is not None
    server = [sys.executable, "-m", "headrace.cli.main", "serve", str(folder), "--port", "0", "--threads", "1"]
    server += ["--header-read-s", "0.3", "--body-read-s", "0.3"]
    command = [STRACE, "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto", "-o", str(trace), *server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line)
            if line.startswith("ready in"):
                break
        tempt(next(line.split()[1] for line in lines if line.strip().startswith("URL")))
        (pid,) = re.findall(r"\d+", Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text())
        subprocess.run(["kill", f"-{signal.SIGTERM.value}", pid], check=True)
        child.wait(PATIENCE_S)
    calls = trace.read_text()
    assert "AF_UNIX" in calls, "the engine process's own socket shows that the trace works"
    assert "AF_INET" not in calls, [line for line in calls.splitlines() if "AF_INET" in line]


HOOK = """
import sys
def note(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        with open({log!r}, "a") as log:
            log.write(f"{{event}} {{arguments[1:]!r}}\\n")
sys.addaudithook(note)
"""
"""Every Python that finds it as ``sitecustomize`` runs it at its start, children of the server included."""


def test_sec_17_no_python_code_of_a_server_looks_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.touch()
    (tmp_path / "sitecustomize.py").write_text(HOOK.format(log=str(log)))
    folder = write_tiny_model(tmp_path / "tiny")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep))
    with served(folder, "--header-read-s", "0.3", "--body-read-s", "0.3") as server:
        tempt(server.url)
    calls = log.read_text().splitlines()
    inner = [call for call in calls if call.startswith("socket.connect ('/") and call.endswith("engine.sock',)")]
    assert inner, "the engine process's own socket shows that the hook works"
    assert not set(calls) - set(inner)
